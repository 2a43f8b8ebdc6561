#include "rig.h"

#include <signal.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "hand_clock.h"

static void on_unroutable(void *context, const char *id)
{
    struct rig *rig = context;

    pthread_mutex_lock(&rig->fake.lock);
    snprintf(rig->cut_id, sizeof rig->cut_id, "%s", id);
    rig->cut_while_alive = fake_find(&rig->fake, str_from(id)) != NULL;
    rig->cuts++;
    pthread_mutex_unlock(&rig->fake.lock);
}

/* With the lock held. */
static void take_policy(struct rig *rig, const char *id, struct str policy)
{
    struct unpack in = unpack_from(policy);

    snprintf(rig->policy_id, sizeof rig->policy_id, "%s", id);
    rig->is_shut = policy.len == 0;
    if (rig->is_shut)
        return;
    net_policy_unpack(&in, &rig->egress_arena, &rig->policy);
    MUST(unpack_done(&in, &err));
}

static void send_policy(void *context, const char *id, struct str policy)
{
    struct rig *rig = context;

    pthread_mutex_lock(&rig->egress_lock);
    take_policy(rig, id, policy);
    rig->policies_sent++;
    pthread_mutex_unlock(&rig->egress_lock);
}

static bool apply_policy(void *context, const char *id, struct str policy, struct err *err)
{
    struct rig *rig = context;

    if (rig->before_apply)
        rig->before_apply(rig, id);
    pthread_mutex_lock(&rig->egress_lock);
    bool ok = !rig->egress_is_away;
    if (ok) {
        take_policy(rig, id, policy);
        rig->policies_applied++;
    }
    pthread_mutex_unlock(&rig->egress_lock);
    return ok || err_set(err, ERR_UNAVAILABLE, "egress is away");
}

void rig_make(struct rig *rig)
{
    static const struct str layers[] = { STR_INIT("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef") };

    hand_clock_start();
    *rig = (struct rig){ 0 };
    pthread_mutex_init(&rig->egress_lock, NULL);
    arena_init(&rig->egress_arena);
    fake_make(&rig->fake);
    temp_store_make(&rig->disk);
    arena_init(&rig->arena);
    rig->want = (struct sandbox_want){
        .team_id = STR("team"),
        .template_id = STR("tbase"),
        .alias = STR("base"),
        .guestd_version = STR("0.6.13"),
        .layer_count = 1,
        .layers = layers,
        .cpu_count = 2,
        .memory_mb = 1024,
        .disk_mb = 5120,
        .timeout_s = 3600,
        .network = { .internet = true },
    };
}

static void *run_loop(void *argument)
{
    struct rig *rig = argument;

    loop_run(rig->loop);
    return NULL;
}

void rig_start(struct rig *rig)
{
    (void)signal(SIGPIPE, SIG_IGN); /* as every role does */
    if (!rig->disk.store)
        temp_store_reopen(&rig->disk);
    rig->loop = loop_new();
    rig->workers = workers_new(rig->loop, LIMIT_WORKERS);
    struct sandboxes_config config = rig->config;
    config.loop = rig->loop;
    config.workers = rig->workers;
    config.driver = &rig->fake.driver;
    config.store = rig->disk.store;
    config.on_unroutable = on_unroutable;
    config.send_policy = send_policy;
    config.apply_policy = apply_policy;
    config.context = rig;
    rig->all = sandboxes_new(&config);
    MUST(sandboxes_recover(rig->all, &err));
    if (rig->before_run)
        rig->before_run(rig);
    assert_int_equal(pthread_create(&rig->thread, NULL, run_loop, rig), 0);
    rig->loop_runs = true;
    while (!rig->stays_busy && (workers_busy(rig->workers) || sandboxes_are_ending(rig->all)))
        usleep(100); /* it makes new guestlinks, and ends what is left over */
}

struct passer {
    struct loop_task task;
    struct fake *fake;
};

struct stopper {
    struct loop_task task;
    struct loop *loop;
};

static void stop_loop(struct loop_task *task)
{
    loop_stop_soon(container_of(task, struct stopper, task)->loop);
}

struct quieter {
    struct loop_task task;
    struct sandboxes *all;
    atomic_bool done;
};

static void quieten(struct loop_task *task)
{
    struct quieter *quieter = container_of(task, struct quieter, task);

    sandboxes_stop_work(quieter->all);
    quieter->done = true;
}

void rig_stop(struct rig *rig)
{
    struct stopper stopper = { { .fn = stop_loop }, rig->loop };
    struct quieter quieter = { { .fn = quieten }, rig->all, false };
    struct err err;

    if (!rig->loop_runs)
        return;
    loop_post(rig->loop, &quieter.task);
    while (!quieter.done)
        usleep(100);
    workers_free(rig->workers);
    loop_post(rig->loop, &stopper.task); /* after the last done() of a worker */
    pthread_join(rig->thread, NULL);
    rig->loop_runs = false;
    if (rig->after_run)
        rig->after_run(rig);
    sandboxes_free(rig->all);
    rig->all = NULL;
    (void)err_set(&err, ERR_UNAVAILABLE, "front has ended");
    fake_pass_stops(&rig->fake, &err); /* as a channel does, which is freed after the manager */
    rig->fake.stop_gate_shut = false;
    loop_free(rig->loop);
    store_close(rig->disk.store);
    rig->disk.store = NULL;
}

void rig_drop(struct rig *rig)
{
    rig_stop(rig);
    fake_drop(&rig->fake);
    arena_done(&rig->arena);
    arena_done(&rig->egress_arena);
    temp_store_drop(&rig->disk);
}

int rig_set_up_only(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    rig_make(rig);
    *state = rig;
    return 0;
}

int rig_set_up(void **state)
{
    (void)rig_set_up_only(state);
    rig_start(*state);
    return 0;
}

int rig_tear_down(void **state)
{
    rig_drop(*state);
    free(*state);
    return 0;
}

void rig_stand(void)
{
    hand_clock_stand();
}

void rig_set_wall(int64_t us)
{
    hand_clock_set_wall(us);
}

void rig_turn(struct rig *rig, uint64_t ms)
{
    if (rig->loop_runs)
        hand_clock_turn(rig->loop, ms);
    else
        hand_clock_add(ms);
}

void rig_hold(struct rig *rig, const char *id)
{
    fake_hold(&rig->fake, id);
}

bool rig_holds(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->fake.lock);
    bool found = fake_find(&rig->fake, id) != NULL;
    pthread_mutex_unlock(&rig->fake.lock);
    return found;
}

uint32_t rig_held_count(struct rig *rig)
{
    pthread_mutex_lock(&rig->fake.lock);
    uint32_t count = rig->fake.held_count;
    pthread_mutex_unlock(&rig->fake.lock);
    return count;
}

enum held_state rig_held_state(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->fake.lock);
    enum held_state state = fake_find(&rig->fake, id)->state;
    pthread_mutex_unlock(&rig->fake.lock);
    return state;
}

void rig_lose(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->fake.lock);
    struct fake_held *held = fake_find(&rig->fake, id);
    if (held)
        fake_remove(&rig->fake, held);
    pthread_mutex_unlock(&rig->fake.lock);
}

void rig_exit(struct rig *rig, struct str id)
{
    fake_exit(&rig->fake, id);
}

void rig_shut_gate(struct rig *rig, bool shut)
{
    pthread_mutex_lock(&rig->fake.lock);
    rig->fake.gate_shut = shut;
    pthread_cond_broadcast(&rig->fake.changed);
    pthread_mutex_unlock(&rig->fake.lock);
}

static void pass_stops(struct loop_task *task)
{
    struct passer *passer = container_of(task, struct passer, task);

    fake_pass_stops(passer->fake, NULL);
    free(passer);
}

void rig_shut_stop_gate(struct rig *rig, bool shut)
{
    pthread_mutex_lock(&rig->fake.lock);
    rig->fake.stop_gate_shut = shut;
    pthread_cond_broadcast(&rig->fake.changed);
    pthread_mutex_unlock(&rig->fake.lock);
    if (shut)
        return;
    struct passer *passer = NEW(struct passer);
    *passer = (struct passer){ { .fn = pass_stops }, &rig->fake };
    loop_post(rig->loop, &passer->task);
}

void rig_wait_at_stop_gate(struct rig *rig, unsigned count)
{
    pthread_mutex_lock(&rig->fake.lock);
    while (rig->fake.at_stop_gate_count < count)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
    pthread_mutex_unlock(&rig->fake.lock);
}

void rig_wait_at_gate(struct rig *rig, unsigned count)
{
    pthread_mutex_lock(&rig->fake.lock);
    while (rig->fake.at_gate < count)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
    pthread_mutex_unlock(&rig->fake.lock);
}

/* With the lock held. */
static unsigned silent_count(const struct rig *rig)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < rig->fake.held_count; i++)
        count += rig->fake.held[i].silent;
    return count;
}

void rig_wait_silent(struct rig *rig, unsigned count)
{
    pthread_mutex_lock(&rig->fake.lock);
    while (silent_count(rig) < count)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
    pthread_mutex_unlock(&rig->fake.lock);
}

void rig_break_silence(struct rig *rig)
{
    pthread_mutex_lock(&rig->fake.lock);
    for (uint32_t i = 0; i < rig->fake.held_count; i++) {
        if (rig->fake.held[i].silent)
            fake_answer(&rig->fake.held[i], false);
        rig->fake.held[i].silent = false;
    }
    pthread_mutex_unlock(&rig->fake.lock);
}

void rig_wait_empty(struct rig *rig)
{
    pthread_mutex_lock(&rig->fake.lock);
    while (rig->fake.held_count)
        pthread_cond_wait(&rig->fake.changed, &rig->fake.lock);
    pthread_mutex_unlock(&rig->fake.lock);
}

void rig_wait_ended(struct rig *rig)
{
    while (sandboxes_are_ending(rig->all))
        usleep(500);
}

size_t rig_rows(struct rig *rig)
{
    struct sandbox_row *rows;
    size_t count;

    MUST(store_sandbox_list(rig->disk.store, &rig->arena, &rows, &count, &err));
    return count;
}

static int peer_of(struct rig *rig, struct str id)
{
    pthread_mutex_lock(&rig->fake.lock);
    int fd = fake_find(&rig->fake, id)->peer_fd;
    pthread_mutex_unlock(&rig->fake.lock);
    return fd;
}

struct guestlink_message rig_message_to(struct rig *rig, struct str id)
{
    unsigned char header[GUESTLINK_HEADER_BYTES];
    struct guestlink_message message;
    uint32_t length;

    int fd = peer_of(rig, id);
    assert_int_equal(recv(fd, header, sizeof header, MSG_WAITALL), sizeof header);
    MUST(guestlink_body_length(header, &length, &err));
    char *body = arena_alloc(&rig->arena, length);
    assert_int_equal(recv(fd, body, length, MSG_WAITALL), length);
    MUST(guestlink_read(str_of(body, length), &rig->arena, &message, &err));
    return message;
}

struct guestlink_setup rig_setup_of(struct rig *rig, struct str id)
{
    struct guestlink_message message = rig_message_to(rig, id);

    assert_int_equal(message.type, GUESTLINK_SETUP);
    return message.setup;
}

struct refusing {
    struct loop_task task;
    struct rig *rig;
    struct str id;
    const struct sandbox_refusal *list;
    uint32_t count;
    atomic_bool done;
};

static void refuse_on_loop(struct loop_task *task)
{
    struct refusing *refusing = container_of(task, struct refusing, task);

    sandbox_add_refusals(refusing->rig->all, refusing->id, refusing->list, refusing->count);
    refusing->done = true;
}

void rig_refuse(struct rig *rig, struct str id, const struct sandbox_refusal *list, uint32_t count)
{
    struct refusing refusing = { .task.fn = refuse_on_loop, .rig = rig, .id = id, .list = list, .count = count };

    loop_post(rig->loop, &refusing.task);
    while (!refusing.done)
        usleep(100);
}

struct sandbox_info rig_create(struct rig *rig)
{
    struct sandbox_info info = { 0 };

    MUST(sandbox_create(rig->all, &rig->want, &rig->arena, &info, &err));
    return info;
}

void rig_say(struct rig *rig, struct str id, struct str bytes)
{
    int fd = peer_of(rig, id);

    while (bytes.len) { /* blocks while the other side is slow to take it, or fails once it has hung up */
        ssize_t n = send(fd, bytes.at, bytes.len, MSG_NOSIGNAL);
        if (n < 0)
            return;
        bytes.at += n;
        bytes.len -= (size_t)n;
    }
}

void rig_wait_deaf(struct rig *rig, struct str id)
{
    int fd = peer_of(rig, id);
    char room[256];

    while (recv(fd, room, sizeof room, 0) > 0) /* what we were told, then the end */
        ;
}
