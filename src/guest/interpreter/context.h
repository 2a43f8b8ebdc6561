/*
 * context.h - one interpreter with a name, and the cells that wait for it.
 *
 *   cold ⇄ starting → idle ⇄ busy → interrupting
 *
 * Cells run one at a time, in the order they came. A client that goes away has its cell interrupted; one that does not
 * react is killed with its interpreter, and whoever runs the next cell is told that the variables are gone. An
 * interpreter that dies fails the cell it ran and no other: the next one gets a new interpreter. A cell that says more than
 * anybody can read is cut with a note, and goes on.
 *
 * Ownership  The interpreter service owns contexts. A cell lives in the arena of its exchange.
 */
#ifndef GUEST_INTERPRETER_CONTEXT_H
#define GUEST_INTERPRETER_CONTEXT_H

#include "guest/interpreter/engine.h"
#include "http/http.h"
#include "io/loop.h"

struct context;

/* Makes an engine for a context, now. */
typedef struct engine *context_start_fn(struct context *context, const struct engine_events *events, struct err *err);

struct context *context_new(struct loop *loop, const char *language, const char *cwd, context_start_fn *start,
                            void *owner) must_use;
/* Everything it runs ends; its cells are told. Frees it when the turn ends. */
void context_remove(struct context *context);

const char *context_id(const struct context *context);
const char *context_language(const struct context *context);
const char *context_cwd(const struct context *context);
void *context_owner(const struct context *context);

/* One /execute. The caller fills in the first part. */
struct cell {
    struct http_exchange *ex; /* its answer has been started */
    struct engine_code code;
    /* private */
    struct context *context; /* NULL: finished */
    struct cell *next;
    bool was_accepted, has_error;
    unsigned attempts;
    uint64_t told_bytes[ENGINE_LINE_KINDS];
    struct timer keepalive;
};

/* Runs it when its turn has come and ends the exchange. ERR_LIMIT when too many wait. */
bool context_run(struct context *context, struct cell *cell, struct err *err) must_use;
void cell_gone(struct cell *cell);    /* its client went away, or it was answered in full */
void cell_drained(struct cell *cell); /* its client has caught up */

/* Told once when there is an interpreter, or why there is none. */
struct context_waiter {
    void (*done)(struct context_waiter *waiter, const struct err *err);
    /* private */
    struct context *context;
    struct context_waiter *next;
};
void context_await(struct context *context, struct context_waiter *waiter);
void context_await_cancel(struct context_waiter *waiter); /* fine when it was told */

/* A new interpreter under the same name. What runs ends, what waits will run in the new one. */
void context_restart(struct context *context);

#endif
