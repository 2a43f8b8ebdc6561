/*
 * An archive that anybody may have uploaded: whatever it is, it is read to an image or refused, and the layers that are given are
 * those that were named. The first byte says which image is wanted; if it is odd, headers get the right checksum, which
 * mutations never have.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "registry/fetch.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

struct seen {
    uint32_t count, next;
};

static bool chains(void *context, const struct pull_layer *layers, uint32_t count, bool *out_have, struct err *err)
{
    struct seen *seen = context;

    (void)err;
    if (count == 0 || count > LIMIT_IMAGE_LAYERS || seen->count)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        if (strlen(layers[i].diff_hex) != 64 || strlen(layers[i].chain_hex) != 64)
            abort();
        out_have[i] = layers[i].chain_hex[0] < '4';
    }
    seen->count = count;
    return true;
}

static bool layer(void *context, uint32_t number, int fd, struct err *err)
{
    struct seen *seen = context;

    (void)err;
    if (number >= seen->count || number < seen->next || fd < 0 || lseek(fd, 0, SEEK_CUR) != 0)
        abort();
    seen->next = number + 1;
    return true;
}

/* One thread: what is left to chance is in the archive. */
static void together(void *context, void (*work)(void *work_context, uint32_t thread), void *work_context)
{
    (void)context;
    work(work_context, 0);
}

static void stop(void *context)
{
    (void)context;
}

static bool web_wait(void *context, uint64_t ms, struct err *err)
{
    (void)context;
    return ms == 0 || err_set(err, ERR_CONFLICT, "no time");
}

static void web_said(void *context, struct str line)
{
    (void)context;
    (void)line;
}

static char blobs_path[] = "/tmp/cloister-archive-fuzz.XXXXXX";

static void remove_dir(void)
{
    (void)rmdir(blobs_path);
}

static int blobs_dir(void)
{
    static int fd = -1;

    if (fd < 0) {
        if (!mkdtemp(blobs_path) || atexit(remove_dir) != 0)
            abort();
        fd = open(blobs_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            abort();
    }
    return fd;
}

static void sum_up(char *block)
{
    unsigned sum = 0;
    char text[16];

    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++)
        sum += (unsigned char)block[i];
    (void)snprintf(text, sizeof text, "%06o", sum);
    memcpy(block + 148, text, 7);
}

static int file_of(const unsigned char *data, size_t size, bool is_summed)
{
    auto_buf struct buf bytes = buf_make(NULL, size);
    int fd = memfd_create("archive", MFD_CLOEXEC);
    struct err err;

    buf_add(&bytes, str_of(data, size));
    for (size_t at = 0; is_summed && at + 512 <= bytes.len; at += 512)
        if (memcmp(bytes.data + at + 257, "ustar", 5) == 0)
            sum_up(bytes.data + at);
    if (fd < 0 || !fd_write_all(fd, buf_str(&bytes), &err))
        abort();
    return fd;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static const struct str names[] = { STR_INIT(""), STR_INIT("x:1"), STR_INIT("one"), STR_INIT("x") };
    static const struct web web = { .wait = web_wait, .said = web_said };
    const struct blobs blobs = { .dir_fd = blobs_dir() };
    const struct registry_options options = { 0 };
    struct seen seen = { 0 };
    struct pull_done done;
    struct arena arena;
    struct err err;

    if (size < 2)
        return 0;
    auto_close int fd = file_of(data + 1, size - 1, data[0] & 1);
    const struct pull_ask ask = { .is_archive = true,
                                  .image = names[(data[0] >> 1) % COUNT_OF(names)],
                                  .architecture = "amd64" };
    arena_init(&arena);
    bool fine = image_fetch(&(struct fetch_config){ .options = &options,
                                                    .ask = &ask,
                                                    .archive_fd = fd,
                                                    .web = &web,
                                                    .blobs = &blobs,
                                                    .arena = &arena,
                                                    .chains = chains,
                                                    .layer = layer,
                                                    .thread_count = 1,
                                                    .together = together,
                                                    .stop = stop,
                                                    .context = &seen },
                            &done, &err);
    if (fine && (!seen.count || strlen(done.digest_hex) != 64 || done.env_count > LIMIT_IMAGE_ENVS))
        abort();
    if (!fine && !err.message[0])
        abort();
    arena_done(&arena);
    return 0;
}
