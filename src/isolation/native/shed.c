#include "isolation/native/shed.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/str.h"

/*
 * The kernel counts these per user inside and again for the namespace's owner, against keeper's rlimit. All sandboxes
 * of a template have the same owner. Keeper raises its own limits first (raise_own_limits() in native.c); where it
 * could not, these limits keep one user inside from taking all.
 */
static const struct {
    int resource;
    rlim_t most;
    const char *name;
} shared_limits[] = {
    { RLIMIT_SIGPENDING, 4096, "queued signals" }, /* and timers */
    { RLIMIT_MSGQUEUE, 819200, "message queues" }, /* the kernel's default, nine queues */
    { RLIMIT_MEMLOCK, 8 << 20, "locked memory" },  /* the kernel's default */
};

static bool limit_to(int resource, rlim_t most, const char *name, struct err *err)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) < 0)
        return err_sys(err, "ask for the limit of %s", name);
    limit.rlim_max = MIN(limit.rlim_max, most);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(resource, &limit) < 0)
        return err_sys(err, "limit %s", name);
    return true;
}

bool shed_limits(unsigned files, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(shared_limits); i++)
        if (!limit_to(shared_limits[i].resource, shared_limits[i].most, shared_limits[i].name, err))
            return false;
    return limit_to(RLIMIT_NOFILE, files, "open files", err);
}

bool shed_capabilities(uint64_t keep, struct err *err)
{
    for (unsigned capability = 0; capability < 64; capability++) {
        if (keep & 1ull << capability)
            continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last one this kernel has */
            return err_sys(err, "drop capability %u", capability);
        }
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return err_sys(err, "clear ambient capabilities");
    return true;
}

/*
 * Without no_new_privs, or sudo inside would not work. The kernel then asks for CAP_SYS_ADMIN in our user namespace,
 * which we have until exec: the bounding set takes effect there.
 */
bool shed_calls(const struct sock_fprog *filter, int *out_listener_fd, struct err *err)
{
    if (out_listener_fd) {
        *out_listener_fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, filter);
        if (*out_listener_fd >= 0)
            return true; /* EBUSY: a filter that is there already has one, and there can be no second */
    }
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter) < 0)
        return err_sys(err, "load the seccomp filter");
    return true;
}
