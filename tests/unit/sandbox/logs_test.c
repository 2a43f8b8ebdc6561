#include "base/clock.h"
#include "rig.h"
#include "test.h"

/* guestd tells that these commands have begun, as pids 1, 2, …; all at the same time. */
static void tell(struct rig *rig, struct str id, int64_t at_us, uint32_t count, struct str command)
{
    struct guestlink_log_line lines[LIMIT_LOG_BATCH];
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);

    for (uint32_t i = 0; i < count; i++)
        lines[i] =
            (struct guestlink_log_line){ .kind = GUESTLINK_LOG_STARTED, .at_us = at_us, .pid = i + 1, .text = command };
    guestlink_write_log(&message, &(struct guestlink_log){ .line_count = count, .lines = lines });
    rig_say(rig, id, buf_str(&message));
}

static struct sandbox_log *logs_of(struct rig *rig, struct str id, size_t *out_count)
{
    struct sandbox_log *list;

    sandbox_logs(rig->all, rig->want.team_id, id, 0, 0, &rig->arena, &list, out_count);
    return list;
}

/* Waits until the newest line is about this command. */
static struct sandbox_log *wait_for(struct rig *rig, struct str id, struct str command, size_t *out_count)
{
    struct sandbox_log *list = logs_of(rig, id, out_count);

    while (!*out_count || !str_eq(list[*out_count - 1].text, command)) {
        usleep(5000);
        list = logs_of(rig, id, out_count);
    }
    return list;
}

static void what_guestd_tells_is_kept_for_its_team_and_outlives_the_sandbox(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info box = rig_create(rig);
    int64_t now_us = clock_wall_us();
    struct sandbox_log *list;
    size_t count;

    tell(rig, box.id, now_us + INT64_C(3600000000), 1, STR("ls"));
    list = wait_for(rig, box.id, STR("ls"), &count);
    assert_int_equal(count, 1);
    assert_true(list[0].at_us <= clock_wall_us()); /* nothing happens in the future */
    sandbox_logs(rig->all, STR("another"), box.id, 0, 0, &rig->arena, &list, &count);
    assert_int_equal(count, 0);
    sandbox_logs(rig->all, rig->want.team_id, box.id, clock_wall_us() + 1, 0, &rig->arena, &list, &count);
    assert_int_equal(count, 0);
    sandbox_logs(rig->all, rig->want.team_id, box.id, 0, now_us - 1, &rig->arena, &list, &count);
    assert_int_equal(count, 0);
    MUST(sandbox_kill(rig->all, rig->want.team_id, box.id, "request", &err));
    (void)logs_of(rig, box.id, &count);
    assert_int_equal(count, 1);
    (void)logs_of(rig, STR("inone"), &count);
    assert_int_equal(count, 0);
}

static void the_oldest_lines_go_when_there_are_too_many(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info box = rig_create(rig);
    struct str long_one = arena_format(&rig->arena, "%*s", LIMIT_LOG_TEXT_BYTES, "x");
    size_t count;

    for (int i = 0; i < 5; i++)
        tell(rig, box.id, 1 + i, LIMIT_LOG_BATCH, long_one);
    tell(rig, box.id, 1, 1, STR("last"));
    (void)wait_for(rig, box.id, STR("last"), &count);
    assert_true(count > 100 && count * LIMIT_LOG_TEXT_BYTES < LIMIT_LOG_BYTES);
}

/* guestd sends a message again until it was taken: see the journal's part in guestd_test.py. */
static void a_message_is_taken_whole_and_the_next_front_asks_for_the_rest(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info box = rig_create(rig);
    int64_t now_us = clock_wall_us();
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    struct guestlink_log_line line = {
        .kind = GUESTLINK_LOG_STARTED, .at_us = now_us, .pid = 7, .text = STR("in between")
    };
    size_t count;

    (void)rig_setup_of(rig, box.id);
    tell(rig, box.id, now_us, 1, STR("before"));
    assert_int_equal(rig_message_to(rig, box.id).type, GUESTLINK_TAKEN);
    guestlink_write_log(&message, &(struct guestlink_log){ .line_count = 1, .lines = &line });
    rig_say(rig, box.id, str_of(message.data, message.len / 2));
    rig_turn(rig, LIMIT_LOG_PAUSE_MS); /* the pause after the last message is over… */
    rig_turn(rig, 0);                  /* …and this one was looked at */
    rig_stop(rig);
    rig_start(rig);
    assert_int_equal(rig_message_to(rig, box.id).type, GUESTLINK_LISTEN);
    assert_int_equal(rig_message_to(rig, box.id).type, GUESTLINK_NETWORK);
    rig_say(rig, box.id, buf_str(&message));
    assert_int_equal(rig_message_to(rig, box.id).type, GUESTLINK_TAKEN);
    tell(rig, box.id, now_us, 1, STR("after"));
    struct sandbox_log *list = wait_for(rig, box.id, STR("after"), &count);
    assert_int_equal(count, 2);
    CHECK_STR(list[0].text, STR("in between"));
    assert_int_equal(list[0].pid, 7);
    assert_int_equal(list[0].at_us, now_us); /* when it was, not when it was heard */
    MUST(sandbox_kill(rig->all, rig->want.team_id, box.id, "request", &err));
    (void)logs_of(rig, box.id, &count);
    assert_int_equal(count, 2);
}

/* A new link begins with what guestd does not know to be taken, and it may have been. */
static void what_is_told_again_is_written_once(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info box = rig_create(rig);
    size_t count;

    tell(rig, box.id, 1, 1, STR("first"));
    tell(rig, box.id, 2, 1, STR("second"));
    tell(rig, box.id, 1, 1, STR("first"));
    tell(rig, box.id, 2, 1, STR("second"));
    tell(rig, box.id, 3, 1, STR("third"));
    struct sandbox_log *list = wait_for(rig, box.id, STR("third"), &count);
    assert_int_equal(count, 3);
    CHECK_STR(list[0].text, STR("first"));
    CHECK_STR(list[1].text, STR("second"));
}

/* A sandbox that has outlived an upgrade has a guestd that does not know all that we say. */
static void an_older_guestd_may_answer_with_an_error(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info box = rig_create(rig);
    auto_buf struct buf message = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    struct err unknown;
    size_t count;

    (void)err_set(&unknown, ERR_INVALID, "a guestlink message of unknown type 5");
    guestlink_write_error(&message, &unknown);
    rig_say(rig, box.id, buf_str(&message));
    tell(rig, box.id, 1, 1, STR("still heard"));
    (void)wait_for(rig, box.id, STR("still heard"), &count);
    assert_int_equal(count, 1);
}

static void a_guestd_that_talks_nonsense_is_not_listened_to(void **state)
{
    static const struct str nonsense[] = {
        STR_INIT("\0\0\0\0"),             /* no body */
        STR_INIT("\0\7\0\0"),             /* longer than any log */
        STR_INIT("\0\0\0\5\102\0\0\0\1"), /* half of one */
        STR_INIT("\0\0\0\1\2"),           /* a question of its own */
    };
    struct rig *rig = *state;
    size_t count;

    for (size_t i = 0; i < COUNT_OF(nonsense); i++) {
        struct sandbox_info box = rig_create(rig);
        tell(rig, box.id, 1, 1, STR("before"));
        (void)wait_for(rig, box.id, STR("before"), &count);
        rig_say(rig, box.id, nonsense[i]);
        rig_wait_deaf(rig, box.id);
        (void)logs_of(rig, box.id, &count);
        assert_int_equal(count, 1);
        MUST(sandbox_kill(rig->all, rig->want.team_id, box.id, "request", &err));
    }
}

static void a_link_that_guestd_does_not_read_is_replaced_by_a_new_one(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info box = rig_create(rig);
    size_t count;
    int changes = 0;

    tell(rig, box.id, 1, 1, STR("before"));
    (void)wait_for(rig, box.id, STR("before"), &count);
    while (rig->fake.links == 0) {
        assert_true(changes++ < 2000);
        MUST(sandbox_set_network(rig->all, rig->want.team_id, box.id, &(struct net_policy){ 0 }, &rig->arena, &err));
    }
    assert_int_equal(rig_message_to(rig, box.id).type, GUESTLINK_LISTEN);
    struct guestlink_message message = rig_message_to(rig, box.id);
    assert_int_equal(message.type, GUESTLINK_NETWORK);
    assert_int_equal(message.network.reach, GUESTLINK_NOTHING);
    tell(rig, box.id, 1, 1, STR("after"));
    (void)wait_for(rig, box.id, STR("after"), &count);
    assert_int_equal(count, 2); /* the log goes on */
    assert_int_equal(rig->fake.links, 1);
}

#define RUNNING(function) cmocka_unit_test_setup_teardown(function, rig_set_up, rig_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        RUNNING(what_guestd_tells_is_kept_for_its_team_and_outlives_the_sandbox),
        RUNNING(the_oldest_lines_go_when_there_are_too_many),
        RUNNING(a_message_is_taken_whole_and_the_next_front_asks_for_the_rest),
        RUNNING(what_is_told_again_is_written_once),
        RUNNING(an_older_guestd_may_answer_with_an_error),
        RUNNING(a_guestd_that_talks_nonsense_is_not_listened_to),
        RUNNING(a_link_that_guestd_does_not_read_is_replaced_by_a_new_one),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
