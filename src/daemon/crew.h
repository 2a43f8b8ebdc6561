/*
 * crew.h - a few threads for a child of a forker: they are started before its list of system calls, which then needs none to
 * start threads with.
 */
#ifndef DAEMON_CREW_H
#define DAEMON_CREW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

enum { CREW_MOST = 8 };

struct crew;
/* So many besides the caller; all of them run when this returns. They end with the process. */
struct crew *crew_new(uint32_t count, struct err *err) must_use;
/* Calls work() on each of them and on the caller, which has the number 0; returns when all have returned. One at a time. */
void crew_work(struct crew *crew, void (*work)(void *context, uint32_t thread), void *context);

#endif
