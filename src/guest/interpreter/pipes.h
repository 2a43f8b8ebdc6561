/*
 * pipes.h - an interpreter's real stdout and stderr, as lines of the answer.
 *
 * What it, its C libraries and its subprocesses print comes here in the order of printing, a stream at a time. A
 * character that arrives in two pieces is told in one. The first print is told at once; those that follow within a
 * millisecond are told together, because every wake-up costs the one who prints more than printing does.
 */
#ifndef GUEST_INTERPRETER_PIPES_H
#define GUEST_INTERPRETER_PIPES_H

#include <stdbool.h>

#include "base/err.h"
#include "guest/interpreter/line.h"
#include "io/loop.h"

struct pipes;

struct pipe_end {
    struct pipes *all;
    enum line_stream stream;
    int fd; /* -1: at its end */
    struct watch *watch;
    struct timer gather; /* set: not looked at before it is over */
    size_t tail_len;     /* of a character whose rest has not come yet */
    char tail[4];
};

typedef void pipes_line_fn(struct pipes *pipes, struct str line);

struct pipes {
    struct pipe_end ends[2];
    pipes_line_fn *on_line;
    struct loop *loop;
    bool is_paused;
};

/* Ours read without waiting. The two for the interpreter are the caller's to close. */
bool pipes_open(struct pipes *pipes, struct loop *loop, pipes_line_fn *on_line, int out_theirs[2], struct err *err)
    must_use;
void pipes_close(struct pipes *pipes); /* fine when not open */
void pipes_pause(struct pipes *pipes, bool pause);
/* All that has been printed so far, up to a bound: before anything that was said after it. */
void pipes_drain(struct pipes *pipes);

#endif
