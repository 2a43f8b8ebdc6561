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
 * SIGKILL to `leader` (if `leader_lives`), to everything in the session it leads, and to all their descendants. They are
 * stopped before, and looked at again until all stand still, because they may fork meanwhile. Usually done on return; of a
 * fork bomb the rest is killed in later turns of the loop, which never waits for long.
 */
void tree_kill(struct loop *loop, pid_t leader, bool leader_lives);

/*
 * The same for what `leader` has started since a moment that tree_now() gave, give or take a hundredth of a second, and not
 * for itself. False when some of it still runs: to be called again, before anybody starts something that is to live.
 */
bool tree_kill_since(pid_t leader, uint64_t since) must_use;
uint64_t tree_now(void);

#endif
