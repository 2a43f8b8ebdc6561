/*
 * Can the memory of sandboxes be written to disk here? doctor runs the test that keeper runs at its start.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "isolation/native/criu.h"
#include "isolation/native/criu_test.h"
#include "isolation/native/probe.h"

enum { VERSION_BYTES = 64 };

/* In a child, because the test changes what its process is. */
static bool try_criu(int tools_fd, struct err *err)
{
    auto_close int outside_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int pipe_fds[2];

    if (outside_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, "prepare a test of CRIU");
    auto_close int read_fd = pipe_fds[0];
    pid_t pid = fork();
    if (pid == 0) {
        struct err why = { 0 };
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (criu_test(tools_fd, outside_fd, -1, &why))
            why.kind = ERR_NONE;
        _exit(write(pipe_fds[1], &why, sizeof why) == sizeof why ? 0 : 1);
    }
    fd_close(&pipe_fds[1]);
    if (pid < 0)
        return err_sys(err, "fork");
    struct err why;
    if (read(read_fd, &why, sizeof why) != sizeof why)
        (void)err_set(&why, ERR_INTERNAL, "the process that tried it has died");
    (void)waitpid(pid, NULL, 0);
    *err = why;
    return why.kind == ERR_NONE;
}

/* ---- the row ---- */

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
        (void)snprintf(row->found, sizeof row->found, "CRIU %.20s wrote processes to disk and brought them back",
                       version);
        return;
    }
    row->verdict = PROBE_WARN;
    (void)snprintf(row->found, sizeof row->found, "CRIU %.20s does not work here: %.110s", version, err_text(&err));
    put(row->fix, sizeof row->fix, "serve --criu off; " WITHOUT);
}
