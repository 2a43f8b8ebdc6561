#include "isolation/native/tighten.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/helper.h"

enum {
    FIRST_MS = 1000,
    LONGEST_MS = 16000, /* between two attempts, each of which waits twice as long as the one before */
    TRY_MS = 10000,     /* for the kernel to take memory back */
};

struct tighten {
    struct box *box;
    struct cgroup_limits limits;
    struct cgroup_reins reins; /* while there is a helper */
    struct timer timer;
    struct helper *helper;
    uint64_t pause_ms;
};

static void try_again(struct timer *timer);

static void wait_longer(struct tighten *tighten)
{
    timer_set(&tighten->timer, tighten->box->native->loop, tighten->pause_ms, try_again);
    tighten->pause_ms = MIN(2 * tighten->pause_ms, (uint64_t)LONGEST_MS);
}

static bool work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct tighten *tighten = context;

    (void)voice;
    return cgroup_tighten(&tighten->reins, &tighten->limits, err);
}

static void ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct tighten *tighten = context;

    (void)figures;
    tighten->helper = NULL;
    cgroup_close_reins(&tighten->reins);
    if (err) {
        log_debug("native: sandbox %s still has a higher limit: %s", tighten->box->id, err_text(err));
        wait_longer(tighten);
        return;
    }
    log_info("native: sandbox %s has its limit of %llu MiB again", tighten->box->id,
             (unsigned long long)tighten->limits.memory_bytes >> 20);
    tighten_forget(tighten->box);
}

static void give(struct helper_job *job, int fd)
{
    if (fd >= 0)
        job->dirs[job->dir_count++] = (struct helper_dir){ fd, HELPER_HOLD };
}

static bool start(struct tighten *tighten, struct err *err)
{
    struct native *native = tighten->box->native;
    struct helper_job job = { .work = work, .ended = ended, .context = tighten, .patience_ms = TRY_MS };

    if (!cgroup_open_reins(native->cgroups, tighten->box->id, &tighten->reins, err))
        return false;
    for (size_t i = 0; i < tighten->reins.count; i++) {
        give(&job, tighten->reins.fds[i]);
        give(&job, tighten->reins.above_fds[i]);
    }
    give(&job, tighten->reins.events_fd);
    give(&job, tighten->reins.current_fd);
    give(&job, tighten->reins.reclaim_fd);
    tighten->helper = helper_start(native->helpers, &job, err);
    if (!tighten->helper)
        cgroup_close_reins(&tighten->reins);
    return tighten->helper != NULL;
}

static void try_again(struct timer *timer)
{
    struct tighten *tighten = container_of(timer, struct tighten, timer);
    struct err err;

    if (start(tighten, &err))
        return;
    log_debug("native: sandbox %s still has a higher limit: %s", tighten->box->id, err_text(&err));
    wait_longer(tighten);
}

void tighten_later(struct box *box, const struct cgroup_limits *limits)
{
    tighten_forget(box);
    box->tighten = NEW(struct tighten);
    *box->tighten = (struct tighten){ .box = box, .limits = *limits, .pause_ms = FIRST_MS };
    wait_longer(box->tighten);
}

void tighten_forget(struct box *box)
{
    struct tighten *tighten = take_ptr(&box->tighten);

    if (!tighten)
        return;
    timer_clear(&tighten->timer);
    if (tighten->helper) {
        helper_cancel(tighten->helper);
        cgroup_close_reins(&tighten->reins);
    }
    free(tighten);
}
