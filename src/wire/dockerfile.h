/*
 * dockerfile.h - a Dockerfile as the steps of a build, the same that E2B's Python SDK makes of it.
 *
 * One stage. Values keep their references to variables ($X), which the builder expands with what ENV and the image have
 * set; only FROM, the sources of COPY and --chmod are expanded here, because the builder needs them as they are.
 *
 * Failure    ERR_INVALID or ERR_LIMIT; the message begins with the line: "line 3: …".
 */
#ifndef WIRE_DOCKERFILE_H
#define WIRE_DOCKERFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct dockerfile_step {
    struct str type;  /* RUN, COPY, USER, WORKDIR or ENV */
    uint32_t line;    /* of the instruction; 0: it is not in the file */
    struct str shown; /* for people: the instruction as it is in the file, in one line */
    uint32_t arg_count;
    struct str *args; /* as the API takes them. COPY: source, destination, owner, mode; the last two may be empty */
};

/* Something that has no effect here. */
struct dockerfile_note {
    uint32_t line;
    struct str text;
};

struct dockerfile {
    struct str from; /* the image */
    uint32_t from_line;
    size_t step_count;
    struct dockerfile_step *steps; /* with USER and WORKDIR of Docker before them, and those of sandboxes after them */
    struct str start_cmd;          /* of ENTRYPOINT and CMD; empty: none */
    uint32_t start_line;
    size_t note_count;
    struct dockerfile_note *notes;
};

/* A value for ARG, of the command line. */
struct dockerfile_arg {
    struct str name, value;
    bool is_used; /* set by dockerfile_parse(): there is an ARG of this name */
};

/* The result lives in the arena, and borrows from `args`. */
bool dockerfile_parse(struct arena *arena, struct str text, struct dockerfile_arg *args, size_t arg_count,
                      struct dockerfile *out, struct err *err) must_use;

#endif
