/*
 * The role egress as keeper starts it, in a process of its own: this program plays keeper, front and a sandbox. Nothing
 * leaves the machine: 127.0.0.1 is not a public address.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "../io/pump.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "egress/flows.h"
#include "io/divert.h"
#include "privsep/channel.h"
#include "privsep/role.h"

struct world {
    struct loop *loop;
    struct channel *keeper, *front;
    pid_t pid;
    bool keeper_broken, front_broken;
    unsigned answers, errors;
    enum err_kind last_error;
    uint32_t refused;
    char id[LIMIT_ID_BYTES], text[LIMIT_FLOWS_TEXT_BYTES + 1];
};

static void on_record(void *context, const struct flows_record *record)
{
    struct world *world = context;

    world->refused += record->refused;
    memcpy(world->id, record->id, sizeof world->id);
    if (record->refusal_count)
        (void)snprintf(world->text, sizeof world->text, "%.*s", STR_ARG(record->refusals[0].text));
}

static bool on_front_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                           struct err *err)
{
    (void)fds;
    assert_int_equal(type, MESSAGE_FLOWS);
    return flows_unpack(payload, on_record, context, err);
}

static void on_keeper_broken(void *context, const struct err *why)
{
    (void)why;
    ((struct world *)context)->keeper_broken = true;
}

static void on_front_broken(void *context, const struct err *why)
{
    (void)why;
    ((struct world *)context)->front_broken = true;
}

static no_return void be_egress(int channel_fd, int settings_fd)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    log_setup("test", LOG_ERROR + 1); /* it is ended on purpose */
    channel_fd = fcntl(channel_fd, F_DUPFD, 100);
    settings_fd = fcntl(settings_fd, F_DUPFD, 100);
    null_fd = fcntl(null_fd, F_DUPFD, 100);
    const int grants[GRANT_COUNT] = { [GRANT_EGRESS] = settings_fd, [GRANT_ROOTS] = null_fd };
    (void)dup2(channel_fd, ROLE_CHANNEL_FD);
    for (int i = 0; roles[ROLE_EGRESS].grants[i]; i++)
        (void)dup2(grants[roles[ROLE_EGRESS].grants[i]], ROLE_FIRST_FD + i);
    (void)close(channel_fd);
    _exit(egress_main(&roles[ROLE_EGRESS]));
}

static void begin(struct world *world)
{
    static const struct channel_handlers keeper = { .broken = on_keeper_broken };
    static const struct channel_handlers front = { .event = on_front_event, .broken = on_front_broken };
    auto_buf struct buf peer = buf_make(NULL, 1);
    int to_keeper[2], to_front[2];
    struct err err;

    *world = (struct world){ 0 };
    auto_close int settings_fd = egress_settings_write(&(struct egress_settings){ 0 }, &err);
    assert_true(settings_fd >= 0 && channel_pair(to_keeper, &err) && channel_pair(to_front, &err));
    world->pid = fork();
    if (world->pid == 0) {
        (void)close(to_keeper[0]);
        (void)close(to_front[0]);
        (void)close(to_front[1]); /* it comes as a message */
        be_egress(to_keeper[1], settings_fd);
    }
    (void)close(to_keeper[1]);
    world->loop = loop_new();
    world->keeper = channel_new(world->loop, to_keeper[0], &keeper, world);
    world->front = channel_new(world->loop, to_front[0], &front, world);
    pack_u8(&peer, ROLE_FRONT);
    channel_send_event(world->keeper, MESSAGE_PEER, buf_str(&peer), &to_front[1], 1);
    (void)close(to_front[1]);
}

/* Returns the exit code; 128 and more: the signal. */
static int end(struct world *world, int number)
{
    int status;

    if (number)
        (void)kill(world->pid, number);
    while (waitpid(world->pid, &status, WNOHANG) == 0)
        pump_turn(world->loop);
    channel_free(world->keeper);
    channel_free(world->front);
    loop_free(world->loop);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void on_answer(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct world *world = context;

    (void)payload;
    (void)fds;
    world->answers += !err;
    world->errors += err != NULL;
    world->last_error = err ? err->kind : ERR_NONE;
}

static void send_policy(struct world *world, const char *id, struct str packed)
{
    auto_buf struct buf message = buf_make(NULL, LIMIT_MESSAGE_BYTES);

    message_pack_id(&message, id);
    buf_add(&message, packed);
    channel_request(world->front, MESSAGE_POLICY, buf_str(&message), NULL, 0, on_answer, world);
}

static void send_open_policy(struct world *world, const char *id)
{
    auto_buf struct buf packed = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    unsigned before = world->answers;

    net_policy_pack(&packed, &(struct net_policy){ .internet = true });
    send_policy(world, id, buf_str(&packed));
    PUMP_UNTIL(world->loop, world->answers == before + 1);
}

/* A listening socket in the place of a sandbox's; returns its port. */
static uint16_t send_network(struct world *world, const char *id)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    auto_buf struct buf message = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    message_pack_id(&message, id);
    pack_u8(&message, BIT(DIVERT_TCP4));
    channel_send_event(world->keeper, MESSAGE_NETWORK, buf_str(&message), &fd, 1);
    return ntohs(at.sin_port);
}

static struct peer connect_to(uint16_t port)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    set_nonblocking(fd);
    return peer_make(fd);
}

static void a_refusal_is_seen_by_the_guest_and_by_front(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    uint16_t port = send_network(&world, "one");
    send_open_policy(&world, "one");
    struct peer guest = connect_to(port);
    PUMP_UNTIL(world.loop, peer_is_closed(&guest));
    assert_true(guest.was_reset);
    PUMP_UNTIL(world.loop, world.refused == 1);
    assert_string_equal(world.id, "one");
    assert_non_null(strstr(world.text, "connection to 127.0.0.1 port"));
    peer_done(&guest);
    assert_int_equal(end(&world, SIGTERM), 0);
}

static void a_sandbox_that_has_ended_is_not_listened_for(void **state)
{
    auto_buf struct buf exited = buf_make(NULL, 64);
    struct world world;

    (void)state;
    begin(&world);
    uint16_t port = send_network(&world, "one");
    send_open_policy(&world, "one");
    message_pack_id(&exited, "one");
    pack_u8(&exited, 0);
    channel_send_event(world.keeper, MESSAGE_EXITED, buf_str(&exited), NULL, 0);
    send_open_policy(&world, "two"); /* the one before has been read when this one is answered… */
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(port) };
    bool is_refused = false;
    PUMP_UNTIL(world.loop, ({
                   /* …or soon after: these are two channels. */
                   auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                   is_refused = connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno == ECONNREFUSED;
                   is_refused;
               }));
    assert_int_equal(end(&world, SIGTERM), 0);
}

static void a_policy_that_is_wrong_is_answered_with_an_error(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    send_policy(&world, "one", STR("nonsense"));
    PUMP_UNTIL(world.loop, world.errors == 1);
    assert_int_equal(world.last_error, ERR_INVALID);
    send_open_policy(&world, "one"); /* it goes on */
    assert_int_equal(end(&world, SIGTERM), 0);
}

static void what_front_must_not_send_ends_their_connection_and_not_egress(void **state)
{
    static const struct {
        enum message_type type;
        struct str payload;
    } wrong[] = {
        { MESSAGE_POLICY, STR_INIT("\0\0\0\3A/B") },
        { MESSAGE_POLICY, STR_INIT("") },
        { MESSAGE_STOP, STR_INIT("\0\0\0\3one") },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct world world;
        begin(&world);
        channel_request(world.front, wrong[i].type, wrong[i].payload, NULL, 0, on_answer, &world);
        PUMP_UNTIL(world.loop, world.front_broken);
        assert_false(world.keeper_broken);
        assert_int_equal(end(&world, SIGTERM), 0);
    }
}

static void what_keeper_never_sends_ends_egress(void **state)
{
    static const struct {
        enum message_type type;
        struct str payload;
    } wrong[] = {
        { MESSAGE_NETWORK, STR_INIT("") },
        { MESSAGE_NETWORK, STR_INIT("\0\0\0\3one") },
        { MESSAGE_NETWORK, STR_INIT("\0\0\0\3one\x10") }, /* a fifth socket */
        { MESSAGE_NETWORK, STR_INIT("\0\0\0\3ONE\1") },
        { MESSAGE_EXITED, STR_INIT("\0\0\0\3one") },
        { MESSAGE_PEER, STR_INIT("\x7f") },
        { MESSAGE_READY, STR_INIT("") },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct world world;
        begin(&world);
        channel_send_event(world.keeper, wrong[i].type, wrong[i].payload, NULL, 0);
        PUMP_UNTIL(world.loop, world.keeper_broken);
        assert_int_equal(end(&world, 0), 1);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_refusal_is_seen_by_the_guest_and_by_front),
        CASE(a_sandbox_that_has_ended_is_not_listened_for),
        CASE(a_policy_that_is_wrong_is_answered_with_an_error),
        CASE(what_front_must_not_send_ends_their_connection_and_not_egress),
        CASE(what_keeper_never_sends_ends_egress),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
