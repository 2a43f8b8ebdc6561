/*
 * journal.h - what happens to processes, told to the host.
 *
 * Lines wait for company and are sent together, a few times a second at most, so that a command costs no system call
 * more for being told about. If the host is slow to take them, newer ones are counted instead of kept. Without a
 * listener nothing is remembered. Commands are told, up to LIMIT_LOG_TEXT_BYTES of them; variables, input and output
 * never are.
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

/* From now on it is told, and nobody else. */
void journal_listen(struct journal *journal, struct stream *listener);
void journal_leave(struct journal *journal, const struct stream *listener); /* fine when it does not listen */

/* A NULL journal takes nothing. `text` may be cut short, and is made UTF-8. */
void journal_started(struct journal *journal, pid_t pid, struct str command);
void journal_ended(struct journal *journal, pid_t pid, int status, uint64_t output_bytes);

#endif
