/* A proxy's answers in one piece and byte by byte: the same end, and the same bytes of ours. */
#include <stdlib.h>

#include "wire/socks5.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static enum socks5_step talk(const struct socks5_want *want, struct str all, size_t piece, struct buf *out,
                             size_t *out_used)
{
    struct socks5 socks;
    struct err err;
    enum socks5_step step = SOCKS5_MORE;
    struct str rest = str_of(all.at, 0);
    size_t given = 0;

    socks5_begin(&socks, want, out);
    while (step == SOCKS5_MORE && given < all.len) {
        size_t more = MIN(piece, all.len - given);
        given += more;
        rest.len += more;
        step = socks5_next(&socks, &rest, out, &err);
    }
    *out_used = given - rest.len;
    return step;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static const struct socks5_want wants[] = {
        { .name = STR_INIT("example.com"), .port = 443 },
        { .username = STR_INIT("u"), .password = STR_INIT("p"), .is_v4 = true, .port = 80 },
    };

    for (size_t i = 0; i < COUNT_OF(wants); i++) {
        auto_buf struct buf whole = buf_make(NULL, 2048), bytes = buf_make(NULL, 2048);
        size_t used, used_by_bytes;
        enum socks5_step at_once = talk(&wants[i], str_of(data, size), size + 1, &whole, &used);
        enum socks5_step one_by_one = talk(&wants[i], str_of(data, size), 1, &bytes, &used_by_bytes);
        if (at_once != one_by_one || !str_eq(buf_str(&whole), buf_str(&bytes)))
            abort();
        if (at_once == SOCKS5_DONE && used != used_by_bytes)
            abort();
    }
    return 0;
}
