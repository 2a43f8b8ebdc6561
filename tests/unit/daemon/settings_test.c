#include "daemon/settings.h"

#include <unistd.h>

#include "base/fd.h"
#include "test.h"

static void settings_survive_the_trip_to_front(void **state)
{
    (void)state;
    struct settings sent = { .node_id = "n0de",
                             .domain = "sbx.example.com:8443",
                             .sandboxes_max = 7,
                             .timeout_max_s = 3600,
                             .memory_mb = 512,
                             .cpus = 3,
                             .key_sandboxes = 5,
                             .key_requests = 6,
                             .key_streams = 8,
                             .pids = 99,
                             .code_always_has_token = true },
                    got;
    struct err err;
    assert_true(secret_set(&sent.api_key, STR("e2b_00")) && secret_set(&sent.admin_hash, STR("11ff")));
    auto_close int fd = settings_write(&sent, &err);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), -1); /* sealed */
    assert_true(settings_read(fd, &got, &err));
    assert_string_equal(got.node_id, sent.node_id);
    assert_string_equal(got.domain, sent.domain);
    assert_int_equal(got.pids, 99);
    assert_true(got.code_always_has_token);
    assert_int_equal(got.key_sandboxes, 5);
    assert_int_equal(got.key_requests, 6);
    assert_int_equal(got.key_streams, 8);
    assert_true(secret_eq(&got.api_key, STR("e2b_00")));
    assert_true(secret_eq(&got.admin_hash, STR("11ff")));
}

static void an_unknown_log_level_is_refused_by_name(void **state)
{
    (void)state;
    enum log_level level;
    struct err err;
    assert_true(settings_log_level("debug", &level, &err));
    assert_false(settings_log_level("loud", &level, &err));
    assert_non_null(strstr(err.message, "loud"));
}

static void an_unknown_token_for_code_is_refused_by_name(void **state)
{
    (void)state;
    bool always;
    struct err err;
    assert_true(settings_token_for_code("always", &always, &err) && always);
    assert_true(settings_token_for_code("as-asked", &always, &err) && !always);
    assert_false(settings_token_for_code("never", &always, &err));
    assert_string_equal(err.message, "token-for-code must be as-asked or always, not 'never'");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(settings_survive_the_trip_to_front),
        CASE(an_unknown_log_level_is_refused_by_name),
        CASE(an_unknown_token_for_code_is_refused_by_name),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
