#include "isolation/native/zpages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/fd.h"
#include "base/fnv.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/pack.h"
#include "isolation/native/room.h"

#define MAGIC STR("CLOIPAG1")

enum {
    LEVEL = 1,        /* 3 makes it a tenth smaller, and takes half as long again */
    WINDOW_LOG = 23,  /* what a reader allows: 8 MiB, more than our level uses */
    CHUNK = 1 << 20,  /* read and written at once */
    HASH_BYTES = 8,   /* of the head, behind the list */
    FILE_MODE = 0644, /* restored processes read it as the sandbox's root; the directories above are root's */
};

/* ---- the head ---- */

void zpages_done(struct zpages *pages)
{
    free(take_ptr(&pages->files));
    pages->count = 0;
}

bool zpages_is_name(const char *name)
{
    struct str text = str_from(name);
    uint64_t number;

    return text.len < ZPAGES_NAME_BYTES && str_skip(&text, STR("pages-")) && text.len > 4 &&
           str_eq(str_of(text.at + text.len - 4, 4), STR(".img")) &&
           str_to_u64(str_of(text.at, text.len - 4), UINT32_MAX, &number) && (text.at[0] != '0' || text.len == 5);
}

uint64_t zpages_bytes(const struct zpages *pages)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < pages->count; i++)
        sum += pages->files[i].bytes; /* at most 2^12 times 2^36 */
    return sum;
}

/* Finds damage. */
static uint64_t hash_of(struct str bytes)
{
    return fnv_add(FNV_START, bytes);
}

void zpages_print(struct buf *out, const struct zpages *pages)
{
    auto_buf struct buf list = buf_make(NULL, LIMIT_PAGES_HEAD_BYTES);

    pack_u32(&list, (uint32_t)pages->count);
    for (size_t i = 0; i < pages->count; i++) {
        pack_str(&list, str_from(pages->files[i].name));
        pack_u64(&list, pages->files[i].bytes);
    }
    buf_add(out, MAGIC);
    pack_str(out, buf_str(&list));
    out->overflowed |= list.overflowed;
    pack_u64(out, hash_of(buf_str(out)));
}

static bool damaged(struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "the compressed pages are damaged: %s", what);
}

bool zpages_head_bytes(struct str prefix, size_t *out, struct err *err)
{
    struct str rest = prefix;

    if (!str_skip(&rest, MAGIC) || rest.len < 4)
        return damaged(err, "they do not begin as such");
    struct unpack in = unpack_from(str_of(rest.at, 4));
    uint32_t list = unpack_u32(&in);
    if (list > LIMIT_PAGES_HEAD_BYTES - ZPAGES_PREFIX_BYTES - HASH_BYTES)
        return damaged(err, "their list is too long");
    *out = ZPAGES_PREFIX_BYTES + (size_t)list + HASH_BYTES;
    return true;
}

static bool parse_list(struct str list, struct zpages *out, struct err *err)
{
    struct unpack in = unpack_from(list);
    uint32_t count = unpack_count(&in, LIMIT_PAGES_FILES);
    auto_zpages struct zpages pages = { .count = count, .files = mem_new((count + 1) * sizeof(struct zpages_file)) };
    struct err ignored;
    bool fine = count > 0;

    for (uint32_t i = 0; i < count; i++) {
        unpack_text(&in, pages.files[i].name, sizeof pages.files[i].name);
        pages.files[i].bytes = unpack_u64(&in);
        fine = fine && zpages_is_name(pages.files[i].name) && pages.files[i].bytes <= LIMIT_IMAGE_FILE_BYTES &&
               (i == 0 || strcmp(pages.files[i - 1].name, pages.files[i].name) < 0);
    }
    if (!unpack_done(&in, &ignored) || !fine)
        return damaged(err, "their list makes no sense");
    *out = pages;
    pages = (struct zpages){ 0 };
    return true;
}

bool zpages_parse(struct str head, struct zpages *out, struct err *err)
{
    size_t len;

    if (!zpages_head_bytes(head, &len, err))
        return false;
    if (head.len != len)
        return damaged(err, "their list is cut short");
    struct unpack in = unpack_from(str_of(head.at + len - HASH_BYTES, HASH_BYTES));
    if (unpack_u64(&in) != hash_of(str_of(head.at, len - HASH_BYTES)))
        return damaged(err, "their list has changed");
    return parse_list(str_of(head.at + ZPAGES_PREFIX_BYTES, len - ZPAGES_PREFIX_BYTES - HASH_BYTES), out, err);
}

/* ---- reading ---- */

struct reading {
    int fd;
    ZSTD_DCtx *zstd;
    char *in_room, *out_room;
    ZSTD_inBuffer in; /* what was read and not yet used */
};

static bool read_some(struct reading *reading, struct err *err)
{
    ssize_t n;

    do
        n = read(reading->fd, reading->in_room, CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_sys(err, "read the compressed pages");
    reading->in = (ZSTD_inBuffer){ .src = reading->in_room, .size = (size_t)n };
    return true;
}

static bool read_exactly(int fd, char *room, size_t size, struct err *err)
{
    for (size_t len = 0; len < size;) {
        ssize_t n = read(fd, room + len, size - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "read the compressed pages");
        if (n == 0)
            return damaged(err, "they are cut short");
        len += (size_t)n;
    }
    return true;
}

static bool read_head(int fd, struct zpages *out, struct err *err)
{
    char prefix[ZPAGES_PREFIX_BYTES];
    size_t len;

    if (!read_exactly(fd, prefix, sizeof prefix, err) || !zpages_head_bytes(str_of(prefix, sizeof prefix), &len, err))
        return false;
    auto_free char *head = mem_new(len);
    memcpy(head, prefix, sizeof prefix);
    return read_exactly(fd, head + sizeof prefix, len - sizeof prefix, err) &&
           zpages_parse(str_of(head, len), out, err);
}

bool zpages_read_size(int image_fd, uint64_t *out_bytes, struct err *err)
{
    auto_close int fd = openat(image_fd, ZPAGES, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    auto_zpages struct zpages pages = { 0 };

    if (fd < 0)
        return err_sys(err, "open the compressed pages");
    if (!read_head(fd, &pages, err))
        return false;
    *out_bytes = zpages_bytes(&pages);
    return true;
}

/* One frame: never more than the list says is written. */
static bool read_file(struct reading *reading, const struct zpages_sink *sink, uint64_t bytes, struct err *err)
{
    uint64_t left = bytes;
    size_t more = 1;

    (void)ZSTD_DCtx_reset(reading->zstd, ZSTD_reset_session_only);
    while (more) {
        if (reading->in.pos == reading->in.size && !read_some(reading, err))
            return false;
        if (reading->in.size == 0)
            return damaged(err, "they are cut short");
        ZSTD_outBuffer out = { .dst = reading->out_room, .size = CHUNK };
        more = ZSTD_decompressStream(reading->zstd, &out, &reading->in);
        if (ZSTD_isError(more))
            return damaged(err, ZSTD_getErrorName(more));
        if (out.pos > left)
            return damaged(err, "there is more in them than they say");
        left -= out.pos;
        if (out.pos && !sink->take(sink->context, str_of(reading->out_room, out.pos), err))
            return false;
    }
    return left == 0 || damaged(err, "there is less in them than they say");
}

static bool read_files(struct reading *reading, const struct zpages *pages, const struct zpages_sink *sink,
                       struct err *err)
{
    for (size_t i = 0; i < pages->count; i++)
        if (!sink->begin(sink->context, pages, i, err) || !read_file(reading, sink, pages->files[i].bytes, err) ||
            !sink->end(sink->context, err))
            return false;
    if (reading->in.pos == reading->in.size && !read_some(reading, err))
        return false;
    return reading->in.pos == reading->in.size || damaged(err, "something follows them");
}

bool zpages_read(int fd, const struct zpages_sink *sink, struct err *err)
{
    auto_zpages struct zpages pages = { 0 };

    if (!read_head(fd, &pages, err))
        return false;
    auto_free char *in_room = mem_new(CHUNK), *out_room = mem_new(CHUNK);
    struct reading reading = { .fd = fd, .zstd = ZSTD_createDCtx(), .in_room = in_room, .out_room = out_room };
    if (!reading.zstd)
        return err_set(err, ERR_INTERNAL, "no memory for zstd");
    bool fine = !ZSTD_isError(ZSTD_DCtx_setParameter(reading.zstd, ZSTD_d_windowLogMax, WINDOW_LOG))
                    ? read_files(&reading, &pages, sink, err)
                    : err_set(err, ERR_INTERNAL, "zstd is not the one we know");
    (void)ZSTD_freeDCtx(reading.zstd);
    return fine;
}

/* ---- files ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct zpages_file *)a)->name, ((const struct zpages_file *)b)->name);
}

static DIR *open_dir(int image_fd, struct err *err)
{
    int fd = openat(image_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir) {
        (void)err_sys(err, "read the image's directory");
        fd_close(&fd);
    }
    return dir;
}

bool zpages_list(int image_fd, struct zpages *out, struct err *err)
{
    DIR *dir = open_dir(image_fd, err);
    auto_zpages struct zpages pages = { 0 };
    bool fine = dir != NULL;
    struct stat st;

    for (struct dirent *entry; fine && (entry = readdir(dir));) {
        if (!zpages_is_name(entry->d_name))
            continue;
        if (fstatat(image_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            fine = err_sys(err, "look at %s", entry->d_name);
        else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > LIMIT_IMAGE_FILE_BYTES ||
                 pages.count == LIMIT_PAGES_FILES)
            fine = err_set(err, ERR_LIMIT, "the image has more files, or larger ones, than are compressed");
        if (!fine)
            break;
        pages.files = mem_grow(pages.files, (pages.count + 1) * sizeof *pages.files);
        (void)snprintf(pages.files[pages.count].name, ZPAGES_NAME_BYTES, "%s", entry->d_name);
        pages.files[pages.count++].bytes = (uint64_t)st.st_size;
    }
    if (dir)
        (void)closedir(dir);
    if (!fine)
        return false;
    if (pages.count)
        qsort(pages.files, pages.count, sizeof *pages.files, by_name);
    *out = pages;
    pages = (struct zpages){ 0 };
    return true;
}

/* A new file, also where a helper that was killed may still hold the one before. */
static int make_file(int image_fd, const char *name, struct err *err)
{
    if (unlinkat(image_fd, name, 0) < 0 && errno != ENOENT) {
        (void)err_sys(err, "remove %s", name);
        return -1;
    }
    int fd = openat(image_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, FILE_MODE);
    if (fd < 0 || fchmod(fd, FILE_MODE) < 0) { /* whatever the umask */
        (void)err_sys(err, "make %s", name);
        fd_close(&fd);
    }
    return fd;
}

struct writing {
    int fd;
    ZSTD_CCtx *zstd;
    char *in_room, *out_room;
};

static bool compress_piece(struct writing *writing, struct str piece, ZSTD_EndDirective how, struct err *err)
{
    ZSTD_inBuffer in = { .src = piece.at, .size = piece.len };
    size_t more = 1;

    while (in.pos < in.size || (how == ZSTD_e_end && more)) {
        ZSTD_outBuffer out = { .dst = writing->out_room, .size = CHUNK };
        more = ZSTD_compressStream2(writing->zstd, &out, &in, how);
        if (ZSTD_isError(more))
            return err_set(err, ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(more));
        if (out.pos && !fd_write_all(writing->fd, str_of(writing->out_room, out.pos), err))
            return false;
    }
    return true;
}

static bool compress_file(struct writing *writing, int image_fd, const struct zpages_file *file, struct err *err)
{
    auto_close int fd = openat(image_fd, file->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    uint64_t left = file->bytes;

    if (fd < 0)
        return err_sys(err, "open %s", file->name);
    (void)ZSTD_CCtx_reset(writing->zstd, ZSTD_reset_session_only);
    if (ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(writing->zstd, file->bytes)))
        return err_set(err, ERR_INTERNAL, "zstd is not the one we know");
    while (left) {
        ssize_t n = read(fd, writing->in_room, (size_t)MIN(left, (uint64_t)CHUNK));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? err_sys(err, "read %s", file->name)
                         : err_set(err, ERR_CONFLICT, "%s became shorter while it was compressed", file->name);
        left -= (uint64_t)n;
        if (!compress_piece(writing, str_of(writing->in_room, (size_t)n), ZSTD_e_continue, err))
            return false;
    }
    return compress_piece(writing, STR(""), ZSTD_e_end, err);
}

static bool compress_all(struct writing *writing, int image_fd, const struct zpages *pages, struct err *err)
{
    auto_buf struct buf head = buf_make(NULL, LIMIT_PAGES_HEAD_BYTES);

    zpages_print(&head, pages);
    if (head.overflowed)
        return err_set(err, ERR_LIMIT, "the image has more files than are compressed");
    if (ZSTD_isError(ZSTD_CCtx_setParameter(writing->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(writing->zstd, ZSTD_c_checksumFlag, 1)))
        return err_set(err, ERR_INTERNAL, "zstd is not the one we know");
    if (!fd_write_all(writing->fd, buf_str(&head), err))
        return false;
    for (size_t i = 0; i < pages->count; i++)
        if (!compress_file(writing, image_fd, &pages->files[i], err))
            return false;
    return fsync(writing->fd) == 0 || err_sys(err, "sync the compressed pages");
}

bool zpages_compress(int image_fd, const struct zpages *pages, uint64_t *out_bytes, struct err *err)
{
    auto_close int fd = make_file(image_fd, ZPAGES_NEW, err);
    struct stat st;

    if (fd < 0)
        return false;
    auto_free char *in_room = mem_new(CHUNK), *out_room = mem_new(CHUNK);
    struct writing writing = { .fd = fd, .zstd = ZSTD_createCCtx(), .in_room = in_room, .out_room = out_room };
    if (!writing.zstd)
        return err_set(err, ERR_INTERNAL, "no memory for zstd");
    bool fine = compress_all(&writing, image_fd, pages, err);
    (void)ZSTD_freeCCtx(writing.zstd);
    if (!fine)
        return false;
    if (fstat(fd, &st) < 0)
        return err_sys(err, "look at the compressed pages");
    *out_bytes = (uint64_t)st.st_size;
    return true;
}

/* ---- back ---- */

struct expansion {
    int image_fd, fd;
    char name[ZPAGES_NAME_BYTES], draft[ZPAGES_NAME_BYTES + 4];
};

static bool begin_file(void *context, const struct zpages *pages, size_t which, struct err *err)
{
    struct expansion *expansion = context;

    if (which == 0 && !room_check_memory(expansion->image_fd, zpages_bytes(pages), err))
        return false;
    memcpy(expansion->name, pages->files[which].name, sizeof expansion->name);
    (void)snprintf(expansion->draft, sizeof expansion->draft, "%s.new", expansion->name);
    expansion->fd = make_file(expansion->image_fd, expansion->draft, err);
    return expansion->fd >= 0;
}

static bool take_bytes(void *context, struct str bytes, struct err *err)
{
    const struct expansion *expansion = context;

    return fd_write_all(expansion->fd, bytes, err);
}

static bool end_file(void *context, struct err *err)
{
    struct expansion *expansion = context;

    fd_close(&expansion->fd);
    return renameat(expansion->image_fd, expansion->draft, expansion->image_fd, expansion->name) == 0 ||
           err_sys(err, "name %s", expansion->name);
}

bool zpages_expand(int image_fd, struct err *err)
{
    struct expansion expansion = { .image_fd = image_fd, .fd = -1 };
    const struct zpages_sink sink = { .begin = begin_file, .take = take_bytes, .end = end_file, .context = &expansion };
    auto_close int fd = openat(image_fd, ZPAGES, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open the compressed pages");
    bool fine = zpages_read(fd, &sink, err);
    fd_close(&expansion.fd);
    return fine;
}

static bool is_draft(const char *name)
{
    char whole[ZPAGES_NAME_BYTES];
    size_t len = strlen(name);

    if (strcmp(name, ZPAGES_NEW) == 0)
        return true;
    if (len < 4 || len - 4 >= sizeof whole || strcmp(name + len - 4, ".new") != 0)
        return false;
    memcpy(whole, name, len - 4);
    whole[len - 4] = '\0';
    return zpages_is_name(whole);
}

bool zpages_sweep(int image_fd, struct err *err)
{
    DIR *dir = open_dir(image_fd, err);
    bool fine = dir != NULL;

    for (struct dirent *entry; fine && (entry = readdir(dir));)
        if (is_draft(entry->d_name) && unlinkat(image_fd, entry->d_name, 0) < 0 && errno != ENOENT)
            fine = err_sys(err, "remove %s", entry->d_name);
    if (dir)
        (void)closedir(dir);
    return fine;
}
