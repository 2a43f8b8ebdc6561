/*
 * enter.h - what the zygote's Python (driver/zygote_outside.py), keeper and enter.c agree on.
 *
 * Freestanding: enter.c has no C library. zygote_outside.py repeats the struct and the letters; its zygotes test would fail if
 * they differed.
 */
#ifndef ISOLATION_NATIVE_ENTER_H
#define ISOLATION_NATIVE_ENTER_H

#include <linux/sched.h>
#include <stdint.h>

/* All that a sandbox has. The zygote's seccomp filter allows setns() with exactly these flags. */
#define ENTER_NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

/*
 * The zygote to A, over the order's socket: a letter, and descriptors in this order. C closes its end when it is confined
 * and no longer in the zygote's cgroup: for the zygote that is the end of a spawn.
 */
enum { ENTER_SANDBOX = 'd', ENTER_DROP = 'b' };
enum { ENTER_ORDER_SOCKET, ENTER_ORDER_PIDFD, ENTER_ORDER_FDS };

struct enter_hooks {
    void (*before_fork)(void), (*after_fork_parent)(void), (*after_fork_child)(void); /* Python's */
    int (*fork)(void);                                                                /* the C library's */
    int64_t rseq_offset; /* where the C library keeps its struct rseq, from the thread pointer; 0: it has none */
};

/* Once. 0, or -errno: then there are no spawns. */
int enter_open(const struct enter_hooks *from_zygote);

/*
 * In the zygote: the pid of a child that waits for its order on order_fd, or below 0. In the interpreter, once it is spawned
 * and confined: 0, and its three descriptors.
 */
int enter_spare(int order_fd, int out_fds[3]);

#endif
