#include "registry/aws.h"

#include "base/encode.h"
#include "test.h"

#define KEY_ID "AKIDEXAMPLE"
#define KEY "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
enum { WALL_S = 1440938160 }; /* 2015-08-30 12:36 */

/* From AWS's own documentation. */
static void the_signing_key_is_that_of_the_documentation(void **state)
{
    unsigned char key[32];
    char hex[65];

    (void)state;
    aws_signing_key(STR(KEY), "20150830", STR("us-east-1"), "iam", key);
    assert_string_equal(hex_text(str_of(key, sizeof key), hex),
                        "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
}

/* The signature was computed apart from this, by a few lines of Python. */
static void a_request_is_signed(void **state)
{
    struct aws_request got;
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    assert_true(aws_ecr_request(&arena, STR(KEY_ID), STR(KEY), STR("us-east-1"), WALL_S, &got, &err));
    CHECK_STR(got.url, STR("https://api.ecr.us-east-1.amazonaws.com/"));
    CHECK_STR(got.date, STR("20150830T123600Z"));
    CHECK_STR(got.authorization, STR("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/ecr/aws4_request, "
                                     "SignedHeaders=content-type;host;x-amz-date;x-amz-target, "
                                     "Signature=527a2155e9afc2426cb4c659023df9c031e8103458f349819615ff25111f5de0"));
    assert_true(aws_ecr_request(&arena, STR(KEY_ID), STR(KEY), STR("cn-north-1"), WALL_S, &got, &err));
    CHECK_STR(got.url, STR("https://api.ecr.cn-north-1.amazonaws.com.cn/"));
    arena_done(&arena);
}

static void what_cannot_be_part_of_a_host_name_is_refused(void **state)
{
    static const char *const regions[] = { "", "us-east-1.evil.example/", "US", "a@b", "a b" };
    struct aws_request got;
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(regions); i++)
        assert_false(aws_ecr_request(&arena, STR(KEY_ID), STR(KEY), str_from(regions[i]), WALL_S, &got, &err));
    assert_false(aws_ecr_request(&arena, STR("a\r\nb"), STR(KEY), STR("us-east-1"), WALL_S, &got, &err));
    assert_false(aws_ecr_request(&arena, STR(KEY_ID), STR(""), STR("us-east-1"), WALL_S, &got, &err));
    arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_signing_key_is_that_of_the_documentation),
        CASE(a_request_is_signed),
        CASE(what_cannot_be_part_of_a_host_name_is_refused),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
