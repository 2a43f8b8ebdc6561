/* However a body is cut, the same envelopes come out. The first byte chooses the size of the pieces. */
#include <stdlib.h>

#include "wire/connect.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void read_in_pieces(struct str body, size_t piece, struct buf *out)
{
    struct connect_reader reader;
    struct err err;
    struct str payload;
    unsigned flags;
    enum connect_read got = CONNECT_MORE;

    connect_reader_init(&reader);
    for (size_t at = 0; at < body.len && got != CONNECT_BAD; at += piece) {
        struct str in = str_of(body.at + at, MIN(piece, body.len - at));
        while ((got = connect_reader_next(&reader, &in, &flags, &payload, &err)) == CONNECT_ENVELOPE)
            connect_write(out, flags, payload);
    }
    if (got == CONNECT_BAD)
        buf_add_char(out, '!');
    else if (!connect_reader_is_whole(&reader))
        buf_add_char(out, '?');
    connect_reader_done(&reader);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    uint64_t ms;
    struct err err;

    if (size == 0)
        return 0;
    struct str body = str_of(data + 1, size - 1);
    auto_buf struct buf whole = buf_make(NULL, size + 64), pieces = buf_make(NULL, size + 64);
    read_in_pieces(body, MAX(body.len, (size_t)1), &whole);
    read_in_pieces(body, (size_t)data[0] + 1, &pieces);
    if (!str_eq(buf_str(&whole), buf_str(&pieces)))
        abort();
    (void)!connect_timeout_parse(body, &ms, &err);
    return 0;
}
