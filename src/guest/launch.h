/*
 * launch.h - a new process: its variables, the file it is, its pipes or its terminal.
 *
 * Ends where the child has been started; what becomes of it is process.h's.
 */
#ifndef GUEST_LAUNCH_H
#define GUEST_LAUNCH_H

#include "guest/process.h"

/* Our side of it. None of these waits. */
struct launch {
    bool by_spawner;
    int report_fd;             /* says whether it got as far as the program: spawn_outcome() */
    int in_fd, out_fd, err_fd; /* -1: none; a terminal is in and out */
};
#define LAUNCH_NONE                                              \
    {                                                            \
        .report_fd = -1, .in_fd = -1, .out_fd = -1, .err_fd = -1 \
    }
void launch_close(struct launch *launch); /* the descriptors that nobody has taken */
#define auto_launch __attribute__((cleanup(launch_close)))

/* Memory of what the call needs comes from the arena. */
bool launch(struct guest *guest, const struct process_want *want, struct arena *arena, struct launch *out,
            struct err *err) must_use;

#endif
