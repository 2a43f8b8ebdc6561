#include "egress/flows.h"

#include "base/mem.h"
#include "privsep/message.h"
#include "test.h"

static struct flows_record sample(void)
{
    return (struct flows_record){
        .id = "abc",
        .bytes_in = UINT64_C(1) << 40,
        .bytes_out = 7,
        .made = 3,
        .refused = 5,
        .open = 2,
        .refusal_count = 2,
        .refusals = {
            { .why = NET_RULE_DENY_RANGE,
              .to = { { [10] = 0xff, 0xff, 203, 0, 113, 9 } },
              .port = 443,
              .name = STR("example.com"),
              .count = 4,
              .text = STR("refused example.com (203.0.113.9) port 443") },
            { .why = FLOWS_TOO_MANY_QUESTIONS, .count = 1, .text = STR("too many questions") },
        },
    };
}

struct seen {
    unsigned count;
    char last_id[LIMIT_ID_BYTES];
};

static void see(void *context, const struct flows_record *got)
{
    struct seen *seen = context;
    struct flows_record want = sample();

    seen->count++;
    memcpy(seen->last_id, got->id, sizeof seen->last_id);
    assert_true(got->bytes_in == want.bytes_in && got->bytes_out == want.bytes_out);
    assert_true(got->made == 3 && got->refused == 5 && got->open == 2);
    assert_int_equal(got->refusal_count, 2);
    assert_memory_equal(&got->refusals[0].to, &want.refusals[0].to, sizeof want.refusals[0].to);
    assert_int_equal(got->refusals[0].why, NET_RULE_DENY_RANGE);
    assert_int_equal(got->refusals[0].port, 443);
    assert_int_equal(got->refusals[0].count, 4);
    CHECK_STR(got->refusals[0].name, want.refusals[0].name);
    CHECK_STR(got->refusals[0].text, want.refusals[0].text);
    assert_int_equal(got->refusals[1].why, FLOWS_TOO_MANY_QUESTIONS);
}

static void records_arrive_as_they_were_sent(void **state)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct flows_record record = sample();
    struct seen seen = { 0 };
    struct err err;

    (void)state;
    flows_pack(&out, &record);
    memcpy(record.id, "xyz", 4);
    flows_pack(&out, &record);
    assert_true(flows_unpack(buf_str(&out), see, &seen, &err));
    assert_int_equal(seen.count, 2);
    assert_string_equal(seen.last_id, "xyz");
}

static void a_malformed_message_has_no_effect(void **state)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct flows_record record = sample();
    struct seen seen = { 0 };
    struct err err;

    (void)state;
    flows_pack(&out, &record);
    size_t whole = out.len;
    flows_pack(&out, &record);
    for (size_t len = 0; len < out.len; len++)
        if (len != whole)
            assert_false(flows_unpack(str_of(out.data, len), see, &seen, &err));
    assert_int_equal(seen.count, 0);
}

static void a_refusal_by_a_rule_that_allows_is_malformed(void **state)
{
    struct flows_record record = sample();
    struct err err;

    (void)state;
    for (uint8_t why = 0; why < FLOWS_WHY_COUNT + 2; why++) {
        auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
        record.refusals[1].why = why;
        flows_pack(&out, &record);
        assert_int_equal(flows_unpack(buf_str(&out), (flows_each_fn *)NULL, NULL, &err),
                         why > NET_RULE_ALLOW_RANGE && why < FLOWS_WHY_COUNT);
    }
}

static void a_full_record_fits_into_a_message(void **state)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES - MESSAGE_HEAD_BYTES);
    char name[LIMIT_NET_NAME_BYTES], text[LIMIT_FLOWS_TEXT_BYTES];
    struct flows_record record = sample();

    (void)state;
    memset(name, 'n', sizeof name);
    memset(text, 't', sizeof text);
    record.refusal_count = LIMIT_FLOWS_REFUSALS;
    for (uint32_t i = 0; i < LIMIT_FLOWS_REFUSALS; i++)
        record.refusals[i] = (struct flows_refusal){ .why = FLOWS_TOO_MANY,
                                                     .name = str_of(name, sizeof name),
                                                     .text = str_of(text, sizeof text) };
    flows_pack(&out, &record);
    assert_false(out.overflowed);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(records_arrive_as_they_were_sent),
        CASE(a_malformed_message_has_no_effect),
        CASE(a_refusal_by_a_rule_that_allows_is_malformed),
        CASE(a_full_record_fits_into_a_message),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
