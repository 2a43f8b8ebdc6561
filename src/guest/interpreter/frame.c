#include "guest/interpreter/frame.h"

#include "guest/interpreter/limits.h"

enum frame_verdict frame_parse(struct str bytes, struct frame *out, size_t *out_used)
{
    const unsigned char *at = (const unsigned char *)bytes.at;

    if (bytes.len < FRAME_HEADER_BYTES)
        return FRAME_MORE;
    size_t length = (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
    if (length == 0 || length > LIMIT_FRAME_BYTES)
        return FRAME_MALFORMED;
    if (bytes.len < FRAME_HEADER_BYTES + length)
        return FRAME_MORE;
    out->letter = bytes.at[FRAME_HEADER_BYTES];
    out->text = str_of(bytes.at + FRAME_HEADER_BYTES + 1, length - 1);
    *out_used = FRAME_HEADER_BYTES + length;
    return FRAME_DONE;
}

void frame_write_header(size_t length, unsigned char out[FRAME_HEADER_BYTES])
{
    for (int i = 0; i < FRAME_HEADER_BYTES; i++)
        out[i] = (unsigned char)(length >> (24 - 8 * i));
}
