/*
 * However a body is cut, the same parts come out. The first byte chooses the size of the pieces, the first line is the
 * content type.
 */
#include <stdlib.h>

#include "wire/multipart.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void read_in_pieces(struct str type, struct str body, size_t piece, struct buf *out)
{
    struct multipart mp;
    struct err err;
    struct multipart_part part;
    enum multipart_event got = MULTIPART_MORE;

    if (!multipart_init(&mp, type, &err))
        return;
    for (size_t at = 0; at < body.len && got != MULTIPART_BAD; at += piece) {
        struct str in = str_of(body.at + at, MIN(piece, body.len - at)), bytes;
        while ((got = multipart_next(&mp, &in, &part, &bytes, &err)) != MULTIPART_MORE && got != MULTIPART_BAD) {
            if (got == MULTIPART_PART)
                buf_format(out, "<%zu,%zu,%zu:", part.name.len, part.filename.len, part.content_type.len);
            else if (got == MULTIPART_DATA)
                buf_add(out, bytes);
            else
                buf_add_char(out, got == MULTIPART_PART_END ? '>' : '.');
        }
    }
    buf_add_char(out, got == MULTIPART_BAD ? '!' : multipart_is_whole(&mp) ? '=' : '?');
    multipart_done(&mp);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str body = str_of(data + 1, size - 1), type;

    if (size < 2 || !str_cut(&body, '\n', &type))
        return 0;
    auto_buf struct buf whole = buf_make(NULL, 16 * size + 64), pieces = buf_make(NULL, 16 * size + 64);
    read_in_pieces(type, body, MAX(body.len, (size_t)1), &whole);
    read_in_pieces(type, body, (size_t)data[0] + 1, &pieces);
    if (!str_eq(buf_str(&whole), buf_str(&pieces)))
        abort();
    return 0;
}
