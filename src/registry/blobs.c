#include "registry/blobs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "registry/digest.h"

enum { READ_BYTES = 256 * 1024 };

/* ---- what is there ---- */

struct kept {
    char name[BLOB_NAME_BYTES];
    uint64_t bytes;
    int64_t used_s;
    bool is_part;
};

/* What can be removed, and what is under way. */
struct stock {
    struct kept *list; /* on the heap */
    size_t count, room;
    uint64_t bytes;    /* of the list */
    uint64_t promised; /* to downloads under way… */
    uint64_t owned;    /* …of which these are those of the same owner… */
    uint64_t ready;    /* …and for these room was made… */
    uint64_t arrived;  /* …and on the disk already, in parts of theirs, which are not in the list */
    size_t part_count; /* of those */
};

static const char promise_prefix[] = "promise-";

static bool name_is_ours(const char *name, bool *out_part)
{
    size_t len = strlen(name);

    *out_part = len > 5 && strcmp(name + len - 5, ".part") == 0;
    return len < BLOB_NAME_BYTES && len - (*out_part ? 5 : 0) == 32 + 1 + 64;
}

static int older(const void *a, const void *b)
{
    const struct kept *one = a, *other = b;

    return one->used_s < other->used_s ? -1 : one->used_s > other->used_s;
}

/* Has somebody a lock on it? */
static bool is_busy(const struct blobs *blobs, const char *name)
{
    auto_close int fd = openat(blobs->dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

/* What a promise begins with. One of few bytes has no place for it: there is room for all of them, and it is nobody's. */
struct promise_head {
    uint64_t ready, owner;
};

static void count_promise(const struct blobs *blobs, const char *name, struct stock *stock)
{
    auto_close int fd = openat(blobs->dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct promise_head head;
    struct stat st;

    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        (void)unlinkat(blobs->dir_fd, name, 0); /* its process has died */
        return;
    }
    if (fstat(fd, &st) < 0)
        return;
    uint64_t bytes = MIN((uint64_t)st.st_size, UINT64_MAX - stock->promised);
    bool has_head = pread(fd, &head, sizeof head, 0) == sizeof head;
    stock->promised += bytes;
    stock->ready += has_head ? MIN(head.ready, bytes) : bytes;
    stock->owned += has_head && head.owner == blobs->owner ? bytes : 0;
}

static void count_file(const struct blobs *blobs, const char *name, struct stock *stock)
{
    struct stat st;
    bool is_part = false, is_promise = strncmp(name, promise_prefix, sizeof promise_prefix - 1) == 0;

    if ((!is_promise && !name_is_ours(name, &is_part)) || fstatat(blobs->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    if (is_promise) {
        count_promise(blobs, name, stock);
        return;
    }
    uint64_t bytes = (uint64_t)st.st_blocks * 512;
    if (is_part && is_busy(blobs, name)) {
        stock->arrived += bytes;
        stock->part_count++;
        return;
    }
    if (stock->count == stock->room)
        stock->list = mem_grow(stock->list, (stock->room = 2 * stock->room + 64) * sizeof *stock->list);
    struct kept *kept = &stock->list[stock->count++];
    *kept = (struct kept){ .bytes = bytes, .used_s = st.st_mtime, .is_part = is_part };
    (void)snprintf(kept->name, sizeof kept->name, "%s", name);
    stock->bytes += bytes;
}

/* Oldest first. */
static bool take_stock(const struct blobs *blobs, struct stock *out, struct err *err)
{
    int fd = openat(blobs->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    *out = (struct stock){ 0 };
    if (!dir) {
        (void)err_sys(err, "open the directory of downloads");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        count_file(blobs, entry->d_name, out);
    (void)closedir(dir);
    if (out->count)
        qsort(out->list, out->count, sizeof *out->list, older);
    return true;
}

/* ---- room ---- */

/* A part that somebody has begun to work on meanwhile stays. What is open elsewhere can be read on. */
static bool drop(const struct blobs *blobs, const struct kept *kept)
{
    auto_close int fd = kept->is_part ? openat(blobs->dir_fd, kept->name, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;

    if (kept->is_part && (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0))
        return false;
    return unlinkat(blobs->dir_fd, kept->name, 0) == 0;
}

static bool is_too_old(const struct kept *kept, int64_t now_s)
{
    int64_t age_s = now_s - kept->used_s;

    return age_s > (kept->is_part ? LIMIT_PART_AGE_S : LIMIT_BLOB_AGE_S) || age_s < -LIMIT_BLOB_AGE_S;
}

/* Would it, if `more` bytes were free besides? */
static bool disk_has(const struct blobs *blobs, uint64_t bytes, uint64_t more)
{
    struct statvfs fs;

    if (fstatvfs(blobs->dir_fd, &fs) < 0)
        return true; /* then writing will tell */
    struct fd_room room = fd_room(&fs);
    return (more || (!room.few_bytes && !room.few_inodes)) && room.bytes + more >= bytes + LIMIT_ROOM_BYTES;
}

static bool no_room(uint64_t bytes, uint64_t most, struct err *err)
{
    return err_set(err, ERR_LIMIT, "there is no room for %llu MB of downloads: at most %llu MB are kept",
                   (unsigned long long)(bytes >> 20), (unsigned long long)(most >> 20));
}

static bool no_disk(uint64_t bytes, struct err *err)
{
    return err_set(err, ERR_FULL, "there is no room on the server's disk for %llu MB",
                   (unsigned long long)(bytes >> 20));
}

static bool no_room_yet(uint64_t bytes, struct err *err)
{
    return err_set(err, ERR_CONFLICT, "there is no room for %llu MB of downloads until others have ended",
                   (unsigned long long)(bytes >> 20));
}

static void drop_too_old(const struct blobs *blobs, struct stock *stock)
{
    int64_t now_s = clock_wall_us() / 1000000;
    size_t left = 0;

    for (size_t i = 0; i < stock->count; i++) {
        if (is_too_old(&stock->list[i], now_s) && drop(blobs, &stock->list[i]))
            stock->bytes -= stock->list[i].bytes;
        else
            stock->list[left++] = stock->list[i];
    }
    stock->count = left;
}

static uint64_t bytes_most(const struct blobs *blobs)
{
    return blobs->bytes_most ? blobs->bytes_most : LIMIT_BLOBS_BYTES;
}

static uint64_t step_of(const struct blobs *blobs)
{
    return blobs->step ? blobs->step : LIMIT_BLOBS_STEP_BYTES;
}

/* Could there be room for so many, if all that can go went? Nothing is removed in vain. */
static bool can_have(const struct blobs *blobs, const struct stock *stock, uint64_t bytes, struct err *err)
{
    const uint64_t most = bytes_most(blobs);
    /* Of a download that nobody has promised, at least what is there. */
    const uint64_t promised = MAX(stock->promised, stock->arrived), coming = promised - stock->arrived;

    if (bytes > most)
        return no_room(bytes, most, err);
    if (!disk_has(blobs, bytes, stock->bytes))
        return no_disk(bytes, err);
    /* What is done with one step is let through: a configuration, for example. */
    const uint64_t share = most / LIMIT_BLOBS_SHARE;
    bool is_share = !stock->owned || bytes <= step_of(blobs) || (bytes <= share && stock->owned <= share - bytes);
    return (is_share && promised <= most - bytes && disk_has(blobs, bytes + coming, stock->bytes)) ||
           no_room_yet(bytes, err);
}

/* Removes the oldest, until there is room for what others have room for, and so many bytes more. */
static bool make_room(const struct blobs *blobs, struct stock *stock, uint64_t bytes, struct err *err)
{
    const uint64_t most = bytes_most(blobs);
    const uint64_t ready = MAX(stock->ready, stock->arrived), coming = ready - stock->arrived;
    const uint64_t may_stay = most - MIN(ready + bytes, most);
    size_t left = stock->count + stock->part_count;

    for (size_t i = 0; i < stock->count; i++) {
        bool is_wanted = stock->bytes > may_stay || left >= LIMIT_BLOBS || !disk_has(blobs, bytes + coming, 0);
        if (is_wanted && drop(blobs, &stock->list[i])) {
            stock->bytes -= stock->list[i].bytes;
            left--;
        }
    }
    if (stock->bytes > may_stay)
        return no_room(bytes, most, err);
    return disk_has(blobs, bytes + coming, 0) || no_disk(bytes + coming, err);
}

/* Failure: others make too much room, or too little, and notice when the disk is full. */
static void promise_write(const struct blob_promise *promise)
{
    const struct promise_head head = { .ready = promise->ready, .owner = promise->owner };

    (void)!pwrite(promise->fd, &head, sizeof head, 0);
    (void)!ftruncate(promise->fd, (off_t)promise->bytes);
}

static bool promise_make(const struct blobs *blobs, uint64_t bytes, struct blob_promise *out, struct err *err)
{
    auto_close int fd = -1;

    for (unsigned i = 0; fd < 0 && i < LIMIT_BLOBS; i++) {
        (void)snprintf(out->name, sizeof out->name, "%s%u", promise_prefix, i);
        fd = openat(blobs->dir_fd, out->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || ftruncate(fd, (off_t)bytes) < 0)
        return err_sys(err, "promise room for a download");
    out->bytes = bytes;
    out->ready = MIN(bytes, step_of(blobs));
    out->owner = blobs->owner;
    out->used = 0;
    out->dir_fd = blobs->dir_fd;
    out->fd = take_fd(&fd);
    promise_write(out);
    return true;
}

/* One process at a time counts and removes. -1: *err says why. */
static int lock(const struct blobs *blobs, struct err *err)
{
    /* Opened anew: forks share the lock of a descriptor that they have in common. */
    auto_close int fd = openat(blobs->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX) == 0)
        return take_fd(&fd);
    (void)err_sys(err, "lock the directory of downloads");
    return -1;
}

bool blobs_make_room(const struct blobs *blobs, uint64_t bytes, struct blob_promise *promise, struct err *err)
{
    auto_close int lock_fd = lock(blobs, err);
    struct stock stock;

    blob_promise_done(promise);
    if (lock_fd < 0 || !take_stock(blobs, &stock, err))
        return false;
    drop_too_old(blobs, &stock);
    bool fine = can_have(blobs, &stock, bytes, err) && make_room(blobs, &stock, MIN(bytes, step_of(blobs)), err) &&
                (!bytes || promise_make(blobs, bytes, promise, err));
    free(stock.list);
    return fine;
}

bool blob_promise_use(const struct blobs *blobs, struct blob_promise *promise, uint64_t bytes, struct err *err)
{
    struct stock stock;

    if (promise->fd < 0)
        return true;
    promise->used += bytes;
    if (promise->used <= promise->ready || promise->ready == promise->bytes)
        return true;
    auto_close int lock_fd = lock(blobs, err);
    if (lock_fd < 0)
        return false;
    promise->ready = MIN(promise->used + step_of(blobs), promise->bytes);
    promise_write(promise);
    if (!take_stock(blobs, &stock, err))
        return false;
    bool fine = make_room(blobs, &stock, 0, err); /* the promise is in the stock */
    free(stock.list);
    return fine;
}

void blob_promise_less(struct blob_promise *promise, uint64_t bytes)
{
    if (promise->fd < 0)
        return;
    promise->bytes -= MIN(bytes, promise->bytes);
    promise->ready -= MIN(bytes, promise->ready);
    promise->used -= MIN(bytes, promise->used);
    promise_write(promise);
}

void blob_promise_done(struct blob_promise *promise)
{
    if (promise->fd < 0)
        return;
    (void)unlinkat(promise->dir_fd, promise->name, 0);
    fd_close(&promise->fd);
}

bool blobs_stock(const struct blobs *blobs, bool removes, uint64_t *out_files, uint64_t *out_bytes, struct err *err)
{
    auto_close int lock_fd = openat(blobs->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t files = 0, bytes = 0;
    struct stock stock;

    if (lock_fd < 0 || flock(lock_fd, LOCK_EX) < 0)
        return err_sys(err, "lock the directory of downloads");
    if (!take_stock(blobs, &stock, err))
        return false;
    for (size_t i = 0; i < stock.count; i++)
        if (!removes || drop(blobs, &stock.list[i])) {
            files++;
            bytes += stock.list[i].bytes;
        }
    free(stock.list);
    *out_files = files;
    *out_bytes = bytes;
    return true;
}

uint64_t blobs_owner(struct str team_id)
{
    char hex[DIGEST_HEX_BYTES];

    sha256_hex(team_id, hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16);
}

/* ---- one blob ---- */

void blob_init(struct blob *blob, struct str place, const char *hex, uint64_t size)
{
    char place_hex[DIGEST_HEX_BYTES];

    *blob = (struct blob){ .size = size, .fd = -1 };
    sha256_hex(place, place_hex);
    (void)snprintf(blob->hex, sizeof blob->hex, "%s", hex);
    (void)snprintf(blob->name, sizeof blob->name, "%.32s-%.64s", place_hex, hex);
}

void blob_done(struct blob *blob)
{
    fd_close(&blob->fd); /* and its lock */
    sha256_free(blob->sha);
    blob->sha = NULL;
}

/* All bytes of a file, from the beginning. */
static bool hash_file(int fd, struct sha256 *sha, uint64_t most, uint64_t *out_bytes)
{
    auto_free char *room = mem_new(READ_BYTES);

    *out_bytes = 0;
    for (;;) {
        ssize_t n = pread(fd, room, READ_BYTES, (off_t)*out_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        if (n == 0)
            return true;
        *out_bytes += (uint64_t)n;
        if (*out_bytes > most)
            return false;
        sha256_add(sha, str_of(room, (size_t)n));
    }
}

static bool is_right(int fd, const struct blob *blob)
{
    char hex[DIGEST_HEX_BYTES];
    struct sha256 *sha = sha256_new();
    uint64_t bytes;
    bool fine = hash_file(fd, sha, blob->size, &bytes) && bytes == blob->size;

    sha256_end(sha, hex);
    sha256_free(sha);
    return fine && strcmp(hex, blob->hex) == 0;
}

bool blob_seems_here(const struct blobs *blobs, const struct blob *blob)
{
    struct stat st;

    if (fstatat(blobs->dir_fd, blob->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || (uint64_t)st.st_size != blob->size)
        return false;
    (void)utimensat(blobs->dir_fd, blob->name, NULL, 0); /* without it, it goes a little too early */
    return true;
}

bool blob_find(const struct blobs *blobs, const struct blob *blob, int *out_fd)
{
    auto_close int fd = openat(blobs->dir_fd, blob->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return false;
    if (!is_right(fd, blob)) {
        (void)unlinkat(blobs->dir_fd, blob->name, 0); /* it is downloaded again */
        return false;
    }
    (void)utimensat(blobs->dir_fd, blob->name, NULL, 0); /* used just now */
    *out_fd = take_fd(&fd);
    return true;
}

static const char *part_name(const struct blob *blob, char room[BLOB_NAME_BYTES])
{
    (void)snprintf(room, BLOB_NAME_BYTES, "%.97s.part", blob->name);
    return room;
}

/* It may have been finished, or removed as too old, between the opening and the lock. */
static bool still_has_its_name(const struct blobs *blobs, const char *name, int fd)
{
    struct stat here, there;

    return fstat(fd, &here) == 0 && fstatat(blobs->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

bool blob_begin(const struct blobs *blobs, struct blob *blob, struct err *err)
{
    char room[BLOB_NAME_BYTES];
    const char *name = part_name(blob, room);
    auto_close int fd = openat(blobs->dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return err_sys(err, "open a download");
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 || !still_has_its_name(blobs, name, fd))
        return err_set(err, ERR_CONFLICT, "the same layer is being downloaded already");
    blob->sha = sha256_new();
    blob->fd = take_fd(&fd);
    if (hash_file(blob->fd, blob->sha, blob->size, &blob->have))
        return true;
    return blob_restart(blob, err);
}

bool blob_write(struct blob *blob, struct str bytes, struct err *err)
{
    for (struct str rest = bytes; rest.len;) {
        ssize_t n = pwrite(blob->fd, rest.at, rest.len, (off_t)blob->have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "write a layer");
        sha256_add(blob->sha, str_of(rest.at, (size_t)n));
        blob->have += (uint64_t)n;
        rest = str_of(rest.at + n, rest.len - (size_t)n);
    }
    return true;
}

bool blob_restart(struct blob *blob, struct err *err)
{
    if (ftruncate(blob->fd, 0) < 0)
        return err_sys(err, "begin a download again");
    sha256_free(blob->sha);
    blob->sha = sha256_new();
    blob->have = 0;
    return true;
}

bool blob_finish(const struct blobs *blobs, struct blob *blob, int *out_fd, struct err *err)
{
    char room[BLOB_NAME_BYTES], hex[DIGEST_HEX_BYTES];
    const char *name = part_name(blob, room);

    sha256_end(blob->sha, hex);
    if (blob->have != blob->size || strcmp(hex, blob->hex) != 0) {
        (void)unlinkat(blobs->dir_fd, name, 0); /* the next one begins anew */
        return err_set(err, ERR_INVALID, "what the registry sent does not have the digest sha256:%.12s…", blob->hex);
    }
    /* Not the descriptor that it was written with: nobody else should be able to write to it. */
    auto_close int fd = openat(blobs->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || renameat(blobs->dir_fd, name, blobs->dir_fd, blob->name) < 0)
        return err_sys(err, "keep a layer");
    *out_fd = take_fd(&fd);
    return true;
}

int blobs_make_file(const struct blobs *blobs, struct err *err)
{
    int fd = openat(blobs->dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0)
        (void)err_sys(err, "make a file for a layer");
    return fd;
}
