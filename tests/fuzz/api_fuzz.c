/*
 * What the API reads out of a create, a change of network rules, and the query of a list: filters that are encoded three times, and tokens
 * that say where the next page begins. The first byte says what the rest is.
 */
#include "api/sandbox_list.c" /* its decoders are its own */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const struct actions defaults = { .internet = true };

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void fuzz_create(struct str text, struct arena *arena)
{
    struct sandbox_request want = { 0 };
    struct err err;

    auto_json json_t *body = json_parse_object(text, &err);
    if (body && create_decode(body, CREATE_V1, &defaults, arena, &want, &err))
        check(want.env_count <= LIMIT_ENV_PAIRS && want.metadata_count <= LIMIT_METADATA_PAIRS);
}

/* Rules that were taken are well-formed, can be packed, and can be shown. */
static void fuzz_network(struct str text, struct arena *arena)
{
    struct buf shown = buf_make(arena, 1 << 20);
    struct json_out json = json_out_to(&shown);
    struct net_policy policy;
    struct err err;

    auto_json json_t *body = json_parse_object(text, &err);
    if (!body || !network_decode(body, "", true, &defaults, arena, &policy, &err))
        return;
    check(net_policy_check(&policy, &err));
    json_out_object(&json, NULL);
    network_encode(&json, arena, &policy);
    json_out_end(&json);
    auto_json json_t *again = json_parse_object(buf_str(&shown), &err);
    check(again != NULL);
    /* A password is not shown, and a proxy without it is not the same; the rest is. */
    struct net_policy second;
    check(network_decode(again, "", true, &defaults, arena, &second, &err));
    check(second.allow_count == policy.allow_count && second.name_count == policy.name_count &&
          second.deny_count == policy.deny_count && second.transform_count == policy.transform_count);
}

static void fuzz_list(struct str query_text, struct arena *arena)
{
    struct http_exchange ex = { .head = { .query = query_text } };
    struct request rq = { .ex = &ex, .arena = arena };
    struct sandbox_filter filter = { 0 };
    struct err err;
    int64_t start_us, end_us;

    (void)!filter_decode(&rq, &filter, &err);
    if (span_decode(&rq, &start_us, &end_us, &err))
        check(start_us >= 0 && (!end_us || end_us >= start_us));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct arena arena;
    struct str id;
    struct err err;

    if (size < 1)
        return 0;
    struct str rest = str_of(data + 1, size - 1);
    arena_init(&arena);
    if (data[0] == 'c')
        fuzz_create(rest, &arena);
    else if (data[0] == 'n')
        fuzz_network(rest, &arena);
    else
        fuzz_list(rest, &arena);
    if (sandbox_id_decode(rest, &id, &err))
        check(id.len && id.len <= rest.len);
    arena_done(&arena);
    return 0;
}
