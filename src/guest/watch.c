#include "guest/watch.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"

enum {
    MASK = IN_CREATE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_MOVED_FROM | IN_MOVE_SELF | IN_ATTRIB,
    READ_BYTES = 8192,
};

/* One directory under watch. */
struct place {
    int wd;
    char *name; /* relative to the root; "" for the root itself */
};

/* A name that was told as created because a new directory held it already: the kernel may be about to tell it, too. */
struct told {
    int wd;
    char *name;
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
    struct told *told;
    size_t told_count, told_room;
    char *moved; /* a directory that has left its place and may turn up at another */
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

static void join(char room[PATH_MAX], const char *a, const char *b)
{
    (void)snprintf(room, PATH_MAX, "%s%s%s", a, *a && *b && a[strlen(a) - 1] != '/' ? "/" : "", b);
}

static bool add_place(struct dir_watch *w, const char *name, int *out_wd, struct err *err)
{
    char path[PATH_MAX];

    if (w->place_count >= LIMIT_WATCH_DIRS)
        return err_set(err, ERR_LIMIT, "more than %d directories to watch", LIMIT_WATCH_DIRS);
    join(path, w->path, name);
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
        free(known->name);
        known->name = mem_copy_text(name);
        return true;
    }
    if (w->place_count == w->place_room) {
        w->place_room = w->place_room ? 2 * w->place_room : 8;
        w->places = mem_grow(w->places, w->place_room * sizeof *w->places);
    }
    size_t i = place_index(w, wd);
    memmove(&w->places[i + 1], &w->places[i], (w->place_count - i) * sizeof *w->places);
    w->places[i] = (struct place){ .wd = wd, .name = mem_copy_text(name) };
    w->place_count++;
    return true;
}

/* ---- telling ---- */

static void tell(struct dir_watch *w, enum watch_event_type type, const char *name)
{
    char path[PATH_MAX];

    if (w->is_freed || w->has_failed)
        return;
    join(path, w->path, name);
    w->want.on_event(w, type, *name ? name : ".", path);
}

static void fail(struct dir_watch *w, const struct err *err)
{
    if (w->is_freed || w->has_failed)
        return;
    w->has_failed = true;
    watch_free(take_ptr(&w->watch));
    fd_close(&w->fd);
    w->want.on_failed(w, err);
}

static void note_told(struct dir_watch *w, int wd, const char *name)
{
    if (w->told_count == w->told_room) {
        w->told_room = w->told_room ? 2 * w->told_room : 16;
        w->told = mem_grow(w->told, w->told_room * sizeof *w->told);
    }
    w->told[w->told_count++] = (struct told){ .wd = wd, .name = mem_copy_text(name) };
}

static bool was_told(const struct dir_watch *w, int wd, const char *name)
{
    for (size_t i = 0; i < w->told_count; i++)
        if (w->told[i].wd == wd && strcmp(w->told[i].name, name) == 0)
            return true;
    return false;
}

static void forget_told(struct dir_watch *w)
{
    for (size_t i = 0; i < w->told_count; i++)
        free(w->told[i].name);
    free(take_ptr(&w->told));
    w->told_count = w->told_room = 0;
}

/* Watch this directory and all below. What is in them is told as created if they are new to the watch. */
static bool add_tree(struct dir_watch *w, const char *name, bool is_new, struct err *err)
{
    char path[PATH_MAX], child[PATH_MAX];
    struct dirent *dirent;
    int wd;

    if (!add_place(w, name, &wd, err))
        return false;
    if (!w->want.is_recursive)
        return true;
    join(path, w->path, name);
    DIR *dir = opendir(path);
    bool ok = true;
    while (dir && ok && !w->is_freed && (dirent = readdir(dir))) {
        if (strcmp(dirent->d_name, ".") == 0 || strcmp(dirent->d_name, "..") == 0)
            continue;
        join(child, name, dirent->d_name);
        if (is_new) {
            note_told(w, wd, dirent->d_name);
            tell(w, WATCH_EVENT_CREATE, child);
        }
        struct stat st;
        char child_path[PATH_MAX];
        join(child_path, w->path, child);
        if (lstat(child_path, &st) == 0 && S_ISDIR(st.st_mode))
            ok = add_tree(w, child, is_new, err) || err->kind == ERR_NOT_FOUND; /* gone meanwhile: fine */
    }
    if (dir)
        (void)closedir(dir);
    return ok;
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
    char renamed[PATH_MAX];

    for (size_t i = 0; i < w->place_count; i++) {
        struct place *place = &w->places[i];
        if (!*place->name || !is_in(place->name, w->moved))
            continue;
        (void)snprintf(renamed, sizeof renamed, "%s%s", name, place->name + strlen(w->moved));
        free(place->name);
        place->name = mem_copy_text(renamed);
    }
    free(take_ptr(&w->moved));
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
    if (!add_tree(w, name, (e->mask & IN_CREATE) != 0, &err) && err.kind != ERR_NOT_FOUND)
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
    join(name, place->name, is_self ? "" : e->name);
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
