/*
 * helper.h - a child of keeper that waits for disks, so that keeper does not have to.
 *
 * A fork of keeper with the power over files that copying needs and no other: it holds the descriptors it is given, can
 * open only what is below them (Landlock, where the kernel has it), and its system calls are a list. It ends with keeper; one
 * with `ends_softly` lets go of what it has stopped first.
 *
 * Threads    Keeper's one. Nothing here waits; work() runs in the child.
 */
#ifndef ISOLATION_NATIVE_HELPER_H
#define ISOLATION_NATIVE_HELPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "io/loop.h"

struct helper;
struct helper_voice; /* the child's end */

enum { HELPER_FDS = LIMIT_LAYERS + 48, HELPER_FIGURES = 3, HELPER_END_MS = 3000 };

struct helper_job {
    /* In the child. What it has made when it fails is for the asker to clear away. */
    bool (*work)(struct helper_voice *voice, void *context, struct err *err);
    /* In keeper: the child has come to this step and waits for helper_go(). NULL if work() calls no helper_ask(). */
    void (*asked)(void *context, uint8_t step);
    /* In keeper, once, last: it has done all of it and says these figures, or err. It is freed when this returns. */
    void (*ended)(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err);
    void *context;  /* of all three */
    bool runs_criu; /* work() confines itself (criu.h); dirs are just descriptors that it has */
    /*
     * It must not be killed in the middle: instead of that, keeper's end of its socket closes, and work() ends as soon as it
     * can (helper_keeper_fd()). HELPER_END_MS later it is killed after all.
     */
    bool ends_softly;
    bool ends_late; /* after a time-out ended() is called only when it is gone: it may be in a call that ends late */
    struct helper_dir {
        int fd; /* borrowed; has the same number in the child */
        enum helper_may {
            HELPER_HOLD, /* sync it; nothing in it can be opened */
            HELPER_READ, /* what is below it */
            HELPER_CHANGE,
        } may;
    } dirs[HELPER_FDS];
    size_t dir_count;
    uint64_t patience_ms; /* then it is killed, and err is ERR_TIMEOUT */
};

struct helpers; /* those of one driver */

struct helpers *helpers_new(struct loop *loop, struct err *err) must_use;
void helpers_free(struct helpers *helpers); /* kills those that run, and waits for them no longer than a moment */

struct helper *helper_start(struct helpers *helpers, const struct helper_job *job, struct err *err) must_use;
void helper_go(struct helper *helper);
/* Kills it; ended() is not called any more. NULL is fine. */
void helper_cancel(struct helper *helper);

/* In the child: says that it has come to this step, and waits for keeper. */
bool helper_ask(struct helper_voice *voice, uint8_t step, struct err *err) must_use;
/* In the child: POLLHUP tells that keeper wants no more of it, or is gone. For jobs that end softly. */
int helper_keeper_fd(const struct helper_voice *voice);
void helper_figure(struct helper_voice *voice, size_t which, uint64_t value);
/* From here on at the lowest priority: nobody stands still for it. */
void helper_slow_down(void);

#endif
