/*
 * tree.h - kills a process and all that it has started.
 */
#ifndef GUEST_TREE_H
#define GUEST_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "io/loop.h"

/*
 * A command or an interpreter: its leader and all processes in its session. Processes that have detached themselves on
 * purpose do not belong to it and live on: those with a session of their own (setsid, a daemon), and those that ignore
 * SIGHUP (nohup), unless the leader ignores it too, because then everything it starts does.
 */
struct tree {
    pid_t leader;
    pid_t session; /* the leader's at its start: its own, or one whose leader is gone */
    bool leader_lives;
};

/*
 * SIGKILL to the whole tree. Its processes are stopped first, again and again until all are, because they may fork
 * meanwhile. Usually done on return; the rest of a fork bomb is killed in later turns of the loop, which is never
 * blocked for long.
 */
void tree_kill(struct loop *loop, const struct tree *tree);

/*
 * The same for what the leader has started since a moment that tree_now() gave, within a hundredth of a second, and not
 * for the leader. False when some of it still runs: call it again, before anything is started that shall live.
 */
bool tree_kill_since(const struct tree *tree, uint64_t since) must_use;
uint64_t tree_now(void);

#endif
