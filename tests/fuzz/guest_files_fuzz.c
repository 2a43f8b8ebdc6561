/*
 * What /files reads besides multipart, which has a target of its own: ranges, encodings, and compressed bodies, which
 * arrive in pieces of any size. The first byte says what the rest is.
 */
#include <sys/mman.h>

#include "guest/upload.c" /* its decoders are its own */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void fuzz_range(struct str text, uint64_t size)
{
    uint64_t from = 0, len = 0;

    if (files_range_parse(text, size, &from, &len) == FILES_PART)
        check(len > 0 && from < size && len <= size - from);
    (void)files_accepts(&text, STR("gzip"));
    (void)files_accepts(&text, STR("identity"));
}

/* Nobody is there to be answered: every answer is dropped. The file is in memory and has no name. */
static void fuzz_gzip(struct str bytes, size_t piece)
{
    static int fd = -1;
    struct http_exchange ex = { .gone = true };
    struct upload u = { .ex = &ex, .is_gzip = true, .path = "x", .gathered = buf_make(NULL, 2 * GATHER_BYTES) };

    if (fd < 0)
        fd = memfd_create("upload", MFD_CLOEXEC);
    check(fd >= 0 && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    arena_init(&ex.arena);
    check(inflateInit2(&u.inflate, 16 + MAX_WBITS) == Z_OK);
    u.fd = dup(fd);
    while (bytes.len && !u.is_over) {
        struct str next = str_of(bytes.at, MIN(piece, bytes.len));
        bytes.at += next.len;
        bytes.len -= next.len;
        if (!take_gzip(&u, next))
            break;
    }
    (void)inflateEnd(&u.inflate);
    buf_done(&u.gathered);
    fd_close(&u.fd);
    arena_done(&ex.arena);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    if (size < 2)
        return 0;
    struct str rest = str_of(data + 2, size - 2);
    if (data[0] == 'r')
        fuzz_range(rest, (uint64_t)data[1] * 1000);
    else
        fuzz_gzip(rest, (size_t)data[1] + 1);
    return 0;
}
