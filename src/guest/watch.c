/*
 * The guest chooses how deep a tree is and what is in it. A tree is therefore looked through from a list of directories
 * that are still to be read, with one of them open at a time and paths in one buffer; a path that does not fit ends the
 * watch with a reason, because one that was cut would name something else.
 *
 * All share one inotify instance (notify.h), and each has a queue of its own there. A look goes in rounds: take in what
 * the kernel has, then let each watch go through its queue. What a walk has told, and a directory that has left its place,
 * are kept until the end of the next round, by when all that the kernel had queued has been seen.
 */
#include "guest/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "guest/notify.h"

enum {
    ROUNDS = 8,                     /* of one look; who keeps making directories has the rest looked at a turn later */
    TOLD_BYTES = 21 + NAME_MAX + 1, /* "dir/name" */
    TOLD_SLOT_BYTES = 64,           /* what else a name costs that was told */
};

/* One directory under watch. */
struct place {
    uint64_t dir;   /* for notify */
    uint64_t since; /* the last record that is older than this */
    unsigned walk;  /* the last one that came by */
    char *name;     /* relative to the root; "" for the root itself */
};

struct dir_watch {
    struct watchers *all;
    struct dir_watch *next, *previous;
    struct dir_watch_want want;
    char *path;
    const char *id; /* NULL: none */
    struct notify_reader reader;
    bool is_attached, is_busy; /* busy: a record of the reader's is at hand */
    bool is_paused, is_freed, has_failed;
    struct place *places; /* by dir, which counts upwards */
    size_t place_count, place_room;
    unsigned walk; /* counts the calls of add_tree() */
    /* Names told as created because a new directory held them already: the kernel may be about to tell them, too. */
    struct map told, told_before; /* in this round and in the one before: "dir/name" to itself, ours */
    char *moved;                  /* a directory that has left its place and may turn up at another */
    bool has_just_moved;          /* in this round */
    uint32_t moved_cookie;
};

struct watchers {
    struct guest *guest;
    struct notify *notify;
    struct dir_watch *first;
    size_t count;
    size_t place_bytes, told_bytes; /* of all of them */
    bool is_looking, is_unsettled;
    struct timer again;
};

/* ---- places ---- */

static size_t place_index(const struct dir_watch *w, uint64_t dir)
{
    size_t low = 0, high = w->place_count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->places[middle].dir < dir)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct place *place_of(const struct dir_watch *w, uint64_t dir)
{
    size_t i = place_index(w, dir);

    return i < w->place_count && w->places[i].dir == dir ? &w->places[i] : NULL;
}

/* What it costs us; what one and the same directory costs the kernel is shared. */
static size_t place_bytes(const char *name)
{
    return sizeof(struct place) + strlen(name) + 1;
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

/* The kernel has let go of it, or we have left it. */
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

/* It has gone, or become something else, since it was seen: nothing to watch, and no failure. */
static bool is_gone(const struct err *err)
{
    return err->sys == ENOENT || err->sys == ENOTDIR || err->sys == ELOOP;
}

/* `out_is_unread` says whether it has yet to be looked through: it is new, or stands where it did not stand before. */
static bool add_place(struct dir_watch *w, const char *name, const char *path, uint64_t *out_dir, bool *out_is_unread,
                      struct err *err)
{
    uint64_t dir;

    if (w->place_count >= LIMIT_WATCH_DIRS)
        return err_set(err, ERR_LIMIT, "more than %d directories to watch", LIMIT_WATCH_DIRS);
    if (w->all->place_bytes + place_bytes(name) > LIMIT_WATCH_PLACE_BYTES)
        return err_set(err, ERR_LIMIT, "all watches together have too many directories to watch");
    /* The root may be a link; below it links are not followed. */
    if (!notify_join(&w->reader, path, !*name, &dir, err))
        return false;
    *out_dir = dir;
    struct place *known = place_of(w, dir);
    if (known) {
        /* A directory that is mounted below itself has no end: the first of its names is as good as any. */
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
    size_t i = place_index(w, dir);
    memmove(&w->places[i + 1], &w->places[i], (w->place_count - i) * sizeof *w->places);
    w->places[i] = (struct place){ .dir = dir, .since = notify_last(&w->reader), .walk = w->walk };
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

/* Nothing more is wanted. The record at hand stays until it has been dealt with. */
static void stop(struct dir_watch *w)
{
    while (w->place_count > 0) {
        struct place *last = &w->places[w->place_count - 1];
        notify_leave(&w->reader, last->dir);
        drop_place(w, last);
    }
    told_clear(w, &w->told);
    told_clear(w, &w->told_before);
    if (w->is_busy || !w->is_attached)
        return;
    notify_detach(&w->reader);
    w->is_attached = false;
}

/* ---- telling ---- */

static void fail(struct dir_watch *w, const struct err *err)
{
    if (w->is_freed || w->has_failed)
        return;
    w->has_failed = true;
    stop(w);
    w->want.on_failed(w, err);
}

static void tell(struct dir_watch *w, enum watch_event_type type, const char *name)
{
    char path[PATH_MAX];
    struct err err;

    if (w->is_freed || w->has_failed)
        return;
    if (join(path, w->path, name, &err))
        w->want.on_event(w, type, *name ? name : ".", path);
    else
        fail(w, &err);
}

static bool note_told(struct dir_watch *w, uint64_t dir, const char *name, struct err *err)
{
    char key[TOLD_BYTES];

    (void)snprintf(key, sizeof key, "%" PRIu64 "/%s", dir, name);
    if (w->all->told_bytes + told_cost(key) > LIMIT_WATCH_TOLD_BYTES)
        return err_set(err, ERR_LIMIT, "watcher error: more was made at once in new directories than can be told");
    char *kept = mem_copy_text(key), *before = map_put(&w->told, str_from(kept), kept);
    w->all->told_bytes += before ? 0 : told_cost(key);
    free(before);
    return true;
}

static bool was_told(const struct dir_watch *w, uint64_t dir, const char *name)
{
    char key[TOLD_BYTES];

    if (w->told.count == 0 && w->told_before.count == 0)
        return false;
    (void)snprintf(key, sizeof key, "%" PRIu64 "/%s", dir, name);
    return map_get(&w->told, str_from(key)) || map_get(&w->told_before, str_from(key));
}

/* ---- whole trees ---- */

/* A walk under way. */
struct walk {
    bool is_new;      /* what is found is told as created */
    uint64_t *unread; /* dirs; the last is next */
    size_t count, room;
    char path[PATH_MAX]; /* of the directory or the entry at hand */
};

static bool walk_enter(struct dir_watch *w, struct walk *walk, const char *name, struct err *err)
{
    bool is_unread;
    uint64_t dir;

    if (!join(walk->path, w->path, name, err) || !add_place(w, name, walk->path, &dir, &is_unread, err))
        return false;
    if (!w->want.is_recursive || !is_unread)
        return true;
    if (walk->count == walk->room) {
        walk->room = walk->room ? 2 * walk->room : 16;
        walk->unread = mem_grow(walk->unread, walk->room * sizeof *walk->unread);
    }
    walk->unread[walk->count++] = dir;
    return true;
}

static bool walk_entry(struct dir_watch *w, struct walk *walk, uint64_t id, const struct dirent *dirent,
                       struct err *err)
{
    char name[PATH_MAX];
    struct stat st;

    if (!join(name, place_of(w, id)->name, dirent->d_name, err))
        return false;
    if (walk->is_new) {
        if (!note_told(w, id, dirent->d_name, err))
            return false;
        tell(w, WATCH_EVENT_CREATE, name);
        if (w->is_freed || w->has_failed)
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

static bool walk_read(struct dir_watch *w, struct walk *walk, uint64_t id, struct err *err)
{
    const char *name = place_of(w, id)->name;
    struct dirent *dirent;
    bool fine = true;

    /* The kernel's queue is everybody's, and must not fill up while this takes its time. */
    notify_take_all(w->all->notify);
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
            fine = walk_entry(w, walk, id, dirent, err);
    (void)closedir(dir);
    return fine;
}

/* Watch this directory and all below. What is in them is told as created if they are new to the watch. */
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

/* It did not turn up again: no longer ours to watch. */
static void forget_moved(struct dir_watch *w)
{
    if (!w->moved)
        return;
    for (size_t i = w->place_count; i-- > 0;) {
        if (!*w->places[i].name || !is_in(w->places[i].name, w->moved))
            continue;
        notify_leave(&w->reader, w->places[i].dir);
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

/* ---- what the kernel says ---- */

static void on_created(struct dir_watch *w, const struct notify_record *e, const char *name)
{
    struct err err;

    if (!was_told(w, e->dir, e->name))
        tell(w, WATCH_EVENT_CREATE, name);
    if (!w->want.is_recursive || !(e->mask & IN_ISDIR) || w->is_freed || w->has_failed)
        return;
    if (w->moved && (e->mask & IN_MOVED_TO) && e->cookie == w->moved_cookie) {
        moved_to(w, name);
        return;
    }
    if (!add_tree(w, name, (e->mask & IN_CREATE) != 0, &err) && !is_gone(&err))
        fail(w, &err);
}

static void on_record(struct dir_watch *w, const struct notify_record *e)
{
    struct place *place = place_of(w, e->dir);
    char name[PATH_MAX];
    struct err err;

    if (e->mask & IN_Q_OVERFLOW) {
        (void)err_set(&err, ERR_INTERNAL, NOTIFY_LOST);
        fail(w, &err);
        return;
    }
    if (!place || notify_number(&w->reader) <= place->since)
        return;
    if (e->mask & IN_IGNORED) {
        drop_place(w, place);
        return;
    }
    bool is_self = !*e->name;
    /* Of a directory inside, its parent tells the same. */
    if (is_self && *place->name)
        return;
    if (!join(name, place->name, e->name, &err)) {
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

/* Go through what is in its queue by now; what comes meanwhile has the next round. */
static void drain(struct dir_watch *w)
{
    if (!w->is_attached)
        return;
    const struct notify_record *e;
    size_t due = notify_waiting(&w->reader);
    w->is_busy = true;
    while (due-- > 0 && !w->is_freed && !w->has_failed && !w->is_paused && (e = notify_next(&w->reader)))
        on_record(w, e);
    w->is_busy = false;
    if (w->is_freed || w->has_failed)
        stop(w);
}

/* The round is over. Says whether another has to follow. */
static bool settle(struct dir_watch *w)
{
    if (w->is_freed || w->has_failed)
        return false;
    if (notify_waiting(&w->reader) > 0)
        return !w->is_paused;
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

/* One that goes leaves its `next` behind: its memory stays until the turn of the loop ends. */
static void look_once(struct watchers *watchers)
{
    size_t left = notify_pending(watchers->notify);

    if (left == 0 && !watchers->is_unsettled)
        return;
    do {
        size_t len = notify_take(watchers->notify);
        left -= len ? MIN(len, left) : left;
        for (struct dir_watch *w = watchers->first; w; w = w->next)
            drain(w);
    } while (left > 0);
    watchers->is_unsettled = false;
    for (struct dir_watch *w = watchers->first; w; w = w->next)
        watchers->is_unsettled |= settle(w);
}

static void on_again(struct timer *timer)
{
    watchers_look(container_of(timer, struct watchers, again));
}

static void look_again(struct watchers *watchers)
{
    watchers->is_unsettled = true;
    timer_set(&watchers->again, watchers->guest->loop, 0, on_again);
}

void watchers_look(struct watchers *watchers)
{
    if (watchers->is_looking)
        return; /* a client that was told something asks the next thing */
    watchers->is_looking = true;
    for (int round = 0; round == 0 || (round < ROUNDS && watchers->is_unsettled); round++)
        look_once(watchers);
    watchers->is_looking = false;
    if (watchers->is_unsettled)
        look_again(watchers);
}

static void on_ready(void *context)
{
    watchers_look(context);
}

/* ---- beginning and end ---- */

struct watchers *watchers_new(struct guest *guest)
{
    struct watchers *watchers = NEW(struct watchers);

    watchers->guest = guest;
    watchers->notify = notify_new(guest->loop, on_ready, watchers);
    return watchers;
}

void watchers_free(struct watchers *watchers)
{
    if (!watchers)
        return;
    while (watchers->first)
        dir_watch_free(watchers->first);
    timer_clear(&watchers->again);
    notify_free(watchers->notify);
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
    if (w->is_freed || w->has_failed)
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
    if (w->is_freed || w->has_failed || w->is_paused == pause)
        return;
    w->is_paused = pause;
    if (!pause && notify_waiting(&w->reader) > 0)
        look_again(w->all);
}

struct dir_watch *dir_watch_new(struct watchers *watchers, const struct dir_watch_want *want, struct err *err)
{
    if (watchers->count >= LIMIT_WATCHERS) {
        (void)err_set(err, ERR_LIMIT, "more than %d watches", LIMIT_WATCHERS);
        return NULL;
    }
    struct dir_watch *w = NEW(struct dir_watch);
    w->all = watchers;
    w->want = *want;
    w->path = mem_copy_text(want->path);
    map_init(&w->told);
    map_init(&w->told_before);
    notify_attach(watchers->notify, &w->reader);
    w->is_attached = true;
    w->next = watchers->first;
    if (w->next)
        w->next->previous = w;
    watchers->first = w;
    watchers->count++;
    look_again(watchers); /* that may take in what the others are to hear */
    if (!add_tree(w, "", false, err)) {
        dir_watch_free(w);
        return NULL;
    }
    return w;
}
