/*
 * A client's frames at once and byte by byte: the same messages, and the same end. What we write is read back by removing
 * the mask that a client must have.
 */
#include <stdlib.h>

#include "base/encode.h"
#include "wire/websocket.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

/* All messages into `out`, and how it ended. */
static enum websocket_step talk(struct str all, size_t piece, struct buf *out, unsigned *status)
{
    enum websocket_step step = WEBSOCKET_MORE;
    struct websocket_message message;
    struct websocket ws;
    struct str rest = str_of(all.at, 0);
    size_t given = 0;
    struct err err;

    websocket_init(&ws);
    while (step != WEBSOCKET_BAD && given < all.len) {
        size_t more = MIN(piece, all.len - given);
        given += more;
        rest.len += more;
        while ((step = websocket_next(&ws, &rest, &message, status, &err)) == WEBSOCKET_DONE) {
            check(message.text.len <= LIMIT_WEBSOCKET_BYTES);
            check(message.kind == WEBSOCKET_BINARY || message.kind == WEBSOCKET_PING ||
                  message.kind == WEBSOCKET_PONG || utf8_valid(message.text));
            buf_format(out, "%d %u %zu ", message.kind, message.status, message.text.len);
            buf_add(out, message.text);
        }
        check(step == WEBSOCKET_BAD || rest.len < LIMIT_WEBSOCKET_BYTES + WEBSOCKET_HEAD_BYTES);
    }
    websocket_done(&ws);
    return step;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    auto_buf struct buf whole = buf_make(NULL, 1 << 20), bytes = buf_make(NULL, 1 << 20);
    unsigned status = 0, status_by_bytes = 0;
    char accept[WEBSOCKET_ACCEPT_BYTES];
    struct str all = str_of(data, size);

    if (size > 65536)
        return 0;
    enum websocket_step step = talk(all, size + 1, &whole, &status);
    check(step == talk(all, 1, &bytes, &status_by_bytes));
    check(status == status_by_bytes && str_eq(buf_str(&whole), buf_str(&bytes)));
    if (websocket_accept(all, accept))
        check(strlen(accept) == WEBSOCKET_ACCEPT_BYTES - 1);
    return 0;
}
