#include "io/listen.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "io/address.h"
#include "io/dial.h"
#include "io/pump.h"

static struct loop *loop;
static int accepted[200];
static unsigned accepted_count;

static void note_accepted(void *context, int fd)
{
    (void)context;
    accepted[accepted_count++] = fd;
}

static void close_accepted(void)
{
    while (accepted_count)
        close(accepted[--accepted_count]);
}

static void addresses_without_names_are_read(void **state)
{
    struct sockaddr_storage at;
    socklen_t len;
    struct err err;

    (void)state;
    assert_true(address_parse(STR("127.0.0.1:7070"), &at, &len, &err));
    assert_int_equal(at.ss_family, AF_INET);
    assert_int_equal(ntohs(((struct sockaddr_in *)&at)->sin_port), 7070);
    assert_true(address_parse(STR("[::1]:65535"), &at, &len, &err));
    assert_int_equal(at.ss_family, AF_INET6);
    static const char *const bad[] = { "",         "127.0.0.1",    "127.0.0.1:",    "127.0.0.1:65536", "127.0.0.1:-1",
                                       "::1:7070", "[::1]7070",    "[::1]",         "localhost:7070",  "[127.0.0.1]:1",
                                       "1.2.3:4",  "127.0.0.1:1 ", "127.0.0.1:0x1", "[::1:80" };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (address_parse(str_from(bad[i]), &at, &len, &err))
            fail_msg("accepted: %s", bad[i]);
    assert_int_equal(err.kind, ERR_INVALID);
}

static struct str own_address(int fd, char room[64])
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;

    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    return str_of(room, (size_t)snprintf(room, 64, "127.0.0.1:%u", ntohs(at.sin_port)));
}

static void connections_are_accepted_and_ready_to_use(void **state)
{
    char room[64];
    struct err err;

    (void)state;
    loop = loop_new();
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    assert_true(fd >= 0);
    struct str address = own_address(fd, room);
    struct listener *listener = listener_new(loop, fd, 64, note_accepted, NULL);
    int mine = dial_open(address, &err);
    assert_true(mine >= 0);
    PUMP_UNTIL(loop, accepted_count == 1);
    assert_true(fcntl(accepted[0], F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(accepted[0], F_GETFD) & FD_CLOEXEC);
    int value = 0;
    socklen_t len = sizeof value;
    assert_int_equal(getsockopt(accepted[0], IPPROTO_TCP, 1 /* TCP_NODELAY */, &value, &len), 0);
    assert_int_equal(value, 1);
    assert_int_equal(getsockopt(accepted[0], SOL_SOCKET, SO_KEEPALIVE, &value, &len), 0);
    assert_int_equal(value, 1);

    assert_int_equal(listen_open(address, &err), -1);
    assert_int_equal(err.kind, ERR_CONFLICT);
    close_accepted();
    close(mine);
    listener_free(listener);
    listener_free(NULL);
    loop_free(loop);
}

static void a_listener_that_is_off_accepts_nothing_and_the_rest_of_a_turn_is_for_others(void **state)
{
    int mine[5];
    char room[64];
    struct err err;

    (void)state;
    loop = loop_new();
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    struct str address = own_address(fd, room);
    struct listener *listener = listener_new(loop, fd, 2, note_accepted, NULL);
    listener_accept(listener, false);
    for (size_t i = 0; i < COUNT_OF(mine); i++)
        mine[i] = dial_open(address, &err);
    pump_some(loop);
    assert_int_equal(accepted_count, 0);
    listener_accept(listener, true);
    for (unsigned turn = 1; turn <= 3; turn++) {
        loop_stop_soon(loop);
        loop_run(loop);
        assert_int_equal(accepted_count, MIN(2 * turn, COUNT_OF(mine)));
    }
    close_accepted();
    for (size_t i = 0; i < COUNT_OF(mine); i++)
        close(mine[i]);
    listener_free(listener);
    loop_free(loop);
}

static void running_out_of_descriptors_is_waited_out(void **state)
{
    char room[64];
    struct err err;
    struct rlimit limit, tight;
    int hoard[4096];
    unsigned hoarded = 0;

    (void)state;
    loop = loop_new();
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    struct str address = own_address(fd, room);
    struct listener *listener = listener_new(loop, fd, 64, note_accepted, NULL);
    pump_turn(loop);
    int mine = dial_open(address, &err);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    tight = limit;
    tight.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    while (hoarded < COUNT_OF(hoard) && (hoard[hoarded] = dup(0)) >= 0)
        hoarded++;
    pump_some(loop);
    assert_int_equal(accepted_count, 0);
    while (hoarded)
        close(hoard[--hoarded]);
    PUMP_UNTIL(loop, accepted_count == 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    close_accepted();
    close(mine);
    listener_free(listener);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(addresses_without_names_are_read),
        CASE(connections_are_accepted_and_ready_to_use),
        CASE(a_listener_that_is_off_accepts_nothing_and_the_rest_of_a_turn_is_for_others),
        CASE(running_out_of_descriptors_is_waited_out),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
