#include "guest/notify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"

enum {
    MASK = IN_CREATE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_MOVED_FROM | IN_MOVE_SELF | IN_ATTRIB,
    READ_BYTES = 8192, /* some 250 records, each of which goes to everybody who listens */
    FIRST_ROOM = 16,
    KEPT_ROOM = 64, /* of an empty queue */
};

/* One directory under watch. */
struct dir {
    int wd;      /* the kernel's */
    uint64_t id; /* ours */
    struct notify_reader **listeners;
    size_t count, room;
};

struct notify {
    struct loop *loop;
    void (*on_ready)(void *context);
    void *context;
    int fd; /* -1: nobody has asked for one yet */
    struct watch *watch;
    /* Without listeners it stays in by_wd until the kernel's IN_IGNORED: what was queued before is for nobody. */
    struct map by_wd, by_id;
    uint64_t last_id;
    struct notify_reader *first;
    size_t held_bytes; /* of all queues and what is in them */
    /* What overflow looks like in a queue; the kernel's has no directory either. */
    struct notify_record *overflow;
};

/* ---- queues ---- */

static size_t size_of(const struct notify_record *record)
{
    return sizeof *record + strlen(record->name) + 1;
}

static void record_unref(struct notify *n, struct notify_record *record)
{
    if (!record || --record->references > 0)
        return;
    n->held_bytes -= size_of(record);
    free(record);
}

static struct notify_record *record_new(struct notify *n, uint64_t dir, uint32_t mask, uint32_t cookie,
                                        const char *name)
{
    size_t len = strlen(name);
    struct notify_record *record = mem_new(sizeof *record + len + 1);

    *record = (struct notify_record){ .dir = dir, .mask = mask, .cookie = cookie, .references = 1 };
    memcpy(record->name, name, len + 1);
    n->held_bytes += size_of(record);
    return record;
}

static struct notify_record **slot(const struct notify_reader *r, size_t i)
{
    return &r->queue[(r->first + i) & (r->room - 1)];
}

static void queue_shrink(struct notify_reader *r)
{
    if (r->count > 0 || r->room <= KEPT_ROOM)
        return;
    free(take_ptr(&r->queue));
    r->room = r->first = 0;
}

static void queue_clear(struct notify_reader *r)
{
    for (size_t i = 0; i < r->count; i++)
        record_unref(r->notify, *slot(r, i));
    r->notify->held_bytes -= r->count * sizeof *r->queue;
    r->count = 0;
    queue_shrink(r);
}

static void queue_grow(struct notify_reader *r)
{
    size_t room = r->room ? 2 * r->room : FIRST_ROOM;
    struct notify_record **queue = mem_new(room * sizeof *queue);

    for (size_t i = 0; i < r->count; i++)
        queue[i] = *slot(r, i);
    free(r->queue);
    r->queue = queue;
    r->first = 0;
    r->room = room;
}

/* The one for whom most is kept loses it, and is told. */
static void make_room(struct notify *n)
{
    struct notify_reader *most = NULL;

    for (struct notify_reader *r = n->first; r; r = r->next)
        if (!most || r->count > most->count)
            most = r;
    if (!most)
        return;
    queue_clear(most);
    most->has_overflowed = true;
}

/* As the kernel does in an instance's queue. */
static bool is_same(const struct notify_record *a, const struct notify_record *b)
{
    return !(a->mask & IN_IGNORED) && a->dir == b->dir && a->mask == b->mask && strcmp(a->name, b->name) == 0;
}

static void queue_add(struct notify_reader *r, struct notify_record *record)
{
    if (r->has_overflowed || (r->count > 0 && is_same(*slot(r, r->count - 1), record)))
        return;
    if (r->count >= LIMIT_WATCH_QUEUE) {
        r->has_overflowed = true;
        return;
    }
    if (r->count == r->room)
        queue_grow(r);
    *slot(r, r->count++) = record;
    record->references++;
    r->notify->held_bytes += sizeof *r->queue;
    if (r->notify->held_bytes > LIMIT_WATCH_QUEUE_BYTES)
        make_room(r->notify);
}

size_t notify_waiting(const struct notify_reader *r)
{
    return r->count + (r->has_overflowed && !r->is_told);
}

uint64_t notify_number(const struct notify_reader *r)
{
    return r->taken;
}

uint64_t notify_last(const struct notify_reader *r)
{
    return r->taken + r->count;
}

const struct notify_record *notify_next(struct notify_reader *r)
{
    record_unref(r->notify, take_ptr(&r->lent));
    if (r->count == 0) {
        if (!r->has_overflowed || r->is_told)
            return NULL;
        r->is_told = true;
        r->lent = r->notify->overflow;
        r->lent->references++;
        return r->lent;
    }
    r->lent = *slot(r, 0);
    r->first = (r->first + 1) & (r->room - 1);
    r->count--;
    r->taken++;
    r->notify->held_bytes -= sizeof *r->queue;
    queue_shrink(r);
    return r->lent;
}

/* ---- the table ---- */

static struct str wd_key(const int *wd)
{
    return str_of(wd, sizeof *wd);
}

static struct str id_key(const uint64_t *id)
{
    return str_of(id, sizeof *id);
}

static void dir_free(struct dir *dir)
{
    free(dir->listeners);
    free(dir);
}

static struct dir *dir_new(struct notify *n, int wd)
{
    struct dir *dir = NEW(struct dir);

    dir->wd = wd;
    dir->id = ++n->last_id;
    struct dir *before = map_put(&n->by_wd, wd_key(&dir->wd), dir);
    if (before)
        dir_free(before); /* nobody's */
    (void)map_put(&n->by_id, id_key(&dir->id), dir);
    return dir;
}

static void dir_add(struct dir *dir, struct notify_reader *r)
{
    for (size_t i = 0; i < dir->count; i++)
        if (dir->listeners[i] == r)
            return;
    if (dir->count == dir->room) {
        dir->room = dir->room ? 2 * dir->room : 1;
        dir->listeners = mem_grow(dir->listeners, dir->room * sizeof(struct notify_reader *));
    }
    dir->listeners[dir->count++] = r;
}

static void dir_remove(struct dir *dir, const struct notify_reader *r)
{
    for (size_t i = 0; i < dir->count; i++) {
        if (dir->listeners[i] != r)
            continue;
        dir->listeners[i] = dir->listeners[--dir->count];
        return;
    }
}

void notify_leave(struct notify_reader *r, uint64_t id)
{
    struct notify *n = r->notify;
    struct dir *dir = map_get(&n->by_id, id_key(&id));

    if (!dir)
        return; /* the kernel has let go of it first, or lost count */
    dir_remove(dir, r);
    if (dir->count > 0)
        return;
    (void)map_remove(&n->by_id, id_key(&dir->id));
    /* It may have gone by itself: then its IN_IGNORED is queued already. */
    (void)inotify_rm_watch(n->fd, dir->wd);
}

/* ---- the instance ---- */

static void on_readable(void *context, unsigned ready)
{
    struct notify *n = context;

    (void)ready;
    n->on_ready(n->context);
}

static bool notify_open(struct notify *n, struct err *err)
{
    if (n->fd >= 0)
        return true;
    n->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (n->fd < 0 && errno == EMFILE)
        return err_set(err, ERR_LIMIT, "the system's limit of watches is reached");
    if (n->fd < 0)
        return err_sys(err, "inotify");
    n->watch = watch_new(n->loop, n->fd, on_readable, n);
    watch_want(n->watch, WATCH_READ);
    return true;
}

static void notify_close(struct notify *n)
{
    struct dir *dir;

    watch_free(take_ptr(&n->watch));
    fd_close(&n->fd);
    for (size_t i = 0; (dir = map_next(&n->by_wd, &i));)
        dir_free(dir);
    map_done(&n->by_wd);
    map_done(&n->by_id);
    map_init(&n->by_wd);
    map_init(&n->by_id);
}

/*
 * Records are lost, an IN_IGNORED perhaps among them, and with it the meaning of a number. All that is known of the
 * instance goes with it; whoever comes next has a new one.
 */
static void lost_count(struct notify *n)
{
    for (struct notify_reader *r = n->first; r; r = r->next)
        r->has_overflowed = true;
    notify_close(n);
}

static void hand_out(struct notify *n, const struct inotify_event *e)
{
    struct dir *dir = map_get(&n->by_wd, wd_key(&e->wd));

    if (!dir)
        return;
    if (dir->count > 0) {
        struct notify_record *record = record_new(n, dir->id, e->mask, e->cookie, e->len ? e->name : "");
        for (size_t i = 0; i < dir->count; i++)
            queue_add(dir->listeners[i], record);
        record_unref(n, record);
    }
    if (!(e->mask & IN_IGNORED))
        return;
    (void)map_remove(&n->by_wd, wd_key(&dir->wd));
    (void)map_remove(&n->by_id, id_key(&dir->id));
    dir_free(dir);
}

size_t notify_pending(const struct notify *n)
{
    int bytes = 0;

    return n->fd >= 0 && ioctl(n->fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

size_t notify_take(struct notify *n)
{
    _Alignas(struct inotify_event) char room[READ_BYTES];
    ssize_t len;

    if (n->fd < 0)
        return 0;
    do
        len = read(n->fd, room, sizeof room);
    while (len < 0 && errno == EINTR);
    if (len <= 0) {
        if (len < 0 && errno != EAGAIN)
            lost_count(n);
        return 0;
    }
    for (char *at = room; at < room + len;) {
        const struct inotify_event *e = (const struct inotify_event *)(void *)at;
        at += sizeof *e + e->len;
        if (e->mask & IN_Q_OVERFLOW) {
            lost_count(n);
            return 0;
        }
        hand_out(n, e);
    }
    return (size_t)len;
}

void notify_take_all(struct notify *n)
{
    size_t left = notify_pending(n);

    /* No longer than that: who makes more as we read would keep us here. */
    while (left > 0) {
        size_t len = notify_take(n);
        if (len == 0)
            return;
        left -= MIN(len, left);
    }
}

static int watch_dir(const struct notify *n, const char *path, bool follow, struct err *err)
{
    int wd = inotify_add_watch(n->fd, path, MASK | IN_ONLYDIR | (follow ? 0 : IN_DONT_FOLLOW));

    if (wd < 0 && errno == ENOSPC)
        (void)err_set(err, ERR_LIMIT, "the system's limit of watched directories is reached");
    else if (wd < 0)
        (void)err_sys(err, "watch %.80s", path);
    return wd;
}

bool notify_join(struct notify_reader *r, const char *path, bool follow, uint64_t *out_dir, struct err *err)
{
    struct notify *n = r->notify;

    if (!notify_open(n, err))
        return false;
    int fd = n->fd;
    int wd = watch_dir(n, path, follow, err);
    if (wd < 0)
        return false;
    if (map_get(&n->by_wd, wd_key(&wd))) {
        notify_take_all(n);
        if (n->fd != fd)
            return err_set(err, ERR_INTERNAL, NOTIFY_LOST);
        /* Let go of meanwhile: by the one who had the number before, or by this one, which has gone. Asking again tells. */
        if (!map_get(&n->by_wd, wd_key(&wd)) && (wd = watch_dir(n, path, follow, err)) < 0)
            return false;
    }
    struct dir *dir = map_get(&n->by_wd, wd_key(&wd));
    if (!dir || dir->count == 0)
        dir = dir_new(n, wd);
    dir_add(dir, r);
    *out_dir = dir->id;
    return true;
}

/* ---- beginning and end ---- */

struct notify *notify_new(struct loop *loop, void (*on_ready)(void *context), void *context)
{
    struct notify *n = NEW(struct notify);

    n->loop = loop;
    n->on_ready = on_ready;
    n->context = context;
    n->fd = -1;
    map_init(&n->by_wd);
    map_init(&n->by_id);
    n->overflow = record_new(n, 0, IN_Q_OVERFLOW, 0, "");
    return n;
}

void notify_free(struct notify *n)
{
    if (!n)
        return;
    notify_close(n);
    record_unref(n, n->overflow);
    map_done(&n->by_wd);
    map_done(&n->by_id);
    free(n);
}

void notify_attach(struct notify *n, struct notify_reader *r)
{
    *r = (struct notify_reader){ .notify = n, .next = n->first };
    if (r->next)
        r->next->previous = r;
    n->first = r;
}

void notify_detach(struct notify_reader *r)
{
    struct notify *n = r->notify;

    record_unref(n, take_ptr(&r->lent));
    queue_clear(r);
    free(take_ptr(&r->queue));
    *(r->previous ? &r->previous->next : &n->first) = r->next;
    if (r->next)
        r->next->previous = r->previous;
}
