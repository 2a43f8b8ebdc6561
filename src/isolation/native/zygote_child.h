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

/* The descriptors that she finds; 1 and 2 are /dev/null. */
enum {
    ZYGOTE_CONTROL_FD = 0, /* SOCK_SEQPACKET from keeper */
    ZYGOTE_ENTER_FD = 3,   /* enter.so, sealed */
    ZYGOTE_VOICE_FD = 4,   /* a pipe to keeper */
};

/*
 *   control   keeper -> zygote, after the two texts of ZYGOTE_BOOT: ZYGOTE_DOOR with descriptors as enter.h orders them.
 *             Its end is hers: she has no life of her own.
 *   voice     zygote -> keeper, a letter each: ZYGOTE_READY once; ZYGOTE_TAKEN for each door; ZYGOTE_BUSY before she does
 *             something that may take long, ZYGOTE_IDLE after it; ZYGOTE_FAILED and a sentence when she cannot be.
 *             A pipe, because a socket carries descriptors: whoever closes the last of one may be made to wait by whoever
 *             sent it, and keeper waits for nobody.
 */
enum {
    ZYGOTE_DOOR = 'd',
    ZYGOTE_READY = 'r',
    ZYGOTE_TAKEN = 't',
    ZYGOTE_BUSY = 'b',
    ZYGOTE_IDLE = 'i',
    ZYGOTE_FAILED = 'f',
};

/* clone3's flags for her. Not user: she stands above her sandboxes'. Not pid: those below must be in sight. */
#define ZYGOTE_NAMESPACES (CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

struct zygote_setup {
    int keeper_fd;            /* keeper's end of the control socket, to be closed */
    int control_fd, voice_fd; /* hers */
    int root_fd, devices_fd;  /* detached mounts */
    int enter_fd;
    int cgroup_fds[CGROUP_CONTROL_COUNT];
    size_t cgroup_count;
    uint32_t uid; /* and gid */
    const struct sock_fprog *filter;
};

no_return void zygote_child(const struct zygote_setup *setup);

#endif
