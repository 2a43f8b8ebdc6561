#include "wire/file_link.h"

#include "test.h"

#define TOKEN STR("0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0")
#define SIGNATURE "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"

static const struct file_link hello = {
    .path = STR_INIT("hello.txt"),
    .operation = STR_INIT("read"),
    .user = STR_INIT("user"),
    .signature = STR_INIT(SIGNATURE),
};

static void a_signature_is_the_one_that_sdks_make(void **state)
{
    char signature[FILE_LINK_SIGNATURE_BYTES];
    struct file_link expiring = hello;

    (void)state;
    file_link_sign(&hello, TOKEN, signature);
    assert_string_equal(signature, SIGNATURE);
    expiring.expiration = STR("0");
    file_link_sign(&expiring, TOKEN, signature);
    assert_string_not_equal(signature, SIGNATURE);
}

static bool is_signed(struct file_link link, struct str token)
{
    struct file_link_check check;
    return file_link_open(&link, &check) && file_link_is_signed_with(&check, token);
}

static void a_signature_holds_for_what_was_signed_and_nothing_else(void **state)
{
    struct file_link link = hello;

    (void)state;
    assert_true(is_signed(link, TOKEN));
    assert_false(is_signed(link, STR("0tQG31xiMp0IOQfaz9dcwi72L1CPo8e1")));
    assert_false(is_signed(link, STR("")));
    link.expiration = STR("1800000000");
    assert_false(is_signed(link, TOKEN));
    link = hello;
    link.operation = STR("write");
    assert_false(is_signed(link, TOKEN));
    link = hello;
    link.user = STR("root");
    assert_false(is_signed(link, TOKEN));
    link = hello;
    link.path = STR("hello");
    assert_false(is_signed(link, TOKEN));
}

static void an_expiration_that_is_no_number_is_refused_before_it_is_hashed(void **state)
{
    char signature[FILE_LINK_SIGNATURE_BYTES];
    struct file_link link = hello;

    (void)state;
    link.expiration = STR("000000000000000000000");
    file_link_sign(&link, TOKEN, signature);
    link.signature = str_from(signature);
    assert_false(is_signed(link, TOKEN));
    link.expiration = STR("18446744073709551615");
    file_link_sign(&link, TOKEN, signature);
    assert_true(is_signed(link, TOKEN));
}

static void a_signature_has_one_spelling(void **state)
{
    static const char *const texts[] = {
        "",
        "v1_",
        "v1_x",
        "v1_!!!!",
        "v2_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
        "gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
        "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E=",
        "v1_gUtH_s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
        "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6F",
        "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6EAAAA",
    };
    struct file_link link = hello;
    struct file_link_check check;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        link.signature = str_from(texts[i]);
        assert_false(file_link_open(&link, &check));
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_signature_is_the_one_that_sdks_make),
        CASE(a_signature_holds_for_what_was_signed_and_nothing_else),
        CASE(an_expiration_that_is_no_number_is_refused_before_it_is_hashed),
        CASE(a_signature_has_one_spelling),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
