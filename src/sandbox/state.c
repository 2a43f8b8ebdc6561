/*
 * The states of a sandbox, and what may follow what.
 *
 *                  ┌─► PAUSING ──► PAUSED ──► RESUMING ─┐
 *   STARTING ──► RUNNING ◄──────────────────────────────┘
 *                  └─► SNAPSHOTTING ──► RUNNING
 *
 *   any of these ──► STOPPING ◄──► ENDING ──► GONE
 *                                   └─► KILLED ◄──► REAPING ──► GONE
 *
 * A pause that fails goes back to RUNNING, a resume that fails back to PAUSED. From each state in which it lives a sandbox
 * can be ended: a caller's worker enters ENDING at once, the sweep enters STOPPING and leaves the rest to a worker.
 * No API enters PAUSING, RESUMING or SNAPSHOTTING yet; a row in such a state is understood by recovery.
 */
#include <assert.h>

#include "base/log.h"
#include "sandbox/inside.h"

enum { END = BIT(SANDBOX_STOPPING) | BIT(SANDBOX_ENDING) };

static const struct {
    const char *name;
    unsigned may_become;
} states[SANDBOX_STATE_COUNT] = {
    /* PAUSED: recovery finds it so. */
    [SANDBOX_STARTING] = { "starting", BIT(SANDBOX_RUNNING) | BIT(SANDBOX_PAUSED) | END },
    [SANDBOX_RUNNING] = { "running", BIT(SANDBOX_PAUSING) | BIT(SANDBOX_SNAPSHOTTING) | END },
    [SANDBOX_PAUSING] = { "pausing", BIT(SANDBOX_PAUSED) | BIT(SANDBOX_RUNNING) | END },
    [SANDBOX_PAUSED] = { "paused", BIT(SANDBOX_RESUMING) | END },
    [SANDBOX_RESUMING] = { "resuming", BIT(SANDBOX_RUNNING) | BIT(SANDBOX_PAUSED) | END },
    [SANDBOX_SNAPSHOTTING] = { "snapshotting", BIT(SANDBOX_RUNNING) | END },
    [SANDBOX_STOPPING] = { "stopping", BIT(SANDBOX_ENDING) },
    [SANDBOX_ENDING] = { "ending", BIT(SANDBOX_STOPPING) | BIT(SANDBOX_KILLED) | BIT(SANDBOX_GONE) },
    [SANDBOX_KILLED] = { "killed", BIT(SANDBOX_REAPING) },
    [SANDBOX_REAPING] = { "reaping", BIT(SANDBOX_KILLED) | BIT(SANDBOX_GONE) },
    [SANDBOX_GONE] = { "gone", 0 },
};

bool sandbox_may_enter(enum sandbox_state from, enum sandbox_state next)
{
    return states[from].may_become & BIT(next);
}

void sandbox_enter(struct sandbox *sb, enum sandbox_state next)
{
    assert(sandbox_may_enter(sb->state, next));
    log_debug("sandbox %s: %s -> %s", sb->id, states[sb->state].name, states[next].name);
    sb->state = next;
    pthread_cond_broadcast(&sb->all->changed);
}

const char *sandbox_state_name(enum sandbox_state state)
{
    return states[state].name;
}

/*
 * A PAUSED sandbox may exist only on disk: keep it. PAUSING/RESUMING: RUNNING if the driver has it, else PAUSED;
 * resuming then shows whether the image is complete.
 */
enum sandbox_state sandbox_state_found(enum sandbox_row_state row, bool held)
{
    static const enum sandbox_state found[SANDBOX_ROW_STATE_COUNT][2] = {
        /* not held, held */
        [SANDBOX_ROW_STARTING] = { SANDBOX_ENDING, SANDBOX_ENDING },
        [SANDBOX_ROW_RUNNING] = { SANDBOX_ENDING, SANDBOX_RUNNING },
        [SANDBOX_ROW_PAUSING] = { SANDBOX_PAUSED, SANDBOX_RUNNING },
        [SANDBOX_ROW_PAUSED] = { SANDBOX_PAUSED, SANDBOX_PAUSED },
        [SANDBOX_ROW_RESUMING] = { SANDBOX_PAUSED, SANDBOX_RUNNING },
        [SANDBOX_ROW_SNAPSHOTTING] = { SANDBOX_ENDING, SANDBOX_RUNNING },
    };

    return found[row][held];
}
