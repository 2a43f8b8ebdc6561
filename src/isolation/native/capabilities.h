/*
 * capabilities.h - what root inside a sandbox may do: one table for child.c and enter.c.
 *
 * Freestanding, so that it fits into code without a C library too.
 */
#ifndef ISOLATION_NATIVE_CAPABILITIES_H
#define ISOLATION_NATIVE_CAPABILITIES_H

#include <linux/capability.h>
#include <stddef.h>
#include <stdint.h>

/* Docker's fourteen but one: what package managers, sudo and servers inside expect of root. */
static const unsigned char kept_capabilities[] = {
    CAP_CHOWN,            /* these four: root's way with files, as far as they are of the sandbox's own ids */
    CAP_DAC_OVERRIDE,     /* … */
    CAP_FOWNER,           /* … */
    CAP_FSETID,           /* … */
    CAP_SETFCAP,          /* file capabilities, valid in this user namespace alone */
    CAP_MKNOD,            /* fifos and sockets for package scripts; devices need more than this */
    CAP_KILL,             /* the sandbox's own processes */
    CAP_SETGID,           /* sudo, su, servers that drop root */
    CAP_SETUID,           /* the same */
    CAP_SETPCAP,          /* to give capabilities up */
    CAP_NET_BIND_SERVICE, /* its own network namespace */
    CAP_SYS_CHROOT,       /* package builds; the mount namespace is the border, not a chroot */
    CAP_AUDIT_WRITE,      /* login and sudo try, and fail harmlessly */
};
/*
 * Not CAP_SYS_RESOURCE: root inside would lift the limits that child.c writes. Not CAP_NET_RAW: guestd's callers send the
 * access token over this loopback, and a raw socket reads along.
 */

/*
 * What a process inside may have open. Each socket is a chance to have the kernel hold memory, and each process has so
 * many. PostgreSQL asks for 1,000, Redis and MySQL for more and take less; Node and Java raise theirs to this; guestd's
 * own limits add up to 3,900, LIMIT_WATCHERS among them.
 */
enum { GUEST_FILES = 4096 };

static inline uint64_t kept_capability_mask(void)
{
    uint64_t mask = 0;

    for (size_t i = 0; i < sizeof kept_capabilities; i++)
        mask |= 1ull << kept_capabilities[i];
    return mask;
}

#endif
