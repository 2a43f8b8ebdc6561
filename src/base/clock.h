/*
 * clock.h - two clocks: monotonic time to wait by, wall time to store and print.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/str.h"

/* Never jumps; only meaningful on this machine until it reboots. For waiting. */
uint64_t clock_mono_ms(void);
uint64_t clock_mono_us(void);
/* Since 1970. For deadlines that survive a restart, and for text that people read. */
int64_t clock_wall_us(void);

enum { CLOCK_TEXT_BYTES = 40 };
/* "2026-01-05T10:00:00.120394Z" */
const char *clock_text(int64_t wall_us, char room[CLOCK_TEXT_BYTES]);
/* RFC 3339 with Z or an offset, up to nanoseconds (cut to microseconds). */
bool clock_parse(struct str text, int64_t *out_wall_us) must_use;

#endif
