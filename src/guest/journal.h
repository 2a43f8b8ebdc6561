/*
 * journal.h - tells the host which processes begin and end.
 *
 * Lines are sent together, a few times a second at most, so that a line costs a command no system call. While the host
 * is slow or away, LIMIT_LOG_BATCH lines are kept and newer ones only counted. A line has a command, up to
 * LIMIT_LOG_TEXT_BYTES of it; never variables, input or output.
 *
 * Threads    The loop's.
 */
#ifndef GUEST_JOURNAL_H
#define GUEST_JOURNAL_H

#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/str.h"
#include "io/loop.h"
#include "io/stream.h"

struct journal;

struct journal *journal_new(struct loop *loop) must_use;
void journal_free(struct journal *journal);

/* From now on lines go there, the ones that the listener before has not taken first. */
void journal_listen(struct journal *journal, struct stream *listener);
void journal_leave(struct journal *journal); /* there is no listener, until the next */
void journal_taken(struct journal *journal); /* the listener has the last LOG */

/* A NULL journal takes nothing. `text` may be cut short, and is made UTF-8. */
void journal_started(struct journal *journal, pid_t pid, struct str command);
void journal_ended(struct journal *journal, pid_t pid, int status, uint64_t output_bytes);

#endif
