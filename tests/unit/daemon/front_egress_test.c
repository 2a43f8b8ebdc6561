#include "daemon/front_egress.h"

#include <stdlib.h>

#include "../sandbox/rig.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pack.h"
#include "egress/flows.h"

#define TEAM STR("team")

/* Front's side, and an egress on the other end of the channel, both on the rig's loop. */
struct pair_of {
    struct rig rig;
    struct front_egress *egress;
    struct channel *peer; /* NULL: there is no egress */
    pthread_mutex_t lock;
    unsigned taken;
    char ids[8][LIMIT_ID_BYTES], policies[8][64];
    bool refuses;
};

static bool on_request(void *context, struct channel *channel, enum message_type type, uint32_t id, struct str payload,
                       struct message_fds *fds, struct err *err)
{
    struct pair_of *p = context;
    struct unpack in = unpack_from(payload);
    struct err why;

    (void)fds;
    (void)err;
    assert_int_equal(type, MESSAGE_POLICY);
    pthread_mutex_lock(&p->lock);
    message_unpack_id(&in, p->ids[p->taken % 8]);
    snprintf(p->policies[p->taken % 8], sizeof p->policies[0], "%.*s", STR_ARG(in.rest));
    p->taken++;
    pthread_mutex_unlock(&p->lock);
    assert_false(in.failed);
    (void)err_set(&why, ERR_INVALID, "a bad policy");
    if (p->refuses)
        channel_reply_error(channel, type, id, &why);
    else
        channel_reply(channel, type, id, STR(""), NULL, 0);
    return true;
}

static const struct channel_handlers handlers = { .request = on_request };

static void connect_them(struct pair_of *p)
{
    int fds[2];

    MUST(channel_pair(fds, &err));
    p->peer = channel_new(p->rig.loop, fds[0], &handlers, p);
    channel_renew(front_egress_channel(p->egress), fds[1]);
}

static void before_run(struct rig *rig)
{
    struct pair_of *p = container_of(rig, struct pair_of, rig);

    p->egress = front_egress_new(rig->loop);
    front_egress_report_to(p->egress, rig->all);
    connect_them(p);
}

static void after_run(struct rig *rig)
{
    struct pair_of *p = container_of(rig, struct pair_of, rig);

    front_egress_free(p->egress);
    channel_free(p->peer);
    p->peer = NULL;
}

static int set_up(void **state)
{
    struct pair_of *p = calloc(1, sizeof *p);

    rig_make(&p->rig);
    pthread_mutex_init(&p->lock, NULL);
    p->rig.before_run = before_run;
    p->rig.after_run = after_run;
    rig_start(&p->rig);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct pair_of *p = *state;

    rig_drop(&p->rig);
    free(p);
    return 0;
}

/* The bound only ends a test that hangs. */
#define WAIT_UNTIL(condition)                                                \
    for (unsigned wait_ = 0; !(condition); wait_++) {                        \
        if (wait_ == 20000)                                                  \
            fail_msg("did not come true within 20 seconds: %s", #condition); \
        usleep(1000);                                                        \
    }

static bool has_taken(struct pair_of *p, unsigned count)
{
    pthread_mutex_lock(&p->lock);
    unsigned taken = p->taken;
    pthread_mutex_unlock(&p->lock);
    return taken >= count;
}

static void policies_arrive_in_the_order_in_which_they_were_asked_for(void **state)
{
    struct pair_of *p = *state;

    front_egress_send(p->egress, "ione", STR("first"));
    front_egress_send(p->egress, "itwo", STR("second"));
    MUST(front_egress_apply(p->egress, "ione", STR("third"), &err)); /* returns when it was taken */
    assert_int_equal(p->taken, 3);
    assert_string_equal(p->ids[0], "ione");
    assert_string_equal(p->policies[0], "first");
    assert_string_equal(p->ids[1], "itwo");
    assert_string_equal(p->policies[2], "third");
    front_egress_send(p->egress, "itwo", STR("fourth"));
    WAIT_UNTIL(has_taken(p, 4));
}

static void a_policy_that_egress_refuses_is_an_error_for_the_caller_that_waits(void **state)
{
    struct pair_of *p = *state;
    struct err err;

    p->refuses = true;
    front_egress_send(p->egress, "ione", STR("x")); /* only logged */
    assert_false(front_egress_apply(p->egress, "ione", STR("x"), &err));
    assert_string_equal(err.message, "a bad policy");
}

struct cut {
    struct loop_task task;
    struct pair_of *p;
    atomic_bool done;
};

static void cut_off(struct loop_task *task)
{
    struct cut *cut = container_of(task, struct cut, task);

    channel_free(take_ptr(&cut->p->peer));
    cut->done = true;
}

static void reconnect(struct loop_task *task)
{
    struct cut *cut = container_of(task, struct cut, task);

    connect_them(cut->p);
    cut->done = true;
}

static void on_loop(struct pair_of *p, void (*fn)(struct loop_task *task))
{
    struct cut cut = { .task.fn = fn, .p = p };

    loop_post(p->rig.loop, &cut.task);
    WAIT_UNTIL(cut.done);
}

static void while_egress_is_away_a_change_says_so_and_works_again_later(void **state)
{
    struct pair_of *p = *state;
    struct err err;

    on_loop(p, cut_off);
    front_egress_send(p->egress, "ione", STR("x")); /* front sends all again when egress is back */
    assert_false(front_egress_apply(p->egress, "ione", STR("x"), &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_non_null(strstr(err.message, "the new rules are stored and apply when it is back"));
    on_loop(p, reconnect);
    assert_true(front_egress_apply(p->egress, "ione", STR("y"), &err));
}

/* An egress that hangs: its end of the channel is open and nobody reads. */
static int silent_fd = -1;

static void hang(struct loop_task *task)
{
    struct cut *cut = container_of(task, struct cut, task);
    int fds[2];

    channel_free(take_ptr(&cut->p->peer));
    MUST(channel_pair(fds, &err));
    silent_fd = fds[0];
    channel_renew(front_egress_channel(cut->p->egress), fds[1]);
    cut->done = true;
}

static void wake_up(struct loop_task *task)
{
    struct cut *cut = container_of(task, struct cut, task);

    cut->p->peer = channel_new(cut->p->rig.loop, take_fd(&silent_fd), &handlers, cut->p);
    cut->done = true;
}

static unsigned policies_sent(struct rig *rig)
{
    pthread_mutex_lock(&rig->egress_lock);
    unsigned sent = rig->policies_sent;
    pthread_mutex_unlock(&rig->egress_lock);
    return sent;
}

static void policies_that_a_slow_egress_did_not_take_are_sent_again(void **state)
{
    struct pair_of *p = *state;
    struct err err;

    log_setup("test", LOG_ERROR);
    rig_stand();
    (void)rig_create(&p->rig);
    (void)rig_create(&p->rig);
    unsigned before = policies_sent(&p->rig);
    on_loop(p, hang);
    for (int i = 0; i < 5000; i++) /* far more than the channel takes */
        front_egress_send(p->egress, "ione", STR("x"));
    assert_false(front_egress_apply(p->egress, "ione", STR("last"), &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_non_null(strstr(err.message, "the new rules are stored and apply in a moment"));
    rig_turn(&p->rig, 900);
    assert_int_equal(policies_sent(&p->rig), before);
    rig_turn(&p->rig, 200);
    WAIT_UNTIL(policies_sent(&p->rig) == before + 2); /* those of both sandboxes */
    on_loop(p, wake_up);
    WAIT_UNTIL(has_taken(p, 1000));
    rig_turn(&p->rig, 10000);
    assert_int_equal(policies_sent(&p->rig), before + 2); /* once is enough */
    log_setup("test", LOG_INFO);
}

struct telling {
    struct loop_task task;
    struct pair_of *p;
    const struct flows_record *record;
    atomic_bool done;
};

static void tell(struct loop_task *task)
{
    struct telling *telling = container_of(task, struct telling, task);
    auto_buf struct buf flows = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    flows_pack(&flows, telling->record);
    channel_send_event(telling->p->peer, MESSAGE_FLOWS, buf_str(&flows), NULL, 0);
    telling->done = true;
}

static void reports_reach_the_sandboxs_log_and_metrics(void **state)
{
    struct pair_of *p = *state;
    struct sandbox_info info = rig_create(&p->rig);
    struct flows_record record = {
        .bytes_in = 10,
        .made = 1,
        .refused = 4,
        .refusal_count = 4,
        .refusals = {
            { .why = NET_RULE_DENY_RANGE, .port = 443, .count = 1, .text = STR("refused it") },
            { .why = NET_RULE_NOT_PUBLIC, .port = 80, .count = 1, .text = STR("refused that") },
            { .why = NET_RULE_NAME_NOT_ALLOWED, .name = STR("x.example"), .count = 1, .text = STR("no") },
            { .why = FLOWS_TOO_MANY, .port = 1, .count = 1, .text = STR("too many") },
        },
    };
    assert_true(net_address_parse(STR("198.51.100.7"), &record.refusals[0].to));
    assert_true(net_address_parse(STR("fc00::1"), &record.refusals[1].to));
    snprintf(record.id, sizeof record.id, "%.*s", STR_ARG(info.id));
    struct telling telling = { .task.fn = tell, .p = p, .record = &record };
    struct sandbox_log *lines;
    size_t count;

    loop_post(p->rig.loop, &telling.task);
    WAIT_UNTIL((sandbox_logs(p->rig.all, TEAM, info.id, 0, 0, &p->rig.arena, &lines, &count), count >= 4));
    WAIT_UNTIL(telling.done);
    CHECK_STR(lines[0].text, STR("refused it"));
    CHECK_STR(lines[0].rule, STR("denied range"));
    CHECK_STR(lines[0].destination, STR("198.51.100.7:443"));
    CHECK_STR(lines[1].destination, STR("[fc00::1]:80"));
    CHECK_STR(lines[2].destination, STR("x.example"));
    CHECK_STR(lines[3].rule, STR("too many connections"));
}

#define CASE_OF(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE_OF(policies_arrive_in_the_order_in_which_they_were_asked_for),
        CASE_OF(a_policy_that_egress_refuses_is_an_error_for_the_caller_that_waits),
        CASE_OF(while_egress_is_away_a_change_says_so_and_works_again_later),
        CASE_OF(policies_that_a_slow_egress_did_not_take_are_sent_again),
        CASE_OF(reports_reach_the_sandboxs_log_and_metrics),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
