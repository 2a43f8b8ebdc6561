/*
 * filter.h - a protocol between a stream and its socket. There is one: TLS (tls.h).
 *
 * stream.c knows a filter by this table only, so that programs without TLS (guestd) do not link OpenSSL.
 *
 *   undecided  The stream has read nothing yet. A first byte that is not the filter's makes the stream plain for good.
 *   setting up Not `is_open` yet: what the peer sends goes to feed(), what the owner writes waits in the stream's queue.
 *              While `is_busy` a worker has the filter, and the stream touches nothing of it.
 *   open       read() and write() turn the peer's bytes into the owner's and back.
 *
 * Ownership  The stream owns its filter from stream_set_filter() on, and lets go of it by free().
 * Threads    The loop's; what a filter does on a worker meanwhile is its own business (`is_busy`).
 */
#ifndef IO_FILTER_H
#define IO_FILTER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/str.h"
#include "io/stream.h"

struct filter;

enum filter_read {
    FILTER_DATA,   /* *out_n bytes */
    FILTER_MORE,   /* nothing, until feed() brings more */
    FILTER_LATER,  /* nothing yet, and there is more to look at: go on in the next turn */
    FILTER_END,    /* the peer has ended its side in order */
    FILTER_FAILED, /* `why` says how; there may be a last message to the peer in `out` */
};

struct filter_ops {
    bool (*is_first)(unsigned char first_byte); /* does this byte begin the protocol? */
    void (*feed)(struct filter *filter, struct str bytes);
    enum filter_read (*read)(struct filter *filter, char *room, size_t size, size_t *out_n);
    bool (*holds)(const struct filter *filter);             /* read() has something to do without another feed() */
    void (*write)(struct filter *filter, struct str bytes); /* appends to `out` */
    void (*finish)(struct filter *filter);                  /* appends to `out` what says that no more follows */
    void (*free)(struct filter *filter);                    /* from the loop, in a callback too */
};

enum { FILTER_WHY_BYTES = 120, FILTER_PROTOCOL_BYTES = 16 };

struct filter {
    const struct filter_ops *ops;
    struct stream *stream;                /* NULL once it was let go */
    struct buf out;                       /* for the peer, as it goes over the wire */
    char why[FILTER_WHY_BYTES];           /* after a failure */
    char protocol[FILTER_PROTOCOL_BYTES]; /* what both sides agreed to speak inside, or "" */
    bool is_undecided, is_busy, is_open, has_failed, has_finished;
};

/* Before the stream has read or written anything. */
void stream_set_filter(struct stream *stream, struct filter *filter);
/* What the filter calls, from the loop, when something has changed outside of the stream's own calls. */
void stream_filter_changed(struct stream *stream);

#endif
