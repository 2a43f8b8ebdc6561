/* What front and a child of the role puller tell each other. */
#include <stdlib.h>

#include "registry/message.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str bytes = str_of(data, size);
    bool have[LIMIT_IMAGE_LAYERS];
    struct pull_told told;
    struct pull_ask ask;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    if (pull_told_unpack(bytes, &arena, &told, &err) && told.type == PULL_CHAINS &&
        (told.layer_count == 0 || told.layer_count > LIMIT_IMAGE_LAYERS))
        abort();
    if (pull_ask_unpack(bytes, &ask, &err)) {
        auto_buf struct buf again = buf_make(NULL, size + 64);
        pull_ask_pack(&again, &ask);
        if (!str_eq(buf_str(&again), bytes))
            abort();
    }
    bool removes;
    if (pull_stock_unpack(bytes, &removes, &err)) {
        auto_buf struct buf again = buf_make(NULL, size + 64);
        pull_stock_pack(&again, removes);
        if (!str_eq(buf_str(&again), bytes))
            abort();
    }
    (void)!pull_have_unpack(bytes, have, (uint32_t)(size % LIMIT_IMAGE_LAYERS), &err);
    arena_done(&arena);
    return 0;
}
