#include "privsep/frame.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "io/pass.h"

enum { HEAD_BYTES = 4, LOOK_AGAIN_MS = 10 };

/* Waits until the socket is ready or the deadline (0: none) has passed. */
static bool wait_for(int fd, short events, uint64_t deadline_ms, struct err *err)
{
    struct pollfd poll_fd = { .fd = fd, .events = events };

    for (;;) {
        int left = -1;
        if (deadline_ms) {
            uint64_t now = clock_mono_ms();
            if (now >= deadline_ms)
                return err_set(err, ERR_TIMEOUT, "the other process did not answer in time");
            left = (int)MIN(deadline_ms - now, (uint64_t)60000);
        }
        int n = poll(&poll_fd, 1, left);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return err_sys(err, "wait for another process");
    }
}

static bool write_bytes(int fd, struct str bytes, uint64_t deadline_ms, struct err *err)
{
    while (bytes.len) {
        ssize_t n = send(fd, bytes.at, bytes.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!wait_for(fd, POLLOUT, deadline_ms, err))
                return false;
            continue;
        }
        if (n < 0) {
            (void)err_sys(err, "write to another process");
            err->kind = ERR_UNAVAILABLE;
            return false;
        }
        bytes = str_of(bytes.at + n, bytes.len - (size_t)n);
    }
    return true;
}

/* The descriptor goes with the first byte. */
static bool write_passing(int fd, struct str bytes, int passed_fd, uint64_t deadline_ms, struct err *err)
{
    while (!pass_fds(fd, str_of(bytes.at, 1), &passed_fd, 1, err)) {
        if (err->sys == ETOOMANYREFS && (!deadline_ms || clock_mono_ms() < deadline_ms)) {
            (void)poll(NULL, 0, LOOK_AGAIN_MS); /* as many as we may have open are on their way */
            continue;
        }
        if (err->sys != EAGAIN) {
            err->kind = ERR_UNAVAILABLE;
            return false;
        }
        if (!wait_for(fd, POLLOUT, deadline_ms, err))
            return false;
    }
    return write_bytes(fd, str_of(bytes.at + 1, bytes.len - 1), deadline_ms, err);
}

/* As recv(). The first descriptor that comes with the bytes is kept, all others are closed. */
static ssize_t receive(int fd, char *room, size_t size, int *out_fd)
{
    struct iovec piece = { .iov_base = room, .iov_len = size };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } beside = { 0 };
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside.bytes, .msg_controllen = sizeof beside.bytes
    };
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    for (struct cmsghdr *at = n < 0 ? NULL : CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        int came;
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS || at->cmsg_len != CMSG_LEN(sizeof came))
            continue;
        memcpy(&came, CMSG_DATA(at), sizeof came);
        if (out_fd && *out_fd < 0)
            *out_fd = came;
        else
            fd_close(&came);
    }
    return n;
}

/* out_fd NULL: no descriptor is wanted. */
static bool read_bytes(int fd, char *room, size_t size, size_t *out_got, int *out_fd, uint64_t deadline_ms,
                       struct err *err)
{
    for (*out_got = 0; *out_got < size;) {
        ssize_t n = out_fd ? receive(fd, room + *out_got, size - *out_got, out_fd)
                           : recv(fd, room + *out_got, size - *out_got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!wait_for(fd, POLLIN, deadline_ms, err))
                return false;
            continue;
        }
        if (n <= 0)
            return err_set(err, ERR_UNAVAILABLE, "the other process has ended");
        *out_got += (size_t)n;
    }
    return true;
}

bool frame_write_fd(int fd, struct str bytes, int passed_fd, uint64_t timeout_ms, struct err *err)
{
    uint64_t deadline = timeout_ms ? clock_mono_ms() + timeout_ms : 0;
    uint32_t size = (uint32_t)bytes.len;
    const char head[HEAD_BYTES] = { (char)(size >> 24), (char)(size >> 16), (char)(size >> 8), (char)size };
    const struct str head_bytes = str_of(head, HEAD_BYTES);

    if (bytes.len > UINT32_MAX)
        return err_set(err, ERR_LIMIT, "a message of %zu bytes is too long", bytes.len);
    return (passed_fd < 0 ? write_bytes(fd, head_bytes, deadline, err)
                          : write_passing(fd, head_bytes, passed_fd, deadline, err)) &&
           write_bytes(fd, bytes, deadline, err);
}

bool frame_write(int fd, struct str bytes, uint64_t timeout_ms, struct err *err)
{
    return frame_write_fd(fd, bytes, -1, timeout_ms, err);
}

static bool read_frame(int fd, size_t cap, uint64_t timeout_ms, char **out, size_t *out_len, int *out_fd,
                       struct err *err)
{
    uint64_t deadline = timeout_ms ? clock_mono_ms() + timeout_ms : 0;
    char head[HEAD_BYTES];
    size_t got;

    if (!read_bytes(fd, head, HEAD_BYTES, &got, out_fd, deadline, err))
        return err->kind == ERR_UNAVAILABLE && got == 0
                   ? err_set(err, ERR_NOT_FOUND, "the other process has closed the connection")
                   : false;
    uint32_t size = 0;
    for (int i = 0; i < HEAD_BYTES; i++)
        size = size << 8 | (unsigned char)head[i];
    if (size > cap)
        return err_set(err, ERR_LIMIT, "a message of %u bytes is too long: at most %zu", size, cap);
    auto_free char *room = mem_new(size + 1);
    if (!read_bytes(fd, room, size, &got, out_fd, deadline, err))
        return false;
    *out = take_ptr(&room);
    *out_len = size;
    return true;
}

bool frame_read_fd(int fd, size_t cap, uint64_t timeout_ms, char **out, size_t *out_len, int *out_fd, struct err *err)
{
    *out_fd = -1;
    if (read_frame(fd, cap, timeout_ms, out, out_len, out_fd, err))
        return true;
    fd_close(out_fd);
    return false;
}

bool frame_read(int fd, size_t cap, uint64_t timeout_ms, char **out, size_t *out_len, struct err *err)
{
    return read_frame(fd, cap, timeout_ms, out, out_len, NULL, err);
}
