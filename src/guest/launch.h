/*
 * launch.h - starts a process: its variables, its program, its pipes or its terminal.
 *
 * The rest of its life is process.h's.
 */
#ifndef GUEST_LAUNCH_H
#define GUEST_LAUNCH_H

#include "guest/process.h"

/* Our ends, all non-blocking. */
struct launch {
    bool by_spawner;
    int report_fd;             /* reports whether the program was executed: spawn_outcome() */
    int in_fd, out_fd, err_fd; /* -1: none; a terminal is in and out */
};
#define LAUNCH_NONE                                              \
    {                                                            \
        .report_fd = -1, .in_fd = -1, .out_fd = -1, .err_fd = -1 \
    }
void launch_close(struct launch *launch); /* the descriptors that were not taken */
#define auto_launch __attribute__((cleanup(launch_close)))

/* Temporary memory comes from the arena. */
bool launch(struct guest *guest, const struct process_want *want, struct arena *arena, struct launch *out,
            struct err *err) must_use;

#endif
