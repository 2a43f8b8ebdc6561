/*
 * The start command of a template, and the wait until it is ready.
 *
 * The start command runs in the background. The ready command runs again and again, with a pause after each failure, until
 * it succeeds. If the start command fails before that, nothing will get ready any more; if it ends well, it has perhaps left
 * something running, and the wait goes on.
 */
#include <stdio.h>

#include "base/clock.h"
#include "template/inside.h"
#include "template/start.h"

#define READY_DEFAULT "sleep 20" /* with a start command alone */

enum { RETRY_FIRST_MS = 50, RETRY_MS = 2000 }; /* the pause grows from the one to the other: a create waits for it */

static struct run *begin(struct sandboxes *sandboxes, const struct starting *want, struct str text,
                         void (*output)(void *context, enum run_stream stream, struct str bytes), void *context,
                         struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    struct run *run = run_begin(sandboxes,
                                &(struct run_want){ .sandbox_id = want->sandbox_id,
                                                    .user = want->chain->user.len ? want->chain->user : STR("root"),
                                                    .workdir = want->chain->workdir,
                                                    .env_count = want->chain->env_count,
                                                    .envs = chain_envs(want->chain, &arena),
                                                    .command = text,
                                                    .output = output,
                                                    .context = context },
                                err);
    arena_done(&arena);
    return run;
}

/* Is it still possible that it gets ready? */
static bool start_is_well(struct run *start, struct err *err)
{
    const struct run_result *result = start ? run_result(start) : NULL;

    if (!result || result->state == RUN_GOING || (result->state == RUN_EXITED && result->exit_code == 0))
        return true;
    return err_set(err, result->state == RUN_LOST ? ERR_UNAVAILABLE : ERR_INVALID, "start command failed: %s",
                   result->text);
}

/* One turn of waiting for both, until then at the latest. */
static bool turn(const struct starting *want, struct run *start, struct run *ready, uint64_t until_ms, struct err *err)
{
    struct run *both[] = { start, ready };

    runs_await(both, 2, MIN(until_ms, clock_mono_ms() + BUILD_LOOK_MS));
    if (!start_is_well(start, err) || (want->goes_on && !want->goes_on(want->context, err)))
        return false;
    return clock_mono_ms() < want->until_ms ||
           err_set(err, ERR_TIMEOUT, "ready command failed: ready command timed out after %llus",
                   (unsigned long long)(want->most_ms / 1000));
}

/* *out_ready: it has succeeded. */
static bool ask_ready(struct sandboxes *sandboxes, const struct starting *want, struct run *start, bool *out_ready,
                      struct err *err)
{
    struct run *run = begin(sandboxes, want, want->ready_cmd, want->ready_output, want->context, err);
    bool ok = run != NULL;

    while (ok && run_result(run)->state == RUN_GOING)
        ok = turn(want, start, run, UINT64_MAX, err);
    if (ok) {
        const struct run_result *result = run_result(run);
        *out_ready = result->state == RUN_EXITED && result->exit_code == 0;
        if (result->state == RUN_REFUSED || result->state == RUN_LOST)
            ok = err_set(err, result->state == RUN_LOST ? ERR_UNAVAILABLE : ERR_INVALID, "ready command failed: %s",
                         result->text);
    }
    run_free(run);
    return ok;
}

static bool await_ready(struct sandboxes *sandboxes, const struct starting *want, struct run *start, struct err *err)
{
    uint64_t pause_ms = RETRY_FIRST_MS;
    bool is_ready = false;

    while (ask_ready(sandboxes, want, start, &is_ready, err)) {
        if (is_ready)
            return true;
        for (uint64_t until_ms = clock_mono_ms() + pause_ms; clock_mono_ms() < until_ms;)
            if (!turn(want, start, NULL, until_ms, err))
                return false;
        pause_ms = MIN(2 * pause_ms, (uint64_t)RETRY_MS);
    }
    return false;
}

struct str ready_or_default(struct str start_cmd, struct str ready_cmd)
{
    return ready_cmd.len || !start_cmd.len ? ready_cmd : STR(READY_DEFAULT);
}

bool start_and_wait(struct sandboxes *sandboxes, const struct starting *want, struct err *err)
{
    struct run *start = NULL;

    if (want->start_cmd.len) {
        start = begin(sandboxes, want, want->start_cmd, want->start_output, want->context, err);
        if (!start)
            return false;
    }
    bool ok = !want->ready_cmd.len || await_ready(sandboxes, want, start, err);
    run_free(start); /* it goes on */
    return ok;
}

static bool server_goes_on(void *context, struct err *err)
{
    return !sandboxes_is_stopping(context) || err_set(err, ERR_UNAVAILABLE, "the server is being stopped");
}

bool template_start(struct sandboxes *sandboxes, const struct start_want *want, struct err *err)
{
    struct chain chain = { .user = want->context.user, .workdir = want->context.workdir };
    uint64_t now_ms = clock_mono_ms(), most_ms = want->until_ms > now_ms ? want->until_ms - now_ms : 0;
    struct arena arena;

    arena_init(&arena);
    bool ok = envs_read(want->context.envs, &arena, &chain, err) &&
              start_and_wait(sandboxes,
                             &(struct starting){ .sandbox_id = want->sandbox_id,
                                                 .start_cmd = want->start_cmd,
                                                 .ready_cmd = ready_or_default(want->start_cmd, want->ready_cmd),
                                                 .chain = &chain,
                                                 .until_ms = want->until_ms,
                                                 .most_ms = most_ms,
                                                 .goes_on = server_goes_on,
                                                 .context = sandboxes },
                             err);
    arena_done(&arena);
    return ok;
}
