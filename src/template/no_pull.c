/* A server without the role that fetches images. */
#include "template/pull.h"

bool puller_pull(struct puller *puller, const struct pull_want *want, struct arena *arena, struct pulled *out,
                 struct err *err)
{
    (void)puller;
    (void)arena;
    (void)out;
    return err_set(err, ERR_UNAVAILABLE, "image '%.*s': images from registries are not available on this server",
                   (int)MIN(want->image.len, (size_t)60), want->image.at);
}

void pulled_done(struct pulled *pulled)
{
    (void)pulled;
}
