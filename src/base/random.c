#include "base/random.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/log.h"

void random_bytes(void *out, size_t size)
{
    unsigned char *at = out;

    while (size) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            log_die("getrandom: errno %d", errno);
        at += n;
        size -= (size_t)n;
    }
}

void random_id(char *room, size_t count)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";

    for (size_t i = 0; i < count;) {
        unsigned char bytes[32];
        random_bytes(bytes, sizeof bytes);
        /* 252 is the largest multiple of 36 below 256: larger bytes would make some letters more likely. */
        for (size_t k = 0; k < sizeof bytes && i < count; k++)
            if (bytes[k] < 252)
                room[i++] = letters[bytes[k] % 36];
    }
    room[count] = '\0';
}

void random_uuid(char room[37])
{
    unsigned char b[16];

    random_bytes(b, sizeof b);
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    (void)snprintf(room, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
                   b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}
