/*
 * metrics.h - the use of CPU, memory, disk and network over time, in bounded memory.
 *
 * Each sandbox has two series: the last hour as it was sampled, and its whole life. When the second is full, each two
 * neighbours are merged and from then on every sample spans twice the time, so that a day costs no more than an hour.
 * Histories are kept for a while after the end of their sandboxes. All of it is in memory: after a restart of front they
 * begin anew.
 *
 * Threads    Any; a lock of its own, held for memory only.
 */
#ifndef SANDBOX_METRICS_H
#define SANDBOX_METRICS_H

#include "isolation/driver.h"
#include "sandbox/sandbox.h"

struct metrics;

struct metrics *metrics_new(void) must_use;
void metrics_free(struct metrics *metrics);

/* A sandbox runs, perhaps again: its history then goes on. Its next sample counts from started_us. */
void metrics_begin(struct metrics *metrics, struct str team_id, struct str id, uint32_t cpu_count, int64_t started_us);
/* Adds a sample; dropped unless metrics_begin() was called for its sandbox. */
void metrics_add(struct metrics *metrics, const struct stats *stats, int64_t now_us);
/* Traffic since the last call. Counted from now on, and in every sample from the next one on. */
void metrics_add_traffic(struct metrics *metrics, struct str id, const struct sandbox_traffic *more);
/* It is gone. Its history stays for LIMIT_METRICS_KEPT_S, unless LIMIT_METRICS_KEPT later ones push it out. */
void metrics_end(struct metrics *metrics, struct str id, int64_t now_us);

/*
 * Oldest first, for the team's own sandboxes. start_us 0 is its beginning, end_us 0 its last sample. The longer the span,
 * the wider the steps between samples. None for a sandbox that is not known or no longer.
 */
void metrics_get(struct metrics *metrics, struct str team_id, struct str id, int64_t start_us, int64_t end_us,
                 struct arena *arena, struct sandbox_metric **out, size_t *out_count);
/* The newest, if there is one. */
bool metrics_latest(struct metrics *metrics, struct str team_id, struct str id, struct sandbox_metric *out) must_use;

#endif
