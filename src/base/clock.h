/*
 * clock.h - two clocks: monotonic time to wait by, wall time to store and print.
 *
 * Everything with a deadline asks here, loops included, so a test that sets a source of its own turns the time of the
 * whole process. Only waits inside the kernel (poll, condition variables) follow the machine.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/attr.h"
#include "base/str.h"

/* Never jumps; only meaningful on this machine until it reboots. For waiting. */
uint64_t clock_mono_ms(void);
uint64_t clock_mono_us(void);
/* Since 1970. For deadlines that survive a restart, and for text that people read. */
int64_t clock_wall_us(void);
/* For pthread_cond_timedwait() with CLOCK_MONOTONIC: the machine's clock, also if another one is in use. */
struct timespec clock_wait_until(unsigned after_ms);

struct clock_source {
    uint64_t (*mono_us)(void);
    int64_t (*wall_us)(void);
};
/* Where both clocks get their time from, for all threads; NULL is the machine. A loop sees a jump when it next wakes. */
void clock_use(const struct clock_source *source);

enum { CLOCK_TEXT_BYTES = 40 };
/* "2026-01-05T10:00:00.120394Z" */
const char *clock_text(int64_t wall_us, char room[CLOCK_TEXT_BYTES]);
/* RFC 3339 with Z or an offset, up to nanoseconds (cut to microseconds). */
bool clock_parse(struct str text, int64_t *out_wall_us) must_use;

#endif
