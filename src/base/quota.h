/*
 * quota.h - a rate limit: a token bucket that fills at a steady rate.
 *
 * Pure: the caller passes the time and keeps the bucket.
 */
#ifndef BASE_QUOTA_H
#define BASE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"

struct quota_rule {
    uint32_t per_s; /* 0: no limit */
    uint32_t burst; /* size of the bucket: tokens available at once after an idle time; at least 1 */
};

/* A zeroed bucket is full. */
struct quota {
    uint64_t used_milli; /* thousandths of a token that are missing… */
    uint64_t at_ms;      /* …at this time */
};

struct quota_left {
    uint32_t limit;     /* size of the bucket */
    uint32_t remaining; /* tokens in it */
    uint32_t full_in_s; /* rounded up */
    uint32_t next_in_s; /* rounded up; 0 if there is a token */
};

/* Takes one token if there is one. now_ms never decreases. out_left may be NULL. */
bool quota_take(const struct quota_rule *rule, struct quota *quota, uint64_t now_ms, struct quota_left *out_left)
    must_use;
void quota_give(struct quota *quota, uint32_t tokens); /* back into the bucket, until it is full */
/*
 * For what is counted afterwards: takes so many thousandths of a token, also more than there are. A bucket in debt gives
 * nothing until it has filled up again: quota_wait_ms() says how long that takes, and 0 if it is not in debt. Not for a
 * bucket that quota_take() uses.
 */
void quota_spend(const struct quota_rule *rule, struct quota *quota, uint64_t milli, uint64_t now_ms);
uint64_t quota_wait_ms(const struct quota_rule *rule, const struct quota *quota, uint64_t now_ms);
/* Is the bucket full? Then forgetting it changes nothing. */
bool quota_is_full(const struct quota_rule *rule, const struct quota *quota, uint64_t now_ms);

#endif
