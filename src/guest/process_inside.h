/*
 * process_inside.h - a process, and how the files that share it call each other.
 *
 *     process.c         its life: start, signals, end, and the table of all
 *     process_output.c  what it prints, and those who watch
 *     process_input.c   what is written to it
 */
#ifndef GUEST_PROCESS_INSIDE_H
#define GUEST_PROCESS_INSIDE_H

#include "base/mem.h"
#include "guest/process.h"
#include "guest/spawn.h"

enum process_state {
    STARTING,  /* a child was requested and has not reported yet whether it executed the program */
    RUNNING,   /* its leader lives */
    LINGERING, /* the leader has exited, other processes still hold its output open */
    ENDED,     /* over; status and output are kept for late readers */
};

enum { SOURCES_MAX = 2 }; /* stdout and stderr, or a terminal */

/* One of the descriptors that output comes from. */
struct source {
    struct process *process;
    enum output_stream stream;
    int fd; /* -1: at its end */
    struct watch *watch;
};

struct process {
    struct processes *all;
    struct process *next, *previous;
    struct spawn_child child; /* its leader */
    enum process_state state;
    int status;        /* as wait(2) has it, once the leader is gone */
    bool is_collected; /* the leader was reaped: its pid may be another process's by now */
    bool was_cut;      /* signalled or timed out: its end does not wait for the end of its output */
    bool is_unwanted;  /* to be killed as soon as its pid is known */
    bool by_spawner;   /* the spawner was asked for it */
    bool has_pty;
    char *tag, *config;
    char *command; /* for the journal; NULL once written there */
    int report_fd; /* -1: its start is known */
    struct watch *report_watch;
    struct timer start_wait;

    struct source sources[SOURCES_MAX];
    size_t source_count;
    struct output output;
    struct process_watcher *watchers;
    bool is_paused; /* a watcher is a whole queue behind */
    struct timer stall;

    int in_fd; /* -1: none, or closed */
    struct watch *in_watch;
    struct process_input *inputs, **inputs_end;
    bool closes_input; /* once the inputs are written */

    struct process_death *deaths;
    struct timer death_wait, deadline, forget;
};

struct processes {
    struct guest *guest;
    struct process *first, *last;
    size_t count, live;
    size_t config_bytes; /* of all configs together */
};

/* ---- process.c ---- */

/* After every event: ends the process once nothing more can come. */
void process_step(struct process *process);

/* ---- process_output.c ---- */

void process_add_source(struct process *process, int fd, enum output_stream stream); /* takes the descriptor */
bool process_has_open_source(const struct process *process);
/* Read what is in the pipes of a process that is over, and not what others go on writing to them. */
void process_drain(struct process *process);
void process_close_sources(struct process *process);
/* A watcher may detach itself while it is told, but no other. */
void process_tell_watchers(struct process *process);

/* ---- process_input.c ---- */

void process_fail_inputs(struct process *process, const struct err *err);
void process_end_input(struct process *process); /* close it, now */

#endif
