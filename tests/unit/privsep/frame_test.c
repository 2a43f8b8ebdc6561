#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "privsep/frame.h"
#include "test.h"

enum { MS = 2000 };

static void make_pair(int pair[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
}

static void a_descriptor_travels_with_its_frame(void **state)
{
    auto_free char *first = NULL, *second = NULL;
    auto_close int came = -1, none = -1;
    int pair[2], pipe_fds[2];
    size_t len;
    struct err err;
    char letter;

    (void)state;
    make_pair(pair);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    assert_true(frame_write_fd(pair[0], STR("with"), pipe_fds[1], MS, &err));
    assert_true(frame_write_fd(pair[0], STR("without"), -1, MS, &err));
    assert_true(frame_read_fd(pair[1], 100, MS, &first, &len, &came, &err));
    CHECK_STR(str_of(first, len), STR("with"));
    assert_true(came >= 0);
    assert_int_equal(write(came, "x", 1), 1);
    assert_int_equal(read(pipe_fds[0], &letter, 1), 1);
    assert_true(frame_read_fd(pair[1], 100, MS, &second, &len, &none, &err));
    CHECK_STR(str_of(second, len), STR("without"));
    assert_int_equal(none, -1);
    for (int i = 0; i < 2; i++) {
        fd_close(&pair[i]);
        fd_close(&pipe_fds[i]);
    }
}

static void a_frame_that_is_too_long_is_refused_and_its_descriptor_closed(void **state)
{
    auto_free char *bytes = NULL;
    int pair[2], pipe_fds[2], came = -1;
    size_t len;
    struct err err;
    char letter;

    (void)state;
    make_pair(pair);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    assert_true(frame_write_fd(pair[0], STR("more than four"), pipe_fds[1], MS, &err));
    fd_close(&pipe_fds[1]);
    assert_false(frame_read_fd(pair[1], 4, MS, &bytes, &len, &came, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_int_equal(came, -1);
    assert_int_equal(read(pipe_fds[0], &letter, 1), 0); /* no writer is left */
    fd_close(&pipe_fds[0]);
    fd_close(&pair[0]);
    fd_close(&pair[1]);
}

static void an_end_between_frames_is_told_from_one_inside(void **state)
{
    auto_free char *bytes = NULL;
    int pair[2];
    size_t len;
    struct err err;

    (void)state;
    make_pair(pair);
    fd_close(&pair[0]);
    assert_false(frame_read(pair[1], 100, MS, &bytes, &len, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    fd_close(&pair[1]);
    make_pair(pair);
    assert_int_equal(write(pair[0], "\0\0\0\5ab", 6), 6);
    fd_close(&pair[0]);
    assert_false(frame_read(pair[1], 100, MS, &bytes, &len, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    fd_close(&pair[1]);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_descriptor_travels_with_its_frame),
        CASE(a_frame_that_is_too_long_is_refused_and_its_descriptor_closed),
        CASE(an_end_between_frames_is_told_from_one_inside),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
