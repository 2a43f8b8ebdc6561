#include "guest/interpreter/pipes.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"

enum {
    READ_BYTES = 64 * 1024,            /* what a pipe holds */
    LINE_BYTES = 6 * READ_BYTES + 256, /* when every byte becomes an escape */
    READS_PER_TURN = 4,                /* then other descriptors have their turn */
    GATHER_MS = 1,                     /* after a read, before the next one */
    GATHER_BYTES = READ_BYTES / 4,     /* above this do not gather: the pipe would fill up */
    DRAIN_READS = 16,                  /* a bound, because the other end may write faster than we read */
};

static void tell(struct pipe_end *end, struct str text)
{
    auto_buf struct buf line = buf_make(NULL, LINE_BYTES);

    if (!text.len)
        return;
    line_add_stream(&line, end->stream, text, clock_wall_us());
    end->all->on_line(end->all, buf_str(&line));
}

static void close_end(struct pipe_end *end)
{
    timer_clear(&end->gather);
    watch_free(take_ptr(&end->watch));
    fd_close(&end->fd);
    tell(end, str_of(end->tail, end->tail_len));
    end->tail_len = 0;
}

/* One read, passed on as a line. False when there is no more for now, or the end has come. */
static bool read_some(struct pipe_end *end, size_t *out_len)
{
    static char room[READ_BYTES];
    ssize_t n;

    *out_len = 0;
    memcpy(room, end->tail, end->tail_len);
    do
        n = read(end->fd, room + end->tail_len, sizeof room - end->tail_len);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            close_end(end);
        return false;
    }
    *out_len = (size_t)n;
    struct str text = str_of(room, end->tail_len + (size_t)n);
    size_t whole = line_whole_chars(text);
    end->tail_len = text.len - whole;
    memcpy(end->tail, text.at + whole, end->tail_len);
    bool was_full = text.len == sizeof room;
    tell(end, str_of(text.at, whole));
    return was_full && end->fd >= 0;
}

static void look(struct pipe_end *end)
{
    if (end->watch)
        watch_want(end->watch, end->all->is_paused || timer_is_set(&end->gather) ? 0 : WATCH_READ);
}

static void on_gathered(struct timer *timer)
{
    look(container_of(timer, struct pipe_end, gather));
}

static void on_readable(void *context, unsigned ready)
{
    struct pipe_end *end = context;
    size_t len;

    (void)ready;
    for (int i = 0; i < READS_PER_TURN && read_some(end, &len); i++)
        ;
    if (end->watch && len && len < GATHER_BYTES) {
        timer_set(&end->gather, end->all->loop, GATHER_MS, on_gathered);
        look(end);
    }
}

bool pipes_open(struct pipes *pipes, struct loop *loop, pipes_line_fn *on_line, int out_theirs[2], struct err *err)
{
    pipes->on_line = on_line;
    pipes->loop = loop;
    pipes->is_paused = false;
    for (int i = 0; i < 2; i++)
        pipes->ends[i] = (struct pipe_end){ .all = pipes, .stream = i ? LINE_STDERR : LINE_STDOUT, .fd = -1 };
    out_theirs[0] = out_theirs[1] = -1;
    for (int i = 0; i < 2; i++) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0) {
            (void)err_sys(err, "make a pipe");
            pipes_close(pipes);
            fd_close(&out_theirs[0]);
            return false;
        }
        (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
        pipes->ends[i].fd = fds[0];
        pipes->ends[i].watch = watch_new(loop, fds[0], on_readable, &pipes->ends[i]);
        watch_want(pipes->ends[i].watch, WATCH_READ);
        out_theirs[i] = fds[1];
    }
    return true;
}

void pipes_close(struct pipes *pipes)
{
    for (int i = 0; i < 2; i++) {
        timer_clear(&pipes->ends[i].gather);
        watch_free(take_ptr(&pipes->ends[i].watch));
        fd_close(&pipes->ends[i].fd);
    }
}

void pipes_pause(struct pipes *pipes, bool pause)
{
    pipes->is_paused = pause;
    for (int i = 0; i < 2; i++)
        look(&pipes->ends[i]);
}

void pipes_drain(struct pipes *pipes)
{
    for (int i = 0; i < 2; i++) {
        struct pipe_end *end = &pipes->ends[i];
        size_t len;
        for (int reads = 0; end->fd >= 0 && reads < DRAIN_READS && read_some(end, &len); reads++)
            ;
    }
}
