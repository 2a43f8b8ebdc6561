/*
 * Theory of operation: a layer is built in tmp/, digested, written to disk with syncfs, and renamed to its digest; then
 * both directories are synced. A crash before the rename leaves rubbish in tmp/, which layers_prepare() removes. A crash
 * after it leaves a whole layer. A layer that is no longer used is renamed again, into trash/.
 */
#include "image/layers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/pack.h"
#include "base/remove.h"

enum {
    DIGEST_BYTES = 32,
    DEPTH_MAX = 128,               /* directories below one another; Debian needs about 15 */
    RECORD_BYTES = 256 * 1024,     /* one entry's name and attributes */
    XATTR_NAMES_BYTES = 64 * 1024, /* XATTR_LIST_MAX */
    COPY_BYTES = 64 * 1024,
    LOCK_TRIES = 20,
    LOCK_RETRY_MS = 10,
};

/* The names in a directory, sorted bytewise. */
struct names {
    char **at;
    size_t count;
};

static void names_done(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->at[i]);
    free(names->at);
}
#define auto_names __attribute__((cleanup(names_done)))

static int order_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool names_read(int dir_fd, struct names *out, struct err *err)
{
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    size_t room = 0;

    if (!dir) {
        (void)err_sys(err, "open a directory to read it");
        fd_close(&copy);
        return false;
    }
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry)
            break;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (out->count == room) {
            room = room ? room * 2 : 64;
            out->at = mem_grow(out->at, room * sizeof *out->at);
        }
        out->at[out->count++] = mem_copy_text(entry->d_name);
    }
    int failed = errno;
    (void)closedir(dir);
    if (failed)
        return err_sys_num(err, failed, "read a directory");
    if (out->count)
        qsort(out->at, out->count, sizeof *out->at, order_names);
    return true;
}

/* ---- digest ---- */

struct digest {
    crypto_generichash_state state;
    char *copy; /* COPY_BYTES */
};

static void digest_add(struct digest *digest, struct str bytes)
{
    (void)crypto_generichash_update(&digest->state, (const unsigned char *)bytes.at, bytes.len); /* cannot fail */
}

/* Extended attributes carry file capabilities, and the opaque marks of overlay in a sealed upper. */
static bool pack_xattrs(struct buf *out, int fd, struct err *err)
{
    auto_free char *names = mem_new(XATTR_NAMES_BYTES);
    auto_free char *value = mem_new(XATTR_NAMES_BYTES);
    auto_free char **sorted = NULL;
    ssize_t len = flistxattr(fd, names, XATTR_NAMES_BYTES);
    size_t count = 0;

    if (len < 0 && errno != ENOTSUP)
        return err_sys(err, "list extended attributes");
    for (ssize_t at = 0; at < len; at += (ssize_t)strlen(names + at) + 1) {
        sorted = mem_grow(sorted, (count + 1) * sizeof *sorted);
        sorted[count++] = names + at;
    }
    if (count)
        qsort(sorted, count, sizeof *sorted, order_names);
    pack_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        ssize_t size = fgetxattr(fd, sorted[i], value, XATTR_NAMES_BYTES);
        if (size < 0)
            return err_sys(err, "read extended attribute %s", sorted[i]);
        pack_str(out, str_from(sorted[i]));
        pack_str(out, str_of(value, (size_t)size));
    }
    return true;
}

static bool digest_contents(struct digest *digest, int fd, uint64_t size, struct err *err)
{
    uint64_t seen = 0;

    for (;;) {
        ssize_t n = read(fd, digest->copy, COPY_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "read");
        if (n == 0)
            break;
        digest_add(digest, str_of(digest->copy, (size_t)n));
        seen += (uint64_t)n;
    }
    /* The digest has the size first. With another length, contents could be taken for the next record. */
    if (seen != size)
        return err_set(err, ERR_CONFLICT, "a file changed while it was read");
    return true;
}

static bool digest_dir(struct digest *digest, int dir_fd, unsigned depth, struct err *err);

static bool digest_entry(struct digest *digest, int dir_fd, const char *name, unsigned depth, struct err *err)
{
    auto_buf struct buf record = buf_make(NULL, RECORD_BYTES);
    auto_close int fd = -1;
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, "stat");
    pack_str(&record, str_from(name));
    pack_u32(&record, st.st_mode);
    pack_u32(&record, st.st_uid);
    pack_u32(&record, st.st_gid);
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) {
        fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            return err_sys(err, "open");
        if (!pack_xattrs(&record, fd, err))
            return false;
    }
    if (S_ISREG(st.st_mode))
        pack_u64(&record, (uint64_t)st.st_size);
    if (S_ISBLK(st.st_mode) || S_ISCHR(st.st_mode)) {
        pack_u32(&record, major(st.st_rdev));
        pack_u32(&record, minor(st.st_rdev));
    }
    if (S_ISLNK(st.st_mode)) {
        char target[LIMIT_PATH_BYTES];
        ssize_t len = readlinkat(dir_fd, name, target, sizeof target);
        if (len < 0)
            return err_sys(err, "read a link");
        pack_str(&record, str_of(target, (size_t)len));
    }
    if (record.overflowed)
        return err_set(err, ERR_LIMIT, "an entry has more than %d bytes of attributes", RECORD_BYTES);
    digest_add(digest, buf_str(&record));
    if (S_ISREG(st.st_mode))
        return digest_contents(digest, fd, (uint64_t)st.st_size, err);
    return !S_ISDIR(st.st_mode) || digest_dir(digest, fd, depth + 1, err);
}

static bool digest_dir(struct digest *digest, int dir_fd, unsigned depth, struct err *err)
{
    auto_names struct names names = { 0 };
    auto_buf struct buf count = buf_make(NULL, 8);

    if (depth > DEPTH_MAX)
        return err_set(err, ERR_LIMIT, "directories are nested more than %d deep", DEPTH_MAX);
    if (!names_read(dir_fd, &names, err))
        return false;
    pack_u64(&count, names.count);
    digest_add(digest, buf_str(&count));
    for (size_t i = 0; i < names.count; i++)
        if (!digest_entry(digest, dir_fd, names.at[i], depth, err))
            return err_wrap(err, "%s", names.at[i]);
    return true;
}

bool layer_digest(int dir_fd, char out_hex[LAYER_HEX_BYTES], struct err *err)
{
    auto_free char *copy = mem_new(COPY_BYTES);
    struct digest digest = { .copy = copy };
    unsigned char hash[DIGEST_BYTES];

    if (sodium_init() < 0)
        return err_set(err, ERR_INTERNAL, "libsodium does not start");
    (void)crypto_generichash_init(&digest.state, NULL, 0, sizeof hash);
    digest_add(&digest, STR("cloister layer 1\n")); /* another way to walk needs another number */
    /* The root's own mode and owner are what "/" looks like inside: they count too. */
    struct stat st;
    if (fstat(dir_fd, &st) < 0)
        return err_sys(err, "stat the root of a layer");
    auto_buf struct buf root = buf_make(NULL, 64);
    pack_u32(&root, st.st_mode);
    pack_u32(&root, st.st_uid);
    pack_u32(&root, st.st_gid);
    digest_add(&digest, buf_str(&root));
    if (!digest_dir(&digest, dir_fd, 0, err))
        return err_wrap(err, "digest a layer");
    (void)crypto_generichash_final(&digest.state, hash, sizeof hash);
    (void)hex_text(str_of(hash, sizeof hash), out_hex);
    return true;
}

/* ---- directories ---- */

bool layer_hex_valid(const char *hex)
{
    return strlen(hex) == LAYER_HEX_BYTES - 1 && strspn(hex, "0123456789abcdef") == LAYER_HEX_BYTES - 1;
}

bool layer_exists(int data_fd, const char *hex)
{
    char path[LAYER_HEX_BYTES + 8];
    struct stat st;

    if (!layer_hex_valid(hex))
        return false;
    (void)snprintf(path, sizeof path, "layers/%s", hex);
    return fstatat(data_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static bool make_private_dir(int data_fd, const char *name, struct err *err)
{
    if (mkdirat(data_fd, name, 0700) < 0 && errno != EEXIST)
        return err_sys(err, "make directory %s", name);
    auto_close int fd = openat(data_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fchmod(fd, 0700) < 0)
        return err_sys(err, "open directory %s", name);
    return true;
}

bool layers_lock(int data_fd, int *out_lock_fd, struct err *err)
{
    auto_close int tmp_fd = openat(data_fd, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (tmp_fd < 0)
        return err_sys(err, "open directory tmp");
    if (flock(tmp_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_CONFLICT,
                       "a template is being made in this data directory already: wait for that, or use another --data");
    *out_lock_fd = take_fd(&tmp_fd);
    return true;
}

/* The server holds the lock for some milliseconds when it sweeps, which should fail no build. */
static bool lock_patiently(int data_fd, int *out_lock_fd, struct err *err)
{
    for (int tries = 0; !layers_lock(data_fd, out_lock_fd, err); tries++) {
        if (err->kind != ERR_CONFLICT || tries == LOCK_TRIES)
            return false;
        (void)usleep(LOCK_RETRY_MS * 1000);
    }
    return true;
}

bool layers_prepare(int data_fd, int *out_lock_fd, struct err *err)
{
    auto_close int tmp_fd = -1;

    if (!make_private_dir(data_fd, "layers", err) || !make_private_dir(data_fd, "templates", err) ||
        !make_private_dir(data_fd, "tmp", err) || !lock_patiently(data_fd, &tmp_fd, err))
        return false;
    if (!remove_inside(tmp_fd, err))
        return err_wrap(err, "sweep tmp");
    *out_lock_fd = take_fd(&tmp_fd);
    return true;
}

bool layers_sweep(int data_fd, const struct map *used, uint32_t *out_count, struct err *err)
{
    auto_close int layers_fd = openat(data_fd, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int trash_fd = openat(data_fd, "trash", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_names struct names names = { 0 };

    *out_count = 0;
    if (layers_fd < 0 || trash_fd < 0)
        return err_sys(err, "open layers and trash");
    if (!names_read(layers_fd, &names, err))
        return false;
    for (size_t i = 0; i < names.count; i++) {
        const char *hex = names.at[i];
        if (!layer_hex_valid(hex) || map_get(used, str_from(hex)))
            continue;
        /* NOREPLACE: the same layer may be in there already, half deleted; then the next sweep moves this one. */
        if (renameat2(layers_fd, hex, trash_fd, hex, RENAME_NOREPLACE) == 0)
            (*out_count)++;
        else if (errno != EEXIST)
            return err_sys(err, "move layer %s to the trash", hex);
    }
    return true;
}

bool layer_seal(int data_fd, const char *name, char out_hex[LAYER_HEX_BYTES], struct err *err)
{
    auto_close int tmp_fd = openat(data_fd, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int layers_fd = openat(data_fd, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char hex[LAYER_HEX_BYTES];

    if (tmp_fd < 0 || layers_fd < 0)
        return err_sys(err, "open tmp and layers");
    auto_close int dir_fd = openat(tmp_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0)
        return err_sys(err, "open tmp/%s", name);
    if (!layer_digest(dir_fd, hex, err))
        return err_wrap(err, "seal %s", name);
    if (layer_exists(data_fd, hex)) {
        if (!remove_tree(tmp_fd, name, err))
            return err_wrap(err, "layer %s is there already", hex);
        memcpy(out_hex, hex, sizeof hex);
        return true;
    }
    /* Contents first, then the name: after a power cut a name must never lead to half a layer. */
    if (syncfs(dir_fd) < 0)
        return err_sys(err, "sync layer %s", hex);
    if (renameat2(tmp_fd, name, layers_fd, hex, RENAME_NOREPLACE) < 0)
        return err_sys(err, "name layer %s", hex);
    if (fsync(layers_fd) < 0 || fsync(tmp_fd) < 0)
        return err_sys(err, "sync the name of layer %s", hex);
    memcpy(out_hex, hex, sizeof hex);
    return true;
}
