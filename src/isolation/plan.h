/*
 * plan.h - a sandbox written down: plain data that prints and tests well.
 *
 * Front writes a plan; keeper checks every field as untrusted input and carries it out. A plan names things (a layer, an
 * id) and never has a path.
 */
#ifndef ISOLATION_PLAN_H
#define ISOLATION_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/pack.h"

enum { LAYER_ID_BYTES = 65 }; /* 64 hex digits and a zero byte */

/* What a sandbox begins with. */
enum plan_from {
    PLAN_NEW,          /* its layers and nothing else */
    PLAN_PARKED,       /* its own upper, left by driver park; new processes */
    PLAN_PARKED_IMAGE, /* its own upper and its processes, from the image that park has made */
    PLAN_IMAGE,        /* the processes of a snapshot, on the snapshot's layers with a new upper */
    PLAN_FROM_COUNT,
};

struct plan {
    enum plan_from from;
    char image[LAYER_ID_BYTES];                /* with PLAN_IMAGE: the snapshot's id; else empty */
    char id[LIMIT_ID_BYTES];                   /* [a-z0-9]+ */
    char hostname[LIMIT_ID_BYTES];             /* inside the sandbox */
    uint32_t layer_count;                      /* at least one */
    char layers[LIMIT_LAYERS][LAYER_ID_BYTES]; /* content ids, lowest first */
    uint64_t memory_bytes;
    uint32_t cpu_millis; /* thousandths of a CPU: 2000 is two */
    uint32_t pids;
};

/* Every field is in range and well-formed; err names the first that is not. */
bool plan_layer_id_valid(const char id[LAYER_ID_BYTES]); /* 64 hex digits; of a layer or a snapshot */
bool plan_check(const struct plan *plan, struct err *err) must_use;

void plan_pack(struct buf *out, const struct plan *plan);
/* The caller ends with unpack_done() and plan_check(). */
void plan_unpack(struct unpack *in, struct plan *out_plan);

#endif
