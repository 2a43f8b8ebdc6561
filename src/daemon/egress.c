/*
 * egress_main() - connects sandboxes to the outside.
 *   holds     listening sockets inside sandboxes, connections to the outside, channels to keeper and front
 *   must not  open a file, run a program, accept from outside, reach the store
 *
 * How it works: keeper sends each sandbox's sockets (NETWORK) and its end (EXITED), front sends its policy (POLICY).
 * egress/ does the rest, and what it reports goes to front (FLOWS). A new egress gets all of that again: keeper makes new
 * sockets when it has started egress, and front sends all policies over each new connection.
 */
#include <signal.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "daemon/supervisor.h"
#include "egress/egress.h"
#include "egress/resolver.h"
#include "io/loop.h"
#include "privsep/channel.h"
#include "privsep/role.h"

struct role_egress {
    const struct role_row *self;
    struct egress_settings settings;
    struct loop *loop;
    struct channel *keeper;
    struct channel *peers[ROLE_COUNT]; /* front's is there, the others are NULL */
    struct resolver *resolver;
    struct egress *egress;
    char *roots; /* certificates, in PEM */
    int exit_code;
};

/* ---- keeper ---- */

/* An id, a byte that has a bit for each socket there is, and these sockets in the order of enum divert_kind. */
static bool take_network(struct role_egress *role, struct str payload, struct message_fds *fds, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char id[LIMIT_ID_BYTES];
    int sockets[DIVERT_KINDS];
    uint32_t taken = 0;

    message_unpack_id(&in, id);
    uint8_t there = unpack_u8(&in);
    if (there >> DIVERT_KINDS)
        in.failed = true;
    if (!unpack_done(&in, err))
        return err_wrap(err, "network");
    if (fds->count < (uint32_t)__builtin_popcount(there))
        log_warn("sandbox %s has no way out: its sockets did not arrive; raise the server's limit of open files", id);
    for (int i = 0; i < DIVERT_KINDS; i++)
        sockets[i] = there & BIT(i) && taken < fds->count ? take_fd(&fds->at[taken++]) : -1;
    egress_network(role->egress, id, sockets);
    return true;
}

static bool take_exit(struct role_egress *role, struct str payload, struct err *err)
{
    struct unpack in = unpack_from(payload);
    char id[LIMIT_ID_BYTES];

    message_unpack_id(&in, id);
    (void)unpack_u8(&in); /* the cause */
    if (!unpack_done(&in, err))
        return err_wrap(err, "exited");
    egress_exited(role->egress, id);
    return true;
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                            struct err *err)
{
    struct role_egress *role = context;

    switch (type) {
    case MESSAGE_PEER:
        return supervisor_take_peer(role->peers, ROLE_COUNT, payload, fds, err);
    case MESSAGE_NETWORK:
        return take_network(role, payload, fds, err);
    case MESSAGE_EXITED:
        return take_exit(role, payload, err);
    case MESSAGE_RESOLVERS:
        if (!role->settings.resolver_count) /* --dns wins */
            resolver_use(role->resolver, payload);
        return true;
    default:
        return err_set(err, ERR_INVALID, "malformed message: %s is not for egress", message_type_name[type]);
    }
}

static void on_keeper_broken(void *context, const struct err *why)
{
    struct role_egress *role = context;

    log_error("keeper is gone: %s", err_text(why));
    role->exit_code = 1;
    loop_stop_soon(role->loop);
}

/* ---- front ---- */

static bool on_front_request(void *context, struct channel *channel, enum message_type type, uint32_t id,
                             struct str payload, struct message_fds *fds, struct err *err)
{
    struct role_egress *role = context;
    struct unpack in = unpack_from(payload);
    char sandbox[LIMIT_ID_BYTES];
    struct err why;

    (void)fds;
    if (type != MESSAGE_POLICY)
        return err_set(err, ERR_INVALID, "malformed message: %s is not for egress", message_type_name[type]);
    message_unpack_id(&in, sandbox);
    if (in.failed)
        return err_set(err, ERR_INVALID, "malformed message: policy");
    if (egress_policy(role->egress, sandbox, in.rest, &why))
        channel_reply(channel, type, id, STR(""), NULL, 0);
    else
        channel_reply_error(channel, type, id, &why);
    return true;
}

/* A new front gets a new connection, over which it sends all policies again. Until then the old ones hold. */
static void on_front_broken(void *context, const struct err *why)
{
    (void)context;
    log_debug("front is gone: %s", err_text(why)); /* keeper logs it */
}

static void report(void *context, struct str flows)
{
    struct role_egress *role = context;

    channel_send_event(role->peers[ROLE_FRONT], MESSAGE_FLOWS, flows, NULL, 0);
}

static bool guest(void *context, const char *id, int fd)
{
    struct role_egress *role = context;
    auto_buf struct buf payload = buf_make(NULL, 2 * LIMIT_ID_BYTES);

    if (!channel_is_idle(role->peers[ROLE_FRONT]))
        return false;
    message_pack_id(&payload, id);
    channel_send_event(role->peers[ROLE_FRONT], MESSAGE_GUEST, buf_str(&payload), &fd, 1);
    return true;
}

/* A front that is slow or away gets the sums later. */
static bool may_report(void *context)
{
    const struct role_egress *role = context;

    return channel_is_idle(role->peers[ROLE_FRONT]);
}

/* ---- life ---- */

static void on_signal(void *context, int number)
{
    struct role_egress *role = context;

    (void)number;
    loop_stop_soon(role->loop);
}

/* Those of --dns. */
static void use_named_servers(struct role_egress *role)
{
    auto_buf struct buf text = buf_make(NULL, LIMIT_RESOLV_CONF_BYTES);

    egress_settings_resolvers(&role->settings, &text);
    if (text.len)
        resolver_use(role->resolver, buf_str(&text));
}

static bool role_open(struct role_egress *role, struct err *err)
{
    static const struct channel_handlers keeper = { .event = on_keeper_event, .broken = on_keeper_broken };
    static const struct channel_handlers front = { .request = on_front_request, .broken = on_front_broken };

    auto_close int settings_fd = role_fd(role->self, GRANT_EGRESS);
    auto_close int roots_fd = role_fd(role->self, GRANT_ROOTS);
    size_t roots_len;

    if (!egress_settings_read(settings_fd, &role->settings, err) ||
        !fd_read_all(roots_fd, LIMIT_ROOTS_BYTES, &role->roots, &roots_len, err))
        return false;
    role->loop = loop_new();
    /* A terminal sends Ctrl-C to the whole group. Egress stops when keeper sends SIGTERM. */
    (void)signal(SIGINT, SIG_IGN);
    if (!loop_on_signal(role->loop, SIGTERM, on_signal, role, err))
        return false;
    role->resolver = resolver_new(role->loop);
    use_named_servers(role);
    role->egress = egress_new(&(struct egress_config){
        .loop = role->loop,
        .resolver = role->resolver,
        .ranges = { .allow_count = role->settings.allow_count,
                    .allow = role->settings.allow,
                    .deny_count = role->settings.deny_count,
                    .deny = role->settings.deny },
        .services = role->settings.services,
        .service_count = role->settings.service_count,
        .roots = str_of(role->roots, roots_len),
        .bytes_per_s = role->settings.bytes_per_s,
        .flows_max = egress_flows_max(role->settings.sandboxes_max),
        .report = report,
        .may_report = may_report,
        .guest = guest,
        .context = role,
    });
    if (egress_flows_max(role->settings.sandboxes_max) <= LIMIT_EGRESS_FLOWS_LEAST)
        log_warn("there are descriptors for %d connections of all sandboxes together: raise the limit of open files "
                 "(LimitNOFILE, ulimit -n), or lower --sandboxes or --pool",
                 LIMIT_EGRESS_FLOWS_LEAST);
    role->peers[ROLE_FRONT] = channel_new(role->loop, -1, &front, role);
    role->keeper = channel_new(role->loop, ROLE_CHANNEL_FD, &keeper, role);
    return true;
}

int egress_main(const struct role_row *self)
{
    struct role_egress *role = NEW(struct role_egress);
    struct err err;

    role->self = self;
    if (role_open(role, &err)) {
        loop_run(role->loop);
    } else {
        log_error("cannot start: %s", err_text(&err));
        role->exit_code = 1;
    }
    int code = role->exit_code;
    egress_free(role->egress);
    resolver_free(role->resolver);
    channel_free(role->peers[ROLE_FRONT]);
    channel_free(role->keeper);
    loop_free(role->loop);
    free(role->roots);
    free(role);
    return code;
}
