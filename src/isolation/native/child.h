/*
 * child.h - the way from keeper's fork to guestd, inside the new sandbox.
 */
#ifndef ISOLATION_NATIVE_CHILD_H
#define ISOLATION_NATIVE_CHILD_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/native.h"
#include "isolation/native/network_rules.h"

/*
 * Over the control socket (SOCK_SEQPACKET):
 *   keeper -> child   CHILD_GO with three descriptors: root, devices (detached mounts), the socket for handovers
 *   child -> keeper   CHILD_NETWORK before CHILD_GO, when it is in its cgroup, loopback is up and the rules hold
 *   child -> keeper   CHILD_READY when all is done and exec is next, with the filter's listener (options.h) if it has one;
 *                     CHILD_FAILED and a packed error otherwise
 * The child's end closes on exec: end-of-file after CHILD_READY means that guestd runs. If keeper's end closes before
 * CHILD_GO, keeper has died, and the child exits too.
 */
enum { CHILD_NETWORK = 'n', CHILD_GO = 'g', CHILD_READY = 'r', CHILD_FAILED = 'f' };
enum { CHILD_ROOT, CHILD_DEVICES, CHILD_HANDOVER, CHILD_FDS };

/* The descriptors that guestd finds; see native.h's contract with it in guest/. */
enum {
    GUESTD_HANDOVER_FD = 3, /* listening: keeper gives guestlink and other descriptors there (wire/handover.h) */
    GUESTD_CGROUP_FD = 4,   /* and the following: cgroup.procs of the user cgroup, write-only, one a tree */
};

enum { GUEST_TERMINALS = 256 }; /* a sandbox's share of the machine's */

struct child_setup {
    int keeper_fd;  /* keeper's end of the control socket, to be closed */
    int control_fd; /* ours */
    int guestd_fd;
    int claim_fd, lock_fd;            /* on the sandbox and on the data directory, held by us too */
    int gate_fd;                      /* for tests: -1, or to be read from before the network is set up */
    int entry_fds[CGROUP_TREE_COUNT]; /* to enter <id> by, where we were not born there */
    size_t entry_count;
    int guestd_cgroup_fds[CGROUP_TREE_COUNT]; /* to enter the guestd leaf by, from there; none on v1 */
    size_t guestd_cgroup_count;
    int cgroup_fds[CGROUP_TREE_COUNT]; /* guestd's */
    size_t cgroup_count;
    const struct network_rules *rules; /* NULL: it has no network */
    const char *hostname;
    uint64_t memory_bytes;
    const struct sock_fprog *filter;
    enum native_step fail_at;
};

no_return void native_child(const struct child_setup *setup);

/* The limits of the namespaces that we are in; /proc is below root_fd. */
bool child_write_knobs(int root_fd, struct err *err) must_use;

#endif
