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
 * stream.c keeps the only watch of each socket, and calls splice_run() when either is ready.
 */
#include "io/splice.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "io/stream_inside.h"

enum {
    PIPE_BYTES = 64 * 1024, /* what a pipe holds; in larger steps both ends would wait for each other longer */
    COPY_BYTES = 4096,
    TURN_PIPES = 16, /* pipes full in one turn. The sender chooses whether one holds 64 KiB or 16 single bytes */
};

struct splice {
    struct stream *from, *to;
    uint64_t *left; /* to be taken from `from` */
    int pipe_fds[2];
    size_t held; /* in the pipe */
};

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

void splice_end(struct splice *splice)
{
    if (!splice)
        return;
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
    size_t most = (size_t)MIN(*splice->left, (uint64_t)PIPE_BYTES);
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

void splice_run(struct splice *splice)
{
    struct stream *from = splice->from, *to = splice->to;
    unsigned pipes_left = TURN_PIPES;
    bool more = true;

    if (!to->blocked && to->out.len)
        stream_flush(to);
    while (more && from->in_splice && !to->blocked) {
        if (splice->held) {
            more = give(splice);
        } else if (*splice->left == 0) {
            splice_end(splice);
            from->events->on_spliced(from); /* may begin another splice */
            more = false;
        } else {
            more = pipes_left > 0 && take(splice, pipes_left == TURN_PIPES);
            pipes_left--; /* none left: the others have their turn, then we are called again */
        }
    }
    stream_watch(from);
    stream_watch(to);
}

/*
 * The kernel allows each user so many pages of pipes (fs.pipe-user-pages-soft: a thousand pipes), and makes the pipes
 * after that with room for two fragments. Copying is far faster than that.
 */
static bool open_pipe(int fds[2])
{
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return false;
    if (fcntl(fds[0], F_GETPIPE_SZ) >= PIPE_BYTES)
        return true;
    fd_close(&fds[0]);
    fd_close(&fds[1]);
    return false;
}

bool splice_start(struct stream *from, struct stream *to, uint64_t *left)
{
    int fds[2];

    assert(from->events->on_spliced && !from->in_splice && !to->out_splice && from->in.len == 0 && *left > 0);
    if (stream_is_dead(from) || stream_is_dead(to) || from->ended || to->failed || to->finishing || to->connecting ||
        !from->is_socket || !to->is_socket || to->file_fd >= 0 || !open_pipe(fds))
        return false;
    struct splice *splice = NEW(struct splice);
    *splice = (struct splice){ .from = from, .to = to, .left = left, .pipe_fds = { fds[0], fds[1] } };
    from->in_splice = to->out_splice = splice;
    stream_watch(from);
    return true;
}
