/*
 * upload.c - POST /files. Bytes are written to their file as they arrive, gunzipped and split at multipart boundaries
 * if need be. Small pieces are collected first, so that a small file is one write: a watcher of the directory sees
 * create, chmod and write once each (clients count these events).
 *
 * For the same reason we do not write under another name and rename. If the client goes away in the middle, a file that
 * was not there before is removed.
 *
 * A file that was there is overwritten, and at the end cut to its new length, or to what has arrived. If it were
 * truncated first, the kernel would free its pages and allocate new ones, and ext4 would write it to disk on close. On
 * a tmpfs it is truncated first: its old contents count against the memory that the upload may use.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <zlib.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "guest/answer.h"
#include "guest/entry.h"
#include "guest/files.h"
#include "guest/files_common.h"
#include "guest/path.h"
#include "wire/json.h"
#include "wire/multipart.h"

enum {
    GATHER_BYTES = 64 * 1024,
    INFLATE_BYTES = 64 * 1024,
    METADATA_KEY_BYTES = 246, /* an attribute's name is at most 255, ours has a prefix of 9 */
    METADATA_TOTAL_BYTES = 4096,
};

struct metadata {
    struct str key, value;
    struct metadata *next;
};

struct written {
    const char *path;
    struct written *next;
};

struct upload {
    struct files_request request;
    struct http_exchange *ex;
    struct metadata *metadata;
    bool is_multipart, is_gzip, is_over; /* over: answered, the rest is ignored */

    struct multipart multipart;
    bool has_multipart, part_is_file;
    z_stream inflate;
    bool inflate_ended;

    /* The file being written. */
    int fd;
    const char *path;
    bool is_new, is_in_memory;
    struct stat identity;
    struct buf gathered;
    uint64_t size;

    struct written *written, **written_end;
    size_t written_count;
};

/* ---- the answer ---- */

/* The incomplete file is removed before the answer is sent. */
#define FAIL(upload, status, ...)                          \
    do {                                                   \
        (upload)->is_over = true;                          \
        file_abandon(upload);                              \
        answer_error((upload)->ex, (status), __VA_ARGS__); \
    } while (0)

/*
 * An incomplete new file is removed; an overwritten file is cut to what has arrived, so that it is no mix of old and
 * new.
 */
static void file_abandon(struct upload *u)
{
    struct stat now;

    if (u->fd < 0)
        return;
    off_t written = u->is_new ? 0 : lseek(u->fd, 0, SEEK_CUR);
    if (written > 0)
        (void)!ftruncate(u->fd, written); /* shrinking does not fail; if it did, nothing else would help */
    if (u->is_new && lstat(u->path, &now) == 0 && now.st_ino == u->identity.st_ino && now.st_dev == u->identity.st_dev)
        (void)unlink(u->path);
    fd_close(&u->fd);
}

static void fail_io(struct upload *u, const char *doing, const char *path, int number)
{
    char reason[64];

    switch (number) {
    case ENOSPC:
    case EDQUOT:
        if (u->ex->head.framing == HTTP_LENGTH)
            FAIL(u, 507, "attempted to write %llu bytes: not enough disk space available",
                 (unsigned long long)u->ex->head.length);
        else
            FAIL(u, 507, "not enough disk space available");
        break;
    case ENAMETOOLONG:
        FAIL(u, 400, "path '%s' is too long", path);
        break;
    case EISDIR:
        FAIL(u, 400, "path is a directory: %s", path);
        break;
    default:
        FAIL(u, 500, "error %s '%s': %s", doing, path, strerror_r(number, reason, sizeof reason));
    }
}

static void answer_written(struct upload *u)
{
    struct http_field type = { STR("Content-Type"), STR("application/json") };
    struct buf body = buf_make(&u->ex->arena, LIMIT_LIST_BYTES);
    struct json_out out = json_out_to(&body);

    json_out_array(&out, NULL);
    for (struct written *w = u->written; w; w = w->next) {
        json_out_object(&out, NULL);
        json_out_str(&out, "path", str_from(w->path));
        json_out_str(&out, "name", path_base(str_from(w->path)));
        json_out_str(&out, "type", STR("file"));
        if (u->metadata) {
            json_out_object(&out, "metadata");
            for (struct metadata *m = u->metadata; m; m = m->next)
                json_out_pair(&out, m->key, m->value);
            json_out_end(&out);
        }
        json_out_end(&out);
    }
    json_out_end(&out);
    u->is_over = true;
    answer(u->ex, 200, &type, 1, buf_str(&body));
}

/* ---- metadata ---- */

static bool is_printable(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.at[i] < 0x20 || text.at[i] > 0x7e)
            return false;
    return true;
}

static const struct metadata *find_metadata(const struct upload *u, struct str key)
{
    for (const struct metadata *m = u->metadata; m; m = m->next)
        if (str_eq(m->key, key))
            return m;
    return NULL;
}

static bool take_metadata(struct upload *u)
{
    size_t total = 0;

    for (size_t i = 0; i < u->ex->head.header_count; i++) {
        const struct http_header *header = &u->ex->head.headers[i];
        struct str key = header->name;
        if (!str_skip_nocase(&key, STR("x-metadata-")))
            continue;
        char *lower = arena_text(&u->ex->arena, key);
        text_lower(lower, key.len);
        key = str_from(lower);
        if (!key.len || key.len > METADATA_KEY_BYTES || !is_printable(key)) {
            FAIL(u, 400, "invalid metadata: a key must be 1 to %d printable ASCII characters", METADATA_KEY_BYTES);
            return false;
        }
        if (!is_printable(header->value)) {
            FAIL(u, 400, "invalid metadata: the value of '%s' must be printable ASCII characters", lower);
            return false;
        }
        if (find_metadata(u, key))
            continue; /* the first wins */
        total += strlen(ENTRY_METADATA_PREFIX) + key.len + header->value.len;
        if (total > METADATA_TOTAL_BYTES) {
            FAIL(u, 400, "invalid metadata: more than %d bytes in all", METADATA_TOTAL_BYTES);
            return false;
        }
        struct metadata *m = ARENA_NEW(&u->ex->arena, struct metadata);
        *m = (struct metadata){ .key = key, .value = header->value, .next = u->metadata };
        u->metadata = m;
    }
    return true;
}

/* Sets this upload's metadata and removes an earlier upload's. File systems without attributes get none. */
static void store_metadata(struct upload *u)
{
    char names[4096], value[METADATA_TOTAL_BYTES];
    ssize_t len = u->is_new ? 0 : flistxattr(u->fd, names, sizeof names);

    for (const char *at = names; len > 0 && at < names + len; at += strlen(at) + 1) {
        struct str key = str_from(at);
        if (str_skip(&key, STR(ENTRY_METADATA_PREFIX)) && !find_metadata(u, key))
            (void)fremovexattr(u->fd, at);
    }
    for (struct metadata *m = u->metadata; m; m = m->next) {
        const char *name = arena_format(&u->ex->arena, "%s%.*s", ENTRY_METADATA_PREFIX, STR_ARG(m->key)).at;
        ssize_t size = u->is_new ? -1 : fgetxattr(u->fd, name, value, sizeof value);
        if (size < 0 || !str_eq(str_of(value, (size_t)size), m->value))
            (void)fsetxattr(u->fd, name, m->value.at, m->value.len, 0);
    }
}

/* ---- one file ---- */

/* Files of the kernel: a write to them is a command, with our rights and not the user's. */
static bool is_kernel_file(const struct statfs *fs)
{
    return fs->f_type == PROC_SUPER_MAGIC || fs->f_type == SYSFS_MAGIC || fs->f_type == CGROUP_SUPER_MAGIC ||
           fs->f_type == CGROUP2_SUPER_MAGIC || fs->f_type == DEBUGFS_MAGIC || fs->f_type == TRACEFS_MAGIC;
}

static bool open_target(struct upload *u, const char *path)
{
    struct statfs fs;

    u->fd = path_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    u->is_new = u->fd >= 0;
    if (u->fd < 0 && errno == EEXIST)
        u->fd = path_open(path, O_WRONLY, 0); /* its type is checked before it is changed */
    if (u->fd < 0 && errno == ENOENT)
        u->fd = path_open(path, O_WRONLY | O_CREAT, 0666); /* a link that leads to no file yet */
    if (u->fd < 0 && (errno == ENXIO || errno == ELOOP)) {
        FAIL(u, 400, "path is not a regular file: %s", path);
        return false;
    }
    u->path = path;
    if (u->fd < 0 || fstat(u->fd, &u->identity) < 0 || fstatfs(u->fd, &fs) < 0) {
        fail_io(u, "opening file", path, errno);
        return false;
    }
    if (!S_ISREG(u->identity.st_mode) || is_kernel_file(&fs)) {
        FAIL(u, 400, "path is not a regular file: %s", path);
        return false;
    }
    u->is_in_memory = fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
    if (fchown(u->fd, u->request.user.uid, u->request.user.gid) < 0) {
        fail_io(u, "changing ownership of file", path, errno);
        return false;
    }
    if (u->is_in_memory && u->identity.st_size && ftruncate(u->fd, 0) < 0) {
        fail_io(u, "emptying", path, errno);
        return false;
    }
    return true;
}

static bool file_begin(struct upload *u, struct str name)
{
    const char *path;
    struct str message;
    struct err err;

    if (!path_resolve(&u->ex->arena, name, &u->request.user, u->request.guest->default_workdir, &path, &err)) {
        FAIL(u, 400, "%s", err.message);
        return false;
    }
    for (struct written *w = u->written; w; w = w->next) {
        if (strcmp(w->path, path) == 0) {
            FAIL(u, 400,
                 "you cannot upload multiple files to the same path '%s' in one upload request, only the first "
                 "specified file was uploaded",
                 path);
            return false;
        }
    }
    if (u->written_count >= LIMIT_UPLOAD_FILES) {
        FAIL(u, 400, "more than %d files in one upload", LIMIT_UPLOAD_FILES);
        return false;
    }
    if (!path_make_dirs(&u->ex->arena, path_parent(&u->ex->arena, path), &u->request.user, &message, &err)) {
        if (message.len)
            FAIL(u, 400, "%.*s", STR_ARG(message));
        else
            fail_io(u, "ensuring directories of", path, err.sys);
        return false;
    }
    u->size = 0;
    return open_target(u, path);
}

/* On a tmpfs the file is memory that is charged to guestd until the file is removed. */
static bool memory_is_left(const struct upload *u, size_t bytes)
{
    struct statfs fs;

    return !u->is_in_memory ||
           (fstatfs(u->fd, &fs) == 0 &&
            (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize + bytes <= LIMIT_UPLOAD_MEMORY_BYTES);
}

static bool write_out(struct upload *u, struct str bytes)
{
    struct err err;

    if (!memory_is_left(u, bytes.len)) {
        FAIL(u, 507,
             "'%s' is on a file system in memory, which takes uploads up to %d bytes in use; move it there from disk",
             u->path, LIMIT_UPLOAD_MEMORY_BYTES);
        return false;
    }
    if (fd_write_all(u->fd, bytes, &err))
        return true;
    fail_io(u, "writing to file", u->path, err.sys);
    return false;
}

static bool file_write(struct upload *u, struct str bytes)
{
    u->size += bytes.len;
    if (u->gathered.len == 0 && bytes.len >= GATHER_BYTES)
        return write_out(u, bytes);
    buf_add(&u->gathered, bytes);
    if (u->gathered.len < GATHER_BYTES)
        return true;
    bool ok = write_out(u, buf_str(&u->gathered));
    buf_done(&u->gathered);
    return ok;
}

static bool file_end(struct upload *u)
{
    struct stat st;

    if (u->gathered.len && !write_out(u, buf_str(&u->gathered)))
        return false;
    buf_done(&u->gathered);
    if (u->metadata || !u->is_new)
        store_metadata(u);
    /* Success means that the bytes are there: another process may have truncated it, or the disk may have failed. */
    if (fstat(u->fd, &st) < 0 || (uint64_t)st.st_size < u->size) {
        FAIL(u, 500, "'%s' was changed by another process while it was written", u->path);
        return false;
    }
    if (!u->is_new && (uint64_t)st.st_size > u->size && ftruncate(u->fd, (off_t)u->size) < 0) {
        fail_io(u, "cutting to its new length", u->path, errno);
        return false;
    }
    if (close(take_fd(&u->fd)) < 0) {
        fail_io(u, "closing file", u->path, errno);
        return false;
    }
    struct written *w = ARENA_NEW(&u->ex->arena, struct written);
    w->path = u->path;
    *u->written_end = w;
    u->written_end = &w->next;
    u->written_count++;
    return true;
}

/* ---- the body ---- */

static bool take_parts(struct upload *u, struct str bytes)
{
    struct multipart_part part;
    struct str data;
    struct err err;

    for (;;) {
        switch (multipart_next(&u->multipart, &bytes, &part, &data, &err)) {
        case MULTIPART_MORE:
        case MULTIPART_DONE:
            if (!bytes.len)
                return true;
            break;
        case MULTIPART_PART:
            u->part_is_file = part.has_name && str_eq(part.name, STR("file"));
            if (!u->part_is_file)
                break;
            if (!u->request.has_path && !part.filename.len) {
                FAIL(u, 400, "a part has neither a filename nor is there a path parameter");
                return false;
            }
            if (!file_begin(u, u->request.has_path ? u->request.path : arena_copy(&u->ex->arena, part.filename)))
                return false;
            break;
        case MULTIPART_DATA:
            if (u->part_is_file && !file_write(u, data))
                return false;
            break;
        case MULTIPART_PART_END:
            if (u->part_is_file && !file_end(u))
                return false;
            u->part_is_file = false;
            break;
        case MULTIPART_BAD:
            FAIL(u, 400, "error parsing multipart form: %s", err.message);
            return false;
        }
    }
}

static bool take_plain(struct upload *u, struct str bytes)
{
    return u->is_multipart ? take_parts(u, bytes) : file_write(u, bytes);
}

static bool take_gzip(struct upload *u, struct str bytes)
{
    unsigned char out[INFLATE_BYTES];

    u->inflate.next_in = (unsigned char *)(uintptr_t)bytes.at;
    u->inflate.avail_in = (unsigned)bytes.len;
    while (u->inflate.avail_in || u->inflate.avail_out == 0) {
        /* Several gzip members in a row are one file. */
        if (u->inflate_ended) {
            (void)inflateReset(&u->inflate);
            u->inflate_ended = false;
        }
        u->inflate.next_out = out;
        u->inflate.avail_out = sizeof out;
        int status = inflate(&u->inflate, Z_NO_FLUSH);
        size_t got = sizeof out - u->inflate.avail_out;
        if (got && !take_plain(u, str_of(out, got)))
            return false;
        u->inflate_ended = status == Z_STREAM_END;
        if (status == Z_BUF_ERROR)
            break; /* it wants more input */
        if (status != Z_OK && status != Z_STREAM_END) {
            FAIL(u, 400, "error decompressing request body: %s", u->inflate.msg ? u->inflate.msg : "broken gzip");
            return false;
        }
        if (u->inflate_ended && !u->inflate.avail_in)
            break;
    }
    return true;
}

static void on_body(struct http_exchange *ex, struct str piece)
{
    struct upload *u = ex->owner;

    if (u->is_over)
        return;
    if (u->is_gzip ? !take_gzip(u, piece) : !take_plain(u, piece))
        http_body_discard(ex);
}

static void on_body_end(struct http_exchange *ex)
{
    struct upload *u = ex->owner;

    if (u->is_over)
        return;
    if (u->is_gzip && !u->inflate_ended)
        FAIL(u, 400, "error decompressing request body: unexpected EOF");
    else if (u->is_multipart && !multipart_is_whole(&u->multipart))
        FAIL(u, 400, "error parsing multipart form: unexpected EOF");
    else if (u->is_multipart || file_end(u))
        answer_written(u);
}

static void on_gone(struct http_exchange *ex)
{
    struct upload *u = ex->owner;

    file_abandon(u);
    buf_done(&u->gathered);
    if (u->has_multipart)
        multipart_done(&u->multipart);
    if (u->is_gzip)
        (void)inflateEnd(&u->inflate);
}

static const struct http_events events = { .on_body = on_body, .on_body_end = on_body_end, .on_gone = on_gone };

/* ---- POST /files ---- */

static bool take_encoding(struct upload *u)
{
    enum { GZIP_FORMAT = 15 + 16 };
    const struct str *encoding = http_header(&u->ex->head, STR("content-encoding"));

    if (!encoding || !encoding->len || str_eq_nocase(*encoding, STR("identity")))
        return true;
    if (!str_eq_nocase(*encoding, STR("gzip"))) {
        FAIL(u, 400, "error decompressing request body: unsupported Content-Encoding: %.*s",
             (int)MIN(encoding->len, 100), encoding->at);
        return false;
    }
    if (inflateInit2(&u->inflate, GZIP_FORMAT) != Z_OK) {
        FAIL(u, 500, "no memory to decompress");
        return false;
    }
    u->is_gzip = true;
    u->inflate.avail_out = 1; /* no output is pending */
    return true;
}

static bool take_media_type(struct upload *u)
{
    const struct str *header = http_header(&u->ex->head, STR("content-type"));
    struct str type = header ? *header : STR(""), rest = type, media = STR("");
    struct err err;

    (void)str_cut(&rest, ';', &media);
    media = str_trim(media);
    if (str_eq_nocase(media, STR("application/octet-stream"))) {
        if (u->request.has_path)
            return file_begin(u, u->request.path);
        FAIL(u, 400, "path query parameter is required for raw body upload");
        return false;
    }
    if (!str_skip_nocase(&media, STR("multipart/"))) {
        FAIL(u, 400, "unsupported content type: %.*s, expected multipart/form-data or application/octet-stream",
             (int)MIN(type.len, 200), type.at);
        return false;
    }
    u->is_multipart = true;
    u->has_multipart = multipart_init(&u->multipart, type, &err);
    if (!u->has_multipart)
        FAIL(u, 400, "error parsing multipart form: %s", err.message);
    return u->has_multipart;
}

void files_upload(struct guest *guest, struct http_exchange *ex)
{
    struct upload *u = ARENA_NEW(&ex->arena, struct upload);

    u->ex = ex;
    u->fd = -1;
    u->gathered = buf_make(NULL, GATHER_BYTES * 8);
    u->written_end = &u->written;
    if (!files_begin(&u->request, guest, ex, STR("write")))
        return;
    ex->owner = u;
    ex->events = &events;
    if (take_encoding(u) && files_take_user(&u->request) && take_metadata(u) && take_media_type(u))
        http_body_start(ex);
}
