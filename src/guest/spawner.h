/*
 * spawner.h - a small process inside the user's cgroups from which commands are forked.
 *
 * Moving a process to another cgroup waits for an RCU grace period on an idle machine (11 to 14 ms on v1), and for a
 * lock that every fork takes on a busy one: a fork bomb in one sandbox made starts in all others take seconds. So the
 * move is made once, by the spawner, and each command is spawned where it belongs.
 *
 * Nothing depends on it. The guest's root can kill it; then it is started again with the next command. Where it cannot
 * fork because the sandbox has used up its processes, where it is not there or not ready, guestd forks and moves the
 * child itself.
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
 * A command; *out_asked tells whether the spawner was asked for it. *out_report_fd becomes readable when more is known:
 * spawn_outcome(). It is the caller's to close, not before it has told a pid or has ended: a child that is on its way
 * cannot be called back, only killed.
 */
bool spawner_start(struct spawner *spawner, const struct spawn *spawn, struct arena *arena, bool *out_asked,
                   int *out_report_fd, struct err *err) must_use;

/* On SIGCHLD: a spawner that the guest has stopped is replaced. What it was asked for and has not begun fails. */
void spawner_check(struct spawner *spawner);

/* A start that it was asked for took too long. What else it was asked for and has not begun fails with it. */
void spawner_restart(struct spawner *spawner);

#endif
