#include "isolation/native/shed.h"

#include <errno.h>
#include <linux/keyctl.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/str.h"

bool shed_origins(struct err *err)
{
    (void)setsid(); /* fails only for a group leader, which a process that was just made is not */
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
        return err_sys(err, "leave the host's session keyring");
    /* By the bare call: libc refuses to touch the two that it uses itself, and programs like make leave those ignored. */
    const unsigned char by_default[64] = { 0 };
    for (int number = 1; number < NSIG; number++)
        (void)syscall(SYS_rt_sigaction, number, by_default, NULL, 8); /* two of them cannot be set, and need not */
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)umask(022);
    return true;
}

/*
 * For guestd, who serves thousands of connections, and for all that it starts. Keeper's own limit is for a thousand
 * sandboxes; here each open socket is a chance to have the kernel hold memory, and no program inside needs more.
 */
enum { FILES_MAX = 16384 };

bool shed_file_limit(struct err *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_sys(err, "ask for the limit of open files");
    limit.rlim_max = MIN(limit.rlim_max, (rlim_t)FILES_MAX);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_sys(err, "limit open files");
    return true;
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
bool shed_calls(const struct sock_fprog *filter, struct err *err)
{
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter) < 0)
        return err_sys(err, "load the seccomp filter");
    return true;
}
