#include "io/pass.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "test.h"

/* What came with the message, into out; how many. */
static size_t receive(int fd, char *byte, int out[LIMIT_MESSAGE_FDS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(LIMIT_MESSAGE_FDS * sizeof(int))];
    } room = { 0 };
    struct iovec piece = { .iov_base = byte, .iov_len = 1 };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes
    };

    assert_int_equal(recvmsg(fd, &message, MSG_CMSG_CLOEXEC), 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header)
        return 0;
    assert_int_equal(header->cmsg_type, SCM_RIGHTS);
    size_t size = header->cmsg_len - CMSG_LEN(0);
    memcpy(out, CMSG_DATA(header), size);
    return size / sizeof(int);
}

static void what_is_passed_leads_to_the_same_place(void **state)
{
    int pair[2], pipe_fds[2], got[LIMIT_MESSAGE_FDS];
    struct err err;
    char byte;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(pipe(pipe_fds), 0);
    assert_true(pass_fds(pair[0], STR("a"), pipe_fds, 2, &err));
    assert_true(pass_fds(pair[0], STR("b"), NULL, 0, &err));
    assert_int_equal(receive(pair[1], &byte, got), 2);
    assert_int_equal(byte, 'a');
    assert_int_equal(write(got[1], "x", 1), 1);
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1); /* ours is still open */
    assert_int_equal(byte, 'x');
    for (int i = 0; i < 2; i++) {
        close(got[i]);
        close(pipe_fds[i]);
    }
    assert_int_equal(receive(pair[1], &byte, got), 0);
    assert_int_equal(byte, 'b');
    close(pair[0]);
    close(pair[1]);
}

static void nobody_waits_for_room_or_for_a_peer_who_is_gone(void **state)
{
    int pair[2];
    struct err err;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    while (pass_fds(pair[0], STR("a"), &pair[0], 1, &err))
        ;
    assert_int_equal(err.sys, EAGAIN);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    assert_false(pass_fds(pair[0], STR("a"), NULL, 0, &err));
    assert_int_equal(err.sys, EPIPE);
    close(pair[0]);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(what_is_passed_leads_to_the_same_place),
        CASE(nobody_waits_for_room_or_for_a_peer_who_is_gone),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
