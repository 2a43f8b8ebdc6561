#include "privsep/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "test.h"

/* What is given up does not come back, so each case gives it up in a child. Returns the child's exit status. */
static int in_child(int (*run)(void))
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(run());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int drop_and_look(void)
{
    struct err err;
    char line[256];

    if (!confine_drop_all_capabilities(&err))
        return 1;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status)) {
        unsigned long long set;
        char which[8];
        if (sscanf(line, "Cap%3s %llx", which, &set) == 2 && strncmp(which, "Bnd", 3) != 0 && set != 0)
            return 2;
    }
    if (status)
        (void)fclose(status);
    return 0;
}

static void no_capability_is_left(void **state)
{
    (void)state;
    assert_int_equal(in_child(drop_and_look), 0);
}

static int no_new_privs_and_hidden(void)
{
    struct err err;

    if (!confine_no_new_privileges(&err) || !confine_hide_memory(&err))
        return 1;
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && prctl(PR_GET_DUMPABLE) == 0 ? 0 : 2;
}

static void privileges_and_memory_are_shut(void **state)
{
    (void)state;
    assert_int_equal(in_child(no_new_privs_and_hidden), 0);
}

/* 0 as it should be, 3 where there is no Landlock to test. */
static int only_files_below(void)
{
    char path[] = "/tmp/cloister-confine-XXXXXX", inside[64];
    struct err err;
    bool done = false;

    if (!mkdtemp(path))
        return 1;
    (void)snprintf(inside, sizeof inside, "%s/file", path);
    int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!confine_no_new_privileges(&err) || !confine_files(dir_fd, &done, &err))
        return 1;
    int result = 0;
    if (!done)
        result = 3;
    else if (open(inside, O_RDWR | O_CREAT | O_CLOEXEC, 0600) < 0)
        result = 4;
    else if (open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES)
        result = 5;
    else if (open("/tmp/cloister-confine-outside", O_RDWR | O_CREAT | O_CLOEXEC, 0600) >= 0 || errno != EACCES)
        result = 6;
    (void)unlink(inside);
    return result;
}

static void files_outside_the_directory_are_shut(void **state)
{
    (void)state;
    int result = in_child(only_files_below);
    (void)!system("rm -rf /tmp/cloister-confine-*"); /* the child may no longer remove its own directory */
    if (result == 3)
        skip();
    assert_int_equal(result, 0);
}

/* The same codes. */
static int some_files_to_read(void)
{
    char path[] = "/tmp/cloister-confine-XXXXXX", inside[64];
    struct err err;
    bool done = false;

    if (!mkdtemp(path))
        return 1;
    (void)snprintf(inside, sizeof inside, "%s/file", path);
    int made = open(inside, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const int fds[] = { open(path, O_PATH | O_CLOEXEC), open("/etc/passwd", O_PATH | O_CLOEXEC) };
    if (made < 0 || fds[0] < 0 || fds[1] < 0 || !confine_no_new_privileges(&err) ||
        !confine_files_and_read(-1, fds, 2, &done, &err))
        return 1;
    if (!done)
        return 3;
    if (open(inside, O_RDONLY | O_CLOEXEC) < 0 || open("/etc/passwd", O_RDONLY | O_CLOEXEC) < 0)
        return 4;
    if (open(inside, O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES)
        return 5;
    return open("/etc/group", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES ? 6 : 0;
}

static void some_files_can_be_left_to_read(void **state)
{
    (void)state;
    int result = in_child(some_files_to_read);
    (void)!system("rm -rf /tmp/cloister-confine-*");
    if (result == 3)
        skip();
    assert_int_equal(result, 0);
}

static int no_files(void)
{
    struct err err;
    bool done = false;

    if (!confine_no_new_privileges(&err) || !confine_files(-1, &done, &err))
        return 1;
    return !done ? 3 : open("/etc/passwd", O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES ? 0 : 2;
}

static void without_a_directory_all_files_are_shut(void **state)
{
    (void)state;
    int result = in_child(no_files);
    if (result == 3)
        skip();
    assert_int_equal(result, 0);
}

static int only_two_families(void)
{
    static const struct confine_rule rules[] = {
        { "exit_group", "to end" },
        { "socket", "one kind", .first = AF_INET },
        { "socket", "another", .first = AF_NETLINK },
        { NULL },
    };
    struct err err;

    if (!confine_load_seccomp(rules, &err))
        return 1;
    int result = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0) < 0                     ? 2
                 : syscall(SYS_socket, AF_NETLINK, SOCK_RAW, 0) < 0                  ? 3
                 : syscall(SYS_socket, AF_UNIX, SOCK_DGRAM, 0) < 0 && errno == EPERM ? 0
                                                                                     : 4;
    syscall(SYS_exit_group, result);
    return result;
}

static void a_rule_may_be_for_one_first_argument(void **state)
{
    (void)state;
    assert_int_equal(in_child(only_two_families), 0);
}

static int only_one_ioctl(void)
{
    static const struct confine_rule rules[] = {
        { "exit_group", "to end" },
        { "ioctl", "one kind", .only = FIONBIO },
        { NULL },
    };
    struct err err;
    int pipes[2], on = 1;

    if (pipe(pipes) < 0 || !confine_load_seccomp(rules, &err))
        return 1;
    /* Bare calls to the last: the sanitizers look at ioctl() and at a return first, and need calls of their own. */
    int result = syscall(SYS_ioctl, pipes[0], FIONBIO, &on) < 0                      ? 2
                 : syscall(SYS_ioctl, pipes[0], FIONREAD, &on) < 0 && errno == EPERM ? 0
                                                                                     : 3;
    (void)syscall(SYS_exit_group, result);
    return 4;
}

static void an_argument_can_be_held_to_one_value(void **state)
{
    (void)state;
    assert_int_equal(in_child(only_one_ioctl), 0);
}

static int only_listed_calls(void)
{
    static const struct confine_rule rules[] = {
        { "exit_group", "to end" },
        { "write", "to speak" },
        { "getpid", "to be asked below" },
        { "mmap", "the sanitizers" },
        { "munmap", "the sanitizers" },
        { "mprotect", "the sanitizers" },
        { "madvise", "the sanitizers" },
        { "futex", "the sanitizers" },
        { "sigaltstack", "the sanitizers" },
        { "no_such_call_anywhere", "a name of another architecture must not hurt" },
        { NULL },
    };
    struct err err;

    if (!confine_load_seccomp(rules, &err))
        return 1;
    if (getpid() <= 0)
        return 2;
    return socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM ? 0 : 3;
}

static void calls_outside_the_list_are_refused(void **state)
{
    (void)state;
    assert_int_equal(in_child(only_listed_calls), 0);
}

static int only_compiled_calls(void)
{
    static const struct confine_rule rules[] = {
        { "exit_group", "to end" },
        { "getpid", "to be asked below" },
        { "ioctl", "only one", .only = FIONREAD },
        { "mmap", "the sanitizers" },
        { "munmap", "the sanitizers" },
        { "futex", "the sanitizers" },
        { NULL },
    };
    struct confine_filter filter;
    struct err err;

    if (!confine_compile_seccomp(rules, &filter, &err) || !confine_load_filter(&filter, &err))
        return 1;
    if (getpid() <= 0)
        return 2;
    int left, result = 0;
    if (socket(AF_INET, SOCK_STREAM, 0) >= 0 || errno != EPERM)
        result = 3;
    else if (ioctl(0, FIONBIO, &left) == 0 || errno != EPERM)
        result = 4;
    else if (ioctl(-1, FIONREAD, &left) == 0 || errno != EBADF)
        result = 5;
    (void)syscall(SYS_exit_group, result);
    return 6;
}

static void a_list_can_be_compiled_first(void **state)
{
    (void)state;
    assert_int_equal(in_child(only_compiled_calls), 0);
}

static int turn[2], never[2]; /* pipes: the thread waits for a byte of one */

/* The answer goes by exit_group: the list has nothing else. */
static void *try_a_socket(void *context)
{
    char byte;

    (void)context;
    if (read(turn[0], &byte, 1) != 1)
        return NULL;
    (void)syscall(SYS_exit_group, socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM ? 0 : 2);
    return NULL;
}

static int a_thread_that_runs(void)
{
    static const struct confine_rule rules[] = {
        { "exit_group", "to end" },
        { "read", "the thread's turn" },
        { "write", "the same" },
        { "mmap", "the sanitizers" },
        { "munmap", "the sanitizers" },
        { "futex", "the sanitizers" },
        { NULL },
    };
    struct confine_filter filter;
    pthread_t thread;
    struct err err;
    char byte;

    if (pipe2(turn, O_CLOEXEC) < 0 || pipe2(never, O_CLOEXEC) < 0 || !confine_compile_seccomp(rules, &filter, &err) ||
        pthread_create(&thread, NULL, try_a_socket, NULL) != 0)
        return 3;
    (void)usleep(50 * 1000); /* it has begun */
    if (!confine_load_filter(&filter, &err) || write(turn[1], "x", 1) != 1)
        return 4;
    return read(never[0], &byte, 1) < 0 ? 5 : 6; /* the thread ends the process */
}

static void a_compiled_list_is_for_all_threads(void **state)
{
    (void)state;
    assert_int_equal(in_child(a_thread_that_runs), 0);
}

static void open_files_are_raised_to_the_hard_limit(void **state)
{
    (void)state;
    struct err err;
    unsigned long files;

    assert_true(confine_raise_files(&files, &err));
    assert_true(files >= 256);
}

static int few_of_everything(void)
{
    const struct confine_limits limits = { .memory_bytes = 256 << 20, .cpu_s = 5, .files = 3, .no_file_data = true };
    struct rlimit limit;
    struct err err;

    auto_close int file = memfd_create("room", MFD_CLOEXEC);
    if (file < 0 || !confine_limit(&limits, &err))
        return 1;
    (void)signal(SIGXFSZ, SIG_IGN);
    if (dup(0) >= 0 || errno != EMFILE)
        return 2;
    if (write(file, "x", 1) >= 0 || errno != EFBIG)
        return 3;
    if (getrlimit(RLIMIT_CPU, &limit) < 0 || limit.rlim_max != 5)
        return 4;
    /* Builds with a sanitizer have no limit of address space; see confine.h. */
    if (getrlimit(RLIMIT_AS, &limit) < 0 || (limit.rlim_max != RLIM_INFINITY && limit.rlim_max != 256 << 20))
        return 5;
    return 0;
}

static void a_process_can_be_limited(void **state)
{
    (void)state;
    assert_int_equal(in_child(few_of_everything), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_rule_may_be_for_one_first_argument),
        CASE(no_capability_is_left),
        CASE(privileges_and_memory_are_shut),
        CASE(calls_outside_the_list_are_refused),
        CASE(files_outside_the_directory_are_shut),
        CASE(some_files_can_be_left_to_read),
        CASE(without_a_directory_all_files_are_shut),
        CASE(an_argument_can_be_held_to_one_value),
        CASE(open_files_are_raised_to_the_hard_limit),
        CASE(a_process_can_be_limited),
        CASE(a_list_can_be_compiled_first),
        CASE(a_compiled_list_is_for_all_threads),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
