/*
 * The guest chooses how deep a tree is and what is in it. A tree is therefore looked through from a list of directories
 * that are still to be read, with one of them open at a time and paths in one buffer; a path that does not fit ends the
 * watch with a reason, because one that was cut would name something else.
 */
#include "guest/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

enum {
    MASK = IN_CREATE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_MOVED_FROM | IN_MOVE_SELF | IN_ATTRIB,
    READ_BYTES = 8192,
    TOLD_BYTES = 12 + NAME_MAX + 1, /* "wd/name" */
};

/* One directory under watch. */
struct place {
    int wd;
    unsigned walk; /* the last one that came by */
    char *name;    /* relative to the root; "" for the root itself */
};

struct dir_watch {
    struct watchers *all;
    struct dir_watch *next, *previous;
    struct dir_watch_want want;
    char *path;
    const char *id; /* NULL: none */
    int fd;
    struct watch *watch;
    bool is_paused, is_freed, has_failed;
    struct place *places; /* by wd, which the kernel counts upwards */
    size_t place_count, place_room;
    unsigned walk; /* counts the calls of add_tree() */
    /* Names told as created because a new directory held them already: the kernel may be about to tell them, too. */
    struct map told; /* "wd/name" to itself, ours */
    char *moved;     /* a directory that has left its place and may turn up at another */
    uint32_t moved_cookie;
};

struct watchers {
    struct guest *guest;
    struct dir_watch *first;
    size_t count;
};

struct watchers *watchers_new(struct guest *guest)
{
    struct watchers *watchers = NEW(struct watchers);

    watchers->guest = guest;
    return watchers;
}

void watchers_free(struct watchers *watchers)
{
    if (!watchers)
        return;
    while (watchers->first)
        dir_watch_free(watchers->first);
    free(watchers);
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

static void drop_place(struct dir_watch *w, struct place *place)
{
    size_t i = (size_t)(place - w->places);

    free(place->name);
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
static bool add_place(struct dir_watch *w, const char *name, const char *path, int *out_wd, bool *out_is_unread,
                      struct err *err)
{
    if (w->place_count >= LIMIT_WATCH_DIRS)
        return err_set(err, ERR_LIMIT, "more than %d directories to watch", LIMIT_WATCH_DIRS);
    /* The root may be a link; below it links are not followed. */
    int wd = inotify_add_watch(w->fd, path, MASK | IN_ONLYDIR | (*name ? IN_DONT_FOLLOW : 0));
    if (wd < 0) {
        if (errno == ENOSPC)
            return err_set(err, ERR_LIMIT, "the system's limit of watched directories is reached");
        return err_sys(err, "watch %.80s", path);
    }
    *out_wd = wd;
    struct place *known = place_of(w, wd);
    if (known) {
        /* A directory that is mounted below itself has no end: the first of its names is as good as any. */
        *out_is_unread = known->walk != w->walk && strcmp(known->name, name) != 0;
        if (*out_is_unread) {
            free(known->name);
            known->name = mem_copy_text(name);
            known->walk = w->walk;
        }
        return true;
    }
    *out_is_unread = true;
    if (w->place_count == w->place_room) {
        w->place_room = w->place_room ? 2 * w->place_room : 8;
        w->places = mem_grow(w->places, w->place_room * sizeof *w->places);
    }
    size_t i = place_index(w, wd);
    memmove(&w->places[i + 1], &w->places[i], (w->place_count - i) * sizeof *w->places);
    w->places[i] = (struct place){ .wd = wd, .walk = w->walk, .name = mem_copy_text(name) };
    w->place_count++;
    return true;
}

/* ---- telling ---- */

static void fail(struct dir_watch *w, const struct err *err)
{
    if (w->is_freed || w->has_failed)
        return;
    w->has_failed = true;
    watch_free(take_ptr(&w->watch));
    fd_close(&w->fd);
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

static void note_told(struct dir_watch *w, int wd, const char *name)
{
    char key[TOLD_BYTES];

    (void)snprintf(key, sizeof key, "%d/%s", wd, name);
    char *kept = mem_copy_text(key);
    free(map_put(&w->told, str_from(kept), kept));
}

static bool was_told(const struct dir_watch *w, int wd, const char *name)
{
    char key[TOLD_BYTES];

    if (w->told.count == 0)
        return false;
    (void)snprintf(key, sizeof key, "%d/%s", wd, name);
    return map_get(&w->told, str_from(key)) != NULL;
}

static void forget_told(struct dir_watch *w)
{
    char *key;

    if (w->told.count == 0)
        return;
    for (size_t i = 0; (key = map_next(&w->told, &i));)
        free(key);
    map_done(&w->told);
    map_init(&w->told);
}

/* ---- whole trees ---- */

/* A walk under way. */
struct walk {
    bool is_new; /* what is found is told as created */
    int *unread; /* wds; the last is next */
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
        note_told(w, wd, dirent->d_name);
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

static bool walk_read(struct dir_watch *w, struct walk *walk, int wd, struct err *err)
{
    const char *name = place_of(w, wd)->name;
    struct dirent *dirent;
    bool fine = true;

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
        (void)inotify_rm_watch(w->fd, w->places[i].wd);
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
        free(place->name);
        place->name = mem_copy_text(renamed);
    }
}

/* ---- what the kernel says ---- */

static void on_created(struct dir_watch *w, const struct inotify_event *e, const char *name)
{
    struct err err;

    if (!was_told(w, e->wd, e->name))
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

static void on_record(struct dir_watch *w, const struct inotify_event *e)
{
    struct place *place = place_of(w, e->wd);
    char name[PATH_MAX];
    struct err err;

    if (e->mask & IN_Q_OVERFLOW) {
        (void)err_set(&err, ERR_INTERNAL, "watcher error: more changes at once than the kernel keeps");
        fail(w, &err);
        return;
    }
    if (!place)
        return;
    if (e->mask & IN_IGNORED) {
        drop_place(w, place);
        return;
    }
    bool is_self = e->len == 0;
    /* Of a directory inside, its parent tells the same. */
    if (is_self && *place->name)
        return;
    if (!join(name, place->name, is_self ? "" : e->name, &err)) {
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
    }
    if (e->mask & IN_ATTRIB)
        tell(w, WATCH_EVENT_CHMOD, name);
    if (e->mask & IN_MODIFY)
        tell(w, WATCH_EVENT_WRITE, name);
    if (e->mask & (IN_DELETE | IN_DELETE_SELF))
        tell(w, WATCH_EVENT_REMOVE, name);
}

static void look(struct dir_watch *w)
{
    _Alignas(struct inotify_event) char room[READ_BYTES];

    while (!w->is_freed && !w->has_failed && !w->is_paused) {
        ssize_t n = read(w->fd, room, sizeof room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        for (char *at = room; at < room + n && !w->is_freed && !w->has_failed;) {
            const struct inotify_event *e = (const struct inotify_event *)(void *)at;
            at += sizeof *e + e->len;
            on_record(w, e);
        }
    }
    if (w->is_freed || w->has_failed)
        return;
    forget_told(w);
    forget_moved(w);
}

static void on_ready(void *context, unsigned ready)
{
    (void)ready;
    look(context);
}

void watchers_look(struct watchers *watchers)
{
    for (struct dir_watch *w = watchers->first, *next; w; w = next) {
        next = w->next;
        look(w);
    }
}

/* ---- beginning and end ---- */

static void dispose(void *object)
{
    struct dir_watch *w = object;

    for (size_t i = 0; i < w->place_count; i++)
        free(w->places[i].name);
    free(w->places);
    forget_told(w);
    map_done(&w->told);
    free(w->moved);
    free(w->path);
    free(w);
}

void dir_watch_free(struct dir_watch *w)
{
    if (!w || w->is_freed)
        return;
    w->is_freed = true;
    watch_free(take_ptr(&w->watch));
    fd_close(&w->fd);
    *(w->previous ? &w->previous->next : &w->all->first) = w->next;
    if (w->next)
        w->next->previous = w->previous;
    w->all->count--;
    loop_retire(w->all->guest->loop, w, dispose);
}

void *dir_watch_owner(const struct dir_watch *w)
{
    return w->want.owner;
}

void dir_watch_set_id(struct dir_watch *w, const char *id)
{
    w->id = id;
}

struct dir_watch *dir_watch_by_id(struct watchers *watchers, struct str id)
{
    for (struct dir_watch *w = watchers->first; w; w = w->next)
        if (w->id && str_eq(str_from(w->id), id))
            return w;
    return NULL;
}

void dir_watch_pause(struct dir_watch *w, bool pause)
{
    if (w->is_freed || w->has_failed)
        return;
    w->is_paused = pause;
    watch_want(w->watch, pause ? 0 : WATCH_READ);
}

struct dir_watch *dir_watch_new(struct watchers *watchers, const struct dir_watch_want *want, struct err *err)
{
    if (watchers->count >= LIMIT_WATCHERS) {
        (void)err_set(err, ERR_LIMIT, "more than %d watches", LIMIT_WATCHERS);
        return NULL;
    }
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd < 0) {
        (void)(errno == EMFILE ? err_set(err, ERR_LIMIT, "the system's limit of watches is reached")
                               : err_sys(err, "inotify"));
        return NULL;
    }
    struct dir_watch *w = NEW(struct dir_watch);
    w->all = watchers;
    w->want = *want;
    w->path = mem_copy_text(want->path);
    w->fd = fd;
    map_init(&w->told);
    w->next = watchers->first;
    if (w->next)
        w->next->previous = w;
    watchers->first = w;
    watchers->count++;
    if (!add_tree(w, "", false, err)) {
        dir_watch_free(w);
        return NULL;
    }
    w->watch = watch_new(watchers->guest->loop, fd, on_ready, w);
    watch_want(w->watch, WATCH_READ);
    return w;
}
