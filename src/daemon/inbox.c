/*
 * inbox_main() - the worker of one inbox; `cloister role inbox`, started by keeper when front wants this inbox (inboxes.h).
 *   user      the inbox's own; nothing else on the machine has it
 *   holds     the inbox's directory and the connection to front
 *   must not  open a file outside the directory, make a socket, start a process
 *
 * All of its work is in mail/inbox.c. It ends when front closes the connection.
 */
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "daemon/roles.h"
#include "mail/inbox.h"
#include "privsep/role.h"

static bool enter_directory(const struct role_row *self, struct err *err)
{
    auto_close int dir_fd = role_fd(self, GRANT_INBOX);

    /* SQLite knows only names: this is the one directory that Landlock lets it open. */
    if (fchdir(dir_fd) < 0)
        return err_sys(err, "enter the inbox's directory");
    return true;
}

int inbox_main(const struct role_row *self)
{
    const struct confine_limits limits = { .memory_bytes = LIMIT_INBOX_BYTES, .files = 64 };
    struct err err;

    if (enter_directory(self, &err) && confine_limit(&limits, &err) && inbox_serve(ROLE_CHANNEL_FD, &err))
        return 0;
    if (err.kind == ERR_UNAVAILABLE)
        return 0; /* front ended in the middle of a message */
    log_error("the worker of an inbox ends: %s", err_text(&err));
    return 1;
}

/*
 * Every system call that the worker of an inbox may make. Left out on purpose: socket, socketpair and all that connects or
 * accepts, recvmsg (no descriptor comes in), clone and fork, execve, kill, ptrace, chmod and chown by path, rename.
 */
const struct confine_rule inbox_calls[] = {
    { "recvfrom", "front's requests" },
    { "sendto", "replies" },
    { "poll", "waiting for front" },
    { "ppoll", "the same, by another libc" },
    { "alarm", "a request that takes too long" },
    { "setitimer", "the same, by another libc" },

    /* the inbox's file, in the directory that the worker is in */
    { "fchdir", "into the inbox's directory" },
    { "read", "the file" },
    { "write", "the file, the log" },
    { "pread64", "the file" },
    { "pwrite64", "the file" },
    { "openat", "the file and its journal" },
    { "open", "the same, by SQLite on some architectures" },
    { "close", "the same" },
    { "lseek", "the file" },
    { "fstat", "the file" },
    { "newfstatat", "the file" },
    { "stat", "the file" },
    { "lstat", "the file" },
    { "access", "SQLite looks for a journal" },
    { "faccessat", "the same" },
    { "faccessat2", "the same" },
    { "readlink", "SQLite resolves its path" },
    { "readlinkat", "the same" },
    { "getcwd", "the same" },
    { "unlink", "SQLite ends a journal; an inbox is shredded" },
    { "unlinkat", "the same" },
    { "ftruncate", "the journal" },
    { "fallocate", "the same" },
    { "fsync", "durable writes" },
    { "fdatasync", "durable writes" },
    { "fchmod", "SQLite gives a journal the file's mode" },
    { "fcntl", "SQLite's locks" },
    { "statfs", "how much room is left" },
    { "fstatfs", "the same" },
    { "nanosleep", "SQLite while an older worker ends" },
    { "clock_nanosleep", "the same" },

    /* memory */
    { "mmap", "memory" },
    { "munmap", "memory" },
    { "mremap", "memory" },
    { "mprotect", "memory" },
    { "madvise", "memory given back" },
    { "brk", "memory" },
    { "mlock", "keys" },
    { "munlock", "keys" },

    /* the process */
    { "setrlimit", "less memory" },
    { "prlimit64", "the same; libc" },
    { "getrlimit", "libc" },
    { "futex", "locks of libraries" },
    { "restart_syscall", "after a signal" },
    { "exit", "the end" },
    { "exit_group", "the end" },
    { "rt_sigaction", "signals" },
    { "rt_sigprocmask", "signals" },
    { "rt_sigreturn", "signals" },
    { "sigaltstack", "the sanitizers of test builds" },
    { "getpid", "abort, SQLite" },
    { "gettid", "abort" },
    { "tgkill", "abort" },
    { "sched_yield", "locks" },
    { "getrandom", "keys, ids" },
    { "clock_gettime", "time, where the vDSO cannot" },
    { "gettimeofday", "the same" },
    { "getuid", "SQLite" },
    { "geteuid", "SQLite" },
    { "sysinfo", "the allocator" },
    { NULL },
};
