/* What an interpreter and its zygote write to guestd: code of the user has both sockets in its reach. */
#include <stdio.h>
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
    char again[32];
    pid_t pid, other = 0;
    int status, same;

    if (frame_read_status(text, &pid, &status)) {
        (void)snprintf(again, sizeof again, "%d %d", pid, status);
        check(pid > 1 && status >= 0 && frame_read_status(str_from(again), &other, &same));
        check(pid == other && status == same);
    }
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
    while (frame_read(rest, &frame, &used) == FRAME_DONE) {
        check(used > FRAME_HEADER_BYTES && used <= rest.len && used <= FRAME_HEADER_BYTES + LIMIT_FRAME_BYTES);
        check(frame.text.len + 1 + FRAME_HEADER_BYTES == used && frame.text.at + frame.text.len == rest.at + used);
        frame_write_header(frame.text.len + 1, header);
        check(memcmp(header, rest.at, sizeof header) == 0);
        /* It says the same without what comes behind it, and nothing until it is whole. */
        check(frame_read(str_of(rest.at, used), &second, &used_again) == FRAME_DONE && used_again == used);
        check(frame_read(str_of(rest.at, used - 1), &second, &used_again) == FRAME_MORE);
        try_text(frame.text);
        rest = str_of(rest.at + used, rest.len - used);
    }
    return 0;
}
