/*
 * A table of two roles that exist only here. This program is all of them: run as `… role left info` by the supervisor,
 * it drops its privileges as the product's roles do and answers requests:
 *   LIST    its pid
 *   STATS   what it was granted
 *   DIAL    its peer's answer to LIST, asked over the channel between the two
 *   STOP    nothing; it sends keeper what its row does not allow
 *   START   nothing; it ignores SIGTERM from now on
 */
#include "daemon/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "privsep/role.h"
#include "test.h"

enum { LEFT, RIGHT, TEST_ROLES };

static int role_main(const struct role_row *self);

static const struct role_row rows[TEST_ROLES] = {
    [LEFT] = { .name = "left",
               .main = role_main,
               .grants = { GRANT_STORE, GRANT_SETTINGS },
               .calls = front_calls,
               .may_send = BIT(MESSAGE_READY) | BIT(MESSAGE_TEMPLATES),
               .restart_first_ms = 1,
               .restart_max_ms = 4,
               .stop_ms = 50 },
    [RIGHT] = { .name = "right",
                .main = role_main,
                .calls = front_calls,
                .may_send = BIT(MESSAGE_READY),
                .peers = BIT(LEFT), /* one of the two rows names the other; that is enough */
                .restart_first_ms = 1,
                .restart_max_ms = 4,
                .stop_ms = 5000 },
};

/* ---- the roles ---- */

struct test_role {
    const struct role_row *self;
    struct loop *loop;
    struct channel *keeper, *peers[TEST_ROLES];
    uint32_t asked; /* id of keeper's DIAL */
};

static void reply_pid(struct channel *channel, enum message_type type, uint32_t id)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", getpid());
    channel_reply(channel, type, id, str_from(text), NULL, 0);
}

static void peer_answered(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct test_role *role = context;

    (void)fds;
    if (err)
        channel_reply_error(role->keeper, MESSAGE_DIAL, role->asked, err);
    else
        channel_reply(role->keeper, MESSAGE_DIAL, role->asked, payload, NULL, 0);
}

static bool role_request(void *context, struct channel *channel, enum message_type type, uint32_t id,
                         struct str payload, struct message_fds *fds, struct err *err)
{
    struct test_role *role = context;
    char granted[16] = { 0 };

    (void)payload;
    (void)fds;
    (void)err;
    if (type == MESSAGE_LIST) {
        reply_pid(channel, type, id);
    } else if (type == MESSAGE_STATS) {
        (void)!read(role_fd(role->self, GRANT_SETTINGS), granted, sizeof granted - 1);
        channel_reply(channel, type, id, str_from(granted), NULL, 0);
    } else if (type == MESSAGE_DIAL) {
        role->asked = id;
        channel_request(role->peers[role->self == &rows[LEFT] ? RIGHT : LEFT], MESSAGE_LIST, STR(""), NULL, 0,
                        peer_answered, role);
    } else if (type == MESSAGE_START) {
        (void)signal(SIGTERM, SIG_IGN);
        reply_pid(channel, type, id);
    } else {
        channel_send_event(channel, MESSAGE_EXITED, STR(""), NULL, 0);
    }
    return true;
}

static bool role_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                       struct err *err)
{
    struct test_role *role = context;

    return type == MESSAGE_PEER && supervisor_take_peer(role->peers, TEST_ROLES, payload, fds, err);
}

static void role_broken(void *context, const struct err *why)
{
    (void)context;
    (void)why;
    _exit(1);
}

static int role_main(const struct role_row *self)
{
    static const struct channel_handlers keeper_handlers = { role_request, role_event, role_broken };
    static const struct channel_handlers peer_handlers = { .request = role_request };
    struct test_role *role = NEW(struct test_role);

    role->self = self;
    role->loop = loop_new();
    role->keeper = channel_new(role->loop, ROLE_CHANNEL_FD, &keeper_handlers, role);
    role->peers[self == &rows[LEFT] ? RIGHT : LEFT] = channel_new(role->loop, -1, &peer_handlers, role);
    channel_send_event(role->keeper, MESSAGE_READY, STR(""), NULL, 0);
    loop_run(role->loop);
    _exit(0);
}

/* ---- keeper ---- */

struct world {
    struct loop *loop;
    struct supervisor *supervisor;
    struct channel *channels[TEST_ROLES]; /* NULL: it does not run */
    unsigned ready[TEST_ROLES], ended[TEST_ROLES];
    unsigned failing_grants; /* so many fail first */
    unsigned stopped;
};

struct answer {
    unsigned came;
    char text[64];
    struct err err;
};

static int grant(void *context, enum role_grant grant, struct err *err)
{
    struct world *world = context;
    struct str text = grant == GRANT_SETTINGS ? STR("settings") : STR("store");

    if (world->failing_grants) {
        world->failing_grants--;
        (void)err_set(err, ERR_INTERNAL, "failed on purpose");
        return -1;
    }
    int fd = memfd_create("grant", MFD_CLOEXEC);
    assert_int_equal(pwrite(fd, text.at, text.len, 0), (ssize_t)text.len);
    return fd;
}

static void on_started(void *context, uint32_t role, struct channel *channel)
{
    ((struct world *)context)->channels[role] = channel;
}

static void on_ended(void *context, uint32_t role, struct channel *channel)
{
    struct world *world = context;

    assert_ptr_equal(world->channels[role], channel);
    world->channels[role] = NULL;
    world->ended[role]++;
}

static bool on_event(void *context, uint32_t role, enum message_type type, struct str payload, struct err *err)
{
    struct world *world = context;

    (void)payload;
    (void)err;
    assert_int_equal(type, MESSAGE_READY); /* the supervisor lets no other through */
    world->ready[role]++;
    return true;
}

static void on_stopped(void *context)
{
    ((struct world *)context)->stopped++;
}

static int set_up(void **state)
{
    static struct role_account accounts[TEST_ROLES];
    struct world *world = NEW(struct world);

    log_setup("test", LOG_ERROR + 1); /* roles die here on purpose */
    for (int i = 0; i < TEST_ROLES; i++)
        accounts[i] = (struct role_account){ geteuid(), getegid() };
    world->loop = loop_new();
    world->supervisor = supervisor_new(&(struct supervisor_config){
        .loop = world->loop,
        .rows = rows,
        .count = TEST_ROLES,
        .accounts = accounts,
        .log_level = "error",
        .grant = grant,
        .started = on_started,
        .ended = on_ended,
        .event = on_event,
        .stopped = on_stopped,
        .context = world,
    });
    *state = world;
    return 0;
}

struct until {
    struct timer timer;
    const unsigned *count;
    unsigned want, looks;
};

static void look(struct timer *timer)
{
    struct until *until = container_of(timer, struct until, timer);

    if (*until->count >= until->want || ++until->looks == 20000)
        loop_stop_soon(timer->loop);
    else
        timer_set(timer, timer->loop, 1, look);
}

/* Turns the loop until *count has reached `want`. */
static void run_until(struct world *world, const unsigned *count, unsigned want)
{
    struct until until = { .count = count, .want = want };

    timer_set(&until.timer, world->loop, 0, look);
    loop_run(world->loop);
    timer_clear(&until.timer);
    if (*count < want)
        fail_msg("nothing happened in 20 seconds");
}

static int tear_down(void **state)
{
    struct world *world = *state;

    supervisor_stop(world->supervisor);
    run_until(world, &world->stopped, 1);
    supervisor_free(world->supervisor);
    loop_free(world->loop);
    free(world);
    return 0;
}

static void note_answer(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct answer *answer = context;

    (void)fds;
    answer->came++;
    if (err)
        answer->err = *err;
    (void)snprintf(answer->text, sizeof answer->text, "%.*s", STR_ARG(payload));
}

static void send_request(struct world *world, uint32_t role, enum message_type type, struct answer *answer)
{
    *answer = (struct answer){ 0 };
    assert_non_null(world->channels[role]);
    channel_request(world->channels[role], type, STR(""), NULL, 0, note_answer, answer);
}

static struct answer ask(struct world *world, uint32_t role, enum message_type type)
{
    struct answer answer;

    send_request(world, role, type, &answer);
    run_until(world, &answer.came, 1);
    return answer;
}

static int pid_of(struct world *world, uint32_t role)
{
    return atoi(ask(world, role, MESSAGE_LIST).text);
}

static void start_both(struct world *world)
{
    supervisor_start(world->supervisor);
    run_until(world, &world->ready[LEFT], 1);
    run_until(world, &world->ready[RIGHT], 1);
}

static void kill_and_wait(struct world *world, uint32_t role)
{
    unsigned ready = world->ready[role];

    assert_int_equal(kill(pid_of(world, role), SIGKILL), 0);
    run_until(world, &world->ready[role], ready + 1);
}

/* Both ways: the pid that the peer gives is that of the process that runs now. */
static void check_connected(struct world *world)
{
    int left = pid_of(world, LEFT), right = pid_of(world, RIGHT);

    assert_int_not_equal(left, right);
    assert_int_equal(atoi(ask(world, LEFT, MESSAGE_DIAL).text), right);
    assert_int_equal(atoi(ask(world, RIGHT, MESSAGE_DIAL).text), left);
}

/* ---- the tests ---- */

static void a_role_gets_the_grants_of_its_row_and_no_others(void **state)
{
    struct world *world = *state;

    start_both(world);
    assert_string_equal(ask(world, LEFT, MESSAGE_STATS).text, "settings");
    assert_string_equal(ask(world, RIGHT, MESSAGE_STATS).text, "");
}

static void peers_are_connected_and_get_a_new_connection_when_one_is_restarted(void **state)
{
    struct world *world = *state;

    start_both(world);
    check_connected(world);
    for (int i = 0; i < 3; i++) {
        kill_and_wait(world, RIGHT);
        check_connected(world);
        kill_and_wait(world, LEFT);
        check_connected(world);
    }
    assert_int_equal(world->ended[LEFT], 3);
    assert_int_equal(world->ended[RIGHT], 3);
}

static void what_a_role_asked_of_a_peer_that_dies_fails(void **state)
{
    struct world *world = *state;
    struct answer answer;

    start_both(world);
    int right = pid_of(world, RIGHT);
    assert_int_equal(kill(right, SIGSTOP), 0);
    send_request(world, LEFT, MESSAGE_DIAL, &answer);
    (void)pid_of(world, LEFT); /* it has asked its peer by now */
    assert_int_equal(kill(right, SIGKILL), 0);
    run_until(world, &answer.came, 1);
    assert_int_equal(answer.err.kind, ERR_UNAVAILABLE);
    run_until(world, &world->ready[RIGHT], 2);
    check_connected(world);
}

static void a_role_that_is_left_out_is_not_started(void **state)
{
    struct world *world = *state;
    struct supervisor_config config = { .loop = world->loop,
                                        .rows = rows,
                                        .count = TEST_ROLES,
                                        .accounts = (struct role_account[TEST_ROLES]){ { geteuid(), getegid() },
                                                                                       { geteuid(), getegid() } },
                                        .log_level = "error",
                                        .without = BIT(RIGHT),
                                        .grant = grant,
                                        .started = on_started,
                                        .ended = on_ended,
                                        .event = on_event,
                                        .stopped = on_stopped,
                                        .context = world };

    supervisor_free(world->supervisor);
    world->supervisor = supervisor_new(&config);
    supervisor_start(world->supervisor);
    run_until(world, &world->ready[LEFT], 1);
    assert_true(pid_of(world, LEFT) > 0);
    assert_null(world->channels[RIGHT]);
    assert_int_equal(ask(world, LEFT, MESSAGE_DIAL).err.kind, ERR_UNAVAILABLE);
    supervisor_stop(world->supervisor); /* before the accounts go out of scope */
    run_until(world, &world->stopped, 1);
}

static void a_role_that_sends_what_its_row_does_not_allow_is_killed_and_restarted(void **state)
{
    struct world *world = *state;

    start_both(world);
    int before = pid_of(world, LEFT);
    struct answer answer = ask(world, LEFT, MESSAGE_STOP);
    assert_int_equal(answer.err.kind, ERR_UNAVAILABLE);
    run_until(world, &world->ready[LEFT], 2);
    assert_int_equal(world->ended[LEFT], 1);
    assert_int_not_equal(pid_of(world, LEFT), before);
    check_connected(world);
}

static void a_role_that_cannot_start_is_tried_again(void **state)
{
    struct world *world = *state;

    world->failing_grants = 4;
    start_both(world);
    assert_int_equal(world->failing_grants, 0);
    assert_int_equal(world->ended[LEFT], 0);
    check_connected(world);
}

static void a_role_that_does_not_stop_is_killed(void **state)
{
    struct world *world = *state;

    start_both(world);
    (void)ask(world, LEFT, MESSAGE_START);
    supervisor_stop(world->supervisor);
    run_until(world, &world->ended[RIGHT], 1); /* SIGTERM was enough */
    run_until(world, &world->stopped, 1);
    assert_int_equal(world->ended[LEFT], 1);
    assert_null(world->channels[LEFT]);
}

static void every_role_of_the_product_has_a_complete_row(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < ROLE_COUNT; i++) {
        const struct role_row *row = &roles[i];
        assert_ptr_equal(role_find(row->name), row);
        assert_int_equal(row->main != NULL, row->calls != NULL); /* cloister-mail has the others */
        assert_int_equal(row->peers & BIT(i), 0);
        assert_int_equal(row->peers >> ROLE_COUNT, 0);
        assert_true(row->directory == GRANT_NONE || role_fd(row, row->directory) >= ROLE_FIRST_FD);
        if (row->on_demand)
            continue; /* the rest is the supervisor's */
        assert_in_range(row->restart_first_ms, 1, row->restart_max_ms);
        assert_in_range(row->stop_ms, 1, 60000);
    }
    assert_null(role_find("nobody"));
}

#define SUPERVISOR_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        SUPERVISOR_CASE(a_role_gets_the_grants_of_its_row_and_no_others),
        SUPERVISOR_CASE(peers_are_connected_and_get_a_new_connection_when_one_is_restarted),
        SUPERVISOR_CASE(what_a_role_asked_of_a_peer_that_dies_fails),
        SUPERVISOR_CASE(a_role_that_is_left_out_is_not_started),
        SUPERVISOR_CASE(a_role_that_sends_what_its_row_does_not_allow_is_killed_and_restarted),
        SUPERVISOR_CASE(a_role_that_cannot_start_is_tried_again),
        SUPERVISOR_CASE(a_role_that_does_not_stop_is_killed),
        CASE(every_role_of_the_product_has_a_complete_row),
    };

    if (argc == 4 && !strcmp(argv[1], "role"))
        return role_run(&rows[strcmp(argv[2], "left") ? RIGHT : LEFT], argv[3]);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
