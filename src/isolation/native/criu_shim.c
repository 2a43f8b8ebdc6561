/*
 * Loaded into CRIU when it writes a sandbox to disk. Two calls of it are refused otherwise, and one takes too long:
 *
 *   prlimit64  where root lacks CAP_SYS_RESOURCE, as in many containers. Then only the owner of a sandbox's user namespace
 *              may ask for the limits of its processes, and that is not root (zygotes.h). So CRIU asks as that user, for the
 *              length of the call.
 *   openat     of a namespace of guestd, from inside the sandbox's user namespace: CRIU tries whether guestd's other
 *              namespaces belong to that one. guestd is not dumpable, and the memory of a restored one belongs to the host,
 *              so /proc is closed to it there. The helper has opened the namespaces before.
 *   sendmsg    of a question for all tracked connections. The kernel has one table for the whole machine and goes through it
 *              for each sandbox, 10 ms and twice; a sandbox has no connection tracking (network_rules.c). So CRIU asks for
 *              expected connections instead, which have a table of their own that is empty: an answer of the same kind.
 *
 * Freestanding, because it is loaded into a program of another release.
 */
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "isolation/native/criu_kernel.h"

extern int *__errno_location(void);
extern char *getenv(const char *name);
long syscall(long number, long a, long b, long c, long d, long e, long f);
int openat64(int dir_fd, const char *path, int flags, unsigned mode);

enum { EPERM_ = 1, SIGKILL_ = 9, EACCES_ = 13, ERRNO_MAX = 4095 };

static long answer(long result)
{
    if (result >= 0 || result < -ERRNO_MAX)
        return result;
    *__errno_location() = (int)-result;
    return -1;
}

static long owner(void)
{
    const char *text = getenv("CLOISTER_OWNER");
    long number = 0;

    while (text && *text >= '0' && *text <= '9')
        number = number * 10 + (*text++ - '0');
    return number;
}

/* In place of the C library's, which CRIU calls for prlimit64. The securebits keep its capabilities at the change of user. */
long syscall(long number, long a, long b, long c, long d, long e, long f)
{
    long result = kernel(number, a, b, c, d, e, f);

    if (number == SYS_prlimit64 && result == -EPERM_ && kernel(SYS_setresuid, -1, owner(), -1, 0, 0, 0) == 0) {
        result = kernel(number, a, b, c, d, e, f);
        (void)kernel(SYS_setresuid, -1, 0, -1, 0, 0, 0);
        (void)kernel(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL_, 0, 0, 0, 0); /* the change of user has ended that */
    }
    return answer(result);
}

/* "net=7 uts=8 …": the descriptor of "ns/uts" is 8. */
static long find_namespace(const char *path)
{
    const char *list = getenv("CLOISTER_NAMESPACES");

    if (!list || path[0] != 'n' || path[1] != 's' || path[2] != '/')
        return -EACCES_;
    path += 3;
    while (*list) {
        int i = 0;
        while (path[i] && list[i] == path[i])
            i++;
        if (!path[i] && list[i] == '=') {
            long fd = 0;
            for (list += i + 1; *list >= '0' && *list <= '9'; list++)
                fd = fd * 10 + (*list - '0');
            return kernel(SYS_dup, fd, 0, 0, 0, 0, 0);
        }
        while (*list && *list++ != ' ')
            ;
    }
    return -EACCES_;
}

int openat64(int dir_fd, const char *path, int flags, unsigned mode)
{
    long result = kernel(SYS_openat, dir_fd, (long)path, flags, (long)mode, 0, 0);

    return (int)answer(result == -EACCES_ ? find_namespace(path) : result);
}

struct question {
    struct nlmsghdr header;
    struct nfgenmsg family;
};

static int asks_for_connections(const struct msghdr *message)
{
    const struct sockaddr_nl *to = message->msg_name;
    const struct question *question = message->msg_iovlen == 1 ? message->msg_iov[0].iov_base : 0;

    return question && to && message->msg_namelen == sizeof *to && to->nl_family == AF_NETLINK &&
           message->msg_iov[0].iov_len == sizeof *question && question->header.nlmsg_len == sizeof *question &&
           question->header.nlmsg_type == (NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (!asks_for_connections(message))
        return answer(kernel(SYS_sendmsg, fd, (long)message, flags, 0, 0, 0));
    struct question question = *(const struct question *)message->msg_iov[0].iov_base;
    struct iovec part = { .iov_base = &question, .iov_len = sizeof question };
    struct msghdr changed = *message;
    question.header.nlmsg_type = NFNL_SUBSYS_CTNETLINK_EXP << 8 | IPCTNL_MSG_EXP_GET;
    changed.msg_iov = &part;
    return answer(kernel(SYS_sendmsg, fd, (long)&changed, flags, 0, 0, 0));
}
