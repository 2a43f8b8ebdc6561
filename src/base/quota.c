#include "base/quota.h"

enum { MILLI = 1000 };

/* per_s tokens a second are per_s thousandths a millisecond. */
static uint64_t missing(const struct quota_rule *rule, const struct quota *quota, uint64_t now_ms)
{
    uint64_t passed_ms = now_ms > quota->at_ms ? now_ms - quota->at_ms : 0;

    /* After this long the bucket is full anyway; the cap keeps the product from overflowing. */
    if (passed_ms > quota->used_milli / rule->per_s)
        return 0;
    return quota->used_milli - passed_ms * rule->per_s;
}

static uint32_t seconds(const struct quota_rule *rule, uint64_t milli)
{
    uint64_t a_second = (uint64_t)rule->per_s * MILLI;

    return (uint32_t)((milli + a_second - 1) / a_second);
}

bool quota_take(const struct quota_rule *rule, struct quota *quota, uint64_t now_ms, struct quota_left *out_left)
{
    if (rule->per_s == 0) {
        if (out_left)
            *out_left = (struct quota_left){ .limit = UINT32_MAX, .remaining = UINT32_MAX };
        return true;
    }
    uint64_t room = (uint64_t)rule->burst * MILLI, used = missing(rule, quota, now_ms);
    bool there = used + MILLI <= room;

    *quota = (struct quota){ .used_milli = there ? used + MILLI : used, .at_ms = now_ms };
    if (!out_left)
        return there;
    *out_left = (struct quota_left){
        .limit = rule->burst,
        .remaining = (uint32_t)((room - quota->used_milli) / MILLI),
        .full_in_s = seconds(rule, quota->used_milli),
        .next_in_s = there ? 0 : seconds(rule, used + MILLI - room),
    };
    return there;
}

void quota_give(struct quota *quota, uint32_t tokens)
{
    quota->used_milli -= MIN(quota->used_milli, (uint64_t)tokens * MILLI);
}

bool quota_is_full(const struct quota_rule *rule, const struct quota *quota, uint64_t now_ms)
{
    return rule->per_s == 0 || missing(rule, quota, now_ms) == 0;
}

void quota_spend(const struct quota_rule *rule, struct quota *quota, uint64_t milli, uint64_t now_ms)
{
    if (rule->per_s == 0)
        return;
    uint64_t used = missing(rule, quota, now_ms);
    *quota = (struct quota){ .used_milli = used > UINT64_MAX - milli ? UINT64_MAX : used + milli, .at_ms = now_ms };
}

uint64_t quota_wait_ms(const struct quota_rule *rule, const struct quota *quota, uint64_t now_ms)
{
    if (rule->per_s == 0)
        return 0;
    uint64_t room = (uint64_t)rule->burst * MILLI, used = missing(rule, quota, now_ms);
    return used > room ? (used - room - 1) / rule->per_s + 1 : 0;
}
