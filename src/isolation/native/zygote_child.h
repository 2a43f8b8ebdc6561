/*
 * zygote_child.h - the way from keeper's fork to a zygote: a python3 of the template, outside all sandboxes. See zygotes.h.
 */
#ifndef ISOLATION_NATIVE_ZYGOTE_CHILD_H
#define ISOLATION_NATIVE_ZYGOTE_CHILD_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "isolation/native/cgroup.h"

/* The descriptors that the zygote finds; 1 and 2 are /dev/null. */
enum {
    ZYGOTE_CONTROL_FD = 0, /* SOCK_SEQPACKET from keeper */
    ZYGOTE_ENTER_FD = 3,   /* enter.so, read-only */
    ZYGOTE_REPORT_FD = 4,  /* a pipe to keeper */
};

/*
 *   control   keeper -> zygote, after the two texts of ZYGOTE_BOOT: ZYGOTE_SOCKET, the
 *             sandbox's slot (4 bytes, ours) and descriptors as enter.h orders them: a later socket of a slot takes the
 *             place of the one before. The zygote ends when it closes.
 *   report    zygote -> keeper, a letter each: ZYGOTE_READY once; ZYGOTE_TAKEN for each socket; ZYGOTE_BUSY before it does
 *             something that may take long, ZYGOTE_IDLE after it; ZYGOTE_WARM once, when its imports are done; ZYGOTE_FAILED
 *             and a sentence when it cannot start.
 *             A pipe, because a socket carries descriptors: closing the last reference to one can take as long as its
 *             sender likes, and keeper must not wait.
 */
enum {
    ZYGOTE_SOCKET = 'd',
    ZYGOTE_READY = 'r',
    ZYGOTE_TAKEN = 't',
    ZYGOTE_BUSY = 'b',
    ZYGOTE_IDLE = 'i',
    ZYGOTE_WARM = 'w',
    ZYGOTE_FAILED = 'f',
};

/* clone3's flags. Not user: the sandboxes' user namespaces are below the zygote's. Not pid: it must see their processes. */
#define ZYGOTE_NAMESPACES (CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

struct zygote_setup {
    int keeper_fd;             /* keeper's end of the control socket, to be closed */
    int control_fd, report_fd; /* the zygote's */
    int root_fd, devices_fd;   /* detached mounts */
    int enter_fd;
    int cgroup_fds[CGROUP_TREE_COUNT];
    size_t cgroup_count;
    uint32_t uid; /* and gid */
    const struct sock_fprog *filter;
};

no_return void zygote_child(const struct zygote_setup *setup);

#endif
