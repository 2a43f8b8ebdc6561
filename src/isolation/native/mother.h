/*
 * mother.h - the way from keeper's fork to a mother: a python3 of the template, outside all sandboxes. See nursery.h.
 */
#ifndef ISOLATION_NATIVE_MOTHER_H
#define ISOLATION_NATIVE_MOTHER_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "isolation/native/cgroup.h"

/* The descriptors that she finds; 1 and 2 are /dev/null. */
enum {
    MOTHER_CONTROL_FD = 0, /* SOCK_SEQPACKET from keeper */
    MOTHER_MIDWIFE_FD = 3, /* midwife.so, sealed */
    MOTHER_VOICE_FD = 4,   /* a pipe to keeper */
};

/*
 *   control   keeper -> mother, after the two texts of NURSERY_BOOT: MOTHER_DOOR with descriptors as midwife.h orders them.
 *             Its end is hers: she has no life of her own.
 *   voice     mother -> keeper, a letter each: MOTHER_READY once; MOTHER_TAKEN for each door; MOTHER_BUSY before she does
 *             something that may take long, MOTHER_IDLE after it; MOTHER_FAILED and a sentence when she cannot be.
 *             A pipe, because a socket carries descriptors: whoever closes the last of one may be made to wait by whoever
 *             sent it, and keeper waits for nobody.
 */
enum {
    MOTHER_DOOR = 'd',
    MOTHER_READY = 'r',
    MOTHER_TAKEN = 't',
    MOTHER_BUSY = 'b',
    MOTHER_IDLE = 'i',
    MOTHER_FAILED = 'f',
};

/* clone3's flags for her. Not user: she stands above her sandboxes'. Not pid: those below must be in sight. */
#define MOTHER_NAMESPACES (CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

struct mother_setup {
    int keeper_fd;            /* keeper's end of the control socket, to be closed */
    int control_fd, voice_fd; /* hers */
    int root_fd, devices_fd;  /* detached mounts */
    int midwife_fd;
    int cgroup_fds[CGROUP_CONTROL_COUNT];
    size_t cgroup_count;
    uint32_t uid; /* and gid */
    const struct sock_fprog *filter;
};

no_return void mother_child(const struct mother_setup *setup);

#endif
