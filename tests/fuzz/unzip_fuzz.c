/*
 * However a stream is cut, the same bytes come out, and never more than were allowed. The first byte chooses the size of the
 * pieces, the second that of the room.
 */
#include <stdlib.h>

#include "base/buf.h"
#include "wire/unzip.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { MOST = 1 << 20 };

static void read_in_pieces(struct str packed, size_t piece, size_t room_size, struct buf *out)
{
    struct unzip *unzip = unzip_new(MOST);
    static char room[1 << 16];
    struct err err;
    bool fine = true;

    for (size_t at = 0; fine && at < packed.len; at += piece) {
        struct str in = str_of(packed.at + at, MIN(piece, packed.len - at));
        size_t len = 1;
        while (fine && (in.len || len)) {
            size_t before = in.len;
            fine = unzip_read(unzip, &in, room, room_size, &len, &err);
            if (fine && !len && in.len && in.len == before)
                abort(); /* it would be called for ever */
            if (fine)
                buf_add(out, str_of(room, len));
        }
    }
    if (out->len > MOST || out->overflowed)
        abort();
    fine = fine && unzip_finish(unzip, &err);
    /* How much comes out before a damaged place is found is not the same. */
    if (!fine)
        buf_clear(out);
    buf_add_char(out, fine ? '=' : '!');
    unzip_free(unzip);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    if (size < 3)
        return 0;
    struct str packed = str_of(data + 2, size - 2);
    auto_buf struct buf whole = buf_make(NULL, MOST + 16), pieces = buf_make(NULL, MOST + 16);
    read_in_pieces(packed, packed.len, 1 << 16, &whole);
    read_in_pieces(packed, (size_t)data[0] + 1, (size_t)data[1] * 16 + 1, &pieces);
    if (!str_eq(buf_str(&whole), buf_str(&pieces)))
        abort();
    return 0;
}
