/*
 * splice.c - theory of operation.
 *
 * The bytes go through a pipe, which holds references to the kernel's pages. A splice is in one of two states, told
 * apart by `held`:
 *
 *   held == 0   taking: the pipe is empty, and is filled as soon as `from` has bytes
 *   held > 0    giving: the pipe is emptied into `to` before more is taken. While `to` is `blocked`, `from` is not
 *               read, and its peer waits (backpressure)
 *
 * A bulk splice gives its pipe back whenever it is empty, to a small pool, and takes one again when bytes come. So the
 * pipes in use are those of the splices whose takers are slow. A group of splices (those of one sandbox) may borrow as
 * many as are still free for all: one greedy group gets half of them, two get a third each, and the next finds some.
 *
 * stream.c keeps the only watch of each socket, and calls splice_run() when either is ready.
 */
#include "io/splice.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "io/stream_inside.h"

enum {
    PIPE_BYTES = 64 * 1024, /* what a pipe holds unless it is told otherwise */
    COPY_BYTES = 4096,
    POOL_PIPES = 16,        /* kept for bulk splices when empty */
    BULK_LEAST = 16 * 1024, /* a bulk splice that finds less than this… */
    SLOW_RUNS = 4,          /* …so many times in a row is off */
    BULK_TURN_PIPES = 2,    /* the same of a bulk splice, of which there may be thousands */
    TURN_PIPES = 16,        /* pipes full in one turn. The sender chooses whether one holds 64 KiB or 16 single bytes */
};

struct splice {
    struct stream *from, *to;
    uint64_t *left;    /* to be taken from `from` */
    int pipe_fds[2];   /* -1: a bulk splice that has none now */
    size_t pipe_bytes; /* that the pipe can hold */
    size_t held;       /* in the pipe */
    bool is_bulk;
    uint32_t *share;    /* pipes that its group has borrowed; NULL: it has no group */
    unsigned slow_runs; /* in a row */
};

/* Of this thread, because a loop is a thread's. */
static _Thread_local struct {
    struct {
        int fds[2];
        size_t bytes;
    } idle[POOL_PIPES];
    unsigned idle_count, in_use;
} pool;

bool splice_takes(const struct splice *splice)
{
    return !splice->to->blocked;
}

size_t splice_held(const struct splice *splice)
{
    return splice ? splice->held : 0;
}

bool splice_is_on(const struct stream *from)
{
    return from->in_splice;
}

/*
 * The kernel allows each user so many pages of pipes (fs.pipe-user-pages-soft, 64 MiB). Past that it enlarges none, and
 * makes new pipes with room for two fragments. Copying is far faster than those.
 */
static bool open_pipe(int fds[2], size_t *bytes)
{
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return false;
    int holds = fcntl(fds[0], F_GETPIPE_SZ), larger = -1;
    if (holds >= PIPE_BYTES && *bytes > (size_t)holds)
        larger = fcntl(fds[0], F_SETPIPE_SZ, (int)*bytes);
    if (holds >= PIPE_BYTES) {
        *bytes = MIN(*bytes, (size_t)MAX(holds, larger));
        return true;
    }
    fd_close(&fds[0]);
    fd_close(&fds[1]);
    return false;
}

static bool borrow_pipe(struct splice *splice)
{
    if (splice->pipe_fds[0] >= 0)
        return true;
    if (splice->share && *splice->share >= LIMIT_SPLICE_PIPES - pool.in_use)
        return false;
    if (pool.idle_count) {
        pool.idle_count--;
        memcpy(splice->pipe_fds, pool.idle[pool.idle_count].fds, sizeof splice->pipe_fds);
        splice->pipe_bytes = pool.idle[pool.idle_count].bytes;
    } else {
        splice->pipe_bytes = LIMIT_SPLICE_PIPE_BYTES;
        if (pool.in_use >= LIMIT_SPLICE_PIPES || !open_pipe(splice->pipe_fds, &splice->pipe_bytes)) {
            splice->pipe_fds[0] = splice->pipe_fds[1] = -1;
            return false;
        }
    }
    pool.in_use++;
    if (splice->share)
        ++*splice->share;
    return true;
}

static void return_pipe(struct splice *splice)
{
    if (splice->pipe_fds[0] < 0)
        return;
    pool.in_use--;
    if (splice->share)
        --*splice->share;
    if (splice->held == 0 && pool.idle_count < POOL_PIPES) {
        memcpy(pool.idle[pool.idle_count].fds, splice->pipe_fds, sizeof splice->pipe_fds);
        pool.idle[pool.idle_count++].bytes = splice->pipe_bytes;
        splice->pipe_fds[0] = splice->pipe_fds[1] = -1;
    }
    fd_close(&splice->pipe_fds[0]);
    fd_close(&splice->pipe_fds[1]);
}

void splice_end(struct splice *splice)
{
    if (!splice)
        return;
    if (splice->is_bulk)
        return_pipe(splice);
    struct stream *from = splice->from;
    from->in_splice = NULL;
    splice->to->out_splice = NULL;
    if (from->failed) /* and waited for this to be told */
        stream_tell_later(from);
    fd_close(&splice->pipe_fds[0]);
    fd_close(&splice->pipe_fds[1]);
    free(splice);
}

static ssize_t move_bytes(int from_fd, int to_fd, size_t most)
{
    ssize_t n;

    do
        n = splice(from_fd, NULL, to_fd, NULL, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    while (n < 0 && errno == EINTR);
    return n;
}

/*
 * Like move_bytes(). splice(2) never gets past a byte that a peer has sent as urgent, though there is more to read;
 * read(2) skips that byte. The pipe is empty, so what is read fits.
 */
static ssize_t copy_bytes(int from_fd, int to_fd, size_t most)
{
    char piece[COPY_BYTES];
    ssize_t n;

    do
        n = read(from_fd, piece, MIN(most, sizeof piece));
    while (n < 0 && errno == EINTR);
    return n > 0 ? write(to_fd, piece, (size_t)n) : n;
}

/* False when there is no more to do now: nothing has come, it failed, or it was the end. */
static bool take(struct splice *splice, bool is_first)
{
    struct stream *from = splice->from;
    size_t most = (size_t)MIN(*splice->left, (uint64_t)splice->pipe_bytes);
    ssize_t n = move_bytes(from->fd, splice->pipe_fds[1], most);

    /* We were woken for something. */
    if (n < 0 && errno == EAGAIN && is_first)
        n = copy_bytes(from->fd, splice->pipe_fds[1], most);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        int number = errno;
        splice_end(splice);
        if (n < 0)
            stream_break(from, number, "read");
        stream_tell_end(from);
        return false;
    }
    splice->held = (size_t)n;
    *splice->left -= (uint64_t)n;
    from->bytes_in += (size_t)n;
    from->progress_ms = loop_now_ms(from->loop);
    return true;
}

/* False when there is no more to do now: the kernel has enough, or it failed. */
static bool give(struct splice *splice)
{
    struct stream *to = splice->to;
    ssize_t n = move_bytes(splice->pipe_fds[0], to->fd, splice->held);

    if (n < 0 && errno == EAGAIN) {
        to->blocked = true;
        return false;
    }
    if (n <= 0) {
        stream_fail(to, n < 0 ? errno : EPIPE, "write"); /* ends the splice */
        return false;
    }
    splice->held -= (size_t)n;
    to->bytes_out += (size_t)n;
    to->progress_ms = loop_now_ms(to->loop);
    return true;
}

/* The owner goes on without it. */
static void leave_off(struct splice *splice)
{
    struct stream *from = splice->from;

    splice_end(splice);
    from->events->on_spliced(from); /* may begin another splice */
}

/* After a run that has taken all there was. */
static void judge_pace(struct splice *splice, uint64_t moved)
{
    splice->slow_runs = moved < BULK_LEAST ? splice->slow_runs + 1 : 0;
    if (splice->slow_runs < SLOW_RUNS)
        return;
    stream_is_slow(splice->from);
    leave_off(splice);
}

void splice_run(struct splice *splice)
{
    struct stream *from = splice->from, *to = splice->to;
    const unsigned pipes = splice->is_bulk ? BULK_TURN_PIPES : TURN_PIPES;
    unsigned pipes_left = pipes;
    uint64_t before = to->bytes_out;
    bool more = true;

    if (splice->is_bulk && !borrow_pipe(splice)) {
        stream_is_slow(from); /* or the owner would begin the same at once */
        leave_off(splice);
        return;
    }
    if (!to->blocked && to->out.len)
        stream_flush(to);
    while (more && from->in_splice && !to->blocked) {
        if (splice->held) {
            more = give(splice);
        } else if (*splice->left == 0) {
            leave_off(splice);
            more = false;
        } else {
            more = pipes_left > 0 && take(splice, pipes_left == pipes);
            pipes_left--; /* none left: the others have their turn, then we are called again */
        }
    }
    splice = from->in_splice; /* NULL, or perhaps another one by now */
    if (splice && splice->is_bulk && splice->held == 0) {
        return_pipe(splice);
        if (!to->blocked)
            judge_pace(splice, to->bytes_out - before);
    }
    stream_watch(from);
    stream_watch(to);
}

static bool is_possible(const struct stream *from, const struct stream *to, const uint64_t *left)
{
    assert(from->events->on_spliced && !from->in_splice && !to->out_splice && from->in.len == 0 && *left > 0);
    return !stream_is_dead(from) && !stream_is_dead(to) && !from->ended && !to->failed && !to->finishing &&
           !to->connecting && from->is_socket && to->is_socket && !from->filter && !to->filter && to->file_fd < 0;
}

static struct splice *begin(struct stream *from, struct stream *to, uint64_t *left)
{
    struct splice *splice = NEW(struct splice);

    *splice = (struct splice){ .from = from, .to = to, .left = left, .pipe_fds = { -1, -1 } };
    from->in_splice = to->out_splice = splice;
    return splice;
}

bool splice_start(struct stream *from, struct stream *to, uint64_t *left)
{
    size_t bytes = PIPE_BYTES;
    int fds[2];

    if (!is_possible(from, to, left) || !open_pipe(fds, &bytes))
        return false;
    struct splice *splice = begin(from, to, left);
    memcpy(splice->pipe_fds, fds, sizeof fds);
    splice->pipe_bytes = bytes;
    stream_watch(from);
    return true;
}

bool splice_bulk(struct stream *from, struct stream *to, uint64_t *left, uint32_t *share)
{
    if (!is_possible(from, to, left))
        return false;
    struct splice *splice = begin(from, to, left);
    splice->is_bulk = true;
    splice->share = share;
    buf_done(&from->in);
    stream_watch(from);
    return true;
}
