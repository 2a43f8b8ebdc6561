/*
 * How it works: each role is a process, a channel and a pidfd on keeper's loop. The pidfd says that the process has
 * ended; a channel that breaks only leads to a SIGKILL, so that there is one way in which a role ends.
 *
 * Peers: after a role has been started, the supervisor makes a socket pair for each of its peers that runs, and sends one
 * end to each side with MESSAGE_PEER. The peer that ran before replaces its old connection with it (channel_renew()). A
 * peer that does not run is connected when it is started itself.
 */
#include "daemon/supervisor.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "privsep/role.h"

enum { YOUNG_MS = 10000 }; /* a role that ends sooner than this after its start waits longer for the next one */

struct member {
    struct supervisor *supervisor;
    const struct role_row *row;
    uint32_t number;
    struct role process; /* pid 0: none */
    struct channel *channel;
    struct watch *watch;
    struct timer timer; /* until the next start, or until it has had enough time to stop */
    uint64_t since_ms;
    uint32_t restart_ms;
};

struct supervisor {
    struct supervisor_config config;
    bool stopping;
    struct member members[];
};

static void start_member(struct member *member);

static void send_signal(struct member *member, int number)
{
    (void)pidfd_send_signal(member->process.pidfd, number, NULL, 0); /* ESRCH: it has ended already */
}

/* ---- messages ---- */

static bool may_send(const struct member *member, enum message_type type, struct err *err)
{
    if (!(member->row->may_send & BIT(type)))
        return err_set(err, ERR_INVALID, "%s may not send %s", member->row->name, message_type_name[type]);
    return true;
}

static bool on_request(void *context, struct channel *channel, enum message_type type, uint32_t id, struct str payload,
                       struct message_fds *fds, struct err *err)
{
    struct member *member = context;
    const struct supervisor_config *config = &member->supervisor->config;

    (void)fds; /* no role has a descriptor to give; the channel closes what came */
    return may_send(member, type, err) &&
           config->request(config->context, member->number, channel, type, id, payload, err);
}

static bool on_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                     struct err *err)
{
    struct member *member = context;
    const struct supervisor_config *config = &member->supervisor->config;

    (void)fds;
    return may_send(member, type, err) && config->event(config->context, member->number, type, payload, err);
}

static void on_broken(void *context, const struct err *why)
{
    struct member *member = context;

    if (why->kind == ERR_INVALID)
        log_error("killing %s: %s", member->row->name, err_text(why));
    send_signal(member, SIGKILL); /* on_ended() does the rest */
}

/* ---- peers ---- */

static bool are_peers(const struct member *a, const struct member *b)
{
    return (a->row->peers & BIT(b->number)) || (b->row->peers & BIT(a->number));
}

static void send_peer(struct member *to, const struct member *peer, int fd)
{
    auto_buf struct buf payload = buf_make(NULL, 1);

    pack_u8(&payload, (uint8_t)peer->number);
    channel_send_event(to->channel, MESSAGE_PEER, buf_str(&payload), &fd, 1);
}

static bool connect_peers(struct member *member, struct err *err)
{
    const struct supervisor *supervisor = member->supervisor;

    for (uint32_t i = 0; i < supervisor->config.count; i++) {
        struct member *peer = &member->supervisor->members[i];
        int pair[2];
        if (peer == member || !peer->channel || !are_peers(member, peer))
            continue;
        if (!channel_pair(pair, err))
            return err_wrap(err, "connect %s and %s", member->row->name, peer->row->name);
        send_peer(member, peer, pair[0]);
        send_peer(peer, member, pair[1]);
        fd_close(&pair[0]);
        fd_close(&pair[1]);
    }
    return true;
}

bool supervisor_take_peer(struct channel *const *peers, uint32_t count, struct str payload, struct message_fds *fds,
                          struct err *err)
{
    struct unpack in = unpack_from(payload);
    uint8_t peer = unpack_u8(&in);

    if (!unpack_done(&in, err))
        return false;
    if (peer >= count || !peers[peer] || fds->count != 1)
        return err_set(err, ERR_INVALID, "malformed message: a connection to role %u", peer);
    channel_renew(peers[peer], take_fd(&fds->at[0]));
    return true;
}

/* ---- life ---- */

static void on_restart(struct timer *timer)
{
    start_member(container_of(timer, struct member, timer));
}

static void restart_later(struct member *member)
{
    struct loop *loop = member->supervisor->config.loop;
    bool young = loop_now_ms(loop) - member->since_ms < YOUNG_MS;

    member->restart_ms = young && member->restart_ms ? MIN(member->restart_ms * 2, member->row->restart_max_ms)
                                                     : member->row->restart_first_ms;
    timer_set(&member->timer, loop, member->restart_ms, on_restart);
}

static void tell_if_stopped(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->config.count; i++)
        if (supervisor->members[i].process.pid)
            return;
    supervisor->config.stopped(supervisor->config.context);
}

static void on_ended(void *context, unsigned ready)
{
    struct member *member = context;
    const struct supervisor_config *config = &member->supervisor->config;
    int status = 0;

    (void)ready;
    if (waitpid(member->process.pid, &status, WNOHANG) == 0)
        return; /* a wake-up for nothing */
    watch_free(take_ptr(&member->watch));
    config->ended(config->context, member->number, member->channel);
    channel_free(take_ptr(&member->channel));
    fd_close(&member->process.pidfd);
    member->process.pid = 0;
    timer_clear(&member->timer);
    if (member->supervisor->stopping) {
        tell_if_stopped(member->supervisor);
        return;
    }
    if (WIFSIGNALED(status))
        log_error("%s was killed by signal %d; starting it again", member->row->name, WTERMSIG(status));
    else
        log_error("%s ended with status %d; starting it again", member->row->name, WEXITSTATUS(status));
    restart_later(member);
}

static bool open_grants(struct member *member, int fds[ROLE_FDS_MAX], uint32_t *out_count, struct err *err)
{
    const struct supervisor_config *config = &member->supervisor->config;

    for (const enum role_grant *grant = member->row->grants; *grant; grant++) {
        fds[*out_count] = config->grant(config->context, *grant, err);
        if (fds[*out_count] < 0)
            return false;
        ++*out_count;
    }
    return true;
}

static bool start_process(struct member *member, struct err *err)
{
    const struct supervisor_config *config = &member->supervisor->config;
    const char *const args[] = { config->log_level, NULL };
    int fds[ROLE_FDS_MAX];
    struct role_want want = { .name = member->row->name,
                              .args = args,
                              .uid = config->accounts[member->number].uid,
                              .gid = config->accounts[member->number].gid,
                              .program = member->row->main ? NULL : &config->mail_program,
                              .fds = fds };
    bool fine = open_grants(member, fds, &want.fd_count, err) && role_start(&want, &member->process, err);

    fd_close_each(fds, want.fd_count);
    return fine;
}

static bool try_start(struct member *member, struct err *err)
{
    static const struct channel_handlers handlers = { .request = on_request, .event = on_event, .broken = on_broken };
    const struct supervisor_config *config = &member->supervisor->config;

    if (!start_process(member, err))
        return false;
    channel_refuse_fds(member->process.channel_fd); /* no role has one to give to keeper */
    member->channel = channel_new(config->loop, member->process.channel_fd, &handlers, member);
    member->watch = watch_new(config->loop, member->process.pidfd, on_ended, member);
    watch_want(member->watch, WATCH_READ);
    config->started(config->context, member->number, member->channel);
    return true;
}

static void start_member(struct member *member)
{
    struct err err;

    member->since_ms = loop_now_ms(member->supervisor->config.loop);
    if (!try_start(member, &err)) {
        log_error("cannot start %s: %s", member->row->name, err_text(&err));
        restart_later(member);
    } else if (!connect_peers(member, &err)) {
        log_error("restarting %s: %s", member->row->name, err_text(&err));
        send_signal(member, SIGKILL);
    }
}

struct supervisor *supervisor_new(const struct supervisor_config *config)
{
    struct supervisor *supervisor = mem_new(sizeof *supervisor + config->count * sizeof supervisor->members[0]);

    supervisor->config = *config;
    for (uint32_t i = 0; i < config->count; i++)
        supervisor->members[i] =
            (struct member){ .supervisor = supervisor, .row = &config->rows[i], .number = i, .process.pidfd = -1 };
    return supervisor;
}

void supervisor_start(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->config.count; i++)
        if (!supervisor->config.rows[i].on_demand && !(supervisor->config.without & BIT(i)))
            start_member(&supervisor->members[i]);
}

static void on_stop_late(struct timer *timer)
{
    struct member *member = container_of(timer, struct member, timer);

    log_warn("%s did not stop within %u ms; killing it", member->row->name, member->row->stop_ms);
    send_signal(member, SIGKILL);
}

void supervisor_stop(struct supervisor *supervisor)
{
    if (supervisor->stopping)
        return;
    supervisor->stopping = true;
    for (uint32_t i = 0; i < supervisor->config.count; i++) {
        struct member *member = &supervisor->members[i];
        timer_clear(&member->timer);
        if (!member->process.pid)
            continue;
        send_signal(member, SIGTERM);
        timer_set(&member->timer, supervisor->config.loop, member->row->stop_ms, on_stop_late);
    }
    tell_if_stopped(supervisor);
}

void supervisor_free(struct supervisor *supervisor)
{
    if (!supervisor)
        return;
    for (uint32_t i = 0; i < supervisor->config.count; i++) {
        struct member *member = &supervisor->members[i];
        timer_clear(&member->timer);
        watch_free(member->watch);
        channel_free(member->channel);
        fd_close(&member->process.pidfd);
    }
    free(supervisor);
}
