/*
 * err.h - why something did not work, on the caller's stack.
 *
 * What can fail returns bool (or a pointer), is marked must_use, and fills a struct err. Nothing to allocate, nothing
 * to free; it crosses between our processes as it is.
 *
 *   err_set   a fact for the caller: the message is one sentence that may be shown to a client
 *   err_sys   a system call failed: errno is kept, the kind follows from it
 *   err_wrap  what we were doing: goes to the trail, which only our own log shows
 *
 * All three return false, so that `return err_set(…)` is enough. Code that fails does not log. Code that decides what
 * to do about the failure logs it, once.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <errno.h>
#include <stdbool.h>

#include "base/attr.h"

/* What the caller can do about it. Tables in api/, guest/ and cli/ turn these into statuses and exit codes. */
enum err_kind {
    ERR_NONE = 0,
    ERR_INVALID,     /* ask differently */
    ERR_DENIED,      /* you may not */
    ERR_NOT_FOUND,   /* there is no such thing */
    ERR_CONFLICT,    /* not in the state it is in now */
    ERR_LIMIT,       /* too much, too many, too large */
    ERR_TIMEOUT,     /* it took too long */
    ERR_UNAVAILABLE, /* not now; perhaps later */
    ERR_INTERNAL,    /* our fault */
    ERR_FULL,        /* no room on disk. Kinds are numbers on guestlink, so new ones come last */
    ERR_KIND_COUNT,
};

struct err {
    enum err_kind kind;
    int sys;           /* errno, or 0 */
    char message[160]; /* one sentence that may be shown to a client */
    char trail[352];   /* how we got here, for our own log */
};

extern const char *const err_kind_name[ERR_KIND_COUNT];

void err_note(struct err *err, enum err_kind kind, const char *format, ...) printf_like(3, 4);
void err_note_sys(struct err *err, int number, const char *format, ...) printf_like(3, 4);
void err_note_asker(struct err *err, const char *format, ...) printf_like(2, 3);

/* Macros, so that the compiler sees `false` and does not warn of unset outputs after a failure. */
#define err_set(err, kind, ...)               \
    ({                                        \
        err_note((err), (kind), __VA_ARGS__); \
        false;                                \
    })
#define err_sys(err, ...) err_sys_num((err), errno, __VA_ARGS__)
/* The same, with the error number as an argument instead of in errno. */
#define err_sys_num(err, number, ...)               \
    ({                                              \
        err_note_sys((err), (number), __VA_ARGS__); \
        false;                                      \
    })
#define err_wrap(err, ...)                  \
    ({                                      \
        err_note_asker((err), __VA_ARGS__); \
        false;                              \
    })

/* "trail: message", for a log line. Points into a buffer of the calling thread. */
const char *err_text(const struct err *err);

#endif
