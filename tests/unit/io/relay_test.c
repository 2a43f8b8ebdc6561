#include "io/relay.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "base/limits.h"
#include "io/splice.h"
#include "pump.h"

static struct loop *loop;
static struct relay *relay;
static struct stream *sides[2];
static struct peer peers[2];
static uint64_t moved[2];
static unsigned dones;
static bool may_go_on;

static void on_done(void *context)
{
    (void)context;
    dones++;
}

static bool on_moved(void *context, uint64_t from_a, uint64_t from_b)
{
    (void)context;
    moved[0] += from_a;
    moved[1] += from_b;
    return may_go_on;
}

static void begin(const struct relay_tuning *tuning)
{
    loop = loop_new();
    relay = relay_new(loop, on_done, NULL);
    if (tuning)
        relay_tune(relay, tuning);
    for (int i = 0; i < 2; i++) {
        int ends[2];
        tcp_pair(ends);
        peers[i] = peer_make(ends[0]);
        sides[i] = stream_new(loop, ends[1], 65536, &relay_events, relay);
    }
    moved[0] = moved[1] = dones = 0;
    may_go_on = true;
    relay_join(relay, sides[0], sides[1]);
}

static void finish(void)
{
    relay_free(relay);
    peer_done(&peers[0]);
    peer_done(&peers[1]);
    loop_free(loop);
}

static const struct relay_tuning bulk = { .moved = on_moved, .linger_ms = 60000, .may_splice = true };

static char *pattern(size_t size)
{
    char *bytes = malloc(size);

    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)((i * 2654435761u) >> 13);
    return bytes;
}

static void push(struct peer *peer, const char *bytes, size_t size, size_t *sent)
{
    ssize_t n = *sent < size ? send(peer->fd, bytes + *sent, MIN(size - *sent, (size_t)300000), MSG_NOSIGNAL) : 0;

    if (n > 0)
        *sent += (size_t)n;
}

static void what_each_side_says_reaches_the_other(void **state)
{
    (void)state;
    begin(&bulk);
    peer_say(&peers[0], STR("to the second"));
    peer_say(&peers[1], STR("to the first"));
    PUMP_UNTIL(loop, peer_heard(&peers[1], "to the second") && peer_heard(&peers[0], "to the first"));
    assert_int_equal(moved[0], 13);
    assert_int_equal(moved[1], 12);
    finish();
}

static void a_side_may_end_and_still_hear(void **state)
{
    (void)state;
    begin(&bulk);
    peer_say(&peers[0], STR("question"));
    shutdown(peers[0].fd, SHUT_WR);
    PUMP_UNTIL(loop, peer_is_closed(&peers[1]));
    assert_true(peers[1].ended && peer_heard(&peers[1], "question"));
    assert_int_equal(dones, 0);
    peer_say(&peers[1], STR("answer"));
    PUMP_UNTIL(loop, peer_heard(&peers[0], "answer"));
    shutdown(peers[1].fd, SHUT_WR);
    PUMP_UNTIL(loop, dones == 1);
    relay_free(relay);
    relay = NULL;
    PUMP_UNTIL(loop, peer_is_closed(&peers[0]));
    assert_false(peers[0].was_reset);
    finish();
}

static void reset(struct peer *peer)
{
    struct linger linger = { .l_onoff = 1 };

    assert_int_equal(setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    peer_close(peer);
}

static void a_reset_is_passed_on_as_a_reset(void **state)
{
    (void)state;
    begin(&bulk);
    reset(&peers[0]);
    PUMP_UNTIL(loop, dones == 1 && peer_is_closed(&peers[1]));
    assert_true(peers[1].was_reset);
    finish();
}

static void many_bytes_are_spliced_both_ways_and_arrive_whole(void **state)
{
    size_t size = 24 << 20, sent[2] = { 0 };
    bool spliced[2] = { false };

    (void)state;
    char *bytes = pattern(size);
    begin(&bulk);
    PUMP_UNTIL(loop, ({
                   for (int i = 0; i < 2; i++) {
                       push(&peers[i], bytes, size, &sent[i]);
                       spliced[i] = spliced[i] || splice_is_on(sides[i]);
                   }
                   peer_listen(&peers[0]) && peer_listen(&peers[1]) &&
                       peers[0].heard.len == size &&peers[1].heard.len == size;
               }));
    assert_true(spliced[0] && spliced[1]);
    assert_memory_equal(peers[0].heard.data, bytes, size);
    assert_memory_equal(peers[1].heard.data, bytes, size);
    /* Little at a time is copied again, and a splice that is off has no pipe. */
    for (int i = 0; i < 20; i++) {
        size_t before = peers[1].heard.len;
        peer_say(&peers[0], STR("x"));
        PUMP_UNTIL(loop, peer_listen(&peers[1]) && peers[1].heard.len == before + 1);
    }
    assert_false(splice_is_on(sides[0]));
    relay_account(relay);
    assert_int_equal(moved[0], size + 20);
    assert_int_equal(moved[1], size);
    free(bytes);
    finish();
}

static void the_end_of_a_spliced_side_is_passed_on(void **state)
{
    size_t size = 8 << 20, sent = 0;

    (void)state;
    char *bytes = pattern(size);
    begin(&bulk);
    PUMP_UNTIL(loop, (push(&peers[0], bytes, size, &sent), peer_listen(&peers[1]), sent == size));
    shutdown(peers[0].fd, SHUT_WR);
    PUMP_UNTIL(loop, peer_is_closed(&peers[1]));
    assert_true(peers[1].ended);
    assert_int_equal(peers[1].heard.len, size);
    assert_memory_equal(peers[1].heard.data, bytes, size);
    free(bytes);
    finish();
}

/* Fills the way from the first side to the second, whose peer does not read. */
static size_t fill(const char *bytes, size_t size)
{
    size_t sent = 0;

    for (size_t before = 1; sent != before;) {
        before = sent;
        for (int i = 0; i < 200; i++)
            push(&peers[0], bytes, size, &sent);
        pump_some(loop);
    }
    return sent;
}

static void a_slow_side_makes_the_other_wait(void **state)
{
    size_t size = 64 << 20;

    (void)state;
    char *bytes = pattern(size);
    begin(&bulk);
    size_t sent = fill(bytes, size);
    assert_true(sent < size);
    assert_true(stream_queued(sides[1]) <= LIMIT_SPLICE_PIPE_BYTES);
    PUMP_UNTIL(loop, (push(&peers[0], bytes, size, &sent), peer_listen(&peers[1]), peers[1].heard.len == size));
    assert_memory_equal(peers[1].heard.data, bytes, size);
    free(bytes);
    finish();
}

static void an_owner_gets_as_many_pipes_as_are_free_for_all(void **state)
{
    size_t size = 64 << 20, sent;
    uint32_t share = LIMIT_SPLICE_PIPES - 1;
    struct relay_tuning tuning = bulk;

    (void)state;
    char *bytes = pattern(size);
    tuning.splice_share = &share;
    begin(&tuning);
    sent = fill(bytes, size);
    assert_true(splice_is_on(sides[0]));
    assert_int_equal(share, LIMIT_SPLICE_PIPES); /* it holds one while its taker is slow… */
    PUMP_UNTIL(loop, (push(&peers[0], bytes, size, &sent), peer_listen(&peers[1]), peers[1].heard.len == size));
    assert_memory_equal(peers[1].heard.data, bytes, size);
    assert_int_equal(share, LIMIT_SPLICE_PIPES - 1); /* …and has given it back */
    finish();

    /* One more would be more than are free. */
    share = LIMIT_SPLICE_PIPES;
    begin(&tuning);
    sent = fill(bytes, size);
    assert_false(splice_is_on(sides[0]));
    assert_int_equal(share, LIMIT_SPLICE_PIPES);
    PUMP_UNTIL(loop, (push(&peers[0], bytes, size, &sent), peer_listen(&peers[1]), peers[1].heard.len == size));
    assert_memory_equal(peers[1].heard.data, bytes, size);
    finish();

    /* A relay that is cut in the middle gives its pipe back, too. */
    share = 0;
    begin(&tuning);
    (void)fill(bytes, size);
    assert_int_equal(share, 1);
    finish();
    assert_int_equal(share, 0);
    free(bytes);
}

static void without_pipes_bytes_are_copied(void **state)
{
    size_t size = 8 << 20, sent = 0;
    struct rlimit before, none = { 0 };

    (void)state;
    char *bytes = pattern(size);
    begin(&bulk);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    PUMP_UNTIL(loop, (push(&peers[0], bytes, size, &sent), peer_listen(&peers[1]), peers[1].heard.len == size));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_memory_equal(peers[1].heard.data, bytes, size);
    free(bytes);
    finish();
}

static void a_relay_that_may_not_go_on_waits_for_resume(void **state)
{
    size_t size = 8 << 20, sent = 0;

    (void)state;
    char *bytes = pattern(size);
    begin(&bulk);
    may_go_on = false;
    for (int i = 0; i < 50; i++) {
        push(&peers[0], bytes, size, &sent);
        pump_turn(loop);
        peer_listen(&peers[1]);
    }
    assert_true(moved[0] > 0 && moved[0] < 2 << 20);
    assert_int_equal(peers[1].heard.len, moved[0]);
    may_go_on = true;
    relay_resume(relay);
    PUMP_UNTIL(loop, (push(&peers[0], bytes, size, &sent), peer_listen(&peers[1]), peers[1].heard.len == size));
    assert_memory_equal(peers[1].heard.data, bytes, size);
    free(bytes);
    finish();
}

static void after_one_end_a_quiet_relay_is_over(void **state)
{
    (void)state;
    hand_clock_start();
    hand_clock_stand();
    begin(&(struct relay_tuning){ .linger_ms = 5000 });
    shutdown(peers[0].fd, SHUT_WR);
    PUMP_UNTIL(loop, peer_is_closed(&peers[1]));
    hand_clock_add(4000);
    pump_some(loop);
    assert_int_equal(dones, 0);
    hand_clock_add(2000);
    PUMP_UNTIL(loop, dones == 1);
    PUMP_UNTIL(loop, peer_is_closed(&peers[0]));
    assert_true(peers[0].was_reset); /* it still waited for something */
    finish();
    hand_clock_end();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(without_pipes_bytes_are_copied), /* first: later the pool has some */
        CASE(what_each_side_says_reaches_the_other),
        CASE(a_side_may_end_and_still_hear),
        CASE(a_reset_is_passed_on_as_a_reset),
        CASE(many_bytes_are_spliced_both_ways_and_arrive_whole),
        CASE(the_end_of_a_spliced_side_is_passed_on),
        CASE(a_slow_side_makes_the_other_wait),
        CASE(an_owner_gets_as_many_pipes_as_are_free_for_all),
        CASE(a_relay_that_may_not_go_on_waits_for_resume),
        CASE(after_one_end_a_quiet_relay_is_over),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
