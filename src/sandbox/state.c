/*
 * The states of a sandbox, and what may follow what.
 *
 *                  ┌─► PAUSING ──► PAUSED ──► RESUMING ─┐
 *   STARTING ──► RUNNING ◄──────────────────────────────┘
 *                  └─► SNAPSHOTTING ──► RUNNING
 *
 *   any of these ──► STOPPING ◄──► ENDING ──► KILLED ──► GONE
 *
 * A pause that fails goes back to RUNNING, a resume that fails back to PAUSED. From each state in which it lives a sandbox
 * can be ended: a caller's worker enters ENDING at once, the sweep enters STOPPING and leaves that to a worker. From KILLED on
 * it is the loop's (end.c).
 * Of a pause, a resume or a snapshot one worker has the sandbox; when the driver has answered it looks whether the sandbox
 * was killed meanwhile, and then leaves it to the loop.
 */
#include <assert.h>

#include "base/log.h"
#include "sandbox/inside.h"

enum { END = BIT(SANDBOX_STOPPING) | BIT(SANDBOX_ENDING) };

static const struct {
    const char *name;
    unsigned may_become;
} states[SANDBOX_STATE_COUNT] = {
    /* PAUSING, PAUSED: recovery finds it so. */
    [SANDBOX_STARTING] = { "starting", BIT(SANDBOX_RUNNING) | BIT(SANDBOX_PAUSING) | BIT(SANDBOX_PAUSED) | END },
    [SANDBOX_RUNNING] = { "running", BIT(SANDBOX_PAUSING) | BIT(SANDBOX_SNAPSHOTTING) | END },
    [SANDBOX_PAUSING] = { "pausing", BIT(SANDBOX_PAUSED) | BIT(SANDBOX_RUNNING) | END },
    [SANDBOX_PAUSED] = { "paused", BIT(SANDBOX_RESUMING) | END },
    [SANDBOX_RESUMING] = { "resuming", BIT(SANDBOX_RUNNING) | BIT(SANDBOX_PAUSED) | END },
    [SANDBOX_SNAPSHOTTING] = { "snapshotting", BIT(SANDBOX_RUNNING) | END },
    [SANDBOX_STOPPING] = { "stopping", BIT(SANDBOX_ENDING) },
    [SANDBOX_ENDING] = { "ending", BIT(SANDBOX_STOPPING) | BIT(SANDBOX_KILLED) },
    [SANDBOX_KILLED] = { "killed", BIT(SANDBOX_GONE) },
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
    if (BIT(next) & END)
        sb->ends_on_disk |= sb->state == SANDBOX_PAUSED && sb->held > HELD_FROZEN;
    sb->state = next;
    pthread_cond_broadcast(&sb->all->changed);
    if (next == SANDBOX_PAUSED || next == SANDBOX_STOPPING)
        pthread_cond_broadcast(&sb->all->place_freed);
}

const char *sandbox_state_name(enum sandbox_state state)
{
    return states[state].name;
}

bool sandbox_state_is_seen(enum sandbox_state state)
{
    return state >= SANDBOX_RUNNING && state <= SANDBOX_SNAPSHOTTING;
}

bool sandbox_state_is_running(enum sandbox_state state)
{
    return state == SANDBOX_RUNNING || state == SANDBOX_SNAPSHOTTING;
}

/*
 * What is parked is paused: all of it is on disk, and nothing that the API has called paused is lost. What is frozen runs on,
 * unless the API has called it paused. A paused one that the driver does not hold is kept: resuming it tells that it is lost,
 * and nothing is ended because of a list that may be wrong.
 */
enum sandbox_state sandbox_state_found(enum sandbox_row_state row, unsigned held)
{
    enum { END_IT = SANDBOX_ENDING, RUN = SANDBOX_RUNNING, PAUSE = SANDBOX_PAUSED };
    static const unsigned char found[SANDBOX_ROW_STATE_COUNT][HELD_NOT + 1] = {
        /* running, frozen, parked, parked with an image, not held */
        [SANDBOX_ROW_STARTING] = { END_IT, END_IT, END_IT, END_IT, END_IT },
        [SANDBOX_ROW_RUNNING] = { RUN, RUN, PAUSE, PAUSE, END_IT },
        [SANDBOX_ROW_PAUSING] = { RUN, RUN, PAUSE, PAUSE, PAUSE },
        [SANDBOX_ROW_PAUSED] = { PAUSE, PAUSE, PAUSE, PAUSE, PAUSE },
        [SANDBOX_ROW_RESUMING] = { RUN, PAUSE, PAUSE, PAUSE, PAUSE },
        [SANDBOX_ROW_SNAPSHOTTING] = { RUN, RUN, PAUSE, PAUSE, END_IT },
    };

    return (enum sandbox_state)found[row][held];
}
