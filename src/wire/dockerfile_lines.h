/*
 * dockerfile_lines.h - the instructions of a Dockerfile, one by one, without their meaning: comments, continued lines, the
 * escape directive, flags, exec form, heredocs. A part of dockerfile.h.
 */
#ifndef WIRE_DOCKERFILE_LINES_H
#define WIRE_DOCKERFILE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct heredoc {
    struct str name, content; /* each line of it with its end */
    bool is_chomped;          /* <<-: without the tabs that lines begin with; `content` still has them */
    bool is_expanded;         /* variables in it count: no part of the name is quoted */
};

struct instruction {
    struct str name;  /* in capitals */
    struct str whole; /* with it, in one line */
    uint32_t line;
    size_t flag_count;
    const struct str *flags; /* "--chown=a", without quotes */
    /*
     * RUN, CMD, ENTRYPOINT: the text, or in exec form the words. ENV: name, value, name, value… USER, WORKDIR: the text.
     * Others: words, with their quotes. None: of an instruction that is ignored.
     */
    size_t arg_count;
    const struct str *args;
    bool is_exec; /* a JSON array */
    size_t heredoc_count;
    const struct heredoc *heredocs;
};

struct dockerfile_lines {
    struct arena *arena;
    struct str rest;
    uint32_t line; /* that was read last */
    char escape;
    bool is_past_directives;
    unsigned directives; /* that were there */
};

/* `text` is well-formed UTF-8 without zero bytes. */
void dockerfile_lines_init(struct dockerfile_lines *lines, struct arena *arena, struct str text);
/* *out_found is false at the end. Messages begin with the line. */
bool dockerfile_lines_next(struct dockerfile_lines *lines, struct instruction *out, bool *out_found, struct err *err)
    must_use;

/* Is this word the mark of one, as in `<<EOF`? Then it has no content yet. */
bool heredoc_parse(struct arena *arena, struct str word, struct heredoc *out);
struct str heredoc_chomped(struct arena *arena, struct str content);

/* Puts the line before the message. Always false. */
bool dockerfile_at_line(struct err *err, uint32_t line);

#endif
