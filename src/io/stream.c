/*
 * Theory of operation
 *
 * Writing goes to the kernel at once, from the caller's own bytes; only what the kernel refused is copied, to `out`.
 * Behind `out` there may be a file (`file_fd`), and behind the file more bytes (`after`): the order of the calls is the
 * order on the wire. `blocked` says that the kernel has had enough and that we wait until it takes more.
 *
 * Reading adapts: a stream starts with small reads, so that a thousand idle connections cost nothing, and a stream whose
 * reads come back full asks for more each time. `in` gives its memory back whenever it is empty and the stream slow.
 *
 * Pouring goes through a pipe, which holds references to the kernel's own pages. It is emptied before more is taken, so
 * bytes wait there only while the taker is `blocked`, and that is when the giver is not read.
 *
 * Callbacks come from the loop only, never from inside a stream_…() call: a write that fails is told when the turn ends.
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

enum {
    READ_LEAST = 4096,
    READ_MOST = 256 * 1024,
    READ_LEAST_MOST = 16 * 1024,    /* who sends slowly shall be seen to send */
    TURN_READ_BYTES = 256 * 1024,   /* then the other streams have their turn */
    TURN_WRITE_BYTES = 1024 * 1024, /* sendfile to a fast reader would never end */
    FILE_PIECE_BYTES = 64 * 1024,   /* where sendfile cannot be used */
    QUEUE_MOST = 128 * 1024 * 1024, /* a source that never asks whether we are full is broken */
    PIECES_MOST = 6,
    POUR_BYTES = 64 * 1024, /* what a pipe holds; in larger steps both ends would wait for each other longer */
    TURN_POURS = 16,        /* pipes full. The giver chooses whether one holds 64 KiB or 16 single bytes */
};

struct pour {
    struct stream *from, *to;
    int pipe_fds[2];
    size_t held; /* in the pipe */
};

static bool is_dead(const struct stream *s)
{
    return s->freed || s->fd < 0;
}

static void on_ready(void *context, unsigned ready);

static void watch_update(struct stream *s)
{
    unsigned want = 0;

    if (is_dead(s))
        return;
    if (s->connecting) {
        want = WATCH_WRITE;
    } else {
        bool has_room = s->pouring ? !s->pouring->to->blocked : s->in.len < s->in.cap;
        if (s->reading && !s->ended && has_room)
            want |= WATCH_READ;
        else if (s->events->on_hangup && !s->ended && !s->hung_up)
            want |= WATCH_HANGUP;
        if (s->blocked)
            want |= WATCH_WRITE;
    }
    if (!s->watch && want)
        s->watch = watch_new(s->loop, s->fd, on_ready, s);
    if (s->watch)
        watch_want(s->watch, want);
}

/* ---- ending ---- */

static void on_later(struct timer *timer);

static void end_pour(struct pour *pour)
{
    if (!pour)
        return;
    struct stream *from = pour->from;
    from->pouring = NULL;
    pour->to->poured = NULL;
    if (from->failed) /* which waited for this to be told */
        timer_set(&from->later, from->loop, 0, on_later);
    fd_close(&pour->pipe_fds[0]);
    fd_close(&pour->pipe_fds[1]);
    free(pour);
}

static void tell_end(struct stream *s)
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

/* Nothing more gets out. What still comes in may be read, or poured. */
static void break_off(struct stream *s, int number, const char *doing)
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
    end_pour(s->poured);
}

/* The same from inside a call of the owner's, so it is told when the turn ends. */
static void fail(struct stream *s, int number, const char *doing)
{
    break_off(s, number, doing);
    timer_set(&s->later, s->loop, 0, on_later);
}

/* ---- reading ---- */

static void read_some(struct stream *s)
{
    size_t total = 0;
    bool is_drained = false;

    while (!is_drained && total < TURN_READ_BYTES && s->reading && !s->ended && !s->pouring && s->in.len < s->in.cap) {
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
                break_off(s, errno, "read");
            tell_end(s);
            return;
        }
        buf_grew(&s->in, (size_t)n);
        total += (size_t)n;
        s->bytes_in += (size_t)n;
        s->progress_ms = loop_now_ms(s->loop);
        is_drained = (size_t)n < want; /* asking again would only be told EAGAIN */
        if (!is_drained)
            s->read_size = MIN(s->read_size * 4, (size_t)READ_MOST);
        else if ((size_t)n < s->read_size / 4)
            s->read_size = MAX(s->read_size / 4, (size_t)READ_LEAST);
        s->events->on_input(s);
        if (is_dead(s))
            return;
    }
    if (s->in.len == 0 && s->read_size == READ_LEAST)
        buf_done(&s->in);
}

void stream_read(struct stream *s, bool on)
{
    s->reading = on;
    watch_update(s);
}

void stream_read_least(struct stream *s, size_t bytes)
{
    int least = (int)MIN(bytes, (size_t)READ_LEAST_MOST);

    if (is_dead(s) || !s->is_socket || s->read_least == (size_t)least)
        return;
    s->read_least = (size_t)least;
    (void)setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least); /* more wakings without, nothing worse */
}

/* ---- writing ---- */

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
        fail(s, n < 0 ? errno : 0, n < 0 ? "read the file" : "the file became shorter while it was sent");
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

    if (s->file_copied)
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
        fail(s, n < 0 ? errno : 0, n < 0 ? "send the file" : "the file became shorter while it was sent");
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
        (void)shutdown(s->fd, SHUT_WR); /* ENOTCONN: the peer is gone, reading tells */
        return;
    }
    /* A pipe has only the one side. */
    watch_free(take_ptr(&s->watch));
    fd_close(&s->fd);
}

/* Hand the kernel what is queued. Afterwards either all of it is out, or we are blocked, or it failed. */
static void flush(struct stream *s)
{
    uint64_t stop_at = s->bytes_out + TURN_WRITE_BYTES;

    s->blocked = true;
    while (s->bytes_out < stop_at) {
        if (s->out.len) {
            struct iovec piece = { s->out.data, s->out.len };
            ssize_t n = send_pieces(s, &piece, 1, s->file_fd >= 0);
            if (n < 0) {
                fail(s, errno, "write");
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
        } else {
            s->blocked = false;
            buf_done(&s->out);
            if (s->finishing)
                end_writing(s);
            return;
        }
    }
}

static void enqueue(struct stream *s, struct buf *queue, const struct str *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buf_add(queue, pieces[i]);
    if (queue->overflowed)
        fail(s, 0, "more was queued for a slow peer than we keep");
}

void stream_write_many(struct stream *s, const struct str *pieces, size_t count)
{
    struct iovec vec[PIECES_MOST + 1];
    size_t used = 0;

    assert(count <= PIECES_MOST);
    if (is_dead(s) || s->failed || s->finishing)
        return;
    if (s->file_fd >= 0) {
        enqueue(s, &s->after, pieces, count);
        return;
    }
    if (s->connecting || s->blocked) {
        enqueue(s, &s->out, pieces, count);
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
        fail(s, errno, "write");
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
        fail(s, 0, "more was queued for a slow peer than we keep");
    } else if (s->out.len) {
        s->blocked = true;
        watch_update(s);
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
    if (is_dead(s) || s->failed || s->finishing)
        return;
    enqueue(s, s->file_fd >= 0 ? &s->after : &s->out, &bytes, 1);
    if (!s->connecting && !s->blocked)
        timer_set(&s->later, s->loop, 0, on_later);
}

void stream_send_file(struct stream *s, int file_fd, off_t offset, uint64_t size)
{
    auto_close int file = file_fd;

    if (is_dead(s) || s->failed || s->finishing || size == 0)
        return;
    assert(s->file_fd < 0); /* one at a time */
    s->file_fd = take_fd(&file);
    s->file_at = offset;
    s->file_left = size;
    s->file_copied = false;
    if (s->connecting || s->blocked)
        return;
    flush(s);
    watch_update(s);
}

size_t stream_queued(const struct stream *s)
{
    uint64_t file = MIN(s->file_left, (uint64_t)SIZE_MAX / 2);

    return s->out.len + s->after.len + (size_t)file + (s->poured ? s->poured->held : 0);
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

void stream_finish(struct stream *s)
{
    if (is_dead(s) || s->finishing)
        return;
    s->finishing = true;
    if (s->connecting || s->blocked || s->failed)
        return;
    flush(s);
    watch_update(s);
}

/* ---- pouring ---- */

static ssize_t move_bytes(int from_fd, int to_fd, size_t most)
{
    ssize_t n;

    do
        n = splice(from_fd, NULL, to_fd, NULL, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    while (n < 0 && errno == EINTR);
    return n;
}

/*
 * Like move_bytes(). splice(2) stops for ever before a byte that a peer has sent as urgent, though there is more to read;
 * read(2) skips that byte. What is read fits, the pipe being empty.
 */
static ssize_t copy_bytes(int from_fd, int to_fd, size_t most)
{
    char piece[READ_LEAST];
    ssize_t n;

    do
        n = read(from_fd, piece, MIN(most, sizeof piece));
    while (n < 0 && errno == EINTR);
    return n > 0 ? write(to_fd, piece, (size_t)n) : n;
}

/* False when there is no more to do now: nothing has come, it failed, or it was the end. */
static bool fill_pipe(struct pour *pour, bool is_first)
{
    struct stream *from = pour->from;
    size_t most = (size_t)MIN(from->pour_left, (uint64_t)POUR_BYTES);
    ssize_t n = move_bytes(from->fd, pour->pipe_fds[1], most);

    /* We were woken for something. */
    if (n < 0 && errno == EAGAIN && is_first)
        n = copy_bytes(from->fd, pour->pipe_fds[1], most);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        int number = errno;
        end_pour(pour);
        if (n < 0)
            break_off(from, number, "read");
        tell_end(from);
        return false;
    }
    pour->held = (size_t)n;
    from->pour_left -= (uint64_t)n;
    from->bytes_in += (size_t)n;
    from->progress_ms = loop_now_ms(from->loop);
    return true;
}

/* False when there is no more to do now: the kernel has enough, or it failed. */
static bool empty_pipe(struct pour *pour)
{
    struct stream *to = pour->to;
    ssize_t n = move_bytes(pour->pipe_fds[0], to->fd, pour->held);

    if (n < 0 && errno == EAGAIN) {
        to->blocked = true;
        return false;
    }
    if (n <= 0) {
        fail(to, n < 0 ? errno : EPIPE, "write"); /* ends the pour */
        return false;
    }
    pour->held -= (size_t)n;
    to->bytes_out += (size_t)n;
    to->progress_ms = loop_now_ms(to->loop);
    return true;
}

static void pour_some(struct pour *pour)
{
    struct stream *from = pour->from, *to = pour->to;
    unsigned pipes_left = TURN_POURS;
    bool more = true;

    if (!to->blocked && to->out.len)
        flush(to);
    while (more && from->pouring && !to->blocked) {
        if (pour->held == 0 && from->pour_left == 0) {
            end_pour(pour);
            from->events->on_poured(from); /* who may begin another */
            more = false;
        } else if (pour->held) {
            more = empty_pipe(pour);
        } else {
            more = pipes_left > 0 && fill_pipe(pour, pipes_left == TURN_POURS);
            pipes_left--; /* none left: the others have their turn, then we are told again */
        }
    }
    watch_update(from);
    watch_update(to);
}

/*
 * The kernel allows each user so many pages of pipes (fs.pipe-user-pages-soft: a thousand pipes), and makes the pipes after
 * that with room for two fragments. Copying is far faster than that.
 */
static bool open_pipe(int fds[2])
{
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return false;
    if (fcntl(fds[0], F_GETPIPE_SZ) >= POUR_BYTES)
        return true;
    fd_close(&fds[0]);
    fd_close(&fds[1]);
    return false;
}

bool stream_pour(struct stream *from, struct stream *to, uint64_t size)
{
    int fds[2];

    assert(from->events->on_poured && !from->pouring && !to->poured && from->in.len == 0 && size > 0);
    if (is_dead(from) || is_dead(to) || from->ended || to->failed || to->finishing || to->connecting ||
        !from->is_socket || !to->is_socket || to->file_fd >= 0 || !open_pipe(fds))
        return false;
    struct pour *pour = NEW(struct pour);
    pour->from = from;
    pour->to = to;
    memcpy(pour->pipe_fds, fds, sizeof fds);
    from->pouring = to->poured = pour;
    from->pour_left = size;
    watch_update(from);
    return true;
}

bool stream_is_pouring(const struct stream *from)
{
    return from->pouring;
}

/* ---- what the loop calls ---- */

static void on_later(struct timer *timer)
{
    struct stream *s = container_of(timer, struct stream, later);

    if (!s->failed && !s->blocked && !s->connecting && s->out.len)
        flush(s);
    /* The peer may have answered before it went: what it said is still there to be read, or on its way elsewhere. */
    if (s->failed && !s->pouring) {
        timer_clear(&s->later);
        read_some(s); /* which may begin a pour */
        if (!is_dead(s) && !s->pouring)
            tell_end(s);
    }
    watch_update(s);
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
    break_off(s, number, "connect");
    tell_end(s);
    return false;
}

static void on_ready(void *context, unsigned ready)
{
    struct stream *s = context;

    if (s->connecting && !connected(s)) {
        watch_update(s);
        return;
    }
    if ((ready & WATCH_READ) && s->pouring)
        pour_some(s->pouring);
    else if (ready & WATCH_READ)
        read_some(s);
    if ((ready & WATCH_HANGUP) && !is_dead(s) && !s->ended && !(ready & WATCH_READ)) {
        s->hung_up = true;
        if (s->events->on_hangup)
            s->events->on_hangup(s);
    }
    if ((ready & WATCH_WRITE) && !is_dead(s) && !s->failed) {
        flush(s);
        if (!is_dead(s) && !s->blocked && !s->failed && s->poured)
            pour_some(s->poured);
        else if (!is_dead(s) && !s->blocked && !s->failed && s->events->on_drained)
            s->events->on_drained(s);
    }
    watch_update(s);
}

/* ---- beginning and end ---- */

struct stream *stream_new(struct loop *loop, int fd, size_t in_cap, const struct stream_events *events, void *owner)
{
    struct stream *s = NEW(struct stream);
    struct stat stat;
    struct err err;

    if (!fd_set_nonblocking(fd, true, &err) || fstat(fd, &stat) < 0)
        log_die("stream: descriptor %d is not one", fd);
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
    watch_update(s);
    return s;
}

static void let_go(struct stream *s)
{
    end_pour(s->pouring);
    end_pour(s->poured);
    timer_clear(&s->later);
    watch_free(take_ptr(&s->watch));
    fd_close(&s->file_fd);
    s->file_left = 0;
}

void stream_abort(struct stream *s)
{
    if (is_dead(s))
        return;
    struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    (void)setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* not for pipes, which know no reset */
    let_go(s);
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
    let_go(s);
    fd_close(&s->fd);
    s->freed = true;
    loop_retire(s->loop, s, dispose);
}
