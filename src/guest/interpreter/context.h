/*
 * context.h - one interpreter with a name, and the cells that wait for it.
 *
 *   cold ⇄ starting → idle ⇄ busy → interrupting
 *
 * Cells run one at a time, in the order they came. If a client disconnects its cell is interrupted; if the cell does
 * not stop, its interpreter is killed and the next cell gets a note that the variables are gone. If an interpreter
 * dies, the cell that it ran fails, and the next cell gets a new interpreter. Output above LIMIT_CELL_BYTES is dropped
 * with a note.
 *
 * Ownership  The interpreter service owns contexts. A cell lives in the arena of its exchange.
 */
#ifndef GUEST_INTERPRETER_CONTEXT_H
#define GUEST_INTERPRETER_CONTEXT_H

#include "guest/interpreter/engine.h"
#include "http/http.h"
#include "io/loop.h"

struct context;

/* Starts an engine for a context. */
typedef struct engine *context_start_fn(struct context *context, const struct engine_events *events, struct err *err);

struct context *context_new(struct loop *loop, const char *language, const char *cwd, context_start_fn *start,
                            void *owner) must_use;
/* Ends its interpreter and fails its cells. Frees it when the loop's turn ends. */
void context_remove(struct context *context);

const char *context_id(const struct context *context);
const char *context_language(const struct context *context);
const char *context_cwd(const struct context *context);
void *context_owner(const struct context *context);

/* One POST /execute. The caller fills in the first part. */
struct cell {
    struct http_exchange *ex; /* the head of its answer is sent */
    struct engine_code code;
    /* private */
    struct context *context; /* NULL: finished */
    struct cell *next;
    bool was_accepted, has_error;
    unsigned attempts;
    uint64_t sent_bytes[ENGINE_LINE_KINDS];
    struct timer keepalive;
};

/* Queues the cell, runs it, and ends the exchange. ERR_LIMIT when too many wait. */
bool context_run(struct context *context, struct cell *cell, struct err *err) must_use;
void cell_gone(struct cell *cell);    /* the client disconnected, or has the whole answer */
void cell_drained(struct cell *cell); /* the client has read what was sent: reading may go on */

/* Called once: when there is an interpreter, or with the reason why there is none. */
struct context_waiter {
    void (*done)(struct context_waiter *waiter, const struct err *err);
    /* private */
    struct context *context;
    struct context_waiter *next;
};
void context_await(struct context *context, struct context_waiter *waiter);
void context_await_cancel(struct context_waiter *waiter); /* fine after done() */

/* A new interpreter under the same name. The running cell fails; waiting cells run in the new one. */
void context_restart(struct context *context);

#endif
