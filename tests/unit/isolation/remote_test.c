/*
 * Front's half and keeper's half of the driver over one channel, with the fake underneath.
 */
#include "isolation/remote.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "fake.h"
#include "io/listen.h"
#include "isolation/ops.h"
#include "isolation/serve.h"
#include "test.h"
#include "turn.h"

enum { TURN_MS = 30 };

struct world {
    struct loop *loop;
    struct fake fake;
    struct driver *remote;
    struct serve *serve;
    struct channel *front, *keeper;
    unsigned broken, exits;
    bool leave_at_once; /* keeper forgets the channel while it owes an answer */
    char exited[LIMIT_ID_BYTES];
    struct socket_option refused;
    int dialed_fd;
    struct err dial_err;
    struct driver_ops ops; /* the fake's, and those of a test */
    enum pause_call paused[2 * PAUSE_CALL_COUNT];
    unsigned pauses;
    bool memory;
    char paused_id[LAYER_ID_BYTES];
    enum err_kind pause_fails;
    bool lists_wrongly; /* the same twice */
    bool pause_later;   /* the answer waits here: */
    driver_kept_fn *later;
    void *later_context;
    driver_started_fn *starts[3]; /* under way, by start_slowly(); NULL: answered */
    void *start_contexts[3];
    char start_ids[3][LIMIT_ID_BYTES];
    unsigned start_count;
    enum err_kind start_kinds[4]; /* what front was answered */
    unsigned unpacks;
    struct unpack_want want;
    int child_fd; /* of what stands for keeper's child */
    struct watch *child;
    char archive[16];
    bool unpacks_wrongly;              /* says that it has made another layer */
    unsigned listed;                   /* by list_many() */
    void (*work)(struct world *world); /* runs on a thread, as a worker would */
};

static bool keeper_request(void *context, struct channel *channel, enum message_type type, uint32_t id,
                           struct str payload, struct message_fds *fds, struct err *err)
{
    struct world *world = context;

    (void)fds;
    bool fine = serve_request(world->serve, channel, type, id, payload, err);
    if (world->leave_at_once)
        serve_leave(world->serve, channel);
    return fine;
}

static bool front_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                        struct err *err)
{
    struct world *world = context;

    return remote_driver_event(world->remote, type, payload, fds, err);
}

static void note_broken(void *context, const struct err *why)
{
    struct world *world = context;

    (void)why;
    world->broken++;
}

static void note_exit(void *context, const char *id, enum exit_cause cause)
{
    struct world *world = context;

    assert_int_equal(cause, EXIT_PLAIN);
    world->exits++;
    (void)snprintf(world->exited, sizeof world->exited, "%s", id);
}

static void note_refused(void *context, const char *id, const struct socket_option *option)
{
    struct world *world = context;

    (void)snprintf(world->exited, sizeof world->exited, "%s", id);
    world->refused = *option;
}

static const struct channel_handlers keeper_handlers = { .request = keeper_request, .broken = note_broken };
static const struct channel_handlers front_handlers = { .event = front_event, .broken = note_broken };

static const struct serve_limits limits = { .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 20, .sandboxes = 2 };

static int set_up(void **state)
{
    struct world *world = NEW(struct world);
    int fds[2];
    struct err err;

    world->loop = loop_new();
    fake_make(&world->fake);
    world->fake.dial_later = world->loop;
    world->serve = serve_new(world->loop, &world->fake.driver, &limits);
    assert_true(channel_pair(fds, &err));
    world->front = channel_new(world->loop, fds[0], &front_handlers, world);
    world->keeper = channel_new(world->loop, fds[1], &keeper_handlers, world);
    serve_tell_exits(world->serve, world->keeper);
    world->remote = remote_driver_new(world->front);
    world->remote->exited = note_exit;
    world->remote->refused = note_refused;
    world->remote->exited_context = world;
    world->dialed_fd = -1;
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;

    driver_free(world->remote);
    serve_free(world->serve);
    channel_free(world->front);
    channel_free(world->keeper);
    turn_for(world->loop, TURN_MS);
    fake_drop(&world->fake);
    loop_free(world->loop);
    fd_close(&world->dialed_fd);
    free(world);
    return 0;
}

static void *on_thread(void *context)
{
    struct world *world = context;

    world->work(world);
    loop_stop_soon(world->loop);
    return NULL;
}

static void run_on_worker(struct world *world, void (*work)(struct world *world))
{
    pthread_t thread;

    world->work = work;
    assert_int_equal(pthread_create(&thread, NULL, on_thread, world), 0);
    loop_run(world->loop);
    (void)pthread_join(thread, NULL);
}

static struct plan a_plan(const char *id)
{
    struct plan plan = {
        .hostname = "cloister", .layer_count = 1, .memory_bytes = 64 << 20, .cpu_millis = 1000, .pids = 20
    };

    (void)snprintf(plan.id, sizeof plan.id, "%s", id);
    memset(plan.layers[0], 'a', 64);
    return plan;
}

/* Whether what is written to this end of guestlink arrives at guestd's. */
static void check_link(struct world *world, int guestlink_fd)
{
    char text[4];

    assert_int_equal(write(guestlink_fd, "ping", 4), 4);
    assert_int_equal(recv(world->fake.held[0].peer_fd, text, sizeof text, MSG_WAITALL), 4);
    assert_memory_equal(text, "ping", 4);
    (void)close(guestlink_fd);
}

static void start_talk_and_stop(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    struct started started;
    struct held *held = NULL;
    uint32_t count = 0;
    struct err err;
    int link_fd;

    assert_true(driver_start(world->remote, &plan, &started, &err));
    assert_memory_equal(&plan, &world->fake.last_plan, sizeof plan);
    assert_true(started.has_network);
    check_link(world, started.guestlink_fd);
    assert_true(driver_link(world->remote, "sandbox1", &link_fd, &err));
    check_link(world, link_fd);
    assert_false(driver_link(world->remote, "sandbox2", &link_fd, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_true(driver_list(world->remote, &held, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(held[0].id, "sandbox1");
    assert_true(held[0].has_network);
    free(held);
    bool gone = false;
    assert_true(driver_stop_wait(world->remote, "sandbox1", 1000, &gone, &err));
    assert_true(gone);
    assert_int_equal(world->fake.held_count, 0);
}

static void calls_go_through_and_exits_come_back(void **state)
{
    struct world *world = *state;

    run_on_worker(world, start_talk_and_stop);
    fake_exit(&world->fake, STR("sandbox1"));
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->exits, 1);
    assert_string_equal(world->exited, "sandbox1");
    assert_int_equal(world->broken, 0);
}

static void a_refused_socket_option_is_told(void **state)
{
    struct world *world = *state;
    struct driver *driver = &world->fake.driver;

    driver->refused(driver->exited_context, "sandbox1", &(struct socket_option){ 6, 31 });
    turn_for(world->loop, TURN_MS);
    assert_string_equal(world->exited, "sandbox1");
    assert_int_equal(world->refused.level, 6);
    assert_int_equal(world->refused.name, 31);
    assert_int_equal(world->broken, 0);
}

static void a_malformed_event_about_a_socket_option_is_refused(void **state)
{
    struct world *world = *state;
    struct message_fds none = { .count = 0 };
    struct err err;

    assert_false(remote_driver_event(world->remote, MESSAGE_OPTION, STR("\0\0\0\3one\0\0\0\6"), &none, &err));
    assert_false(remote_driver_event(world->remote, MESSAGE_OPTION, STR(""), &none, &err));
    assert_string_equal(world->exited, "");
}

static bool warm_one(struct driver *driver, const char *id, struct err *err)
{
    (void)driver;
    return strcmp(id, "sandbox1") == 0 || err_set(err, ERR_UNAVAILABLE, "the zygote is not warm yet");
}

static void warm_two(struct world *world)
{
    struct err err;

    assert_false(driver_warm(world->remote, "sandbox1", &err)); /* the fake has no zygotes */
    assert_int_equal(err.kind, ERR_INVALID);
    world->ops = *world->fake.driver.ops;
    world->ops.warm = warm_one;
    world->fake.driver.ops = &world->ops;
    assert_true(driver_warm(world->remote, "sandbox1", &err));
    assert_false(driver_warm(world->remote, "sandbox2", &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_string_equal(err.message, "the zygote is not warm yet");
}

static void whether_a_zygote_is_warm_crosses_the_channel(void **state)
{
    run_on_worker(*state, warm_two);
}

static void start_badly(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    struct started started;
    struct err err;

    world->fake.start = FAKE_START_IS_FULL;
    assert_false(driver_start(world->remote, &plan, &started, &err));
    assert_int_equal(err.kind, ERR_FULL);
    assert_string_equal(err.message, "a sandbox needs 32 MiB of disk");
    world->fake.start = FAKE_STARTS;
    plan.pids = 0;
    assert_false(driver_start(world->remote, &plan, &started, &err));
    assert_int_equal(err.kind, ERR_INVALID);
}

static void keepers_errors_arrive_whole(void **state)
{
    struct world *world = *state;

    run_on_worker(world, start_badly);
    assert_int_equal(world->broken, 0);
}

static void refuse(struct world *world, const struct plan *plan)
{
    struct started started;
    struct err err;

    assert_false(driver_start(world->remote, plan, &started, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
}

static void start_too_much(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    struct started started;
    struct err err;

    plan.memory_bytes = limits.memory_bytes + 1;
    refuse(world, &plan);
    plan = a_plan("sandbox1");
    plan.cpu_millis = limits.cpu_millis + 1;
    refuse(world, &plan);
    plan = a_plan("sandbox1");
    plan.pids = limits.pids + 1;
    refuse(world, &plan);
    for (char number = '1'; number <= '2'; number++) {
        plan = a_plan((char[]){ 's', number, '\0' });
        assert_true(driver_start(world->remote, &plan, &started, &err));
        fd_close(&started.guestlink_fd);
    }
    plan = a_plan("sandbox3");
    refuse(world, &plan);
    assert_int_equal(world->fake.starts, 2);
}

static void no_plan_goes_beyond_what_the_operator_allows(void **state)
{
    struct world *world = *state;

    run_on_worker(world, start_too_much);
    assert_int_equal(world->broken, 0);
}

static void start_slowly(struct driver *driver, const struct plan *plan, driver_started_fn *done, void *context)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    unsigned i = world->start_count++;

    assert_true(i < COUNT_OF(world->starts));
    world->starts[i] = done;
    world->start_contexts[i] = context;
    (void)snprintf(world->start_ids[i], sizeof world->start_ids[i], "%s", plan->id);
}

static void fail_start(struct driver *driver, const char *id)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    struct err err;

    (void)err_set(&err, ERR_INTERNAL, "failed on purpose");
    for (unsigned i = 0; i < world->start_count; i++)
        if (!strcmp(world->start_ids[i], id) && world->starts[i])
            take_ptr (&world->starts[i])(world->start_contexts[i], NULL, &err);
}

static void note_start_refused(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    (void)payload;
    (void)fds;
    *(enum err_kind *)context = err ? err->kind : ERR_NONE;
}

static void ask_for_start(struct world *world, const char *id, enum err_kind *out_kind)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct op_ask *asked = NEW(struct op_ask);

    asked->plan = a_plan(id);
    op_pack_ask(op_of(MESSAGE_START), &payload, asked);
    free(asked);
    channel_request(world->front, MESSAGE_START, buf_str(&payload), NULL, 0, note_start_refused, out_kind);
    turn_for(world->loop, TURN_MS);
}

static void let_starts_be_slow(struct world *world)
{
    world->ops = *world->fake.driver.ops;
    world->ops.start_later = start_slowly;
    world->ops.start_cancel = fail_start;
    world->fake.driver.ops = &world->ops;
}

static void starts_under_way_count_as_sandboxes(void **state)
{
    struct world *world = *state;
    enum err_kind *kinds = world->start_kinds;

    let_starts_be_slow(world);
    ask_for_start(world, "sandbox1", &kinds[0]);
    ask_for_start(world, "sandbox2", &kinds[1]);
    ask_for_start(world, "sandbox3", &kinds[2]);
    assert_int_equal(kinds[2], ERR_LIMIT);
    assert_int_equal(world->start_count, 2);
    fail_start(&world->fake.driver, "sandbox1");
    ask_for_start(world, "sandbox4", &kinds[3]);
    assert_int_equal(kinds[0], ERR_INTERNAL);
    assert_int_equal(world->start_count, 3);
    serve_leave(world->serve, world->keeper);
    assert_int_equal(world->broken, 0);
}

static void starts_of_a_front_that_is_gone_are_cancelled(void **state)
{
    struct world *world = *state;
    enum err_kind *kinds = world->start_kinds;

    let_starts_be_slow(world);
    ask_for_start(world, "sandbox1", &kinds[0]);
    ask_for_start(world, "sandbox2", &kinds[1]);
    serve_leave(world->serve, world->keeper);
    assert_int_equal(world->start_count, 2);
    assert_true(!world->starts[0] && !world->starts[1]);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(kinds[0], ERR_NONE); /* nothing was sent */
    assert_int_equal(world->broken, 0);
}

static void note_dialed(void *context, int fd, const struct err *err)
{
    struct world *world = context;

    world->dialed_fd = fd;
    if (err)
        world->dial_err = *err;
    loop_stop_soon(world->loop);
}

static void start_one(struct world *world)
{
    struct plan plan = a_plan("sandbox1");
    struct started started;
    struct err err;

    assert_true(driver_start(world->remote, &plan, &started, &err));
    fd_close(&started.guestlink_fd);
}

static void dial_hands_over_a_socket(void **state)
{
    struct world *world = *state;

    struct err err;
    auto_close int server = listen_open(STR("127.0.0.1:0"), &err);
    struct sockaddr_in address;
    assert_int_equal(getsockname(server, (struct sockaddr *)&address, &(socklen_t){ sizeof address }), 0);
    uint16_t port = ntohs(address.sin_port);

    run_on_worker(world, start_one);
    driver_dial(world->remote, "sandbox1", port, note_dialed, world);
    assert_int_equal(world->dialed_fd, -1);
    loop_run(world->loop);
    assert_true(world->dialed_fd >= 0);
    int type = 0;
    assert_int_equal(getsockopt(world->dialed_fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){ sizeof type }), 0);
    assert_int_equal(type, SOCK_STREAM);
    fd_close(&world->dialed_fd);
    fd_close(&server);
    driver_dial(world->remote, "sandbox1", port, note_dialed, world);
    loop_run(world->loop);
    assert_int_equal(world->dialed_fd, -1);
    assert_int_equal(world->dial_err.sys, ECONNREFUSED);
    driver_dial(world->remote, "sandbox2", port, note_dialed, world);
    loop_run(world->loop);
    assert_int_equal(world->dialed_fd, -1);
    assert_int_equal(world->dial_err.kind, ERR_NOT_FOUND);
}

static void check_listen(struct world *world, const char *id, const struct listen_at *at, enum err_kind want)
{
    world->dialed_fd = -1;
    world->dial_err.kind = ERR_NONE;
    driver_listen(world->remote, id, at, note_dialed, world);
    loop_run(world->loop);
    assert_int_equal(world->dial_err.kind, want);
    assert_true(want == ERR_NONE ? world->dialed_fd >= 0 : world->dialed_fd == -1);
}

static void listen_hands_over_a_listening_socket(void **state)
{
    struct world *world = *state;
    struct err err;
    auto_close int free_port = listen_open(STR("127.0.0.1:0"), &err);
    struct sockaddr_in address;
    assert_int_equal(getsockname(free_port, (struct sockaddr *)&address, &(socklen_t){ sizeof address }), 0);
    struct listen_at at = { .address = INADDR_LOOPBACK + 1, .port = ntohs(address.sin_port), .backlog = 1 };

    run_on_worker(world, start_one);
    check_listen(world, "sandbox1", &at, ERR_NONE);
    assert_int_equal(getsockname(world->dialed_fd, (struct sockaddr *)&address, &(socklen_t){ sizeof address }), 0);
    assert_int_equal(ntohl(address.sin_addr.s_addr), at.address);
    assert_int_equal(ntohs(address.sin_port), at.port);
    int listens = 0;
    assert_int_equal(getsockopt(world->dialed_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &(socklen_t){ sizeof listens }),
                     0);
    assert_true(listens);
    fd_close(&world->dialed_fd);

    check_listen(world, "sandbox2", &at, ERR_NOT_FOUND);
    struct listen_at wrong = at;
    wrong.address = INADDR_ANY;
    check_listen(world, "sandbox1", &wrong, ERR_INVALID);
    wrong.address = 0x0a000001; /* 10.0.0.1 */
    check_listen(world, "sandbox1", &wrong, ERR_INVALID);
    wrong = at;
    wrong.port = 0;
    check_listen(world, "sandbox1", &wrong, ERR_INVALID);
    wrong = at;
    wrong.backlog = 0;
    check_listen(world, "sandbox1", &wrong, ERR_INVALID);
    wrong.backlog = LIMIT_BACKLOG + 1;
    check_listen(world, "sandbox1", &wrong, ERR_INVALID);
    assert_int_equal(world->broken, 0);
}

static void an_answer_that_comes_after_front_has_gone_is_dropped(void **state)
{
    struct world *world = *state;

    run_on_worker(world, start_one);
    world->leave_at_once = true;
    world->dialed_fd = -2;
    driver_dial(world->remote, "sandbox2", 1, note_dialed, world);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->dialed_fd, -2);
    channel_free(take_ptr(&world->front)); /* what still waits is told that keeper is gone */
    assert_int_equal(world->dialed_fd, -1);
    assert_int_equal(world->dial_err.kind, ERR_UNAVAILABLE);
}

static void ignore_answer(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    (void)context;
    (void)payload;
    (void)fds;
    (void)err;
}

static void stop_one_that_sticks(struct world *world)
{
    struct held *held = NULL;
    uint32_t count;
    struct err err;
    bool gone = true;

    start_one(world);
    world->fake.stop_sticks = true;
    assert_true(driver_stop_wait(world->remote, "sandbox1", 100, &gone, &err));
    assert_false(gone);
    assert_true(driver_list(world->remote, &held, &count, &err));
    assert_int_equal(count, 0);
    free(held);
    world->fake.stop_failures = 1;
    assert_false(driver_stop_wait(world->remote, "sandbox1", 100, &gone, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
}

static void a_stop_is_answered_before_the_end_of_a_guest_that_takes_long(void **state)
{
    struct world *world = *state;

    run_on_worker(world, stop_one_that_sticks);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->exits, 0);
    fake_exit(&world->fake, STR("sandbox1"));
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->exits, 1);
    assert_int_equal(world->broken, 0);
}

static void more_patience_than_allowed_ends_front(void **state)
{
    struct world *world = *state;
    auto_buf struct buf payload = buf_make(NULL, 100);

    message_pack_id(&payload, "sandbox1");
    pack_u32(&payload, LIMIT_STOP_MS + 1);
    channel_request(world->front, MESSAGE_STOP, buf_str(&payload), NULL, 0, ignore_answer, NULL);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->broken, 2);
}

static void a_malformed_request_ends_front(void **state)
{
    struct world *world = *state;

    channel_request(world->front, MESSAGE_START, STR("not a plan"), NULL, 0, ignore_answer, NULL);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->broken, 2); /* keeper broke it, front saw it close */
    assert_int_equal(world->fake.starts, 0);
}

static void look_at_one(struct world *world)
{
    const struct held which[] = { { "gone" }, { "sandbox1" } };
    struct stats stats[2];
    uint32_t count;
    struct err err;

    assert_true(driver_stats(world->remote, which, 2, stats, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(stats[0].id, "sandbox1");
    assert_int_equal(stats[0].memory_limit_bytes, 1 << 30);
    assert_int_equal(stats[0].cpu_us, 1000);
    world->fake.stats_fail = true;
    assert_false(driver_stats(world->remote, which, 2, stats, &count, &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
}

static void figures_come_for_those_that_live(void **state)
{
    struct world *world = *state;

    run_on_worker(world, start_one);
    run_on_worker(world, look_at_one);
    assert_int_equal(world->broken, 0);
}

static void a_front_that_is_gone_is_told_nothing(void **state)
{
    struct world *world = *state;

    run_on_worker(world, start_one);
    serve_leave(world->serve, world->keeper);
    fake_exit(&world->fake, STR("sandbox1"));
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->exits, 0);
}

/* ---- the calls of a pause ---- */

static void note_pause(struct driver *driver, enum pause_call call, const char *id, bool memory, driver_kept_fn *done,
                       void *context)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    struct kept kept = { .has_image = memory, .layer_bytes = 4096, .image_bytes = 1ull << 40 };
    struct err err;

    world->paused[world->pauses++] = call;
    world->memory = memory;
    (void)snprintf(world->paused_id, sizeof world->paused_id, "%s", id);
    if (world->pause_later) {
        world->later = done;
        world->later_context = context;
        return;
    }
    if (world->pause_fails) {
        (void)err_set(&err, world->pause_fails, "a process is being debugged");
        done(context, NULL, &err);
        return;
    }
    memset(kept.id, 'c', sizeof kept.id - 1);
    kept.layer_count = 2;
    memset(kept.layers[0], 'a', sizeof kept.layers[0] - 1);
    memcpy(kept.layers[1], kept.id, sizeof kept.id);
    done(context, call >= PAUSE_SNAPSHOT && call <= PAUSE_COPY ? &kept : NULL, NULL);
}

static void note_freeze(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_FREEZE, id, false, done, context);
}

static void note_thaw(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_THAW, id, false, done, context);
}

static void note_park(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_PARK, id, memory, done, context);
}

static void note_snapshot(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_SNAPSHOT, id, memory, done, context);
}

static void note_seal(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_SEAL, id, false, done, context);
}

static void note_copy(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_COPY, id, false, done, context);
}

static void note_drop(struct driver *driver, const char *snapshot, driver_kept_fn *done, void *context)
{
    note_pause(driver, PAUSE_DROP, snapshot, false, done, context);
}

static void note_measure(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    const struct kept kept = {
        .layer_bytes = 5, .image_bytes = 6, .raw_bytes = 1ull << 41, .has_image = true, .is_final = true
    };

    world->paused[world->pauses++] = PAUSE_MEASURE;
    (void)snprintf(world->paused_id, sizeof world->paused_id, "%s", id);
    world->memory = false;
    done(context, &kept, NULL);
}

/* One page, and then none. */
static void note_list(struct driver *driver, const char *after, driver_kept_fn *done, void *context)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    struct kept page = { .layer_count = after[0] == '\0' ? 2 : 0 };

    world->paused[world->pauses++] = PAUSE_LIST;
    (void)snprintf(world->paused_id, sizeof world->paused_id, "%s", after);
    memset(page.layers[0], 'a', LAYER_ID_BYTES - 1);
    memset(page.layers[1], world->lists_wrongly ? 'a' : 'b', LAYER_ID_BYTES - 1);
    done(context, &page, NULL);
}

static void can_pause(struct world *world)
{
    world->ops = *world->fake.driver.ops;
    world->ops.freeze = note_freeze;
    world->ops.thaw = note_thaw;
    world->ops.park = note_park;
    world->ops.snapshot = note_snapshot;
    world->ops.seal = note_seal;
    world->ops.copy = note_copy;
    world->ops.drop = note_drop;
    world->ops.list_snapshots = note_list;
    world->ops.measure = note_measure;
    world->fake.driver.ops = &world->ops;
}

static const char a_snapshot[] = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

static void pause_in_every_way(struct world *world)
{
    struct kept kept;
    struct err err;

    for (int call = 0; call < PAUSE_CALL_COUNT; call++) {
        bool memory = call == PAUSE_PARK || call == PAUSE_SNAPSHOT;
        const char *id = call >= PAUSE_DROP ? a_snapshot : "sandbox1";
        assert_true(driver_pause_call(world->remote, (enum pause_call)call, id, memory, &kept, &err));
        assert_int_equal(world->paused[call], call);
        assert_string_equal(world->paused_id, id);
        assert_int_equal(world->memory, memory);
        assert_string_equal(kept.id, call >= PAUSE_SNAPSHOT && call <= PAUSE_COPY ? a_snapshot : "");
    }
    assert_true(driver_pause_call(world->remote, PAUSE_SNAPSHOT, "sandbox1", true, &kept, &err));
    assert_true(kept.has_image);
    assert_int_equal(kept.layer_bytes, 4096);
    assert_int_equal(kept.image_bytes, 1ull << 40);
    assert_int_equal(kept.layer_count, 2);
    assert_int_equal(kept.layers[0][0], 'a');
    assert_string_equal(kept.layers[1], a_snapshot);
    assert_true(driver_pause_call(world->remote, PAUSE_LIST, "", false, &kept, &err));
    assert_int_equal(kept.layer_count, 2);
    assert_int_equal(kept.layers[1][0], 'b');
    assert_true(driver_pause_call(world->remote, PAUSE_MEASURE, "sandbox1", false, &kept, &err));
    assert_string_equal(world->paused_id, "sandbox1");
    assert_int_equal(kept.layer_bytes, 5);
    assert_int_equal(kept.image_bytes, 6);
    assert_int_equal(kept.raw_bytes, 1ull << 41);
    assert_true(kept.is_final);
    world->lists_wrongly = true;
    assert_false(driver_pause_call(world->remote, PAUSE_LIST, "", false, &kept, &err));
    world->pause_fails = ERR_INVALID;
    assert_false(driver_pause_call(world->remote, PAUSE_PARK, "sandbox1", true, NULL, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_string_equal(err.message, "a process is being debugged");
}

static void the_calls_of_a_pause_go_through(void **state)
{
    struct world *world = *state;

    can_pause(world);
    run_on_worker(world, pause_in_every_way);
    assert_int_equal(world->broken, 0);
}

/* ---- unpack ---- */

/* As a child would. */
static void receive_archive(struct world *world, int socket_fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    struct iovec bytes = { &byte, 1 };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    int fd;

    assert_int_equal(recvmsg(socket_fd, &message, 0), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    assert_int_equal(pread(fd, world->archive, sizeof world->archive, 0), 7);
    (void)close(fd);
}

static void note_archive(void *context, unsigned ready)
{
    struct world *world = context;
    struct kept kept = { .layer_bytes = 77, .layer_count = world->want.layer_count + 1 };

    (void)ready;
    receive_archive(world, world->child_fd);
    watch_free(take_ptr(&world->child));
    fd_close(&world->child_fd);
    memcpy(kept.id, world->unpacks_wrongly ? world->want.diff : world->want.chain, sizeof kept.id);
    memcpy(kept.layers, world->want.layers, world->want.layer_count * sizeof *kept.layers);
    memcpy(kept.layers[world->want.layer_count], kept.id, sizeof kept.id);
    world->later(world->later_context, &kept, NULL);
}

static void note_unpack(struct driver *driver, const struct unpack_want *want, driver_offer_fn *offer,
                        driver_kept_fn *done, void *context)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    int pair[2];

    world->unpacks++;
    world->want = *want;
    assert_int_equal(want->most_bytes, 1234);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    world->child_fd = pair[1];
    world->child = watch_new(world->loop, pair[1], note_archive, world);
    watch_want(world->child, WATCH_READ);
    world->later = done;
    world->later_context = context;
    offer(context, pair[0]);
    (void)close(pair[0]);
}

static struct unpack_want a_want(void)
{
    struct unpack_want want = { .layer_count = 2, .most_bytes = 1234 };

    memset(want.chain, 'c', 64);
    memset(want.diff, 'd', 64);
    memset(want.layers[0], 'a', 64);
    memset(want.layers[1], 'b', 64);
    return want;
}

static void can_unpack(struct world *world)
{
    world->ops = *world->fake.driver.ops;
    world->ops.unpack = note_unpack;
    world->fake.driver.ops = &world->ops;
}

static int an_archive(void)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);

    assert_true(fd >= 0 && write(fd, "archive", 7) == 7);
    return fd;
}

static void unpack_one(struct world *world)
{
    struct unpack_want want = a_want();
    auto_close int fd = an_archive();
    struct kept kept;
    struct err err;

    if (!driver_unpack(world->remote, &want, fd, &kept, &err))
        fail_msg("%s", err_text(&err));
    assert_int_equal(world->unpacks, 1);
    assert_memory_equal(world->archive, "archive", 7);
    assert_string_equal(kept.id, want.chain);
    assert_int_equal(kept.layer_count, 3);
    assert_int_equal(kept.layer_bytes, 77);
    assert_string_equal(kept.layers[1], want.layers[1]);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC); /* still ours */
    world->unpacks_wrongly = true;
    assert_false(driver_unpack(world->remote, &want, fd, &kept, &err));
    assert_string_equal(err.message, "keeper's answer has the wrong shape");
}

static void a_layer_is_unpacked_from_a_descriptor(void **state)
{
    struct world *world = *state;

    can_unpack(world);
    run_on_worker(world, unpack_one);
    assert_int_equal(world->broken, 0);
}

static void unpack_in_vain(struct world *world)
{
    struct unpack_want want = a_want();
    auto_close int fd = an_archive();
    struct kept kept;
    struct err err;

    assert_false(driver_unpack(world->remote, &want, fd, &kept, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_string_equal(err.message, "this server cannot unpack images");
}

static void a_driver_that_cannot_unpack_says_so(void **state)
{
    struct world *world = *state;

    run_on_worker(world, unpack_in_vain);
    assert_int_equal(world->broken, 0);
}

static void send_unpack(struct world *world, const struct unpack_want *want)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct op_ask *asked = NEW(struct op_ask);

    can_unpack(world);
    asked->unpack = *want;
    op_pack_ask(op_of(MESSAGE_UNPACK), &payload, asked);
    free(asked);
    channel_request(world->front, MESSAGE_UNPACK, buf_str(&payload), NULL, 0, ignore_answer, NULL);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->broken, 2);
    assert_int_equal(world->unpacks, 0);
}

static void an_unpack_into_a_path_ends_front(void **state)
{
    struct unpack_want want = a_want();

    memcpy(want.layers[0], "../../etc", 10);
    send_unpack(*state, &want);
}

static void an_unpack_of_any_size_ends_front(void **state)
{
    struct unpack_want want = a_want();

    want.most_bytes = LIMIT_UNPACKED_BYTES + 1;
    send_unpack(*state, &want);
}

/* Its worker has given up: nothing is given, and nothing is wrong. */
static void an_archive_that_nobody_offers_any_more_is_not_given(void **state)
{
    struct world *world = *state;
    int pair[2];
    char byte;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    channel_send_event(world->keeper, MESSAGE_UNPACK, STR("\0\0\0\0\0\0\0\7"), pair, 1);
    (void)close(pair[0]);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), 0);
    (void)close(pair[1]);
    assert_int_equal(world->broken, 0);
    channel_send_event(world->keeper, MESSAGE_UNPACK, STR("\0\0\0\0\0\0\0\7"), NULL, 0);
    turn_for(world->loop, TURN_MS);
    assert_int_equal(world->broken, 2);
}

static void pause_in_vain(struct world *world)
{
    struct err err;

    for (int call = 0; call < PAUSE_CALL_COUNT; call++) {
        const char *id = call >= PAUSE_DROP ? a_snapshot : "sandbox1";
        assert_false(driver_pause_call(world->remote, (enum pause_call)call, id, false, NULL, &err));
        assert_int_equal(err.kind, ERR_UNAVAILABLE);
        assert_int_equal(err.sys, 0);
        assert_non_null(strstr(err.message, "this server cannot "));
    }
}

static void writing_to_disk_may_take_longer_than_other_calls(void **state)
{
    (void)state;
    const struct op *pause = op_of(MESSAGE_PAUSE), *start = op_of(MESSAGE_START);
    struct op_ask ask = { 0 };

    for (int call = 0; call < PAUSE_CALL_COUNT; call++) {
        ask.pause.call = (enum pause_call)call;
        bool is_long = (call >= PAUSE_PARK && call <= PAUSE_COPY) || call == PAUSE_MEASURE;
        assert_int_equal(op_patience_ms(pause, &ask), is_long ? LIMIT_PAUSE_MS : LIMIT_KEEPER_MS);
    }
    assert_int_equal(op_patience_ms(start, &ask), LIMIT_KEEPER_MS);
    ask.plan.from = PLAN_PARKED_IMAGE;
    assert_int_equal(op_patience_ms(start, &ask), LIMIT_PAUSE_MS);
    assert_int_equal(op_patience_ms(op_of(MESSAGE_UNPACK), &ask), LIMIT_BUILD_MS);
}

static void a_driver_that_cannot_pause_says_so(void **state)
{
    struct world *world = *state;

    run_on_worker(world, pause_in_vain);
    assert_int_equal(world->broken, 0);
}

static void send_pause(struct world *world, uint8_t call, const char *id, uint8_t memory)
{
    auto_buf struct buf payload = buf_make(NULL, 200);

    pack_u8(&payload, call);
    pack_str(&payload, str_from(id));
    pack_u8(&payload, memory);
    channel_request(world->front, MESSAGE_PAUSE, buf_str(&payload), NULL, 0, ignore_answer, NULL);
    turn_for(world->loop, TURN_MS);
}

static void check_malformed(struct world *world)
{
    assert_int_equal(world->broken, 2);
    assert_int_equal(world->pauses, 0);
}

static void an_unknown_call_of_a_pause_ends_front(void **state)
{
    can_pause(*state);
    send_pause(*state, PAUSE_CALL_COUNT, "sandbox1", 0);
    check_malformed(*state);
}

static void a_freeze_with_memory_ends_front(void **state)
{
    can_pause(*state);
    send_pause(*state, PAUSE_FREEZE, "sandbox1", 1);
    check_malformed(*state);
}

static void a_park_of_a_path_ends_front(void **state)
{
    can_pause(*state);
    send_pause(*state, PAUSE_PARK, "../sandbox1", 0);
    check_malformed(*state);
}

static void a_drop_of_something_that_is_no_snapshot_ends_front(void **state)
{
    can_pause(*state);
    send_pause(*state, PAUSE_DROP, "sandbox1", 0);
    check_malformed(*state);
}

static void a_park_of_a_snapshots_id_ends_front(void **state)
{
    can_pause(*state);
    send_pause(*state, PAUSE_PARK, a_snapshot, 0);
    check_malformed(*state);
}

/* Its front has died: nobody will ever know its id. */
static void a_snapshot_that_nobody_waits_for_is_dropped(void **state)
{
    struct world *world = *state;

    can_pause(world);
    world->pause_later = true;
    send_pause(world, PAUSE_SNAPSHOT, "sandbox1", 0);
    assert_int_equal(world->pauses, 1);
    serve_leave(world->serve, world->keeper);
    struct kept kept = { .layer_count = 1 };
    memcpy(kept.id, a_snapshot, sizeof kept.id);
    memcpy(kept.layers[0], a_snapshot, sizeof kept.id);
    world->pause_later = false;
    world->later(world->later_context, &kept, NULL);
    assert_int_equal(world->pauses, 2);
    assert_int_equal(world->paused[1], PAUSE_DROP);
    assert_string_equal(world->paused_id, a_snapshot);
}

/* ---- a long list ---- */

enum { MANY = 2 * LIMIT_HELD_PAGE + 7 };

static bool list_many(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    struct world *world = container_of(driver, struct world, fake.driver);
    struct held *held = mem_new(MANY * sizeof *held);

    (void)err;
    world->listed++;
    for (unsigned i = 0; i < MANY; i++) {
        (void)snprintf(held[i].id, sizeof held[i].id, "i%030u", MANY - 1 - i); /* the longest, and in no order */
        held[i].state = (enum held_state)(i % HELD_STATE_COUNT);
        held[i].has_network = i % 3 == 0;
    }
    *out_held = held;
    *out_count = MANY;
    return true;
}

static void read_all_pages(struct world *world)
{
    auto_free struct held *held = NULL;
    uint32_t count = 0;
    struct err err;
    char id[LIMIT_ID_BYTES];

    assert_true(driver_list(world->remote, &held, &count, &err));
    assert_int_equal(count, MANY);
    assert_int_equal(world->listed, 3);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned was = MANY - 1 - i;
        (void)snprintf(id, sizeof id, "i%030u", i);
        assert_string_equal(held[i].id, id);
        assert_int_equal(held[i].state, was % HELD_STATE_COUNT);
        assert_int_equal(held[i].has_network, was % 3 == 0);
    }
}

static void a_list_longer_than_a_message_comes_whole(void **state)
{
    struct world *world = *state;

    world->ops = *world->fake.driver.ops;
    world->ops.list = list_many;
    world->fake.driver.ops = &world->ops;
    run_on_worker(world, read_all_pages);
    assert_int_equal(world->broken, 0);
}

static bool list_parked(struct driver *driver, struct held **out_held, uint32_t *out_count, struct err *err)
{
    (void)driver;
    (void)err;
    *out_held = mem_new(4 * sizeof **out_held);
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf((*out_held)[i].id, sizeof(*out_held)[i].id, "parked%u", i);
        (*out_held)[i].state = i == 2 ? HELD_FROZEN : HELD_PARKED;
    }
    *out_count = 3;
    return true;
}

static void sandboxes_on_disk_are_not_counted_as_running(void **state)
{
    struct world *world = *state;

    world->ops = *world->fake.driver.ops;
    world->ops.list = list_parked; /* three, where two may run */
    world->fake.driver.ops = &world->ops;
    run_on_worker(world, start_one);
    assert_int_equal(world->fake.starts, 1);
}

#define REMOTE_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        REMOTE_CASE(calls_go_through_and_exits_come_back),
        REMOTE_CASE(a_refused_socket_option_is_told),
        REMOTE_CASE(a_malformed_event_about_a_socket_option_is_refused),
        REMOTE_CASE(whether_a_zygote_is_warm_crosses_the_channel),
        REMOTE_CASE(keepers_errors_arrive_whole),
        REMOTE_CASE(no_plan_goes_beyond_what_the_operator_allows),
        REMOTE_CASE(starts_under_way_count_as_sandboxes),
        REMOTE_CASE(starts_of_a_front_that_is_gone_are_cancelled),
        REMOTE_CASE(dial_hands_over_a_socket),
        REMOTE_CASE(listen_hands_over_a_listening_socket),
        REMOTE_CASE(an_answer_that_comes_after_front_has_gone_is_dropped),
        REMOTE_CASE(figures_come_for_those_that_live),
        REMOTE_CASE(a_stop_is_answered_before_the_end_of_a_guest_that_takes_long),
        REMOTE_CASE(more_patience_than_allowed_ends_front),
        REMOTE_CASE(a_malformed_request_ends_front),
        REMOTE_CASE(a_front_that_is_gone_is_told_nothing),
        REMOTE_CASE(the_calls_of_a_pause_go_through),
        REMOTE_CASE(a_driver_that_cannot_pause_says_so),
        REMOTE_CASE(writing_to_disk_may_take_longer_than_other_calls),
        REMOTE_CASE(an_unknown_call_of_a_pause_ends_front),
        REMOTE_CASE(a_freeze_with_memory_ends_front),
        REMOTE_CASE(a_park_of_a_path_ends_front),
        REMOTE_CASE(a_drop_of_something_that_is_no_snapshot_ends_front),
        REMOTE_CASE(a_park_of_a_snapshots_id_ends_front),
        REMOTE_CASE(a_snapshot_that_nobody_waits_for_is_dropped),
        REMOTE_CASE(a_layer_is_unpacked_from_a_descriptor),
        REMOTE_CASE(a_driver_that_cannot_unpack_says_so),
        REMOTE_CASE(an_unpack_into_a_path_ends_front),
        REMOTE_CASE(an_unpack_of_any_size_ends_front),
        REMOTE_CASE(an_archive_that_nobody_offers_any_more_is_not_given),
        REMOTE_CASE(a_list_longer_than_a_message_comes_whole),
        REMOTE_CASE(sandboxes_on_disk_are_not_counted_as_running),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
