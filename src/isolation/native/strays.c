#include "isolation/native/strays.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    LOOK_MS = 4000,   /* a fork ends by itself if guestd does not move it for three seconds (enter.c) */
    STRAYS_MAX = 512, /* of one look; others are seen at the next one. A zygote makes 16 in a second if all get stuck */
};

struct stray {
    pid_t pid;
    int pidfd;
};

struct strays {
    struct loop *loop;
    const struct cgroups *cgroups;
    const char *cgroup;
    pid_t zygote;
    struct timer look;
    struct stray seen[STRAYS_MAX];
    unsigned count;
};

static bool pid_namespace_of(pid_t pid, struct stat *out)
{
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
    return stat(path, out) == 0;
}

/* The zygote's other forks, which wait for an order or are about to enter, share its pid namespace. */
static bool is_inside(const struct strays *strays, pid_t pid)
{
    struct stat own, zygotes;

    return pid_namespace_of(pid, &own) && pid_namespace_of(strays->zygote, &zygotes) && own.st_ino != zygotes.st_ino;
}

/* A process of that number, or of none: the number may have been given again. */
static int take_seen(struct strays *strays, pid_t pid)
{
    for (unsigned i = 0; i < strays->count; i++)
        if (strays->seen[i].pid == pid)
            return take_fd(&strays->seen[i].pidfd);
    return -1;
}

struct round {
    struct strays *strays;
    struct stray found[STRAYS_MAX];
    unsigned count;
};

/* Each tree names it again. */
static bool is_found(const struct round *round, pid_t pid)
{
    for (unsigned i = 0; i < round->count; i++)
        if (round->found[i].pid == pid)
            return true;
    return false;
}

static bool look_at(void *context, pid_t pid)
{
    struct round *round = context;

    if (is_found(round, pid) || !is_inside(round->strays, pid))
        return true;
    auto_close int pidfd = take_seen(round->strays, pid);
    if (pidfd >= 0) {
        log_debug("zygotes: process %d got stuck on its way into a sandbox: killed", pid);
        (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0); /* or it has ended, and the number is another's now */
        return true;
    }
    /* A zygote that a hostile template has changed can have any number of them. */
    if (round->count < STRAYS_MAX && (pidfd = pidfd_open(pid, 0)) >= 0)
        round->found[round->count++] = (struct stray){ .pid = pid, .pidfd = take_fd(&pidfd) };
    return true;
}

static void forget(struct strays *strays)
{
    while (strays->count)
        fd_close(&strays->seen[--strays->count].pidfd);
}

static void look(struct timer *timer)
{
    struct strays *strays = container_of(timer, struct strays, look);
    struct round round = { .strays = strays };

    cgroup_each_user_anywhere(strays->cgroups, strays->cgroup, look_at, &round);
    forget(strays);
    for (; strays->count < round.count; strays->count++)
        strays->seen[strays->count] = round.found[strays->count];
    timer_set(&strays->look, strays->loop, LOOK_MS, look);
}

struct strays *strays_new(struct loop *loop, const struct cgroups *cgroups, const char *cgroup, pid_t zygote)
{
    struct strays *strays = NEW(struct strays);

    strays->loop = loop;
    strays->cgroups = cgroups;
    strays->cgroup = cgroup;
    strays->zygote = zygote;
    timer_set(&strays->look, loop, LOOK_MS, look);
    return strays;
}

void strays_free(struct strays *strays)
{
    if (!strays)
        return;
    timer_clear(&strays->look);
    forget(strays);
    free(strays);
}
