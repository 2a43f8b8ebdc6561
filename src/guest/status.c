#include "guest/status.h"

#include <sys/wait.h>

#include "base/attr.h"

/* As upstream's Go runtime names them: clients compare the text. */
static const char *const signal_names[] = {
    [1] = "hangup",
    [2] = "interrupt",
    [3] = "quit",
    [4] = "illegal instruction",
    [5] = "trace/breakpoint trap",
    [6] = "aborted",
    [7] = "bus error",
    [8] = "floating point exception",
    [9] = "killed",
    [10] = "user defined signal 1",
    [11] = "segmentation fault",
    [12] = "user defined signal 2",
    [13] = "broken pipe",
    [14] = "alarm clock",
    [15] = "terminated",
    [16] = "stack fault",
    [17] = "child exited",
    [18] = "continued",
    [19] = "stopped (signal)",
    [20] = "stopped",
    [21] = "stopped (tty input)",
    [22] = "stopped (tty output)",
    [23] = "urgent I/O condition",
    [24] = "CPU time limit exceeded",
    [25] = "file size limit exceeded",
    [26] = "virtual timer expired",
    [27] = "profiling timer expired",
    [28] = "window changed",
    [29] = "I/O possible",
    [30] = "power failure",
    [31] = "bad system call",
};

struct str status_text(struct arena *arena, int status)
{
    if (WIFEXITED(status))
        return arena_format(arena, "exit status %d", WEXITSTATUS(status));
    unsigned number = (unsigned)WTERMSIG(status);
    const char *core = WCOREDUMP(status) ? " (core dumped)" : "";
    if (number < COUNT_OF(signal_names) && signal_names[number])
        return arena_format(arena, "signal: %s%s", signal_names[number], core);
    return arena_format(arena, "signal: signal %u%s", number, core);
}

int status_exit_code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
