/* Front's end of a pull, against a child that says what these tests want: everything is in the socket before front reads. */
#include "template/pull.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "privsep/frame.h"
#include "test.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

enum { MS = 2000 };

static struct {
    int child, front;
    struct arena arena;
    unsigned lines;
    bool is_cancelled;
    const char *have;
    unsigned given; /* layers */
    bool wants_layers, is_enough;
    unsigned refusals; /* that a child is refused: there are too many */
    bool goes_on;      /* the child does not end its side */
    atomic_bool has_ended;
} rig;

static int set_up(void **state)
{
    int pair[2];

    (void)state;
    memset(&rig, 0, sizeof rig);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    rig.child = pair[0];
    rig.front = pair[1];
    arena_init(&rig.arena);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fd_close(&rig.child);
    fd_close(&rig.front);
    arena_done(&rig.arena);
    return 0;
}

/* ---- the child ---- */

static void tell(const struct buf *message, int fd)
{
    struct err err;

    assert_false(message->overflowed);
    assert_true(frame_write_fd(rig.child, buf_str(message), fd, MS, &err));
}

static void tell_chains(uint32_t count)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct pull_layer layers[2] = { { .diff_hex = HEX_A, .chain_hex = HEX_A, .size = 5 },
                                    { .diff_hex = HEX_B, .chain_hex = HEX_B, .size = 6 } };

    pull_chains_pack(&message, layers, count);
    tell(&message, -1);
}

static void tell_layer(uint32_t number, bool has_file)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    auto_close int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    pull_layer_pack(&message, number);
    tell(&message, has_file ? fd : -1);
}

static void tell_said(struct str line)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);

    pull_said_pack(&message, line);
    tell(&message, -1);
}

static void tell_done(void)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct str envs[] = { STR("A=b") };

    pull_done_pack(&message,
                   &(struct pull_done){ .reference_hex = HEX_A, .digest_hex = HEX_B, .env_count = 1, .envs = envs });
    tell(&message, -1);
}

/* ---- front ---- */

static bool open_child(void *context, int *out_fd, struct err *err)
{
    (void)context;
    if (rig.refusals && rig.refusals--)
        return err_set(err, ERR_LIMIT, "too many pulls at once; try again in a moment");
    *out_fd = take_fd(&rig.front);
    return true;
}

static bool has_chain(void *context, const char chain_hex[65])
{
    (void)context;
    return rig.have && strcmp(chain_hex, rig.have) == 0;
}

static void said(void *context, struct str line)
{
    (void)context;
    if (!str_eq(line, STR("Waiting until other pulls have ended")))
        CHECK_STR(line, STR("a line"));
    rig.lines++;
}

static bool cancelled(void *context)
{
    (void)context;
    return rig.is_cancelled;
}

static bool on_layer(void *context, const struct pulled *so_far, uint32_t number)
{
    (void)context;
    assert_int_equal(number, rig.given++);
    assert_string_equal(so_far->layers[number].diff_hex, number ? HEX_B : HEX_A);
    if (number == 0 && rig.have)
        assert_int_equal(so_far->layers[0].fd, -1);
    else
        assert_true(so_far->layers[number].fd >= 0);
    return !rig.is_enough;
}

static bool pull(struct pulled *out, struct err *err)
{
    struct puller *puller = puller_new(&(struct puller_config){ .open = open_child });
    const struct pull_want want = { .image = STR("python:3"),
                                    .architecture = "amd64",
                                    .has_chain = has_chain,
                                    .said = said,
                                    .cancelled = cancelled,
                                    .layer = rig.wants_layers ? on_layer : NULL };
    if (!rig.goes_on)
        (void)shutdown(rig.child, SHUT_WR);
    bool fine = puller_pull(puller, &want, &rig.arena, out, err);

    puller_free(puller);
    return fine;
}

/* Busy for a while when front has closed its side. */
static void *end_late(void *context)
{
    char room[4096] = { 0 };

    while (recv(rig.child, room, sizeof room, 0) > 0)
        ;
    (void)!send(rig.child, room, sizeof room, MSG_NOSIGNAL); /* nobody reads it */
    (void)usleep(300000);
    atomic_store(&rig.has_ended, true);
    (void)shutdown(rig.child, SHUT_WR);
    return context;
}

/* A pull that fails before the child ends its side. */
static void fail_with_late_child(struct err *err)
{
    struct pulled pulled;
    pthread_t child;

    rig.goes_on = true;
    assert_int_equal(pthread_create(&child, NULL, end_late, NULL), 0);
    assert_false(pull(&pulled, err));
    bool has_ended = atomic_load(&rig.has_ended);
    assert_int_equal(pthread_join(child, NULL), 0);
    assert_true(has_ended);
}

static void check_nonsense(void)
{
    struct pulled pulled;
    struct err err;

    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
}

static void a_pull_gives_files_digests_and_variables(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    rig.have = HEX_A;
    tell_said(STR("a line"));
    tell_chains(2);
    tell_layer(1, true);
    tell_said(STR("a line"));
    tell_done();
    assert_true(pull(&pulled, &err));
    assert_int_equal(rig.lines, 2);
    assert_string_equal(pulled.reference_hex, HEX_A);
    assert_string_equal(pulled.digest_hex, HEX_B);
    assert_int_equal(pulled.layer_count, 2);
    assert_int_equal(pulled.layers[0].fd, -1);
    assert_int_equal(pulled.layers[0].size, 5);
    assert_true(pulled.layers[1].fd >= 0);
    CHECK_STR(pulled.envs[0], STR("A=b"));
    int fd = pulled.layers[1].fd;
    pulled_done(&pulled);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* closed */
}

static void layers_are_given_lowest_first(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    rig.wants_layers = true;
    tell_chains(2);
    tell_layer(1, true);
    tell_layer(0, true);
    tell_done();
    assert_true(pull(&pulled, &err));
    assert_int_equal(rig.given, 2);
    assert_int_equal(pulled.layer_count, 2);
    assert_int_equal(pulled.layers[0].fd, -1); /* nobody needs them any more */
    assert_int_equal(pulled.layers[1].fd, -1);
    pulled_done(&pulled);
}

static void a_layer_that_is_here_is_given_too(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    rig.wants_layers = true;
    rig.have = HEX_A;
    tell_chains(2);
    tell_layer(1, true);
    tell_done();
    assert_true(pull(&pulled, &err));
    assert_int_equal(rig.given, 2);
    pulled_done(&pulled);
}

static void an_error_comes_before_layers_that_wait(void **state)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct pulled pulled;
    struct err why, err;

    (void)state;
    rig.wants_layers = true;
    tell_chains(2);
    tell_layer(0, true);
    (void)err_set(&why, ERR_UNAVAILABLE, "the registry is gone");
    pull_failed_pack(&message, &why);
    tell(&message, -1);
    assert_false(pull(&pulled, &err));
    assert_string_equal(err.message, "the registry is gone");
    assert_int_equal(rig.given, 0);
}

static void who_takes_layers_can_end_the_pull(void **state)
{
    struct err err;

    (void)state;
    rig.wants_layers = rig.is_enough = true;
    tell_chains(2);
    tell_layer(0, true);
    fail_with_late_child(&err);
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_int_equal(rig.given, 1);
}

static void a_layer_that_was_given_does_not_come_again(void **state)
{
    (void)state;
    rig.wants_layers = true;
    tell_chains(2);
    tell_layer(0, true);
    tell_layer(0, true);
    check_nonsense();
}

static void an_archive_goes_to_the_child_as_it_is(void **state)
{
    struct puller *puller = puller_new(&(struct puller_config){ .open = open_child });
    auto_close int archive = open("/dev/zero", O_RDONLY | O_CLOEXEC), came = -1;
    const struct pull_want want = {
        .image = STR(""), .architecture = "amd64", .is_archive = true, .archive_fd = archive
    };
    auto_free char *bytes = NULL;
    struct pulled pulled;
    struct pull_ask ask;
    struct stat sent, got;
    struct err err;
    size_t len;

    (void)state;
    tell_chains(1);
    tell_layer(0, true);
    tell_done();
    assert_true(puller_pull(puller, &want, &rig.arena, &pulled, &err));
    pulled_done(&pulled);
    puller_free(puller);
    assert_true(frame_read_fd(rig.child, LIMIT_PULL_MESSAGE_BYTES, MS, &bytes, &len, &came, &err));
    assert_true(pull_ask_unpack(str_of(bytes, len), &ask, &err));
    assert_true(ask.is_archive);
    assert_int_equal(ask.image.len, 0);
    assert_int_equal(fstat(archive, &sent), 0);
    assert_int_equal(fstat(came, &got), 0);
    assert_int_equal(sent.st_ino, got.st_ino);
}

static void a_layer_that_is_missing_is_noticed(void **state)
{
    (void)state;
    tell_chains(2);
    tell_layer(0, true);
    tell_done();
    check_nonsense();
}

static void a_layer_before_the_list_is_refused(void **state)
{
    (void)state;
    tell_layer(0, true);
    check_nonsense();
}

static void a_layer_out_of_range_is_refused(void **state)
{
    (void)state;
    tell_chains(1);
    tell_layer(1, true);
    check_nonsense();
}

static void a_layer_comes_once(void **state)
{
    (void)state;
    tell_chains(1);
    tell_layer(0, true);
    tell_layer(0, true);
    check_nonsense();
}

static void two_lists_are_refused(void **state)
{
    (void)state;
    tell_chains(1);
    tell_chains(2);
    check_nonsense();
}

static void an_end_without_layers_is_refused(void **state)
{
    (void)state;
    tell_done();
    check_nonsense();
}

static void bytes_that_are_no_message_are_refused(void **state)
{
    struct err err;

    (void)state;
    assert_true(frame_write(rig.child, STR("\x63garbage"), MS, &err));
    check_nonsense();
}

static void a_file_that_got_lost_is_said(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    tell_chains(1);
    tell_layer(0, false);
    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
}

static void a_child_that_dies_is_noticed(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    tell_chains(1);
    tell_layer(0, true);
    (void)shutdown(rig.child, SHUT_WR);
    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_string_equal(err.message, "the process that pulls the image has ended; try again");
}

static void a_child_that_dies_in_the_middle_of_a_message_is_noticed(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    tell_chains(1);
    assert_int_equal(write(rig.child, "\0\0\0\x09half", 8), 8);
    (void)shutdown(rig.child, SHUT_WR);
    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_string_equal(err.message, "the process that pulls the image has ended; try again");
}

static void the_childs_error_is_ours(void **state)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct pulled pulled;
    struct err why, err;

    (void)state;
    (void)err_set(&why, ERR_NOT_FOUND, "image 'x' not found");
    pull_failed_pack(&message, &why);
    tell(&message, -1);
    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_string_equal(err.message, "image 'x' not found");
}

static void a_pull_can_be_cancelled(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    rig.is_cancelled = true;
    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
}

static void a_pull_that_is_cancelled_ends_when_its_child_has(void **state)
{
    struct err err;

    (void)state;
    rig.is_cancelled = true;
    fail_with_late_child(&err);
    assert_int_equal(err.kind, ERR_CONFLICT);
}

static void a_pull_waits_while_there_are_too_many(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    rig.refusals = 2;
    tell_chains(1);
    tell_layer(0, true);
    tell_done();
    assert_true(pull(&pulled, &err));
    assert_int_equal(rig.lines, 1); /* it is said once */
    pulled_done(&pulled);
}

static void a_pull_that_waits_can_be_cancelled(void **state)
{
    struct pulled pulled;
    struct err err;

    (void)state;
    rig.refusals = 1000;
    rig.is_cancelled = true;
    assert_false(pull(&pulled, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(rig.refusals > 900);
}

static void a_reference_may_be_a_template(void **state)
{
    struct puller *puller =
        puller_new(&(struct puller_config){ .open = open_child, .options = { .images = STR("python=template:mine") } });
    struct str name;
    struct err err;

    (void)state;
    assert_true(puller_template(puller, STR("python:3"), &rig.arena, &name, &err));
    CHECK_STR(name, STR("mine"));
    assert_true(puller_template(puller, STR("e2bdev/base"), &rig.arena, &name, &err));
    CHECK_STR(name, STR("base"));
    assert_true(puller_template(puller, STR("node"), &rig.arena, &name, &err));
    CHECK_STR(name, STR(""));
    assert_false(puller_template(puller, STR("not a reference"), &rig.arena, &name, &err));
    puller_free(puller);
}

static bool stock(bool removes, struct download_total *out, struct err *err)
{
    struct puller *puller = puller_new(&(struct puller_config){ .open = open_child });
    bool fine = puller_stock(puller, removes, out, err);

    puller_free(puller);
    return fine;
}

static void a_child_says_how_much_was_downloaded(void **state)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    auto_free char *asked = NULL;
    struct download_total total;
    bool removes = false;
    struct err err;
    size_t len;

    (void)state;
    pull_stocked_pack(&message, 3, 4096);
    tell(&message, -1);
    assert_true(stock(true, &total, &err));
    assert_int_equal(total.count, 3);
    assert_int_equal(total.bytes, 4096);
    assert_true(frame_read(rig.child, LIMIT_PULL_MESSAGE_BYTES, MS, &asked, &len, &err));
    assert_true(pull_stock_unpack(str_of(asked, len), &removes, &err));
    assert_true(removes);
}

static void a_child_says_why_it_cannot_tell(void **state)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);
    struct download_total total;
    struct err why = { 0 }, err;

    (void)state;
    (void)err_set(&why, ERR_UNAVAILABLE, "there is no directory");
    pull_failed_pack(&message, &why);
    tell(&message, -1);
    assert_false(stock(false, &total, &err));
    assert_string_equal(err.message, "there is no directory");
}

static void an_answer_to_another_question_is_refused(void **state)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_PULL_MESSAGE_BYTES);

    (void)state;
    pull_stocked_pack(&message, 3, 4096);
    tell(&message, -1);
    check_nonsense();
}

int main(void)
{
#define PULL_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        PULL_CASE(a_pull_gives_files_digests_and_variables),
        PULL_CASE(layers_are_given_lowest_first),
        PULL_CASE(a_layer_that_is_here_is_given_too),
        PULL_CASE(an_error_comes_before_layers_that_wait),
        PULL_CASE(who_takes_layers_can_end_the_pull),
        PULL_CASE(a_layer_that_was_given_does_not_come_again),
        PULL_CASE(an_archive_goes_to_the_child_as_it_is),
        PULL_CASE(a_layer_that_is_missing_is_noticed),
        PULL_CASE(a_layer_before_the_list_is_refused),
        PULL_CASE(a_layer_out_of_range_is_refused),
        PULL_CASE(a_layer_comes_once),
        PULL_CASE(two_lists_are_refused),
        PULL_CASE(an_end_without_layers_is_refused),
        PULL_CASE(bytes_that_are_no_message_are_refused),
        PULL_CASE(a_file_that_got_lost_is_said),
        PULL_CASE(a_child_that_dies_is_noticed),
        PULL_CASE(a_child_that_dies_in_the_middle_of_a_message_is_noticed),
        PULL_CASE(the_childs_error_is_ours),
        PULL_CASE(a_pull_can_be_cancelled),
        PULL_CASE(a_pull_that_is_cancelled_ends_when_its_child_has),
        PULL_CASE(a_pull_waits_while_there_are_too_many),
        PULL_CASE(a_pull_that_waits_can_be_cancelled),
        PULL_CASE(a_reference_may_be_a_template),
        PULL_CASE(a_child_says_how_much_was_downloaded),
        PULL_CASE(a_child_says_why_it_cannot_tell),
        PULL_CASE(an_answer_to_another_question_is_refused),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
