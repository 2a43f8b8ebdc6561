/*
 * engine.h - one live interpreter, of any language.
 *
 * python.h and jupyter.h make engines. A context owns one and gets its events. An engine knows nothing of HTTP,
 * clients or queues.
 *
 *     made → on_ready → run → on_line… → on_done → run → …          and at any time on_died, which is the last event
 *
 * Ownership  The maker frees it, also from inside an event. Freeing kills the interpreter and all that it has started.
 * Events     Come from the loop, never from inside one of these calls.
 */
#ifndef GUEST_INTERPRETER_ENGINE_H
#define GUEST_INTERPRETER_ENGINE_H

#include <stdbool.h>

#include "base/str.h"
#include "wire/guestlink.h"

struct engine;

enum engine_line {
    ENGINE_LINE_ACCEPTED, /* the cell's number: the cell has begun, so it must not be run a second time */
    ENGINE_LINE_ERROR,    /* the cell failed; a client gets one of these at most */
    ENGINE_LINE_OUTPUT,   /* any other line of the cell */
    ENGINE_LINE_PRINTED,  /* printed on stdout or stderr, also between cells */
    ENGINE_LINE_KINDS,
};

struct engine_events {
    void (*on_ready)(struct engine *engine);
    /* A whole line of the answer with its newline, pure ASCII. The engine must not be freed in here. */
    void (*on_line)(struct engine *engine, enum engine_line kind, struct str line);
    void (*on_done)(struct engine *engine);
    void (*on_died)(struct engine *engine, const char *why); /* "it was killed (SIGKILL)" */
};

struct engine_code {
    struct str code;
    const struct guestlink_env *envs; /* for this cell only */
    size_t env_count;
};

struct engine_kind {
    void (*run)(struct engine *engine, const struct engine_code *code);
    void (*interrupt)(struct engine *engine);         /* as Ctrl-C */
    void (*pause)(struct engine *engine, bool pause); /* backpressure: stop reading while the client is slow */
    void (*free)(struct engine *engine);
};

struct engine {
    const struct engine_kind *kind;
    const struct engine_events *events;
    void *owner;
};

static inline void engine_run(struct engine *engine, const struct engine_code *code)
{
    engine->kind->run(engine, code);
}

static inline void engine_interrupt(struct engine *engine)
{
    engine->kind->interrupt(engine);
}

static inline void engine_pause(struct engine *engine, bool pause)
{
    engine->kind->pause(engine, pause);
}

static inline void engine_free(struct engine *engine) /* NULL is fine */
{
    if (engine)
        engine->kind->free(engine);
}

/* How to start an interpreter. */
struct engine_want {
    const char *cwd;  /* absolute; if it cannot be entered, stderr says so */
    char *const *env; /* the whole environment, "NAME=value", ended by NULL */
    const struct engine_events *events;
    void *owner;
};

#endif
