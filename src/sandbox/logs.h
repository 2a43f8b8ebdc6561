/*
 * logs.h - what guestd tells about the processes of its sandbox, in bounded memory.
 *
 * The connection to guestd's private door stays open after the start, and guestd tells on it, a few times a second at
 * most, which commands have begun and ended. The newest LIMIT_LOG_BYTES of each sandbox are kept, and outlive it for as
 * long as its metrics do. A guestd that tells more than it may, or what does not decode, is not listened to any more.
 *
 * What is kept ends with us; what guestd has yet to tell does not. A message is taken off the connection whole or not at
 * all, so that whoever comes after us, at whatever moment we die, goes on with the next one.
 *
 * Threads    Any, unless said; a lock of its own, held for memory only.
 */
#ifndef SANDBOX_LOGS_H
#define SANDBOX_LOGS_H

#include "io/loop.h"
#include "sandbox/sandbox.h"

struct logs;

struct logs *logs_new(struct loop *loop) must_use;
void logs_free(struct logs *logs); /* when the loop has ended, or on it */

/* Takes the descriptor, on which guestd was asked to tell, by us or by those before us. No line is before begun_us. */
void logs_begin(struct logs *logs, struct str team_id, struct str id, int64_t begun_us, int guestlink_fd);
void logs_end(struct logs *logs, struct str id, int64_t now_us);

void logs_get(struct logs *logs, struct str team_id, struct str id, int64_t from_us, int64_t to_us, struct arena *arena,
              struct sandbox_log **out, size_t *out_count);

#endif
