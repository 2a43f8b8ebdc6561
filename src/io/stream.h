/*
 * stream.h - a socket or pipe on a loop, with buffers on both sides and backpressure in between.
 *
 *   reading   While there is room in `in`, what arrives is appended there and on_input() is called. The owner consumes
 *             with buf_drop(&s->in, n). When `in` is full, or reading is off, nothing more is read and the peer waits.
 *             An owner that consumes outside on_input() calls stream_read(s, true) afterwards.
 *   writing   stream_write() sends what the kernel takes at once and queues the rest. stream_is_full() asks the source
 *             to wait; on_drained() says when to go on (queue empty again). A source that does not wait is cut off at
 *             128 MiB: the stream fails.
 *   ending    on_end() is called once, when the peer has closed its side, or with an error; `in` may still hold bytes.
 *             A second call follows only if a write fails after an orderly end. Nothing is called after stream_free()
 *             or stream_abort(), and nothing from inside a call of the owner's.
 *   splicing  splice.h lets the kernel hand on what comes in here to another stream's peer.
 *   TLS       tls.h puts TLS between a stream and its socket. Owners see no difference, except stream_protocol(). An end
 *             of the peer's without close_notify is an error, because a part could be taken for the whole.
 *
 * Ownership  The stream owns the descriptor. The owner frees the stream; from inside a callback too (it is retired).
 *            To hand a stream on, set `events` and `owner`; the new owner handles what is in `in`.
 * Signals    The program ignores SIGPIPE: only then do pipes and sendfile(2) report a closed peer by errno.
 */
#ifndef IO_STREAM_H
#define IO_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "io/loop.h"

struct stream;
struct filter;

struct stream_events {
    void (*on_input)(struct stream *stream);   /* there is more in stream->in than before */
    void (*on_drained)(struct stream *stream); /* all queued bytes are with the kernel; may be NULL */
    /* err is NULL for an orderly end of the peer's side: writing still works. */
    void (*on_end)(struct stream *stream, const struct err *err);
    /*
     * The peer has closed its side, or vanished, while we were not reading (`in` is full, or reading is off): there may
     * be bytes left. At most once; on_end() still follows if the rest is read. May be NULL.
     */
    void (*on_hangup)(struct stream *stream);
    /* A splice out of this stream is complete: all of it is with the kernel. NULL if there are none. */
    void (*on_spliced)(struct stream *stream);
};

struct stream {
    struct loop *loop;
    struct buf in;
    void *owner;
    const struct stream_events *events;
    uint64_t bytes_in, bytes_out; /* ever */
    uint64_t progress_ms;         /* loop time of the last byte in or out, for idle limits */
    /* private */
    int fd;
    struct watch *watch;
    struct filter *filter; /* TLS, or NULL */
    struct buf out;
    int file_fd; /* being sent after `out`, or -1 */
    off_t file_at;
    uint64_t file_left;
    struct buf after;                      /* to be sent after the file */
    size_t read_size;                      /* of the next read */
    size_t read_least;                     /* see stream_read_least() */
    struct splice *in_splice, *out_splice; /* takes what comes in here; brings what goes out here */
    struct timer later;
    int error_number;
    const char *error_doing;
    bool is_socket, reading, connecting, blocked, finishing, file_copied;
    bool hung_up, ended, failed, told, freed;
};

/* Takes the descriptor (made non-blocking). Reading starts off; in_cap bounds `in`. */
struct stream *stream_new(struct loop *loop, int fd, size_t in_cap, const struct stream_events *events, void *owner)
    must_use;
/* The same for a socket whose connect() is under way: writes are queued until then, failure is reported by on_end(). */
struct stream *stream_new_connecting(struct loop *loop, int fd, size_t in_cap, const struct stream_events *events,
                                     void *owner) must_use;

void stream_read(struct stream *stream, bool on);
/*
 * Wake us only when so many bytes have come, or when the peer ends; 1: for any byte. Must not be more than the peer has
 * announced, or we wait for ever. Has no effect with TLS.
 */
void stream_read_least(struct stream *stream, size_t bytes);
void stream_write(struct stream *stream, struct str bytes);
void stream_write_two(struct stream *stream, struct str first, struct str second);     /* one system call when it can */
void stream_write_many(struct stream *stream, const struct str *pieces, size_t count); /* the same, up to six */
/* Goes out with the next write, or when the turn ends. */
void stream_queue(struct stream *stream, struct str bytes);
/*
 * After all queued bytes: so many bytes of a file, without copying them through us. Takes the descriptor. One at a
 * time. A file that turns out shorter fails the stream.
 */
void stream_send_file(struct stream *stream, int file_fd, off_t offset, uint64_t size);
size_t stream_queued(const struct stream *stream); /* bytes not yet with the kernel, file included */
bool stream_is_full(const struct stream *stream);  /* more than LIMIT_STREAM_BUFFER queued */
/* An internet address at the other end; untouched if it has none. */
void stream_peer(const struct stream *stream, struct sockaddr_storage *out);
/* The connection has failed or was reset, and a write or read would say so. For owners that do neither now. */
bool stream_is_broken(const struct stream *stream);
bool stream_is_bulk(const struct stream *stream); /* the last reads came back full: splice_bulk() may be worth it */
bool stream_failed(const struct stream *stream);  /* a write failed: nothing more will get out */
/* What TLS has negotiated (ALPN): "h2", "http/1.1", or "" for nothing or no TLS. Known when the first byte is in `in`. */
const char *stream_protocol(const struct stream *stream);
bool stream_is_tls(const struct stream *stream);

/*
 * Whether the peer is to see a reset when the socket is closed, by whatever means: so a process that is killed cannot
 * make a cut transfer look complete. stream_abort() resets anyway.
 */
void stream_reset_on_close(struct stream *stream, bool on);
/* No more writes from us once the queue is out. The peer sees an orderly end. */
void stream_finish(struct stream *stream);
/*
 * Close at once, by a TCP reset, so that the peer cannot take it for an orderly end. The owner still calls
 * stream_free().
 */
void stream_abort(struct stream *stream);
void stream_free(struct stream *stream); /* closes; NULL is fine */

#endif
