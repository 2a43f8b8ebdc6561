/*
 * The life of one sandbox: create and deadlines; end.c has its end. Every step that waits is outside the lock.
 *
 * Create writes the row before it starts anything, so that after a crash the next front knows what may have to be ended. One
 * from the pool runs before it has a row; what keeper holds without a row is ended too. state.c has the states.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "image/bootstrap.h"
#include "sandbox/guest_client.h"
#include "sandbox/inside.h"
#include "wire/zygote.h"

void sandbox_set_clock(struct sandbox *sb, int64_t deadline_us)
{
    int64_t left_us = deadline_us - clock_wall_us();

    sb->deadline_us = deadline_us;
    sb->deadline_ms = (clock_mono_us() + (uint64_t)MAX(left_us, INT64_C(0)) + 999) / 1000; /* never early */
}

/* ---- create ---- */

static bool want_check(const struct sandboxes *all, const struct sandbox_want *want, struct err *err)
{
    uint64_t most = all->config.timeout_max_s;

    if (want->timeout_s < 1 || want->timeout_s > most)
        return err_set(err, ERR_INVALID, "the timeout must be between 1 and %llu seconds", (unsigned long long)most);
    if (want->layer_count < 1 || want->layer_count > LIMIT_LAYERS)
        return err_set(err, ERR_INTERNAL, "a template has between 1 and %d layers", LIMIT_LAYERS);
    if (want->metadata_count > LIMIT_METADATA_PAIRS || want->env_count > LIMIT_ENV_PAIRS)
        return err_set(err, ERR_INVALID, "too many metadata or environment entries");
    if (want->https_port_count > LIMIT_HTTPS_PORTS)
        return err_set(err, ERR_INVALID, "at most %d ports can expect TLS", LIMIT_HTTPS_PORTS);
    if (!net_policy_check(&want->network, err))
        return false;
    size_t env_bytes = 0;
    for (uint32_t i = 0; i < want->env_count; i++)
        env_bytes += want->envs[i].name.len + want->envs[i].value.len;
    if (env_bytes > LIMIT_ENV_BYTES) /* guestd would refuse it, but only once it runs */
        return err_set(err, ERR_LIMIT, "more than %d bytes of environment", LIMIT_ENV_BYTES);
    return true;
}

static void copy_want(struct sandbox *sb, const struct sandbox_want *want)
{
    struct arena *arena = &sb->arena;

    sb->team_id = arena_copy(arena, want->team_id);
    sb->paying_team_id = want->paying_team_id.len ? arena_copy(arena, want->paying_team_id) : sb->team_id;
    sb->template_id = arena_copy(arena, want->template_id);
    sb->alias = arena_copy(arena, want->alias);
    sb->guestd_version = arena_copy(arena, want->guestd_version);
    sb->cpu_count = want->cpu_count;
    sb->memory_mb = want->memory_mb;
    sb->disk_mb = want->disk_mb;
    sandbox_set_key(sb, want->key_id);
    sb->mask_host = arena_copy(arena, want->mask_host);
    sb->https_port_count = want->https_port_count;
    sb->https_ports = ARENA_ARRAY(arena, uint16_t, want->https_port_count);
    if (want->https_port_count)
        memcpy(sb->https_ports, want->https_ports, want->https_port_count * sizeof *sb->https_ports);
    struct net_policy network = want->network;
    if (!want->is_temporary) /* else its authority would be in the layers that are made of it */
        sandbox_make_seed(sb->all, &network);
    sandbox_keep_policy(sb, &network);
    sb->open_code = want->open_code;
    if (want->is_private)
        sandbox_make_private(sb);
    sb->timeout_s = want->timeout_s;
    sb->lifecycle = want->lifecycle;
    sb->default_user = arena_copy(arena, want->default_user.len ? want->default_user : STR("user"));
    sb->default_workdir = arena_copy(arena, want->default_workdir);
    sb->is_temporary = want->is_temporary;
    sb->layer_count = want->layer_count;
    sb->layers = sandbox_copy_layers(arena, want->layers, want->layer_count);
    sb->metadata_count = want->metadata_count;
    sb->metadata = ARENA_ARRAY(arena, struct pair, want->metadata_count);
    for (uint32_t i = 0; i < want->metadata_count; i++) {
        sb->metadata[i].name = arena_copy(arena, want->metadata[i].name);
        sb->metadata[i].value = arena_copy(arena, want->metadata[i].value);
    }
}

/* Sandboxes besides one, of the whole server and of one key. */
struct places {
    unsigned taken, taken_of_key;
    unsigned lasting, lasting_of_key; /* of those, all but the ones that are gone in a moment */
};

/*
 * Counts those that take memory: also those that start or end, and the paused ones that are not on disk. Those in the pool do
 * not count: they make room for others.
 */
static struct places count_others(const struct sandboxes *all, const struct sandbox *sb, struct str key_id)
{
    struct places places = { 0 };
    const struct sandbox *other;

    for (size_t i = 0; (other = map_next(&all->by_id, &i));) {
        if (other == sb || other->ends_on_disk || (other->state == SANDBOX_PAUSED && other->held > HELD_FROZEN))
            continue;
        bool lasts = other->state < SANDBOX_STOPPING || other->is_slow || other->stop_failed;
        bool is_of_key = str_eq(str_from(other->key_id), key_id);
        places.taken++;
        places.taken_of_key += is_of_key;
        places.lasting += lasts;
        places.lasting_of_key += is_of_key && lasts;
    }
    return places;
}

/* For one more. */
static bool fits(const struct sandboxes *all, struct str key_id, unsigned taken, unsigned of_key, struct err *err)
{
    const struct sandboxes_config *config = &all->config;

    if (taken >= config->sandboxes_max)
        return err_set(err, ERR_LIMIT,
                       "%u sandboxes run or are paused in memory, which is as many as this server holds (serve "
                       "--sandboxes): kill one, or pause one without its memory",
                       config->sandboxes_max);
    if (config->per_key_max && key_id.len && of_key >= config->per_key_max)
        return err_set(err, ERR_LIMIT,
                       "this API key has %u sandboxes that run or are paused in memory, which is as many as it may: "
                       "kill one, or pause one without its memory",
                       config->per_key_max);
    return true;
}

bool sandbox_has_place(const struct sandbox *sb, struct err *err)
{
    struct str key_id = str_from(sb->key_id);
    struct places places = count_others(sb->all, sb, key_id);

    return fits(sb->all, key_id, places.taken, places.taken_of_key, err);
}

bool sandbox_place_is_coming(const struct sandbox *sb)
{
    struct str key_id = str_from(sb->key_id);
    struct places places = count_others(sb->all, sb, key_id);
    struct err ignored;

    return !fits(sb->all, key_id, places.taken, places.taken_of_key, &ignored) &&
           fits(sb->all, key_id, places.lasting, places.lasting_of_key, &ignored);
}

/*
 * A kill is answered before its place is free: a create right after a kill waits for the killed one's place. Releases the lock
 * meanwhile.
 */
static bool await_place(struct sandboxes *all, struct str key_id, struct err *err)
{
    struct timespec until = clock_wait_until(SANDBOX_PLACE_MS);
    bool in_time = true;
    struct err ignored;

    for (;;) {
        struct places places = count_others(all, NULL, key_id);
        if (fits(all, key_id, places.taken, places.taken_of_key, err))
            return true;
        if (!in_time || !fits(all, key_id, places.lasting, places.lasting_of_key, &ignored))
            return false;
        in_time = pthread_cond_timedwait(&all->place_freed, &all->lock, &until) == 0;
    }
}

/* One on disk has no process, and so holds no page. */
static bool holds_memory(const struct sandboxes *all, struct str team_id)
{
    const struct sandbox *sb;

    for (size_t i = 0; (sb = map_next(&all->by_id, &i));)
        if (str_eq(sb->paying_team_id, team_id) && !(sb->state == SANDBOX_PAUSED && sb->held > HELD_FROZEN))
            return true;
    return false;
}

bool sandboxes_have_left_little(struct sandboxes *all, struct str team_id, struct err *err)
{
    if (left_count(all->left, team_id, clock_mono_ms()) < LIMIT_LEFT_OF_TEAM || !sandboxes_memory_is_low(all))
        return true;
    if (holds_memory(all, team_id))
        return err_set(err, ERR_LIMIT,
                       "memory is short, and the kernel keeps some for %u or more ended sandboxes of this team: "
                       "others hold pages of them. Kill the team's running ones",
                       LIMIT_LEFT_OF_TEAM);
    left_forget(all->left, team_id);
    return true;
}

/*
 * Takes a place among the sandboxes_max, in state STARTING. The reference is the maps': only we end one that starts. It is one
 * from the pool, with its guestlink, if `from_pool` and there is one; *out_pooled says so. All with the lock held at once: of
 * many creates that wait for one place, one takes a sandbox out of the pool.
 */
static struct sandbox *take_place(struct sandboxes *all, const struct sandbox_want *want, bool from_pool,
                                  int *out_guestlink_fd, bool *out_pooled, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    *out_pooled = false;
    struct str payer = want->paying_team_id.len ? want->paying_team_id : want->team_id;
    if (!sandboxes_have_left_little(all, payer, err) || !await_place(all, want->key_id, err))
        return NULL;
    struct sandbox *sb = from_pool ? pool_take(all->pool, want, out_guestlink_fd) : NULL;
    *out_pooled = sb != NULL;
    if (!sb)
        sb = sandbox_new_named(all);
    copy_want(sb, want);
    sb->started_us = clock_wall_us();
    sb->deadline_us = sb->started_us;
    sandbox_enlist(sb);
    return sb;
}

bool sandbox_plan(const struct sandbox *sb, enum plan_from from, struct str image, struct plan *out, struct err *err)
{
    *out = (struct plan){
        .from = from,
        .layer_count = sb->layer_count,
        .memory_bytes = (uint64_t)sb->memory_mb << 20,
        .cpu_millis = sb->cpu_count * 1000,
        .pids = sb->all->config.pids,
    };
    memcpy(out->id, sb->id, sizeof out->id);
    memcpy(out->hostname, BOOTSTRAP_HOSTNAME, sizeof BOOTSTRAP_HOSTNAME); /* the one that the template resolves */
    for (uint32_t i = 0; i < sb->layer_count; i++)
        if (!str_to_path(sb->layers[i], out->layers[i], sizeof out->layers[i], err))
            return err_wrap(err, "layer %u of the sandbox", i);
    if (image.len && !str_to_path(image, out->image, sizeof out->image, err))
        return err_wrap(err, "the snapshot");
    return plan_check(out, err);
}

/* SETUP to its guestd; the answer is still to come. */
static bool tell_guest(const struct sandbox *sb, struct guestlink_env *envs, uint32_t env_count, bool resumed,
                       int guestlink_fd, uint64_t until_ms, struct arena *arena, struct err *err)
{
    struct net_policy network;
    struct guestlink_network described;
    char token[STORE_TOKEN_BYTES];

    store_access_token(sb->all->config.store, str_from(sb->id), token);
    (void)!sandbox_read_policy(sb, arena, &network); /* our own bytes; empty if there is none */
    sandbox_describe_network(sb, &network, arena, &described);
    bool ok = guest_setup_send(guestlink_fd,
                               &(struct guestlink_setup){
                                   .sandbox_id = str_from(sb->id),
                                   .template_id = sb->template_id,
                                   .access_token = str_from(token),
                                   .open_code = !sandbox_wants_token(sb, ZYGOTE_CODE_PORT),
                                   .default_user = sb->default_user,
                                   .default_workdir = sb->default_workdir,
                                   .network = described,
                                   .env_count = env_count,
                                   .envs = envs,
                               },
                               resumed, until_ms, err);
    explicit_bzero(token, sizeof token);
    return ok;
}

bool sandbox_set_guest_up(const struct sandbox *sb, struct guestlink_env *envs, uint32_t env_count, bool resumed,
                          int guestlink_fd, struct arena *arena, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + LIMIT_START_MS;

    return tell_guest(sb, envs, env_count, resumed, guestlink_fd, until_ms, arena, err) &&
           guest_setup_await(guestlink_fd, until_ms, err);
}

void sandbox_note_no_network(struct sandbox *sb)
{
    struct net_policy network;
    struct arena arena;

    if (sb->has_network)
        return;
    arena_init(&arena);
    (void)!sandbox_read_policy(sb, &arena, &network); /* our own bytes; empty if there is none */
    bool may = sandbox_reaches_out(&network);
    arena_done(&arena);
    if (may)
        logs_add(sb->all->logs, str_from(sb->id),
                 &(struct sandbox_log){ .at_us = clock_wall_us(),
                                        .kind = SANDBOX_LOG_REFUSED,
                                        .count = 1,
                                        .text = STR("no network: this machine cannot give sandboxes one. The operator "
                                                    "learns why from `cloister doctor`"),
                                        .rule = STR("no-network"),
                                        .destination = STR("") });
}

static struct guestlink_env *envs_of(const struct sandbox_want *want, struct arena *arena)
{
    struct guestlink_env *envs = ARENA_ARRAY(arena, struct guestlink_env, want->env_count);

    for (uint32_t i = 0; i < want->env_count; i++)
        envs[i] = (struct guestlink_env){ want->envs[i].name, want->envs[i].value };
    return envs;
}

/* guestd has answered. */
static void begin_log(struct sandbox *sb, int *guestlink_fd)
{
    logs_begin(sb->all->logs, sb->team_id, str_from(sb->id), clock_wall_us(), take_fd(guestlink_fd));
    sandbox_note_no_network(sb);
}

/* From a row to a guestd that answers. */
static bool start(struct sandbox *sb, const struct sandbox_want *want, struct arena *arena, struct err *err)
{
    struct sandboxes *all = sb->all;
    struct sandbox_row row;
    struct plan plan;
    struct started started;

    if (!record_row(sb, arena, &row, err) ||
        !sandbox_plan(sb, want->image.len ? PLAN_IMAGE : PLAN_NEW, want->image, &plan, err) ||
        !store_sandbox_add(all->config.store, &row, err))
        return false;
    if (!driver_start(all->config.driver, &plan, &started, err))
        return false;
    sb->has_network = started.has_network; /* no other call sees it yet */
    sandbox_send_policy(sb); /* before guestd answers: egress has it by the time of the first connection */
    auto_close int guestlink_fd = started.guestlink_fd;
    if (!sandbox_set_guest_up(sb, envs_of(want, arena), want->env_count, want->image.len > 0, guestlink_fd, arena, err))
        return false;
    begin_log(sb, &guestlink_fd);
    return true;
}

/* The store has it as running. Now it does, unless it has ended meanwhile. */
static bool enter_running(struct sandbox *sb, struct arena *arena, struct sandbox_info *out, struct err *err)
{
    struct sandboxes *all = sb->all;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);

    sb->kept_us = sb->is_temporary ? 0 : sb->deadline_us;
    if (sb->exited)
        return err_set(err, ERR_UNAVAILABLE, "the sandbox ended while it was starting");
    sb->connections = CONNECTIONS_OPEN;
    sandbox_enter(sb, SANDBOX_RUNNING);
    metrics_begin(all->metrics, sb->team_id, str_from(sb->id), sb->cpu_count, sb->started_us);
    sandbox_describe(sb, arena, out);
    return true;
}

/* The deadline counts from now, not from the request. */
static void start_clock(struct sandbox *sb, uint64_t timeout_s)
{
    sb->started_us = clock_wall_us();
    sandbox_set_clock(sb, sb->started_us + (int64_t)timeout_s * 1000000);
}

static bool begin_to_run(struct sandbox *sb, uint64_t timeout_s, struct arena *arena, struct sandbox_info *out,
                         struct err *err)
{
    start_clock(sb, timeout_s);
    struct event_row event = record_created(sb, arena);
    if (!sb->is_temporary &&
        !store_sandbox_ready(sb->all->config.store, str_from(sb->id), sb->started_us, sb->deadline_us, &event, err))
        return false;
    return enter_running(sb, arena, out, err);
}

/*
 * One from the pool has started already, so its row begins as running; a front that finds it without a row ends it. The row
 * is written while guestd takes its SETUP, and the policy is sent meanwhile too: nothing inside connects to anything before the
 * caller has its answer.
 */
static bool begin_pooled(struct sandbox *sb, const struct sandbox_want *want, int *guestlink_fd, struct arena *arena,
                         struct sandbox_info *out, struct err *err)
{
    uint64_t until_ms = clock_mono_ms() + LIMIT_START_MS;
    struct sandbox_row row;

    if (!tell_guest(sb, envs_of(want, arena), want->env_count, false, *guestlink_fd, until_ms, arena, err))
        return false;
    start_clock(sb, want->timeout_s);
    struct event_row event = record_created(sb, arena);
    if (!record_row(sb, arena, &row, err) || !store_sandbox_add_running(sb->all->config.store, &row, &event, err))
        return false;
    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
        sb->kept_us = sb->deadline_us; /* the store has its beginning, so its end is an event too */
    }
    sandbox_send_policy(sb);
    if (!guest_setup_await(*guestlink_fd, until_ms, err))
        return false;
    begin_log(sb, guestlink_fd);
    return enter_running(sb, arena, out, err);
}

/*
 * A create has failed at some step: ends the sandbox and forgets it. After a timeout that is left to another worker: the
 * driver may be slow to answer again, and the caller has waited long enough.
 */
static void undo(struct sandbox *sb, bool later)
{
    struct sandboxes *all = sb->all;
    struct err err;

    {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        sandbox_enter(sb, later ? SANDBOX_STOPPING : SANDBOX_ENDING);
        sb->retry_ms = clock_mono_ms();
        sb->reason = "start failed";
    }
    if (later) {
        sandboxes_look(all);
        return;
    }
    sandbox_ref(sb); /* if it cannot be ended at once, another worker may end and free it */
    if (!sandbox_end(sb, &err))
        log_warn("sandbox %s: half-made and not ended, will try again: %s", sb->id, err_text(&err));
    else
        sandbox_await_gone(all, str_from(sb->id));
    sandbox_unref(sb);
}

/*
 * The kinds that the caller can act upon pass. ENOENT or ENOSPC in the driver is not the caller's 404 or limit, and a
 * plan that keeper refuses is our mistake; but an image may not fit this machine, or be damaged.
 */
static enum err_kind kind_for_asker(const struct err *err, bool has_image)
{
    if (err->kind == ERR_TIMEOUT ||
        (!err->sys && (err->kind == ERR_LIMIT || err->kind == ERR_UNAVAILABLE || err->kind == ERR_FULL ||
                       (has_image && (err->kind == ERR_INVALID || err->kind == ERR_CONFLICT)))))
        return err->kind;
    return ERR_INTERNAL;
}

/* *out_pooled: it came from the pool. A new one may do where that one did not. */
static bool create_once(struct sandboxes *all, const struct sandbox_want *want, bool from_pool, struct arena *arena,
                        struct sandbox_info *out, bool *out_pooled, struct err *err)
{
    auto_close int guestlink_fd = -1;
    struct sandbox *sb = take_place(all, want, from_pool, &guestlink_fd, out_pooled, err);

    if (!sb)
        return false;
    bool ok = *out_pooled ? begin_pooled(sb, want, &guestlink_fd, arena, out, err)
                          : start(sb, want, arena, err) && begin_to_run(sb, want->timeout_s, arena, out, err);
    if (*out_pooled) {
        auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
        pool_taken(all->pool);
    }
    if (ok)
        return true;
    (void)err_wrap(err, "start sandbox %s", sb->id);
    err->kind = kind_for_asker(err, want->image.len > 0);
    undo(sb, err->kind == ERR_TIMEOUT);
    return false;
}

bool sandbox_create(struct sandboxes *all, const struct sandbox_want *want, struct arena *arena,
                    struct sandbox_info *out, struct err *err)
{
    bool pooled;

    if (!want_check(all, want, err))
        return false;
    if (!create_once(all, want, true, arena, out, &pooled, err)) {
        if (!pooled || err->kind == ERR_LIMIT || err->kind == ERR_FULL || err->kind == ERR_TIMEOUT)
            return false; /* a new one would do no better, or the caller has waited long enough */
        log_warn("sandbox: one from the pool could not be used, making a new one: %s", err_text(err));
        if (!create_once(all, want, false, arena, out, &pooled, err))
            return false;
    }
    /* From here on other workers may end it: `out` is a copy. */
    sandbox_describe_token(all, arena, out);
    log_info("sandbox %.*s: running", STR_ARG(out->id));
    sandboxes_look(all);
    return true;
}

/* ---- deadlines ---- */

struct deadline_change {
    struct sandbox *sandbox; /* referenced */
    int64_t deadline_us, revision;
    bool changed, end_now, pause_now;
};

/* The store has this deadline. With the lock held. */
static void deadline_is_kept(struct sandbox *sb, int64_t deadline_us, int64_t revision)
{
    if (revision < sb->kept_revision)
        return; /* a later change was written first */
    sb->kept_us = deadline_us;
    sb->kept_revision = revision;
    if (sb->failed_revision == sb->revision)
        sandbox_set_clock(sb, deadline_us);
}

static bool change_deadline(struct sandboxes *all, struct str team_id, struct str id, uint64_t timeout_s,
                            enum deadline_rule rule, struct arena *arena, struct sandbox_info *out,
                            struct deadline_change *out_change, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = sandbox_of_team(all, team_id, id, err);

    if (!sb)
        return false;
    if (sb->state != SANDBOX_RUNNING)
        return sandbox_not_running(sb, err);
    uint64_t most_s = all->config.timeout_max_s;
    int64_t wanted_us = clock_wall_us() + (int64_t)MIN(timeout_s, most_s) * 1000000;
    wanted_us = MIN(wanted_us, sb->started_us + (int64_t)most_s * 1000000);
    bool is_due = rule == DEADLINE_SET && timeout_s == 0;
    struct err full;
    bool pause_now = is_due && sb->lifecycle.auto_pause && sandbox_may_pause(sb, &full);
    bool end_now = is_due && !pause_now;
    bool changed = !is_due && (rule == DEADLINE_SET || wanted_us > sb->deadline_us);
    if (changed) {
        sandbox_set_clock(sb, wanted_us);
        sb->revision++;
    } else if (pause_now) {
        sandbox_pause_enter(sb, sb->lifecycle.keep_memory);
    } else if (end_now) {
        sandbox_enter(sb, SANDBOX_ENDING);
        sb->reason = "timeout";
    }
    sandbox_describe(sb, arena, out);
    *out_change = (struct deadline_change){
        sandbox_ref(sb), sb->deadline_us, sb->revision, changed, end_now, pause_now,
    };
    return true;
}

/*
 * Writes the deadline to the store. If that fails, the store's deadline counts again, as it would after a restart, and
 * the caller gets the error.
 */
static bool keep_deadline(const struct deadline_change *change, struct arena *arena, struct err *err)
{
    struct sandbox *sb = change->sandbox;
    struct event_row event = record_updated(sb, change->deadline_us, arena);
    bool ok = store_sandbox_deadline(sb->all->config.store, str_from(sb->id), change->deadline_us, change->revision,
                                     &event, err);

    auto_unlock pthread_mutex_t *held = lock_mutex(&sb->all->lock);
    if (ok) {
        deadline_is_kept(sb, change->deadline_us, change->revision);
    } else if (sb->revision == change->revision) { /* else a later change decides */
        sandbox_set_clock(sb, sb->kept_us);
        sb->failed_revision = change->revision; /* an earlier change may still be on its way to the store */
    }
    return ok || err_wrap(err, "deadline of sandbox %s", sb->id);
}

bool sandbox_set_deadline(struct sandboxes *all, struct str team_id, struct str id, uint64_t timeout_s,
                          enum deadline_rule rule, struct arena *arena, struct sandbox_info *out, struct err *err)
{
    struct deadline_change change;
    bool ok = true;

    if (!change_deadline(all, team_id, id, timeout_s, rule, arena, out, &change, err))
        return false;
    sandbox_describe_token(all, arena, out);
    if (change.pause_now) {
        sandbox_pause_due(change.sandbox);
    } else if (change.end_now) {
        ok = sandbox_end(change.sandbox, err);
    } else if (change.changed) {
        ok = keep_deadline(&change, arena, err);
        sandboxes_look(all);
    }
    sandbox_unref(change.sandbox);
    return ok;
}
