/*
 * This program is both sides: run as `... role test` by role_start(), it reports over descriptor 3 what it finds.
 */
#include "privsep/role.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "test.h"

enum { NOBODY = 65534 };

/* ---- the role ---- */

static int be_the_role(char **argv)
{
    char text[8192];
    int len = 0;
    extern char **environ;

    len += snprintf(text + len, sizeof text - (size_t)len, "uid %d gid %d groups %d\n", getuid(), getgid(),
                    getgroups(0, NULL));
    for (char **arg = argv; *arg; arg++)
        len += snprintf(text + len, sizeof text - (size_t)len, "arg %s\n", *arg);
    for (char **pair = environ; *pair; pair++)
        len += snprintf(text + len, sizeof text - (size_t)len, "env %s\n", *pair);
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(dir))
            len += snprintf(text + len, sizeof text - (size_t)len, "fd %s\n", entry->d_name);
    if (dir)
        (void)closedir(dir);
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Cap", 3))
            len += snprintf(text + len, sizeof text - (size_t)len, "%s", line);
    if (status)
        (void)fclose(status);
    char handed[16] = { 0 };
    (void)!read(ROLE_FIRST_FD, handed, sizeof handed - 1);
    len += snprintf(text + len, sizeof text - (size_t)len, "handed %s\n", handed);
    (void)!send(ROLE_CHANNEL_FD, text, (size_t)len, 0);
    struct pollfd waiting = { .fd = ROLE_CHANNEL_FD, .events = POLLIN };
    (void)poll(&waiting, 1, -1); /* until keeper closes */
    return 0;
}

/* ---- the test ---- */

static void check_has(const char *text, const char *line)
{
    char whole[256];

    (void)snprintf(whole, sizeof whole, "%s\n", line);
    if (!strstr(text, whole))
        fail_msg("no line '%s' in:\n%s", line, text);
}

static void hear(int fd, char *room, size_t room_size)
{
    struct pollfd waiting = { .fd = fd, .events = POLLIN };

    assert_int_equal(poll(&waiting, 1, 20000), 1);
    ssize_t n = recv(fd, room, room_size - 1, 0);
    assert_true(n > 0);
    room[n] = '\0';
}

static void end(struct role *role)
{
    fd_close(&role->channel_fd);
    assert_int_equal(waitid((idtype_t)P_PIDFD, (id_t)role->pidfd, &(siginfo_t){ 0 }, WEXITED), 0);
    fd_close(&role->pidfd);
}

static void a_role_starts_with_what_it_is_given_and_no_more(void **state)
{
    (void)state;
    int pipe_fds[2];
    struct role role;
    struct err err;
    char text[8192];
    bool root = geteuid() == 0;

    assert_int_equal(setenv("SECRET_OF_KEEPER", "1", 1), 0);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    assert_int_equal(write(pipe_fds[1], "gift", 4), 4);
    int leaked = open("/dev/null", O_RDONLY); /* not close-on-exec, as a careless library would */
    const char *const args[] = { "--flag", NULL };
    struct role_want want = { .name = "test",
                              .args = args,
                              .uid = root ? NOBODY : geteuid(),
                              .gid = root ? NOBODY : getegid(),
                              .fds = &pipe_fds[0],
                              .fd_count = 1 };
    if (!role_start(&want, &role, &err))
        fail_msg("%s", err_text(&err));
    hear(role.channel_fd, text, sizeof text);
    check_has(text, "arg role");
    check_has(text, "arg test");
    check_has(text, "arg --flag");
    check_has(text, "handed gift");
    check_has(text, "fd 3");
    check_has(text, "fd 4");
    assert_null(strstr(text, "fd 5"));
    assert_null(strstr(text, "SECRET_OF_KEEPER"));
    if (root) {
        check_has(text, "uid 65534 gid 65534 groups 0");
        check_has(text, "CapEff:\t0000000000000000");
        check_has(text, "CapPrm:\t0000000000000000");
        check_has(text, "CapBnd:\t0000000000000000");
        check_has(text, "CapInh:\t0000000000000000");
        check_has(text, "CapAmb:\t0000000000000000");
    }
    (void)close(leaked);
    fd_close(&pipe_fds[0]);
    fd_close(&pipe_fds[1]);
    end(&role);
}

static void a_role_dies_with_keeper(void **state)
{
    (void)state;
    int pair[2], pid;
    char text[8192];

    /* The child of this test plays keeper, starts a role and is killed. */
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t keeper = fork();
    if (keeper == 0) {
        struct role role;
        struct err err;
        struct role_want want = { .name = "test", .uid = geteuid(), .gid = getegid() };
        if (!role_start(&want, &role, &err))
            _exit(1);
        hear(role.channel_fd, text, sizeof text);
        (void)!send(pair[1], &role.pid, sizeof role.pid, 0);
        (void)pause();
    }
    assert_int_equal(recv(pair[0], &pid, sizeof pid, MSG_WAITALL), (ssize_t)sizeof pid);
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(pidfd >= 0);
    (void)kill(keeper, SIGKILL);
    assert_int_equal(waitpid(keeper, NULL, 0), keeper);
    struct pollfd waiting = { .fd = pidfd, .events = POLLIN };
    assert_int_equal(poll(&waiting, 1, 20000), 1);
    (void)close(pidfd);
    fd_close(&pair[0]);
    fd_close(&pair[1]);
}

static void a_role_that_cannot_start_says_why(void **state)
{
    (void)state;
    struct role role;
    struct err err;
    int closed = 999;
    struct role_want want = { .name = "test", .uid = geteuid(), .gid = getegid(), .fds = &closed, .fd_count = 1 };

    assert_false(role_start(&want, &role, &err));
    assert_non_null(strstr(err_text(&err), "start role test: place descriptor 0"));
}

static void a_role_can_be_another_program_with_a_connection_of_its_own(void **state)
{
    (void)state;
    auto_close int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int pair[2];
    struct role role;
    struct err err;
    char text[8192];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    struct role_want want = {
        .name = "test", .uid = geteuid(), .gid = getegid(), .program = &program, .connection = &pair[1]
    };
    if (!role_start(&want, &role, &err))
        fail_msg("%s", err_text(&err));
    assert_int_equal(role.channel_fd, -1);
    fd_close(&pair[1]); /* stays the caller's: the role has a copy */
    hear(pair[0], text, sizeof text);
    check_has(text, "arg test");
    check_has(text, "fd 3");
    assert_null(strstr(text, "fd 4"));
    fd_close(&pair[0]);
    end(&role);

    auto_close int no_program = open("/dev/null", O_RDONLY | O_CLOEXEC);
    want = (struct role_want){ .name = "test", .uid = geteuid(), .gid = getegid(), .program = &no_program };
    assert_false(role_start(&want, &role, &err));
    assert_non_null(strstr(err_text(&err), "execute the program of test"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        CASE(a_role_starts_with_what_it_is_given_and_no_more),
        CASE(a_role_dies_with_keeper),
        CASE(a_role_that_cannot_start_says_why),
        CASE(a_role_can_be_another_program_with_a_connection_of_its_own),
    };

    if (argc >= 3 && !strcmp(argv[1], "role"))
        return be_the_role(argv);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
