/*
 * output.h - what a process has written, as much of it as is kept.
 *
 * A queue of blocks, each from one stream. Every byte has an offset, counted over all streams of the process from its
 * start; a reader remembers nothing but the next offset it wants. When the queue is full the oldest block goes, so a
 * reader who was too slow finds that `begin` is past its offset: a gap that it can see and say.
 */
#ifndef GUEST_OUTPUT_H
#define GUEST_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

enum output_stream {
    OUTPUT_STDOUT,
    OUTPUT_STDERR,
    OUTPUT_PTY,
    OUTPUT_STREAM_COUNT,
};

enum { OUTPUT_BLOCK_BYTES = 32 * 1024 }; /* the most that one read takes and one event carries */

struct output_block;

/* Zero it to start. */
struct output {
    uint64_t begin, end; /* offsets of the oldest kept byte, and of the next one to come */
    /* private */
    struct output_block **blocks; /* a circle of `room` slots */
    size_t first, count, room;
    size_t cost; /* memory of all blocks */
};

void output_done(struct output *output); /* forgets everything kept; offsets stay */

/* At most OUTPUT_BLOCK_BYTES. Drops the oldest until it fits below `cap` bytes of memory. */
void output_add(struct output *output, enum output_stream stream, struct str bytes, size_t cap);

/*
 * The next bytes from *offset on, of one stream and in one piece, valid until the next output_add(). False if there are
 * none. If *offset is no longer kept, it is moved to `begin` first. The caller advances it.
 */
bool output_read(const struct output *output, uint64_t *offset, enum output_stream *out_stream, struct str *out_bytes);

/* Memory of what a reader at `offset` has yet to get. */
size_t output_unread(const struct output *output, uint64_t offset);

/* Of all outputs together, to keep within LIMIT_OUTPUT_BYTES. */
size_t output_total(void);

#endif
