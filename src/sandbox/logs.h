/*
 * logs.h - the log of each sandbox: which commands began and ended, and what was refused, in bounded memory.
 *
 * guestlink stays open after the start, and guestd sends lines on it, a few times a second at most. The newest
 * LIMIT_LOG_BYTES of each sandbox are kept, and outlive it for as long as its metrics do. A link on which guestd sends more
 * than it may, or what does not decode, is closed.
 *
 * The lines end with front. guestd keeps what was not taken, and sends it to the next front.
 *
 * Threads    Any, unless said; a lock of its own, held for memory only.
 */
#ifndef SANDBOX_LOGS_H
#define SANDBOX_LOGS_H

#include "io/loop.h"
#include "sandbox/sandbox.h"
#include "wire/guestlink.h"

struct logs;

struct logs *logs_new(struct loop *loop) must_use;
void logs_free(struct logs *logs); /* when the loop has ended, or on it */

/* Takes the descriptor, on which guestd got SETUP or LISTEN. No line is dated before begun_us. Again with a new link. */
void logs_begin(struct logs *logs, struct str team_id, struct str id, int64_t begun_us, int guestlink_fd);
void logs_end(struct logs *logs, struct str id, int64_t now_us);

/* Adds a line; dropped unless the sandbox has a log. Long texts are cut. */
void logs_add(struct logs *logs, struct str id, const struct sandbox_log *log);

enum logs_told {
    LOGS_TOLD,
    LOGS_NO_LINK,
    LOGS_CUT, /* guestd does not read, so the link was cut: it needs a new one */
};

/* Tells guestd what the sandbox can reach (GUESTLINK_NETWORK). Does not wait. */
enum logs_told logs_tell_network(struct logs *logs, struct str id, const struct guestlink_network *network);

void logs_get(struct logs *logs, struct str team_id, struct str id, int64_t from_us, int64_t to_us, struct arena *arena,
              struct sandbox_log **out, size_t *out_count);

#endif
