#include "base/origins.h"

#include <errno.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

bool origins_leave(struct err *err)
{
    (void)setsid(); /* fails only for a group leader, which a process that was just made is not */
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
        return err_sys(err, "leave the host's session keyring");
    /* Direct system call: libc rejects its own two signals, and programs like make leave them ignored. */
    const unsigned char by_default[64] = { 0 };
    for (int number = 1; number < NSIG; number++)
        (void)syscall(SYS_rt_sigaction, number, by_default, NULL, 8); /* two of them cannot be set, and need not */
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)umask(022);
    return true;
}
