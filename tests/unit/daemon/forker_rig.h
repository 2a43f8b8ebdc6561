/*
 * forker_rig.h - plays keeper and front for a role with a child for each request (daemon/forker.h).
 */
#ifndef TESTS_UNIT_DAEMON_FORKER_RIG_H
#define TESTS_UNIT_DAEMON_FORKER_RIG_H

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/mem.h"
#include "daemon/roles.h"
#include "privsep/channel.h"
#include "privsep/role.h"
#include "test.h"

struct rig {
    struct loop *loop;
    struct role process;
    struct channel *keeper, *front;
    enum message_type message;
    bool is_broken;
};

/* A connection to a child, or -1 and why not. */
struct rig_child {
    bool came;
    int fd;
    struct err err;
};

static inline void rig_broken_(void *context, const struct err *why)
{
    (void)why;
    ((struct rig *)context)->is_broken = true;
}

/* `role NAME error`, of an open program; NULL: this one. */
static inline struct rig *rig_start(const char *name, const int *program, enum message_type message, const int *fds,
                                    uint32_t fd_count)
{
    static const struct channel_handlers handlers = { .broken = rig_broken_ };
    static const char *const args[] = { "error", NULL };
    const struct role_want want = { .name = name,
                                    .args = args,
                                    .uid = geteuid(),
                                    .gid = getegid(),
                                    .program = program,
                                    .fds = fds,
                                    .fd_count = fd_count };
    auto_buf struct buf payload = buf_make(NULL, 1);
    struct rig *rig = NEW(struct rig);
    int pair[2];
    struct err err;

    if (!role_start(&want, &rig->process, &err) || !channel_pair(pair, &err))
        fail_msg("%s", err_text(&err));
    rig->message = message;
    rig->loop = loop_new();
    rig->keeper = channel_new(rig->loop, rig->process.channel_fd, &handlers, rig);
    rig->front = channel_new(rig->loop, pair[0], &handlers, rig);
    pack_u8(&payload, ROLE_FRONT);
    channel_send_event(rig->keeper, MESSAGE_PEER, buf_str(&payload), &pair[1], 1);
    fd_close(&pair[1]);
    return rig;
}

static inline void rig_stop(struct rig *rig)
{
    int status = 0;

    assert_int_equal(kill(rig->process.pid, SIGTERM), 0);
    assert_int_equal(waitpid(rig->process.pid, &status, 0), rig->process.pid);
    fd_close(&rig->process.pidfd);
    channel_free(rig->front);
    channel_free(rig->keeper);
    loop_free(rig->loop);
    free(rig);
}

static inline void rig_stop_turn_(struct timer *timer)
{
    loop_stop_soon(timer->loop);
}

static inline void rig_turn(struct rig *rig)
{
    struct timer timer = { 0 };

    timer_set(&timer, rig->loop, 1, rig_stop_turn_);
    loop_run(rig->loop);
    timer_clear(&timer);
}

static inline void rig_note_(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct rig_child *child = context;

    (void)payload;
    child->came = true;
    if (err)
        child->err = *err;
    else
        child->fd = take_fd(&fds->at[0]);
}

static inline struct rig_child rig_child(struct rig *rig)
{
    struct rig_child child = { .fd = -1 };

    channel_request(rig->front, rig->message, STR(""), NULL, 0, rig_note_, &child);
    for (int i = 0; i < 20000 && !child.came; i++)
        rig_turn(rig);
    assert_true(child.came);
    return child;
}

#endif
