/*
 * tree.h - all that a process has started.
 */
#ifndef GUEST_TREE_H
#define GUEST_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "io/loop.h"

/*
 * A command or an interpreter: its leader and all in its session. What has detached itself on purpose does not belong
 * to it and lives on: a process that has made a session of its own (setsid, a daemon), and one that ignores SIGHUP
 * (nohup), unless the leader ignores it too, because then everything it starts does.
 */
struct tree {
    pid_t leader;
    pid_t session; /* the leader's at its start: its own, or one whose leader is gone */
    bool leader_lives;
};

/*
 * SIGKILL to the whole tree. Its processes are stopped before, and looked at again until all stand still, because they
 * may fork meanwhile. Usually done on return; of a fork bomb the rest is killed in later turns of the loop, which never
 * waits for long.
 */
void tree_kill(struct loop *loop, const struct tree *tree);

/*
 * The same for what the leader has started since a moment that tree_now() gave, give or take a hundredth of a second,
 * and not for itself. False when some of it still runs: to be called again, before anybody starts something that is to
 * live.
 */
bool tree_kill_since(const struct tree *tree, uint64_t since) must_use;
uint64_t tree_now(void);

#endif
