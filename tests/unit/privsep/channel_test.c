#include "privsep/channel.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "test.h"
#include "turn.h"

enum { TURN_MS = 20 };

/* Two ends on one loop: `near` asks, `far` answers. */
struct pair {
    struct loop *loop;
    struct channel *near, *far;
    int far_fd; /* when far is a bare socket instead */
    unsigned near_broken, far_broken;
    struct err why;
    /* far */
    bool hold;   /* do not answer */
    bool refuse; /* call the request malformed */
    unsigned requests, events;
    char seen[64];
    int seen_fd;
    /* near */
    unsigned answers;
    struct err failure;
    char got[64];
    int got_fd;
};

static void keep_text(char room[64], struct str text)
{
    assert_true(text.len < 64);
    memcpy(room, text.at, text.len);
    room[text.len] = '\0';
}

static bool far_request(void *context, struct channel *channel, enum message_type type, uint32_t id, struct str payload,
                        struct message_fds *fds, struct err *err)
{
    struct pair *pair = context;

    pair->requests++;
    keep_text(pair->seen, payload);
    if (fds->count)
        pair->seen_fd = take_fd(&fds->at[0]);
    if (pair->refuse)
        return err_set(err, ERR_INVALID, "nonsense");
    if (pair->hold)
        return true;
    if (str_eq(payload, STR("fail"))) {
        struct err why;
        (void)err_set(&why, ERR_CONFLICT, "not like that");
        channel_reply_error(channel, type, id, &why);
    } else {
        channel_reply(channel, type, id, STR("answer"), &pair->seen_fd, pair->seen_fd >= 0);
    }
    return true;
}

static bool far_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                      struct err *err)
{
    struct pair *pair = context;

    (void)err;
    assert_int_equal(type, MESSAGE_EXITED);
    keep_text(pair->seen, payload);
    if (fds->count)
        pair->seen_fd = take_fd(&fds->at[0]);
    pair->events++;
    return true;
}

static void note_near_broken(void *context, const struct err *why)
{
    struct pair *pair = context;

    pair->near_broken++;
    pair->why = *why;
}

static void note_far_broken(void *context, const struct err *why)
{
    struct pair *pair = context;

    pair->far_broken++;
    pair->why = *why;
}

static const struct channel_handlers near_handlers = { .broken = note_near_broken };
static const struct channel_handlers far_handlers = { far_request, far_event, note_far_broken };

static void answered(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct pair *pair = context;

    pair->answers++;
    if (err) {
        pair->failure = *err;
        return;
    }
    keep_text(pair->got, payload);
    if (fds->count)
        pair->got_fd = take_fd(&fds->at[0]);
}

static struct pair *pair_new(bool bare)
{
    struct pair *pair = NEW(struct pair);
    int fds[2];
    struct err err;

    pair->seen_fd = pair->got_fd = pair->far_fd = -1;
    pair->loop = loop_new();
    assert_true(channel_pair(fds, &err));
    pair->near = channel_new(pair->loop, fds[0], &near_handlers, pair);
    if (bare)
        pair->far_fd = fds[1];
    else
        pair->far = channel_new(pair->loop, fds[1], &far_handlers, pair);
    return pair;
}

static void pair_free(struct pair *pair)
{
    channel_free(pair->near);
    channel_free(pair->far);
    turn_for(pair->loop, TURN_MS);
    loop_free(pair->loop);
    fd_close(&pair->seen_fd);
    fd_close(&pair->got_fd);
    fd_close(&pair->far_fd);
    free(pair);
}

static void a_request_is_answered_once(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    channel_request(pair->near, MESSAGE_STOP, STR("please"), NULL, 0, answered, pair);
    assert_int_equal(pair->answers, 0); /* never from inside the asking */
    turn_for(pair->loop, TURN_MS);
    assert_string_equal(pair->seen, "please");
    assert_int_equal(pair->answers, 1);
    assert_string_equal(pair->got, "answer");
    assert_int_equal(pair->near_broken + pair->far_broken, 0);
    pair_free(pair);
}

static void an_error_arrives_as_it_was(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    channel_request(pair->near, MESSAGE_STOP, STR("fail"), NULL, 0, answered, pair);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->failure.kind, ERR_CONFLICT);
    assert_string_equal(pair->failure.message, "not like that");
    pair_free(pair);
}

static void descriptors_travel_both_ways(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);
    int pipe_fds[2];

    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    channel_request(pair->near, MESSAGE_DIAL, STR(""), &pipe_fds[1], 1, answered, pair);
    fd_close(&pipe_fds[1]); /* ours may go at once */
    turn_for(pair->loop, TURN_MS);
    assert_true(pair->got_fd >= 0);
    assert_int_equal(fcntl(pair->got_fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(write(pair->got_fd, "x", 1), 1);
    char byte;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    fd_close(&pipe_fds[0]);
    pair_free(pair);
}

static void events_arrive_and_want_no_answer(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    channel_send_event(pair->near, MESSAGE_EXITED, STR("sandbox1"), NULL, 0);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->events, 1);
    assert_string_equal(pair->seen, "sandbox1");
    pair_free(pair);
}

static void events_carry_descriptors(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);
    int pipe_fds[2];

    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    channel_send_event(pair->near, MESSAGE_EXITED, STR("sandbox1"), &pipe_fds[1], 1);
    fd_close(&pipe_fds[1]);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(write(pair->seen_fd, "x", 1), 1);
    fd_close(&pipe_fds[0]);
    pair_free(pair);
}

/* The far side is replaced, as a role that was restarted is. */
static void renew(struct pair *pair)
{
    int fds[2];
    struct err err;

    assert_true(channel_pair(fds, &err));
    channel_renew(pair->near, fds[0]);
    channel_free(pair->far);
    pair->far = channel_new(pair->loop, fds[1], &far_handlers, pair);
}

static void check_answered(struct pair *pair)
{
    unsigned before = pair->answers;

    pair->got[0] = '\0';
    channel_request(pair->near, MESSAGE_STOP, STR("please"), NULL, 0, answered, pair);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->answers, before + 1);
    assert_string_equal(pair->got, "answer");
}

static void a_channel_without_a_connection_fails_requests_until_it_is_renewed(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    channel_free(pair->near);
    turn_for(pair->loop, TURN_MS);
    pair->near = channel_new(pair->loop, -1, &near_handlers, pair);
    channel_request(pair->near, MESSAGE_STOP, STR("please"), NULL, 0, answered, pair);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->failure.kind, ERR_UNAVAILABLE);
    renew(pair);
    check_answered(pair);
    assert_int_equal(pair->near_broken, 0);
    pair_free(pair);
}

static void renewing_fails_what_waits_and_serves_what_comes(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    pair->hold = true;
    channel_request(pair->near, MESSAGE_STOP, STR("please"), NULL, 0, answered, pair);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->answers, 0);
    pair->hold = false;
    renew(pair); /* before near could notice that the old far side is gone */
    assert_int_equal(pair->answers, 1);
    assert_int_equal(pair->failure.kind, ERR_UNAVAILABLE);
    check_answered(pair);
    assert_int_equal(pair->near_broken, 0);
    channel_free(take_ptr(&pair->far)); /* and the new connection breaks like any other */
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->near_broken, 1);
    renew(pair);
    check_answered(pair);
    pair_free(pair);
}

static void renewing_a_channel_that_just_broke_keeps_the_new_connection(void **state)
{
    (void)state;
    struct pair *pair = pair_new(true);

    fd_close(&pair->far_fd);
    channel_send_event(pair->near, MESSAGE_EXITED, STR("x"), NULL, 0); /* breaks it; the handler is told later */
    renew(pair);
    check_answered(pair);
    assert_int_equal(pair->near_broken, 0);
    pair_free(pair);
}

static void a_channel_that_is_shut_is_not_renewed(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    channel_shut(pair->near);
    renew(pair);
    channel_request(pair->near, MESSAGE_STOP, STR("please"), NULL, 0, answered, pair);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->failure.kind, ERR_UNAVAILABLE);
    pair_free(pair);
}

static void a_malformed_message_breaks_the_channel_once(void **state)
{
    (void)state;
    static const struct str bad[] = { STR_INIT("x"), STR_INIT("\0\0\0\0\0\0\0"),
                                      STR_INIT("\x01\x00\x63\x00\x00\x00\x01"),
                                      /* a reply to nothing that was asked */
                                      STR_INIT("\x02\x00\x02\x00\x00\x00\x05") };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct pair *pair = pair_new(true);
        channel_request(pair->near, MESSAGE_LIST, STR(""), NULL, 0, answered, pair);
        assert_int_equal(send(pair->far_fd, bad[i].at, bad[i].len, 0), (ssize_t)bad[i].len);
        turn_for(pair->loop, TURN_MS);
        assert_int_equal(pair->near_broken, 1);
        assert_int_equal(pair->why.kind, ERR_INVALID);
        assert_int_equal(pair->answers, 1); /* who waits is told */
        assert_int_equal(pair->failure.kind, ERR_UNAVAILABLE);
        /* Asking a broken channel is not a crash. */
        channel_request(pair->near, MESSAGE_LIST, STR(""), NULL, 0, answered, pair);
        channel_send_event(pair->near, MESSAGE_EXITED, STR("x"), NULL, 0);
        turn_for(pair->loop, TURN_MS);
        assert_int_equal(pair->answers, 2);
        assert_int_equal(pair->near_broken, 1);
        pair_free(pair);
    }
}

static void a_handler_that_finds_nonsense_breaks_the_channel(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);

    pair->refuse = true;
    channel_request(pair->near, MESSAGE_STOP, STR("?"), NULL, 0, answered, pair);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->far_broken, 1);
    assert_int_equal(pair->near_broken, 1); /* and the other side sees it close */
    assert_int_equal(pair->failure.kind, ERR_UNAVAILABLE);
    pair_free(pair);
}

static void too_many_descriptors_are_closed_and_break_the_channel(void **state)
{
    (void)state;
    struct pair *pair = pair_new(true);
    char body[] = "\x04\x00\x07\x00\x00\x00\x00x";
    struct iovec piece = { .iov_base = body, .iov_len = sizeof body - 1 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(20 * sizeof(int))];
    } room = { 0 };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };
    int pipe_fds[2], fds[20];

    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        fds[i] = pipe_fds[1];
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    assert_true(sendmsg(pair->far_fd, &message, 0) > 0);
    fd_close(&pipe_fds[1]);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->near_broken, 1);
    /* Not one of the twenty is still open: the reading end sees the end. */
    char byte;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 0);
    fd_close(&pipe_fds[0]);
    pair_free(pair);
}

static void a_peer_that_does_not_read_makes_requests_fail_not_wait(void **state)
{
    (void)state;
    struct pair *pair = pair_new(true);
    char *large = mem_new(32768);
    unsigned asked = 0;

    while (asked < 5000) {
        channel_request(pair->near, MESSAGE_START, str_of(large, 32768), NULL, 0, answered, pair);
        asked++;
    }
    turn_for(pair->loop, TURN_MS);
    assert_true(pair->answers > 0 && pair->answers < asked); /* the rest waits in the queue and in the socket */
    assert_int_equal(pair->failure.kind, ERR_LIMIT);
    assert_int_equal(pair->near_broken, 0);
    fd_close(&pair->far_fd);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->answers, asked);
    free(large);
    pair_free(pair);
}

static void what_waited_in_the_queue_is_sent_later_in_order(void **state)
{
    (void)state;
    struct pair *pair = pair_new(true);
    char *room = mem_new(65536);
    char *large = mem_new(32768);

    for (uint32_t i = 0; i < 100; i++) {
        memcpy(large, &i, sizeof i);
        channel_request(pair->near, MESSAGE_START, str_of(large, 32768), NULL, 0, answered, pair);
    }
    for (uint32_t want = 0; want < 100;) {
        ssize_t n = recv(pair->far_fd, room, 65536, MSG_DONTWAIT);
        if (n < 0) {
            turn_for(pair->loop, TURN_MS);
            continue;
        }
        uint32_t got;
        assert_int_equal(n, MESSAGE_HEAD_BYTES + 32768);
        memcpy(&got, room + MESSAGE_HEAD_BYTES, sizeof got);
        assert_int_equal(got, want);
        want++;
    }
    free(room);
    free(large);
    pair_free(pair);
}

static void a_closed_peer_fails_what_waits(void **state)
{
    (void)state;
    struct pair *pair = pair_new(true);

    channel_request(pair->near, MESSAGE_LIST, STR(""), NULL, 0, answered, pair);
    fd_close(&pair->far_fd);
    turn_for(pair->loop, TURN_MS);
    assert_int_equal(pair->answers, 1);
    assert_int_equal(pair->failure.kind, ERR_UNAVAILABLE);
    assert_int_equal(pair->near_broken, 1);
    assert_int_equal(pair->why.kind, ERR_UNAVAILABLE);
    pair_free(pair);
}

struct caller {
    struct pair *pair;
    bool fine;
    struct channel_answer answer;
    struct err err;
};

static void *call(void *context)
{
    struct caller *caller = context;

    caller->fine = channel_call(caller->pair->near, MESSAGE_LIST, STR("who"), &caller->answer, &caller->err);
    loop_stop_soon(caller->pair->loop);
    return NULL;
}

static void a_worker_waits_for_its_answer(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);
    struct caller caller = { .pair = pair };
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, call, &caller), 0);
    loop_run(pair->loop);
    (void)pthread_join(thread, NULL);
    assert_true(caller.fine);
    CHECK_STR(str_of(caller.answer.payload, caller.answer.len), STR("answer"));
    channel_answer_done(&caller.answer);
    pair_free(pair);
}

static void *call_for_a_moment(void *context)
{
    struct caller *caller = context;

    caller->fine =
        channel_call_for(caller->pair->near, MESSAGE_LIST, STR("silence"), 20, &caller->answer, &caller->err);
    loop_stop_soon(caller->pair->loop);
    return NULL;
}

static void a_worker_waits_no_longer_than_it_wants(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);
    struct caller caller = { .pair = pair };
    pthread_t thread;

    pair->hold = true;
    assert_int_equal(pthread_create(&thread, NULL, call_for_a_moment, &caller), 0);
    loop_run(pair->loop);
    (void)pthread_join(thread, NULL);
    assert_false(caller.fine);
    assert_int_equal(caller.err.kind, ERR_TIMEOUT);
    pair_free(pair);
}

static void close_far(struct timer *timer);

struct closing {
    struct timer timer;
    struct pair *pair;
};

static void close_far(struct timer *timer)
{
    struct closing *closing = container_of(timer, struct closing, timer);

    channel_free(closing->pair->far);
    closing->pair->far = NULL;
}

static void a_worker_is_told_when_the_peer_goes(void **state)
{
    (void)state;
    struct pair *pair = pair_new(false);
    struct caller caller = { .pair = pair };
    struct closing closing = { .pair = pair };
    pthread_t thread;

    pair->hold = true;
    timer_set(&closing.timer, pair->loop, 30, close_far);
    assert_int_equal(pthread_create(&thread, NULL, call, &caller), 0);
    loop_run(pair->loop);
    (void)pthread_join(thread, NULL);
    assert_false(caller.fine);
    assert_int_equal(caller.err.kind, ERR_UNAVAILABLE);
    pair_free(pair);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_request_is_answered_once),
        CASE(an_error_arrives_as_it_was),
        CASE(descriptors_travel_both_ways),
        CASE(events_arrive_and_want_no_answer),
        CASE(events_carry_descriptors),
        CASE(a_channel_without_a_connection_fails_requests_until_it_is_renewed),
        CASE(renewing_fails_what_waits_and_serves_what_comes),
        CASE(renewing_a_channel_that_just_broke_keeps_the_new_connection),
        CASE(a_channel_that_is_shut_is_not_renewed),
        CASE(a_malformed_message_breaks_the_channel_once),
        CASE(a_handler_that_finds_nonsense_breaks_the_channel),
        CASE(too_many_descriptors_are_closed_and_break_the_channel),
        CASE(a_peer_that_does_not_read_makes_requests_fail_not_wait),
        CASE(what_waited_in_the_queue_is_sent_later_in_order),
        CASE(a_closed_peer_fails_what_waits),
        CASE(a_worker_waits_for_its_answer),
        CASE(a_worker_waits_no_longer_than_it_wants),
        CASE(a_worker_is_told_when_the_peer_goes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
