/*
 * quota.h - how often: a bucket of tokens that fills at a steady rate.
 *
 * Pure: the caller brings the time and keeps the bucket.
 */
#ifndef POLICY_QUOTA_H
#define POLICY_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"

struct quota_rule {
    uint32_t per_s; /* 0: as often as one likes */
    uint32_t burst; /* how many at once after a rest; at least 1 */
};

/* Zeroed it is full. */
struct quota {
    uint64_t used_milli; /* thousandths of a token that are missing */
    uint64_t at_ms;      /* as of when */
};

struct quota_left {
    uint32_t limit;     /* how many fit */
    uint32_t remaining; /* how many are there */
    uint32_t full_in_s; /* rounded up */
    uint32_t next_in_s; /* rounded up; 0 if there is one */
};

/* Takes one token if there is one. now_ms does not go back. */
bool quota_take(const struct quota_rule *rule, struct quota *quota, uint64_t now_ms, struct quota_left *out_left)
    must_use;
/* Has it rested so long that forgetting it changes nothing? */
bool quota_is_full(const struct quota_rule *rule, const struct quota *quota, uint64_t now_ms);

#endif
