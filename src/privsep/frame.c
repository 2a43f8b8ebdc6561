#include "privsep/frame.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { HEAD_BYTES = 4 };

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

static bool read_bytes(int fd, char *room, size_t size, size_t *out_got, uint64_t deadline_ms, struct err *err)
{
    for (*out_got = 0; *out_got < size;) {
        ssize_t n = recv(fd, room + *out_got, size - *out_got, MSG_DONTWAIT);
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

bool frame_write(int fd, struct str bytes, uint64_t timeout_ms, struct err *err)
{
    uint64_t deadline = timeout_ms ? clock_mono_ms() + timeout_ms : 0;
    uint32_t size = (uint32_t)bytes.len;
    const char head[HEAD_BYTES] = { (char)(size >> 24), (char)(size >> 16), (char)(size >> 8), (char)size };

    if (bytes.len > UINT32_MAX)
        return err_set(err, ERR_LIMIT, "a message of %zu bytes is too long", bytes.len);
    return write_bytes(fd, str_of(head, HEAD_BYTES), deadline, err) && write_bytes(fd, bytes, deadline, err);
}

bool frame_read(int fd, size_t cap, uint64_t timeout_ms, char **out, size_t *out_len, struct err *err)
{
    uint64_t deadline = timeout_ms ? clock_mono_ms() + timeout_ms : 0;
    char head[HEAD_BYTES];
    size_t got;

    if (!read_bytes(fd, head, HEAD_BYTES, &got, deadline, err))
        return err->kind == ERR_UNAVAILABLE && got == 0
                   ? err_set(err, ERR_NOT_FOUND, "the other process has closed the connection")
                   : false;
    uint32_t size = 0;
    for (int i = 0; i < HEAD_BYTES; i++)
        size = size << 8 | (unsigned char)head[i];
    if (size > cap)
        return err_set(err, ERR_LIMIT, "a message of %u bytes is too long: at most %zu", size, cap);
    auto_free char *room = mem_new(size + 1);
    if (!read_bytes(fd, room, size, &got, deadline, err))
        return false;
    *out = take_ptr(&room);
    *out_len = size;
    return true;
}
