/*
 * progress.h - a template build as people watch it: a line for each instruction of the Dockerfile, and what it prints.
 *
 * On a terminal the instruction that runs is shown with its time, and below it, dim, the last line of its output; elsewhere
 * plain lines. Everything comes from the log of the build, whose words template/log.c and steps.c choose.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"
#include "wire/dockerfile.h"

enum { PROGRESS_KEPT = 20 }; /* lines of output that are shown if the step fails */

struct progress {
    /* private */
    struct arena *arena;
    FILE *out;
    bool is_terminal, is_colored;
    const struct dockerfile *file;
    struct str start_cmd;
    unsigned total;   /* lines for people: FROM, instructions, the start command */
    int64_t open;     /* step that runs, from 0; or one of those below */
    struct str shown; /* its text */
    int64_t since_us;
    bool is_held; /* not on a terminal: its line is not printed yet, because it may be over at once */
    uint64_t drawn_ms;
    struct str last;
    struct buf *kept; /* a ring */
    size_t kept_count;
};

/* start_cmd: empty if there is none. The strings and the file outlive it. */
void progress_init(struct progress *progress, struct arena *arena, FILE *out, const struct dockerfile *file,
                   struct str start_cmd);
void progress_done(struct progress *progress);
/* A line of the log. step: of the API: "base", a number from 1, "finalize", or empty. */
void progress_take(struct progress *progress, int64_t at_us, struct str step, struct str message);
/* From time to time: the clock of the step that runs. */
void progress_tick(struct progress *progress, int64_t now_us);
enum progress_how { PROGRESS_DONE, PROGRESS_FAILED, PROGRESS_STOPPED };
/* The build has ended so, and with it the step that runs. */
void progress_end(struct progress *progress, int64_t now_us, enum progress_how how);
/* The Dockerfile's line of a step as the API names it; 0: none. */
uint32_t progress_line_of(const struct progress *progress, struct str step);

#endif
