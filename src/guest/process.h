/*
 * process.h - processes that were started through the API: start, input, output, signals, end.
 *
 * A process outlives the connection that started it: only its own exit, a signal or its deadline end it. Its output
 * goes to a bounded queue (output.h) from which any number of watchers read, each at its own pace.
 *
 *   attaching  A watcher that names an offset gets what is kept from there on. Without an offset: a watcher that
 *              attaches while others watch gets new output only; one that attaches when no others watch first gets all
 *              that is kept, so that a broken connection loses nothing. A client may reconnect before we see its old
 *              connection close. So a watcher that meets others is undecided for LIMIT_ATTACH_MS and reads nothing: if
 *              the others break off in that time, they were its client's old connections, and it gets all that is kept;
 *              if they stay, or have read the end, it gets the output since it attached. An old connection that dies
 *              silently is not noticed at all: only an offset resumes exactly.
 *   memory     All processes together keep LIMIT_OUTPUT_BYTES. Past that, output of ended processes without watchers is
 *              dropped, the oldest first; then every process keeps little, so that watched processes wait sooner.
 *   slowness   Without watchers the oldest output is dropped and the process never waits. A watcher never loses output
 *              since it attached: when it is a whole queue behind, we stop reading and the process waits, as on any
 *              pipe (backpressure). What a killed process has left in its pipes may exceed a full queue. A watcher that
 *              holds up others for LIMIT_STALL_MS is cut; while all are slow, none is.
 *   start      A process can be listed, signalled and killed as soon as the child has reported its pid, before it has
 *              executed its program. Its deadline runs from the request. Watchers learn of the start by their first
 *              step(), or of its failure by failed(). A child that has not executed its program after LIMIT_SPAWN_MS is
 *              killed.
 *   end        When its leader has exited and no process holds its output open, as upstream has it. After a signal or
 *              the deadline: as soon as the leader is dead. Its status and output are kept for LIMIT_RETAIN_MS, even if
 *              all was read: a client may not have received what we wrote to it.
 *
 * SIGKILL and the deadline reach the whole tree except processes that have detached themselves on purpose: see tree.h.
 * SIGTERM goes to the leader alone, which may end the others in its own way.
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
void processes_free(struct processes *all); /* kills no process; for tests */

/* On SIGCHLD: reap every child that has exited, orphans of the sandbox included. */
void processes_reap(struct processes *all);

struct process_want {
    const struct user *user;
    struct str command;
    struct str *args;
    size_t arg_count;
    struct guestlink_env *envs; /* of the request */
    size_t env_count;
    const char *cwd;      /* absolute, and there */
    const char *cwd_else; /* see struct spawn */
    bool has_stdin;
    bool has_pty;
    uint16_t cols, rows;
    const char *tag;      /* NULL: none */
    struct str config;    /* JSON, echoed by List */
    uint64_t deadline_ms; /* from now on; 0: none */
};

/* Begins a start, see above. Temporary memory comes from the arena. ERR_LIMIT when too many run. */
struct process *process_start_new(struct processes *all, const struct process_want *want, struct arena *arena,
                                  struct err *err) must_use;

enum process_which {
    PROCESS_LIVE, /* not ended */
    PROCESS_KEPT, /* or ended not long ago */
};
struct process *process_by_pid(struct processes *all, pid_t pid, enum process_which which);
struct process *process_by_tag(struct processes *all, struct str tag, enum process_which which);
/* The next live process after this one, in the order of starts. NULL: the first; returns NULL after the last. */
struct process *process_next(struct processes *all, struct process *after);

pid_t process_pid(const struct process *process);
bool process_has_started(const struct process *process); /* execve() was tried */
const char *process_tag(const struct process *process);  /* NULL: none */
struct str process_config(const struct process *process);

/* ---- watching ---- */

struct process_watcher {
    /*
     * Called when the process has started, when there may be more to read, and when it has ended. Reads, then calls
     * process_watcher_advance().
     */
    void (*step)(struct process_watcher *watcher);
    /* The watcher held others up for too long, or the process's deadline came. It must detach. */
    void (*cut)(struct process_watcher *watcher, bool is_deadline);
    /* The process could not be started and is gone. The watcher is detached already. */
    void (*failed)(struct process_watcher *watcher, const struct err *err);
    bool has_deadline; /* ends with the process's deadline: the stream that started it */
    uint64_t offset;   /* of the next byte it wants */
    /* See "attaching": it reads nothing, and `offset` may still go back. */
    bool is_undecided;
    /* private */
    struct process *process;
    struct process_watcher *next; /* the one that attached before it */
    struct timer attach;
    bool inherits; /* the others broke off while it was undecided */
    bool is_done;  /* it has read the end */
};

/* `from` NULL: by the rule above. */
void process_watch(struct process *process, struct process_watcher *watcher, const uint64_t *from);
void process_unwatch(struct process_watcher *watcher); /* no effect if it does not watch */
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

/* Bytes to be written. Lives until done() or process_input_cancel(). */
struct process_input {
    struct str bytes;
    void (*done)(struct process_input *input, const struct err *err); /* NULL: all written */
    /* private */
    struct process *process;
    struct process_input *next;
};

/* Writes are in the order of the calls. Fails at once if there is no such input. May call done() before it returns. */
bool process_write(struct process *process, enum process_input_to to, struct process_input *input, struct err *err)
    must_use;
void process_input_cancel(struct process_input *input); /* no effect when it is done */
/* End of input, after the writes under way. No effect without input. Fails for a terminal. */
bool process_close_input(struct process *process, struct err *err) must_use;
bool process_resize(struct process *process, uint16_t cols, uint16_t rows, struct err *err) must_use;

/* ---- signals ---- */

/* done() is called when the leader is dead and reaped, or after LIMIT_KILL_WAIT_MS. */
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
