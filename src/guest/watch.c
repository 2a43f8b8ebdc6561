/*
 * watch.c - each watch has an inotify instance of its own, and all instances are in one epoll set, which is what the
 * loop watches. An instance is kept for the next watch when its watch ends.
 *
 * Records   A look reads the instances that epoll names, in rounds: a round handles all that the kernel had queued for
 *           this watch when the round began. A watch that is paused is not read; its records wait in the kernel, which
 *           keeps max_queued_events of them (16,384) and then reports an overflow. That ends the watch with an error.
 * Trees     A recursive watch has one kernel watch for each directory. The guest chooses how deep a tree is and what is
 *           in it, so a tree is walked from a list of directories that are still to be read, with one of them open at a
 *           time. A path that does not fit in PATH_MAX ends the watch with a reason: a path cut short would name
 *           something else.
 * New dirs  A new directory is watched first and read then. Entries that the walk finds are reported as created, and
 *           the kernel may have queued the same entries by then. `told` remembers them until the end of the next round,
 *           when all those records have been seen. `moved`, a directory that has left its place, is kept for as long:
 *           the record of where it went follows within that time.
 * Memory    Records that wait in the kernel are charged to guestd. shed() bounds them for all watches together.
 */
#include "guest/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

enum {
    MASK = IN_CREATE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_MOVED_FROM | IN_MOVE_SELF | IN_ATTRIB,
    READ_BYTES = 4096,              /* some 120 records: a watch that is paused meanwhile still reports these */
    READY_MOST = 64,                /* instances of one epoll_wait() */
    ROUNDS = 8,                     /* of one look; the rest is handled in the next loop turn */
    SHED_EVERY = 1024,              /* records and directories between two looks at what waits */
    TOLD_BYTES = 11 + NAME_MAX + 1, /* "wd/name" */
    TOLD_SLOT_BYTES = 64,           /* cost of a told name besides its text */
    KERNEL_WATCH_BYTES = 128,       /* cost of a directory in the kernel, charged to guestd as well */
};

/* One directory under watch. */
struct place {
    int wd;        /* the kernel's number for it, which counts upwards */
    unsigned walk; /* the last walk that found it */
    char *name;    /* relative to the root; "" for the root itself */
};

struct dir_watch {
    struct watchers *all;
    struct dir_watch *next, *previous;
    struct dir_watch_want want;
    char *path;
    const char *id; /* NULL: none */
    int fd;         /* the inotify instance, or -1 once the watch has stopped */
    bool is_paused, is_freed, has_failed;
    bool is_suspended;    /* not in the kernel until watchers_resume() */
    bool is_unsettled;    /* another round has to follow */
    struct place *places; /* sorted by wd */
    size_t place_count, place_room;
    unsigned walk;                /* counts the calls of add_tree() */
    struct map told, told_before; /* in this round and in the one before: "wd/name" to itself, ours */
    char *moved;                  /* a directory that has left its place and may turn up at another */
    bool has_just_moved;          /* in this round */
    uint32_t moved_cookie;
};

struct watchers {
    struct guest *guest;
    int epoll_fd;
    struct watch *watch; /* of epoll_fd */
    struct dir_watch *first;
    size_t count;
    int spare_fds[LIMIT_WATCHERS]; /* instances without a watch */
    size_t spare_count;
    size_t place_bytes, told_bytes; /* of all of them */
    unsigned work;                  /* since the last shed() */
    bool is_looking, is_unsettled;
    struct timer again;
};

/* Nothing more is reported. */
static bool is_over(const struct dir_watch *w)
{
    return w->is_freed || w->has_failed;
}

/* ---- places ---- */

static size_t place_index(const struct dir_watch *w, int wd)
{
    size_t low = 0, high = w->place_count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->places[middle].wd < wd)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct place *place_of(const struct dir_watch *w, int wd)
{
    size_t i = place_index(w, wd);

    return i < w->place_count && w->places[i].wd == wd ? &w->places[i] : NULL;
}

static size_t place_bytes(const char *name)
{
    return sizeof(struct place) + KERNEL_WATCH_BYTES + strlen(name) + 1;
}

static void name_place(struct dir_watch *w, struct place *place, const char *name)
{
    if (place->name)
        w->all->place_bytes -= place_bytes(place->name);
    free(place->name);
    place->name = name ? mem_copy_text(name) : NULL;
    if (name)
        w->all->place_bytes += place_bytes(name);
}

/* The kernel no longer watches it. */
static void drop_place(struct dir_watch *w, struct place *place)
{
    size_t i = (size_t)(place - w->places);

    name_place(w, place, NULL);
    memmove(place, place + 1, (w->place_count - i - 1) * sizeof *place);
    w->place_count--;
}

static bool join(char room[PATH_MAX], const char *a, const char *b, struct err *err)
{
    int len = snprintf(room, PATH_MAX, "%s%s%s", a, *a && *b && a[strlen(a) - 1] != '/' ? "/" : "", b);

    if (len < 0 || len >= PATH_MAX)
        return err_set(err, ERR_LIMIT, "cannot watch a path of more than %d bytes: %.60s…", PATH_MAX - 1, room);
    return true;
}

/* It has gone, or is no directory any more: nothing to watch, and no failure. */
static bool is_gone(const struct err *err)
{
    return err->sys == ENOENT || err->sys == ENOTDIR || err->sys == ELOOP;
}

static int watch_dir(const struct dir_watch *w, const char *path, bool follow, struct err *err)
{
    int wd = inotify_add_watch(w->fd, path, MASK | IN_ONLYDIR | (follow ? 0 : IN_DONT_FOLLOW));

    if (wd < 0 && errno == ENOSPC)
        (void)err_set(err, ERR_LIMIT, "the system's limit of watched directories is reached");
    else if (wd < 0)
        (void)err_sys(err, "watch %.80s", path);
    return wd;
}

/* *out_is_unread: it has yet to be read, because it is new or has another path than before. */
static bool add_place(struct dir_watch *w, const char *name, const char *path, int *out_wd, bool *out_is_unread,
                      struct err *err)
{
    if (w->place_count >= LIMIT_WATCH_DIRS)
        return err_set(err, ERR_LIMIT, "more than %d directories to watch", LIMIT_WATCH_DIRS);
    if (w->all->place_bytes + place_bytes(name) > LIMIT_WATCH_PLACE_BYTES)
        return err_set(err, ERR_LIMIT, "all watches together have too many directories to watch");
    /* The root may be a link; below it links are not followed. */
    int wd = watch_dir(w, path, !*name, err);
    if (wd < 0)
        return false;
    *out_wd = wd;
    struct place *known = place_of(w, wd);
    if (known) {
        /* A directory that is mounted below itself has endless names: keep the first. */
        *out_is_unread = known->walk != w->walk && strcmp(known->name, name) != 0;
        if (*out_is_unread) {
            name_place(w, known, name);
            known->walk = w->walk;
        }
        return true;
    }
    *out_is_unread = true;
    if (w->place_count == w->place_room) {
        w->place_room = w->place_room ? 2 * w->place_room : 1;
        w->places = mem_grow(w->places, w->place_room * sizeof *w->places);
    }
    size_t i = place_index(w, wd);
    memmove(&w->places[i + 1], &w->places[i], (w->place_count - i) * sizeof *w->places);
    w->places[i] = (struct place){ .wd = wd, .walk = w->walk };
    w->place_count++;
    name_place(w, &w->places[i], name);
    return true;
}

static size_t told_cost(const char *key)
{
    return strlen(key) + 1 + TOLD_SLOT_BYTES;
}

static void told_clear(struct dir_watch *w, struct map *told)
{
    char *key;

    if (told->count == 0)
        return;
    for (size_t i = 0; (key = map_next(told, &i));) {
        w->all->told_bytes -= told_cost(key);
        free(key);
    }
    map_done(told);
    map_init(told);
}

/*
 * Closing an instance that had watches takes milliseconds: the kernel waits for a grace period. So it is emptied and
 * kept for the next watch. Numbers of directories are not used twice, so old records cannot match a new watch.
 */
static void give_back(struct dir_watch *w)
{
    char room[READ_BYTES];

    (void)epoll_ctl(w->all->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    for (size_t i = 0; i < w->place_count; i++)
        (void)inotify_rm_watch(w->fd, w->places[i].wd); /* EINVAL: it has gone by itself */
    while (read(w->fd, room, sizeof room) > 0)
        ;
    w->all->spare_fds[w->all->spare_count++] = take_fd(&w->fd);
}

/* Out of the kernel, without its directories. */
static void leave_kernel(struct dir_watch *w)
{
    if (w->fd >= 0)
        give_back(w);
    while (w->place_count > 0)
        drop_place(w, &w->places[w->place_count - 1]);
    told_clear(w, &w->told);
    told_clear(w, &w->told_before);
    w->is_unsettled = false;
}

/* Nothing more is to be reported. */
static void stop(struct dir_watch *w)
{
    leave_kernel(w);
    w->is_suspended = false;
}

/* ---- reporting ---- */

static void fail(struct dir_watch *w, const struct err *err)
{
    if (is_over(w))
        return;
    w->has_failed = true;
    stop(w);
    w->want.on_failed(w, err);
}

static void tell(struct dir_watch *w, enum watch_event_type type, const char *name)
{
    char path[PATH_MAX];
    struct err err;

    if (is_over(w))
        return;
    if (join(path, w->path, name, &err))
        w->want.on_event(w, type, *name ? name : ".", path);
    else
        fail(w, &err);
}

static bool note_told(struct dir_watch *w, int wd, const char *name, struct err *err)
{
    char key[TOLD_BYTES];

    (void)snprintf(key, sizeof key, "%d/%s", wd, name);
    if (w->all->told_bytes + told_cost(key) > LIMIT_WATCH_TOLD_BYTES)
        return err_set(err, ERR_LIMIT, "watcher error: more entries at once in new directories than can be reported");
    char *kept = mem_copy_text(key), *before = map_put(&w->told, str_from(kept), kept);
    w->all->told_bytes += before ? 0 : told_cost(key);
    free(before);
    return true;
}

/* Bytes of records that the kernel has queued. */
static size_t pending(const struct dir_watch *w)
{
    int bytes = 0;

    return w->fd >= 0 && ioctl(w->fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

/*
 * Past LIMIT_WATCH_QUEUE_BYTES for all watches together, those for which more than their share waits lose it. To be
 * called for each record and directory handled: the guest may make records faster than we read them.
 */
static void shed(struct watchers *all)
{
    size_t waiting = 0;
    struct err err;

    if (++all->work % SHED_EVERY != 0)
        return;
    for (struct dir_watch *w = all->first; w; w = w->next)
        waiting += pending(w);
    if (waiting <= LIMIT_WATCH_QUEUE_BYTES)
        return;
    size_t share = LIMIT_WATCH_QUEUE_BYTES / all->count;
    (void)err_set(&err, ERR_INTERNAL, WATCH_LOST);
    for (struct dir_watch *w = all->first, *next; w; w = next) {
        next = w->next;
        if (pending(w) > share)
            fail(w, &err);
    }
}

static bool was_told(const struct dir_watch *w, int wd, const char *name)
{
    char key[TOLD_BYTES];

    if (w->told.count == 0 && w->told_before.count == 0)
        return false;
    (void)snprintf(key, sizeof key, "%d/%s", wd, name);
    return map_get(&w->told, str_from(key)) || map_get(&w->told_before, str_from(key));
}

/* ---- whole trees ---- */

/* A walk under way. */
struct walk {
    bool is_new; /* entries found are reported as created */
    int *unread; /* their wds; the last is next */
    size_t count, room;
    char path[PATH_MAX]; /* of the directory or the entry at hand */
};

static bool walk_enter(struct dir_watch *w, struct walk *walk, const char *name, struct err *err)
{
    bool is_unread;
    int wd;

    if (!join(walk->path, w->path, name, err) || !add_place(w, name, walk->path, &wd, &is_unread, err))
        return false;
    if (!w->want.is_recursive || !is_unread)
        return true;
    if (walk->count == walk->room) {
        walk->room = walk->room ? 2 * walk->room : 16;
        walk->unread = mem_grow(walk->unread, walk->room * sizeof *walk->unread);
    }
    walk->unread[walk->count++] = wd;
    return true;
}

static bool walk_entry(struct dir_watch *w, struct walk *walk, int wd, const struct dirent *dirent, struct err *err)
{
    char name[PATH_MAX];
    struct stat st;

    if (!join(name, place_of(w, wd)->name, dirent->d_name, err))
        return false;
    if (walk->is_new) {
        if (!note_told(w, wd, dirent->d_name, err))
            return false;
        tell(w, WATCH_EVENT_CREATE, name);
        if (is_over(w))
            return true;
    }
    if (dirent->d_type == DT_UNKNOWN) {
        if (!join(walk->path, w->path, name, err))
            return false;
        if (lstat(walk->path, &st) < 0 || !S_ISDIR(st.st_mode))
            return true;
    } else if (dirent->d_type != DT_DIR) {
        return true;
    }
    return walk_enter(w, walk, name, err) || is_gone(err);
}

static bool walk_read(struct dir_watch *w, struct walk *walk, int wd, struct err *err)
{
    struct dirent *dirent;
    bool fine = true;

    shed(w->all); /* may end this watch too */
    if (is_over(w))
        return true;
    const char *name = place_of(w, wd)->name;
    if (!join(walk->path, w->path, name, err))
        return false;
    int fd = open(walk->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (*name ? O_NOFOLLOW : 0));
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)err_sys(err, "look through %.60s", walk->path);
        fd_close(&fd);
        return is_gone(err);
    }
    while (fine && !w->is_freed && !w->has_failed && (dirent = readdir(dir)))
        if (strcmp(dirent->d_name, ".") != 0 && strcmp(dirent->d_name, "..") != 0)
            fine = walk_entry(w, walk, wd, dirent, err);
    (void)closedir(dir);
    return fine;
}

/* Watch this directory and all below. If it is new, entries found are reported as created. */
static bool add_tree(struct dir_watch *w, const char *name, bool is_new, struct err *err)
{
    struct walk walk = { .is_new = is_new };

    w->walk++;
    bool fine = walk_enter(w, &walk, name, err);
    while (fine && walk.count > 0 && !w->is_freed && !w->has_failed)
        fine = walk_read(w, &walk, walk.unread[--walk.count], err);
    free(walk.unread);
    return fine;
}

/* ---- directories that move ---- */

static bool is_in(const char *name, const char *dir)
{
    size_t len = strlen(dir);

    return strncmp(name, dir, len) == 0 && (name[len] == '/' || name[len] == '\0');
}

/* It has left the tree: stop watching it. */
static void forget_moved(struct dir_watch *w)
{
    if (!w->moved)
        return;
    for (size_t i = w->place_count; i-- > 0;) {
        if (!*w->places[i].name || !is_in(w->places[i].name, w->moved))
            continue;
        (void)inotify_rm_watch(w->fd, w->places[i].wd); /* EINVAL: it has gone by itself */
        drop_place(w, &w->places[i]);
    }
    free(take_ptr(&w->moved));
}

static void moved_to(struct dir_watch *w, const char *name)
{
    auto_free char *moved = take_ptr(&w->moved);
    size_t moved_len = strlen(moved);
    char renamed[PATH_MAX];
    struct err err;

    for (size_t i = 0; i < w->place_count; i++) {
        struct place *place = &w->places[i];
        if (!*place->name || !is_in(place->name, moved))
            continue;
        const char *below = place->name + moved_len;
        if (!join(renamed, name, *below == '/' ? below + 1 : below, &err)) {
            fail(w, &err);
            return;
        }
        name_place(w, place, renamed);
    }
}

/* ---- the kernel's records ---- */

static void on_created(struct dir_watch *w, const struct inotify_event *e, const char *name)
{
    struct err err;

    if (!was_told(w, e->wd, e->name))
        tell(w, WATCH_EVENT_CREATE, name);
    if (!w->want.is_recursive || !(e->mask & IN_ISDIR) || is_over(w))
        return;
    if (w->moved && (e->mask & IN_MOVED_TO) && e->cookie == w->moved_cookie) {
        moved_to(w, name);
        return;
    }
    if (!add_tree(w, name, (e->mask & IN_CREATE) != 0, &err) && !is_gone(&err))
        fail(w, &err);
}

static void on_record(struct dir_watch *w, const struct inotify_event *e)
{
    struct place *place = place_of(w, e->wd);
    const char *below = e->len ? e->name : ""; /* "": the directory itself */
    char name[PATH_MAX];
    struct err err;

    if (e->mask & IN_Q_OVERFLOW) {
        (void)err_set(&err, ERR_INTERNAL, WATCH_LOST);
        fail(w, &err);
        return;
    }
    if (!place)
        return; /* of a directory that we have left */
    if (e->mask & IN_IGNORED) {
        drop_place(w, place);
        return;
    }
    /* The parent of a directory inside reports the same. */
    if (!*below && *place->name)
        return;
    if (!join(name, place->name, below, &err)) {
        fail(w, &err);
        return;
    }
    if (e->mask & (IN_CREATE | IN_MOVED_TO))
        on_created(w, e, name);
    if (e->mask & (IN_MOVED_FROM | IN_MOVE_SELF))
        tell(w, WATCH_EVENT_RENAME, name);
    if ((e->mask & IN_MOVED_FROM) && (e->mask & IN_ISDIR)) {
        forget_moved(w);
        w->moved = mem_copy_text(name);
        w->moved_cookie = e->cookie;
        w->has_just_moved = true;
    }
    if (e->mask & IN_ATTRIB)
        tell(w, WATCH_EVENT_CHMOD, name);
    if (e->mask & IN_MODIFY)
        tell(w, WATCH_EVENT_WRITE, name);
    if (e->mask & (IN_DELETE | IN_DELETE_SELF))
        tell(w, WATCH_EVENT_REMOVE, name);
}

/*
 * Handle what is queued by now; what comes meanwhile has the next round. False if it was paused or ended before that.
 */
static bool read_round(struct dir_watch *w)
{
    _Alignas(struct inotify_event) char room[READ_BYTES];
    size_t left = pending(w);

    while (left > 0 && !is_over(w) && !w->is_paused) {
        ssize_t len = read(w->fd, room, sizeof room);
        if (len < 0 && errno == EINTR)
            continue;
        if (len <= 0)
            break;
        left -= MIN((size_t)len, left);
        for (char *at = room; at < room + len && !is_over(w);) {
            const struct inotify_event *e = (const struct inotify_event *)(void *)at;
            at += sizeof *e + e->len;
            on_record(w, e);
            shed(w->all);
        }
    }
    return !is_over(w) && left == 0;
}

/* A round is over. Says whether another has to follow. */
static bool settle(struct dir_watch *w)
{
    told_clear(w, &w->told_before);
    if (w->told.count > 0) {
        struct map empty = w->told_before;
        w->told_before = w->told;
        w->told = empty;
    }
    if (!w->has_just_moved)
        forget_moved(w);
    w->has_just_moved = false;
    return w->told_before.count > 0 || w->moved;
}

static void look_at(struct dir_watch *w)
{
    w->is_unsettled = true;
    for (int round = 0; round < ROUNDS && w->is_unsettled; round++)
        w->is_unsettled = read_round(w) && settle(w);
    w->all->is_unsettled |= w->is_unsettled;
}

/* Each watch at most once: a guest that makes more as we read would keep us here. */
static void look_at_ready(struct watchers *all)
{
    struct epoll_event ready[READY_MOST];
    size_t left = all->count;
    int count;

    do {
        count = epoll_wait(all->epoll_fd, ready, READY_MOST, 0);
        /* A watch that ends keeps its memory until the turn of the loop ends. */
        for (int i = 0; i < count; i++)
            look_at(ready[i].data.ptr);
        left -= MIN(left, (size_t)MAX(count, 0));
    } while (count == READY_MOST && left > 0);
}

static void on_again(struct timer *timer)
{
    watchers_look(container_of(timer, struct watchers, again));
}

void watchers_look(struct watchers *all)
{
    if (all->count == 0 || all->is_looking) /* looking: called again from inside a callback */
        return;
    all->is_looking = true;
    bool was_unsettled = all->is_unsettled;
    all->is_unsettled = false;
    if (was_unsettled) {
        for (struct dir_watch *w = all->first; w; w = w->next)
            if (w->is_unsettled)
                look_at(w);
    }
    look_at_ready(all);
    all->is_looking = false;
    if (all->is_unsettled)
        timer_set(&all->again, all->guest->loop, 0, on_again);
}

static void on_ready(void *context, unsigned ready)
{
    (void)ready;
    watchers_look(context);
}

/* ---- beginning and end ---- */

struct watchers *watchers_new(struct guest *guest)
{
    struct watchers *watchers = NEW(struct watchers);

    watchers->guest = guest;
    watchers->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (watchers->epoll_fd < 0)
        log_die("watch: epoll: %s", strerror(errno));
    watchers->watch = watch_new(guest->loop, watchers->epoll_fd, on_ready, watchers);
    watch_want(watchers->watch, WATCH_READ);
    return watchers;
}

void watchers_free(struct watchers *watchers)
{
    if (!watchers)
        return;
    while (watchers->first)
        dir_watch_free(watchers->first);
    timer_clear(&watchers->again);
    while (watchers->spare_count > 0)
        fd_close(&watchers->spare_fds[--watchers->spare_count]);
    watch_free(watchers->watch);
    fd_close(&watchers->epoll_fd);
    free(watchers);
}

static void dispose(void *object)
{
    struct dir_watch *w = object;

    free(w->places);
    map_done(&w->told);
    map_done(&w->told_before);
    free(w->moved);
    free(w->path);
    free(w);
}

void dir_watch_free(struct dir_watch *w)
{
    if (!w || w->is_freed)
        return;
    w->is_freed = true;
    stop(w);
    *(w->previous ? &w->previous->next : &w->all->first) = w->next;
    if (w->next)
        w->next->previous = w->previous;
    w->all->count--;
    loop_retire(w->all->guest->loop, w, dispose);
}

void dir_watch_stop(struct dir_watch *w)
{
    if (is_over(w))
        return;
    w->has_failed = true;
    stop(w);
}

void *dir_watch_owner(const struct dir_watch *w)
{
    return w->want.owner;
}

void dir_watch_set_id(struct dir_watch *w, const char *id)
{
    w->id = id;
}

struct dir_watch *dir_watch_next(const struct watchers *watchers, const struct dir_watch *after)
{
    struct dir_watch *w = after ? after->next : watchers->first;

    while (w && !w->id)
        w = w->next;
    return w;
}

struct dir_watch *dir_watch_by_id(struct watchers *watchers, struct str id)
{
    struct dir_watch *w = NULL;

    while ((w = dir_watch_next(watchers, w)))
        if (str_eq(str_from(w->id), id))
            break;
    return w;
}

void dir_watch_pause(struct dir_watch *w, bool pause)
{
    if (is_over(w) || w->is_paused == pause)
        return;
    w->is_paused = pause;
    if (w->is_suspended)
        return;
    struct epoll_event want = { .events = pause ? 0 : EPOLLIN, .data.ptr = w };
    (void)epoll_ctl(w->all->epoll_fd, EPOLL_CTL_MOD, w->fd, &want); /* cannot fail */
}

static bool open_instance(struct dir_watch *w, struct err *err)
{
    struct watchers *all = w->all;
    struct epoll_event want = { .events = w->is_paused ? 0 : EPOLLIN, .data.ptr = w };

    w->fd = all->spare_count ? all->spare_fds[--all->spare_count] : inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (w->fd < 0 && errno == EMFILE)
        return err_set(err, ERR_LIMIT, "the system's limit of watches is reached");
    if (w->fd < 0)
        return err_sys(err, "inotify");
    if (epoll_ctl(all->epoll_fd, EPOLL_CTL_ADD, w->fd, &want) < 0)
        return err_sys(err, "watch an inotify instance");
    return true;
}

struct dir_watch *dir_watch_new(struct watchers *watchers, const struct dir_watch_want *want, struct err *err)
{
    if (watchers->count >= LIMIT_WATCHERS) {
        (void)err_set(err, ERR_LIMIT, "more than %d watches", LIMIT_WATCHERS);
        return NULL;
    }
    struct dir_watch *w = NEW(struct dir_watch);
    w->all = watchers;
    w->fd = -1;
    w->want = *want;
    w->path = mem_copy_text(want->path);
    map_init(&w->told);
    map_init(&w->told_before);
    w->next = watchers->first;
    if (w->next)
        w->next->previous = w;
    watchers->first = w;
    watchers->count++;
    if (!open_instance(w, err) || !add_tree(w, "", false, err)) {
        dir_watch_free(w);
        return NULL;
    }
    return w;
}

/* ---- a pause of the sandbox ---- */

void watchers_suspend(struct watchers *watchers)
{
    struct err lost;

    (void)err_set(&lost, ERR_INTERNAL, WATCH_LOST);
    watchers_look(watchers);
    for (struct dir_watch *w = watchers->first, *next; w; w = next) {
        next = w->next;
        if (is_over(w) || w->is_suspended)
            continue;
        if (pending(w) > 0) {
            fail(w, &lost);
            continue;
        }
        leave_kernel(w);
        free(take_ptr(&w->moved));
        w->has_just_moved = false;
        w->is_suspended = true;
    }
}

void watchers_resume(struct watchers *watchers)
{
    struct err err;

    for (struct dir_watch *w = watchers->first, *next; w; w = next) {
        next = w->next;
        if (!w->is_suspended)
            continue;
        w->is_suspended = false;
        if (!open_instance(w, &err) || (!add_tree(w, "", false, &err) && !is_gone(&err)))
            fail(w, &err);
    }
}
