/*
 * pipes.h - an interpreter's stdout and stderr, as lines of the answer.
 *
 * Both are real pipes, so output of C libraries and subprocesses arrives too, in order within each stream. A UTF-8
 * character that arrives in two pieces is passed on in one. The first output is passed on at once; output of the next
 * millisecond is gathered, because waking guestd costs the printing process more than printing does.
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
    int fd; /* -1: closed */
    struct watch *watch;
    struct timer gather; /* set: not read before it fires */
    size_t tail_len;     /* the beginning of a character whose rest has not come yet */
    char tail[4];
};

typedef void pipes_line_fn(struct pipes *pipes, struct str line);

struct pipes {
    struct pipe_end ends[2];
    pipes_line_fn *on_line;
    struct loop *loop;
    bool is_paused;
};

/* Our ends do not block. The two ends for the interpreter are the caller's to close. */
bool pipes_open(struct pipes *pipes, struct loop *loop, pipes_line_fn *on_line, int out_theirs[2], struct err *err)
    must_use;
void pipes_close(struct pipes *pipes); /* fine when not open */
void pipes_pause(struct pipes *pipes, bool pause);
/* Reads what has been printed so far, up to a bound: before a frame that was sent after it is handled. */
void pipes_drain(struct pipes *pipes);

#endif
