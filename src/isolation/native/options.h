/*
 * options.h - hears which socket options a sandbox's filter has refused, so that each is named once in the sandbox's log.
 *
 * The filter's verdict on an option that is not in its list is SECCOMP_RET_USER_NOTIF: the call waits for keeper, which holds
 * the filter's listener and answers ENOPROTOOPT, as a kernel without the option would.
 *
 * Bounds     A guest chooses how often it asks. After LIMIT_OPTIONS_HEARD calls, or LIMIT_OPTIONS_NAMED different options,
 *            keeper closes the listener. The kernel then answers by itself, with ENOSYS. It does the same where there is no
 *            listener: in a sandbox of an earlier keeper, in one that CRIU has restored, and inside a container whose own
 *            filter has a listener.
 * Threads    Keeper's. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_OPTIONS_H
#define ISOLATION_NATIVE_OPTIONS_H

struct box;

/* The descriptor is taken. */
void options_listen(struct box *box, int listener_fd);
/* Fine if nothing listens. Calls that wait are answered by the kernel. */
void options_forget(struct box *box);

#endif
