#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "rig.h"

#define TEAM STR("team")

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    rig_make(rig);
    rig_start(rig);
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    rig_drop(*state);
    free(*state);
    return 0;
}

static bool range(struct rig *rig, const char *text, struct net_range **out)
{
    *out = ARENA_NEW(&rig->arena, struct net_range);
    return net_range_parse(str_from(text), *out);
}

static void guestd_is_told_whether_there_is_anything_to_reach(void **state)
{
    struct rig *rig = *state;
    struct str name = STR("example.com");
    struct net_range *all = NULL, *one = NULL, *v6 = NULL;
    assert_true(range(rig, "0.0.0.0/0", &all) && range(rig, "192.0.2.1", &one) && range(rig, "::/0", &v6));
    const struct {
        struct net_policy network;
        enum guestlink_reach reach;
    } cases[] = {
        { { .internet = true }, GUESTLINK_OUTSIDE },
        { { .internet = false }, GUESTLINK_NOTHING },
        { { .internet = false, .allow = one, .allow_count = 1 }, GUESTLINK_OUTSIDE },
        { { .internet = false, .names = &name, .name_count = 1 }, GUESTLINK_OUTSIDE },
        { { .internet = true, .deny = one, .deny_count = 1 }, GUESTLINK_OUTSIDE },
        { { .internet = true, .deny = v6, .deny_count = 1 }, GUESTLINK_OUTSIDE },
        { { .internet = true, .deny = all, .deny_count = 1 }, GUESTLINK_NOTHING },
        { { .internet = true, .deny = all, .deny_count = 1, .names = &name, .name_count = 1 }, GUESTLINK_OUTSIDE },
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        rig->want.network = cases[i].network;
        struct sandbox_info info = rig_create(rig);
        assert_int_equal(rig_setup_of(rig, info.id).network.reach, cases[i].reach);
        assert_string_equal(rig->policy_id, arena_text(&rig->arena, info.id));
        assert_int_equal(rig->policies_sent, i + 1);
    }
}

static void guestd_is_told_of_names_that_stay_inside(void **state)
{
    struct rig *rig = *state;

    rig_stop(rig);
    rig->config.inside = "mirror.internal\n";
    rig_start(rig);
    rig->want.network = (struct net_policy){ .internet = true };
    struct sandbox_info info = rig_create(rig);
    assert_int_equal(rig_setup_of(rig, info.id).network.reach, GUESTLINK_OUTSIDE);
    MUST(sandbox_set_network(rig->all, TEAM, info.id, &(struct net_policy){ 0 }, &rig->arena, &err));
    struct guestlink_message message = rig_message_to(rig, info.id);
    assert_int_equal(message.network.reach, GUESTLINK_INSIDE);
    CHECK_STR(message.network.inside, STR("mirror.internal\n"));

    /* The operator has taken them away. */
    rig_stop(rig);
    rig->config.inside = "";
    rig_start(rig);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
    assert_int_equal(rig_message_to(rig, info.id).network.reach, GUESTLINK_NOTHING);

    /* A sandbox without a network reaches none of them. */
    rig_stop(rig);
    rig->config.inside = "mirror.internal\n";
    rig->fake.no_network = true;
    rig_start(rig);
    info = rig_create(rig);
    assert_int_equal(rig_setup_of(rig, info.id).network.reach, GUESTLINK_NOTHING);
}

static void a_machine_that_has_no_network_to_give_says_so_in_the_log(void **state)
{
    struct rig *rig = *state;
    struct sandbox_log *lines;
    size_t count;

    rig->fake.no_network = true;
    rig->want.network = (struct net_policy){ .internet = true };
    struct sandbox_info info = rig_create(rig);
    assert_int_equal(rig_setup_of(rig, info.id).network.reach, GUESTLINK_NOTHING);
    sandbox_logs(rig->all, TEAM, info.id, 0, 0, &rig->arena, &lines, &count);
    assert_int_equal(count, 1);
    assert_true(str_starts(lines[0].text, STR("no network:")));

    /* Nor is guestd told that it has one when the policy changes, or by the next front. */
    MUST(sandbox_set_network(rig->all, TEAM, info.id, &rig->want.network, &rig->arena, &err));
    assert_int_equal(rig_message_to(rig, info.id).network.reach, GUESTLINK_NOTHING);
    rig_stop(rig);
    rig_start(rig);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
    assert_int_equal(rig_message_to(rig, info.id).network.reach, GUESTLINK_NOTHING);
    MUST(sandbox_set_network(rig->all, TEAM, info.id, &rig->want.network, &rig->arena, &err));
    assert_int_equal(rig_message_to(rig, info.id).network.reach, GUESTLINK_NOTHING);

    /* Not to those who do not want one. */
    rig->want.network = (struct net_policy){ .internet = false };
    info = rig_create(rig);
    sandbox_logs(rig->all, TEAM, info.id, 0, 0, &rig->arena, &lines, &count);
    assert_int_equal(count, 0);
}

static void a_change_reaches_store_egress_and_guestd(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;

    (void)rig_setup_of(rig, info.id);
    MUST(sandbox_set_network(rig->all, TEAM, info.id, &(struct net_policy){ 0 }, &rig->arena, &err));
    assert_int_equal(rig->policies_applied, 1);
    assert_false(rig->policy.internet);
    struct guestlink_message message = rig_message_to(rig, info.id);
    assert_int_equal(message.type, GUESTLINK_NETWORK);
    assert_int_equal(message.network.reach, GUESTLINK_NOTHING);

    /* After a crash it is in force again: egress gets it anew, and guestd hears it on its new link. */
    rig_stop(rig);
    rig_start(rig);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_false(got.network.internet);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
    message = rig_message_to(rig, info.id);
    assert_int_equal(message.type, GUESTLINK_NETWORK);
    assert_int_equal(message.network.reach, GUESTLINK_NOTHING);
    unsigned sent = rig->policies_sent;
    rig->policy.internet = true;
    sandboxes_send_policies(rig->all);
    assert_int_equal(rig->policies_sent, sent + 1);
    assert_false(rig->policy.internet);
}

static void the_first_header_rules_bring_an_authority_of_its_own(void **state)
{
    struct rig *rig = *state;
    static struct net_header header = { STR_INIT("X-Team"), STR_INIT("blue") };
    static struct net_transform transform = { STR_INIT("api.example.com"), 1, &header };
    const struct net_policy rules = { .internet = true, .transform_count = 1, .transforms = &transform };
    uint8_t own[NET_SEED_BYTES];

    rig_stop(rig);
    rig->config.has_mail = true;
    rig_start(rig);
    struct sandbox_info one = rig_create(rig), other = rig_create(rig);
    struct str common = arena_copy(&rig->arena, rig_setup_of(rig, one.id).network.authority.pem);
    assert_true(common.len > 0);
    CHECK_STR(rig_setup_of(rig, other.id).network.authority.pem, common);

    MUST(sandbox_set_network(rig->all, TEAM, one.id, &(struct net_policy){ .internet = true }, &rig->arena, &err));
    CHECK_STR(rig_message_to(rig, one.id).network.authority.pem, common);
    memcpy(own, rig->policy.seed, sizeof own);
    MUST(sandbox_set_network(rig->all, TEAM, one.id, &rules, &rig->arena, &err));
    assert_false(str_eq(rig_message_to(rig, one.id).network.authority.pem, common));
    assert_memory_not_equal(rig->policy.seed, own, sizeof own);

    /* It keeps this one, also without rules. */
    memcpy(own, rig->policy.seed, sizeof own);
    MUST(sandbox_set_network(rig->all, TEAM, one.id, &rules, &rig->arena, &err));
    assert_memory_equal(rig->policy.seed, own, sizeof own);
    MUST(sandbox_set_network(rig->all, TEAM, one.id, &(struct net_policy){ .internet = true }, &rig->arena, &err));
    assert_memory_equal(rig->policy.seed, own, sizeof own);
}

static void a_change_that_egress_does_not_get_is_kept_for_it(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);
    struct err err;

    rig->egress_is_away = true;
    assert_false(sandbox_set_network(rig->all, TEAM, info.id, &(struct net_policy){ 0 }, &rig->arena, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    sandboxes_send_policies(rig->all);
    assert_false(rig->policy.internet);
}

static void kill_it(struct rig *rig, const char *id)
{
    rig->before_apply = NULL;
    MUST(sandbox_kill(rig->all, TEAM, str_from(id), "request", &err));
    rig_wait_at_stop_gate(rig, 1);
}

static void one_that_was_killed_during_a_change_reaches_nothing(void **state)
{
    struct rig *rig = *state;

    rig->want.network = (struct net_policy){ .internet = false };
    struct sandbox_info info = rig_create(rig);
    rig_shut_stop_gate(rig, true); /* it is killed, and runs until keeper has its turn */
    rig->before_apply = kill_it;
    MUST(sandbox_set_network(rig->all, TEAM, info.id, &(struct net_policy){ .internet = true }, &rig->arena, &err));
    assert_int_equal(rig->policies_applied, 1);
    assert_true(rig->is_shut);
    rig->is_shut = false;
    sandboxes_send_policies(rig->all); /* egress had no room for some */
    assert_true(rig->is_shut);
    rig_shut_stop_gate(rig, false);
    rig_wait_ended(rig);
}

static void another_teams_sandbox_cannot_be_changed(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);
    struct err err;

    assert_false(sandbox_set_network(rig->all, STR("other"), info.id, &(struct net_policy){ 0 }, &rig->arena, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_int_equal(rig->policies_applied, 0);
}

struct changer {
    struct rig *rig;
    struct str id;
    bool internet;
};

static void *change_often(void *argument)
{
    struct changer *changer = argument;
    struct arena arena;

    arena_init(&arena);
    for (int i = 0; i < 20; i++)
        MUST(sandbox_set_network(changer->rig->all, TEAM, changer->id,
                                 &(struct net_policy){ .internet = changer->internet }, &arena, &err));
    arena_done(&arena);
    return NULL;
}

static void of_changes_at_the_same_time_the_last_is_the_same_everywhere(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;
    struct changer on = { rig, info.id, true }, off = { rig, info.id, false };
    pthread_t threads[2];

    assert_int_equal(pthread_create(&threads[0], NULL, change_often, &on), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, change_often, &off), 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(rig->policies_applied, 40);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_int_equal(got.network.internet, rig->policy.internet);
    rig_stop(rig);
    rig_start(rig);
    MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
    assert_int_equal(got.network.internet, rig->policy.internet);
}

struct meanwhile {
    struct rig *rig;
    struct str id;
    unsigned changes;
};

static void change_meanwhile(void *context)
{
    struct meanwhile *meanwhile = context;
    struct rig *rig = meanwhile->rig;

    if (meanwhile->changes++ == 0)
        MUST(sandbox_set_network(rig->all, TEAM, meanwhile->id, &(struct net_policy){ 0 }, &rig->arena, &err));
}

static void a_change_while_the_link_is_made_again_reaches_guestd(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);
    struct meanwhile meanwhile = { .rig = rig, .id = info.id };

    (void)rig_setup_of(rig, info.id);
    rig_stop(rig);
    rig->fake.link_context = &meanwhile;
    rig->fake.on_link = change_meanwhile;
    rig_start(rig);
    assert_int_equal(meanwhile.changes, 1);
    assert_int_equal(rig_message_to(rig, info.id).type, GUESTLINK_LISTEN);
    struct guestlink_message message = rig_message_to(rig, info.id);
    assert_int_equal(message.type, GUESTLINK_NETWORK);
    assert_int_equal(message.network.reach, GUESTLINK_OUTSIDE);
    message = rig_message_to(rig, info.id);
    assert_int_equal(message.type, GUESTLINK_NETWORK);
    assert_int_equal(message.network.reach, GUESTLINK_NOTHING);
}

static void rules_that_cannot_be_read_back_count_as_none(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig), got;
    static const char *const damaged[] = { "", "%%%", "AAAA" };

    for (size_t i = 0; i < COUNT_OF(damaged); i++) {
        MUST(store_sandbox_network(rig->disk.store, info.id, str_from(damaged[i]), NULL, &err));
        rig_stop(rig);
        rig_start(rig);
        MUST(sandbox_get(rig->all, TEAM, info.id, &rig->arena, &got, &err));
        assert_false(got.network.internet);
    }
}

/* ---- reports ---- */

static size_t lines_of(struct rig *rig, struct str id, struct sandbox_log **out)
{
    size_t count;

    sandbox_logs(rig->all, TEAM, id, 0, 0, &rig->arena, out, &count);
    return count;
}

static void a_flood_of_refusals_is_counted_and_not_listed(void **state)
{
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);
    struct sandbox_refusal refusal = { .rule = STR("r"), .destination = STR("d"), .text = STR("t"), .count = 2 };
    struct sandbox_log *lines;

    rig_stand();
    for (int i = 0; i < LIMIT_REFUSED_LINES + 10; i++)
        rig_refuse(rig, info.id, &refusal, 1);
    assert_int_equal(lines_of(rig, info.id, &lines), LIMIT_REFUSED_LINES);
    assert_int_equal(lines[0].kind, SANDBOX_LOG_REFUSED);
    assert_int_equal(lines[0].count, 2);
    CHECK_STR(lines[0].destination, STR("d"));
    rig_turn(rig, 1000);
    rig_refuse(rig, info.id, &refusal, 1);
    assert_int_equal(lines_of(rig, info.id, &lines), LIMIT_REFUSED_LINES + 2);
    assert_int_equal(lines[LIMIT_REFUSED_LINES].count, 20); /* of the ten that had no line */
    CHECK_STR(lines[LIMIT_REFUSED_LINES + 1].text, STR("t"));
}

static void refusals_leave_room_for_other_lines(void **state)
{
    static char text[500];
    struct rig *rig = *state;
    struct sandbox_info info = rig_create(rig);
    auto_buf struct buf said = buf_make(NULL, LIMIT_GUESTLINK_BYTES);
    struct guestlink_log_line command = { .kind = GUESTLINK_LOG_STARTED, .at_us = 1, .pid = 5, .text = STR("ls") };
    struct sandbox_log *lines;
    size_t count;

    memset(text, 'x', sizeof text);
    struct sandbox_refusal refusal = {
        .rule = STR("r"), .destination = STR("d"), .text = str_of(text, sizeof text), .count = 1
    };
    guestlink_write_log(&said, &(struct guestlink_log){ .line_count = 1, .lines = &command });
    rig_say(rig, info.id, buf_str(&said));
    while (lines_of(rig, info.id, &lines) < 1)
        usleep(1000);
    rig_stand();
    for (int i = 0; i < 300; i++) {
        rig_turn(rig, 1000);
        rig_refuse(rig, info.id, &refusal, 1);
    }
    count = lines_of(rig, info.id, &lines);
    assert_int_equal(lines[0].kind, SANDBOX_LOG_STARTED);
    assert_in_range(count, 20, LIMIT_LOG_REFUSED_BYTES / sizeof text + 1);
}

static size_t refused_events(struct rig *rig, struct str id)
{
    struct event_row *events;
    size_t count, refused = 0;

    while (workers_busy(rig->workers))
        usleep(1000);
    MUST(store_event_list(rig->disk.store, id, &rig->arena, &events, &count, &err));
    for (size_t i = 0; i < count; i++)
        refused += str_eq(events[i].type, event_type_name[EVENT_REFUSED]);
    return refused;
}

static void events_about_refusals_get_rarer(void **state)
{
    static const uint64_t pauses_ms[] = { 60000, 120000, 240000, 480000, 960000, 1920000, 3600000, 3600000 };
    struct rig *rig = *state;
    rig->want.timeout_s = 86400;
    struct sandbox_info info = rig_create(rig);
    struct sandbox_refusal refusal = { .rule = STR("r"), .destination = STR("d"), .text = STR("t"), .count = 1 };

    rig_stand();
    for (size_t i = 0; i < COUNT_OF(pauses_ms); i++) {
        for (int k = 0; k < 5; k++)
            rig_refuse(rig, info.id, &refusal, 1);
        assert_int_equal(refused_events(rig, info.id), i + 1);
        rig_turn(rig, pauses_ms[i] - 1);
        rig_refuse(rig, info.id, &refusal, 1);
        assert_int_equal(refused_events(rig, info.id), i + 1);
        rig_turn(rig, 1);
    }
    rig_refuse(rig, STR("inone"), &refusal, 1); /* of one that is gone: dropped */
}

#define CASE_OF(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE_OF(guestd_is_told_whether_there_is_anything_to_reach),
        CASE_OF(guestd_is_told_of_names_that_stay_inside),
        CASE_OF(a_machine_that_has_no_network_to_give_says_so_in_the_log),
        CASE_OF(a_change_reaches_store_egress_and_guestd),
        CASE_OF(the_first_header_rules_bring_an_authority_of_its_own),
        CASE_OF(a_change_that_egress_does_not_get_is_kept_for_it),
        CASE_OF(one_that_was_killed_during_a_change_reaches_nothing),
        CASE_OF(another_teams_sandbox_cannot_be_changed),
        CASE_OF(of_changes_at_the_same_time_the_last_is_the_same_everywhere),
        CASE_OF(a_change_while_the_link_is_made_again_reaches_guestd),
        CASE_OF(rules_that_cannot_be_read_back_count_as_none),
        CASE_OF(a_flood_of_refusals_is_counted_and_not_listed),
        CASE_OF(refusals_leave_room_for_other_lines),
        CASE_OF(events_about_refusals_get_rarer),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
