/*
 * Theory of operation. A source is split at its slashes. A part without special characters names an entry; one with them is
 * tried on all entries of the directory; `**` stands for any number of directories. What is found is taken, directories with
 * everything below them, unless .dockerignore has it. The list is then sorted, hashed and packed in this order.
 */
#include "cli/context.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "wire/ignore.h"
#include "wire/tar_write.h"

enum {
    PIECE_BYTES = 256 * 1024,
    DEPTH_MOST = 256, /* directories; each is open while we are below it */
};

/* ---- the directory ---- */

bool context_open(struct context *context, struct arena *arena, const char *dir, struct err *err)
{
    auto_free char *text = NULL;
    size_t len = 0;

    *context = (struct context){ .arena = arena, .dir = dir, .fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    if (context->fd < 0)
        return err_sys(err, "open the directory %s", dir);
    if (!fd_read_regular(context->fd, ".dockerignore", LIMIT_IGNORE_BYTES, &text, &len, err) &&
        err->kind != ERR_NOT_FOUND)
        return err_wrap(err, "read .dockerignore");
    if (!ignore_parse(arena, arena_copy(arena, str_of(text, len)), &context->ignore, err)) {
        struct err why = *err;
        return err_set(err, why.kind, ".dockerignore: %.140s", why.message);
    }
    return true;
}

void context_close(struct context *context)
{
    fd_close(&context->fd);
}

/* ---- finding ---- */

struct find {
    struct context *context;
    struct context_files *out;
    size_t room;
    struct map seen;
    unsigned depth;
    bool only_dirs; /* the source ends with a slash */
    struct err *err;
};

static struct str join(struct arena *arena, struct str dir, struct str name)
{
    return str_eq(dir, STR(".")) ? arena_copy(arena, name)
                                 : arena_format(arena, "%.*s/%.*s", STR_ARG(dir), STR_ARG(name));
}

/* Below the directory, through symlinks that stay in it; the last part is not followed. */
static int open_below(const struct context *context, struct str path, int flags, struct err *err)
{
    return fd_open_inside(context->fd, arena_text(context->arena, path), flags | O_NOFOLLOW, 0, err);
}

static DIR *list_below(const struct context *context, struct str path, bool follows, struct err *err)
{
    int fd = fd_open_inside(context->fd, arena_text(context->arena, path),
                            O_RDONLY | O_DIRECTORY | (follows ? 0 : O_NOFOLLOW), 0, err);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (fd >= 0 && !dir) {
        (void)err_sys(err, "list %.100s", arena_text(context->arena, path));
        (void)close(fd);
    }
    return dir;
}

static void dir_close(DIR **dir)
{
    if (*dir)
        (void)closedir(*dir);
}
#define auto_dir __attribute__((cleanup(dir_close)))

/* The next entry, without "." and ".."; NULL: no more. */
static const char *next_name(DIR *dir)
{
    const struct dirent *entry;

    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            return entry->d_name;
    return NULL;
}

static bool add(struct find *find, struct str path, const struct stat *st, int fd, const char *name)
{
    struct context_files *out = find->out;
    char link[PATH_MAX];
    ssize_t link_len = 0;

    if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode) && !S_ISLNK(st->st_mode)) {
        out->left_out++;
        return true;
    }
    if (out->count == LIMIT_CONTEXT_FILES)
        return err_set(find->err, ERR_LIMIT, "more than %d files; name fewer, or leave some out in .dockerignore",
                       LIMIT_CONTEXT_FILES);
    if (S_ISLNK(st->st_mode) && (link_len = readlinkat(fd, name, link, sizeof link)) < 0)
        return err_sys(find->err, "read the symlink %.100s", arena_text(find->context->arena, path));
    if (out->count == find->room) {
        find->room = find->room ? find->room * 2 : 64;
        struct context_file *more = ARENA_ARRAY(find->context->arena, struct context_file, find->room);
        if (out->count)
            memcpy(more, out->at, out->count * sizeof *more);
        out->at = more;
    }
    out->at[out->count++] = (struct context_file){
        .path = path,
        .mode = st->st_mode,
        .size = (uint64_t)st->st_size,
        .mtime_s = st->st_mtime,
        .link = arena_copy(find->context->arena, str_of(link, (size_t)link_len)),
    };
    if (S_ISREG(st->st_mode))
        out->bytes += (uint64_t)st->st_size;
    (void)map_put(&find->seen, path, find);
    return true;
}

static bool too_deep(struct find *find)
{
    return find->depth > DEPTH_MOST &&
           !err_set(find->err, ERR_LIMIT, "directories are nested more than %d deep", DEPTH_MOST);
}

/* Everything in a directory. */
static bool walk(struct find *find, struct str path)
{
    struct context *context = find->context;
    auto_dir DIR *dir = list_below(context, path, false, find->err);
    const char *name;
    struct stat st;
    bool fine = true;

    if (!dir)
        return false;
    find->depth++;
    if (too_deep(find))
        return false;
    while (fine && (name = next_name(dir))) {
        struct str child = join(context->arena, path, str_from(name));
        if (map_get(&find->seen, child))
            continue;
        if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return err_sys(find->err, "look at %.100s", child.at);
        bool is_out = ignore_matches(context->ignore, child);
        fine = is_out || add(find, child, &st, dirfd(dir), name);
        if (fine && S_ISDIR(st.st_mode) && (!is_out || ignore_may_return(context->ignore, child)))
            fine = walk(find, child);
    }
    find->depth--;
    return fine;
}

static bool is_dir(const struct context *context, struct str path)
{
    struct err ignored;
    auto_close int fd =
        fd_open_inside(context->fd, arena_text(context->arena, path), O_PATH | O_DIRECTORY, 0, &ignored);

    return fd >= 0;
}

/* Something that the source means. */
static bool take(struct find *find, struct str path)
{
    struct context *context = find->context;
    struct stat st;

    if (map_get(&find->seen, path) || (find->only_dirs && !is_dir(context, path)) ||
        (!str_eq(path, STR(".")) && ignore_matches(context->ignore, path)))
        return true;
    auto_close int fd = open_below(context, path, O_PATH, find->err);
    if (fd < 0)
        return find->err->kind == ERR_NOT_FOUND; /* then it is nothing */
    if (fstat(fd, &st) < 0)
        return err_sys(find->err, "look at %.100s", arena_text(context->arena, path));
    return add(find, path, &st, fd, "") && (!S_ISDIR(st.st_mode) || walk(find, path));
}

static bool has_special(struct str part)
{
    return str_has_char(part, '*') || str_has_char(part, '?') || str_has_char(part, '[');
}

static struct str unescape(struct arena *arena, struct str part)
{
    char *room = arena_alloc(arena, part.len + 1);
    size_t len = 0;

    for (size_t i = 0; i < part.len; i++) {
        if (part.at[i] == '\\' && i + 1 < part.len)
            i++;
        room[len++] = part.at[i];
    }
    return str_of(room, len);
}

static bool match(struct find *find, struct str dir, struct str rest);

/* A part with special characters, on all entries of a directory. */
static bool match_entries(struct find *find, struct str dir, struct str part, struct str rest)
{
    struct context *context = find->context;
    const char *pattern = arena_text(context->arena, part), *name;
    bool is_deep = str_eq(part, STR("**")), fine = true;
    auto_dir DIR *list = list_below(context, dir, true, find->err);
    struct stat st;

    if (!list)
        return find->err->kind == ERR_NOT_FOUND;
    find->depth++;
    if (too_deep(find))
        return false;
    if (is_deep)
        fine = rest.len ? match(find, dir, rest) : str_eq(dir, STR(".")) || take(find, dir);
    while (fine && (name = next_name(list))) {
        struct str child = join(context->arena, dir, str_from(name));
        if (!is_deep) {
            if (fnmatch(pattern, name, 0) == 0)
                fine = rest.len ? !is_dir(context, child) || match(find, child, rest) : take(find, child);
        } else if (fstatat(dirfd(list), name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            if (S_ISDIR(st.st_mode))
                fine = match_entries(find, child, part, rest);
            else if (!rest.len)
                fine = take(find, child);
        }
    }
    find->depth--;
    return fine;
}

static bool match(struct find *find, struct str dir, struct str rest)
{
    struct str part;

    if (!str_cut(&rest, '/', &part) || !part.len)
        return take(find, dir);
    if (has_special(part))
        return match_entries(find, dir, part, rest);
    struct str child = join(find->context->arena, dir, unescape(find->context->arena, part));
    return rest.len ? !is_dir(find->context, child) || match(find, child, rest) : take(find, child);
}

/* "./a//b/../c/" is "a/c"; "" is the directory. */
static struct str clean(struct arena *arena, struct str source)
{
    char *room = arena_alloc(arena, source.len + 1);
    struct str rest = source, part;
    size_t len = 0;

    while (str_cut(&rest, '/', &part)) {
        if (!part.len || str_eq(part, STR(".")))
            continue;
        if (str_eq(part, STR(".."))) {
            while (len && room[len - 1] != '/')
                len--;
            len -= len > 0;
            continue;
        }
        if (len)
            room[len++] = '/';
        memcpy(room + len, part.at, part.len);
        len += part.len;
    }
    return str_of(room, len);
}

static int order(const void *a, const void *b)
{
    const struct context_file *one = a, *other = b;
    bool one_is_top = str_eq(one->path, STR(".")), other_is_top = str_eq(other->path, STR("."));

    /* The directory itself comes before all that is in it, also before names that begin with a smaller character. */
    if (one_is_top || other_is_top)
        return other_is_top - one_is_top;
    return str_order(one->path, other->path);
}

bool context_find(struct context *context, struct str source, struct context_files *out, struct err *err)
{
    struct context_files files = { 0 };
    struct find find = { .context = context, .out = &files, .only_dirs = str_ends(source, STR("/")), .err = err };

    map_init(&find.seen);
    bool fine = match(&find, STR("."), clean(context->arena, source));
    map_done(&find.seen);
    if (!fine)
        return err_wrap(err, "find the files of %.60s", arena_text(context->arena, source));
    if (!files.count)
        return err_set(err, ERR_NOT_FOUND, "there is no %.60s in %.60s%s", arena_text(context->arena, source),
                       context->dir, files.left_out ? " that could be copied" : ", or .dockerignore leaves it out");
    qsort(files.at, files.count, sizeof *files.at, order);
    *out = files;
    return true;
}

/* ---- reading files ---- */

typedef bool piece_fn(void *to, struct str piece, struct err *err);

static bool changed(const struct context *context, const struct context_file *file, struct err *err)
{
    return err_set(err, ERR_CONFLICT, "%.100s has changed while it was read; build again",
                   arena_text(context->arena, file->path));
}

/* Exactly as many bytes as its size, or it has changed. */
static bool read_pieces(const struct context *context, const struct context_file *file, piece_fn *take_piece, void *to,
                        struct err *err)
{
    auto_close int fd = open_below(context, file->path, O_RDONLY | O_NONBLOCK, err);
    auto_free char *room = mem_new(PIECE_BYTES);
    uint64_t left = file->size;

    if (fd < 0)
        return false;
    for (;;) {
        ssize_t n = read(fd, room, PIECE_BYTES);
        if (n < 0)
            return err_sys(err, "read %.100s", arena_text(context->arena, file->path));
        if (n == 0)
            return left == 0 || changed(context, file, err);
        if ((uint64_t)n > left)
            return changed(context, file, err);
        left -= (uint64_t)n;
        if (!take_piece(to, str_of(room, (size_t)n), err))
            return false;
    }
}

/* ---- the hash ---- */

static void hash_add(crypto_hash_sha256_state *hash, struct str text)
{
    (void)crypto_hash_sha256_update(hash, (const unsigned char *)text.at, text.len);
}

static void hash_number(crypto_hash_sha256_state *hash, uint64_t number)
{
    char digits[24];

    (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    hash_add(hash, str_from(digits));
}

static bool hash_piece(void *to, struct str piece, struct err *err)
{
    (void)err;
    hash_add(to, piece);
    return true;
}

bool context_hash(const struct context *context, struct str source, struct str dest, const struct context_files *files,
                  char out[CONTEXT_HASH_TEXT], struct err *err)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state hash;

    (void)crypto_hash_sha256_init(&hash);
    hash_add(&hash, STR("COPY "));
    hash_add(&hash, source);
    hash_add(&hash, STR(" "));
    hash_add(&hash, dest);
    for (size_t i = 0; i < files->count; i++) {
        const struct context_file *file = &files->at[i];
        hash_add(&hash, file->path);
        hash_number(&hash, file->mode);
        if (!S_ISDIR(file->mode)) /* that of a directory depends on the file system */
            hash_number(&hash, file->size);
        if (S_ISLNK(file->mode))
            hash_add(&hash, file->link);
        if (S_ISREG(file->mode) && !read_pieces(context, file, hash_piece, &hash, err))
            return false;
    }
    (void)crypto_hash_sha256_final(&hash, digest);
    (void)hex_text(str_of(digest, sizeof digest), out);
    return true;
}

/* ---- the archive ---- */

struct pack {
    int fd;
    uint64_t size;
    z_stream zip;
    char *room;
};

static bool pack_bytes(struct pack *pack, struct str bytes, int flush, struct err *err)
{
    int done;

    pack->zip.next_in = (Bytef *)(uintptr_t)bytes.at;
    pack->zip.avail_in = (uInt)bytes.len;
    do {
        pack->zip.next_out = (Bytef *)pack->room;
        pack->zip.avail_out = PIECE_BYTES;
        done = deflate(&pack->zip, flush);
        if (done == Z_STREAM_ERROR)
            return err_set(err, ERR_INTERNAL, "the archive could not be compressed");
        size_t len = PIECE_BYTES - pack->zip.avail_out;
        if (!fd_write_all(pack->fd, str_of(pack->room, len), err))
            return err_wrap(err, "write the archive");
        pack->size += len;
        if (pack->size > LIMIT_UPLOAD_BYTES)
            return err_set(err, ERR_LIMIT, "the files of one COPY have more than %d GiB",
                           (int)(LIMIT_UPLOAD_BYTES >> 30));
    } while (pack->zip.avail_out == 0 || (flush == Z_FINISH && done != Z_STREAM_END));
    return true;
}

static bool pack_piece(void *to, struct str piece, struct err *err)
{
    return pack_bytes(to, piece, Z_NO_FLUSH, err);
}

static bool pack_file(const struct context *context, struct pack *pack, const struct context_file *file,
                      struct buf *head, struct err *err)
{
    struct tar_entry entry = {
        .type = S_ISDIR(file->mode)   ? TAR_DIRECTORY
                : S_ISLNK(file->mode) ? TAR_SYMLINK
                                      : TAR_FILE,
        .name = S_ISDIR(file->mode) ? arena_format(context->arena, "%.*s/", STR_ARG(file->path)) : file->path,
        .link = file->link,
        .size = file->size,
        .mode = file->mode & 07777,
        .mtime_s = file->mtime_s,
    };

    buf_clear(head);
    tar_write_entry(head, &entry);
    if (!pack_bytes(pack, buf_str(head), Z_NO_FLUSH, err))
        return false;
    if (!S_ISREG(file->mode))
        return true;
    buf_clear(head);
    tar_write_padding(head, file->size);
    return read_pieces(context, file, pack_piece, pack, err) && pack_bytes(pack, buf_str(head), Z_NO_FLUSH, err);
}

static bool pack_files(const struct context *context, struct pack *pack, const struct context_files *files,
                       struct err *err)
{
    auto_buf struct buf head = buf_make(NULL, LIMIT_TAR_HEADER_BYTES);

    for (size_t i = 0; i < files->count; i++)
        if (!pack_file(context, pack, &files->at[i], &head, err))
            return false;
    buf_clear(&head);
    tar_write_end(&head);
    return pack_bytes(pack, buf_str(&head), Z_FINISH, err);
}

/* It may be large, so not in /tmp, which often is memory. */
static int open_nameless(struct err *err)
{
    const char *own = getenv("TMPDIR");
    const char *dirs[] = { own && own[0] ? own : "/var/tmp", "/tmp" };
    int fd = -1;

    for (size_t i = 0; fd < 0 && i < COUNT_OF(dirs); i++) {
        fd = open(dirs[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
            (void)err_sys(err, "make a file for the archive in %.100s", dirs[i]);
    }
    return fd;
}

bool context_pack(const struct context *context, const struct context_files *files, int *out_fd, uint64_t *out_size,
                  struct err *err)
{
    auto_close int fd = open_nameless(err);
    auto_free char *room = mem_new(PIECE_BYTES);
    struct pack pack = { .fd = fd, .room = room };

    if (fd < 0)
        return false;
    /* The fastest way: the server is often this machine. 15 + 16: the largest window, as gzip. */
    if (deflateInit2(&pack.zip, Z_BEST_SPEED, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return err_set(err, ERR_INTERNAL, "no memory to compress the archive");
    bool fine = pack_files(context, &pack, files, err);
    (void)deflateEnd(&pack.zip);
    if (!fine)
        return false;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, "read the archive");
    *out_size = pack.size;
    *out_fd = take_fd(&fd);
    return true;
}
