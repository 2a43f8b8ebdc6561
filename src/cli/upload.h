/*
 * upload.h - sends bytes to the server, as they are read, and says how far it is.
 */
#ifndef CLI_UPLOAD_H
#define CLI_UPLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/client.h"

struct upload_source {
    uint64_t size; /* of all bytes */
    /* The next ones, at least one. */
    bool (*read)(void *context, char *room, size_t size, size_t *out_len, struct err *err);
    void *context;
};

/*
 * PUT of all bytes, by a link that the server gave: only its path counts, the server is the client's. Ends as soon as the
 * server refuses, and with ERR_TIMEOUT if nothing moves for UPLOAD_IDLE_MS.
 */
bool upload_send(struct client *client, struct str link, const struct upload_source *source, struct err *err) must_use;

#endif
