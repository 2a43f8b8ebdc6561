/*
 * frame.h - a message from an interpreter: four bytes of length, a letter, a text.
 *
 * User code runs in the process at the other end and can write anything there.
 */
#ifndef GUEST_INTERPRETER_FRAME_H
#define GUEST_INTERPRETER_FRAME_H

#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/str.h"

enum { FRAME_HEADER_BYTES = 4 };

struct frame {
    char letter;
    struct str text; /* within the input */
};

enum frame_verdict {
    FRAME_DONE,
    FRAME_MORE,      /* the rest has not come yet */
    FRAME_MALFORMED, /* empty, or longer than LIMIT_FRAME_BYTES */
};
/* The first frame of the input; *out_used is its length with the header. */
enum frame_verdict frame_parse(struct str bytes, struct frame *out, size_t *out_used) must_use;
/* The header of a message to the interpreter. */
void frame_write_header(size_t length, unsigned char out[FRAME_HEADER_BYTES]);

#endif
