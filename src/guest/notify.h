/*
 * notify.h - one inotify instance that any number of readers share.
 *
 * The kernel counts instances (128 a user, by default) and gives one watch a directory and instance. So there is one
 * instance, a table of the directories under watch with those who listen to each, and a queue for each reader that
 * stands for the instance of its own it does not have: what it listens to, in the kernel's order, records that are the same
 * as the one before left out, an overflow of its own. Everybody listens for the same things, so there are no masks to unite.
 *
 * A directory goes by a number that is never used again. The kernel's may be, once it has said IN_IGNORED; and who joins a
 * directory that others listen to must not hear what happened there before. notify_join() therefore takes in what the
 * kernel has queued before it adds the newcomer.
 *
 * Overflow   A reader that lets LIMIT_WATCH_QUEUE records wait gets an IN_Q_OVERFLOW and nothing more. When all of them
 *            together hold too much, that is the one with the most. When the kernel itself has lost count it does not say
 *            whose records those were: every reader gets one, and the instance is made anew.
 * Ownership  A reader is embedded in whoever reads. A record is lent until the next one is asked for.
 */
#ifndef GUEST_NOTIFY_H
#define GUEST_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"

struct notify;

#define NOTIFY_LOST "watcher error: more changes at once than are kept"

struct notify_record {
    uint64_t dir; /* as notify_join() said */
    uint32_t mask, cookie;
    unsigned references; /* private: the queues it is in */
    char name[];         /* "": the directory itself */
};

struct notify_reader {
    /* private */
    struct notify *notify;
    struct notify_reader *next, *previous;
    struct notify_record **queue; /* a ring */
    size_t first, count, room;    /* room is a power of two or 0 */
    struct notify_record *lent;
    uint64_t taken;      /* records, the one lent included */
    bool has_overflowed; /* nothing is added any more… */
    bool is_told;        /* …and it knows */
};

/* `on_ready` is called when the kernel has something to tell. */
struct notify *notify_new(struct loop *loop, void (*on_ready)(void *context), void *context) must_use;
void notify_free(struct notify *notify); /* all readers have left */

void notify_attach(struct notify *notify, struct notify_reader *reader);
void notify_detach(struct notify_reader *reader); /* it has left all directories */

/*
 * Listen to a directory. Who does already gets the same number again. `follow`: it may be a link to one.
 * ERR_LIMIT when the kernel allows no more.
 */
bool notify_join(struct notify_reader *reader, const char *path, bool follow, uint64_t *out_dir, struct err *err)
    must_use;
/* No record of it that comes from now on is given. The others keep it. */
void notify_leave(struct notify_reader *reader, uint64_t dir);

/* How many bytes the kernel has queued right now. */
size_t notify_pending(const struct notify *notify);
/* Take some of them in and hand them out to the queues. Returns how many it was, 0 if there are none. */
size_t notify_take(struct notify *notify);
/* All that are there now. */
void notify_take_all(struct notify *notify);

size_t notify_waiting(const struct notify_reader *reader); /* records in its queue */
/*
 * Records of one reader are numbered: the one that is lent, and the last in its queue. Who leaves a directory that others
 * keep and then joins it again knows by that which records are from before.
 */
uint64_t notify_number(const struct notify_reader *reader);
uint64_t notify_last(const struct notify_reader *reader);
/* The next of them, or NULL. */
const struct notify_record *notify_next(struct notify_reader *reader) must_use;

#endif
