/*
 * Can the memory of sandboxes be written to disk here? A child enters the room in which CRIU runs, has it write a small
 * process to disk, and bring it back.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/criu.h"
#include "isolation/native/probe.h"

enum { VERSION_BYTES = 64, LOG_BYTES = 1 << 20 };

/* ---- in the child ---- */

static bool is_waiting(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == 0;
}

static void end(pid_t pid)
{
    if (pid <= 0)
        return;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* A shell that waits for a line which never comes: it has both ends of the pipe. */
static no_return void become_shell(const int pipe_fds[2])
{
    char *const words[] = { (char *)"sh", (char *)"-c", (char *)"read line", NULL };
    char *const environment[] = { NULL };
    int null_fd = open("/dev/null", O_RDWR);

    if (setsid() < 0 || null_fd < 0 || dup2(pipe_fds[0], 0) < 0 || dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0 ||
        dup2(pipe_fds[1], 3) < 0 || close_range(4, ~0u, 0) < 0)
        _exit(1);
    (void)execve("/usr/bin/sh", words, environment);
    _exit(1);
}

static pid_t start_waiting(struct err *err)
{
    int pipe_fds[2];

    if (pipe(pipe_fds) < 0) {
        (void)err_sys(err, "pipe");
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        become_shell(pipe_fds);
    if (pid < 0)
        (void)err_sys(err, "fork");
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    return pid;
}

/* The first error in CRIU's log. */
static bool explain(const char *verb, struct err *err)
{
    auto_free char *log = NULL;
    size_t len;
    struct err ignored;

    if (!fd_read_file(AT_FDCWD, CRIU_LOG, LOG_BYTES, &log, &len, &ignored))
        return err_set(err, ERR_UNAVAILABLE, "criu %s does not run", verb);
    struct str rest = str_of(log, len), line;
    while (rest.len && str_cut(&rest, '\n', &line)) {
        const char *error = memmem(line.at, line.len, "Error (", 7);
        if (error)
            return err_set(err, ERR_UNAVAILABLE, "criu %s: %.*s", verb,
                           (int)MIN((size_t)(line.at + line.len - error), (size_t)100), error);
    }
    return err_set(err, ERR_UNAVAILABLE, "criu %s has failed", verb);
}

/* With all power of root, unlike criu_run(): it handles nothing of a guest's, and a time of the host's. */
static bool run(char *const *words, struct err *err)
{
    char *const environment[] = { (char *)"PATH=/usr/sbin:/usr/bin", NULL };
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        int null_fd = open("/dev/null", O_RDWR);
        if (null_fd >= 0 && dup2(null_fd, 0) >= 0 && dup2(null_fd, 1) >= 0 && dup2(null_fd, 2) >= 0)
            (void)execve("/usr/sbin/criu", words, environment);
        _exit(1);
    }
    if (pid < 0)
        return err_sys(err, "fork");
    (void)waitpid(pid, &status, 0);
    return status == 0 || explain(words[1], err);
}

#define COMMON                                                                                              \
    (char *)"--images-dir", (char *)CRIU_IMAGE, (char *)"--work-dir", (char *)"/run", (char *)"--log-file", \
        (char *)CRIU_LOG, (char *)"-v1", (char *)"--manage-cgroups=ignore", (char *)"--network-lock", (char *)"skip"

static bool write_and_restore(int tools_fd, int image_fd, struct err *err)
{
    const struct criu_room room = {
        .tools_fd = tools_fd, .image_fd = image_fd, .freezer_fd = -1, .root_fd = -1, .devices_fd = -1
    };
    const struct timespec moment = { .tv_nsec = 50000000 };

    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) /* what CRIU restores becomes ours */
        return err_sys(err, "become a subreaper");
    if (!criu_enter(&room, err))
        return false;
    pid_t pid = start_waiting(err);
    if (pid < 0)
        return false;
    (void)nanosleep(&moment, NULL); /* it waits by then; CRIU would write a shell that starts as well */
    if (!is_waiting(pid))
        return err_set(err, ERR_UNAVAILABLE, "a shell from CRIU's directory does not run");
    char number[16];
    (void)snprintf(number, sizeof number, "%d", pid);
    bool fine = run((char *const[]){ (char *)"criu", (char *)"dump", COMMON, (char *)"--tree", number, NULL }, err);
    end(pid); /* CRIU has ended it, and its number must be free */
    if (!fine)
        return false;
    if (!run((char *const[]){ (char *)"criu", (char *)"restore", COMMON, (char *)"--restore-detached", NULL }, err))
        return false;
    fine = is_waiting(pid);
    end(pid);
    return fine || err_set(err, ERR_UNAVAILABLE, "what CRIU has restored does not run");
}

/* ---- the row ---- */

static bool try_criu(int tools_fd, struct err *err)
{
    char place[64];
    int pipe_fds[2];
    struct err ignored;

    (void)snprintf(place, sizeof place, "/tmp/cloister-probe.%d.XXXXXX", getpid());
    if (!mkdtemp(place) || pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, "make a place to try CRIU in");
    auto_close int image_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int read_fd = pipe_fds[0];
    pid_t pid = fork();
    if (pid == 0) {
        struct err why = { 0 };
        if (write_and_restore(tools_fd, image_fd, &why))
            why.kind = ERR_NONE;
        _exit(write(pipe_fds[1], &why, sizeof why) == sizeof why ? 0 : 1);
    }
    fd_close(&pipe_fds[1]);
    struct err why = { .kind = ERR_INTERNAL, .message = "the process that tried it has died" };
    if (pid > 0) {
        if (read(read_fd, &why, sizeof why) != sizeof why)
            (void)err_set(&why, ERR_INTERNAL, "the process that tried it has died");
        (void)waitpid(pid, NULL, 0);
    }
    auto_close int parent_fd = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)!remove_tree(parent_fd, place + strlen("/tmp/"), &ignored);
    *err = why;
    return why.kind == ERR_NONE;
}

static void put(char *room, size_t room_size, const char *text)
{
    (void)snprintf(room, room_size, "%s", text);
}

static void name_version(int tools_fd, char room[VERSION_BYTES])
{
    auto_free char *text = NULL;
    struct err ignored;
    size_t len;

    put(room, VERSION_BYTES, "?");
    if (!fd_read_file(tools_fd, "etc/criu-version", VERSION_BYTES, &text, &len, &ignored))
        return;
    text[strcspn(text, "\n")] = '\0';
    put(room, VERSION_BYTES, text);
}

/* Not having it is no fault: sandboxes are paused in memory and with files only. */
#define WITHOUT "paused sandboxes stay in memory, or keep files only"

void native_probe_memory(const char *tools, struct probe_row *row)
{
    char version[VERSION_BYTES];
    struct cgroup_report report;
    struct err err;

    *row = (struct probe_row){ .name = "pause to disk", .verdict = PROBE_OK };
    if (!tools) {
        (void)snprintf(row->found, sizeof row->found, "off, by the option --criu: " WITHOUT);
        return;
    }
    if (geteuid() != 0) {
        row->verdict = PROBE_SKIP;
        put(row->found, sizeof row->found, "needs root to find out");
        put(row->fix, sizeof row->fix, "look again as root");
        return;
    }
    if (cgroup_detect(&report, &err) && report.layout == CGROUP_V2) {
        (void)snprintf(row->found, sizeof row->found, "not with cgroup v2 alone: " WITHOUT);
        return;
    }
    auto_close int tools_fd = criu_open_tools(tools, &err);
    if (tools_fd < 0 && access(tools, F_OK) < 0) {
        (void)snprintf(row->found, sizeof row->found,
                       "no CRIU in %.50s: " WITHOUT ". To have it: scripts/criu.sh as root", tools);
        return;
    }
    if (tools_fd < 0) {
        row->verdict = PROBE_WARN;
        (void)snprintf(row->found, sizeof row->found, "%.150s", err.message);
        put(row->fix, sizeof row->fix, "remove that directory and run scripts/criu.sh as root");
        return;
    }
    name_version(tools_fd, version);
    if (try_criu(tools_fd, &err)) {
        (void)snprintf(row->found, sizeof row->found, "CRIU %.20s wrote a process to disk and brought it back",
                       version);
        return;
    }
    row->verdict = PROBE_WARN;
    (void)snprintf(row->found, sizeof row->found, "CRIU %.20s does not work here: %.110s", version, err_text(&err));
    put(row->fix, sizeof row->fix, "serve --criu off; " WITHOUT);
}
