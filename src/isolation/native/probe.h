/*
 * probe.h - can this machine hold native sandboxes? What `cloister doctor` prints.
 *
 * Each check tries the thing itself, in a child or a temporary directory, and leaves nothing behind.
 *
 * Where      As root; without it the rows that need root say so instead of guessing.
 */
#ifndef ISOLATION_NATIVE_PROBE_H
#define ISOLATION_NATIVE_PROBE_H

#include <stddef.h>
#include <stdint.h>

enum probe_verdict {
    PROBE_OK,
    PROBE_WARN, /* works, but slower or with less protection */
    PROBE_FAIL, /* no sandbox will start */
    PROBE_SKIP, /* needs root to find out */
    PROBE_VERDICT_COUNT,
};
extern const char *const probe_verdict_name[PROBE_VERDICT_COUNT];

struct probe_row {
    const char *name;
    enum probe_verdict verdict;
    char found[160]; /* what was seen */
    char fix[160];   /* what to do about it; empty when fine */
};

enum { PROBE_ROWS_MAX = 16 };

/* data_path is where sandboxes would live; it need not exist yet. Returns how many rows were filled. */
size_t native_probe(const char *data_path, struct probe_row rows[PROBE_ROWS_MAX]);
/* Can the memory of sandboxes be written to disk? `tools` is where CRIU is; NULL: the operator does not want it. */
void native_probe_memory(const char *tools, struct probe_row *row);
/* What paused sandboxes and snapshots take, and what the latter may. */
void native_probe_kept(const char *data_path, uint64_t cap_bytes, struct probe_row *row);

#endif
