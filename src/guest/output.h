/*
 * output.h - the newest output of a process, up to a limit.
 *
 * A queue of blocks, each from one stream. Every byte has an offset, counted over all streams of the process from its
 * start; a reader's only state is the next offset it wants. When the queue is full the oldest block is dropped, so a
 * reader that was too slow finds `begin` past its offset, and knows that there is a gap.
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
    struct output_block **blocks; /* a ring of `room` slots */
    size_t first, count, room;
    size_t cost; /* memory of all blocks */
};

void output_done(struct output *output); /* frees all blocks; offsets stay */

/* At most OUTPUT_BLOCK_BYTES. Drops the oldest until it fits below `cap` bytes of memory. */
void output_add(struct output *output, enum output_stream stream, struct str bytes, size_t cap);

/*
 * The next bytes from *offset on, of one stream and in one piece, valid until the next output_add(). False if there are
 * none. If *offset is no longer kept, it is moved to `begin` first. The caller advances it.
 */
bool output_read(const struct output *output, uint64_t *offset, enum output_stream *out_stream, struct str *out_bytes);

/* Memory of what a reader at `offset` has not read yet. */
size_t output_unread(const struct output *output, uint64_t offset);

/* Of all outputs together, to keep within LIMIT_OUTPUT_BYTES. */
size_t output_total(void);

#endif
