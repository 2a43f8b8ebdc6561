/*
 * tree.h - all that a process has started.
 */
#ifndef GUEST_TREE_H
#define GUEST_TREE_H

#include <sys/types.h>

/*
 * SIGKILL to `leader` (if `leader_lives`), to everything in the session it leads, and to all their descendants. Looks
 * again until nobody is left, because they may fork meanwhile.
 */
void tree_kill(pid_t leader, _Bool leader_lives);

#endif
