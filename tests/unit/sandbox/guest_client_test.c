#include "sandbox/guest_client.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../store/temp_store.h"
#include "base/clock.h"

struct pair_of_ends {
    int ours, theirs;
};

static struct pair_of_ends connect_ends(void)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    return (struct pair_of_ends){ fds[0], fds[1] };
}

static void close_ends(struct pair_of_ends *ends)
{
    close(ends->ours);
    if (ends->theirs >= 0)
        close(ends->theirs);
}

static const struct guestlink_setup small = { .sandbox_id = STR_INIT("ia"), .default_user = STR_INIT("user") };

static uint64_t soon(void)
{
    return clock_mono_ms() + 20;
}

static uint64_t late(void)
{
    return clock_mono_ms() + 60000;
}

static void a_silent_guest_is_a_timeout(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();

    MUST_FAIL(guest_setup(ends.ours, &small, false, soon(), &err), ERR_TIMEOUT);
    close_ends(&ends);
}

static void half_an_answer_is_a_timeout(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();

    assert_int_equal(send(ends.theirs, "\0\0\0\1", 4, 0), 4);
    MUST_FAIL(guest_setup(ends.ours, &small, false, soon(), &err), ERR_TIMEOUT);
    close_ends(&ends);
}

static void a_guest_that_closes_is_unavailable(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();

    close(ends.theirs);
    ends.theirs = -1;
    MUST_FAIL(guest_setup(ends.ours, &small, false, late(), &err), ERR_UNAVAILABLE);
    close_ends(&ends);
}

static void what_the_guest_objects_to_comes_back(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    auto_buf struct buf answer = buf_make(NULL, 4096);
    struct err objection, err;

    (void)err_set(&objection, ERR_CONFLICT, "there is no user");
    guestlink_write_error(&answer, &objection);
    assert_int_equal(send(ends.theirs, answer.data, answer.len, 0), answer.len);
    assert_false(guest_setup(ends.ours, &small, false, late(), &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_string_equal(err.message, "there is no user");
    close_ends(&ends);
}

static void a_nonsense_answer_is_refused(void **state)
{
    (void)state;
    static const struct str answers[] = {
        STR_INIT("\xff\xff\xff\xff"), /* larger than any message */
        STR_INIT("\0\0\0\0"),         /* no body at all */
        STR_INIT("\0\0\0\1\xee"),     /* no such type */
        STR_INIT("\0\0\0\2\x40x"),    /* OK with something behind it */
        STR_INIT("\0\0\0\1\x02"),     /* a PING is no answer */
    };

    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        struct pair_of_ends ends = connect_ends();
        struct err err;
        assert_int_equal(send(ends.theirs, answers[i].at, answers[i].len, 0), answers[i].len);
        if (guest_setup(ends.ours, &small, false, late(), &err))
            fail_msg("answer %zu was taken", i);
        assert_int_not_equal(err.kind, ERR_TIMEOUT);
        close_ends(&ends);
    }
}

static void *read_slowly(void *argument)
{
    int fd = *(int *)argument;
    auto_buf struct buf answer = buf_make(NULL, 64);
    char room[3000];
    size_t seen = 0;

    while (seen < 100 * 1000) {
        ssize_t n = recv(fd, room, sizeof room, 0);
        if (n <= 0)
            return NULL;
        seen += (size_t)n;
    }
    guestlink_write_simple(&answer, GUESTLINK_OK);
    if (send(fd, answer.data, answer.len, MSG_NOSIGNAL) < 0)
        return NULL;
    while (recv(fd, room, sizeof room, 0) > 0)
        ;
    return NULL;
}

static void a_large_environment_gets_through_a_small_buffer(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    static char value[100 * 1000];
    struct guestlink_env env = { STR("BIG"), str_of(value, sizeof value) };
    struct guestlink_setup setup = small;
    pthread_t thread;
    int little = 4096;

    memset(value, 'x', sizeof value);
    setup.env_count = 1;
    setup.envs = &env;
    setsockopt(ends.ours, SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
    assert_int_equal(pthread_create(&thread, NULL, read_slowly, &ends.theirs), 0);
    MUST(guest_setup(ends.ours, &setup, false, late(), &err));
    shutdown(ends.ours, SHUT_RDWR);
    pthread_join(thread, NULL);
    close_ends(&ends);
}

static void answer(int fd, enum guestlink_type type)
{
    auto_buf struct buf out = buf_make(NULL, 4096);
    struct guestlink_env env = { STR("A"), STR("1") };
    struct err err;

    (void)err_set(&err, ERR_INVALID, "no such message");
    if (type == GUESTLINK_READY)
        guestlink_write_ready(&out, &(struct guestlink_ready){ .env_count = 1, .envs = &env });
    else if (type == GUESTLINK_ERROR)
        guestlink_write_error(&out, &err);
    else
        guestlink_write_simple(&out, type);
    assert_int_equal(send(fd, out.data, out.len, 0), out.len);
}

static void a_guest_that_prepares_tells_its_environment(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    struct guestlink_ready ready;
    struct arena arena;
    struct err err;
    char said[5];

    arena_init(&arena);
    answer(ends.theirs, GUESTLINK_READY);
    assert_int_equal(guest_prepare(ends.ours, late(), &arena, &ready, &err), GUEST_YES);
    assert_int_equal(ready.env_count, 1);
    CHECK_STR(ready.envs[0].value, STR("1"));
    assert_int_equal(recv(ends.theirs, said, sizeof said, 0), 5);
    assert_memory_equal(said, "\0\0\0\1\6", 5);
    answer(ends.theirs, GUESTLINK_OK); /* is no READY */
    assert_int_equal(guest_prepare(ends.ours, late(), &arena, &ready, &err), GUEST_NO);
    answer(ends.theirs, GUESTLINK_ERROR);
    assert_int_equal(guest_prepare(ends.ours, late(), &arena, &ready, &err), GUEST_NO);
    assert_string_equal(err.message, "no such message");
    assert_int_equal(guest_prepare(ends.ours, soon(), &arena, &ready, &err), GUEST_SILENT);
    assert_int_equal(err.kind, ERR_TIMEOUT);
    arena_done(&arena);
    close_ends(&ends);
}

static void answer_warmed(int fd, const struct err *why)
{
    auto_buf struct buf out = buf_make(NULL, 4096);

    guestlink_write_warmed(&out, why);
    assert_int_equal(send(fd, out.data, out.len, 0), out.len);
}

static void a_guest_that_warms_up_says_so_or_why_not(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    struct err err, why;
    char said[5];

    answer_warmed(ends.theirs, NULL);
    assert_int_equal(guest_warm(ends.ours, late(), &err), GUEST_YES);
    assert_int_equal(recv(ends.theirs, said, sizeof said, 0), 5);
    assert_memory_equal(said, "\0\0\0\1\x08", 5);
    (void)err_set(&why, ERR_UNAVAILABLE, "there is no zygote");
    answer_warmed(ends.theirs, &why);
    assert_int_equal(guest_warm(ends.ours, late(), &err), GUEST_NO);
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_string_equal(err.message, "there is no zygote");
    answer(ends.theirs, GUESTLINK_ERROR); /* it is older than the message */
    assert_int_equal(guest_warm(ends.ours, late(), &err), GUEST_NO);
    assert_int_equal(err.kind, ERR_INVALID);
    answer(ends.theirs, GUESTLINK_OK); /* is no WARMED */
    assert_int_equal(guest_warm(ends.ours, late(), &err), GUEST_NO);
    assert_int_equal(guest_warm(ends.ours, soon(), &err), GUEST_SILENT);
    assert_int_equal(err.kind, ERR_TIMEOUT);
    close_ends(&ends);
}

static void a_setup_is_not_answered_by_a_late_warmed(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    struct err silence, why;

    assert_int_equal(guest_warm(ends.ours, soon(), &silence), GUEST_SILENT);
    answer_warmed(ends.theirs, NULL);
    MUST_FAIL(guest_setup(ends.ours, &small, false, soon(), &err), ERR_TIMEOUT);
    (void)err_set(&why, ERR_CONFLICT, "the sandbox was set up before");
    answer_warmed(ends.theirs, &why);
    answer(ends.theirs, GUESTLINK_OK);
    MUST(guest_setup(ends.ours, &small, false, late(), &err));
    close_ends(&ends);
}

static void a_guest_that_goes_on_says_so(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    struct err err;

    answer(ends.theirs, GUESTLINK_OK);
    assert_int_equal(guest_resumed(ends.ours, late(), &err), GUEST_YES);
    answer(ends.theirs, GUESTLINK_ERROR);
    assert_int_equal(guest_resumed(ends.ours, late(), &err), GUEST_NO);
    assert_int_equal(guest_resumed(ends.ours, soon(), &err), GUEST_SILENT);
    close(ends.theirs);
    ends.theirs = -1;
    assert_int_equal(guest_resumed(ends.ours, late(), &err), GUEST_SILENT);
    close_ends(&ends);
}

static void a_setup_after_a_restore_has_resumed_behind_it(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();
    char said[4096];

    answer(ends.theirs, GUESTLINK_OK);
    MUST(guest_setup(ends.ours, &small, true, late(), &err));
    ssize_t len = recv(ends.theirs, said, sizeof said, 0);
    assert_true(len > 5);
    assert_memory_equal(said + len - 5, "\0\0\0\1\7", 5);
    close_ends(&ends);
}

/* guestd may be in the guest's hands: it must not keep a worker, or fill its memory. */
static void a_guest_that_says_warmed_for_ever_is_refused(void **state)
{
    (void)state;
    struct pair_of_ends ends = connect_ends();

    for (int i = 0; i < 6; i++)
        answer_warmed(ends.theirs, NULL);
    MUST_FAIL(guest_setup(ends.ours, &small, false, late(), &err), ERR_INTERNAL);
    close_ends(&ends);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_silent_guest_is_a_timeout),
        CASE(half_an_answer_is_a_timeout),
        CASE(a_guest_that_closes_is_unavailable),
        CASE(what_the_guest_objects_to_comes_back),
        CASE(a_nonsense_answer_is_refused),
        CASE(a_large_environment_gets_through_a_small_buffer),
        CASE(a_guest_that_prepares_tells_its_environment),
        CASE(a_guest_that_warms_up_says_so_or_why_not),
        CASE(a_setup_is_not_answered_by_a_late_warmed),
        CASE(a_guest_that_says_warmed_for_ever_is_refused),
        CASE(a_guest_that_goes_on_says_so),
        CASE(a_setup_after_a_restore_has_resumed_behind_it),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
