/*
 * Any bytes either fail or become a content that packs to the same bytes again. The first byte chooses content or draft.
 */
#include <stdlib.h>

#include "mail/content_pack.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct arena arena;
    struct err err;

    if (!size)
        return 0;
    struct str bytes = str_of(data + 1, size - 1);
    struct unpack in = unpack_from(bytes);
    auto_buf struct buf again = buf_make(NULL, size);
    arena_init(&arena);
    if (data[0] & 1) {
        struct mail_draft draft;
        unpack_draft(&in, &arena, &draft);
        if (unpack_done(&in, &err))
            pack_draft(&again, &draft);
    } else {
        struct mail_content content = { 0 };
        unsigned parts = unpack_content(&in, &arena, &content);
        if (unpack_done(&in, &err))
            pack_content(&again, &content, parts);
    }
    if (again.overflowed || (again.len && !str_eq(buf_str(&again), bytes)))
        abort();
    arena_done(&arena);
    return 0;
}
