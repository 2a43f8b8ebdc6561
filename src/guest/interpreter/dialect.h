/*
 * dialect.h - how a language sets and removes environment variables, and what else its Jupyter kernel does differently.
 */
#ifndef GUEST_INTERPRETER_DIALECT_H
#define GUEST_INTERPRETER_DIALECT_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

struct dialect {
    const char *language;
    const char *set, *unset; /* formats that take two and one string literals of the language */
    char quote;
    const char *escaped; /* characters that take a backslash inside quotes; newlines are "\n" unless is_shell */
    bool is_shell;
    bool needs_globals;     /* its "variables" are not the process's: those of the sandbox are set after the start */
    bool results_come_late; /* Deno sends a cell's value from another task, at times after "idle" */
    unsigned settle_ms;     /* the Java kernel dies of a request that comes before it is set up, though it listens */
};

/* NULL: a language that we do not know. */
const struct dialect *dialect_find(const char *language);

/* A statement that sets or removes one variable. Adds nothing if the language has no variable of such a name. */
void dialect_add_set(struct buf *out, const struct dialect *d, struct str name, struct str value, struct arena *arena);
void dialect_add_unset(struct buf *out, const struct dialect *d, struct str name, struct arena *arena);

#endif
