#include "daemon/resolvers.h"

#include <stdio.h>
#include <stdlib.h>

#include "../io/pump.h"
#include "base/fd.h"
#include "base/log.h"

struct world {
    char path[64];
    struct loop *loop;
    struct channel *sender, *receiver;
    struct resolvers *resolvers;
    char text[256];
    unsigned told;
};

static bool on_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                     struct err *err)
{
    struct world *world = context;

    (void)fds;
    (void)err;
    assert_int_equal(type, MESSAGE_RESOLVERS);
    (void)snprintf(world->text, sizeof world->text, "%.*s", STR_ARG(payload));
    world->told++;
    return true;
}

/* By rename, as the programs do that manage this file. */
static void put(struct world *world, const char *text)
{
    char other[80];
    struct err err;

    (void)snprintf(other, sizeof other, "%s.new", world->path);
    (void)unlink(other);
    int fd = open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && fd_write_all(fd, str_from(text), &err));
    (void)close(fd);
    assert_int_equal(rename(other, world->path), 0);
}

static void set_up(struct world *world)
{
    static const struct channel_handlers none = { 0 }, handlers = { .event = on_event };
    int pair[2];
    struct err err;

    *world = (struct world){ .path = "/tmp/resolvers-test-XXXXXX" };
    (void)close(mkstemp(world->path));
    world->loop = loop_new();
    assert_true(channel_pair(pair, &err));
    world->sender = channel_new(world->loop, pair[0], &none, world);
    world->receiver = channel_new(world->loop, pair[1], &handlers, world);
    world->resolvers = resolvers_new(world->loop, world->path, 5);
}

static void tear_down(struct world *world)
{
    resolvers_free(world->resolvers);
    channel_free(world->sender);
    channel_free(world->receiver);
    loop_free(world->loop);
    (void)unlink(world->path);
}

static void a_new_egress_is_told_the_servers_and_later_ones_too(void **state)
{
    struct world world;

    (void)state;
    set_up(&world);
    put(&world, "nameserver 192.0.2.1\n");
    pump_some(world.loop);
    assert_int_equal(world.told, 0); /* there is no egress */
    resolvers_tell(world.resolvers, world.sender);
    PUMP_UNTIL(world.loop, world.told == 1);
    assert_string_equal(world.text, "nameserver 192.0.2.1\n");
    pump_some(world.loop);
    assert_int_equal(world.told, 1); /* nothing has changed */
    put(&world, "nameserver 192.0.2.2\n");
    PUMP_UNTIL(world.loop, world.told == 2);
    assert_string_equal(world.text, "nameserver 192.0.2.2\n");
    resolvers_tell(world.resolvers, NULL);
    put(&world, "nameserver 192.0.2.3\n");
    pump_some(world.loop);
    assert_int_equal(world.told, 2);
    tear_down(&world);
}

static void a_file_that_is_missing_or_too_long_changes_nothing(void **state)
{
    char large[LIMIT_RESOLV_CONF_BYTES + 2];
    struct world world;

    (void)state;
    log_setup("test", LOG_ERROR);
    set_up(&world);
    put(&world, "nameserver 192.0.2.1\n");
    resolvers_tell(world.resolvers, world.sender);
    PUMP_UNTIL(world.loop, world.told == 1);
    (void)unlink(world.path);
    for (int i = 0; i < 5; i++)
        pump_some(world.loop);
    assert_string_equal(world.text, "nameserver 192.0.2.1\n");
    put(&world, "nameserver 192.0.2.2\n");
    PUMP_UNTIL(world.loop, strcmp(world.text, "nameserver 192.0.2.2\n") == 0);
    memset(large, '#', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    put(&world, large);
    for (int i = 0; i < 5; i++)
        pump_some(world.loop);
    assert_string_equal(world.text, "nameserver 192.0.2.2\n");

    /* An egress that is new gets them, too. */
    world.text[0] = '\0';
    resolvers_tell(world.resolvers, world.sender);
    PUMP_UNTIL(world.loop, strcmp(world.text, "nameserver 192.0.2.2\n") == 0);
    tear_down(&world);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_new_egress_is_told_the_servers_and_later_ones_too),
        CASE(a_file_that_is_missing_or_too_long_changes_nothing),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
