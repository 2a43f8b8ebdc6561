/* Keeper's side of MESSAGE_NETWORK, with the fake driver, and egress's end of the channel in the test. */
#include "isolation/networks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "fake.h"
#include "io/pump.h"
#include "test.h"

struct world {
    struct loop *loop;
    struct fake fake;
    struct networks *networks;
    struct channel *keeper, *egress;
    unsigned sockets, bare, exits; /* bare: told of without sockets */
    char last[LIMIT_ID_BYTES];
};

/* The clock stands but for this, so that pauses between attempts are as long as they should be. */
static void turn_for(struct world *world, unsigned ms)
{
    for (unsigned i = 0; i < ms; i++)
        pump_turn(world->loop);
}

static void take_sockets(struct world *world, struct str payload, struct message_fds *fds)
{
    static const int want[] = { SOCK_STREAM, SOCK_DGRAM };
    struct unpack in = unpack_from(payload);
    struct err err;

    message_unpack_id(&in, world->last);
    uint8_t there = unpack_u8(&in);
    assert_true(unpack_done(&in, &err));
    if (!there) {
        assert_int_equal(fds->count, 0);
        world->bare++;
        return;
    }
    assert_int_equal(there, BIT(DIVERT_TCP4) | BIT(DIVERT_UDP4));
    assert_int_equal(fds->count, COUNT_OF(want));
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        int type;
        assert_int_equal(getsockopt(fds->at[i], SOL_SOCKET, SO_TYPE, &type, &(socklen_t){ sizeof type }), 0);
        assert_int_equal(type, want[i]);
    }
    world->sockets++;
}

static bool egress_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                         struct err *err)
{
    struct world *world = context;
    struct unpack in = unpack_from(payload);

    (void)err;
    if (type == MESSAGE_NETWORK) {
        take_sockets(world, payload, fds);
        return true;
    }
    assert_int_equal(type, MESSAGE_EXITED);
    message_unpack_id(&in, world->last);
    world->exits++;
    return true;
}

static void start_egress(struct world *world)
{
    static const struct channel_handlers handlers = { .event = egress_event };
    int fds[2];
    struct err err;

    channel_free(world->keeper);
    channel_free(world->egress);
    assert_true(channel_pair(fds, &err));
    world->keeper = channel_new(world->loop, fds[0], &handlers, world);
    world->egress = channel_new(world->loop, fds[1], &handlers, world);
    networks_tell(world->networks, world->keeper);
}

static int set_up(void **state)
{
    struct world *world = NEW(struct world);

    hand_clock_start();
    hand_clock_stand();
    world->loop = loop_new();
    fake_make(&world->fake);
    world->networks = networks_new(world->loop, &world->fake.driver);
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;

    networks_free(world->networks);
    channel_free(world->keeper);
    channel_free(world->egress);
    turn_for(world, 1);
    fake_drop(&world->fake);
    loop_free(world->loop);
    hand_clock_end();
    free(world);
    return 0;
}

static void egress_gets_sockets_of_all_sandboxes_and_of_each_new_one(void **state)
{
    struct world *world = *state;

    for (int i = 0; i < 40; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "sandbox%d", i);
        fake_hold(&world->fake, id);
    }
    networks_started(world->networks, "sandbox0"); /* there is no egress yet */
    turn_for(world, 5);
    assert_int_equal(world->fake.diverts, 0);
    start_egress(world);
    turn_for(world, 50);
    assert_int_equal(world->sockets, 40);
    assert_int_equal(world->fake.diverts, 40);

    fake_hold(&world->fake, "another");
    networks_started(world->networks, "another");
    assert_int_equal(world->fake.diverts, 41); /* at once */
    turn_for(world, 10);
    assert_int_equal(world->sockets, 41);
    assert_string_equal(world->last, "another");

    /* A new one has none of the old one's. */
    networks_tell(world->networks, NULL);
    networks_started(world->networks, "another");
    turn_for(world, 10);
    assert_int_equal(world->sockets, 41);
    start_egress(world);
    turn_for(world, 50);
    assert_int_equal(world->sockets, 41 + 41);
}

static void exit_message(struct world *world, const char *id)
{
    auto_buf struct buf payload = buf_make(NULL, 64);

    message_pack_id(&payload, id);
    pack_u8(&payload, EXIT_PLAIN);
    networks_exited(world->networks, id, buf_str(&payload));
}

static void egress_hears_of_exits(void **state)
{
    struct world *world = *state;

    exit_message(world, "sandbox1"); /* there is no egress: nothing to send to */
    start_egress(world);
    exit_message(world, "sandbox2");
    turn_for(world, 10);
    assert_int_equal(world->exits, 1);
    assert_string_equal(world->last, "sandbox2");
}

static void a_port_that_a_guest_has_taken_is_tried_again_until_it_is_free(void **state)
{
    struct world *world = *state;

    fake_hold(&world->fake, "sandbox1");
    world->fake.divert_fails = ERR_CONFLICT;
    start_egress(world);
    turn_for(world, 100);
    assert_int_equal(world->sockets, 0);
    assert_int_equal(world->bare, 1);         /* or egress would forget its policy */
    assert_int_equal(world->fake.diverts, 1); /* with pauses */
    turn_for(world, 400);
    assert_int_equal(world->fake.diverts, 2);
    world->fake.divert_fails = ERR_NONE;
    turn_for(world, 800);
    assert_int_equal(world->sockets, 1);
    assert_int_equal(world->bare, 1); /* once is enough */
    turn_for(world, 1200);
    assert_int_equal(world->fake.diverts, 3);
}

/* What is logged while this runs for some milliseconds. */
static size_t logged(struct world *world, unsigned ms, char *text, size_t size)
{
    auto_close int log_fd = memfd_create("log", MFD_CLOEXEC);
    auto_close int kept_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

    assert_true(log_fd >= 0 && kept_fd >= 0);
    assert_true(dup2(log_fd, STDERR_FILENO) >= 0);
    turn_for(world, ms);
    assert_true(dup2(kept_fd, STDERR_FILENO) >= 0);
    ssize_t n = pread(log_fd, text, size - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    return (size_t)n;
}

static void a_failure_is_logged_if_the_next_try_fails_too(void **state)
{
    struct world *world = *state;
    char text[1024];

    fake_hold(&world->fake, "sandbox1");
    world->fake.divert_fails = ERR_CONFLICT;
    start_egress(world);
    assert_int_equal(logged(world, 100, text, sizeof text), 0);
    assert_int_equal(world->fake.diverts, 1);
    world->fake.divert_fails = ERR_NONE;
    assert_int_equal(logged(world, 400, text, sizeof text), 0); /* the old egress has closed its sockets now */
    assert_int_equal(world->sockets, 1);

    world->fake.divert_fails = ERR_CONFLICT;
    start_egress(world);
    assert_true(logged(world, 500, text, sizeof text) > 0);
    assert_int_equal(world->fake.diverts, 4);
    char *first = strstr(text, "sandbox1 has no network for now");
    assert_non_null(first);
    assert_null(strstr(first + 1, "sandbox1"));
    world->fake.divert_fails = ERR_NONE;
    assert_true(logged(world, 700, text, sizeof text) > 0);
    assert_non_null(strstr(text, "sandbox1 has network again"));
}

static void a_sandbox_that_ends_or_has_no_network_is_not_tried_again(void **state)
{
    struct world *world = *state;

    fake_hold(&world->fake, "sandbox1");
    fake_hold(&world->fake, "sandbox2");
    world->fake.divert_fails = ERR_CONFLICT;
    start_egress(world);
    turn_for(world, 20);
    assert_int_equal(world->fake.diverts, 2);
    exit_message(world, "sandbox1");
    world->fake.divert_fails = ERR_UNAVAILABLE;
    turn_for(world, 1000);
    assert_int_equal(world->fake.diverts, 3);
    assert_int_equal(world->sockets, 0);
}

#define NETWORKS_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        NETWORKS_CASE(egress_gets_sockets_of_all_sandboxes_and_of_each_new_one),
        NETWORKS_CASE(egress_hears_of_exits),
        NETWORKS_CASE(a_port_that_a_guest_has_taken_is_tried_again_until_it_is_free),
        NETWORKS_CASE(a_failure_is_logged_if_the_next_try_fails_too),
        NETWORKS_CASE(a_sandbox_that_ends_or_has_no_network_is_not_tried_again),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
