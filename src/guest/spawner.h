/*
 * spawner.h - a small process inside the user's cgroups from which commands are forked.
 *
 * Moving a process to another cgroup waits for an RCU grace period on an idle machine (11 to 14 ms on v1), and for a
 * lock that every fork takes on a busy one: a fork bomb in one sandbox made starts in all others take seconds. So the
 * move is made once, by the spawner, and each command is forked in the right cgroup.
 *
 * guestd can do without it. The guest's root can kill it; the next command starts it again. When it cannot fork because
 * the sandbox has used up its processes, or is dead or not ready, guestd forks and moves the child itself.
 *
 * Threads    The loop's.
 */
#ifndef GUEST_SPAWNER_H
#define GUEST_SPAWNER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"
#include "guest/spawn.h"
#include "io/loop.h"

struct spawner;

/* cgroup_fds are the cgroup.procs files to enter; they stay the caller's and must stay open. */
struct spawner *spawner_new(struct loop *loop, const int *cgroup_fds, size_t cgroup_count) must_use;
void spawner_free(struct spawner *spawner);

/*
 * A command; *out_asked says whether the request went to the spawner. *out_report_fd becomes readable when more is
 * known: spawn_outcome(). The caller closes it, but not before it has reported a pid or has ended: a start cannot be
 * cancelled, only killed.
 */
bool spawner_start(struct spawner *spawner, const struct spawn *spawn, struct arena *arena, bool *out_asked,
                   int *out_report_fd, struct err *err) must_use;

/* On SIGCHLD: replaces a spawner that the guest has stopped. Requests that it has not begun fail. */
void spawner_check(struct spawner *spawner);

/* A start took too long: replace the spawner. Other requests that it has not begun fail too. */
void spawner_restart(struct spawner *spawner);

#endif
