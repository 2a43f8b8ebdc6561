/*
 * metrics.h - what sandboxes have used, over time, in bounded memory.
 *
 * Of each sandbox two series are kept: the last hour as it was sampled, and its whole life. The latter halves itself
 * when it is full: two neighbours become one and from then on every sample spans twice the time, so that a day costs no
 * more than an hour. Histories outlive their sandboxes for a while, because people ask after the fact. All of it is in
 * memory: figures of a run that our own restart interrupted begin anew.
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

/* A sandbox runs. Its first sample counts from started_us. */
void metrics_begin(struct metrics *metrics, struct str team_id, struct str id, uint32_t cpu_count, int64_t started_us);
/* Of one that has begun; of any other it is dropped. */
void metrics_add(struct metrics *metrics, const struct stats *stats, int64_t now_us);
/* It is gone; what there is of it stays for LIMIT_METRICS_KEPT_S, if so many others do not push it out. */
void metrics_end(struct metrics *metrics, struct str id, int64_t now_us);

/*
 * Oldest first, of the team's own. start_us 0 is its beginning, end_us 0 its last sample. The longer the span, the wider
 * the steps between samples. None of a sandbox that is not known (any more).
 */
void metrics_get(struct metrics *metrics, struct str team_id, struct str id, int64_t start_us, int64_t end_us,
                 struct arena *arena, struct sandbox_metric **out, size_t *out_count);
/* The newest, if there is one. */
bool metrics_latest(struct metrics *metrics, struct str team_id, struct str id, struct sandbox_metric *out) must_use;

#endif
