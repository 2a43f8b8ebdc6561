/*
 * A packed policy from anywhere: what unpacks and passes the check is packed to the same bytes again, and every question
 * about it has an answer. The same bytes are also a name that a guest asks for.
 */
#include <stdlib.h>

#include "base/limits.h"
#include "policy/net_rules.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const struct net_operator nobody = { 0 };

static enum net_rule judge_private(const struct net_policy *policy, const struct net_operator *ranges, struct str name)
{
    enum net_rule rule = net_judge_private(policy, ranges, name);

    if (rule != NET_RULE_OPEN && rule != NET_RULE_PRIVATE_NAME && rule != NET_RULE_NOT_PUBLIC)
        abort();
    return rule;
}

static void ask_private(const struct net_policy *policy, struct str name)
{
    static const struct net_range everything = { .address = { { [10] = 0xff, [11] = 0xff } }, .bits = 96 };
    const struct net_operator all = { .allow_count = 1, .allow = &everything };
    enum net_rule rule = judge_private(policy, &nobody, name);

    /* The operator lifts what is about addresses, and nothing else. */
    if (judge_private(policy, &all, name) != (rule == NET_RULE_NOT_PUBLIC ? NET_RULE_OPEN : rule))
        abort();
    if (str_ends(name, STR(".")) || !name.len)
        return;
    auto_buf struct buf dotted = buf_make(NULL, name.len + 1);
    buf_add(&dotted, name);
    buf_add(&dotted, STR("."));
    if (judge_private(policy, &nobody, buf_str(&dotted)) != rule)
        abort();
}

static void ask(const struct net_policy *policy)
{
    struct net_flow flow = { .to = { { [10] = 0xff, [11] = 0xff, [12] = 203, [14] = 113 } }, .port = 443 };

    flow.name = policy->name_count ? policy->names[0] : STR("example.com");
    enum net_rule rule = net_judge(policy, &nobody, &flow);
    if (rule >= NET_RULE_COUNT)
        abort();
    bool matters = net_name_matters(policy, &nobody, &flow);
    flow.name = STR("");
    if (matters && net_rule_allows(net_judge(policy, &nobody, &flow)))
        abort();
    if (net_judge_name(policy, STR("www.example.com")) >= NET_RULE_COUNT)
        abort();
    for (uint32_t i = 0; i < policy->name_count; i++) {
        ask_private(policy, policy->names[i]);
        if (!str_starts(policy->names[i], STR("*")) &&
            judge_private(policy, &nobody, policy->names[i]) == NET_RULE_PRIVATE_NAME)
            abort();
    }
    for (uint32_t i = 0; i < policy->transform_count; i++) {
        struct str host = policy->transforms[i].host;
        if (!str_starts(host, STR("*.")) && net_transform_for(policy, host) != &policy->transforms[i])
            abort();
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct unpack in = unpack_from(str_of(data, size));
    struct net_policy policy;
    struct arena arena;
    struct err err;

    static const struct net_policy open = { .internet = true };

    ask_private(&open, str_of(data, size));
    arena_init(&arena);
    net_policy_unpack(&in, &arena, &policy);
    if (unpack_done(&in, &err) && net_policy_check(&policy, &err)) {
        auto_buf struct buf again = buf_make(NULL, LIMIT_NET_POLICY_BYTES);
        net_policy_pack(&again, &policy);
        if (!str_eq(buf_str(&again), str_of(data, size)))
            abort();
        ask(&policy);
    }
    arena_done(&arena);
    return 0;
}
