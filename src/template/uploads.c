/*
 * Archives that clients have uploaded for COPY, in one directory: <team>.<hash>, and those that are being written with a
 * name that begins with a dot. An archive gets its name by a rename when it is whole, so none is ever seen half-written;
 * of two clients that upload the same, the last rename counts.
 *
 * What there is, is also in memory, to add up sizes. The time of last use, by a build, is the file's mtime, so that it outlives
 * us. When the caps are reached, what was not used for the longest time goes first, and what the team itself has uploaded
 * before that of others. A question whether an archive is there only keeps it from that, for a while.
 */
#include "template/template.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"

static const int64_t SECOND_US = 1000000;

enum {
    TEAM_CHARS = 36, /* a UUID */
    HASH_CHARS = 64,
    NAME_BYTES = TEAM_CHARS + 1 + HASH_CHARS + 1,
    PART_CHARS = 20,
};

struct entry {
    char name[NAME_BYTES];
    uint64_t size;
    int64_t used_us;
    int64_t asked_us; /* a client was told that it is there; 0: not yet */
};

struct uploads {
    int dir_fd;
    struct upload_caps caps;
    pthread_mutex_t lock; /* around what follows */
    struct map by_name;   /* struct entry */
    struct upload *begun; /* a list */
    uint64_t entry_bytes; /* of all entries */
};

struct upload {
    struct uploads *all;
    struct upload *next;
    char name[NAME_BYTES];
    char part[PART_CHARS + 2];
    int fd;
    uint64_t size, written;
};

/* ---- names ---- */

static bool has_only(struct str s, const char *of)
{
    for (size_t i = 0; i < s.len; i++)
        if (!s.at[i] || !strchr(of, s.at[i]))
            return false;
    return true;
}

/* False if it is no hash. Both parts become a file's name: nothing else may be in them. */
static bool name_make(struct str team_id, struct str hash, char out[NAME_BYTES])
{
    if (team_id.len != TEAM_CHARS || !has_only(team_id, "0123456789abcdef-") || hash.len != HASH_CHARS ||
        !has_only(hash, "0123456789abcdef"))
        return false;
    snprintf(out, NAME_BYTES, "%.*s.%.*s", STR_ARG(team_id), STR_ARG(hash));
    return true;
}

static bool same_team(const char *a, const char *b)
{
    return memcmp(a, b, TEAM_CHARS) == 0;
}

/* ---- entries: with the lock held ---- */

static void entry_put(struct uploads *all, const char *name, uint64_t size, int64_t used_us)
{
    struct entry *entry = map_get(&all->by_name, str_from(name));

    if (!entry) {
        entry = NEW(struct entry);
        snprintf(entry->name, sizeof entry->name, "%s", name);
        map_put(&all->by_name, str_from(entry->name), entry);
    }
    all->entry_bytes += size - entry->size;
    entry->size = size;
    entry->used_us = used_us;
}

static void entry_drop(struct uploads *all, struct entry *entry)
{
    map_remove(&all->by_name, str_from(entry->name));
    all->entry_bytes -= entry->size;
    free(entry);
}

/* Removes the file too. */
static void entry_remove(struct uploads *all, struct entry *entry)
{
    if (unlinkat(all->dir_fd, entry->name, 0) < 0 && errno != ENOENT)
        log_warn("uploads: cannot remove %s: %s", entry->name, strerror(errno));
    entry_drop(all, entry);
}

/* Of those that nobody is about to need, the one that was not used for the longest time. NULL: none; team NULL: of all. */
static struct entry *oldest(const struct uploads *all, const char *team, int64_t before_us)
{
    struct entry *found = NULL, *entry;

    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        if (MAX(entry->used_us, entry->asked_us) < before_us && (!team || same_team(entry->name, team)) &&
            (!found || entry->used_us < found->used_us))
            found = entry;
    return found;
}

/* Bytes on disk, and those that were promised; of a team or of all. */
static uint64_t bytes_of(const struct uploads *all, const char *team)
{
    uint64_t bytes = 0;
    struct entry *entry;

    for (const struct upload *upload = all->begun; upload; upload = upload->next)
        if (!team || same_team(upload->name, team))
            bytes += upload->size;
    if (!team)
        return bytes + all->entry_bytes;
    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        if (same_team(entry->name, team))
            bytes += entry->size;
    return bytes;
}

static uint32_t count_of(const struct uploads *all, const char *team)
{
    uint32_t count = 0;
    struct entry *entry;

    for (const struct upload *upload = all->begun; upload; upload = upload->next)
        count += same_team(upload->name, team);
    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        count += same_team(entry->name, team);
    return count;
}

/* The first that was not used since, whatever clients have asked. */
static struct entry *unused_since(const struct uploads *all, int64_t before_us)
{
    struct entry *entry;

    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        if (entry->used_us < before_us)
            return entry;
    return NULL;
}

static void sweep(struct uploads *all)
{
    struct entry *entry;

    while ((entry = unused_since(all, clock_wall_us() - LIMIT_UPLOAD_KEPT_S * SECOND_US)))
        entry_remove(all, entry);
}

static bool is_too_much(uint64_t have, uint64_t more, uint64_t cap)
{
    return more > cap || have > cap - more;
}

static bool make_room(struct uploads *all, const char *name, uint64_t size, struct err *err)
{
    const int64_t before_us = clock_wall_us() - LIMIT_UPLOAD_BUSY_S * SECOND_US;
    struct entry *entry;

    while (is_too_much(bytes_of(all, name), size, all->caps.bytes_of_team)) {
        if (!(entry = oldest(all, name, before_us)))
            return err_set(err, ERR_LIMIT,
                           "the archives that this team has uploaded take %llu MB: there is no room for %llu more of "
                           "the %llu MB that it may have; try again in an hour",
                           (unsigned long long)(bytes_of(all, name) >> 20), (unsigned long long)(size >> 20),
                           (unsigned long long)(all->caps.bytes_of_team >> 20));
        entry_remove(all, entry);
    }
    while (count_of(all, name) >= all->caps.count_of_team) {
        if (!(entry = oldest(all, name, before_us)))
            return err_set(err, ERR_LIMIT,
                           "this team has uploaded %u archives, which is as many as it may have; try again in an hour",
                           all->caps.count_of_team);
        entry_remove(all, entry);
    }
    while (is_too_much(bytes_of(all, NULL), size, all->caps.bytes) || all->by_name.count >= LIMIT_UPLOADS) {
        if (!(entry = oldest(all, name, before_us)) && !(entry = oldest(all, NULL, before_us)))
            return err_set(err, ERR_LIMIT,
                           "the server has no room for more uploads at the moment; try again in an hour");
        entry_remove(all, entry);
    }
    return true;
}

/* ---- the directory ---- */

static void load_one(struct uploads *all, const char *name)
{
    struct stat found;
    char again[NAME_BYTES];
    struct str text = str_from(name);

    /* Only we write here: what has another name was being written. */
    bool is_ours = text.len == NAME_BYTES - 1 && name[TEAM_CHARS] == '.' &&
                   name_make(str_of(name, TEAM_CHARS), str_of(name + TEAM_CHARS + 1, HASH_CHARS), again);
    if (!is_ours || fstatat(all->dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(found.st_mode)) {
        if (unlinkat(all->dir_fd, name, 0) < 0)
            log_warn("uploads: cannot remove %s: %s", name, strerror(errno));
        return;
    }
    entry_put(all, name, (uint64_t)found.st_size, (int64_t)found.st_mtim.tv_sec * SECOND_US);
}

static bool load(struct uploads *all, struct err *err)
{
    int fd = openat(all->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *item;

    if (!dir) {
        fd_close(&fd);
        return err_sys(err, "list uploads");
    }
    while ((item = readdir(dir)))
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            load_one(all, item->d_name);
    closedir(dir);
    return true;
}

struct uploads *uploads_new(int dir_fd, const struct upload_caps *caps, struct err *err)
{
    struct uploads *all = NEW(struct uploads);

    *all = (struct uploads){ .dir_fd = dir_fd, .caps = caps ? *caps : (struct upload_caps){ 0 } };
    if (!all->caps.bytes)
        all->caps.bytes = LIMIT_UPLOADS_BYTES;
    if (!all->caps.bytes_of_team)
        all->caps.bytes_of_team = LIMIT_UPLOADS_TEAM_BYTES;
    if (!all->caps.count_of_team)
        all->caps.count_of_team = LIMIT_UPLOADS_TEAM;
    pthread_mutex_init(&all->lock, NULL);
    map_init(&all->by_name);
    if (!load(all, err)) {
        uploads_free(all);
        return NULL;
    }
    sweep(all);
    return all;
}

void uploads_free(struct uploads *all)
{
    struct entry *entry;

    if (!all)
        return;
    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        free(entry);
    map_done(&all->by_name);
    pthread_mutex_destroy(&all->lock);
    fd_close(&all->dir_fd);
    free(all);
}

void uploads_sweep(struct uploads *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    sweep(all);
}

static bool is_of(const struct entry *entry, struct str team_id)
{
    return !team_id.len || str_starts(str_from(entry->name), team_id);
}

struct upload_total uploads_total(struct uploads *all, struct str team_id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct upload_total total = { 0 };
    struct entry *entry;

    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        if (is_of(entry, team_id)) {
            total.count++;
            total.bytes += entry->size;
        }
    return total;
}

struct upload_total uploads_prune(struct uploads *all, struct str team_id, bool dry_run)
{
    const int64_t before_us = clock_wall_us() - LIMIT_UPLOAD_BUSY_S * SECOND_US;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct entry **goes = mem_new(all->by_name.count * sizeof(struct entry *) + 1), *entry;
    struct upload_total total = { 0 };

    for (size_t i = 0; (entry = map_next(&all->by_name, &i));)
        if (is_of(entry, team_id) && MAX(entry->used_us, entry->asked_us) < before_us) {
            total.bytes += entry->size;
            goes[total.count++] = entry;
        }
    for (size_t i = 0; i < total.count && !dry_run; i++)
        entry_remove(all, goes[i]);
    free(goes);
    return total;
}

/* ---- reading ---- */

bool upload_open(struct uploads *all, struct str team_id, struct str hash, int *out_fd, uint64_t *out_size,
                 struct err *err)
{
    char name[NAME_BYTES];
    struct stat found;

    if (!name_make(team_id, hash, name))
        return err_set(err, ERR_NOT_FOUND, "there is no archive with this hash");
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct entry *entry = map_get(&all->by_name, str_from(name));
    if (!entry)
        return err_set(err, ERR_NOT_FOUND, "there is no archive with this hash");
    auto_close int fd = openat(all->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &found) < 0) {
        if (errno == ENOENT) /* somebody has cleaned up by hand */
            entry_drop(all, entry);
        return err_sys(err, "open an uploaded archive");
    }
    entry->used_us = clock_wall_us();
    (void)futimens(fd, NULL); /* then it goes earlier after a restart */
    *out_fd = take_fd(&fd);
    *out_size = (uint64_t)found.st_size;
    return true;
}

bool upload_exists(struct uploads *all, struct str team_id, struct str hash)
{
    char name[NAME_BYTES];

    if (!name_make(team_id, hash, name))
        return false;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct entry *entry = map_get(&all->by_name, str_from(name));
    if (entry && faccessat(all->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
        entry_drop(all, entry); /* somebody has cleaned up by hand */
        return false;
    }
    if (entry)
        entry->asked_us = clock_wall_us();
    return entry != NULL;
}

/* ---- writing ---- */

bool uploads_room(const struct uploads *all, uint64_t *out_bytes, struct err *err)
{
    struct statvfs fs;

    if (fstatvfs(all->dir_fd, &fs) < 0)
        return err_sys(err, "look for room on the disk");
    struct fd_room room = fd_room(&fs);
    *out_bytes = room.few_bytes || room.few_inodes ? 0 : room.bytes - LIMIT_ROOM_BYTES;
    return true;
}

static bool has_disk(const struct uploads *all, uint64_t size, struct err *err)
{
    uint64_t room;

    if (!uploads_room(all, &room, err))
        return false;
    return room > size || err_set(err, ERR_FULL, "the server's disk has no room for this archive");
}

bool upload_begin(struct uploads *all, struct str team_id, struct str hash, uint64_t size, struct upload **out,
                  struct err *err)
{
    char name[NAME_BYTES];

    if (!name_make(team_id, hash, name))
        return err_set(err, ERR_INVALID, "Invalid files hash: 64 digits of 0-9 a-f are needed");
    if (!size)
        return err_set(err, ERR_INVALID, "the upload is empty, which an archive never is");
    if (size > LIMIT_UPLOAD_BYTES)
        return err_set(err, ERR_LIMIT, "an archive may have at most %llu MB",
                       (unsigned long long)(LIMIT_UPLOAD_BYTES >> 20));
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    sweep(all);
    if (!make_room(all, name, size, err) || !has_disk(all, size, err))
        return false;
    struct upload *upload = NEW(struct upload);
    *upload = (struct upload){ .all = all, .size = size, .part = "." };
    memcpy(upload->name, name, sizeof name);
    random_id(upload->part + 1, PART_CHARS);
    upload->fd = openat(all->dir_fd, upload->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (upload->fd < 0) {
        (void)err_sys(err, "make a file for an upload");
        free(upload);
        return false;
    }
    upload->next = all->begun;
    all->begun = upload;
    *out = upload;
    return true;
}

bool upload_write(struct upload *upload, struct str bytes, struct err *err)
{
    if (bytes.len > upload->size - upload->written)
        return err_set(err, ERR_INVALID, "the archive is longer than its Content-Length");
    if (!fd_write_all(upload->fd, bytes, err))
        return err_wrap(err, "write an upload");
    upload->written += bytes.len;
    return true;
}

/* With the lock held. */
static void forget(struct upload *upload)
{
    struct upload **at = &upload->all->begun;

    while (*at != upload)
        at = &(*at)->next;
    *at = upload->next;
    fd_close(&upload->fd);
    free(upload);
}

bool upload_keep(struct upload *upload, struct err *err)
{
    struct uploads *all = upload->all;

    /* A crash may lose the name, never the bytes behind it. */
    bool ok = (upload->written == upload->size ||
               err_set(err, ERR_INVALID, "the archive ends after %llu of %llu bytes",
                       (unsigned long long)upload->written, (unsigned long long)upload->size)) &&
              (fdatasync(upload->fd) == 0 || err_sys(err, "write an upload to disk"));
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    if (ok && renameat(all->dir_fd, upload->part, all->dir_fd, upload->name) < 0)
        ok = err_sys(err, "name an upload");
    if (ok)
        entry_put(all, upload->name, upload->size, clock_wall_us());
    else
        (void)unlinkat(all->dir_fd, upload->part, 0); /* else the next start does */
    forget(upload);
    return ok;
}

void upload_drop(struct upload *upload)
{
    if (!upload)
        return;
    struct uploads *all = upload->all;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    (void)unlinkat(all->dir_fd, upload->part, 0); /* else the next start does */
    forget(upload);
}
