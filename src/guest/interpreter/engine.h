/*
 * engine.h - one live interpreter, whatever language it speaks and however we talk to it.
 *
 * python.h and jupyter.h make engines; a context owns one and hears of it by events. An engine knows nothing of HTTP,
 * clients or queues.
 *
 *     made → on_ready → run → on_line… → on_done → run → …          and at any time on_died, which is the last event
 *
 * Ownership  Whoever made it frees it, from events too. Freeing kills the interpreter with all it has started.
 * Events     Come from the loop, never from inside one of these calls.
 */
#ifndef GUEST_INTERPRETER_ENGINE_H
#define GUEST_INTERPRETER_ENGINE_H

#include <stdbool.h>

#include "base/str.h"
#include "wire/guestlink.h"

struct engine;

enum engine_line {
    ENGINE_LINE_ACCEPTED, /* the cell's number: from here on it has effects, and is not run a second time */
    ENGINE_LINE_ERROR,    /* it failed; a client gets one of these at most */
    ENGINE_LINE_OUTPUT,   /* anything else that belongs to the cell */
    ENGINE_LINE_PRINTED,  /* on stdout or stderr, by whomever: also between cells */
    ENGINE_LINE_KINDS,
};

struct engine_events {
    void (*on_ready)(struct engine *engine);
    /*
     * A whole line of the answer, newline included: pure ASCII. The engine must not be freed in here.
     */
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
    void (*pause)(struct engine *engine, bool pause); /* the client is slow: so be the interpreter */
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

/* What every interpreter starts with. */
struct engine_want {
    const char *cwd;  /* absolute; one that cannot be entered is told on stderr */
    char *const *env; /* whole, "NAME=value", ended by NULL */
    const struct engine_events *events;
    void *owner;
};

#endif
