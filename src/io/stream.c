/*
 * Theory of operation
 *
 * Writing goes to the kernel at once, from the caller's bytes; only what the kernel does not take is copied, to `out`.
 * After `out` there may be a file (`file_fd`), and after the file more bytes (`after`): the order of the calls is the
 * order on the wire. `blocked`: the kernel's buffer is full, and we wait until it takes more.
 *
 * Reading adapts: a stream starts with small reads, so that a thousand idle connections cost nothing, and a stream
 * whose reads come back full asks for more each time. `in` frees its memory when it is empty and the stream slow.
 *
 * With a filter (filter.h: TLS) the bytes take one more step on their way. In: read(2), feed(), read() into `in`. Out:
 * from `out` (or the file) by write() to the filter's own queue, and from there to the kernel; the next piece is taken
 * from `out` when that queue is empty, so it holds one piece at most. While the filter is being set up, writes wait in
 * `out` as they do for a connect(). A new stream may have an undecided filter: the first byte decides.
 *
 * A stream may be one end of a splice (splice.c): then readiness to read or to write is passed on to that.
 *
 * Callbacks come from the loop only, never from inside a stream_…() call: a write that fails is reported when the turn
 * ends.
 */
#include "io/stream.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/filter.h"
#include "io/splice.h"
#include "io/stream_inside.h"

enum {
    READ_LEAST = 4096,
    READ_MOST = 256 * 1024,
    READ_BULK = 64 * 1024,
    READ_LEAST_MOST = 16 * 1024,    /* progress of a slow sender must still show */
    TURN_READ_BYTES = 256 * 1024,   /* then the other streams have their turn */
    TURN_WRITE_BYTES = 1024 * 1024, /* sendfile to a fast reader would never end */
    FILE_PIECE_BYTES = 64 * 1024,   /* where sendfile cannot be used */
    QUEUE_MOST = 128 * 1024 * 1024, /* a source that ignores stream_is_full() is broken */
    PIECES_MOST = 6,
    RAW_READ_BYTES = 32 * 1024,     /* of one read for a filter: two records */
    FILTER_PIECE_BYTES = 64 * 1024, /* that a filter gets to write at once: four records in one system call */
};

bool stream_is_dead(const struct stream *s)
{
    return s->freed || s->fd < 0;
}

/* A worker has the filter, and changes all of it. Whoever ends that calls stream_filter_changed(). */
static bool is_held(const struct stream *s)
{
    return s->filter && s->filter->is_busy;
}

static void on_ready(void *context, unsigned ready);

void stream_watch(struct stream *s)
{
    unsigned want = 0;

    if (stream_is_dead(s))
        return;
    if (s->connecting) {
        want = WATCH_WRITE;
    } else {
        bool has_room = s->in_splice ? splice_takes(s->in_splice) : s->in.len < s->in.cap;
        if (s->reading && !s->ended && has_room && s->filter && !is_held(s) && s->filter->ops->holds(s->filter))
            stream_tell_later(s); /* the kernel does not know of what the filter holds */
        if (s->reading && !s->ended && has_room && !is_held(s))
            want |= WATCH_READ;
        else if (s->events->on_hangup && !s->ended && !s->hung_up)
            want |= WATCH_HANGUP;
        if (s->blocked && !is_held(s))
            want |= WATCH_WRITE;
    }
    if (!s->watch && want)
        s->watch = watch_new(s->loop, s->fd, on_ready, s);
    if (s->watch)
        watch_want(s->watch, want);
}

/* ---- ending ---- */

static void on_later(struct timer *timer);

void stream_tell_later(struct stream *s)
{
    if (!timer_is_set(&s->later))
        timer_set(&s->later, s->loop, 0, on_later);
}

void stream_tell_end(struct stream *s)
{
    struct err err;

    s->ended = true;
    if (!s->failed) {
        s->events->on_end(s, NULL);
        return;
    }
    if (s->told)
        return;
    s->told = true;
    if (s->error_number)
        (void)err_sys_num(&err, s->error_number, "%s", s->error_doing);
    else
        (void)err_set(&err, ERR_UNAVAILABLE, "%s", s->error_doing);
    s->events->on_end(s, &err);
}

void stream_break(struct stream *s, int number, const char *doing)
{
    if (s->failed)
        return;
    s->failed = true;
    s->error_number = number;
    s->error_doing = doing;
    s->blocked = false;
    buf_done(&s->out);
    buf_done(&s->after);
    fd_close(&s->file_fd);
    s->file_left = 0;
    if (s->filter && !is_held(s))
        buf_done(&s->filter->out);
    splice_end(s->out_splice);
}

void stream_fail(struct stream *s, int number, const char *doing)
{
    stream_break(s, number, doing);
    stream_tell_later(s);
}

/* ---- reading ---- */

static ssize_t send_pieces(struct stream *s, struct iovec *pieces, size_t count, bool more_follows)
{
    struct msghdr message = { .msg_iov = pieces, .msg_iovlen = count };
    ssize_t n;

    do
        n = s->is_socket ? sendmsg(s->fd, &message, MSG_NOSIGNAL | (more_follows ? MSG_MORE : 0))
                         : writev(s->fd, pieces, (int)count);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n < 0)
        return -1;
    s->bytes_out += (size_t)n;
    if (n > 0)
        s->progress_ms = loop_now_ms(s->loop);
    return n;
}

/* Sends what the filter has for the peer, as much as the kernel takes now. False if that failed. */
static bool send_filtered(struct stream *s)
{
    struct buf *out = &s->filter->out;

    while (out->len) {
        ssize_t n = send_pieces(s, &(struct iovec){ out->data, out->len }, 1, false);
        if (n < 0)
            return false;
        if (n == 0)
            return true;
        buf_drop(out, (size_t)n);
    }
    buf_done(out);
    return true;
}

static void fail_filtered(struct stream *s)
{
    (void)send_filtered(s); /* an alert that says why; if it does not fit, the close has to do */
    stream_break(s, 0, s->filter->why);
    stream_tell_end(s);
}

/* False when there is no more to read now, or the stream has ended. */
static bool read_raw(struct stream *s, bool *is_drained)
{
    char raw[RAW_READ_BYTES];
    /* A stream with little room in `in` also gets little here: what it does not take waits in the filter. */
    size_t want = MIN(MAX(s->read_size, s->in.cap - s->in.len), sizeof raw);
    ssize_t n;

    do
        n = read(s->fd, raw, want);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        stream_break(s, n < 0 ? errno : 0, n < 0 ? "read" : "the peer closed its connection without a close_notify");
        stream_tell_end(s);
        return false;
    }
    *is_drained = (size_t)n < want;
    if (!*is_drained)
        s->read_size = MIN(s->read_size * 4, (size_t)READ_MOST);
    s->filter->ops->feed(s->filter, str_of(raw, (size_t)n));
    return true;
}

static void read_filtered(struct stream *s)
{
    struct filter *filter = s->filter;
    bool is_drained = false;
    size_t total = 0;

    while (total < TURN_READ_BYTES && s->reading && !s->ended && !filter->is_busy && s->in.len < s->in.cap) {
        enum filter_read got = filter->has_failed ? FILTER_FAILED : FILTER_MORE;
        size_t want = MIN(s->in.cap - s->in.len, (size_t)RAW_READ_BYTES), n = 0;
        if (filter->is_open && !filter->has_failed) {
            char *room = buf_reserve(&s->in, want);
            assert(room);
            got = filter->ops->read(filter, room, want, &n);
        }
        if (got == FILTER_LATER)
            break;
        if (got == FILTER_END) {
            stream_tell_end(s);
            return;
        }
        if (got == FILTER_FAILED) {
            fail_filtered(s);
            return;
        }
        if (got == FILTER_MORE) {
            if (is_drained || !read_raw(s, &is_drained))
                break;
            continue;
        }
        buf_grew(&s->in, n);
        total += n;
        s->bytes_in += n;
        s->progress_ms = loop_now_ms(s->loop);
        s->events->on_input(s);
        if (stream_is_dead(s))
            return;
    }
    if (is_drained && total < READ_LEAST)
        s->read_size = READ_LEAST;
    if (stream_is_dead(s) || s->ended || filter->is_busy)
        return;
    if (filter->out.len && !s->blocked && !s->failed) {
        stream_flush(s); /* answers of the protocol's own */
    }
    if (s->in.len == 0 && s->read_size == READ_LEAST)
        buf_done(&s->in);
}

static void drop_filter(struct stream *s)
{
    struct filter *filter = take_ptr(&s->filter);

    if (filter) {
        filter->stream = NULL;
        filter->ops->free(filter);
    }
}

/* The first bytes are in `in`. True if they are the filter's now. */
static bool decide_filter(struct stream *s)
{
    struct filter *filter = s->filter;

    if (!filter->ops->is_first((unsigned char)s->in.data[0])) {
        drop_filter(s);
        return false;
    }
    filter->is_undecided = false;
    filter->ops->feed(filter, buf_str(&s->in));
    buf_done(&s->in);
    return true;
}

static void read_some(struct stream *s)
{
    size_t total = 0;
    bool is_drained = false;

    if (s->filter && !s->filter->is_undecided) {
        read_filtered(s);
        return;
    }
    while (!is_drained && total < TURN_READ_BYTES && s->reading && !s->ended && !s->in_splice &&
           s->in.len < s->in.cap) {
        size_t want = MIN(s->read_size, s->in.cap - s->in.len);
        char *room = buf_reserve(&s->in, want);
        assert(room);
        ssize_t n = read(s->fd, room, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            if (n < 0)
                stream_break(s, errno, "read");
            if (s->in.len == 0)
                buf_done(&s->in); /* the stream may be kept for long, to write to */
            stream_tell_end(s);
            return;
        }
        buf_grew(&s->in, (size_t)n);
        total += (size_t)n;
        s->bytes_in += (size_t)n;
        s->progress_ms = loop_now_ms(s->loop);
        if (s->filter && decide_filter(s)) {
            s->bytes_in = 0; /* from here on it counts what is inside */
            read_filtered(s);
            return;
        }
        is_drained = (size_t)n < want; /* another read would only get EAGAIN */
        if (!is_drained)
            s->read_size = MIN(s->read_size * 4, (size_t)READ_MOST);
        else if ((size_t)n < s->read_size / 4)
            s->read_size = MAX(s->read_size / 4, (size_t)READ_LEAST);
        s->events->on_input(s);
        if (stream_is_dead(s))
            return;
    }
    if (s->in.len == 0 && s->read_size == READ_LEAST)
        buf_done(&s->in);
}

void stream_read(struct stream *s, bool on)
{
    s->reading = on;
    stream_watch(s);
}

bool stream_is_broken(const struct stream *s)
{
    int number = 0;
    socklen_t len = sizeof number;

    return stream_is_dead(s) || s->failed ||
           (s->is_socket && (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &number, &len) < 0 || number != 0));
}

bool stream_is_bulk(const struct stream *s)
{
    return s->read_size >= READ_BULK;
}

void stream_is_slow(struct stream *s)
{
    s->read_size = READ_LEAST;
}

void stream_read_least(struct stream *s, size_t bytes)
{
    int least = (int)MIN(bytes, (size_t)READ_LEAST_MOST);

    if (stream_is_dead(s) || !s->is_socket || s->filter || s->read_least == (size_t)least)
        return;
    s->read_least = (size_t)least;
    (void)setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least); /* without it we only wake more often */
}

/* ---- writing ---- */

/* Some files (procfs, some network file systems) cannot be sent from the page cache. */
static bool copy_file_piece(struct stream *s)
{
    size_t want = (size_t)MIN(s->file_left, (uint64_t)FILE_PIECE_BYTES);
    char *room = buf_reserve(&s->out, want);
    ssize_t n;

    assert(room);
    do
        n = pread(s->file_fd, room, want, s->file_at);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        stream_fail(s, n < 0 ? errno : 0, n < 0 ? "read the file" : "the file became shorter while it was sent");
        return false;
    }
    buf_grew(&s->out, (size_t)n);
    s->file_at += n;
    s->file_left -= (uint64_t)n;
    return true;
}

/* False when there is no more to do now: the kernel has enough, or it failed. */
static bool send_file_piece(struct stream *s, size_t budget)
{
    size_t want = (size_t)MIN(s->file_left, (uint64_t)budget);
    ssize_t n;

    if (s->file_copied || s->filter)
        return copy_file_piece(s);
    do
        n = sendfile(s->fd, s->file_fd, &s->file_at, want);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n < 0 && (errno == EINVAL || errno == ENOSYS)) {
        s->file_copied = true;
        return copy_file_piece(s);
    }
    if (n <= 0) {
        stream_fail(s, n < 0 ? errno : 0, n < 0 ? "send the file" : "the file became shorter while it was sent");
        return false;
    }
    s->file_left -= (uint64_t)n;
    s->bytes_out += (size_t)n;
    s->progress_ms = loop_now_ms(s->loop);
    return true;
}

static void end_writing(struct stream *s)
{
    if (s->is_socket) {
        (void)shutdown(s->fd, SHUT_WR); /* ENOTCONN: the peer is gone, which reading reports */
        return;
    }
    /* A pipe has only the one side. */
    watch_free(take_ptr(&s->watch));
    fd_close(&s->fd);
}

/* Hand the kernel what is queued. Afterwards either all of it is out, or we are blocked, or it failed. */
void stream_flush(struct stream *s)
{
    uint64_t stop_at = s->bytes_out + TURN_WRITE_BYTES;

    assert(!is_held(s));
    s->blocked = true;
    while (s->bytes_out < stop_at) {
        if (s->filter && s->filter->out.len) {
            if (!send_filtered(s)) {
                stream_fail(s, errno, "write");
                return;
            }
            if (s->filter->out.len)
                return;
        } else if (s->filter && !s->filter->is_open) {
            s->blocked = false;
            return;
        } else if (s->out.len && s->filter) {
            struct str piece = str_of(s->out.data, MIN(s->out.len, (size_t)FILTER_PIECE_BYTES));
            s->filter->ops->write(s->filter, piece);
            if (s->filter->has_failed) {
                stream_fail(s, 0, s->filter->why);
                return;
            }
            buf_drop(&s->out, piece.len);
        } else if (s->out.len) {
            struct iovec piece = { s->out.data, s->out.len };
            ssize_t n = send_pieces(s, &piece, 1, s->file_fd >= 0);
            if (n < 0) {
                stream_fail(s, errno, "write");
                return;
            }
            buf_drop(&s->out, (size_t)n);
            if (s->out.len)
                return;
        } else if (s->file_fd >= 0 && s->file_left) {
            if (!send_file_piece(s, (size_t)(stop_at - s->bytes_out)))
                return;
        } else if (s->file_fd >= 0) {
            fd_close(&s->file_fd);
            buf_done(&s->out);
            s->out = s->after;
            s->after = buf_make(NULL, QUEUE_MOST);
        } else if (s->finishing && s->filter && !s->filter->has_finished) {
            s->filter->has_finished = true;
            s->filter->ops->finish(s->filter);
        } else {
            s->blocked = false;
            buf_done(&s->out);
            if (s->finishing)
                end_writing(s);
            return;
        }
    }
}

/* Writes have to wait: for the connection, for the filter, or for the peer. */
static bool is_waiting(const struct stream *s)
{
    return s->connecting || s->blocked || (s->filter && !s->filter->is_open);
}

/* An owner that writes before its peer has said anything speaks no protocol of a filter's. */
static void decide_by_writing(struct stream *s)
{
    if (s->filter && s->filter->is_undecided)
        drop_filter(s);
}

static void enqueue(struct stream *s, struct buf *queue, const struct str *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buf_add(queue, pieces[i]);
    if (queue->overflowed)
        stream_fail(s, 0, "more was queued for a slow peer than we keep");
}

void stream_write_many(struct stream *s, const struct str *pieces, size_t count)
{
    struct iovec vec[PIECES_MOST + 1];
    size_t used = 0;

    assert(count <= PIECES_MOST);
    if (stream_is_dead(s) || s->failed || s->finishing)
        return;
    decide_by_writing(s);
    if (s->file_fd >= 0) {
        enqueue(s, &s->after, pieces, count);
        return;
    }
    if (is_waiting(s) || s->filter) {
        enqueue(s, &s->out, pieces, count);
        if (!is_waiting(s) && !s->failed) {
            stream_flush(s);
            stream_watch(s);
        }
        return;
    }
    /* What stream_queue() left goes first. */
    if (s->out.len)
        vec[used++] = (struct iovec){ s->out.data, s->out.len };
    for (size_t i = 0; i < count; i++)
        if (pieces[i].len)
            vec[used++] = (struct iovec){ (void *)pieces[i].at, pieces[i].len };
    if (used == 0)
        return;
    ssize_t n = send_pieces(s, vec, used, false);
    if (n < 0) {
        stream_fail(s, errno, "write");
        return;
    }
    size_t sent = (size_t)n, from_queue = MIN(sent, s->out.len);
    buf_drop(&s->out, from_queue);
    sent -= from_queue;
    for (size_t i = 0; i < count; i++) {
        size_t gone = MIN(sent, pieces[i].len);
        sent -= gone;
        buf_add(&s->out, str_of(pieces[i].at + gone, pieces[i].len - gone));
    }
    if (s->out.overflowed) {
        stream_fail(s, 0, "more was queued for a slow peer than we keep");
    } else if (s->out.len) {
        s->blocked = true;
        stream_watch(s);
    } else {
        buf_done(&s->out);
    }
}

void stream_write(struct stream *s, struct str bytes)
{
    stream_write_many(s, &bytes, 1);
}

void stream_write_two(struct stream *s, struct str first, struct str second)
{
    stream_write_many(s, (struct str[]){ first, second }, 2);
}

void stream_queue(struct stream *s, struct str bytes)
{
    if (stream_is_dead(s) || s->failed || s->finishing)
        return;
    decide_by_writing(s);
    enqueue(s, s->file_fd >= 0 ? &s->after : &s->out, &bytes, 1);
    if (!is_waiting(s))
        stream_tell_later(s);
}

void stream_send_file(struct stream *s, int file_fd, off_t offset, uint64_t size)
{
    auto_close int file = file_fd;

    if (stream_is_dead(s) || s->failed || s->finishing || size == 0)
        return;
    decide_by_writing(s);
    assert(s->file_fd < 0); /* one at a time */
    s->file_fd = take_fd(&file);
    s->file_at = offset;
    s->file_left = size;
    s->file_copied = false;
    if (is_waiting(s))
        return;
    stream_flush(s);
    stream_watch(s);
}

size_t stream_queued(const struct stream *s)
{
    uint64_t file = MIN(s->file_left, (uint64_t)SIZE_MAX / 2);

    size_t filtered = s->filter && !is_held(s) ? s->filter->out.len : 0;

    return s->out.len + s->after.len + (size_t)file + splice_held(s->out_splice) + filtered;
}

bool stream_is_full(const struct stream *s)
{
    return stream_queued(s) > LIMIT_STREAM_BUFFER;
}

void stream_peer(const struct stream *s, struct sockaddr_storage *out)
{
    struct sockaddr_storage peer = { 0 };
    socklen_t size = sizeof peer;

    if (getpeername(s->fd, (struct sockaddr *)&peer, &size) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
        *out = peer;
}

bool stream_failed(const struct stream *s)
{
    return s->failed;
}

bool stream_is_tls(const struct stream *s)
{
    return s->filter && !s->filter->is_undecided;
}

const char *stream_protocol(const struct stream *s)
{
    return s->filter && s->filter->is_open ? s->filter->protocol : "";
}

void stream_finish(struct stream *s)
{
    if (stream_is_dead(s) || s->finishing)
        return;
    decide_by_writing(s);
    s->finishing = true;
    if (is_waiting(s) || s->failed)
        return;
    stream_flush(s);
    stream_watch(s);
}

void stream_reset_on_close(struct stream *s, bool on)
{
    const struct linger linger = { .l_onoff = on, .l_linger = 0 };

    if (!stream_is_dead(s) && s->is_socket)
        (void)setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

/* ---- what the loop calls ---- */

static void on_later(struct timer *timer)
{
    struct stream *s = container_of(timer, struct stream, later);

    if (!s->failed && !is_waiting(s) && s->out.len)
        stream_flush(s);
    if (!s->failed && s->filter && !s->filter->is_undecided && !s->filter->is_busy) {
        read_filtered(s);
        if (stream_is_dead(s))
            return;
    }
    /* The peer may have answered before it went: its last bytes are still there to be read, or being spliced. */
    if (s->failed && !s->in_splice) {
        timer_clear(&s->later);
        read_some(s); /* which may begin a splice */
        if (!stream_is_dead(s) && !s->in_splice)
            stream_tell_end(s);
    }
    stream_watch(s);
}

static bool connected(struct stream *s)
{
    int number = 0;
    socklen_t len = sizeof number;

    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &number, &len) < 0)
        number = errno;
    s->connecting = false;
    if (number == 0)
        return true;
    stream_break(s, number, "connect");
    stream_tell_end(s);
    return false;
}

static void on_ready(void *context, unsigned ready)
{
    struct stream *s = context;

    if (s->connecting && !connected(s)) {
        stream_watch(s);
        return;
    }
    if ((ready & WATCH_READ) && s->in_splice)
        splice_run(s->in_splice);
    else if (ready & WATCH_READ)
        read_some(s);
    if ((ready & WATCH_HANGUP) && !stream_is_dead(s) && !s->ended && !(ready & WATCH_READ)) {
        s->hung_up = true;
        if (s->events->on_hangup)
            s->events->on_hangup(s);
    }
    /* Reading may have given the filter to a worker just now. */
    if ((ready & WATCH_WRITE) && !stream_is_dead(s) && !s->failed && !is_held(s)) {
        stream_flush(s);
        if (!stream_is_dead(s) && !s->blocked && !s->failed && s->out_splice)
            splice_run(s->out_splice);
        else if (!stream_is_dead(s) && !is_waiting(s) && !s->failed && s->events->on_drained)
            s->events->on_drained(s);
    }
    stream_watch(s);
}

/* ---- beginning and end ---- */

struct stream *stream_new(struct loop *loop, int fd, size_t in_cap, const struct stream_events *events, void *owner)
{
    struct stream *s = NEW(struct stream);
    struct stat stat;
    struct err err;

    if (!fd_set_nonblocking(fd, true, &err) || fstat(fd, &stat) < 0)
        log_die("stream: %d is not an open descriptor", fd);
    s->loop = loop;
    s->fd = fd;
    s->is_socket = S_ISSOCK(stat.st_mode);
    s->in = buf_make(NULL, in_cap);
    s->out = buf_make(NULL, QUEUE_MOST);
    s->after = buf_make(NULL, QUEUE_MOST);
    s->file_fd = -1;
    s->read_size = READ_LEAST;
    s->read_least = 1;
    s->events = events;
    s->owner = owner;
    s->progress_ms = loop_now_ms(loop);
    return s;
}

struct stream *stream_new_connecting(struct loop *loop, int fd, size_t in_cap, const struct stream_events *events,
                                     void *owner)
{
    struct stream *s = stream_new(loop, fd, in_cap, events, owner);

    s->connecting = true;
    stream_watch(s);
    return s;
}

void stream_set_filter(struct stream *s, struct filter *filter)
{
    assert(!s->filter && !s->bytes_in && !s->bytes_out);
    s->filter = filter;
    filter->stream = s;
    filter->out = buf_make(NULL, QUEUE_MOST);
}

void stream_filter_changed(struct stream *s)
{
    if (stream_is_dead(s) || s->failed)
        return;
    s->progress_ms = loop_now_ms(s->loop);
    if (is_held(s)) { /* one step has ended and the next one has begun */
        stream_watch(s);
        return;
    }
    if (s->filter->has_failed) {
        fail_filtered(s);
        return;
    }
    if (!s->connecting && !s->blocked)
        stream_flush(s);
    stream_watch(s);
    if (!s->filter->is_open || s->failed)
        return;
    stream_tell_later(s); /* bytes may have come with the last of the set-up */
    if (!s->connecting && !s->blocked && s->events->on_drained)
        s->events->on_drained(s); /* writes have waited for this */
}

static void let_go(struct stream *s)
{
    splice_end(s->in_splice);
    splice_end(s->out_splice);
    timer_clear(&s->later);
    watch_free(take_ptr(&s->watch));
    fd_close(&s->file_fd);
    s->file_left = 0;
    drop_filter(s);
}

/*
 * The peer is to see a reset when the socket is closed. A pipe has none. In a sandbox SO_LINGER has no effect
 * (isolation/native/seccomp.c), and to disconnect does the same; front may not call connect(), and need not.
 */
static void reset(int fd)
{
    struct linger linger = { .l_onoff = 1, .l_linger = 0 };
    socklen_t len = sizeof linger;

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && !linger.l_onoff)
        (void)connect(fd, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr));
}

void stream_abort(struct stream *s)
{
    if (stream_is_dead(s))
        return;
    let_go(s);
    reset(s->fd);
    fd_close(&s->fd);
    s->ended = s->failed = s->told = true;
    s->blocked = false;
}

static void dispose(void *object)
{
    struct stream *s = object;

    buf_done(&s->in);
    buf_done(&s->out);
    buf_done(&s->after);
    free(s);
}

void stream_free(struct stream *s)
{
    if (!s || s->freed)
        return;
    /* As with a socket that is closed: nothing is missing, so the peer sees an orderly end. */
    if (s->fd >= 0 && s->filter && s->filter->is_open && !s->filter->is_busy && !s->failed && !s->finishing &&
        stream_queued(s) == 0) {
        s->filter->ops->finish(s->filter);
        (void)send_filtered(s);
    }
    let_go(s);
    fd_close(&s->fd);
    s->freed = true;
    loop_retire(s->loop, s, dispose);
}
