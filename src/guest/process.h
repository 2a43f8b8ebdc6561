/*
 * process.h - the life of what was started through the API: input, output, signals, end.
 *
 * A process outlives whoever started it: only its own exit, a signal or its deadline end it. Its output goes to a
 * bounded queue (output.h) from which any number of watchers read, each at its own pace:
 *
 *   attaching  Whoever names an offset gets exactly what is kept from there on. Of the others, whoever comes while
 *              others watch sees what is new, and whoever comes after the last has gone first gets all that is still
 *              kept, so that a broken connection loses nothing. The news of a broken connection may take longer than
 *              the client's way back. So a newcomer who meets others is told nothing of the output yet: if those who
 *              were there before it break off within LIMIT_ATTACH_MS it was their client, and gets everything; if they
 *              stay, or have seen the end, it gets what came since it came. A connection that dies without a word is
 *              still there to us; resuming by offset is right even then.
 *   memory     All together keep LIMIT_OUTPUT_BYTES. Past that what has ended and is not watched is dropped, the oldest
 *              first; then every process keeps little, so that those that are watched wait sooner.
 *   slowness   With nobody watching the oldest output is dropped and the process never waits. A watcher never loses
 *              what came while it was attached: when it is a whole queue behind, we stop reading and the process waits,
 *              as on any pipe. What is left in the pipes of a killed process comes on top of a full queue. If a watcher
 *              holds up others that way for LIMIT_STALL_MS, it is cut; while all are slow, nobody is.
 *   start      The entry can be found as soon as the child has said who it is, before it is known whether it will get as
 *              far as the program: it can be listed, signalled and killed. Its deadline runs from the beginning. Watchers
 *              are told by their first step(), or by failed(). A child that has not got there after LIMIT_SPAWN_MS is
 *              killed.
 *   end        When its leader has exited and nobody holds its output open any more, as upstream has it. After a signal
 *              or the deadline: as soon as the leader is dead. The end is kept for LIMIT_RETAIN_MS, and so is the
 *              output, even if it was read to its end: what we have written, a client need not have received.
 *
 * Killing (SIGKILL, deadline) reaches the whole tree, but for what has detached itself on purpose: see tree.h. SIGTERM
 * goes to the leader alone, which may have its own idea of an orderly end.
 *
 * Threads    The loop's.
 */
#ifndef GUEST_PROCESS_H
#define GUEST_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/guest.h"
#include "guest/output.h"

struct process;

struct processes *processes_new(struct guest *guest) must_use;
void processes_free(struct processes *all); /* kills nobody: for tests, at their end */

/* On SIGCHLD: collect every child that has exited, orphans of the sandbox included. */
void processes_reap(struct processes *all);

struct process_want {
    const struct user *user;
    struct str command;
    struct str *args;
    size_t arg_count;
    struct guestlink_env *envs; /* of the request */
    size_t env_count;
    const char *cwd; /* absolute, and there */
    bool has_stdin;
    bool has_pty;
    uint16_t cols, rows;
    const char *tag;      /* NULL: none */
    struct str config;    /* JSON, echoed by List */
    uint64_t deadline_ms; /* from now on; 0: none */
};

/* On its way; see "start" above. Memory of what the call needs comes from the arena. ERR_LIMIT when too many run. */
struct process *process_start_new(struct processes *all, const struct process_want *want, struct arena *arena,
                                  struct err *err) must_use;

enum process_which {
    PROCESS_LIVE, /* not ended */
    PROCESS_KEPT, /* or ended not long ago */
};
struct process *process_by_pid(struct processes *all, pid_t pid, enum process_which which);
struct process *process_by_tag(struct processes *all, struct str tag, enum process_which which);
/* Every live one, in the order of their start. NULL begins, NULL ends. */
struct process *process_next(struct processes *all, struct process *after);

pid_t process_pid(const struct process *process);
bool process_has_started(const struct process *process); /* its program was executed, as far as there was one */
const char *process_tag(const struct process *process);  /* NULL: none */
struct str process_config(const struct process *process);

/* ---- watching ---- */

struct process_watcher {
    /*
     * Called when it has started, when there may be more to read, or when the end is known. Reads, then
     * process_watcher_advance().
     */
    void (*step)(struct process_watcher *watcher);
    /* It held the others up for too long, or the deadline it was started with came. It must detach. */
    void (*cut)(struct process_watcher *watcher, bool is_deadline);
    /* It could not be started, and is not in the table any more. Detached already. */
    void (*failed)(struct process_watcher *watcher, const struct err *err);
    bool has_deadline; /* ends with the process's deadline: the stream that started it */
    uint64_t offset;   /* of the next byte it wants */
    /* Others are there, who may be its own broken connections: it reads nothing, and `offset` may still go back. */
    bool is_undecided;
    /* private */
    struct process *process;
    struct process_watcher *next; /* who came before it */
    struct timer attach;
    bool inherits; /* those before it broke off while it was undecided */
    bool is_done;  /* it has read the end */
};

/* `from` NULL: by the rule above. */
void process_watch(struct process *process, struct process_watcher *watcher, const uint64_t *from);
void process_unwatch(struct process_watcher *watcher); /* fine when it does not watch */
/* The next piece of output for this watcher. False if there is none now. */
bool process_watcher_read(struct process_watcher *watcher, enum output_stream *out_stream, struct str *out_bytes);
void process_watcher_advance(struct process_watcher *watcher, size_t bytes);
/* All read, and the end is known: *out_status as wait(2) has it. */
bool process_watcher_at_end(struct process_watcher *watcher, int *out_status);

/* ---- input ---- */

enum process_input_to {
    PROCESS_STDIN,
    PROCESS_PTY,
};

/* Bytes on their way in. Lives until done() or process_input_cancel(). */
struct process_input {
    struct str bytes;
    void (*done)(struct process_input *input, const struct err *err); /* NULL: all written */
    /* private */
    struct process *process;
    struct process_input *next;
};

/* In the order of the calls. Fails at once if there is no such input; done() may come before this returns. */
bool process_write(struct process *process, enum process_input_to to, struct process_input *input, struct err *err)
    must_use;
void process_input_cancel(struct process_input *input); /* fine when it is done */
/* End of input, after what is on its way. Fine when there is none. Fails for a terminal. */
bool process_close_input(struct process *process, struct err *err) must_use;
bool process_resize(struct process *process, uint16_t cols, uint16_t rows, struct err *err) must_use;

/* ---- signals ---- */

/* Told when the leader is dead and collected (or when we no longer wait for that). */
struct process_death {
    void (*done)(struct process_death *death);
    /* private */
    struct process *process;
    struct process_death *next;
};

void process_terminate(struct process *process);
void process_kill(struct process *process, struct process_death *death); /* death may be NULL */
void process_death_cancel(struct process_death *death);

#endif
