/* A message that is read and has content of its own must be written back byte for byte. */
#include <stdlib.h>

#include "wire/guestlink.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct err err;
    struct arena arena;
    struct guestlink_message message;
    uint32_t length;

    arena_init(&arena);
    if (size >= GUESTLINK_HEADER_BYTES)
        (void)!guestlink_body_length(data, &length, &err);
    bool is_read = guestlink_read(str_of(data, size), &arena, &message, &err);
    if (is_read &&
        (message.type == GUESTLINK_SETUP || message.type == GUESTLINK_LOG || message.type == GUESTLINK_NETWORK ||
         message.type == GUESTLINK_READY || message.type == GUESTLINK_WARMED)) {
        auto_buf struct buf again = buf_make(NULL, LIMIT_GUESTLINK_BYTES + GUESTLINK_HEADER_BYTES);
        if (message.type == GUESTLINK_SETUP)
            guestlink_write_setup(&again, &message.setup);
        else if (message.type == GUESTLINK_NETWORK)
            guestlink_write_network(&again, &message.network);
        else if (message.type == GUESTLINK_READY)
            guestlink_write_ready(&again, &message.ready);
        else if (message.type == GUESTLINK_WARMED)
            guestlink_write_warmed(&again, message.error.kind == ERR_NONE ? NULL : &message.error);
        else
            guestlink_write_log(&again, &message.log);
        if (again.overflowed || again.len != size + GUESTLINK_HEADER_BYTES ||
            memcmp(again.data + GUESTLINK_HEADER_BYTES, data, size) != 0)
            abort();
    }
    arena_done(&arena);
    return 0;
}
