/*
 * The manager: finds sandboxes, ends them at their deadlines, and recovers them after a restart.
 *
 * One timer is set to the earliest deadline. A change of a deadline calls sandboxes_look(), which has the loop sweep:
 * every sandbox that is due, that died by itself, or whose end failed and is to be tried again is made unroutable on the
 * loop; a worker then removes its row, and the loop does the rest of its end (end.c).
 *
 * Pauses at deadlines can take minutes. So few are made at once, and a sandbox that waits for its turn runs on.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "sandbox/guest_client.h"
#include "sandbox/inside.h"
#include "wire/zygote.h"

enum {
    COPY_LOOK_MS = 100, /* between questions whether a snapshot is done */
    ID_RANDOM_CHARS = 20,
};

/* ---- references ---- */

struct sandbox *sandbox_new(struct sandboxes *all, struct str id)
{
    struct sandbox *sb = NEW(struct sandbox);

    assert(id.at && id.len < sizeof sb->id);
    sb->all = all;
    atomic_init(&sb->references, 1);
    arena_init(&sb->arena);
    memcpy(sb->id, id.at, id.len);
    store_access_token(all->config.store, id, sb->token);
    return sb;
}

struct sandbox *sandbox_new_named(struct sandboxes *all)
{
    char id[LIMIT_ID_BYTES] = "i";

    random_id(id + 1, ID_RANDOM_CHARS);
    return sandbox_new(all, str_from(id));
}

struct str *sandbox_copy_layers(struct arena *arena, const struct str *layers, uint32_t count)
{
    struct str *copy = ARENA_ARRAY(arena, struct str, count);

    for (uint32_t i = 0; i < count; i++)
        copy[i] = arena_copy(arena, layers[i]);
    return copy;
}

struct sandbox *sandbox_ref(struct sandbox *sb)
{
    atomic_fetch_add(&sb->references, 1);
    return sb;
}

void sandbox_unref(struct sandbox *sb)
{
    if (!sb || atomic_fetch_sub(&sb->references, 1) > 1)
        return;
    arena_done(&sb->arena);
    explicit_bzero(sb->token, sizeof sb->token);
    secret_wipe(&sb->traffic_token);
    if (sb->policy)
        explicit_bzero(sb->policy, sb->policy_len); /* a proxy's password may be in it */
    free(sb->policy);
    sandbox_forget_pause(sb);
    free(sb);
}

void sandbox_enlist(struct sandbox *sb)
{
    (void)map_put(&sb->all->by_id, str_from(sb->id), sb);
    (void)map_put(&sb->all->by_token, str_from(sb->token), sb);
}

void sandbox_strike_off(struct sandbox *sb)
{
    (void)map_remove(&sb->all->by_id, str_from(sb->id));
    (void)map_remove(&sb->all->by_token, str_from(sb->token));
    pthread_cond_broadcast(&sb->all->place_freed);
}

struct sandbox *sandbox_find(struct sandboxes *all, struct str id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = map_get(&all->by_id, id);

    return sb && sandbox_state_is_running(sb->state) ? sandbox_ref(sb) : NULL;
}

const char *sandbox_id(const struct sandbox *sb)
{
    return sb->id;
}

bool sandbox_is_routable(const struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    return sandbox_state_is_running(sb->state);
}

struct driver *sandbox_driver(const struct sandbox *sb)
{
    return sb->all->config.driver;
}

void sandbox_set_key(struct sandbox *sb, struct str key_id)
{
    if (key_id.len)
        memcpy(sb->key_id, key_id.at, MIN(key_id.len, sizeof sb->key_id - 1)); /* UUIDs: they fit */
}

void sandbox_make_private(struct sandbox *sb)
{
    char token[STORE_TOKEN_BYTES];

    store_traffic_token(sb->all->config.store, str_from(sb->id), token);
    bool fits = secret_set(&sb->traffic_token, str_from(token));
    assert(fits);
    (void)fits;
    explicit_bzero(token, sizeof token);
}

bool sandbox_is_private(const struct sandbox *sb)
{
    return sb->traffic_token.len > 0;
}

bool sandbox_admits(const struct sandbox *sb, struct str traffic_token)
{
    return sb->traffic_token.len == 0 || secret_eq(&sb->traffic_token, traffic_token);
}

bool sandbox_wants_token(const struct sandbox *sb, uint16_t port)
{
    return port != ZYGOTE_CODE_PORT || !sb->open_code;
}

bool sandbox_port_has_tls(const struct sandbox *sb, uint16_t port)
{
    for (uint32_t i = 0; i < sb->https_port_count; i++)
        if (sb->https_ports[i] == port)
            return true;
    return false;
}

const char *sandbox_key_id(const struct sandbox *sb)
{
    return sb->key_id;
}

struct str sandbox_mask_host(const struct sandbox *sb)
{
    return sb->mask_host;
}

struct str sandbox_team_id(const struct sandbox *sb)
{
    return sb->team_id;
}

struct str sandbox_metadata(const struct sandbox *sb, struct str name)
{
    for (uint32_t i = 0; i < sb->metadata_count; i++)
        if (str_eq(sb->metadata[i].name, name))
            return sb->metadata[i].value;
    return STR("");
}

/* ---- looking ---- */

struct sandbox *sandbox_of_team(struct sandboxes *all, struct str team_id, struct str id, struct err *err)
{
    static const unsigned unseen = BIT(SANDBOX_STARTING) | BIT(SANDBOX_KILLED) | BIT(SANDBOX_GONE);
    struct sandbox *sb = map_get(&all->by_id, id);

    if (sb && !(BIT(sb->state) & unseen) && str_eq(sb->team_id, team_id))
        return sb;
    (void)err_set(err, ERR_NOT_FOUND, "Sandbox \"%.*s\" does not exist or is not accessible",
                  (int)MIN(id.len, (size_t)LIMIT_ID_BYTES), id.at);
    return NULL;
}

bool sandbox_not_running(const struct sandbox *sb, struct err *err)
{
    return err_set(err, sb->state == SANDBOX_PAUSED ? ERR_NOT_FOUND : ERR_CONFLICT, "Sandbox \"%s\" is %s%s", sb->id,
                   sb->state >= SANDBOX_STOPPING ? "being killed" : sandbox_state_name(sb->state),
                   sb->state == SANDBOX_PAUSED ? "; resume it first" : "");
}

void sandbox_describe(const struct sandbox *sb, struct arena *arena, struct sandbox_info *out)
{
    struct pair *metadata = ARENA_ARRAY(arena, struct pair, sb->metadata_count);
    bool is_kept = sb->state == SANDBOX_PAUSED || sb->state == SANDBOX_RESUMING;

    for (uint32_t i = 0; i < sb->metadata_count; i++)
        metadata[i] =
            (struct pair){ arena_copy(arena, sb->metadata[i].name), arena_copy(arena, sb->metadata[i].value) };
    *out = (struct sandbox_info){
        .id = arena_copy(arena, str_from(sb->id)),
        .team_id = arena_copy(arena, sb->team_id),
        .template_id = arena_copy(arena, sb->template_id),
        .alias = arena_copy(arena, sb->alias),
        .guestd_version = arena_copy(arena, sb->guestd_version),
        .default_user = arena_copy(arena, sb->default_user),
        .default_workdir = arena_copy(arena, sb->default_workdir),
        .is_paused = !sandbox_state_is_running(sb->state),
        .is_pausing = sb->state == SANDBOX_PAUSING,
        .has_memory = is_kept && sb->has_memory,
        .was_silent = is_kept && sb->was_silent,
        .started_us = sb->started_us,
        .deadline_us = sb->deadline_us,
        .sizes = sb->state == SANDBOX_PAUSED ? sb->sizes : (struct sandbox_sizes){ 0 },
        .lifecycle = sb->lifecycle,
        .cpu_count = sb->cpu_count,
        .memory_mb = sb->memory_mb,
        .disk_mb = sb->disk_mb,
        .metadata_count = sb->metadata_count,
        .metadata = metadata,
        .is_private = sb->traffic_token.len > 0,
        .mask_host = arena_copy(arena, sb->mask_host),
    };
}

void sandbox_describe_token(const struct sandboxes *all, struct arena *arena, struct sandbox_info *out)
{
    char token[STORE_TOKEN_BYTES];

    store_access_token(all->config.store, out->id, token);
    out->access_token = arena_copy(arena, str_from(token));
    if (out->is_private) {
        store_traffic_token(all->config.store, out->id, token);
        out->traffic_token = arena_copy(arena, str_from(token));
    }
}

bool sandbox_get(struct sandboxes *all, struct str team_id, struct str id, struct arena *arena,
                 struct sandbox_info *out, struct err *err)
{
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        const struct sandbox *sb = sandbox_of_team(all, team_id, id, err);
        if (!sb)
            return false;
        if (!sandbox_state_is_seen(sb->state)) /* being ended */
            return err_set(err, ERR_NOT_FOUND, "Sandbox \"%s\" does not exist or is not accessible", sb->id);
        sandbox_describe(sb, arena, out);
        (void)sandbox_read_policy(sb, arena, &out->network);
        uint16_t *ports = ARENA_ARRAY(arena, uint16_t, sb->https_port_count);
        if (sb->https_port_count)
            memcpy(ports, sb->https_ports, sb->https_port_count * sizeof *ports);
        out->https_port_count = sb->https_port_count;
        out->https_ports = ports;
    }
    sandbox_describe_token(all, arena, out);
    return true;
}

static int newest_first(const void *a_at, const void *b_at)
{
    const struct sandbox_info *a = a_at, *b = b_at;

    if (a->started_us != b->started_us)
        return a->started_us > b->started_us ? -1 : 1;
    return str_order(a->id, b->id);
}

bool sandbox_list(struct sandboxes *all, struct str team_id, struct arena *arena, struct sandbox_info **out,
                  size_t *out_count, struct err *err)
{
    struct sandbox_info *list;
    const struct sandbox *sb;
    size_t count = 0;

    (void)err; /* all of it is in memory: nothing can fail */
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        list = ARENA_ARRAY(arena, struct sandbox_info, all->by_id.count);
        for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
            if (sandbox_state_is_seen(sb->state) && str_eq(sb->team_id, team_id))
                sandbox_describe(sb, arena, &list[count++]);
    }
    qsort(list, count, sizeof *list, newest_first);
    *out = list;
    *out_count = count;
    return true;
}

size_t sandboxes_count(struct sandboxes *all, struct str team_id)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    const struct sandbox *sb;
    size_t count = 0;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        count += sandbox_state_is_running(sb->state) && str_eq(sb->team_id, team_id);
    return count;
}

/* ---- deadlines ---- */

/* A worker's part of an end that the sweep has begun, or of a pause at a deadline. */
struct ending {
    struct job job;
    struct sandbox *sandbox; /* referenced */
    bool pauses;
    struct ending *next;
};

static void ending_run(struct job *job)
{
    const struct ending *ending = container_of(job, struct ending, job);
    struct sandbox *sb = ending->sandbox;
    struct err err;

    if (ending->pauses) {
        sandbox_pause_due(sb);
        return;
    }
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        if (sb->state != SANDBOX_STOPPING)
            return; /* sandbox_kill() has taken it on */
        sandbox_enter(sb, SANDBOX_ENDING);
    }
    if (!sandbox_end(sb, &err))
        log_warn("sandbox %s: not ended, will try again: %s", sb->id, err_text(&err));
}

static void ending_done(struct job *job)
{
    struct ending *ending = container_of(job, struct ending, job);
    struct sandboxes *all = ending->sandbox->all;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        for (size_t i = 0; i < LIMIT_DUE_PAUSES; i++)
            if (ending->pauses && all->due[i] == ending->sandbox)
                all->due[i] = NULL;
    }
    sandboxes_look(all);
    sandbox_unref(ending->sandbox);
    free(ending);
}

static const char *const exit_reason[EXIT_CAUSE_COUNT] = {
    [EXIT_PLAIN] = "exited",
    [EXIT_NO_MEMORY] = "out of memory",
    [EXIT_OPEN_FILES] = "its processes had too many files open",
    [EXIT_IN_FLIGHT] = "too many descriptors on their way over unix sockets",
    [EXIT_KERNEL_MEMORY] = "too much kernel memory outside its limit",
};

/* When it must be ended (UINT64_MAX: not by itself), and why. With the lock held. */
static uint64_t due_ms(const struct sandbox *sb, const char **out_reason)
{
    *out_reason = sb->reason;
    if (sb->state == SANDBOX_STOPPING || sb->state == SANDBOX_KILLED)
        return sb->retry_ms;
    if (sb->state == SANDBOX_PAUSED && sb->exited && !sb->is_writing && sb->held <= HELD_FROZEN) {
        *out_reason = sb->exited; /* it was frozen, and something outside has killed it */
        return 0;
    }
    if (sb->state != SANDBOX_RUNNING)
        return UINT64_MAX; /* a worker is at it, or it is paused and has no deadline */
    *out_reason = sb->exited ? sb->exited : "timeout";
    return sb->exited ? 0 : sb->deadline_ms;
}

/* Is it to be paused at its deadline, and not ended? With the lock held. */
static bool pauses_when_due(const struct sandbox *sb)
{
    return sb->state == SANDBOX_RUNNING && !sb->exited && sb->lifecycle.auto_pause;
}

/* A place for a pause at a deadline: NULL when its key has as many as it may. With the lock held. */
static struct sandbox **place_to_pause(struct sandboxes *all, const struct sandbox *sb)
{
    struct sandbox **place = NULL;
    unsigned of_key = 0;

    for (size_t i = 0; i < LIMIT_DUE_PAUSES; i++)
        if (!all->due[i])
            place = &all->due[i];
        else
            of_key += strcmp(all->due[i]->key_id, sb->key_id) == 0;
    return of_key < LIMIT_DUE_PAUSES_PER_KEY ? place : NULL;
}

/* The one that should have been paused first, of those for which there is a place. NULL: none. With the lock held. */
static struct sandbox *next_to_pause(struct sandboxes *all, uint64_t now_ms)
{
    struct sandbox *sb, *first = NULL;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        if (pauses_when_due(sb) && sb->deadline_ms <= now_ms && (!first || sb->deadline_ms < first->deadline_ms) &&
            place_to_pause(all, sb))
            first = sb;
    return first;
}

/* Adds a worker's part to the list. With the lock held. */
static struct ending *take(struct sandbox *sb, const char *reason, bool pauses, struct ending *taken)
{
    struct ending *ending = NEW(struct ending);

    /* Not ENDING yet: callers wait for one that is, and together they could hold every worker. */
    if (pauses)
        sandbox_pause_enter(sb, sb->lifecycle.keep_memory);
    else if (sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED)
        sandbox_enter(sb, SANDBOX_STOPPING);
    sb->retry_ms = UINT64_MAX;
    sb->reason = reason;
    *ending = (struct ending){
        .job = { .run = ending_run, .done = ending_done }, .sandbox = sandbox_ref(sb), .pauses = pauses, .next = taken
    };
    return ending;
}

/*
 * Takes those that are due into STOPPING or PAUSING, and KILLED ones into the loop's queue; says when the next one will be
 * (UINT64_MAX: none). With the lock held.
 */
static struct ending *take_due(struct sandboxes *all, uint64_t now_ms, uint64_t *out_next_ms)
{
    struct ending *taken = NULL;
    uint64_t next_ms = UINT64_MAX;
    struct sandbox *sb;
    struct err err;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));) {
        const char *reason;
        uint64_t at_ms = due_ms(sb, &reason);
        if (at_ms > now_ms) {
            next_ms = MIN(next_ms, at_ms);
        } else if (sb->state == SANDBOX_KILLED) {
            sb->retry_ms = UINT64_MAX;
            stops_add(sb);
        } else if (!pauses_when_due(sb)) {
            taken = take(sb, reason, false, taken);
        }
    }
    /* The rest run on: ending_done() looks again. */
    while ((sb = next_to_pause(all, now_ms))) {
        bool pauses = sandbox_may_pause(sb, &err);
        if (pauses)
            *place_to_pause(all, sb) = sb;
        else
            log_warn("sandbox %s: ended at its deadline instead of paused: %s", sb->id, err_text(&err));
        taken = take(sb, "timeout", pauses, taken);
    }
    *out_next_ms = next_ms;
    return taken;
}

static void on_timer(struct timer *timer);

static void sweep(struct sandboxes *all)
{
    uint64_t now_ms = clock_mono_ms(), next_ms;
    struct ending *ending, *next;
    struct writing *writing;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        all->sweep_posted = false;
        if (atomic_load(&all->is_stopping))
            return; /* there are no workers any more */
        ending = take_due(all, now_ms, &next_ms);
        writing = writing_take(all, now_ms, &next_ms);
    }
    if (writing)
        writing_begin(writing);
    for (; ending; ending = next) {
        next = ending->next;
        log_info("sandbox %s: %s: %s", ending->sandbox->id, ending->pauses ? "pausing" : "ending",
                 ending->sandbox->reason);
        if (!ending->pauses)              /* guestd prepares for a pause first */
            sandbox_cut(ending->sandbox); /* here and not in the worker: all workers may be busy for a while */
        workers_run(all->config.workers, &ending->job);
    }
    stops_step(all);
    sampler_wake(all);
    if (next_ms == UINT64_MAX)
        timer_clear(&all->timer);
    else
        timer_set(&all->timer, all->config.loop, next_ms - now_ms, on_timer);
}

static void on_timer(struct timer *timer)
{
    sweep(container_of(timer, struct sandboxes, timer));
}

static void on_sweep_task(struct loop_task *task)
{
    sweep(container_of(task, struct sandboxes, sweep_task));
}

void sandboxes_look(struct sandboxes *all)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    sandboxes_look_locked(all);
}

void sandboxes_look_locked(struct sandboxes *all)
{
    if (all->sweep_posted)
        return;
    all->sweep_posted = true;
    all->sweep_task.fn = on_sweep_task;
    loop_post(all->config.loop, &all->sweep_task);
}

/* ---- the driver says that one has died ---- */

static void on_exited(void *context, const char *id, enum exit_cause cause)
{
    struct sandboxes *all = context;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        struct sandbox *sb = map_get(&all->by_id, str_from(id));
        if (cause == EXIT_LEFT_PAGES) {
            left_note(all->left, id, sb ? sb->paying_team_id : STR(""), clock_mono_ms());
            return;
        }
        if (!sb) {
            (void)pool_exited(all->pool, str_from(id)); /* or we have ended it ourselves */
            return;
        }
        /* enter_running() looks at it for one that is starting. */
        sb->exited = exit_reason[cause];
        if (sb->state == SANDBOX_KILLED && sb->retry_ms == UINT64_MAX)
            return;                                      /* the driver is being asked */
        if (sb->state == SANDBOX_KILLED && !sb->at_work) /* else sandbox_work_done() does this */
            sb->retry_ms = 0;                            /* its place can go */
    }
    sandboxes_look(all);
}

/* Those that are likely, or known from attacks; numbers of headers that not every C library has. */
static const struct {
    struct socket_option option;
    const char *name;
} known_options[] = {
    { { 0, 4 }, "IP_OPTIONS" },          { { 0, 19 }, "IP_TRANSPARENT" },   { { 0, 39 }, "IP_ADD_SOURCE_MEMBERSHIP" },
    { { 0, 64 }, "IPT_SO_SET_REPLACE" }, { { 1, 26 }, "SO_ATTACH_FILTER" }, { { 1, 29 }, "SO_TIMESTAMP" },
    { { 1, 35 }, "SO_TIMESTAMPNS" },     { { 1, 36 }, "SO_MARK" },          { { 1, 37 }, "SO_TIMESTAMPING" },
    { { 1, 46 }, "SO_BUSY_POLL" },       { { 1, 50 }, "SO_ATTACH_BPF" },    { { 1, 60 }, "SO_ZEROCOPY" },
    { { 1, 61 }, "SO_TXTIME" },          { { 1, 73 }, "SO_RESERVE_MEM" },   { { 6, 14 }, "TCP_MD5SIG" },
    { { 6, 19 }, "TCP_REPAIR" },         { { 6, 31 }, "TCP_ULP" },          { { 17, 100 }, "UDP_ENCAP" },
};

static void on_refused_option(void *context, const char *id, const struct socket_option *option)
{
    struct sandboxes *all = context;
    char text[160], rule[64];
    const char *name = "no name known here";

    for (size_t i = 0; i < COUNT_OF(known_options); i++)
        if (known_options[i].option.level == option->level && known_options[i].option.name == option->name)
            name = known_options[i].name;
    (void)snprintf(text, sizeof text,
                   "a program asked for socket option %" PRIu32 " of level %" PRIu32
                   " (%s), which sandboxes do not have",
                   option->name, option->level, name);
    (void)snprintf(rule, sizeof rule, "socket-option %" PRIu32 "/%" PRIu32, option->level, option->name);
    logs_add(all->logs, str_from(id),
             &(struct sandbox_log){ .at_us = clock_wall_us(),
                                    .kind = SANDBOX_LOG_REFUSED,
                                    .count = 1,
                                    .text = str_from(text),
                                    .rule = str_from(rule),
                                    .destination = STR("") });
}

/* ---- new guestlinks ---- */

/* What is to be done for a sandbox that was found again. */
enum found_as {
    FOUND_RUNNING,
    FOUND_RESUMING, /* its resume had begun: guestd may not have been set up */
    FOUND_COPIED,   /* the driver is still at its snapshot, for the front before us: it may be frozen for a while */
    FOUND_PAUSING,  /* the driver is still at its pause */
};

/*
 * Opens new guestlinks to the sandboxes that were found again, for their logs. A worker does it when the server already
 * answers: a guest that floods its loopback can make each one take a quarter of a second.
 */
struct relink {
    struct job job;
    struct sandboxes *all;
    size_t count;
    struct {
        struct sandbox *sandbox; /* referenced */
        enum found_as as;
    } found[];
};

/* What guestd should know now, and of which revision of the policy that is. */
static uint64_t what_to_tell(struct sandbox *sb, struct arena *arena, struct guestlink_network *out)
{
    struct net_policy network;
    uint64_t revision;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        (void)!sandbox_read_policy(sb, arena, &network); /* our own bytes; empty if there is none */
        revision = sb->policy_revision;
    }
    sandbox_describe_network(sb, &network, arena, out);
    return revision;
}

/* Is it as guestd was told, or past caring? */
static bool is_newest(struct sandbox *sb, uint64_t revision)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    return sb->state != SANDBOX_RUNNING || sb->policy_revision == revision;
}

/* A change that came before logs had the new link has found no link to tell guestd by. */
static void tell_changes(struct sandbox *sb, uint64_t revision)
{
    while (!is_newest(sb, revision)) {
        struct guestlink_network network;
        struct arena arena;
        arena_init(&arena);
        revision = what_to_tell(sb, &arena, &network);
        enum logs_told told = logs_tell_network(sb->all->logs, str_from(sb->id), &network);
        arena_done(&arena);
        if (told != LOGS_TOLD) {
            log_warn("sandbox %s: guestd is not told that its network has changed: it does not read", sb->id);
            return;
        }
    }
}

static bool begin_log_again(struct sandbox *sb, int *guestlink_fd)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    if (sb->state != SANDBOX_RUNNING)
        return false; /* its log has ended, or will not begin */
    logs_begin(sb->all->logs, sb->team_id, str_from(sb->id), sb->started_us, take_fd(guestlink_fd));
    return true;
}

bool sandbox_begin_link(struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    if (sb->state != SANDBOX_RUNNING)
        return false;
    sb->linking++;
    return true;
}

void sandbox_end_link(struct sandbox *sb)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sb->linking--;
    pthread_cond_broadcast(&sb->all->changed);
}

void sandbox_link_again(struct sandbox *sb)
{
    struct err err;
    auto_close int guestlink_fd = -1;
    struct guestlink_network network;
    struct arena arena;

    if (!sandbox_begin_link(sb))
        return;
    arena_init(&arena);
    uint64_t revision = what_to_tell(sb, &arena, &network);
    bool ok = driver_link(sb->all->config.driver, sb->id, &guestlink_fd, &err) &&
              guest_listen(guestlink_fd, &network, false, &err);
    arena_done(&arena);
    if (!ok)
        log_warn("sandbox %s: its commands are not logged until the server starts again: %s", sb->id, err_text(&err));
    else if (begin_log_again(sb, &guestlink_fd))
        tell_changes(sb, revision);
    sandbox_end_link(sb);
}

/* While the driver makes a snapshot of it, guestd cannot answer. */
static void await_copy(struct sandbox *sb)
{
    const struct timespec pause = { .tv_nsec = COPY_LOOK_MS * 1000000L };
    struct err ignored;
    unsigned now;

    for (unsigned ms = 0; ms < LIMIT_PAUSE_MS && !atomic_load(&sb->all->is_stopping); ms += COPY_LOOK_MS) {
        if (!sandbox_is_still(sb, SANDBOX_RUNNING, &ignored) || !sandbox_ask_held(sb, &now) || now != HELD_FROZEN)
            return;
        (void)nanosleep(&pause, NULL);
    }
}

static void relink_one(struct sandbox *sb, enum found_as as)
{
    if (as == FOUND_RESUMING) {
        sandbox_resume_again(sb);
        return;
    }
    if (as == FOUND_COPIED)
        await_copy(sb);
    else if (as == FOUND_PAUSING)
        sandbox_pause_again(sb);
    sandbox_link_again(sb); /* nothing if it does not run */
}

static void relink_run(struct job *job)
{
    struct relink *relink = container_of(job, struct relink, job);

    for (int slow = 0; slow < 2; slow++) /* those for which it waits come last */
        for (size_t i = 0; i < relink->count && !atomic_load(&relink->all->is_stopping); i++)
            if (slow == (relink->found[i].as >= FOUND_COPIED))
                relink_one(relink->found[i].sandbox, relink->found[i].as);
}

static void relink_free(struct relink *relink)
{
    for (size_t i = 0; relink && i < relink->count; i++)
        sandbox_unref(relink->found[i].sandbox);
    free(relink);
}

static void relink_done(struct job *job)
{
    struct relink *relink = container_of(job, struct relink, job);

    relink->all->relink = NULL;
    relink_free(relink);
}

/* ---- making, recovering ---- */

struct sandboxes *sandboxes_new(const struct sandboxes_config *config)
{
    struct sandboxes *all = NEW(struct sandboxes);
    pthread_condattr_t attributes;

    all->config = *config;
    if (!all->config.sandboxes_max)
        all->config.sandboxes_max = LIMIT_SANDBOXES;
    if (!all->config.timeout_max_s)
        all->config.timeout_max_s = LIMIT_TIMEOUT_S;
    if (!all->config.pids)
        all->config.pids = 1024;
    pthread_mutex_init(&all->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&all->changed, &attributes);
    pthread_cond_init(&all->place_freed, &attributes);
    pthread_condattr_destroy(&attributes);
    all->forking = forking_lane(config->workers);
    map_init(&all->by_id);
    map_init(&all->by_token);
    all->metrics = metrics_new();
    all->logs = logs_new(all->config.loop);
    all->pool = pool_new(all);
    all->left = left_new();
    all->common = config->has_mail ? common_authority_new() : NULL;
    config->driver->exited_context = all;
    config->driver->exited = on_exited;
    config->driver->refused = on_refused_option;
    return all;
}

void sandboxes_free(struct sandboxes *all)
{
    struct sandbox *sb;

    if (!all)
        return;
    all->config.driver->exited = NULL;
    all->config.driver->refused = NULL;
    timer_clear(&all->timer);
    sampler_done(all);
    network_done(all);
    writing_done(all);
    stops_done(all);
    forks_done(all);
    pool_free(all->pool);
    left_free(all->left);
    relink_free(all->relink); /* the workers were freed before its done() */
    metrics_free(all->metrics);
    logs_free(all->logs);
    common_authority_free(all->common);
    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        sandbox_unref(sb);
    map_done(&all->by_id);
    map_done(&all->by_token);
    pthread_cond_destroy(&all->changed);
    pthread_cond_destroy(&all->place_freed);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

uint64_t sandboxes_timeout_max_s(const struct sandboxes *all)
{
    return all->config.timeout_max_s;
}

/* Puts it into the maps as STARTING: from here on on_exited() finds it. row is NULL when only the driver knows it. */
static struct sandbox *remember(struct sandboxes *all, struct str id, const struct sandbox_row *row)
{
    struct sandbox *sb = sandbox_new(all, id);
    struct err err;

    if (row && !record_adopt(sb, row, &err))
        log_warn("sandbox %s: found without its metadata: %s", sb->id, err_text(&err));
    if (row && row->state != SANDBOX_ROW_STARTING)
        sb->kept_us = row->deadline_us;
    sb->reason = "orphaned";
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    sandbox_enlist(sb);
    return sb;
}

/* The row says what was found, so that the next front finds the same. */
static void keep_found(struct sandbox *sb, const struct sandbox_change *change)
{
    struct err err;

    if (!store_sandbox_change(sb->all->config.store, str_from(sb->id), change, NULL, &err))
        log_warn("sandbox %s: its row is not up to date: %s", sb->id, err_text(&err));
}

static struct sandbox *adopt(struct sandbox *sb, const struct held *there, enum sandbox_row_state row)
{
    if (row == SANDBOX_ROW_RESUMING) { /* its row has the times of before its pause */
        sb->started_us = clock_wall_us();
        sb->kept_us = sb->started_us + (int64_t)sandbox_woken_s(sb) * 1000000;
    } else if (row != SANDBOX_ROW_RUNNING)
        keep_found(sb, &(struct sandbox_change){ .state = SANDBOX_ROW_RUNNING });
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sandbox_set_clock(sb, sb->kept_us);
    sb->held = HELD_RUNNING;
    if (row != SANDBOX_ROW_RESUMING)
        sandbox_forget_pause(sb);
    sb->kept_revision = sb->revision;
    sb->has_network = there->has_network;
    sb->connections = CONNECTIONS_OPEN;
    sandbox_enter(sb, SANDBOX_RUNNING);
    metrics_begin(sb->all->metrics, sb->team_id, str_from(sb->id), sb->cpu_count, sb->started_us);
    log_info("sandbox %s: found again", sb->id);
    return sandbox_ref(sb);
}

static void adopt_paused(struct sandbox *sb, const struct held *there, enum sandbox_row_state row)
{
    /* By the row: of one that has run since, an image that is there would be older than its files. */
    bool has_memory = sb->has_memory && (!there || there->state != HELD_PARKED);
    bool is_changed = row != SANDBOX_ROW_PAUSED || has_memory != sb->has_memory;

    sb->has_memory = has_memory;
    if (row != SANDBOX_ROW_PAUSED && row != SANDBOX_ROW_RESUMING)
        sb->kept_us = clock_wall_us(); /* that of its pause */
    if (is_changed)
        keep_found(sb, &(struct sandbox_change){ .state = SANDBOX_ROW_PAUSED,
                                                 .deadline_us = sb->kept_us,
                                                 .revision = ++sb->revision,
                                                 .has_memory = sb->has_memory,
                                                 .was_silent = sb->was_silent,
                                                 .envs = sb->envs ? str_from(sb->envs) : STR("") });
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sb->held = there ? there->state : HELD_PARKED; /* not held: a resume tells */
    sb->has_network = there && there->has_network;
    sb->deadline_us = sb->kept_us;
    sb->kept_revision = sb->revision;
    sb->write_ms = clock_mono_ms() + SANDBOX_WRITE_AFTER_MS;
    sandbox_enter(sb, SANDBOX_PAUSED);
    log_info("sandbox %s: found again, paused", sb->id);
}

static struct sandbox *adopt_pausing(struct sandbox *sb, const struct held *there)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);

    sandbox_set_clock(sb, sb->kept_us);
    sb->held = there->state;
    sb->kept_revision = sb->revision;
    sb->has_network = there->has_network;
    sandbox_enter(sb, SANDBOX_PAUSING);
    turn_begin(sb, &sb->pauses);
    metrics_begin(sb->all->metrics, sb->team_id, str_from(sb->id), sb->cpu_count, sb->started_us);
    log_info("sandbox %s: found again, being paused", sb->id);
    return sandbox_ref(sb);
}

/* `there` is NULL if the driver does not hold it. */
static void discard(struct sandbox *sb, const struct held *there, const char *why)
{
    struct err err;

    log_info("sandbox %s: left over (%s), ending it", sb->id, why);
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->has_network = there && there->has_network; /* the egress of before may still have its policy */
        sandbox_enter(sb, SANDBOX_ENDING);
    }
    sandbox_ref(sb);
    if (!sandbox_end(sb, &err))
        log_warn("sandbox %s: not ended, will try again: %s", sb->id, err_text(&err));
    sandbox_unref(sb);
}

/* NULL: the driver does not hold it. */
static struct held *find_held(struct held *held, uint32_t count, struct str id)
{
    for (uint32_t i = 0; i < count; i++)
        if (str_eq(str_from(held[i].id), id))
            return &held[i];
    return NULL;
}

static bool is_row(const struct sandbox_row *rows, size_t count, struct str id)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(rows[i].id, id))
            return true;
    return false;
}

/*
 * The state that it is in from now on. What is frozen and should run is thawed, and the other way round. PAUSING: the driver
 * is still at it for the front before us, and a worker finds out what becomes of it.
 */
static enum sandbox_state find_again(struct sandbox *sb, const struct sandbox_row *row, struct held *there,
                                     enum found_as *out_as)
{
    enum sandbox_state found = sandbox_state_found(row->state, there ? there->state : HELD_NOT);
    struct driver *driver = sb->all->config.driver;
    struct err err;
    unsigned now;

    *out_as = row->state == SANDBOX_ROW_RESUMING ? FOUND_RESUMING : FOUND_RUNNING;
    if (!there || there->state == HELD_PARKED || there->state == HELD_PARKED_IMAGE)
        return found;
    /* Of one that was on its way, the driver may still be at work: a thaw, which is fine if it runs, is a conflict then. */
    if (found == SANDBOX_RUNNING &&
        (there->state == HELD_FROZEN || row->state == SANDBOX_ROW_PAUSING || row->state == SANDBOX_ROW_SNAPSHOTTING)) {
        if (driver_pause_call(driver, PAUSE_THAW, sb->id, false, NULL, &err)) {
            there->state = HELD_RUNNING;
        } else if (err.kind == ERR_CONFLICT && !err.sys) {
            *out_as = row->state == SANDBOX_ROW_PAUSING ? FOUND_PAUSING : FOUND_COPIED;
            if (*out_as == FOUND_PAUSING)
                found = SANDBOX_PAUSING;
            else
                there->state = HELD_RUNNING; /* the driver thaws what it copies */
        } else if (err.kind == ERR_NOT_FOUND && sandbox_ask_held(sb, &now) && now > HELD_FROZEN) {
            if (now != HELD_NOT)
                there->state = (enum held_state)now;
            found = sandbox_state_found(row->state, now);
        } else {
            log_warn("sandbox %s: found frozen and not thawed, so it is paused: %s", sb->id, err_text(&err));
            sb->has_memory = true;
            return SANDBOX_PAUSED;
        }
    } else if (found == SANDBOX_PAUSED && there->state == HELD_RUNNING) {
        if (driver_pause_call(driver, PAUSE_FREEZE, sb->id, false, NULL, &err))
            there->state = HELD_FROZEN;
        else
            log_warn("sandbox %s: paused, but it runs: %s", sb->id, err_text(&err));
    }
    return found;
}

static bool recover(struct sandboxes *all, struct arena *arena, struct err *err)
{
    auto_free struct held *held = NULL;
    struct sandbox_row *rows;
    uint32_t held_count;
    size_t row_count;

    if (!store_sandbox_list(all->config.store, arena, &rows, &row_count, err))
        return err_wrap(err, "find the sandboxes again");
    struct sandbox **known = ARENA_ARRAY(arena, struct sandbox *, row_count);
    for (size_t i = 0; i < row_count; i++) {
        /* Our own ids fit. A row that another program wrote must not reach an assert. */
        if (rows[i].id.len == 0 || rows[i].id.len >= LIMIT_ID_BYTES)
            return err_set(err, ERR_INTERNAL, "the store holds a sandbox with a malformed id: restore a copy of it");
        known[i] = remember(all, rows[i].id, &rows[i]);
    }
    /* After remember(): on_exited() must find one that dies after it was listed. */
    if (!driver_list(all->config.driver, &held, &held_count, err))
        return err_wrap(err, "find the sandboxes again");
    struct relink *relink = mem_new(sizeof *relink + row_count * sizeof relink->found[0]);
    *relink = (struct relink){ .job = { .run = relink_run, .done = relink_done }, .all = all };
    all->relink = relink;
    for (size_t i = 0; i < row_count; i++) {
        struct held *there = find_held(held, held_count, rows[i].id);
        enum found_as as;
        enum sandbox_state found = find_again(known[i], &rows[i], there, &as);
        if (found == SANDBOX_RUNNING || found == SANDBOX_PAUSING) {
            relink->found[relink->count].as = as;
            relink->found[relink->count++].sandbox =
                found == SANDBOX_PAUSING ? adopt_pausing(known[i], there) : adopt(known[i], there, rows[i].state);
        } else if (found == SANDBOX_PAUSED)
            adopt_paused(known[i], there, rows[i].state);
        else
            discard(known[i], there, rows[i].state == SANDBOX_ROW_STARTING ? "was still starting" : "no longer there");
    }
    for (uint32_t i = 0; i < held_count; i++)
        if (!is_row(rows, row_count, str_from(held[i].id)))
            discard(remember(all, str_from(held[i].id), NULL), &held[i], "not in the store");
    snapshots_drop_unknown(all);
    workers_run(all->config.workers, &relink->job);
    return true;
}

bool sandboxes_recover(struct sandboxes *all, struct err *err)
{
    struct arena arena;

    arena_init(&arena);
    bool ok = recover(all, &arena, err);
    arena_done(&arena);
    sandboxes_look(all);
    return ok;
}
