/*
 * shell_word.h - words of a Dockerfile as Docker reads them: quotes, escapes, and references to variables ($X, ${X:-y}).
 *
 * A small part of what a shell does, with the rules of BuildKit: nothing is run, and nothing is split but by shell_words().
 *
 * Failure    ERR_INVALID says what is wrong: a quote that is not closed, a form of ${…} that is not known. ERR_LIMIT.
 */
#ifndef WIRE_SHELL_WORD_H
#define WIRE_SHELL_WORD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

/* Variables that are known; later ones of the same name replace earlier ones. */
struct shell_vars {
    struct arena *arena;
    size_t count, room;
    struct shell_var {
        struct str name, value;
    } * at;
};
bool shell_vars_set(struct shell_vars *vars, struct str name, struct str value, struct err *err) must_use;
void shell_vars_forget(struct shell_vars *vars, struct str name);                 /* fine if it is not set */
const struct str *shell_vars_get(const struct shell_vars *vars, struct str name); /* NULL: not set */

struct shell_rules {
    char escape;                   /* what takes the meaning from the next character: `\`, or "`" */
    bool keeps_quotes;             /* in the result… */
    bool keeps_escapes;            /* …and these */
    const struct shell_vars *vars; /* NULL: references stay as they are. One that is not set: ERR_INVALID */
};
/* One word, without its quotes. */
bool shell_word(const struct shell_rules *rules, struct arena *arena, struct str word, struct str *out, struct err *err)
    must_use;
/* A line as words, which white space outside quotes parts. */
bool shell_words(const struct shell_rules *rules, struct arena *arena, struct str line, const struct str **out,
                 size_t *out_count, struct err *err) must_use;

/* Quotes a word for a POSIX shell, if it needs that. */
void shell_quote(struct buf *out, struct str word);

/* ASCII, as the C locale has it. */
static inline bool char_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

#endif
