#include "isolation/native/options.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "base/fd.h"
#include "base/mem.h"
#include "isolation/native/box.h"

struct options {
    struct box *box;
    int fd;
    struct watch *watch;
    unsigned heard, named;
    struct socket_option seen[LIMIT_OPTIONS_NAMED];
};

static bool is_new(struct options *options, const struct socket_option *option)
{
    for (unsigned i = 0; i < options->named; i++)
        if (options->seen[i].level == option->level && options->seen[i].name == option->name)
            return false;
    options->seen[options->named++] = *option;
    return true;
}

/* False: none waits. The kernel's structures may be longer than ours, and it takes only what is zeroed. */
static bool take_one(int fd, struct socket_option *out)
{
    union {
        struct seccomp_notif call;
        char room[512];
    } call = { .room = { 0 } };
    union {
        struct seccomp_notif_resp answer;
        char room[512];
    } answer = { .room = { 0 } };

    if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
        return false;
    answer.answer.id = call.call.id;
    answer.answer.error = -ENOPROTOOPT;
    (void)ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer); /* the caller may have been killed */
    *out =
        (struct socket_option){ .level = (uint32_t)call.call.data.args[1], .name = (uint32_t)call.call.data.args[2] };
    return true;
}

static void on_call(void *context, unsigned ready)
{
    struct options *options = context;
    struct box *box = options->box;
    const struct driver *driver = &box->native->driver;
    struct pollfd poll_fd = { .fd = options->fd, .events = POLLIN };
    struct socket_option option;

    (void)ready;
    /* Asked again, because on older kernels a receive would wait: the caller may have gone, or all that had the filter. */
    if (poll(&poll_fd, 1, 0) <= 0)
        return;
    if (!(poll_fd.revents & POLLIN)) {
        options_forget(box);
        return;
    }
    if (!take_one(options->fd, &option))
        return;
    if (is_new(options, &option) && driver->refused)
        driver->refused(driver->exited_context, box->id, &option);
    if (++options->heard == LIMIT_OPTIONS_HEARD || options->named == LIMIT_OPTIONS_NAMED)
        options_forget(box);
}

void options_listen(struct box *box, int listener_fd)
{
    struct options *options = NEW(struct options);

    options_forget(box);
    options->box = box;
    options->fd = listener_fd;
    options->watch = watch_new(box->native->loop, listener_fd, on_call, options);
    watch_want(options->watch, WATCH_READ);
    box->options = options;
}

void options_forget(struct box *box)
{
    struct options *options = take_ptr(&box->options);

    if (!options)
        return;
    watch_free(options->watch);
    fd_close(&options->fd);
    loop_retire(box->native->loop, options, free);
}
