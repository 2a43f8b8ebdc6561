#include "wire/guestlink.h"

#include "test.h"

static struct str body_of(const struct buf *message)
{
    struct err err;
    uint32_t length;

    assert_false(message->overflowed);
    assert_true(guestlink_body_length((const unsigned char *)message->data, &length, &err));
    assert_int_equal(length + GUESTLINK_HEADER_BYTES, message->len);
    return str_of(message->data + GUESTLINK_HEADER_BYTES, length);
}

static struct guestlink_env some_envs[] = { { STR_INIT("A"), STR_INIT("b=c") }, { STR_INIT("EMPTY"), STR_INIT("") } };
static const struct guestlink_setup some_setup = {
    .sandbox_id = STR_INIT("sbx1"),
    .template_id = STR_INIT("base"),
    .access_token = STR_INIT("tok"),
    .open_code = true,
    .default_user = STR_INIT("user"),
    .default_workdir = STR_INIT("/code"),
    .network = { .reach = GUESTLINK_INSIDE,
                 .inside = STR_INIT("a.internal\nb-1_c.internal\n"),
                 .authority = { STR_INIT("PEM"), 0x1234abcd } },
    .env_count = COUNT_OF(some_envs),
    .envs = some_envs,
};

static void a_setup_arrives_as_it_was_sent(void **state)
{
    (void)state;
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    guestlink_write_setup(&message, &some_setup);
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_SETUP);
    CHECK_STR(got.setup.sandbox_id, STR("sbx1"));
    CHECK_STR(got.setup.template_id, STR("base"));
    CHECK_STR(got.setup.access_token, STR("tok"));
    assert_true(got.setup.open_code);
    CHECK_STR(got.setup.default_user, STR("user"));
    CHECK_STR(got.setup.default_workdir, STR("/code"));
    assert_int_equal(got.setup.network.reach, GUESTLINK_INSIDE);
    CHECK_STR(got.setup.network.inside, STR("a.internal\nb-1_c.internal\n"));
    CHECK_STR(got.setup.network.authority.pem, STR("PEM"));
    assert_int_equal(got.setup.network.authority.hash, 0x1234abcd);
    assert_int_equal(got.setup.env_count, 2);
    CHECK_STR(got.setup.envs[0].value, STR("b=c"));
    CHECK_STR(got.setup.envs[1].name, STR("EMPTY"));
    arena_done(&arena);
}

static void a_flag_that_is_neither_yes_nor_no_is_refused(void **state)
{
    (void)state;
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    guestlink_write_setup(&message, &some_setup);
    char *flag = (char *)memmem(message.data, message.len, "tok", 3) + 3;
    *flag = 0;
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err) && !got.setup.open_code);
    *flag = 2;
    assert_false(guestlink_read(body_of(&message), &arena, &got, &err));
    arena_done(&arena);
}

static void every_cut_and_every_tail_is_refused(void **state)
{
    (void)state;
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    guestlink_write_setup(&message, &some_setup);
    struct str body = body_of(&message);
    for (size_t len = 0; len < body.len; len++)
        assert_false(guestlink_read(str_of(body.at, len), &arena, &got, &err));
    buf_add_char(&message, 'x');
    assert_false(guestlink_read(str_of(message.data + GUESTLINK_HEADER_BYTES, body.len + 1), &arena, &got, &err));
    arena_done(&arena);
}

static void names_that_no_environment_can_hold_are_refused(void **state)
{
    (void)state;
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    static struct guestlink_env bad[] = { { STR_INIT(""), STR_INIT("x") },
                                          { STR_INIT("A=B"), STR_INIT("x") },
                                          { STR_INIT("A"), STR_INIT("x\0y") } };

    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
        guestlink_write_setup(&message, &(struct guestlink_setup){ .env_count = 1, .envs = &bad[i] });
        assert_false(guestlink_read(body_of(&message), &arena, &got, &err));
    }
    arena_done(&arena);
}

static void names_that_could_mean_more_in_a_file_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = { "", "a.b", "a b\n", "a\";\n", "a]\n", "a\\\n", "#a\n" };
    struct err err;
    struct arena arena;
    struct guestlink_message got;

    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
        guestlink_write_network(&message,
                                &(struct guestlink_network){ .reach = GUESTLINK_INSIDE, .inside = str_from(wrong[i]) });
        assert_false(guestlink_read(body_of(&message), &arena, &got, &err));
    }
    arena_done(&arena);
}

static void ok_ping_network_and_error_travel(void **state)
{
    (void)state;
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    guestlink_write_simple(&message, GUESTLINK_PING);
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_PING);
    buf_clear(&message);
    guestlink_write_network(&message,
                            &(struct guestlink_network){ .reach = GUESTLINK_OUTSIDE, .authority = { STR("PEM"), 7 } });
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_NETWORK);
    assert_int_equal(got.network.reach, GUESTLINK_OUTSIDE);
    CHECK_STR(got.network.authority.pem, STR("PEM"));
    assert_int_equal(got.network.authority.hash, 7);
    message.data[GUESTLINK_HEADER_BYTES + 1] = GUESTLINK_REACH_COUNT;
    assert_false(guestlink_read(body_of(&message), &arena, &got, &err));
    buf_clear(&message);
    struct err sent;
    (void)err_set(&sent, ERR_INVALID, "no user %s", "bob");
    (void)err_wrap(&sent, "setup");
    guestlink_write_error(&message, &sent);
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_ERROR);
    assert_int_equal(got.error.kind, ERR_INVALID);
    assert_string_equal(got.error.message, "no user bob");
    assert_string_equal(got.error.trail, "setup");
    arena_done(&arena);
}

static void prepare_resumed_and_the_environment_of_ready_travel(void **state)
{
    (void)state;
    static const enum guestlink_type simple[] = { GUESTLINK_PREPARE, GUESTLINK_RESUMED };
    static struct guestlink_env large = { STR_INIT("A"), { NULL, LIMIT_ENV_BYTES } };
    static char value[LIMIT_ENV_BYTES];
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(simple); i++) {
        buf_clear(&message);
        guestlink_write_simple(&message, simple[i]);
        assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
        assert_int_equal(got.type, simple[i]);
    }
    buf_clear(&message);
    guestlink_write_ready(&message, &(struct guestlink_ready){ .env_count = COUNT_OF(some_envs), .envs = some_envs });
    struct str body = body_of(&message);
    assert_true(guestlink_read(body, &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_READY);
    assert_int_equal(got.ready.env_count, 2);
    CHECK_STR(got.ready.envs[0].name, STR("A"));
    CHECK_STR(got.ready.envs[0].value, STR("b=c"));
    CHECK_STR(got.ready.envs[1].value, STR(""));
    for (size_t len = 0; len < body.len; len++)
        assert_false(guestlink_read(str_of(body.at, len), &arena, &got, &err));
    memset(value, 'x', sizeof value);
    large.value.at = value;
    buf_clear(&message);
    guestlink_write_ready(&message, &(struct guestlink_ready){ .env_count = 1, .envs = &large });
    assert_false(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    arena_done(&arena);
}

static void warm_travels_and_warmed_with_and_without_a_reason(void **state)
{
    (void)state;
    struct err err, why;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    arena_init(&arena);
    guestlink_write_simple(&message, GUESTLINK_WARM);
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_WARM);
    buf_clear(&message);
    guestlink_write_warmed(&message, NULL);
    assert_true(guestlink_read(body_of(&message), &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_WARMED);
    assert_int_equal(got.error.kind, ERR_NONE);
    buf_clear(&message);
    (void)err_set(&why, ERR_UNAVAILABLE, "there is no zygote");
    guestlink_write_warmed(&message, &why);
    struct str body = body_of(&message);
    assert_true(guestlink_read(body, &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_WARMED);
    assert_int_equal(got.error.kind, ERR_UNAVAILABLE);
    assert_string_equal(got.error.message, "there is no zygote");
    for (size_t len = 0; len < body.len; len++)
        assert_false(guestlink_read(str_of(body.at, len), &arena, &got, &err));
    message.data[GUESTLINK_HEADER_BYTES + 2] = ERR_NONE; /* no, for no reason */
    assert_false(guestlink_read(body, &arena, &got, &err));
    message.data[GUESTLINK_HEADER_BYTES + 1] = true; /* yes, with a reason why not */
    assert_false(guestlink_read(body, &arena, &got, &err));
    arena_done(&arena);
}

static struct guestlink_log_line some_lines[] = {
    { .kind = GUESTLINK_LOG_STARTED, .at_us = 5, .pid = 7, .text = STR_INIT("ls -l") },
    { .kind = GUESTLINK_LOG_ENDED,
      .at_us = 6,
      .pid = 7,
      .exit_code = -1,
      .output_bytes = 9,
      .text = STR_INIT("signal") },
};

static void log_lines_travel_and_no_cut_or_malformed_one_does(void **state)
{
    (void)state;
    struct err err;
    struct arena arena;
    struct guestlink_message got;
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    struct guestlink_log log = { .dropped = 3, .line_count = COUNT_OF(some_lines), .lines = some_lines };

    arena_init(&arena);
    guestlink_write_log(&message, &log);
    struct str body = body_of(&message);
    assert_true(guestlink_read(body, &arena, &got, &err));
    assert_int_equal(got.type, GUESTLINK_LOG);
    assert_int_equal(got.log.dropped, 3);
    assert_int_equal(got.log.line_count, 2);
    CHECK_STR(got.log.lines[0].text, STR("ls -l"));
    assert_int_equal(got.log.lines[1].exit_code, -1);
    assert_int_equal(got.log.lines[1].output_bytes, 9);
    for (size_t len = 0; len < body.len; len++)
        assert_false(guestlink_read(str_of(body.at, len), &arena, &got, &err));
    struct guestlink_log_line bad[] = {
        { .kind = GUESTLINK_LOG_KIND_END, .text = STR_INIT("") },
        { .kind = 0, .text = STR_INIT("") },
        { .kind = GUESTLINK_LOG_STARTED, .at_us = -1, .text = STR_INIT("") },
        { .kind = GUESTLINK_LOG_STARTED, .text = STR_INIT("half \xc3") },
        { .kind = GUESTLINK_LOG_STARTED, .text = arena_format(&arena, "%*s", LIMIT_LOG_TEXT_BYTES + 1, "") },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        buf_clear(&message);
        guestlink_write_log(&message, &(struct guestlink_log){ .line_count = 1, .lines = &bad[i] });
        assert_false(guestlink_read(body_of(&message), &arena, &got, &err));
    }
    arena_done(&arena);
}

static void lengths_of_zero_and_past_the_limit_are_refused(void **state)
{
    (void)state;
    struct err err;
    uint32_t length;
    assert_false(guestlink_body_length((const unsigned char[]){ 0, 0, 0, 0 }, &length, &err));
    assert_false(guestlink_body_length((const unsigned char[]){ 0, 8, 0, 1 }, &length, &err));
    assert_true(guestlink_body_length((const unsigned char[]){ 0, 8, 0, 0 }, &length, &err));
    assert_int_equal(length, LIMIT_GUESTLINK_BYTES);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_setup_arrives_as_it_was_sent),
        CASE(every_cut_and_every_tail_is_refused),
        CASE(a_flag_that_is_neither_yes_nor_no_is_refused),
        CASE(names_that_no_environment_can_hold_are_refused),
        CASE(ok_ping_network_and_error_travel),
        CASE(prepare_resumed_and_the_environment_of_ready_travel),
        CASE(warm_travels_and_warmed_with_and_without_a_reason),
        CASE(names_that_could_mean_more_in_a_file_are_refused),
        CASE(log_lines_travel_and_no_cut_or_malformed_one_does),
        CASE(lengths_of_zero_and_past_the_limit_are_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
