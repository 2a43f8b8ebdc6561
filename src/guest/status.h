/*
 * status.h - the end of a process as text that clients of upstream compare.
 */
#ifndef GUEST_STATUS_H
#define GUEST_STATUS_H

#include "base/arena.h"
#include "base/str.h"

/* "exit status 3", "signal: killed"; of a status as wait(2) has it. */
struct str status_text(struct arena *arena, int status);
int status_exit_code(int status); /* -1 for a signal */

#endif
