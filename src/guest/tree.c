/*
 * tree.c - theory of operation. /proc/<pid>/stat has session, start time and ignored signals. A look reads it for every
 * process of the sandbox, marks those that belong to the tree, and stops them; when a look finds all of them stopped,
 * they are killed.
 */
#include "guest/tree.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

enum {
    LOOK_MS = 20,            /* the loop is blocked so long at most; usually two looks of a millisecond are enough */
    AGAIN_MS = 30,           /* between two attempts */
    LOOKS_MAX = 200,         /* attempts; after that the processes stay stopped */
    PROCESSES_MAX = 1 << 16, /* more than a sandbox may have */
};

struct entry {
    pid_t pid, session;
    uint64_t started;
    bool is_stopped, ignores_hangup, doomed;
};

/* Which processes to kill. */
struct aim {
    struct tree tree;
    bool with_leader;
    uint64_t since; /* 0: of any age */
};

struct list {
    struct entry *entries;
    size_t count, room;
};

static bool next_number(struct str *rest, int64_t *out)
{
    struct str word;
    uint64_t value;

    if (!str_cut(rest, ' ', &word))
        return false;
    bool negative = str_skip(&word, STR("-"));
    if (!str_to_u64(word, INT32_MAX, &value))
        return false;
    *out = negative ? -(int64_t)value : (int64_t)value;
    return true;
}

/*
 * "42 (any (thing)) S 1 42 42 …": state, parent, group, session, fifteen more, start, ten more, ignored signals. False
 * if it is gone or a zombie.
 */
static bool read_entry(int proc_fd, pid_t pid, struct entry *out)
{
    char path[32], text[512];
    int64_t parent, group, session;
    uint64_t started, ignored;
    struct str word;

    (void)snprintf(path, sizeof path, "%d/stat", (int)pid);
    auto_close int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (n <= 0)
        return false;
    /* The name may contain spaces and brackets: the other fields follow the last bracket. */
    const char *after = memrchr(text, ')', (size_t)n);
    if (!after || text + n - after < 5)
        return false;
    struct str rest = str_of(after + 4, (size_t)(text + n - after) - 4);
    if (after[2] == 'Z' || after[2] == 'X' || !next_number(&rest, &parent) || !next_number(&rest, &group) ||
        !next_number(&rest, &session))
        return false;
    for (int i = 0; i < 16; i++)
        if (!str_cut(&rest, ' ', &word))
            return false;
    if (!str_to_u64(word, UINT64_MAX, &started))
        return false;
    for (int i = 0; i < 11; i++)
        if (!str_cut(&rest, ' ', &word))
            return false;
    if (!str_to_u64(word, UINT64_MAX, &ignored))
        return false;
    *out = (struct entry){ .pid = pid, .session = (pid_t)session, .started = started };
    out->is_stopped = after[2] == 'T' || after[2] == 't';
    out->ignores_hangup = ignored & BIT(SIGHUP - 1);
    return true;
}

static int by_pid(const void *a, const void *b)
{
    const struct entry *one = a, *other = b;

    return one->pid < other->pid ? -1 : one->pid > other->pid;
}

static void read_all(struct list *list)
{
    int proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *proc = proc_fd < 0 ? NULL : fdopendir(proc_fd);
    struct dirent *dirent;
    uint64_t pid;

    list->count = 0;
    while (proc && list->count < PROCESSES_MAX && (dirent = readdir(proc))) {
        if (!str_to_u64(str_from(dirent->d_name), INT32_MAX, &pid))
            continue;
        if (list->count == list->room) {
            list->room = list->room ? 2 * list->room : 64;
            list->entries = mem_grow(list->entries, list->room * sizeof *list->entries);
        }
        if (read_entry(proc_fd, (pid_t)pid, &list->entries[list->count]))
            list->count++;
    }
    if (proc)
        (void)closedir(proc);
    if (list->count)
        qsort(list->entries, list->count, sizeof *list->entries, by_pid);
}

static const struct entry *find(const struct list *list, pid_t pid)
{
    struct entry key = { .pid = pid };

    return list->count ? bsearch(&key, list->entries, list->count, sizeof key, by_pid) : NULL;
}

/*
 * A leader may have made a session of its own (`setsid cmd` as the whole command): it belongs to the tree as well. The
 * kernel does not reuse the number of a session while it has members; so if a process has that pid and is not the
 * leader, the session is a different one.
 */
static bool is_ours(const struct list *list, const struct tree *tree, const struct entry *leader, pid_t session)
{
    if (session == tree->leader)
        return tree->leader_lives || !find(list, session);
    if (session != tree->session)
        return false;
    /* The process that made the session exits right after the leader's start: this is another one with its number. */
    const struct entry *holder = find(list, session);
    return !holder || (leader && holder->started <= leader->started);
}

/* Returns how many. */
static size_t mark(struct list *list, const struct aim *aim)
{
    const struct tree *tree = &aim->tree;
    const struct entry *leader = tree->leader_lives ? find(list, tree->leader) : NULL;
    size_t doomed = 0;

    for (size_t i = 0; i < list->count; i++) {
        struct entry *e = &list->entries[i];
        if (e->pid == getpid() || e->pid == 1 || e->started < aim->since || (e == leader && !aim->with_leader))
            continue;
        bool is_detached = e->ignores_hangup && !(leader && leader->ignores_hangup);
        e->doomed = e == leader || (is_ours(list, tree, leader, e->session) && !is_detached);
        doomed += e->doomed;
    }
    return doomed;
}

static void signal_doomed(const struct list *list, int number)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->entries[i].doomed)
            (void)kill(list->entries[i].pid, number); /* it may have gone by itself */
}

static bool are_stopped(const struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->entries[i].doomed && !list->entries[i].is_stopped)
            return false;
    return true;
}

/*
 * All processes are stopped first, and killed when all of them are seen stopped. If a fork bomb were killed one by one,
 * each kill would make room for another child; stopped processes keep their places. Sending the signal is not enough: a
 * process in the middle of a fork finishes it before it stops, which takes a second on a machine with a thousand busy
 * processes. Two looks in a row must find all stopped: pids are listed before their states are read, so a process may
 * fork in between and be stopped by then, with a child that is not in the list. False when some still run: call it
 * again.
 */
static bool stop_and_kill(const struct aim *aim)
{
    struct list list = { 0 };
    bool is_quiet = false, is_over = false;

    assert(aim->tree.leader > 1 && aim->tree.session > 1); /* 0 = no session */

    uint64_t end_ms = clock_mono_ms() + LOOK_MS;
    do {
        read_all(&list);
        bool was_quiet = is_quiet;
        is_quiet = mark(&list, aim) == 0 || are_stopped(&list);
        is_over = is_quiet && was_quiet;
        signal_doomed(&list, is_over ? SIGKILL : SIGSTOP);
        (void)sched_yield(); /* to them: they stop when it is their turn */
        /* The second look follows at once: on a busy machine the first may have taken all the time. */
    } while (!is_over && (is_quiet || clock_mono_ms() < end_ms));
    free(list.entries);
    return is_over;
}

/* For callers that do not wait. */
struct hunt {
    struct timer timer;
    struct loop *loop;
    struct aim aim;
    unsigned looks;
};

static void on_look(struct timer *timer)
{
    struct hunt *hunt = container_of(timer, struct hunt, timer);

    if (!stop_and_kill(&hunt->aim) && ++hunt->looks < LOOKS_MAX)
        timer_set(&hunt->timer, hunt->loop, AGAIN_MS, on_look);
    else
        free(hunt);
}

void tree_kill(struct loop *loop, const struct tree *tree)
{
    struct aim aim = { .tree = *tree, .with_leader = true };

    if (!stop_and_kill(&aim)) {
        struct hunt *hunt = NEW(struct hunt);
        *hunt = (struct hunt){ .loop = loop, .aim = aim };
        timer_set(&hunt->timer, loop, AGAIN_MS, on_look);
        return;
    }
    /* Without a readable /proc this is all we can do. */
    if (tree->leader_lives)
        (void)kill(tree->leader, SIGKILL);
}

uint64_t tree_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now); /* what /proc counts from, in ticks */
    uint64_t ticks = (uint64_t)sysconf(_SC_CLK_TCK);
    return (uint64_t)now.tv_sec * ticks + (uint64_t)now.tv_nsec * ticks / 1000000000u;
}

bool tree_kill_since(const struct tree *tree, uint64_t since)
{
    return stop_and_kill(&(struct aim){ .tree = *tree, .since = since });
}
