#include "base/queue.h"

#include "test.h"

static struct queue_link links[4];

static void check_order(const struct queue *queue, const char *want)
{
    const struct queue_link *previous = NULL;

    for (const struct queue_link *at = queue->first; at; previous = at, at = at->next) {
        assert_ptr_equal(at->in, queue);
        assert_ptr_equal(at->previous, previous);
        assert_int_equal(at - links, *want++ - '0');
    }
    assert_int_equal(*want, '\0');
    assert_ptr_equal(queue->last, previous);
}

static void links_leave_from_anywhere_and_join_at_the_end(void **state)
{
    static const struct {
        int leaves;
        const char *left, *after; /* and when it has joined again */
    } steps[] = { { 1, "023", "0231" }, { 0, "231", "2310" }, { 0, "231", "2310" }, { 2, "310", "3102" } };
    struct queue queue = { 0 };

    (void)state;
    for (int i = 0; i < 4; i++)
        queue_join(&queue, &links[i]);
    check_order(&queue, "0123");
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct queue_link *link = &links[steps[i].leaves];
        queue_leave(link);
        assert_null(link->in);
        queue_leave(link); /* twice is fine */
        check_order(&queue, steps[i].left);
        queue_join(&queue, link);
        check_order(&queue, steps[i].after);
    }
    for (int i = 0; i < 4; i++)
        queue_leave(&links[i]);
    check_order(&queue, "");
}

static void joining_one_queue_leaves_the_other(void **state)
{
    struct queue a = { 0 }, b = { 0 };

    (void)state;
    queue_join(&a, &links[0]);
    queue_join(&a, &links[1]);
    queue_join(&b, &links[0]);
    check_order(&a, "1");
    check_order(&b, "0");
    queue_join(&b, &links[0]); /* the same again: it is the last now */
    check_order(&b, "0");
    queue_leave(&links[0]);
    queue_leave(&links[1]);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(links_leave_from_anywhere_and_join_at_the_end),
        CASE(joining_one_queue_leaves_the_other),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
