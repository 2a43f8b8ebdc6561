/*
 * old_kernel.h - what tests leave out on kernels that have less.
 */
#ifndef TESTS_UNIT_ISOLATION_OLD_KERNEL_H
#define TESTS_UNIT_ISOLATION_OLD_KERNEL_H

#include <stdbool.h>
#include <stdlib.h>
#include <sys/utsname.h>

/* From Linux 6.3 on. Before, a data directory cannot be on a tmpfs, which stands in for a small disk. */
static inline bool tmpfs_takes_ids(void)
{
    struct utsname name;
    char *rest = NULL;

    if (uname(&name) < 0)
        return false;
    long major = strtol(name.release, &rest, 10), minor = *rest == '.' ? strtol(rest + 1, NULL, 10) : 0;
    return major > 6 || (major == 6 && minor >= 3);
}

#endif
