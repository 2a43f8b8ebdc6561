/*
 * midwife.h - between the mother's Python (driver/nursery.py), keeper and midwife.c.
 *
 * Freestanding: midwife.c has no C library. nursery.py repeats the struct and the letters; its nursery test would fail if
 * they differed.
 */
#ifndef ISOLATION_NATIVE_MIDWIFE_H
#define ISOLATION_NATIVE_MIDWIFE_H

#include <linux/sched.h>
#include <stdint.h>

/* All that a sandbox has. The mother's filter allows her to enter exactly this and nothing less. */
#define MIDWIFE_NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

/*
 * The mother to A, over the order's socket: a letter, and descriptors in this order. C closes its end when it is confined
 * and no longer in her cgroup: for the mother that is the end of a birth.
 */
enum { MIDWIFE_DELIVER = 'd', MIDWIFE_BURY = 'b' };
enum { MIDWIFE_ORDER_DOOR, MIDWIFE_ORDER_PIDFD, MIDWIFE_ORDER_FDS };

struct midwife_hooks {
    void (*before_fork)(void), (*after_fork_parent)(void), (*after_fork_child)(void); /* Python's */
    int (*fork)(void);                                                                /* the C library's */
    int64_t rseq_offset; /* where the C library keeps its struct rseq, from the thread pointer; 0: it has none */
};

/* Once. 0, or -errno: then there are no births. */
int midwife_open(const struct midwife_hooks *from_mother);

/*
 * In the mother: the pid of a child that waits for its order on order_fd, or below 0. In the interpreter, once it is born
 * and confined: 0, and its three descriptors.
 */
int midwife_spare(int order_fd, int out_fds[3]);

#endif
