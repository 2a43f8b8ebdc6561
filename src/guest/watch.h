/*
 * watch.h - changes below a directory, by inotify.
 *
 * A recursive watch also watches every directory below. A directory that appears is watched at once and then read:
 * entries that were made in it before are reported as created, each entry once.
 *
 * watchers_look() handles what the kernel has queued right now. It runs before every request, so that a directory that
 * a client has made is watched by the time the client writes into it, and before events are fetched.
 */
#ifndef GUEST_WATCH_H
#define GUEST_WATCH_H

#include "guest/guest.h"

struct dir_watch;

#define WATCH_LOST "watcher error: more changes at once than are kept"

enum watch_event_type {
    WATCH_EVENT_CREATE = 1, /* numbered as in the API */
    WATCH_EVENT_WRITE,
    WATCH_EVENT_REMOVE,
    WATCH_EVENT_RENAME,
    WATCH_EVENT_CHMOD,
};

struct dir_watch_want {
    const char *path; /* an absolute path of a directory */
    bool is_recursive;
    /*
     * `name` is relative to the watched directory, "." for itself; `path` is absolute. Both are gone when it returns.
     */
    void (*on_event)(struct dir_watch *watch, enum watch_event_type type, const char *name, const char *path);
    /* The watch has ended: too many changes at once, or the tree has outgrown a limit (ERR_LIMIT). */
    void (*on_failed)(struct dir_watch *watch, const struct err *err);
    void *owner;
};

struct watchers *watchers_new(struct guest *guest) must_use;
void watchers_free(struct watchers *watchers);
void watchers_look(struct watchers *watchers);
/*
 * Before the sandbox is paused: reports what the kernel has queued and takes all watches out of the kernel, because they
 * cannot be written to disk. Afterwards each directory is watched again. What changes in between is not reported; a slow
 * client whose watch has more than that queued gets WATCH_LOST.
 */
void watchers_suspend(struct watchers *watchers);
void watchers_resume(struct watchers *watchers);

/* ERR_LIMIT when there are too many watches, directories or open files, or a path is longer than the kernel takes. */
struct dir_watch *dir_watch_new(struct watchers *watchers, const struct dir_watch_want *want, struct err *err) must_use;
void *dir_watch_owner(const struct dir_watch *watch);
/* A name to find it by. The text stays the caller's. */
void dir_watch_set_id(struct dir_watch *watch, const char *id);
struct dir_watch *dir_watch_by_id(struct watchers *watchers, struct str id); /* NULL if there is none */
/* The next one that has an id; the first after NULL. */
struct dir_watch *dir_watch_next(const struct watchers *watchers, const struct dir_watch *after);
/* Report nothing for a while, after the records at hand. The kernel keeps 16,384 records meanwhile. */
void dir_watch_pause(struct dir_watch *watch, bool pause);
/* Report nothing more, and free all but the watch itself. */
void dir_watch_stop(struct dir_watch *watch);
void dir_watch_free(struct dir_watch *watch); /* NULL is fine; from callbacks too */

#endif
