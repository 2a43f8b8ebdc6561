/*
 * One token bucket (base/quota.h) for each API key that has made a request lately.
 */
#include <stdlib.h>

#include "actions/actions.h"
#include "base/map.h"
#include "base/mem.h"

struct meter {
    char key_id[STORE_UUID_BYTES];
    struct quota quota;
};

struct meters {
    struct quota_rule rule;
    struct map by_key;
};

struct meters *meters_new(uint32_t requests_per_s)
{
    struct meters *meters = NEW(struct meters);

    meters->rule = (struct quota_rule){ .per_s = requests_per_s, .burst = MAX(2 * requests_per_s, 1u) };
    map_init(&meters->by_key);
    return meters;
}

void meters_free(struct meters *meters)
{
    struct meter *meter;

    if (!meters)
        return;
    for (size_t i = 0; (meter = map_next(&meters->by_key, &i));)
        free(meter);
    map_done(&meters->by_key);
    free(meters);
}

/* A full bucket is the same as none. */
static void forget_idle(struct meters *meters, uint64_t now_ms)
{
    struct map kept;
    struct meter *meter;

    map_init(&kept);
    for (size_t i = 0; (meter = map_next(&meters->by_key, &i));) {
        if (quota_is_full(&meters->rule, &meter->quota, now_ms))
            free(meter);
        else
            (void)map_put(&kept, str_from(meter->key_id), meter);
    }
    map_done(&meters->by_key);
    meters->by_key = kept;
}

bool action_caller_in_rate(const struct actions *actions, const struct caller *caller, uint64_t now_ms,
                           struct quota_left *out_left)
{
    struct meters *meters = actions->meters;

    if (!meters || !caller->key_id[0]) {
        *out_left = (struct quota_left){ 0 };
        return true;
    }
    struct meter *meter = map_get(&meters->by_key, str_from(caller->key_id));
    if (!meter) {
        if (meters->by_key.count >= LIMIT_METERS)
            forget_idle(meters, now_ms);
        meter = NEW(struct meter);
        memcpy(meter->key_id, caller->key_id, sizeof meter->key_id);
        (void)map_put(&meters->by_key, str_from(meter->key_id), meter);
    }
    return quota_take(&meters->rule, &meter->quota, now_ms, out_left);
}
