/*
 * process_input.c - what is written to a process: a list of inputs in the order of the calls, written to its stdin or
 * its terminal as fast as it takes them. Each is told when all of it is written, or why it cannot be.
 */
#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/process_inside.h"

static void input_step(struct process *p);

void process_end_input(struct process *p)
{
    watch_free(take_ptr(&p->in_watch));
    fd_close(&p->in_fd);
}

static void finish_input(struct process *p, const struct err *err)
{
    struct process_input *input = p->inputs;

    p->inputs = input->next;
    if (!p->inputs)
        p->inputs_end = &p->inputs;
    input->process = NULL;
    input->done(input, err);
}

void process_fail_inputs(struct process *p, const struct err *err)
{
    while (p->inputs)
        finish_input(p, err);
}

static void on_input_ready(void *context, unsigned ready)
{
    (void)ready;
    input_step(context);
}

/* Write until the pipe is full or nothing is left. */
static void input_step(struct process *p)
{
    struct err err;

    while (p->inputs && p->in_fd >= 0) {
        struct process_input *input = p->inputs;
        ssize_t n = input->bytes.len ? write(p->in_fd, input->bytes.at, input->bytes.len) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!p->in_watch)
                p->in_watch = watch_new(p->all->guest->loop, p->in_fd, on_input_ready, p);
            watch_want(p->in_watch, WATCH_WRITE);
            return;
        }
        if (n < 0) {
            (void)err_sys(&err, p->has_pty ? "error writing to tty" : "error writing to stdin");
            finish_input(p, &err);
            continue;
        }
        input->bytes.at += n;
        input->bytes.len -= (size_t)n;
        if (!input->bytes.len)
            finish_input(p, NULL);
    }
    if (p->in_watch)
        watch_want(p->in_watch, 0);
    if (p->closes_input && !p->inputs)
        process_end_input(p);
}

bool process_write(struct process *p, enum process_input_to to, struct process_input *input, struct err *err)
{
    if (to == PROCESS_PTY && !p->has_pty)
        return err_set(err, ERR_INTERNAL, "error writing to tty: tty not assigned to process");
    if (to == PROCESS_STDIN && p->has_pty)
        return err_set(err, ERR_INTERNAL, "error writing to stdin: tty assigned to process");
    if (p->in_fd < 0 || p->closes_input)
        return err_set(err, ERR_INTERNAL, "error writing to stdin: stdin not enabled or closed");
    input->process = p;
    input->next = NULL;
    *p->inputs_end = input;
    p->inputs_end = &input->next;
    if (p->inputs == input)
        input_step(p);
    return true;
}

void process_input_cancel(struct process_input *input)
{
    struct process *p = input->process;

    if (!p)
        return;
    struct process_input **at = &p->inputs;
    while (*at != input)
        at = &(*at)->next;
    *at = input->next;
    if (!*at)
        p->inputs_end = at;
    input->process = NULL;
    input_step(p);
}

bool process_close_input(struct process *p, struct err *err)
{
    if (p->has_pty)
        return err_set(err, ERR_INTERNAL,
                       "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead");
    p->closes_input = true;
    input_step(p);
    return true;
}

bool process_resize(struct process *p, uint16_t cols, uint16_t rows, struct err *err)
{
    struct winsize size = { .ws_col = cols, .ws_row = rows };

    if (!p->has_pty || p->sources[0].fd < 0)
        return err_set(err, ERR_INTERNAL, "error resizing tty: tty not assigned to process");
    if (ioctl(p->sources[0].fd, TIOCSWINSZ, &size) < 0)
        return err_sys(err, "error resizing tty");
    return true;
}
