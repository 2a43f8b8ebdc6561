/* A message that is read is written back and read the same; nothing else matters but staying within the input. */
#include <stdlib.h>

#include "wire/zmtp.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct err err;
    struct zmtp_message message, second;
    size_t used, used_again;

    (void)!zmtp_parse_greeting(str_of(data, size), &err);
    if (zmtp_parse_message(str_of(data, size), 1 << 20, &message, &used, &err) != ZMTP_DONE)
        return 0;
    if (used > size)
        abort();
    auto_buf struct buf again = buf_make(NULL, 2 << 20);
    if (message.is_command) {
        zmtp_write_pong(&again, message.frames[0]);
        return 0;
    }
    zmtp_write_message(&again, message.frames, message.count);
    if (zmtp_parse_message(buf_str(&again), 1 << 20, &second, &used_again, &err) != ZMTP_DONE ||
        used_again != again.len || second.count != message.count)
        abort();
    for (size_t i = 0; i < message.count; i++)
        if (!str_eq(message.frames[i], second.frames[i]))
            abort();
    return 0;
}
