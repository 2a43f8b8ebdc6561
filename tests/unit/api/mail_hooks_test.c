/*
 * Webhooks over fake actions, which are at the top: two inboxes have the list below, and each call is written down.
 */
#include "api/mail_hooks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "hand_clock.h"
#include "test.h"

#define INBOX "01HZZZZZZZZZZZZZZZZZZZZZZ1"
#define EMPTY "01HZZZZZZZZZZZZZZZZZZZZZZ2"
#define OTHER "01HZZZZZZZZZZZZZZZZZZZZZZ3"
#define MESSAGE "01HZZZZZZZZZZZZZZZZZZZZZZ9ZZZZZZZZZ1"

static struct {
    pthread_mutex_t lock;
    struct mail_webhook list[2];
    struct str events[2][3];
    unsigned list_count, looks, calls, fail, changes;
    bool never;        /* failures are for good */
    const char *hangs; /* the server of inboxes whose id begins so answers after LIMIT_HOOK_SLOW_MS… */
    bool is_let_go;    /* …and not before this is true */
    unsigned hanging;
    pthread_cond_t let_go;
    char last_body[512], last_headers[512], last_url[100], ids[8][MAIL_INBOX_ID_BYTES];
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER, .let_go = PTHREAD_COND_INITIALIZER };

bool action_hook_list(const struct actions *actions, const char *inbox_id, struct arena *arena,
                      struct mail_webhook **out, size_t *out_count, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake.lock);

    (void)actions;
    (void)err;
    fake.looks++;
    *out_count = strcmp(inbox_id, EMPTY) != 0 ? fake.list_count : 0;
    *out = ARENA_ARRAY(arena, struct mail_webhook, 2);
    memcpy(*out, fake.list, sizeof fake.list);
    return true;
}

unsigned action_hook_changes(void)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake.lock);

    return fake.changes;
}

void action_hook_sign(struct str secret, struct str body, char out[MAIL_HASH_TEXT_BYTES])
{
    (void)body;
    (void)snprintf(out, MAIL_HASH_TEXT_BYTES, "by-%.*s", STR_ARG(secret));
}

bool action_hook_call(const struct actions *actions, const char *inbox_id, const struct mail_webhook *webhook,
                      const struct mail_hook *hook, bool *out_again)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake.lock);
    int len = 0;

    (void)actions;
    (void)webhook;
    assert_string_not_equal(inbox_id, EMPTY);
    (void)snprintf(fake.last_url, sizeof fake.last_url, "%.*s", STR_ARG(hook->url));
    (void)snprintf(fake.last_body, sizeof fake.last_body, "%.*s", STR_ARG(hook->body));
    for (uint32_t i = 0; i + 1 < hook->header_count; i++)
        len += snprintf(fake.last_headers + len, sizeof fake.last_headers - (size_t)len, "%.*s: %.*s\n",
                        STR_ARG(hook->headers[i].key), STR_ARG(hook->headers[i].value));
    CHECK_STR(hook->headers[hook->header_count - 1].key, STR("X-Cloister-Delivery"));
    (void)snprintf(fake.ids[fake.calls % 8], sizeof fake.ids[0], "%.*s",
                   STR_ARG(hook->headers[hook->header_count - 1].value));
    fake.calls++;
    if (fake.hangs && strncmp(inbox_id, fake.hangs, strlen(fake.hangs)) == 0) {
        fake.hanging++;
        while (!fake.is_let_go)
            (void)pthread_cond_wait(&fake.let_go, &fake.lock);
        hand_clock_add(LIMIT_HOOK_SLOW_MS);
        fake.hanging--;
    }
    bool fine = !fake.fail;
    fake.fail -= fake.fail > 0;
    *out_again = !fine && !fake.never;
    return fine;
}

/* ---- the tests ---- */

struct world {
    struct loop *loop;
    struct workers *workers;
    struct mail_hooks *hooks;
};

static int set_up(void **state)
{
    static const struct actions actions;
    struct world *world = NEW(struct world);

    log_setup("test", LOG_ERROR + 1);
    hand_clock_start();
    world->loop = loop_new();
    world->workers = workers_new(world->loop, LIMIT_HOOKS + LIMIT_HOOK_LOOKS);
    world->hooks =
        mail_hooks_new(&(struct api_config){ .loop = world->loop, .workers = world->workers, .actions = &actions });
    fake.looks = fake.calls = fake.fail = fake.changes = 0;
    fake.never = fake.is_let_go = false;
    fake.hangs = NULL;
    fake.last_body[0] = fake.last_headers[0] = '\0';
    fake.events[0][0] = STR("email.received");
    fake.events[0][1] = STR("oversight.pending");
    fake.list[0] = (struct mail_webhook){ .id = "01HZZZZZZZZZZZZZZZZZZZZZZAZZZZZZZZZ1",
                                          .url = STR("https://one.example/"),
                                          .secret = STR("whsec_1"),
                                          .events = fake.events[0],
                                          .event_count = 2,
                                          .is_enabled = true };
    fake.events[1][0] = STR("email.received");
    fake.list[1] = fake.list[0];
    fake.list[1].id[MAIL_MESSAGE_ID_BYTES - 2] = '2';
    fake.list[1].url = STR("https://two.example/");
    fake.list[1].events = fake.events[1];
    fake.list[1].event_count = 1;
    fake.list[1].is_lobster = true;
    fake.list_count = 1;
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;

    workers_free(world->workers);
    mail_hooks_free(world->hooks);
    loop_free(world->loop);
    hand_clock_end();
    free(world);
    return 0;
}

static void stop(struct timer *timer)
{
    loop_stop_soon(timer->loop);
}

/* Until nothing has happened for a while. */
static void settle(struct world *world)
{
    for (int quiet = 0; quiet < 5; quiet++) {
        struct timer timer = { 0 };
        if (workers_busy(world->workers))
            quiet = 0;
        timer_set(&timer, world->loop, 2, stop);
        loop_run(world->loop);
        timer_clear(&timer);
    }
}

static void hear(struct world *world, enum mail_event_kind kind, const char *inbox_id)
{
    struct mail_event event = { .kind = kind, .message_id = MESSAGE, .at_us = 1700000000000000 };

    (void)snprintf(event.inbox_id, sizeof event.inbox_id, "%s", inbox_id);
    mail_hooks_heard(world->hooks, &event);
    settle(world);
}

static void names_of_both_services_are_known(void **state)
{
    (void)state;
    assert_true(mail_hooks_wants(STR("message.received"), MAIL_EVENT_RECEIVED));
    assert_true(mail_hooks_wants(STR("email.received"), MAIL_EVENT_RECEIVED));
    assert_true(mail_hooks_wants(STR("email.quarantined"), MAIL_EVENT_QUARANTINED));
    assert_true(mail_hooks_wants(STR("message.delivered"), MAIL_EVENT_SENT));
    assert_true(mail_hooks_wants(STR("oversight.pending"), MAIL_EVENT_PENDING));
    assert_true(mail_hooks_wants(STR("inbox.created"), MAIL_EVENT_INBOX_CREATED));
    assert_false(mail_hooks_wants(STR("message.received"), MAIL_EVENT_SENT));
    assert_false(mail_hooks_wants(STR("email.pending"), MAIL_EVENT_PENDING));
    assert_false(mail_hooks_wants(STR("received"), MAIL_EVENT_RECEIVED));
    assert_false(mail_hooks_wants(STR(""), MAIL_EVENT_RECEIVED));
}

static void a_call_has_the_shape_of_its_service(void **state)
{
    struct world *world = *state;

    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    assert_int_equal(fake.calls, 1);
    assert_string_equal(fake.last_url, "https://one.example/");
    assert_string_equal(fake.last_body, "{\"event\":\"email.received\",\"timestamp\":\"2023-11-14T22:13:20.000000Z\","
                                        "\"data\":{\"email_id\":\"em_" MESSAGE "\",\"mailbox_id\":\"" INBOX "\","
                                        "\"direction\":\"inbound\"}}");
    assert_string_equal(fake.last_headers,
                        "Content-Type: application/json\nX-MultiMail-Signature: sha256=by-whsec_1\n");
    fake.list[0] = fake.list[1];
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    assert_string_equal(fake.last_body, "{\"event\":\"email.received\",\"timestamp\":\"2023-11-14T22:13:20.000000Z\","
                                        "\"data\":{\"emailId\":\"eml_" MESSAGE "\",\"inboxId\":\"ibx_" INBOX "\","
                                        "\"direction\":\"inbound\"}}");
    assert_string_equal(fake.last_headers, "Content-Type: application/json\nX-LobsterMail-Signature: by-whsec_1\n");
}

static void only_those_that_subscribed_and_are_enabled_are_called(void **state)
{
    struct world *world = *state;

    fake.list_count = 2;
    hear(world, MAIL_EVENT_PENDING, INBOX);
    assert_int_equal(fake.calls, 1);
    hear(world, MAIL_EVENT_REJECTED, INBOX);
    assert_int_equal(fake.calls, 1);
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    assert_int_equal(fake.calls, 3);
    fake.list[0].is_enabled = false;
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    assert_int_equal(fake.calls, 4);
}

static void a_failed_call_is_repeated_after_longer_and_longer_pauses(void **state)
{
    struct world *world = *state;
    static const unsigned pauses_s[] = { 2, 10, 60 };

    fake.fail = 100;
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    assert_int_equal(fake.calls, 1);
    for (unsigned i = 0; i < COUNT_OF(pauses_s); i++) {
        hand_clock_add(pauses_s[i] * 1000 - 500);
        settle(world);
        assert_int_equal(fake.calls, 1 + i);
        hand_clock_add(500);
        settle(world);
        assert_int_equal(fake.calls, 2 + i);
        assert_string_equal(fake.ids[1 + i], fake.ids[0]);
    }
    hand_clock_add(1000000);
    settle(world);
    assert_int_equal(fake.calls, 4);
}

static void a_call_that_works_the_second_time_is_not_made_again(void **state)
{
    struct world *world = *state;

    fake.fail = 1;
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    hand_clock_add(2000);
    settle(world);
    assert_int_equal(fake.calls, 2);
    hand_clock_add(1000000);
    settle(world);
    assert_int_equal(fake.calls, 2);
}

static void a_place_that_may_not_be_called_is_not_tried_again(void **state)
{
    struct world *world = *state;

    fake.fail = 1;
    fake.never = true;
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    hand_clock_add(1000000);
    settle(world);
    assert_int_equal(fake.calls, 1);
}

static void a_webhook_that_was_removed_meanwhile_is_not_called(void **state)
{
    struct world *world = *state;

    fake.fail = 1;
    hear(world, MAIL_EVENT_RECEIVED, INBOX);
    fake.list_count = 0;
    hand_clock_add(2000);
    settle(world);
    assert_int_equal(fake.calls, 1);
}

static void an_inbox_without_webhooks_is_looked_at_once(void **state)
{
    struct world *world = *state;

    hear(world, MAIL_EVENT_RECEIVED, EMPTY);
    hear(world, MAIL_EVENT_RECEIVED, EMPTY);
    assert_int_equal(fake.looks, 1);
    fake.changes++; /* some inbox has got one */
    hear(world, MAIL_EVENT_RECEIVED, EMPTY);
    hear(world, MAIL_EVENT_RECEIVED, EMPTY);
    assert_int_equal(fake.looks, 2);
}

static void an_inbox_whose_calls_fail_leaves_room_for_others(void **state)
{
    enum { EVENTS = LIMIT_HOOKS_WAITING + 200 };
    struct world *world = *state;

    fake.fail = EVENTS;
    for (int i = 1; i <= EVENTS; i++) {
        struct mail_event event = { .kind = MAIL_EVENT_RECEIVED, .inbox_id = INBOX, .message_id = MESSAGE };
        mail_hooks_heard(world->hooks, &event);
        if (i % 50 == 0)
            settle(world);
    }
    assert_int_equal(fake.calls, EVENTS); /* each is tried, and then sleeps or gives way */
    hear(world, MAIL_EVENT_RECEIVED, OTHER);
    assert_int_equal(fake.calls, EVENTS + 1);
    hand_clock_add(2000);
    settle(world);
    assert_int_equal(fake.calls, EVENTS + 1 + LIMIT_HOOKS_EACH);
}

static unsigned hanging(void)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake.lock);

    return fake.hanging;
}

static unsigned calls(void)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&fake.lock);

    return fake.calls;
}

static void turn(struct world *world)
{
    struct timer timer = { 0 };

    timer_set(&timer, world->loop, 1, stop);
    loop_run(world->loop);
    timer_clear(&timer);
}

/* An event of each of these inboxes; returns when so many of their servers hang. */
static void hear_all(struct world *world, unsigned inboxes, unsigned hang)
{
    for (unsigned i = 0; i < inboxes; i++) {
        struct mail_event event = { .kind = MAIL_EVENT_RECEIVED, .message_id = MESSAGE };
        (void)snprintf(event.inbox_id, sizeof event.inbox_id, "01HZZZZZZZZZZZZZZZZZSL%04u", i);
        mail_hooks_heard(world->hooks, &event);
    }
    while (hanging() < hang)
        turn(world);
}

static void let_go(struct world *world)
{
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&fake.lock);
        fake.is_let_go = true;
        (void)pthread_cond_broadcast(&fake.let_go);
    }
    settle(world);
    fake.is_let_go = false;
}

static void servers_that_hang_delay_no_other_inbox(void **state)
{
    enum { QUICK = LIMIT_HOOKS - LIMIT_HOOKS_SLOW, MANY = 3 * LIMIT_HOOKS };
    struct world *world = *state;
    struct mail_event event = { .kind = MAIL_EVENT_RECEIVED, .inbox_id = OTHER, .message_id = MESSAGE };

    fake.hangs = "01HZZZZZZZZZZZZZZZZZSL";
    hear_all(world, MANY, QUICK); /* the first time nobody knows that they hang */
    let_go(world);
    assert_int_equal(calls(), MANY);
    hear_all(world, MANY, LIMIT_HOOKS_SLOW);
    mail_hooks_heard(world->hooks, &event);
    while (calls() < MANY + LIMIT_HOOKS_SLOW + 1)
        turn(world);
    assert_int_equal(hanging(), LIMIT_HOOKS_SLOW); /* while the other inbox was called, they did not go on */
    let_go(world);
    assert_int_equal(calls(), 2 * MANY + 1);
    fake.hangs = NULL; /* one quick call each, and they are like others */
    hear_all(world, MANY, 0);
    settle(world);
    fake.hangs = "01HZZZZZZZZZZZZZZZZZSL";
    hear_all(world, MANY, QUICK);
    assert_int_equal(hanging(), QUICK);
    let_go(world);
}

static void an_inbox_has_one_call_at_a_time(void **state)
{
    struct world *world = *state;
    struct mail_event event = { .kind = MAIL_EVENT_RECEIVED, .inbox_id = OTHER, .message_id = MESSAGE };

    fake.hangs = "01HZZZZZZZZZZZZZZZZZSL";
    for (int i = 0; i < 20; i++)
        hear_all(world, 1, 1);
    mail_hooks_heard(world->hooks, &event);
    while (calls() < 2)
        turn(world);
    assert_int_equal(hanging(), 1);
    let_go(world);
    assert_int_equal(calls(), 21);
}

static void inboxes_whose_servers_are_gone_for_hours_leave_room_for_others(void **state)
{
    enum { GONE = 2 * LIMIT_HOOKS_WAITING / LIMIT_HOOKS_EACH };
    struct world *world = *state;

    fake.fail = GONE * LIMIT_HOOKS_EACH;
    for (int i = 0; i < LIMIT_HOOKS_EACH; i++) {
        hear_all(world, GONE, 0);
        settle(world);
    }
    fake.fail = 0;
    unsigned before = calls();
    hear(world, MAIL_EVENT_RECEIVED, OTHER);
    assert_int_equal(calls(), before + 1);
}

#define HOOKS(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(names_of_both_services_are_known),
        HOOKS(a_call_has_the_shape_of_its_service),
        HOOKS(only_those_that_subscribed_and_are_enabled_are_called),
        HOOKS(a_failed_call_is_repeated_after_longer_and_longer_pauses),
        HOOKS(a_call_that_works_the_second_time_is_not_made_again),
        HOOKS(a_place_that_may_not_be_called_is_not_tried_again),
        HOOKS(a_webhook_that_was_removed_meanwhile_is_not_called),
        HOOKS(an_inbox_without_webhooks_is_looked_at_once),
        HOOKS(an_inbox_whose_calls_fail_leaves_room_for_others),
        HOOKS(an_inbox_has_one_call_at_a_time),
        HOOKS(servers_that_hang_delay_no_other_inbox),
        HOOKS(inboxes_whose_servers_are_gone_for_hours_leave_room_for_others),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
