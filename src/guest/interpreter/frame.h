/*
 * frame.h - what our Python says: four bytes of length, a letter, a text.
 *
 * Code of the user runs in the process at the other end and can write there what it likes, as can its zygote: whoever
 * reads this believes nothing but what stands here.
 */
#ifndef GUEST_INTERPRETER_FRAME_H
#define GUEST_INTERPRETER_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/str.h"

enum { FRAME_HEADER_BYTES = 4 };

struct frame {
    char letter;
    struct str text; /* within the input */
};

enum frame_verdict {
    FRAME_DONE,
    FRAME_MORE,      /* it is not there as a whole yet */
    FRAME_MALFORMED, /* empty, or longer than LIMIT_FRAME_BYTES */
};
/* The first one of the input; *out_used is what it takes. */
enum frame_verdict frame_read(struct str bytes, struct frame *out, size_t *out_used) must_use;
/* The length that stands before a message of ours. */
void frame_write_header(size_t length, unsigned char out[FRAME_HEADER_BYTES]);

/* What a zygote says of a child that has ended, "1234 9"; the status as wait(2) has it. */
bool frame_read_status(struct str text, pid_t *out_pid, int *out_status) must_use;

#endif
