#include "isolation/native/native.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "held_page.h"
#include "io/loop.h"
#include "isolation/native/box.h"
#include "isolation/native/cgroup.h"
#include "old_kernel.h"
#include "test.h"
#include "turn.h"
#include "wire/zygote.h"

/* Set by main() from the command line: the static program that stands in for guestd. */
static const char *init_path;

static const char layer_id[] = "00000000000000000000000000000000000000000000000000000000000000aa";
static const char upper_layer_id[] = "00000000000000000000000000000000000000000000000000000000000000bb";

static const char python_layer_id[] = "00000000000000000000000000000000000000000000000000000000000000cc";

#define UID_BASE 0x60000000u /* no server on this machine has these ids */

struct world {
    char path[64];
    int data_fd, guestd_fd;
    struct loop *loop;
    struct driver *driver;
    char exited[LIMIT_ID_BYTES];
    unsigned exits;
    enum exit_cause exit_cause;
    struct socket_option refused[64];
    size_t refused_count;
    bool old_freezer;
};

static struct plan a_plan(const char *id)
{
    struct plan plan = { .layer_count = 1, .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 20 };

    (void)snprintf(plan.id, sizeof plan.id, "%s", id);
    (void)snprintf(plan.hostname, sizeof plan.hostname, "cloister");
    memcpy(plan.layers[0], layer_id, sizeof layer_id);
    return plan;
}

static void note_exit(void *context, const char *id, enum exit_cause cause)
{
    struct world *world = context;

    (void)snprintf(world->exited, sizeof world->exited, "%s", id);
    world->exits += cause != EXIT_LEFT_PAGES; /* that one may follow, if other programs hold pages */
    world->exit_cause = cause;
    loop_stop_soon(world->loop);
}

static void note_refused(void *context, const char *id, const struct socket_option *option)
{
    struct world *world = context;

    assert_string_equal(id, "sandbox1");
    assert_true(world->refused_count < COUNT_OF(world->refused));
    world->refused[world->refused_count++] = *option;
}

static void new_driver(struct world *world, bool old_overlay)
{
    struct err err;
    struct native_config config = { .data_fd = world->data_fd,
                                    .guestd_fd = world->guestd_fd,
                                    .uid_base = UID_BASE,
                                    .old_overlay = old_overlay,
                                    .old_freezer = world->old_freezer };

    world->driver = native_driver_new(world->loop, &config, &err);
    if (!world->driver)
        fail_msg("%s", err_text(&err));
    world->driver->exited = note_exit;
    world->driver->refused = note_refused;
    world->driver->exited_context = world;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void make_layer(int data_fd, const char *id, const char *const *dirs, const char *file)
{
    char path[128];

    (void)snprintf(path, sizeof path, "layers/%s", id);
    assert_int_equal(mkdirat(data_fd, path, 0755), 0);
    auto_close int fd = openat(data_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (; *dirs; dirs++)
        assert_int_equal(mkdirat(fd, *dirs, 0755), 0);
    auto_close int file_fd = openat(fd, file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(file_fd >= 0);
}

static int set_up(void **state)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-test.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    world->data_fd = open(world->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world->guestd_fd = open(init_path, O_RDONLY | O_CLOEXEC);
    assert_true(world->data_fd >= 0 && world->guestd_fd >= 0);
    assert_int_equal(mkdirat(world->data_fd, "layers", 0700), 0);
    make_layer(world->data_fd, layer_id, (const char *const[]){ "etc", "tmp", "proc", NULL }, "etc/template-file");
    make_layer(world->data_fd, upper_layer_id, (const char *const[]){ "etc", NULL }, "etc/upper-file");
    world->loop = loop_new();
    new_driver(world, false);
    *state = world;
    return 0;
}

static unsigned count_names(int dir_fd, const char *path)
{
    unsigned count = 0;
    int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        (void)closedir(dir);
    return count;
}

/* Anything left in a cgroup tree under this name? */
static unsigned count_cgroups(const struct world *world)
{
    static const char *const trees[] = { "/sys/fs/cgroup",        "/sys/fs/cgroup/pids",
                                         "/sys/fs/cgroup/cpu",    "/sys/fs/cgroup/cpu,cpuacct",
                                         "/sys/fs/cgroup/memory", "/sys/fs/cgroup/freezer",
                                         "/sys/fs/cgroup/unified" };
    struct stat st;
    char name[64];
    unsigned count = 0;

    assert_int_equal(fstat(world->data_fd, &st), 0);
    (void)snprintf(name, sizeof name, "cloister.%jx.%jx", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    for (size_t i = 0; i < COUNT_OF(trees); i++) {
        char command[300], line[300];
        (void)snprintf(command, sizeof command, "find %s -path '*/%s/*' -type d 2>/dev/null", trees[i], name);
        FILE *found = popen(command, "r");
        while (found && fgets(line, sizeof line, found))
            count++;
        if (found)
            (void)pclose(found);
    }
    return count;
}

static unsigned count_mounts(const char *needle)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[4096];
    unsigned count = 0;

    while (mounts && fgets(line, sizeof line, mounts))
        count += strstr(line, needle) != NULL;
    if (mounts)
        (void)fclose(mounts);
    return count;
}

/* Alive, that is; orphans that have ended are reaped here. */
static bool has_children(void)
{
    pid_t pid;

    do {
        pid = waitpid(-1, NULL, WNOHANG);
    } while (pid > 0);
    return pid == 0;
}

/* Deleting runs when nobody else wants the machine, so on a busy one this takes its time. */
static void check_nothing_is_left(struct world *world)
{
    for (int i = 0; i < 6000 && (count_names(world->data_fd, "trash") || count_cgroups(world) || has_children()); i++)
        turn_for(world->loop, 10);
    assert_int_equal(count_names(world->data_fd, "sandboxes"), 0);
    assert_int_equal(count_names(world->data_fd, "trash"), 0);
    assert_int_equal(count_cgroups(world), 0);
    assert_int_equal(count_mounts("overlay"), 0);
    assert_false(has_children());
}

struct stopping {
    struct loop *loop;
    bool answered, gone;
};

static void note_stopped(void *context, bool gone, const struct err *err)
{
    struct stopping *stopping = context;

    if (err)
        (void)fprintf(stderr, "%s\n", err_text(err));
    stopping->answered = true;
    stopping->gone = gone;
    loop_stop_soon(stopping->loop);
}

/* True when it is gone. */
static bool stop_within(struct loop *loop, struct driver *driver, const char *id, uint32_t patience_ms)
{
    struct stopping stopping = { .loop = loop };

    driver_stop(driver, id, patience_ms, note_stopped, &stopping);
    while (!stopping.answered)
        loop_run(loop);
    return stopping.gone;
}

static bool stop(struct loop *loop, struct driver *driver, const char *id)
{
    return stop_within(loop, driver, id, LIMIT_STOP_MS);
}

static int tear_down(void **state)
{
    struct world *world = *state;
    struct held *held = NULL;
    uint32_t count = 0;
    char mnt[80];
    struct err err;

    if (!world->driver) /* the case failed in between: clear up all the same */
        new_driver(world, false);
    if (driver_list(world->driver, &held, &count, &err))
        for (uint32_t i = 0; i < count; i++)
            (void)stop(world->loop, world->driver, held[i].id);
    free(held);
    for (int i = 0; i < 100 && (count_names(world->data_fd, "trash") || count_cgroups(world)); i++)
        turn_for(world->loop, 10);
    driver_free(world->driver);
    loop_free(world->loop);
    fd_close(&world->guestd_fd);
    /* A keeper that a case has killed leaves its tmpfs: outside of tests it goes with keeper's mount namespace. */
    while (snprintf(mnt, sizeof mnt, "%s/mnt", world->path) > 0 && umount2(mnt, MNT_DETACH) == 0)
        continue;
    fd_close(&world->data_fd);
    (void)nftw(world->path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    free(world);
    return 0;
}

static int start(struct world *world, const struct plan *plan)
{
    struct started started;
    struct err err;

    if (!driver_start(world->driver, plan, &started, &err))
        fail_msg("%s", err_text(&err));
    return started.guestlink_fd;
}

/* Says a line to init, if any, and returns all it answers, until the line with a dot alone. */
static char *ask(int fd, const char *command)
{
    char *text = mem_new(65536);
    size_t len = 0;

    if (command[0])
        assert_true(write(fd, command, strlen(command)) > 0);
    while (len < 65535) {
        struct pollfd waiting = { .fd = fd, .events = POLLIN };
        if (poll(&waiting, 1, 20000) <= 0)
            fail_msg("no answer to %s", command);
        ssize_t n = read(fd, text + len, 65535 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
        text[len] = '\0';
        if (len >= 2 && !strcmp(text + len - 2, ".\n") && (len == 2 || text[len - 3] == '\n'))
            break;
    }
    return text;
}

struct answer {
    struct world *world;
    int fd;
    char *text;
    size_t len;
};

static void more_said(void *context, unsigned ready)
{
    struct answer *answer = context;

    (void)ready;
    ssize_t n = read(answer->fd, answer->text + answer->len, 65535 - answer->len);
    answer->len += n > 0 ? (size_t)n : 0;
    if (n == 0 || (answer->len >= 2 && !strcmp(answer->text + answer->len - 2, ".\n")))
        loop_stop_soon(answer->world->loop);
}

/* As ask(), while the driver goes on: what the filter refuses is its to answer. */
static char *ask_and_serve(struct world *world, int fd, const char *command)
{
    struct answer answer = { .world = world, .fd = fd, .text = mem_new(65536) };
    struct watch *watch = watch_new(world->loop, fd, more_said, &answer);

    assert_true(write(fd, command, strlen(command)) > 0);
    watch_want(watch, WATCH_READ);
    loop_run(world->loop);
    watch_free(watch);
    return answer.text;
}

static void check_has(const char *text, const char *line)
{
    char whole[512];

    (void)snprintf(whole, sizeof whole, "%s\n", line);
    const char *at = strstr(text, whole);
    if (!at || (at != text && at[-1] != '\n'))
        fail_msg("no line '%s' in:\n%s", line, text);
}

struct dialed {
    int fd;
    struct err err;
};

static void take_dialed(void *context, int fd, const struct err *err)
{
    struct dialed *dialed = context;

    dialed->fd = fd;
    if (err)
        dialed->err = *err;
}

/* What its root is outside: the first of a range, which one depends on what else runs on this machine. */
static uint32_t first_id(const char *facts)
{
    const char *at = strstr(facts, "uid_map:          0 ");
    unsigned first = 0, count = 0;

    assert_true(at && sscanf(at, "uid_map: 0 %u %u", &first, &count) == 2);
    assert_true(first >= UID_BASE && (first - UID_BASE) % 65536 == 0);
    assert_int_equal(count, 65536);
    return first;
}

static void a_sandbox_sees_itself_and_nothing_else(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "facts");

    check_has(text, "pid: 1");
    check_has(text, "uid: 0");
    check_has(text, "sid: 1");
    check_has(text, "hostname: cloister");
    check_has(text, "interfaces: lo");
    check_has(text, "sys:");
    check_has(text, tmpfs_takes_ids() ? "owner of /dev/null: 0" : "owner of /dev/null: 65534"); /* nobody */
    check_has(text, "max_user_namespaces: 0");
    check_has(text, "argument: --handover-fd");
    check_has(text, "NoNewPrivs:\t0");
    check_has(text, "Seccomp:\t2");
    check_has(text, "CapBnd:\t00000000a80405fb");
    check_has(text, "CapEff:\t00000000a80405fb");
    check_has(text, "CapPrm:\t00000000a80405fb");
    check_has(text, "CapInh:\t0000000000000000");
    check_has(text, "CapAmb:\t0000000000000000");
    check_has(text, "keys: "); /* covered: the host has some */
    /* The first sandbox has the first range, and nothing inside is the host's user 0. */
    char line[64];
    (void)snprintf(line, sizeof line, "gid_map:          0 %10u      65536", first_id(text));
    check_has(text, line);
    /* Of processes it sees itself. */
    const char *proc = strstr(text, "\nproc: ");
    assert_non_null(proc);
    for (const char *word = proc + 7; *word != '\n'; word += strspn(word, " ")) {
        size_t len = strcspn(word, " \n");
        if (word[strspn(word, "0123456789")] == ' ' && len)
            assert_true(len == 1 && word[0] == '1');
        word += len;
    }
    check_has(text, "cmdline: ");
    check_has(text, "diskstats: ");
    check_has(text, "pressure:");
    check_has(text, "open files: 4096");
    /* Its places among the cgroups are roots to it, and lead nowhere. */
    assert_null(strstr(text, "cloister."));
    /* And of the host's file systems nothing: not the data directory, not even its path. */
    assert_null(strstr(text, "/var/tmp"));
    assert_null(strstr(text, "ext4"));
}

/* Its line in the facts, cut out. */
static void copy_boot_id(const char *facts, char out[40])
{
    const char *line = strstr(facts, "\nboot_id: ");

    assert_non_null(line);
    assert_int_equal(strcspn(line + 10, "\n"), 36);
    (void)snprintf(out, 40, "%.36s", line + 10);
}

static void each_start_shows_a_boot_id_of_its_own(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1"), other_plan = a_plan("sandbox2");
    auto_close int fd = start(world, &plan);
    auto_close int other_fd = start(world, &other_plan);
    auto_free char *text = ask(fd, "facts"), *other = ask(other_fd, "facts"), *hosts = NULL;
    char first[40], second[40];
    struct err err;

    copy_boot_id(text, first);
    copy_boot_id(other, second);
    assert_string_not_equal(first, second);
    assert_true(fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &hosts, NULL, &err));
    assert_null(strstr(hosts, first));
    check_has(text, "pts: ptmx"); /* the file itself shows nowhere else */
}

static void guestd_gets_its_descriptors_and_no_others(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "facts");
    char *line = strstr(text, "\ndescriptors: ");

    assert_non_null(line);
    line[1 + strcspn(line + 1, "\n")] = '\0';
    /* 0-2 null, 3 what it listens on for keeper, 4.. one cgroup a tree, guestlink, then the directory being read. */
    unsigned highest = 0;
    for (char *word = strtok(line + strlen("\ndescriptors: "), " "); word; word = strtok(NULL, " "))
        highest = MAX(highest, (unsigned)atoi(word));
    assert_true(highest <= 4 + 4 + 1);
}

/*
 * The peer on a unix socket can make its reader close descriptors, and decides how long that takes.
 */
static void guestlink_cannot_carry_descriptors_and_nothing_listens_for_it_inside(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    struct sockaddr_storage ends[2] = { 0 };
    socklen_t lens[2] = { sizeof ends[0], sizeof ends[1] };
    struct dialed dialed = { .fd = -1 };
    char text[2] = { 0 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room = { 0 };
    struct iovec piece = { .iov_base = text, .iov_len = sizeof text };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };

    assert_int_equal(getsockname(fd, (struct sockaddr *)&ends[0], &lens[0]), 0);
    assert_int_equal(getpeername(fd, (struct sockaddr *)&ends[1], &lens[1]), 0);
    assert_int_equal(ends[0].ss_family, AF_INET);
    assert_int_equal(ends[1].ss_family, AF_INET);
    auto_free char *inside = ask(fd, "listeners");
    check_has(inside, "listeners: 0");
    assert_int_equal(count_names(world->data_fd, "sandboxes/sandbox1"), 4); /* upper, work, state, guestd.socket */
    for (int i = 0; i < 2; i++) {
        driver_dial(world->driver, "sandbox1", ntohs(((struct sockaddr_in *)&ends[i])->sin_port), take_dialed, &dialed);
        assert_int_equal(dialed.fd, -1);
        assert_int_equal(dialed.err.sys, ECONNREFUSED);
    }
    assert_int_equal(write(fd, "attach", 6), 6);
    assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 20000), 1);
    assert_int_equal(recvmsg(fd, &message, MSG_CMSG_CLOEXEC), sizeof text);
    assert_int_equal(memcmp(text, "x\n", sizeof text), 0);
    assert_int_equal(message.msg_controllen, 0);
    assert_int_equal(message.msg_flags & MSG_CTRUNC, 0);
    /* The end of one is the end of the other: front need not be told. */
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    for (ssize_t n = sizeof text; n > 0;) { /* after what was said last */
        assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 20000), 1);
        n = read(fd, text, sizeof text);
        assert_true(n >= 0);
    }
}

static void guests_may_have_the_ports_that_they_want(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "ports");

    check_has(text, "ports that cannot be bound: 1");
}

static void what_a_guest_must_not_do_fails(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask_and_serve(world, fd, "attempts");

    check_has(text, "lo: up");
    check_has(text, "mount: EPERM");
    check_has(text, "umount: EPERM");
    check_has(text, "unshare user: EPERM");
    check_has(text, "unshare mount: EPERM");
    check_has(text, "clone3 user: ENOSPC");
    check_has(text, "setns: EPERM");
    check_has(text, "bpf: EPERM");
    check_has(text, "io_uring: ENOSYS");
    check_has(text, "unknown call: ENOSYS");
    check_has(text, "reboot: EPERM");
    check_has(text, "TIOCSTI: EPERM");
    check_has(text, "TIOCSTI high: EPERM");
    check_has(text, "socket filter: ENOPROTOOPT");
    check_has(text, "socket filter high: ENOPROTOOPT");
    check_has(text, "socket program: ENOPROTOOPT");
    check_has(text, "port filter: ENOPROTOOPT");
    check_has(text, "port program: ENOPROTOOPT");
    check_has(text, "seccomp filter: EINVAL");
    check_has(text, "seccomp filter by prctl: EINVAL");
    check_has(text, "seccomp probe: EINVAL");
    check_has(text, "MD5 key: ENOPROTOOPT");
    check_has(text, "MD5 key with prefix: ENOPROTOOPT");
    check_has(text, "AO key: ENOPROTOOPT");
    check_has(text, "time stamps: ENOPROTOOPT");
    check_has(text, "new time stamps: ENOPROTOOPT");
    check_has(text, "zero copy: ENOPROTOOPT");
    check_has(text, "packet options: ENOPROTOOPT");
    check_has(text, "IP_RECVERR: 0 0 0");
    check_has(text, "IP_RECVERR_RFC4884: 0 0 0");
    check_has(text, "IPV6_RECVERR: 0 0 0");
    check_has(text, "IPV6_RECVERR_RFC4884: 0 0 0");
    check_has(text, "linger: 0 0");
    check_has(text, "shared policy: ENOSYS");
    check_has(text, "home node: ENOSYS");
    check_has(text, "syncfs: ok");
    check_has(text, "ACL of 61: ENOSPC");
    check_has(text, "ACL by path: ENOSPC");
    check_has(text, "ACL of a link: ENOSPC");
    check_has(text, "ACL high: E2BIG");
    check_has(text, "ACL by structure: ENOSYS");
    check_has(text, "32-bit call: ENOSYS");
    check_has(text, "forced buffer: EPERM");
    check_has(text, "urgent: EOPNOTSUPP");
    check_has(text, "urgent high: EOPNOTSUPP");
    check_has(text, "urgent message: EOPNOTSUPP");
    check_has(text, "urgent messages: EOPNOTSUPP");
    check_has(text, "urgent read: EOPNOTSUPP");
    check_has(text, "urgent message read: EOPNOTSUPP");
    check_has(text, "urgent messages read: EOPNOTSUPP");
    check_has(text, "line discipline: EINVAL");
    check_has(text, "network driver: EOPNOTSUPP");
    check_has(text, "bridge: EPERM");
    check_has(text, "lease: EINVAL");
    check_has(text, "directory signals: EINVAL");
    check_has(text, "merge all pages: EINVAL");
    check_has(text, "merge pages: EINVAL");
    check_has(text, "merge pages of another: EINVAL");
    check_has(text, "ping: EPERM");
    check_has(text, "AF_ALG: EPERM");
    check_has(text, "AF_PACKET: EPERM");
    check_has(text, "raw socket: EPERM");
    check_has(text, "raw socket with flags: EPERM");
    check_has(text, "raw IPv6 socket: EPERM");
    check_has(text, "SCTP: EPERM");
    check_has(text, "UDP-Lite: EPERM");
    check_has(text, "MPTCP: EPROTONOSUPPORT");
    check_has(text, "audit: EPROTONOSUPPORT");
    check_has(text, "netlink for sockets: EPROTONOSUPPORT");
    check_has(text, "IPv4 pair: EPERM");
    check_has(text, "io_setup: ENOSYS");
    check_has(text, "memfd_secret: ENOSYS");
    check_has(text, "kcmp: ENOSYS");
    check_has(text, "mknod: EPERM");
    check_has(text, "proc/sys: read-only");
    check_has(text, "raise namespaces: EACCES");
    check_has(text, "write dev: EROFS");
    check_has(text, "open tty: ENXIO"); /* it has no controlling terminal, and above all not keeper's */
    check_has(text, "swapon: EPERM");
    assert_null(strstr(text, "write exe: ok"));
    /* And what it may. */
    check_has(text, "own policy: ok");
    check_has(text, "ACL of 60: ok");
    check_has(text, "attribute: EBADF");
    check_has(text, "not urgent: EBADF");
    check_has(text, "which line discipline: EBADF");
    check_has(text, "MTU: EBADF");
    check_has(text, "TCP: ok");
    check_has(text, "UDP over IPv6: ok");
    check_has(text, "routes: ok");
    check_has(text, "pair: ok");
    check_has(text, "seccomp actions: ok");
    check_has(text, "port shared: ok");
    check_has(text, "IPV6_V6ONLY: ok");
    check_has(text, "write null: ok");
    check_has(text, "open ptmx: ok");
    check_has(text, "chroot: ok");
}

/* The list a second time, as level/name: a new row in seccomp.c is a decision. */
static const char let_through[] =
    "options: 0/1 0/2 0/8 0/10 0/12 0/13 0/15 0/24 0/32 0/33 0/34 0/35 0/36 0/42 0/45 0/49 0/50 0/51 "
    "1/2 1/5 1/6 1/7 1/8 1/9 1/10 1/12 1/15 1/16 1/18 1/20 1/21 1/25 1/34 1/40 1/47 1/49 1/62 1/66 1/67 1/76 1/83 "
    "6/1 6/2 6/3 6/4 6/5 6/6 6/7 6/8 6/9 6/10 6/12 6/13 6/18 6/23 6/25 6/30 6/36 "
    "17/1 17/103 17/104 "
    "41/16 41/17 41/18 41/19 41/20 41/21 41/23 41/24 41/26 41/29 41/42 41/45 41/49 41/51 41/62 41/66 41/67 41/72 41/76 "
    "41/78 "
    "270/1 270/2 270/3 270/10 270/11 270/12\n"
    "commands: 1 2 3 4 5 6 7 10 12 13 15 17 19 1b 1d 21 27 33 35 38 42 4b 54 70\n";

static void of_all_socket_options_those_in_the_list_reach_the_kernel(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask_and_serve(world, fd, "sweep");
    char both[2 * sizeof let_through + 2];

    (void)snprintf(both, sizeof both, "%s%s.\n", let_through, let_through); /* as user; as root with high halves */
    assert_string_equal(text, both);
}

/* "option LEVEL NAME COUNT" */
static void a_refused_socket_option_is_reported_once_and_the_reports_are_bounded(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *first = ask_and_serve(world, fd, "option 6 31 1");
    auto_free char *again = ask_and_serve(world, fd, "option 6 31 5");
    auto_free char *other = ask_and_serve(world, fd, "option 17 100 1");

    check_has(first, "option: ENOPROTOOPT");
    check_has(again, "option: ENOPROTOOPT");
    check_has(other, "option: ENOPROTOOPT");
    assert_int_equal(world->refused_count, 2);
    assert_memory_equal(world->refused, ((struct socket_option[]){ { 6, 31 }, { 17, 100 } }),
                        2 * sizeof *world->refused);
    /* One of a kind by the hundred. Then the kernel answers, without keeper: nothing serves while ask() waits. */
    auto_free char *many = ask_and_serve(world, fd, "option 6 31 248");
    check_has(many, "option: ENOPROTOOPT");
    auto_free char *last = ask_and_serve(world, fd, "option 6 31 1");
    check_has(last, "option: ENOPROTOOPT");
    auto_free char *flood = ask(fd, "option 6 31 10000");
    check_has(flood, "option: ENOSYS");
    assert_int_equal(world->refused_count, 2);
}

static void different_socket_options_are_reported_up_to_a_number(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    char command[40];

    for (int i = 0; i < LIMIT_OPTIONS_NAMED; i++) {
        (void)snprintf(command, sizeof command, "option 255 %d 1", i);
        auto_free char *text = ask_and_serve(world, fd, command);
        check_has(text, "option: ENOPROTOOPT");
    }
    auto_free char *text = ask(fd, "option 255 99 1");
    check_has(text, "option: ENOSYS");
    assert_int_equal(world->refused_count, LIMIT_OPTIONS_NAMED);
}

static void a_process_that_waits_for_a_refusal_can_be_killed_and_goes_on_without_keeper(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);

    /* The driver does not serve: the call waits. It is answered by the kernel when the driver has gone. */
    assert_true(write(fd, "option 6 31 1", 13) > 0);
    assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 200), 0);
    driver_free(world->driver);
    auto_free char *text = ask(fd, "");
    check_has(text, "option: ENOSYS");
    new_driver(world, false);
    auto_close int second_fd = -1;
    struct plan second = a_plan("sandbox2");
    second_fd = start(world, &second);
    assert_true(write(second_fd, "option 6 31 1", 13) > 0);
    assert_int_equal(poll(&(struct pollfd){ .fd = second_fd, .events = POLLIN }, 1, 200), 0);
    world->driver->refused = NULL; /* it may be heard before the stop */
    assert_true(stop(world->loop, world->driver, "sandbox2"));
}

static void writes_go_to_the_upper_with_ids_from_zero(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct stat st;

    memcpy(plan.layers[plan.layer_count++], upper_layer_id, sizeof upper_layer_id);
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "write");

    check_has(text, "write /made: ok");
    check_has(text, "chown: ok");
    check_has(text, "change a template's file: ok");
    check_has(text, "template file: 0:0");
    assert_int_equal(fstatat(world->data_fd, "sandboxes/sandbox1/upper/made", &st, 0), 0);
    assert_int_equal(st.st_uid, 0);
    assert_int_equal(fstatat(world->data_fd, "sandboxes/sandbox1/upper/made-by-user", &st, 0), 0);
    assert_int_equal(st.st_uid, 1000);
    assert_int_equal(fstatat(world->data_fd, "sandboxes/sandbox1/upper/etc/template-file", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    char path[128];
    (void)snprintf(path, sizeof path, "layers/%s/etc/template-file", layer_id);
    assert_int_equal(fstatat(world->data_fd, path, &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
    assert_int_equal(st.st_uid, 0);
}

static void the_way_of_older_kernels_mounts_the_same_root(void **state)
{
    struct world *world = *state;

    driver_free(world->driver);
    new_driver(world, true);
    writes_go_to_the_upper_with_ids_from_zero(state);
    assert_int_equal(count_mounts("overlay"), 0); /* nothing stays attached */
}

/* A layer for each number below LIMIT_LAYERS; all have etc/who. */
static void make_many_layers(struct world *world, struct plan *plan)
{
    auto_close int layers_fd = openat(world->data_fd, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    while (plan->layer_count < LIMIT_LAYERS) {
        char name[32], text[16];
        uint32_t number = plan->layer_count++;
        (void)snprintf(plan->layers[number], LAYER_ID_BYTES, "%064x", 0x1000 + number);
        (void)snprintf(name, sizeof name, "etc/layer-%u", number);
        (void)snprintf(text, sizeof text, "%u", number);
        make_layer(world->data_fd, plan->layers[number], (const char *const[]){ "etc", NULL }, name);
        auto_close int fd = openat(layers_fd, plan->layers[number], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        auto_close int file_fd = openat(fd, "etc/who", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(write(file_fd, text, strlen(text)) > 0);
    }
}

/* How often we slept while it started. */
static long start_and_count_waits(struct world *world, const struct plan *plan, int *out_fd)
{
    struct rusage before, after;

    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    *out_fd = start(world, plan);
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    return after.ru_nvcsw - before.ru_nvcsw;
}

static void a_root_of_all_layers_that_a_plan_may_have_waits_for_none_of_them(void **state)
{
    struct world *world = *state;
    struct plan few = a_plan("few"), many = a_plan("many");

    make_many_layers(world, &many);
    for (int i = 0; i < 2; i++) {
        auto_close int few_fd = -1, many_fd = -1;
        long of_few = start_and_count_waits(world, &few, &few_fd);
        long of_many = start_and_count_waits(world, &many, &many_fd);
        char question[40], answer[40];
        for (uint32_t n = 1; n < LIMIT_LAYERS; n++) {
            (void)snprintf(question, sizeof question, "get /etc/layer-%u", n);
            auto_free char *text = ask(many_fd, question);
            check_has(text, "get: ");
        }
        (void)snprintf(answer, sizeof answer, "get: %d", LIMIT_LAYERS - 1);
        auto_free char *who = ask(many_fd, "get /etc/who"), *lowest = ask(many_fd, "get /etc/template-file");
        check_has(who, answer);
        check_has(lowest, "get: ");
        /* The end of each mount would be a wait, if they did not end together. */
        if (of_many > of_few + LIMIT_LAYERS / 2)
            fail_msg("%ld waits with %d layers, %ld with one", of_many, LIMIT_LAYERS, of_few);
        assert_int_equal(count_mounts("overlay"), 0); /* nothing stays attached */
        assert_int_equal(count_mounts("/layers/"), 0);
        assert_true(stop(world->loop, world->driver, "few") && stop(world->loop, world->driver, "many"));
        check_nothing_is_left(world);
        driver_free(world->driver);
        new_driver(world, true); /* once more in the way of older kernels */
    }
}

static void limits_hold_processes_and_memory(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *forks = ask(fd, "forks");

    check_has(forks, "forks: 19 EAGAIN");
    auto_free char *memory = ask(fd, "memory");
    check_has(memory, "memory: killed");
    /* guestd is outside the limits, so it still answers. */
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
}

/*
 * The kernel counts what is watched in all sandboxes of a template as one user's, and the terminals of all as the machine's.
 */
static void a_machine_has_enough_for_what_all_sandboxes_may_have(void **state)
{
    static const struct {
        const char *path;
        unsigned long least;
    } limits[] = { { "/proc/sys/fs/inotify/max_user_instances", 1 << 30 },
                   { "/proc/sys/fs/inotify/max_user_watches", 1 << 30 },
                   { "/proc/sys/kernel/pty/max", LIMIT_SANDBOXES * 256ul } };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        auto_free char *text = NULL;
        assert_true(fd_read_file(AT_FDCWD, limits[i].path, 64, &text, NULL, &err));
        assert_true(strtoul(text, NULL, 10) >= limits[i].least);
    }
}

static void guestd_is_limited_too_and_says_why_it_ended(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);

    assert_true(write(fd, "gorge", 5) == 5);
    loop_run(world->loop);
    assert_int_equal(world->exits, 1);
    assert_int_equal(world->exit_cause, EXIT_NO_MEMORY);
    check_nothing_is_left(world);
}

static void pages_that_others_hold_are_reported_after_the_end(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int file_fd = held_page_open(world->data_fd, layer_id);
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "get /etc/template-file");
    check_has(text, "get: held");
    void *page = held_page_lock(file_fd);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    for (int i = 0; i < 9000 && world->exit_cause != EXIT_LEFT_PAGES; i++)
        turn_for(world->loop, 10);
    assert_int_equal(world->exit_cause, EXIT_LEFT_PAGES);
    assert_string_equal(world->exited, "sandbox1");
    assert_int_equal(world->exits, 1);
    held_page_unlock(page);
}

/* On v1 what is frozen dies when it is thawed; a test of growth.h may have frozen it, of which the box does not know. */
static void one_that_was_frozen_from_outside_can_be_stopped(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct err err;

    for (int old = 0; old < 2; old++) {
        driver_free(world->driver);
        world->old_freezer = old;
        new_driver(world, false);
        auto_close int fd = start(world, &plan);
        assert_true(fd >= 0 && cgroup_freeze(native_of(world->driver)->cgroups, "sandbox1", true, &err));
        assert_true(stop(world->loop, world->driver, "sandbox1"));
        check_nothing_is_left(world);
    }
}

/* Has one of two do this, and waits until it is ended for what the kernel holds for it: seconds when little else goes on. */
static void check_is_ended_for(struct world *world, const char *command, const char *answer, enum exit_cause cause)
{
    struct plan plan = a_plan("sandbox1"), other = a_plan("sandbox2");
    auto_close int fd = start(world, &plan);
    auto_close int second = start(world, &other);
    auto_free char *text = ask(fd, command);

    check_has(text, answer);
    for (int i = 0; i < 3000 && !world->exits; i++)
        turn_for(world->loop, 10);
    assert_int_equal(world->exits, 1);
    assert_string_equal(world->exited, "sandbox1");
    assert_int_equal(world->exit_cause, cause);
    auto_free char *alive = ask(second, "ping");
    check_has(alive, "pong");
    assert_true(stop(world->loop, world->driver, "sandbox2"));
    check_nothing_is_left(world);
}

/* 64 MiB is the limit, and none of what it has the kernel hold is counted there. */
static void a_guest_that_fills_sockets_beyond_its_memory_is_ended(void **state)
{
    check_is_ended_for(*state, "hoard", "hoarded: 3360", EXIT_KERNEL_MEMORY);
}

/* No list says whose record locks are. */
static void a_guest_that_makes_the_kernel_grow_in_a_way_that_no_list_knows_is_ended(void **state)
{
    check_is_ended_for(*state, "lock", "locking", EXIT_KERNEL_MEMORY);
}

static void a_guest_with_too_many_open_files_is_ended(void **state)
{
    check_is_ended_for(*state, "open", "opening", EXIT_OPEN_FILES);
}

static void a_guest_with_too_many_descriptors_on_their_way_is_ended(void **state)
{
    check_is_ended_for(*state, "circles", "sending", EXIT_IN_FLIGHT);
}

static void a_sandboxs_usage_is_measured(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    const struct held which[] = { { "sandbox1" }, { "stranger" } };
    struct stats before, after;
    uint32_t count;
    struct err err;

    assert_true(driver_stats(world->driver, which, 2, &before, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(before.id, "sandbox1");
    assert_int_equal(before.memory_limit_bytes, 64 << 20);
    assert_true(before.memory_used_bytes < 64 << 20); /* the kernel rounds one this small down to nothing at times */
    assert_true(before.disk_total_bytes >= before.disk_used_bytes && before.disk_used_bytes > 0);
    /* What has ended still counts. */
    auto_free char *text = ask(fd, "burn");
    check_has(text, "burnt");
    assert_true(driver_stats(world->driver, which, 2, &after, &count, &err));
    assert_int_equal(count, 1);
    assert_in_range(after.cpu_us - before.cpu_us, 150000, 2000000);
}

static void dial_reaches_a_server_on_loopback_inside(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "listen 8080");
    struct dialed dialed = { .fd = -1 };
    char said[64] = { 0 };
    struct err err;
    struct stat before, after;

    check_has(text, "listening");
    assert_int_equal(stat("/proc/self/ns/net", &before), 0);
    driver_dial(world->driver, "sandbox1", 8080, take_dialed, &dialed);
    assert_int_equal(stat("/proc/self/ns/net", &after), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_true(dialed.fd >= 0);
    assert_true(fcntl(dialed.fd, F_GETFL) & O_NONBLOCK);
    assert_true(fd_set_nonblocking(dialed.fd, false, &err));
    assert_int_equal(read(dialed.fd, said, sizeof said - 1), 17);
    assert_string_equal(said, "hello from inside");
    fd_close(&dialed.fd);
    driver_dial(world->driver, "sandbox1", 8081, take_dialed, &dialed);
    assert_int_equal(dialed.fd, -1);
    assert_int_equal(dialed.err.sys, ECONNREFUSED);
    driver_dial(world->driver, "sandbox2", 8080, take_dialed, &dialed);
    assert_int_equal(dialed.fd, -1);
    assert_int_equal(dialed.err.kind, ERR_NOT_FOUND);
}

static void check_conflict(struct world *world, const struct listen_at *at)
{
    struct dialed answer = { .fd = -1 };

    driver_listen(world->driver, "sandbox1", at, take_dialed, &answer);
    assert_int_equal(answer.fd, -1);
    assert_int_equal(answer.err.kind, ERR_CONFLICT);
    assert_non_null(strstr(answer.err.message, "in use inside the sandbox"));
}

static void listen_takes_connections_that_guests_make_on_loopback(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1"), other_plan = a_plan("sandbox2");
    auto_close int link = start(world, &plan);
    auto_close int other_link = start(world, &other_plan);
    struct listen_at at = { .address = INADDR_LOOPBACK + 52, .port = 53, .backlog = 8 };
    struct dialed answer = { .fd = -1 };
    char said[64] = { 0 };
    struct err err;
    struct stat before, after;

    auto_free char *refused = ask(link, "connect 127.0.0.53 53");
    check_has(refused, "connect: ECONNREFUSED");
    assert_int_equal(stat("/proc/self/ns/net", &before), 0);
    driver_listen(world->driver, "sandbox1", &at, take_dialed, &answer);
    assert_int_equal(stat("/proc/self/ns/net", &after), 0);
    assert_true(before.st_ino == after.st_ino);
    if (answer.fd < 0)
        fail_msg("%s", err_text(&answer.err));
    auto_close int listener = answer.fd;
    assert_true(fcntl(listener, F_GETFL) & O_NONBLOCK);
    assert_int_equal(accept4(listener, NULL, NULL, SOCK_CLOEXEC), -1);
    assert_int_equal(errno, EAGAIN);

    auto_free char *connected = ask(link, "connect 127.0.0.53 53");
    check_has(connected, "connect: ok");
    auto_close int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(fd_set_nonblocking(fd, false, &err));
    assert_int_equal(recv(fd, said, sizeof said - 1, MSG_WAITALL), 17);
    assert_string_equal(said, "hello from inside");
    /* At another address of the same sandbox, and in another sandbox, nothing listens. */
    auto_free char *elsewhere = ask(link, "connect 127.0.0.1 53");
    check_has(elsewhere, "connect: ECONNREFUSED");
    auto_free char *other = ask(other_link, "connect 127.0.0.53 53");
    check_has(other, "connect: ECONNREFUSED");

    check_conflict(world, &at); /* ours */
    auto_free char *guests = ask(link, "listen 8080");
    check_has(guests, "listening");
    at = (struct listen_at){ .address = INADDR_LOOPBACK, .port = 8080, .backlog = 8 };
    check_conflict(world, &at); /* the guest's */
    driver_listen(world->driver, "sandbox3", &at, take_dialed, &answer);
    assert_int_equal(answer.fd, -1);
    assert_int_equal(answer.err.kind, ERR_NOT_FOUND);
}

/* ---- the network ---- */

static void close_all(int fds[DIVERT_KINDS])
{
    for (int i = 0; i < DIVERT_KINDS; i++)
        fd_close(&fds[i]);
}

static void divert(struct world *world, const char *id, int fds[DIVERT_KINDS])
{
    struct err err;

    if (!driver_divert(world->driver, id, fds, &err))
        fail_msg("%s", err_text(&err));
}

/* A connection that a guest made, on egress's socket: its destination, and what it sent. */
static void check_arrives(int listener, const char *want)
{
    auto_close int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct sockaddr_storage to;
    char text[64] = { 0 }, address[INET6_ADDRSTRLEN];
    struct err err;

    assert_true(fd >= 0);
    assert_true(divert_destination(fd, &to, &err));
    const void *bytes = to.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&to)->sin6_addr
                                                 : (void *)&((struct sockaddr_in *)&to)->sin_addr;
    assert_non_null(inet_ntop(to.ss_family, bytes, address, sizeof address));
    assert_string_equal(address, want);
    assert_int_equal(recv(fd, text, sizeof text - 1, MSG_WAITALL), 17);
    assert_string_equal(text, "hello from inside");
}

static void what_a_sandbox_sends_out_arrives_on_egresss_sockets(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1"), other_plan = a_plan("sandbox2");
    auto_close int link = start(world, &plan);
    auto_close int other_link = start(world, &other_plan);
    int fds[DIVERT_KINDS], other_fds[DIVERT_KINDS];
    struct divert_peer peer;
    struct stat before, after;
    char text[64];
    struct err err;

    auto_free char *refused = ask(link, "connect 198.51.100.7 443");
    check_has(refused, "connect: ECONNREFUSED");
    assert_int_equal(stat("/proc/self/ns/net", &before), 0);
    divert(world, "sandbox1", fds);
    divert(world, "sandbox2", other_fds);
    assert_int_equal(stat("/proc/self/ns/net", &after), 0);
    assert_true(before.st_ino == after.st_ino);

    auto_free char *connected = ask(link, "connect 198.51.100.7 443");
    check_has(connected, "connect: ok");
    check_arrives(fds[DIVERT_TCP4], "198.51.100.7");
    auto_free char *six = ask(link, "connect 2001:db8::7 443");
    check_has(six, "connect: ok");
    check_arrives(fds[DIVERT_TCP6], "2001:db8::7");
    auto_free char *mapped = ask(link, "connect ::ffff:198.51.100.8 443");
    check_has(mapped, "connect: ok");
    check_arrives(fds[DIVERT_TCP4], "198.51.100.8");
    auto_free char *fast = ask(link, "fast 198.51.100.9 80");
    check_has(fast, "fast: ok");
    check_arrives(fds[DIVERT_TCP4], "198.51.100.9");
    auto_free char *question = ask(link, "datagram 192.0.0.1 53");
    check_has(question, "datagram: ok");
    assert_int_equal(divert_receive(fds[DIVERT_UDP4], text, sizeof text, &peer), 8);

    /* The sockets of the other sandbox got nothing of it. */
    for (int i = 0; i < DIVERT_KINDS; i++) {
        struct pollfd ready = { .fd = other_fds[i], .events = POLLIN };
        assert_int_equal(poll(&ready, 1, 0), 0);
    }
    auto_free char *other = ask(other_link, "ping");
    check_has(other, "pong");
    assert_false(driver_divert(world->driver, "sandbox1", fds, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    close_all(fds);
    divert(world, "sandbox1", fds); /* as for the next egress */
    assert_false(driver_divert(world->driver, "sandbox3", fds, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    close_all(fds);
    close_all(other_fds);
}

static void root_inside_cannot_get_around_the_network(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1"), other_plan = a_plan("sandbox2");
    auto_close int link = start(world, &plan);
    auto_close int other_link = start(world, &other_plan);
    int fds[DIVERT_KINDS];
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof here;
    char command[128];

    divert(world, "sandbox1", fds);
    auto_free char *text = ask_and_serve(world, link, "attack network");
    check_has(text, "lo down: EPERM");
    check_has(text, "new link: EPERM");
    check_has(text, "new address: EPERM");
    check_has(text, "no address: EPERM");
    check_has(text, "new route: EPERM");
    check_has(text, "no route: EPERM");
    check_has(text, "nftables: EPROTONOSUPPORT");
    check_has(text, "xfrm: EPROTONOSUPPORT");
    check_has(text, "iptables: ENOPROTOOPT");
    check_has(text, "lo down by ioctl: EPERM");
    check_has(text, "address by ioctl: EPERM");
    check_has(text, "transparent: ENOPROTOOPT");
    check_has(text, "transparent IPv6: ENOPROTOOPT");
    check_has(text, "mark: ENOPROTOOPT");
    check_has(text, "repair: ENOPROTOOPT");
    check_has(text, "SO_BINDTODEVICE eth0: ENODEV");
    check_has(text, "source routed: ENOPROTOOPT");

    /* Neither the host's loopback nor its abstract sockets, nor those of another sandbox. */
    auto_close int host_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(host_fd, (struct sockaddr *)&here, len), 0);
    assert_int_equal(listen(host_fd, 8), 0);
    assert_int_equal(getsockname(host_fd, (struct sockaddr *)&here, &len), 0);
    (void)snprintf(command, sizeof command, "connect 127.0.0.1 %u", ntohs(here.sin_port));
    auto_free char *loopback = ask(link, command);
    check_has(loopback, "connect: ECONNREFUSED");
    auto_close int abstract_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cloister-test-%d", getpid());
    assert_int_equal(bind(abstract_fd, (struct sockaddr *)&name,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name.sun_path + 1))),
                     0);
    assert_int_equal(listen(abstract_fd, 8), 0);
    (void)snprintf(command, sizeof command, "abstract %s", name.sun_path + 1);
    auto_free char *abstract = ask(link, command);
    check_has(abstract, "abstract: ECONNREFUSED");
    auto_free char *listening = ask(other_link, "listen 8080");
    check_has(listening, "listening");
    auto_free char *other = ask(link, "connect 127.0.0.1 8080");
    check_has(other, "connect: ECONNREFUSED");

    /* What is neither TCP nor a DNS question is refused at once. */
    static const char *const refused[] = { "datagram 198.51.100.7 443", "datagram 2001:db8::7 443",
                                           "datagram 224.0.0.251 5353", "datagram 192.0.0.1 123" };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        auto_free char *datagram = ask(link, refused[i]);
        check_has(datagram, "datagram: EPERM");
    }
    close_all(fds);
}

static void what_tcp_remembers_of_a_guests_connections_has_a_limit(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int link = start(world, &plan);
    auto_free char *text = ask(link, "churn");
    const char *remembered = strstr(text, "remembered: ");

    check_has(text, "connections: 12000");
    assert_non_null(remembered);
    assert_in_range(atoi(remembered + strlen("remembered: ")), 1, 8192);
}

static void without_a_network_sandboxes_start_and_say_so(void **state)
{
    struct world *world = *state;
    struct native_config config = { .data_fd = world->data_fd, .guestd_fd = world->guestd_fd, .no_network = true };
    struct plan plan = a_plan("sandbox1"), next_plan = a_plan("sandbox2");
    struct started started;
    int fds[DIVERT_KINDS];
    struct err err;

    driver_free(world->driver);
    world->driver = native_driver_new(world->loop, &config, &err);
    assert_non_null(world->driver);
    assert_true(driver_start(world->driver, &plan, &started, &err));
    auto_close int link = started.guestlink_fd;
    assert_false(started.has_network);
    auto_free char *text = ask(link, "connect 198.51.100.7 443");
    check_has(text, "connect: ENETUNREACH");
    assert_false(driver_divert(world->driver, "sandbox1", fds, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);

    /* The next keeper can give one to new sandboxes, and leaves this one as it is. */
    driver_free(world->driver);
    new_driver(world, false);
    assert_false(driver_divert(world->driver, "sandbox1", fds, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_true(driver_start(world->driver, &next_plan, &started, &err));
    auto_close int next_link = started.guestlink_fd;
    assert_true(next_link >= 0 && started.has_network);
    divert(world, "sandbox2", fds);
    close_all(fds);
    /* And the one after that finds what has one. */
    driver_free(world->driver);
    new_driver(world, false);
    divert(world, "sandbox2", fds);
    close_all(fds);
}

/* ---- the zygotes ---- */

static uid_t owner_of(struct world *world, const char *id)
{
    char path[64];
    uid_t owner;

    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", native_pid_of(world->driver, id));
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ioctl(fd, NS_GET_OWNER_UID, &owner), 0);
    return owner;
}

static void sandboxes_of_one_template_have_one_owner_who_is_nobody_else(void **state)
{
    struct world *world = *state;
    struct plan plans[] = { a_plan("sandbox1"), a_plan("sandbox2"), a_plan("sandbox3") };
    auto_close int first = start(world, &plans[0]);
    auto_close int second = start(world, &plans[1]);

    plans[2].layer_count = 2;
    memcpy(plans[2].layers[1], upper_layer_id, sizeof upper_layer_id);
    auto_close int third = start(world, &plans[2]);
    assert_int_equal(geteuid(), 0);
    assert_true(first >= 0 && second >= 0 && third >= 0);
    uid_t owner = owner_of(world, "sandbox1");
    assert_in_range(owner, 0x78000000u, 0x7fffffffu);
    assert_int_equal(owner_of(world, "sandbox2"), owner);
    assert_int_not_equal(owner_of(world, "sandbox3"), owner);
    /* Another keeper goes on with the owners that it finds, so that its zygotes can enter these sandboxes too. */
    driver_free(world->driver);
    new_driver(world, false);
    struct plan plan = a_plan("sandbox4");
    auto_close int fourth = start(world, &plan);
    assert_true(fourth >= 0);
    assert_int_equal(owner_of(world, "sandbox4"), owner);
}

/* Nothing listens there; the attempt is what starts a zygote. */
static void dial_code_port(struct world *world, const char *id)
{
    struct dialed dialed = { .fd = -1 };

    driver_dial(world->driver, id, ZYGOTE_CODE_PORT, take_dialed, &dialed);
    fd_close(&dialed.fd);
}

static void a_template_without_python_has_no_zygote_and_its_socket_closes(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *before = ask(fd, "zygote");

    check_has(before, "zygote: none");
    dial_code_port(world, "sandbox1");
    bool is_closed = false;
    for (int i = 0; i < 3000 && !is_closed; i++) {
        turn_for(world->loop, 10);
        auto_free char *after = ask(fd, "zygote");
        is_closed = strstr(after, "zygote: closed\n") != NULL;
    }
    assert_true(is_closed);
    for (int i = 0; i < 300 && native_zygote_of(world->driver, "sandbox1") >= 0; i++)
        turn_for(world->loop, 10);
    assert_int_equal(native_zygote_of(world->driver, "sandbox1"), -1);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    check_nothing_is_left(world);
}

static void copy_python(struct world *world)
{
    static const char *const dirs[] = { "usr", "usr/bin", "dev", "sys", NULL };
    auto_free char *program = NULL;
    size_t size;
    struct err err;
    char path[128];

    make_layer(world->data_fd, python_layer_id, dirs, "usr/bin/python3");
    assert_true(fd_read_file(AT_FDCWD, init_path, 64 << 20, &program, &size, &err));
    (void)snprintf(path, sizeof path, "layers/%s/usr/bin/python3", python_layer_id);
    assert_true(fd_write_file(world->data_fd, path, str_of(program, size), &err));
    assert_int_equal(fchmodat(world->data_fd, path, 0755, 0), 0);
}

/* Once it is the template's python3; it runs as that user. */
static char *status_of_zygote(struct world *world, int pid, uid_t owner)
{
    char path[32], line[64], *status = NULL;
    struct err err;

    assert_true(pid > 0);
    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    for (int i = 0; i < 3000; i++) {
        turn_for(world->loop, 10);
        free(status);
        assert_true(fd_read_file(AT_FDCWD, path, 65536, &status, NULL, &err));
        if (strncmp(status, "Name:\tpython3\n", 14) == 0)
            break;
    }
    (void)snprintf(line, sizeof line, "Uid:\t%u\t%u\t%u\t%u", owner, owner, owner, owner);
    check_has(status, line);
    return status;
}

static void a_zygote_has_no_power_but_that_of_its_id(void **state)
{
    static const char *const apart[] = { "mnt", "net", "ipc", "uts", "cgroup" };
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    char path[64], its[64], ours[64];

    copy_python(world);
    plan.layer_count = 2;
    memcpy(plan.layers[1], python_layer_id, sizeof python_layer_id);
    auto_close int fd = start(world, &plan);
    uid_t owner = owner_of(world, "sandbox1");
    dial_code_port(world, "sandbox1");
    int pid = native_zygote_of(world->driver, "sandbox1");
    assert_true(pid > 0);
    auto_free char *status = status_of_zygote(world, pid, owner);
    check_has(status, "Groups:\t ");
    check_has(status, "CapPrm:\t0000000000000000");
    check_has(status, "CapBnd:\t0000000000000000");
    check_has(status, "Seccomp:\t2");
    for (size_t i = 0; i < COUNT_OF(apart); i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, apart[i]);
        ssize_t n = readlink(path, its, sizeof its - 1);
        (void)snprintf(path, sizeof path, "/proc/self/ns/%s", apart[i]);
        ssize_t m = readlink(path, ours, sizeof ours - 1);
        assert_true(n > 0 && m > 0);
        its[n] = ours[m] = '\0';
        assert_string_not_equal(its, ours);
    }
    /* It keeps the socket that it was given, and a second dial does not make a second zygote. */
    turn_for(world->loop, 50);
    auto_free char *open = ask(fd, "zygote");
    check_has(open, "zygote: open");
    dial_code_port(world, "sandbox1");
    assert_int_equal(native_zygote_of(world->driver, "sandbox1"), pid);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    driver_free(world->driver);
    assert_int_equal(kill(pid, 0), -1); /* it ended with the driver */
    assert_int_equal(errno, ESRCH);
    new_driver(world, false);
    check_nothing_is_left(world);
}

/* It can do that, but keeper neither waits for what it stops nor lets it do so again. */
static void a_zygote_that_stops_what_is_being_made_is_the_last_of_its_template(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct started started;
    struct err err = { 0 };
    int i;

    copy_python(world);
    auto_close int layer_fd = openat(world->data_fd, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int in_fd = openat(layer_fd, python_layer_id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int evil_fd = openat(in_fd, "evil", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(evil_fd >= 0);
    plan.layer_count = 2;
    memcpy(plan.layers[1], python_layer_id, sizeof python_layer_id);
    auto_close int fd = start(world, &plan);
    assert_true(fd >= 0 && owner_of(world, "sandbox1") != 0);
    dial_code_port(world, "sandbox1");
    for (i = 2; i < 300; i++) { /* some may be through before it acts */
        turn_for(world->loop, 10);
        (void)snprintf(plan.id, sizeof plan.id, "sandbox%d", i);
        if (!driver_start(world->driver, &plan, &started, &err))
            break;
        fd_close(&started.guestlink_fd);
        assert_true(stop(world->loop, world->driver, plan.id));
    }
    assert_non_null(strstr(err_text(&err), "it was stopped by a signal"));
    for (i = 0; i < 3000 && native_zygote_of(world->driver, "sandbox1") >= 0; i++)
        turn_for(world->loop, 10);
    assert_int_equal(native_zygote_of(world->driver, "sandbox1"), -1);
    (void)snprintf(plan.id, sizeof plan.id, "after");
    auto_close int after_fd = start(world, &plan);
    assert_true(after_fd >= 0);
    assert_int_equal(owner_of(world, "after"), 0);
    dial_code_port(world, "after");
    assert_int_equal(native_zygote_of(world->driver, "after"), -1);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_true(stop(world->loop, world->driver, "after"));
    check_nothing_is_left(world);
}

static bool is_ended(int fd)
{
    char byte;

    return poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 20000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

static void a_link_can_be_made_again_by_this_keeper_and_by_the_next(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct err err;
    auto_close int old_fd = start(world, &plan);

    for (int i = 0; i < 4; i++) {
        int fd = -1;
        auto_free char *said = ask(old_fd, "ping");
        check_has(said, "pong");
        if (i == 1) {
            driver_free(world->driver);
            new_driver(world, false);
        }
        if (i == 2) { /* a guest that has the usual port at all addresses keeps no link from being made */
            fd_close(&old_fd);
            assert_true(driver_link(world->driver, "sandbox1", &old_fd, &err));
            auto_free char *listening = ask(old_fd, "listen 1");
            check_has(listening, "listening");
        }
        assert_true(driver_link(world->driver, "sandbox1", &fd, &err));
        auto_free char *first = ask(fd, "ping");
        check_has(first, "pong");
        assert_true(is_ended(old_fd));
        fd_close(&old_fd);
        old_fd = fd;
    }
    int none;
    assert_false(driver_link(world->driver, "sandbox2", &none, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    check_nothing_is_left(world);
}

/* What waits for it stays within bounds, and nothing of keeper's waits. */
static void a_guestd_that_takes_nothing_holds_nobody_up(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct err err = { 0 };
    auto_close int fd = start(world, &plan);
    auto_free char *said = ask(fd, "ping");
    int pid = native_pid_of(world->driver, "sandbox1");
    int links = 0;

    check_has(said, "pong");
    assert_int_equal(kill(pid, SIGSTOP), 0);
    uint64_t before_ms = clock_mono_ms();
    for (int link_fd; links < 100 && driver_link(world->driver, "sandbox1", &link_fd, &err); links++)
        fd_close(&link_fd);
    assert_in_range(links, 1, 20);
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_true(clock_mono_ms() - before_ms < 60000); /* and not for ever */
    assert_int_equal(kill(pid, SIGCONT), 0);
    for (int i = 0; i < 300; i++) { /* and all is well once it does */
        int link_fd;
        if (driver_link(world->driver, "sandbox1", &link_fd, &err)) {
            auto_free char *again = ask(link_fd, "ping");
            check_has(again, "pong");
            fd_close(&link_fd);
            break;
        }
        assert_true(i < 299);
        turn_for(world->loop, 10);
    }
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    check_nothing_is_left(world);
}

static void a_zygote_is_given_when_it_is_warm(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct err err;
    bool is_warm = false;

    copy_python(world);
    plan.layer_count = 2;
    memcpy(plan.layers[1], python_layer_id, sizeof python_layer_id);
    auto_close int fd = start(world, &plan);
    for (int i = 0; i < 3000 && !is_warm; i++) {
        is_warm = driver_warm(world->driver, "sandbox1", &err);
        if (is_warm)
            break;
        assert_int_equal(err.kind, ERR_UNAVAILABLE);
        auto_free char *before = ask(fd, "zygote");
        check_has(before, "zygote: none");
        turn_for(world->loop, 10);
    }
    assert_true(is_warm);
    auto_free char *after = ask(fd, "zygote");
    check_has(after, "zygote: open");
    assert_false(driver_warm(world->driver, "sandbox2", &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    /* One of the same template waits for nothing. */
    struct plan other = plan;
    (void)snprintf(other.id, sizeof other.id, "sandbox2");
    auto_close int other_fd = start(world, &other);
    assert_true(driver_warm(world->driver, "sandbox2", &err));
    auto_free char *too = ask(other_fd, "zygote");
    check_has(too, "zygote: open");
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_true(stop(world->loop, world->driver, "sandbox2"));
}

static bool wait_for_zygote(struct world *world, int fd)
{
    for (int i = 0; i < 300; i++) {
        dial_code_port(world, "sandbox1");
        turn_for(world->loop, 10);
        auto_free char *said = ask(fd, "zygote");
        if (strstr(said, "zygote: open\n"))
            return true;
    }
    return false;
}

static void a_zygote_is_given_again_after_its_death_and_by_the_next_keeper(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct err err;

    copy_python(world);
    plan.layer_count = 2;
    memcpy(plan.layers[1], python_layer_id, sizeof python_layer_id);
    auto_close int fd = start(world, &plan);
    uid_t owner = owner_of(world, "sandbox1");
    assert_true(wait_for_zygote(world, fd));
    driver_free(world->driver);
    new_driver(world, false);
    fd_close(&fd);
    assert_true(driver_link(world->driver, "sandbox1", &fd, &err));
    auto_free char *said = ask(fd, "zygote");
    check_has(said, "zygote: closed");
    assert_true(wait_for_zygote(world, fd));
    int pid = native_zygote_of(world->driver, "sandbox1");
    free(status_of_zygote(world, pid, owner)); /* with which it can enter */
    assert_int_equal(kill(pid, SIGKILL), 0);
    for (int i = 0; i < 1000 && native_zygote_of(world->driver, "sandbox1") == pid; i++)
        turn_for(world->loop, 10);
    assert_true(wait_for_zygote(world, fd)); /* after the pause that follows a failure */
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    driver_free(world->driver);
    new_driver(world, false);
    check_nothing_is_left(world);
}

static void stop_ends_everything_and_leaves_nothing(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *text = ask(fd, "listen 8080");
    int pid = native_pid_of(world->driver, "sandbox1");

    check_has(text, "listening");
    assert_true(pid > 0);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(world->exits, 1);
    assert_string_equal(world->exited, "sandbox1");
    assert_true(stop(world->loop, world->driver, "sandbox1")); /* again is fine, and says nothing twice */
    assert_int_equal(world->exits, 1);
    check_nothing_is_left(world);
}

/* A guest that dies slowly, without its disk: a tracer that wants to hear of an exit keeps the process in it. */
static void a_stop_that_takes_long_holds_nobody_up(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct held *held = NULL;
    uint32_t count;
    struct err err;
    auto_close int fd = start(world, &plan);
    int pid = native_pid_of(world->driver, "sandbox1");
    auto_free char *before = ask(fd, "facts");

    assert_true(fd >= 0);
    assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXIT), 0);
    assert_false(stop_within(world->loop, world->driver, "sandbox1", 50));
    assert_false(stop_within(world->loop, world->driver, "sandbox1", 0)); /* joins */
    assert_int_equal(world->exits, 0);
    assert_true(driver_list(world->driver, &held, &count, &err));
    assert_int_equal(count, 0);
    free(held);
    plan = a_plan("sandbox2");
    auto_close int second = start(world, &plan);
    auto_free char *facts = ask(second, "facts");
    assert_int_not_equal(first_id(facts), first_id(before)); /* the first one's ids are still its own */
    /* And the next keeper does not take it for one that runs. */
    driver_free(world->driver);
    new_driver(world, false);
    assert_true(driver_list(world->driver, &held, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(held[0].id, "sandbox2");
    free(held);
    assert_false(stop_within(world->loop, world->driver, "sandbox1", 0));
    assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_int_equal(world->exits, 1);
    assert_true(stop(world->loop, world->driver, "sandbox2"));
    check_nothing_is_left(world);
}

enum { CROWD = NATIVE_DYING + 3 };

/* As ps shows it: t is held in its exit by a tracer, Z has ended. */
static char state_of(int pid)
{
    char path[32], state = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (file)
        (void)fclose(file);
    return state;
}

/* Each frees a BPF program, and a kernel that has a thousand to free at once may never end doing so. */
static void of_a_crowd_only_some_die_at_a_time_and_slow_ones_hold_nobody_up(void **state)
{
    struct world *world = *state;
    static struct stopping stopping[CROWD]; /* not on the stack, which an assertion that fails leaves */
    int pids[CROWD], fds[CROWD];
    struct held *held = NULL;
    uint32_t count;
    struct err err;

    for (int i = 0; i < CROWD; i++) {
        char id[LIMIT_ID_BYTES];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        struct plan plan = a_plan(id);
        fds[i] = start(world, &plan);
        pids[i] = native_pid_of(world->driver, id);
        auto_free char *text = ask(fds[i], "ping"); /* it runs, and then it waits */
        assert_true(fds[i] >= 0 && pids[i] > 0 && text);
        if (i < NATIVE_DYING)
            assert_int_equal(ptrace(PTRACE_SEIZE, pids[i], NULL, PTRACE_O_TRACEEXIT), 0);
    }
    for (int i = 0; i < CROWD; i++) {
        char id[LIMIT_ID_BYTES];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        stopping[i] = (struct stopping){ .loop = world->loop };
        driver_stop(world->driver, id, i < NATIVE_DYING ? 0 : LIMIT_STOP_MS, note_stopped, &stopping[i]);
    }
    assert_true(driver_list(world->driver, &held, &count, &err));
    assert_int_equal(count, 0); /* for everybody else they are all gone */
    free(held);
    for (int i = 0, tries = 0; i < NATIVE_DYING && tries < 2000; state_of(pids[i]) == 't' ? i++ : tries++)
        (void)usleep(1000);
    for (int i = 0; i < CROWD; i++) { /* the loop has not turned: however long that took, it is nobody's turn yet */
        assert_int_equal(state_of(pids[i]) == 't', i < NATIVE_DYING);
        assert_int_not_equal(state_of(pids[i]), 'Z');
    }
    assert_int_equal(kill(pids[CROWD - 1], SIGKILL), 0); /* one ends before its turn */
    for (int i = 0; i < 500 && world->exits < 3; i++)
        turn_for(world->loop, 10);
    for (int i = 0; i < CROWD; i++)
        assert_true(stopping[i].answered && stopping[i].gone == (i >= NATIVE_DYING));
    assert_int_equal(world->exits, 3); /* the slow ones no longer count */
    for (int i = 0; i < NATIVE_DYING; i++)
        assert_int_equal(ptrace(PTRACE_DETACH, pids[i], NULL, NULL), 0);
    for (int i = 0; i < 500 && world->exits < CROWD; i++)
        turn_for(world->loop, 10);
    assert_int_equal(world->exits, CROWD);
    for (int i = 0; i < CROWD; i++)
        fd_close(&fds[i]);
    check_nothing_is_left(world);
}

static void an_exit_from_inside_is_noticed(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);

    assert_true(write(fd, "exit", 4) == 4);
    loop_run(world->loop);
    assert_int_equal(world->exits, 1);
    assert_string_equal(world->exited, "sandbox1");
    check_nothing_is_left(world);
}

static void a_start_that_fails_at_any_step_leaves_nothing(void **state)
{
    struct world *world = *state;

    for (int step = NATIVE_NOWHERE + 1; step < NATIVE_STEP_COUNT; step++) {
        struct plan plan = a_plan("sandbox1");
        struct started started;
        struct err err;
        native_fail_at(world->driver, (enum native_step)step);
        if (driver_start(world->driver, &plan, &started, &err))
            fail_msg("step %d did not fail", step);
        if (!strstr(err.message, "on purpose"))
            fail_msg("step %d: %s", step, err_text(&err));
        check_nothing_is_left(world);
    }
    assert_int_equal(world->exits, 0); /* what never ran does not exit */
    native_fail_at(world->driver, NATIVE_NOWHERE);
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    assert_true(fd >= 0);
}

static void a_plan_that_cannot_work_is_refused(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct started started;
    struct err err;

    memset(plan.layers[0], 'c', 64);
    assert_false(driver_start(world->driver, &plan, &started, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    check_nothing_is_left(world);
    plan = a_plan("../sandbox1");
    assert_false(driver_start(world->driver, &plan, &started, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    assert_true(fd >= 0);
    assert_false(driver_start(world->driver, &plan, &started, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
}

static void the_next_driver_finds_what_runs(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    struct held *held = NULL;
    uint32_t count;
    struct err err;
    auto_close int fd = start(world, &plan);
    int pid = native_pid_of(world->driver, "sandbox1");

    driver_free(world->driver);
    world->driver = NULL;
    assert_int_equal(kill(pid, 0), 0);
    new_driver(world, false);
    assert_true(driver_list(world->driver, &held, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(held[0].id, "sandbox1");
    free(held);
    assert_int_equal(native_pid_of(world->driver, "sandbox1"), pid);
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
    /* A second one does not get the first one's ids. */
    plan = a_plan("sandbox2");
    auto_close int second = start(world, &plan);
    auto_free char *facts = ask(second, "facts");
    auto_free char *of_first = ask(fd, "facts");
    assert_int_not_equal(first_id(facts), first_id(of_first));
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_true(stop(world->loop, world->driver, "sandbox2"));
    check_nothing_is_left(world);
}

/* kill -9 in the middle of a start, as the next driver finds it: a record, cgroups, perhaps a process. */
static void the_next_driver_sweeps_what_was_half_made(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    int pid = native_pid_of(world->driver, "sandbox1");
    struct err err;

    assert_true(fd >= 0);
    driver_free(world->driver);
    world->driver = NULL;
    /* As if the pid had not been written yet. */
    assert_true(fd_write_file(world->data_fd, "sandboxes/sandbox1/state", STR("cloister-sandbox 1\ngarbage"), &err));
    new_driver(world, false);
    assert_int_equal(native_pid_of(world->driver, "sandbox1"), -1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    check_nothing_is_left(world);
    /* A cgroup whose directory is gone. */
    auto_close int again = start(world, &plan);
    assert_true(again >= 0);
    pid = native_pid_of(world->driver, "sandbox1");
    driver_free(world->driver);
    world->driver = NULL;
    assert_int_equal(renameat(world->data_fd, "sandboxes/sandbox1", world->data_fd, "trash/sandbox1"), 0);
    new_driver(world, false);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    check_nothing_is_left(world);
}

static void ignore_frozen(void *context, const struct kept *kept, const struct err *err)
{
    (void)context;
    (void)kept;
    (void)err;
}

/*
 * Plays keeper until it is killed: starts sandboxes, stops every other one, has some freeze, and writes a byte before each
 * start.
 */
static void be_keeper(const struct world *world, int progress_fd)
{
    struct native_config config = { .data_fd = world->data_fd, .guestd_fd = world->guestd_fd };
    struct loop *loop = loop_new();
    struct err err;
    struct driver *driver = native_driver_new(loop, &config, &err);

    for (unsigned i = 0; driver; i++) {
        char id[LIMIT_ID_BYTES];
        struct started started;
        (void)snprintf(id, sizeof id, "s%ux%u", (unsigned)getpid(), i);
        struct plan plan = a_plan(id);
        if (write(progress_fd, "", 1) < 0 || !driver_start(driver, &plan, &started, &err) ||
            (i % 2 && !stop(loop, driver, id)))
            break;
        if (i % 4 == 2)
            driver->ops->freeze(driver, id, ignore_frozen, NULL);
    }
    (void)fprintf(stderr, "keeper: %s\n", err_text(&err));
    _exit(1);
}

static void a_keeper_killed_at_any_moment_orphans_nothing(void **state)
{
    struct world *world = *state;
    struct held *held = NULL;
    uint32_t count;
    struct err err;

    driver_free(world->driver);
    world->driver = NULL;
    for (unsigned round = 0; round < 25; round++) {
        int progress[2];
        char byte;
        assert_int_equal(pipe2(progress, O_CLOEXEC), 0);
        pid_t keeper = fork();
        if (keeper == 0)
            be_keeper(world, progress[1]);
        fd_close(&progress[1]);
        for (unsigned i = 0; i < 1 + round % 3; i++)
            assert_int_equal(read(progress[0], &byte, 1), 1);
        (void)usleep(round * 150); /* a different moment of a start each time */
        (void)kill(keeper, SIGKILL);
        fd_close(&progress[0]);
        int status;
        assert_int_equal(waitpid(keeper, &status, 0), keeper);
        assert_true(WIFSIGNALED(status)); /* it did not fail before */
    }
    new_driver(world, false);
    assert_true(driver_list(world->driver, &held, &count, &err));
    assert_true(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        int pid = native_pid_of(world->driver, held[i].id);
        assert_true(pid > 0 && kill(pid, 0) == 0);
        assert_true(stop(world->loop, world->driver, held[i].id));
    }
    free(held);
    check_nothing_is_left(world); /* orphans become our children: main() sees to that */
}

static void one_data_directory_has_one_keeper(void **state)
{
    struct world *world = *state;
    struct native_config config = { .data_fd = world->data_fd, .guestd_fd = world->guestd_fd };
    struct err err;

    assert_null(native_driver_new(world->loop, &config, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
}

/* ---- frozen sandboxes ---- */

struct freezing {
    struct loop *loop;
    bool answered;
    struct err err;
};

static void note_frozen(void *context, const struct kept *kept, const struct err *err)
{
    struct freezing *freezing = context;

    assert_null(kept);
    assert_false(freezing->answered);
    freezing->answered = true;
    if (err)
        freezing->err = *err;
    loop_stop_soon(freezing->loop);
}

static enum err_kind freeze(struct world *world, const char *id, bool frozen)
{
    struct freezing freezing = { .loop = world->loop };
    const struct driver_ops *ops = world->driver->ops;

    (frozen ? ops->freeze : ops->thaw)(world->driver, id, note_frozen, &freezing);
    while (!freezing.answered)
        loop_run(world->loop);
    return freezing.err.kind;
}

static enum held_state held_state_of(struct world *world, const char *id)
{
    auto_free struct held *held = NULL;
    uint32_t count = 0;
    struct err err;

    assert_true(driver_list(world->driver, &held, &count, &err));
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(held[i].id, id))
            return held[i].state;
    return HELD_STATE_COUNT;
}

static unsigned long cpu_of(struct world *world, const char *id)
{
    struct held which = { 0 };
    struct stats stats = { 0 };
    uint32_t count = 0;
    struct err err;

    (void)snprintf(which.id, sizeof which.id, "%s", id);
    assert_true(driver_stats(world->driver, &which, 1, &stats, &count, &err));
    assert_int_equal(count, 1);
    return stats.cpu_us;
}

/* Both freezers of a hybrid host, one after the other. */
static void with_each_freezer(struct world *world, void (*check)(struct world *world))
{
    for (int old = 0; old < 2; old++) {
        driver_free(world->driver);
        world->old_freezer = old;
        world->exits = 0;
        new_driver(world, false);
        check(world);
        check_nothing_is_left(world);
    }
}

static void check_stands_still(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *begun = ask(fd, "count 3");
    struct dialed dialed = { .fd = -1 };
    struct listen_at at = { .address = INADDR_LOOPBACK, .port = 99, .backlog = 1 };
    int diverted[DIVERT_KINDS];
    struct err err;
    int link_fd;

    check_has(begun, "counting");
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    assert_int_equal(held_state_of(world, "sandbox1"), HELD_FROZEN);
    /* It uses no more time, and does not answer. */
    unsigned long before = cpu_of(world, "sandbox1");
    assert_int_equal(write(fd, "counted", 7), 7);
    assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 200), 0);
    assert_int_equal(cpu_of(world, "sandbox1"), before);
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE); /* again is fine */
    /* What would wait for it says so. */
    driver_dial(world->driver, "sandbox1", 8080, take_dialed, &dialed);
    assert_int_equal(dialed.fd, -1);
    assert_int_equal(dialed.err.kind, ERR_CONFLICT);
    driver_listen(world->driver, "sandbox1", &at, take_dialed, &dialed);
    assert_int_equal(dialed.fd, -1);
    assert_int_equal(dialed.err.kind, ERR_CONFLICT);
    assert_false(driver_link(world->driver, "sandbox1", &link_fd, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    /* Its sockets for egress can be had: it needs them at once when it goes on. */
    assert_true(driver_divert(world->driver, "sandbox1", diverted, &err));
    close_all(diverted);
    assert_int_equal(freeze(world, "sandbox1", false), ERR_NONE);
    assert_int_equal(held_state_of(world, "sandbox1"), HELD_RUNNING);
    auto_free char *counted = ask(fd, ""); /* to what it was asked while it was frozen */
    assert_non_null(strstr(counted, "counted: "));
    assert_int_equal(freeze(world, "sandbox1", false), ERR_NONE);
    for (int i = 0; i < 1000 && cpu_of(world, "sandbox1") == before; i++)
        turn_for(world->loop, 10);
    assert_true(cpu_of(world, "sandbox1") > before);
    assert_int_equal(freeze(world, "sandbox2", true), ERR_NOT_FOUND);
    assert_int_equal(freeze(world, "sandbox2", false), ERR_NOT_FOUND);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
}

static void a_frozen_sandbox_stands_still_and_goes_on(void **state)
{
    with_each_freezer(*state, check_stands_still);
}

static void check_dies(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *begun = ask(fd, "count 2");
    int pid = native_pid_of(world->driver, "sandbox1");

    check_has(begun, "counting");
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(world->exits, 1);
    assert_int_equal(held_state_of(world, "sandbox1"), HELD_STATE_COUNT);
}

static void a_kill_ends_a_frozen_sandbox(void **state)
{
    with_each_freezer(*state, check_dies);
}

static void check_found_again(struct world *world)
{
    struct plan plan = a_plan("sandbox1"), other = a_plan("sandbox2");
    auto_close int fd = start(world, &plan);
    auto_close int second = start(world, &other);
    auto_free char *begun = ask(fd, "count 2");

    check_has(begun, "counting");
    assert_true(second >= 0);
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    for (int i = 0; i < 2; i++) {
        driver_free(world->driver);
        new_driver(world, false);
        assert_int_equal(held_state_of(world, "sandbox1"), HELD_FROZEN);
        assert_int_equal(held_state_of(world, "sandbox2"), HELD_RUNNING);
    }
    assert_int_equal(freeze(world, "sandbox1", false), ERR_NONE);
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    driver_free(world->driver);
    new_driver(world, false);
    assert_true(stop(world->loop, world->driver, "sandbox1")); /* by a keeper that did not freeze it */
    assert_int_equal(freeze(world, "sandbox2", true), ERR_NONE);
    assert_true(stop(world->loop, world->driver, "sandbox2"));
}

static void the_next_driver_finds_a_frozen_sandbox_frozen(void **state)
{
    with_each_freezer(*state, check_found_again);
}

/* Its record is damaged, so that it is swept: a process that is frozen must die of that too. */
static void check_swept(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *begun = ask(fd, "count 2");
    int pid = native_pid_of(world->driver, "sandbox1"), status;
    struct err err;

    check_has(begun, "counting");
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    driver_free(world->driver);
    world->driver = NULL;
    assert_true(fd_write_file(world->data_fd, "sandboxes/sandbox1/state", STR("cloister-sandbox 1\ngarbage"), &err));
    new_driver(world, false);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

static void the_next_driver_sweeps_a_frozen_sandbox(void **state)
{
    with_each_freezer(*state, check_swept);
}

/* ---- cgroups of an earlier keeper ---- */

static pid_t fork_sleeper(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the case fails */
        for (;;)
            (void)pause();
    }
    assert_true(pid > 0);
    return pid;
}

static void end_sleeper(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void put_into_each(int *fds, size_t count, pid_t pid)
{
    for (size_t i = 0; i < count; i++) {
        assert_true(dprintf(fds[i], "%d", pid) > 0);
        fd_close(&fds[i]);
    }
}

static struct cgroups *open_cgroups(const struct world *world, bool old_freezer)
{
    struct cgroups *cgroups;
    struct err err;
    char name[64];

    (void)snprintf(name, sizeof name, "cloister.test.%d", getpid());
    cgroups = cgroups_open(name, world->data_fd, old_freezer, &err);
    if (!cgroups)
        fail_msg("%s", err_text(&err));
    return cgroups;
}

/* On a hybrid host the old freezer is another tree. That of the keeper before is one of an earlier keeper then. */
static void check_holds(struct world *world, bool first_old)
{
    const struct cgroup_limits limits = { .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 10 };
    struct cgroups *cgroups = open_cgroups(world, first_old);
    pid_t guestd = fork_sleeper(), user = fork_sleeper();
    int fds[CGROUP_TREE_COUNT];
    size_t count;
    struct err err;

    assert_true(cgroup_make(cgroups, "sandbox1", &limits, &err));
    assert_true(cgroup_open_above(cgroups, "sandbox1", fds, &count, &err));
    put_into_each(fds, count, guestd);
    assert_true(cgroup_open_guestd(cgroups, "sandbox1", fds, &count, &err));
    put_into_each(fds, count, guestd);
    assert_true(cgroup_open_user(cgroups, "sandbox1", fds, &count, &err));
    put_into_each(fds, count, user);
    for (int old = 0; old < 2; old++) {
        cgroups_close(cgroups);
        cgroups = open_cgroups(world, old);
        assert_true(cgroup_holds(cgroups, "sandbox1", guestd));
        assert_false(cgroup_holds(cgroups, "sandbox1", user));
        assert_false(cgroup_holds(cgroups, "sandbox1", getpid()));
    }
    end_sleeper(guestd);
    end_sleeper(user);
    for (int i = 0; i < 100 && !cgroup_remove(cgroups, "sandbox1", &err); i++)
        turn_for(world->loop, 10);
    cgroups_remove(cgroups);
}

static void a_users_process_is_not_taken_for_guestd_whichever_freezer_it_is_in(void **state)
{
    check_holds(*state, false);
    check_holds(*state, true);
}

static void unmount_freezers(const struct cgroup_report *report)
{
    assert_int_equal(unshare(CLONE_NEWNS), 0);
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    if (report->v2_mount[0])
        assert_int_equal(umount2(report->v2_mount, MNT_DETACH), 0);
    (void)umount2("/sys/fs/cgroup/freezer", MNT_DETACH); /* or it is not there */
}

/* Here the first tree of an earlier keeper has the number of a freezer's. */
static void without_a_freezer_guestd_is_found_where_an_earlier_keeper_was(void **state)
{
    struct world *world = *state;
    struct cgroups *cgroups = open_cgroups(world, false);
    const struct cgroup_report report = *cgroups_report(cgroups);
    char place[LIMIT_PATH_BYTES + 16], path[LIMIT_PATH_BYTES + 64];
    int status;
    struct err err;

    cgroups_remove(cgroups);
    if (report.layout == CGROUP_V2)
        skip(); /* the freezer is no tree there */
    (void)snprintf(place, sizeof place, "%s/elsewhere.%d", report.base[CGROUP_PIDS], getpid());
    assert_int_equal(mkdir(place, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/sandbox1", place);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/sandbox1/user", place);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof path, "%s\n", place);
    assert_true(fd_write_file(world->data_fd, "cgroups", str_from(path), &err));
    pid_t pid = fork();
    if (pid == 0) {
        (void)snprintf(path, sizeof path, "%s/sandbox1/cgroup.procs", place);
        bool fine = fd_write_file(AT_FDCWD, path, STR("0"), &err);
        unmount_freezers(&report);
        cgroups = open_cgroups(world, false);
        fine = fine && cgroups_report(cgroups)->freezer == CGROUP_FREEZER_NONE &&
               cgroup_holds(cgroups, "sandbox1", getpid()) && !cgroup_holds(cgroups, "sandbox1", getppid());
        cgroups_remove(cgroups);
        _exit(fine ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    for (const char *const *part = (const char *const[]){ "/sandbox1/user", "/sandbox1", "", NULL }; *part; part++) {
        (void)snprintf(path, sizeof path, "%s%s", place, *part);
        (void)rmdir(path);
    }
    assert_int_equal(status, 0);
}

static void check_bomb(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *begun = ask(fd, "bomb");

    check_has(begun, "exploding");
    for (int i = 0; i < 20; i++) {
        assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
        unsigned long before = cpu_of(world, "sandbox1");
        turn_for(world->loop, 20);
        assert_int_equal(cpu_of(world, "sandbox1"), before);
        assert_int_equal(freeze(world, "sandbox1", false), ERR_NONE);
        turn_for(world->loop, 5);
    }
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
}

static void a_fork_bomb_freezes_and_dies(void **state)
{
    with_each_freezer(*state, check_bomb);
}

static void check_odd(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *begun = ask(fd, "odd");

    check_has(begun, "waiting");
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    assert_int_equal(freeze(world, "sandbox1", false), ERR_NONE);
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
}

static void stopped_and_traced_processes_and_those_in_vfork_freeze(void **state)
{
    with_each_freezer(*state, check_odd);
}

/* Asked for in the same turn: the last request counts, and each is answered once. */
static void check_both_at_once(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *begun = ask(fd, "count 2");
    const struct driver_ops *ops = world->driver->ops;
    struct freezing first = { .loop = world->loop }, second = first, thaw = first, last = first;

    check_has(begun, "counting");
    ops->freeze(world->driver, "sandbox1", note_frozen, &first);
    ops->freeze(world->driver, "sandbox1", note_frozen, &second);
    ops->thaw(world->driver, "sandbox1", note_frozen, &thaw);
    assert_true(thaw.answered && first.answered && second.answered);
    assert_int_equal(thaw.err.kind, ERR_NONE);
    assert_true(first.err.kind == ERR_CONFLICT || first.err.kind == ERR_NONE); /* it may have been quick */
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
    ops->freeze(world->driver, "sandbox1", note_frozen, &last);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    assert_true(last.answered);
    assert_true(last.err.kind == ERR_NOT_FOUND || last.err.kind == ERR_NONE);
}

static void a_thaw_or_a_kill_answers_a_freeze_that_is_under_way(void **state)
{
    with_each_freezer(*state, check_both_at_once);
}

static uint64_t cache_of(struct world *world, const char *id)
{
    struct held which = { 0 };
    struct stats stats = { 0 };
    uint32_t count;
    struct err err;

    (void)snprintf(which.id, sizeof which.id, "%s", id);
    assert_true(driver_stats(world->driver, &which, 1, &stats, &count, &err));
    return stats.memory_cache_bytes;
}

static void the_kernel_takes_memory_back_from_a_frozen_sandbox(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    auto_free char *filled = ask(fd, "fill");

    check_has(filled, "filled");
    assert_true(cache_of(world, "sandbox1") > 12 << 20);
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    for (int i = 0; i < 3000 && cache_of(world, "sandbox1") > 4 << 20; i++)
        turn_for(world->loop, 10);
    assert_true(cache_of(world, "sandbox1") <= 4 << 20);
    assert_int_equal(held_state_of(world, "sandbox1"), HELD_FROZEN);
    assert_int_equal(freeze(world, "sandbox1", false), ERR_NONE);
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    check_nothing_is_left(world);
}

/* A file where a sandbox takes in processes, on v2; false: this host has none. */
static bool find_procs(const struct world *world, char *path, size_t path_size)
{
    static const char *const forms[] = { "/sys/fs/cgroup/unified/cloister.%jx.%jx/sandbox1/cgroup.procs",
                                         "/sys/fs/cgroup/cloister.%jx.%jx/sandbox1/user/cgroup.procs" };
    struct stat st;

    assert_int_equal(fstat(world->data_fd, &st), 0);
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(path, path_size, forms[i], (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
#pragma GCC diagnostic pop
        if (access(path, W_OK) == 0)
            return true;
    }
    return false;
}

/* Waits in the kernel for a file system that never answers, as with a dead server of NFS. Only SIGKILL ends that. */
static pid_t start_stuck(const char *mount_point)
{
    char options[64], file[128];
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (fuse < 0)
        return -1;
    (void)snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    (void)snprintf(file, sizeof file, "%s/file", mount_point);
    if (mount("none", mount_point, "fuse", MS_NOSUID | MS_NODEV, options) < 0) {
        fd_close(&fuse);
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct stat st;
        _exit(stat(file, &st) == 0);
    }
    fd_close(&fuse); /* the child has it */
    for (int i = 0; i < 1000 && state_of(pid) != 'D'; i++)
        (void)usleep(1000);
    return pid;
}

static void what_cannot_be_frozen_goes_on(void **state)
{
    struct world *world = *state;
    struct plan plan = a_plan("sandbox1");
    auto_close int fd = start(world, &plan);
    char procs[160], mount_point[80], number[16];
    struct err err;

    (void)snprintf(mount_point, sizeof mount_point, "%s/stuck", world->path);
    assert_int_equal(mkdir(mount_point, 0700), 0);
    pid_t pid = find_procs(world, procs, sizeof procs) ? start_stuck(mount_point) : -1;
    if (pid < 0 || state_of(pid) != 'D') {
        (void)fprintf(stderr, "SKIP: needs cgroup v2 and FUSE\n");
        if (pid > 0)
            (void)kill(pid, SIGKILL);
        (void)umount2(mount_point, MNT_DETACH);
        return;
    }
    (void)snprintf(number, sizeof number, "%d", pid);
    assert_true(fd_write_file(AT_FDCWD, procs, str_from(number), &err));
    assert_int_equal(freeze(world, "sandbox1", true), ERR_TIMEOUT);
    assert_int_equal(held_state_of(world, "sandbox1"), HELD_RUNNING);
    auto_free char *text = ask(fd, "ping");
    check_has(text, "pong");
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(umount2(mount_point, MNT_DETACH), 0);
    assert_int_equal(freeze(world, "sandbox1", true), ERR_NONE);
    assert_true(stop(world->loop, world->driver, "sandbox1"));
    check_nothing_is_left(world);
}

#define NATIVE_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        NATIVE_CASE(a_sandbox_sees_itself_and_nothing_else),
        NATIVE_CASE(each_start_shows_a_boot_id_of_its_own),
        NATIVE_CASE(guestd_gets_its_descriptors_and_no_others),
        NATIVE_CASE(guestlink_cannot_carry_descriptors_and_nothing_listens_for_it_inside),
        NATIVE_CASE(guests_may_have_the_ports_that_they_want),
        NATIVE_CASE(what_a_guest_must_not_do_fails),
        NATIVE_CASE(of_all_socket_options_those_in_the_list_reach_the_kernel),
        NATIVE_CASE(a_refused_socket_option_is_reported_once_and_the_reports_are_bounded),
        NATIVE_CASE(different_socket_options_are_reported_up_to_a_number),
        NATIVE_CASE(a_process_that_waits_for_a_refusal_can_be_killed_and_goes_on_without_keeper),
        NATIVE_CASE(writes_go_to_the_upper_with_ids_from_zero),
        NATIVE_CASE(the_way_of_older_kernels_mounts_the_same_root),
        NATIVE_CASE(a_root_of_all_layers_that_a_plan_may_have_waits_for_none_of_them),
        NATIVE_CASE(limits_hold_processes_and_memory),
        NATIVE_CASE(a_machine_has_enough_for_what_all_sandboxes_may_have),
        NATIVE_CASE(guestd_is_limited_too_and_says_why_it_ended),
        NATIVE_CASE(pages_that_others_hold_are_reported_after_the_end),
        NATIVE_CASE(one_that_was_frozen_from_outside_can_be_stopped),
        NATIVE_CASE(a_guest_that_fills_sockets_beyond_its_memory_is_ended),
        NATIVE_CASE(a_guest_that_makes_the_kernel_grow_in_a_way_that_no_list_knows_is_ended),
        NATIVE_CASE(a_guest_with_too_many_open_files_is_ended),
        NATIVE_CASE(a_guest_with_too_many_descriptors_on_their_way_is_ended),
        NATIVE_CASE(a_sandboxs_usage_is_measured),
        NATIVE_CASE(dial_reaches_a_server_on_loopback_inside),
        NATIVE_CASE(listen_takes_connections_that_guests_make_on_loopback),
        NATIVE_CASE(what_a_sandbox_sends_out_arrives_on_egresss_sockets),
        NATIVE_CASE(root_inside_cannot_get_around_the_network),
        NATIVE_CASE(what_tcp_remembers_of_a_guests_connections_has_a_limit),
        NATIVE_CASE(without_a_network_sandboxes_start_and_say_so),
        NATIVE_CASE(sandboxes_of_one_template_have_one_owner_who_is_nobody_else),
        NATIVE_CASE(a_template_without_python_has_no_zygote_and_its_socket_closes),
        NATIVE_CASE(a_zygote_has_no_power_but_that_of_its_id),
        NATIVE_CASE(a_zygote_is_given_when_it_is_warm),
        NATIVE_CASE(a_link_can_be_made_again_by_this_keeper_and_by_the_next),
        NATIVE_CASE(a_guestd_that_takes_nothing_holds_nobody_up),
        NATIVE_CASE(a_zygote_is_given_again_after_its_death_and_by_the_next_keeper),
        NATIVE_CASE(a_zygote_that_stops_what_is_being_made_is_the_last_of_its_template),
        NATIVE_CASE(stop_ends_everything_and_leaves_nothing),
        NATIVE_CASE(a_stop_that_takes_long_holds_nobody_up),
        NATIVE_CASE(of_a_crowd_only_some_die_at_a_time_and_slow_ones_hold_nobody_up),
        NATIVE_CASE(an_exit_from_inside_is_noticed),
        NATIVE_CASE(a_start_that_fails_at_any_step_leaves_nothing),
        NATIVE_CASE(a_plan_that_cannot_work_is_refused),
        NATIVE_CASE(the_next_driver_finds_what_runs),
        NATIVE_CASE(the_next_driver_sweeps_what_was_half_made),
        NATIVE_CASE(a_keeper_killed_at_any_moment_orphans_nothing),
        NATIVE_CASE(one_data_directory_has_one_keeper),
        NATIVE_CASE(a_frozen_sandbox_stands_still_and_goes_on),
        NATIVE_CASE(a_kill_ends_a_frozen_sandbox),
        NATIVE_CASE(the_next_driver_finds_a_frozen_sandbox_frozen),
        NATIVE_CASE(the_next_driver_sweeps_a_frozen_sandbox),
        NATIVE_CASE(a_users_process_is_not_taken_for_guestd_whichever_freezer_it_is_in),
        NATIVE_CASE(without_a_freezer_guestd_is_found_where_an_earlier_keeper_was),
        NATIVE_CASE(a_fork_bomb_freezes_and_dies),
        NATIVE_CASE(stopped_and_traced_processes_and_those_in_vfork_freeze),
        NATIVE_CASE(a_thaw_or_a_kill_answers_a_freeze_that_is_under_way),
        NATIVE_CASE(the_kernel_takes_memory_back_from_a_frozen_sandbox),
        NATIVE_CASE(what_cannot_be_frozen_goes_on),
    };
    struct err err;

    if (geteuid() != 0) {
        (void)fprintf(stderr, "SKIP: the native driver needs root\n");
        return 77;
    }
    if (argc != 2) {
        (void)fprintf(stderr, "usage: native_test INIT\n");
        return 2;
    }
    init_path = argv[1];
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return 1;
    if (!native_enter_mount_namespace(&err)) {
        (void)fprintf(stderr, "%s\n", err_text(&err));
        return 1;
    }
    return cmocka_run_group_tests(cases, NULL, NULL);
}
