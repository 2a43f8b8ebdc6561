/* What an interpreter writes to guestd: user code can reach its socket. */
#include <stdlib.h>

#include "guest/interpreter/frame.h"
#include "guest/interpreter/limits.h"
#include "guest/interpreter/line.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void try_text(struct str text)
{
    if (line_is_clean(text))
        for (size_t i = 0; i < text.len; i++)
            check(text.at[i] >= ' ' && text.at[i] <= '~');
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str rest = str_of(data, size);
    unsigned char header[FRAME_HEADER_BYTES];
    struct frame frame, second;
    size_t used, used_again;

    try_text(rest);
    while (frame_parse(rest, &frame, &used) == FRAME_DONE) {
        check(used > FRAME_HEADER_BYTES && used <= rest.len && used <= FRAME_HEADER_BYTES + LIMIT_FRAME_BYTES);
        check(frame.text.len + 1 + FRAME_HEADER_BYTES == used && frame.text.at + frame.text.len == rest.at + used);
        frame_write_header(frame.text.len + 1, header);
        check(memcmp(header, rest.at, sizeof header) == 0);
        /* The same frame without the bytes after it; and no frame until the last byte is there. */
        check(frame_parse(str_of(rest.at, used), &second, &used_again) == FRAME_DONE && used_again == used);
        check(frame_parse(str_of(rest.at, used - 1), &second, &used_again) == FRAME_MORE);
        try_text(frame.text);
        rest = str_of(rest.at + used, rest.len - used);
    }
    return 0;
}
