/*
 * watch.h - changes below a directory, by inotify.
 *
 * Recursive watches keep one inotify watch a directory. A directory that appears is watched at once and then looked
 * through: what was made in it before we watched is told as created, what is told twice that way is told once.
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
    /* Nothing more will come: the kernel has lost count of events, or the tree has outgrown a limit (ERR_LIMIT). */
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
/* Stop taking events from the kernel for a while; it keeps some 16,000. */
void dir_watch_pause(struct dir_watch *watch, bool pause);
void dir_watch_free(struct dir_watch *watch); /* NULL is fine; from callbacks too */

#endif
