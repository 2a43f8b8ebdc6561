#include "io/pass.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "base/limits.h"

bool pass_fds(int socket_fd, struct str bytes, const int *fds, size_t count, struct err *err)
{
    struct iovec piece = { .iov_base = (void *)(uintptr_t)bytes.at, .iov_len = bytes.len }; /* sendmsg() only reads */
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(LIMIT_MESSAGE_FDS * sizeof(int))];
    } room = { 0 };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
    ssize_t n;

    assert(count <= LIMIT_MESSAGE_FDS);
    if (count) {
        message.msg_control = room.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    }
    do {
        n = sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n >= 0 || err_sys(err, "send");
}
