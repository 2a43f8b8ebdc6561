/*
 * Who hears what: listeners of inboxes, and the pause before the same answer again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/mail_events.h"
#include "base/mem.h"

#define ONE "01JMXK9F2A0000000000000001"
#define TWO "01JMXK9F2A0000000000000002"

struct ear {
    struct mail_listener listener;
    struct mail_events *events;
    unsigned heard;
    struct ear *frees; /* leaves, and is freed, when this one hears something */
    bool leaves, rejoins;
};

static void on_heard(struct mail_listener *listener, const struct mail_event *event)
{
    struct ear *ear = container_of(listener, struct ear, listener);

    (void)event;
    ear->heard++;
    if (ear->frees) {
        mail_events_leave(ear->events, &ear->frees->listener);
        free(ear->frees);
        ear->frees = NULL;
    }
    if (ear->leaves)
        mail_events_leave(ear->events, &ear->listener);
    if (ear->rejoins)
        assert_true(mail_events_listen(ear->events, ONE, &ear->listener));
}

static struct ear *listen_to(struct mail_events *events, const char *inbox_id)
{
    struct ear *ear = NEW(struct ear);

    ear->events = events;
    ear->listener.heard = on_heard;
    assert_true(mail_events_listen(events, inbox_id, &ear->listener));
    return ear;
}

static void tell(struct mail_events *events, const char *inbox_id)
{
    struct mail_event event = { .kind = MAIL_EVENT_RECEIVED };

    strcpy(event.inbox_id, inbox_id);
    mail_events_tell(events, &event);
}

static void a_listener_hears_its_inbox_once_and_no_other(void **state)
{
    struct mail_events *events = mail_events_new();
    struct ear *a = listen_to(events, ONE), *b = listen_to(events, ONE), *c = listen_to(events, TWO);

    (void)state;
    tell(events, ONE);
    assert_int_equal(a->heard, 1);
    assert_int_equal(b->heard, 1);
    assert_int_equal(c->heard, 0);
    mail_events_leave(events, &a->listener);
    mail_events_leave(events, &a->listener); /* not again */
    tell(events, ONE);
    assert_int_equal(a->heard, 1);
    assert_int_equal(b->heard, 2);
    mail_events_free(events); /* b and c still listen */
    free(a);
    free(b);
    free(c);
}

static void a_listener_may_leave_rejoin_or_take_others_with_it(void **state)
{
    struct mail_events *events = mail_events_new();
    struct ear *a = listen_to(events, ONE), *b = listen_to(events, ONE), *c = listen_to(events, ONE);

    (void)state;
    a->frees = b; /* the next one */
    a->leaves = a->rejoins = true;
    tell(events, ONE);
    assert_int_equal(a->heard, 1);
    assert_int_equal(c->heard, 1);
    a->rejoins = false;
    c->leaves = true;
    tell(events, ONE);
    assert_int_equal(a->heard, 2);
    assert_int_equal(c->heard, 2);
    tell(events, ONE); /* to nobody */
    assert_int_equal(a->heard + c->heard, 4);
    mail_events_free(events);
    free(a);
    free(c);
}

static void an_inbox_has_only_so_many_listeners(void **state)
{
    struct mail_events *events = mail_events_new();
    struct ear *ears[LIMIT_MAIL_LISTENERS_EACH], one_more = { .listener.heard = on_heard };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ears); i++)
        ears[i] = listen_to(events, ONE);
    assert_false(mail_events_listen(events, ONE, &one_more.listener));
    mail_events_leave(events, &one_more.listener);
    assert_true(mail_events_listen(events, TWO, &one_more.listener)); /* others are not affected */
    mail_events_leave(events, &ears[3]->listener);
    mail_events_leave(events, &one_more.listener);
    assert_true(mail_events_listen(events, ONE, &one_more.listener));
    mail_events_free(events);
    for (size_t i = 0; i < COUNT_OF(ears); i++)
        free(ears[i]);
}

static void the_count_tells_that_there_was_something(void **state)
{
    struct mail_events *events = mail_events_new();
    uint64_t before = mail_events_count(events, ONE);

    (void)state;
    assert_int_equal(mail_events_count(events, ONE), before);
    tell(events, ONE);
    assert_int_not_equal(mail_events_count(events, ONE), before);
    mail_events_free(events);
}

static void only_the_same_answer_to_the_same_question_pauses(void **state)
{
    struct mail_events *events = mail_events_new();
    struct str q = STR("key /poll?since=1"), other = STR("key /poll?since=2");

    (void)state;
    assert_int_equal(mail_events_pause_ms(events, q, STR("a"), 1000), 0);
    assert_true(mail_events_pause_ms(events, q, STR("a"), 1001) >= 500);
    assert_true(mail_events_pause_ms(events, q, STR("a"), 1600) >= 500);
    assert_int_equal(mail_events_pause_ms(events, q, STR("b"), 1601), 0);
    assert_int_equal(mail_events_pause_ms(events, other, STR("b"), 1602), 0);
    assert_int_equal(mail_events_pause_ms(events, q, STR("b"), 1000000), 0); /* long ago */
    mail_events_free(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listener_hears_its_inbox_once_and_no_other),
        cmocka_unit_test(a_listener_may_leave_rejoin_or_take_others_with_it),
        cmocka_unit_test(an_inbox_has_only_so_many_listeners),
        cmocka_unit_test(the_count_tells_that_there_was_something),
        cmocka_unit_test(only_the_same_answer_to_the_same_question_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
