/*
 * usage.h - the CPU time and memory of one sandbox, guestd included, on the three layouts of cgroup.h.
 *
 *   v2    the sandbox's own cgroup has both leaves under it and counts for both
 *   v1    the memory tree counts for `user`; guestd's share is read from its /proc/<pid>/stat. CPU time is cpuacct's where
 *         it shares a tree with cpu. Where it does not, processes are added up: what has ended is in its parent's sum,
 *         and guestd, pid 1, is the last parent of all
 *
 * Threads    One: keeper's. Some 20 µs a file, and nothing a guest does makes it wait.
 */
#ifndef ISOLATION_NATIVE_USAGE_H
#define ISOLATION_NATIVE_USAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "isolation/native/cgroup.h"

struct usage {
    uint64_t cpu_us;
    uint64_t memory_used_bytes, memory_cache_bytes, memory_limit_bytes;
};

bool usage_read(const struct cgroups *cgroups, const char *id, pid_t guestd, struct usage *out, struct err *err)
    must_use;

/* What is charged to a sandbox for pages of processes and files, without what the kernel itself has. */
struct usage_pages {
    uint64_t bytes;  /* at most so many, by the counters: each processor may have put 252 KiB of it aside */
    uint64_t listed; /* by memory.stat, perhaps some seconds old; never more than bytes */
    bool is_sure;    /* 0 bytes proves that there are none. False on v2 if a part of the sum is some seconds old */
};

bool usage_pages(const struct cgroups *cgroups, const char *id, struct usage_pages *out, struct err *err) must_use;
/* Only what the counters and the lists both show. */
bool usage_certain_pages(const struct cgroups *cgroups, const char *id, uint64_t *out_bytes, struct err *err) must_use;

/* Processor time of all its processes since it began, guestd's too where that costs nothing. */
bool usage_cpu_us(const struct cgroups *cgroups, const char *id, uint64_t *out_us, struct err *err) must_use;
enum { USAGE_TOP_BYTES = LIMIT_ID_BYTES };
/* The highest place that charges memory, as an id for the call below: there all of the machine is added up. */
void usage_find_top(const struct cgroups *cgroups, char out_id[USAGE_TOP_BYTES]);
/* What the kernel has for itself and charges to it. */
bool usage_charged_kernel(const struct cgroups *cgroups, const char *id, uint64_t *out_bytes, struct err *err) must_use;

/* ---- pure, for tests ---- */

/* The number after `name` in lines of "name number", as cpu.stat and memory.stat have them. */
bool usage_field(struct str text, struct str name, uint64_t *out) must_use;

struct usage_process {
    uint64_t own_ticks, children_ticks; /* of those that have ended and were waited for */
    uint64_t resident_pages;
};
/* One line of /proc/<pid>/stat. Its second field is the guest's to choose. */
bool usage_process_parse(struct str line, struct usage_process *out) must_use;

#endif
