/*
 * A layout becomes a tar while it is read: oci-layout, index.json, and the files of blobs/sha256 in the order of their names,
 * each as a header of 512 bytes, the file, and zeros up to the next multiple of 512; then two blocks of zeros. Times and owners
 * are left out, so the same layout is always the same archive.
 */
#include "cli/image_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"

enum {
    BLOCK = 512,
    HEX_CHARS = 64,
    READ_BYTES = 1 << 20,
    NAME_BYTES = sizeof "blobs/sha256/" + HEX_CHARS,
};

struct image_part {
    char name[NAME_BYTES];
    uint64_t size;
    uint64_t begin; /* of its header, in the archive */
};

/* ---- opening ---- */

static bool too_large(uint64_t size, struct err *err)
{
    return err_set(err, ERR_LIMIT, "the image has %llu MB: an upload may have at most %llu",
                   (unsigned long long)(size >> 20), (unsigned long long)(LIMIT_UPLOAD_BYTES >> 20));
}

static uint64_t padded(uint64_t size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

static bool add_part(struct image_file *file, const char *name, struct err *err)
{
    struct image_part *part = &file->parts[file->part_count];
    struct stat found;

    if (fstatat(file->fd, name, &found, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, "open %s", name);
    if (!S_ISREG(found.st_mode))
        return err_set(err, ERR_INVALID, "%s in the layout is not a file", name);
    (void)snprintf(part->name, sizeof part->name, "%s", name);
    part->size = (uint64_t)found.st_size;
    part->begin = file->size;
    if (part->size > LIMIT_UPLOAD_BYTES || file->size + part->size > LIMIT_UPLOAD_BYTES)
        return too_large(file->size + part->size, err);
    file->size += BLOCK + padded(part->size);
    file->part_count++;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_digest(const char *name)
{
    return strlen(name) == HEX_CHARS && strspn(name, "0123456789abcdef") == HEX_CHARS;
}

/* The names of blobs/sha256, sorted. */
static bool list_blobs(const struct image_file *file, struct arena *arena, char ***out, size_t *out_count,
                       struct err *err)
{
    int fd = openat(file->fd, "blobs/sha256", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char **names = ARENA_ARRAY(arena, char *, LIMIT_ARCHIVE_ENTRIES);
    size_t count = 0;
    struct dirent *item;
    bool ok = true;

    if (!dir) {
        fd_close(&fd);
        return err_set(err, ERR_INVALID, "this is no OCI layout: it has no directory blobs/sha256");
    }
    while (ok && (item = readdir(dir)))
        if (is_digest(item->d_name)) {
            if (count == LIMIT_ARCHIVE_ENTRIES)
                ok = err_set(err, ERR_LIMIT, "the layout has more than %d files", LIMIT_ARCHIVE_ENTRIES);
            else
                names[count++] = arena_text(arena, arena_format(arena, "blobs/sha256/%s", item->d_name));
        }
    closedir(dir);
    qsort(names, count, sizeof *names, by_name);
    *out = names;
    *out_count = count;
    return ok;
}

static bool open_layout(struct image_file *file, struct arena *arena, struct err *err)
{
    char **names;
    size_t count;

    file->is_layout = true;
    if (faccessat(file->fd, "index.json", F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(
            err, ERR_INVALID,
            "the directory is no OCI layout: it has no index.json; give a layout, as `skopeo copy … oci:DIR` "
            "and umoci make it, or an archive of `docker save`");
    if (!list_blobs(file, arena, &names, &count, err))
        return false;
    file->parts = ARENA_ARRAY(arena, struct image_part, count + 2);
    if ((faccessat(file->fd, "oci-layout", F_OK, AT_SYMLINK_NOFOLLOW) == 0 && !add_part(file, "oci-layout", err)) ||
        !add_part(file, "index.json", err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!add_part(file, names[i], err))
            return false;
    file->size += 2 * BLOCK;
    return true;
}

static bool open_any(struct image_file *file, const char *path, struct arena *arena, struct err *err)
{
    struct stat found;

    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &found) < 0)
        return err_sys(err, "open %s", path);
    if (S_ISDIR(found.st_mode))
        return open_layout(file, arena, err) && (file->size <= LIMIT_UPLOAD_BYTES || too_large(file->size, err));
    if (!S_ISREG(found.st_mode))
        return err_set(err, ERR_INVALID, "%.80s is neither a file nor a directory", path);
    if (found.st_size == 0)
        return err_set(err, ERR_INVALID, "%.80s is empty", path);
    file->size = (uint64_t)found.st_size;
    return file->size <= LIMIT_UPLOAD_BYTES || too_large(file->size, err);
}

bool image_file_open(struct image_file *file, const char *path, struct arena *arena, struct err *err)
{
    struct image_file got = { .fd = -1, .part_fd = -1 };

    if (!open_any(&got, path, arena, err)) {
        image_file_close(&got);
        return false;
    }
    *file = got;
    return true;
}

void image_file_close(struct image_file *file)
{
    fd_close(&file->part_fd);
    fd_close(&file->fd);
}

/* ---- reading ---- */

static bool has_changed(struct err *err)
{
    return err_set(err, ERR_CONFLICT, "the image is being changed while it is read: try again when it is complete");
}

static bool read_at(int fd, char *room, size_t size, uint64_t at, struct err *err)
{
    while (size) {
        ssize_t n = pread(fd, room, size, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "read the image");
        if (n == 0)
            return has_changed(err);
        room += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return true;
}

static void write_octal(char *field, size_t size, uint64_t value)
{
    (void)snprintf(field, size, "%0*llo", (int)size - 1, (unsigned long long)value);
}

static void make_header(const struct image_part *part, char out[BLOCK])
{
    unsigned sum = 0;

    memset(out, 0, BLOCK);
    memcpy(out, part->name, strlen(part->name));
    write_octal(out + 100, 8, 0644); /* mode */
    write_octal(out + 108, 8, 0);    /* owner */
    write_octal(out + 116, 8, 0);    /* group */
    write_octal(out + 124, 12, part->size);
    write_octal(out + 136, 12, 0); /* time */
    memset(out + 148, ' ', 8);     /* as which the sum counts itself */
    out[156] = '0';                /* a file */
    memcpy(out + 257,
           "ustar\0"
           "00",
           8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += (unsigned char)out[i];
    write_octal(out + 148, 7, sum);
}

static const struct image_part *part_at(const struct image_file *file, uint64_t at)
{
    size_t low = 0, high = file->part_count;

    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (file->parts[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return &file->parts[low];
}

static bool open_part(struct image_file *file, const struct image_part *part, struct err *err)
{
    struct stat found;

    fd_close(&file->part_fd);
    file->part_fd = openat(file->fd, part->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file->part_fd < 0 || fstat(file->part_fd, &found) < 0)
        return err_sys(err, "open %s", part->name);
    return (uint64_t)found.st_size == part->size || has_changed(err);
}

/* Up to the end of a header, of a file, or of the zeros after it. */
static bool read_layout(struct image_file *file, char *room, size_t size, size_t *out_len, struct err *err)
{
    const struct image_part *part = part_at(file, file->at);
    const uint64_t inside = file->at - part->begin, data_end = BLOCK + part->size;
    char header[BLOCK];

    if (inside < BLOCK) {
        make_header(part, header);
        *out_len = MIN(size, (size_t)(BLOCK - inside));
        memcpy(room, header + inside, *out_len);
        return inside + *out_len < BLOCK || open_part(file, part, err);
    }
    if (inside < data_end) {
        *out_len = (size_t)MIN((uint64_t)size, data_end - inside);
        return read_at(file->part_fd, room, *out_len, inside - BLOCK, err);
    }
    uint64_t end = part + 1 < file->parts + file->part_count ? part[1].begin : file->size;
    *out_len = (size_t)MIN((uint64_t)size, end - file->at);
    memset(room, 0, *out_len);
    return true;
}

bool image_file_read(struct image_file *file, char *room, size_t size, size_t *out_len, struct err *err)
{
    size_t len = (size_t)MIN((uint64_t)size, file->size - file->at);

    if (len &&
        (file->is_layout ? !read_layout(file, room, len, &len, err) : !read_at(file->fd, room, len, file->at, err)))
        return false;
    file->at += len;
    *out_len = len;
    return true;
}

bool image_file_hash(struct image_file *file, char out_hex[IMAGE_HASH_BYTES], struct err *err)
{
    auto_free char *room = mem_new(READ_BYTES);
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    unsigned char hash[EVP_MAX_MD_SIZE];
    size_t len = 1;
    bool ok = sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1;

    if (!ok)
        (void)err_set(err, ERR_INTERNAL, "SHA-256 does not work here");
    for (file->at = 0; ok && len;)
        ok = image_file_read(file, room, READ_BYTES, &len, err) &&
             (EVP_DigestUpdate(sum, room, len) == 1 || err_set(err, ERR_INTERNAL, "SHA-256 does not work here"));
    if (ok)
        ok = EVP_DigestFinal_ex(sum, hash, NULL) == 1 || err_set(err, ERR_INTERNAL, "SHA-256 does not work here");
    EVP_MD_CTX_free(sum);
    file->at = 0;
    if (ok)
        (void)hex_text(str_of(hash, HEX_CHARS / 2), out_hex);
    return ok;
}

/* ---- names ---- */

bool image_file_name(const char *path, char *room, size_t size)
{
    static const struct str ends[] = { STR_INIT(".gz"), STR_INIT(".zst"), STR_INIT(".tgz"), STR_INIT(".tar"),
                                       STR_INIT(".oci") };
    struct str name = str_from(path);
    size_t len = 0;

    while (str_ends(name, STR("/")))
        name.len--;
    const char *slash = name.len ? memrchr(name.at, '/', name.len) : NULL;
    if (slash)
        name = str_of(slash + 1, name.len - (size_t)(slash + 1 - name.at));
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (name.len > ends[i].len && str_ends(name, ends[i]))
            name.len -= ends[i].len;
    for (size_t i = 0; i < name.len && len + 1 < size; i++) {
        char c = char_lower(name.at[i]);
        bool is_fine = char_is_alnum(c) || c == '_';
        if (is_fine || (len && room[len - 1] != '-'))
            room[len++] = is_fine ? c : '-';
    }
    while (len && room[len - 1] == '-')
        len--;
    room[len] = '\0';
    return len > 0;
}
