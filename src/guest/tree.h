/*
 * tree.h - all that a process has started.
 */
#ifndef GUEST_TREE_H
#define GUEST_TREE_H

#include <stdint.h>
#include <sys/types.h>

/*
 * SIGKILL to `leader` (if `leader_lives`), to everything in the session it leads, and to all their descendants. They are
 * stopped before, and looked for again until nobody new is found, because they may fork meanwhile. The caller waits a
 * tenth of a second at most, whatever they do.
 */
void tree_kill(pid_t leader, _Bool leader_lives);

/* The same for what it has started since a moment that tree_now() gave, a hundredth of a second sooner or later; not for `leader`. */
void tree_kill_since(pid_t leader, uint64_t since);
uint64_t tree_now(void);

#endif
