/*
 * stats.h - what a sandbox uses, as plain numbers that cross between our processes.
 */
#ifndef ISOLATION_STATS_H
#define ISOLATION_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/pack.h"

/* How the driver holds a sandbox. */
enum held_state {
    HELD_RUNNING,
    HELD_FROZEN,       /* its processes stand still */
    HELD_PARKED,       /* only its files are there */
    HELD_PARKED_IMAGE, /* its files, and an image of its processes */
    HELD_STATE_COUNT,
};

struct held {
    char id[LIMIT_ID_BYTES];
    enum held_state state; /* a request for stats does not have it */
    bool has_network;      /* as in struct started; a request for stats does not have it */
};

struct stats {
    char id[LIMIT_ID_BYTES];
    uint64_t cpu_us;             /* since it began, all CPUs together */
    uint64_t memory_used_bytes;  /* without memory_cache_bytes */
    uint64_t memory_cache_bytes; /* what the kernel could take back at once */
    uint64_t memory_limit_bytes;
    uint64_t disk_used_bytes, disk_total_bytes; /* of the file system that its writes go to */
};

/* The request: at least one id, at most LIMIT_STATS. */
void stats_pack_ask(struct buf *out, const struct held *which, uint32_t count);
void stats_unpack_ask(struct unpack *in, struct held out_which[LIMIT_STATS], uint32_t *out_count);

void stats_pack(struct buf *out, const struct stats *stats, uint32_t count);
/* Fails also when a sandbox was not asked for, or comes twice. */
void stats_unpack(struct unpack *in, const struct held *asked, uint32_t asked_count, struct stats out[LIMIT_STATS],
                  uint32_t *out_count);

#endif
