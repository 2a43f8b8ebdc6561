/*
 * watch.h - changes below a directory, by inotify.
 *
 * All watches share one inotify instance (notify.h); a recursive one listens to each directory. A directory that appears
 * is listened to at once and then looked through: what was made in it before is told as created, what is told twice that
 * way is told once.
 *
 * watchers_look() takes in what the kernel has to tell right now. It runs before every request, so that a client who has
 * made a directory finds it watched by the time it writes into it, and before events are fetched.
 */
#ifndef GUEST_WATCH_H
#define GUEST_WATCH_H

#include "guest/guest.h"

struct dir_watch;

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
    /* Nothing more will come: more has happened at once than is kept, or the tree has outgrown a limit (ERR_LIMIT). */
    void (*on_failed)(struct dir_watch *watch, const struct err *err);
    void *owner;
};

struct watchers *watchers_new(struct guest *guest) must_use;
void watchers_free(struct watchers *watchers);
void watchers_look(struct watchers *watchers);

/* ERR_LIMIT when there are too many watches, directories or open files, or a path is longer than the kernel takes. */
struct dir_watch *dir_watch_new(struct watchers *watchers, const struct dir_watch_want *want, struct err *err) must_use;
void *dir_watch_owner(const struct dir_watch *watch);
/* A name to find it by. The text stays the caller's. */
void dir_watch_set_id(struct dir_watch *watch, const char *id);
struct dir_watch *dir_watch_by_id(struct watchers *watchers, struct str id); /* NULL if there is none */
/* The next one that has an id; the first after NULL. */
struct dir_watch *dir_watch_next(const struct watchers *watchers, const struct dir_watch *after);
/* Tell nothing for a while; LIMIT_WATCH_QUEUE records are kept. */
void dir_watch_pause(struct dir_watch *watch, bool pause);
/* The owner has had enough: nothing more is told, and it costs next to nothing until it is freed. */
void dir_watch_stop(struct dir_watch *watch);
void dir_watch_free(struct dir_watch *watch); /* NULL is fine; from callbacks too */

#endif
