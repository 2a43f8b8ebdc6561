/*
 * Loaded into CRIU when it writes a sandbox to disk. Two calls of it are refused otherwise:
 *
 *   prlimit64  where root lacks CAP_SYS_RESOURCE, as in many containers. Then only the owner of a sandbox's user namespace
 *              may ask for the limits of its processes, and that is not root (zygotes.h). So CRIU asks as that user, for the
 *              length of the call.
 *   openat     of a namespace of guestd, from inside the sandbox's user namespace: CRIU tries whether guestd's other
 *              namespaces belong to that one. guestd is not dumpable, and the memory of a restored one belongs to the host,
 *              so /proc is closed to it there. The helper has opened the namespaces before.
 *
 * Freestanding, because it is loaded into a program of another release. x86-64 and arm64.
 */
#include <sys/syscall.h>

extern int *__errno_location(void);
extern char *getenv(const char *name);
long syscall(long number, long a, long b, long c, long d, long e, long f);
int openat64(int dir_fd, const char *path, int flags, unsigned mode);

enum { EPERM_ = 1, EACCES_ = 13, ERRNO_MAX = 4095 };

static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
#if defined __x86_64__
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined __aarch64__
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
#error "system calls of this machine are not known here"
#endif
}

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
