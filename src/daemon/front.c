/*
 * front_main() - everything that faces the network, and every decision.
 *   holds     what its row in roles.c names: a listening socket, the store's directory, a channel to keeper
 *   must not  make or connect a socket, run a program, see the host's files beyond the store
 *
 * How it works: role_run() has dropped all privileges. Front reads its settings, opens the store, and has a worker compare
 * the store with the templates and sandboxes that keeper has (recover). Only then it accepts connections, so that the
 * first answer knows every sandbox that outlived the last front. proxy_is_edge() decides whether a request is for the edge
 * (proxy/) or for the API (api/).
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actions/actions.h"
#include "api/api.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/front_egress.h"
#include "daemon/front_mail.h"
#include "daemon/front_tls.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "daemon/supervisor.h"
#include "http/http.h"
#include "image/templates.h"
#include "io/loop.h"
#include "io/worker.h"
#include "isolation/remote.h"
#include "privsep/channel.h"
#include "privsep/role.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "template/pull.h"
#include "template/template.h"

/* Workers mostly wait: for keeper, for guestd, for the disk. */
static_assert(LIMIT_STARTS + LIMIT_SLOW_STARTS + LIMIT_FORK_HELPERS + LIMIT_PAUSES + LIMIT_CHANGES + LIMIT_DUE_PAUSES +
                          LIMIT_WAKES + LIMIT_MAIL_CALLS + LIMIT_MAIL_SWEEPERS + LIMIT_UPLOAD_WORKERS + LIMIT_HOOKS +
                          LIMIT_HOOK_LOOKS + LIMIT_TLS_WORKERS + LIMIT_TLS_CLIENT_WORKERS <
                      LIMIT_WORKERS &&
                  LIMIT_STARTS_PER_KEY < LIMIT_STARTS && 2 * LIMIT_SLOW_STARTS_PER_KEY < LIMIT_SLOW_STARTS &&
                  2 * LIMIT_PAUSES_PER_KEY < LIMIT_PAUSES && LIMIT_CHANGES_PER_KEY < LIMIT_CHANGES &&
                  LIMIT_DUE_PAUSES_PER_KEY < LIMIT_DUE_PAUSES && LIMIT_FORK_HELPERS_PER_KEY < LIMIT_FORK_HELPERS &&
                  2 * LIMIT_COPIES_PER_TEAM <= LIMIT_COPIES && LIMIT_MAIL_CALLS_EACH < LIMIT_MAIL_CALLS &&
                  LIMIT_UPLOAD_WORKERS_EACH < LIMIT_UPLOAD_WORKERS,
              "creates, pauses, mail, uploads and TLS handshakes must leave workers for other calls, and one key some "
              "for other keys");

enum {
    STOP_BUILDS_MS = 3000, /* for builds, the pool and kills to end their sandboxes, and then… */
    STOP_MS = 3000,        /* …for control calls under way; both together less than stop_ms in front's row */
    STOP_LOOK_MS = 10,
    UPKEEP_FIRST_MS = 3000,    /* after the start… */
    UPKEEP_MS = 10000,         /* …and from then on */
    SWEEP_MS = 10 * 60 * 1000, /* between looks for what is too old: days are counted */
};

enum { DISK_MB = 5120 }; /* told to clients; no quota is enforced yet */

struct front {
    const struct role_row *self;
    struct settings settings;
    struct loop *loop;
    struct workers *workers;
    struct channel *channel;
    struct channel *peers[ROLE_COUNT]; /* to other roles; NULL: none. Keeper connects them, see on_event() */
    struct front_egress *egress;       /* its channel is peers[ROLE_EGRESS] */
    struct front_tls *tls;
    struct front_mail *mail; /* NULL: mail is off */
    struct puller *puller;   /* its channel is peers[ROLE_PULLER] */
    struct driver *driver;
    struct store *store;
    struct sandboxes *sandboxes;
    struct uploads *uploads;
    struct builder *builder;
    struct actions actions;
    pthread_mutex_t refresh_lock;          /* around refresh_templates() */
    char foreign_template[LIMIT_ID_BYTES]; /* under it: the last template that was left out for its team */
    struct proxy *proxy;
    struct api *api;
    struct http_server *server;
    struct http_server *guests; /* connections of sandboxes to mail; NULL: mail is off */
    struct job boot;
    struct timer upkeep_timer;
    struct job upkeep;
    uint64_t sweep_ms; /* the upkeep's */
    struct timer stopping;
    uint64_t stop_ms;
    bool is_shut; /* nobody can be asked any more */
    bool booted;
    int exit_code;
};

/* ---- keeper ---- */

static bool take_peer(struct front *front, struct str payload, struct message_fds *fds, struct err *err)
{
    if (!supervisor_take_peer(front->peers, ROLE_COUNT, payload, fds, err))
        return false;
    /* A new egress knows no policy. Before recovery there is none to send; boot_done() does it then. */
    if (front->server && (uint8_t)payload.at[0] == ROLE_EGRESS)
        sandboxes_send_policies(front->sandboxes);
    return true;
}

static bool on_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                     struct err *err)
{
    struct front *front = context;

    if (type == MESSAGE_PEER)
        return take_peer(front, payload, fds, err);
    if (type == MESSAGE_CERTIFICATE)
        return front_tls_take(front->tls, payload, fds, err);
    return remote_driver_event(front->driver, type, payload, fds, err);
}

static void on_broken(void *context, const struct err *why)
{
    struct front *front = context;

    log_error("keeper is gone: %s", err_text(why));
    front->exit_code = 1;
    loop_stop_soon(front->loop);
}

static bool put_template(struct front *front, const struct template *template, struct err *err)
{
    struct str layers[LIMIT_LAYERS], alias = str_from(template->name);

    for (uint32_t i = 0; i < template->layer_count; i++)
        layers[i] = str_from(template->layers[i]);
    struct template_row row = {
        .id = str_from(template->id),
        .team_id = str_from(template->owner),
        .cpu_count = front->settings.cpus ? front->settings.cpus : template_cpus(template),
        .memory_mb = front->settings.memory_mb ? front->settings.memory_mb : template_memory_mb(template),
        .disk_mb = DISK_MB,
        .guestd_version = STR(GUESTD_API_VERSION),
        .created_us = template->created_us,
        .layer_count = template->layer_count,
        .layers = layers,
        .alias_count = 1,
        .aliases = &alias,
    };
    if (store_template_put(front->store, &row, err))
        return true;
    if (err->kind != ERR_CONFLICT || !template->owner[0])
        return err_wrap(err, "template %s", template->name);
    /* Its team is not in this store: it is of no use here, and no reason to do without the others. */
    if (strcmp(front->foreign_template, template->id) != 0)
        log_warn("template %.*s (%.*s) is left out: there is no team %.*s", STR_ARG(row.id), STR_ARG(alias),
                 STR_ARG(row.team_id));
    memcpy(front->foreign_template, template->id, sizeof front->foreign_template);
    return true;
}

/* A page from keeper; *out_list is a heap array. */
static bool ask_for_page(struct front *front, struct str after, bool *out_all_read, struct template **out_list,
                         uint32_t *out_count, struct err *err)
{
    auto_answer struct channel_answer answer = { 0 };
    auto_buf struct buf request = buf_make(NULL, 2 * LIMIT_ID_BYTES);

    pack_str(&request, after);
    if (!channel_call(front->channel, MESSAGE_TEMPLATES, buf_str(&request), &answer, err))
        return err_wrap(err, "ask keeper for templates");
    struct unpack in = unpack_from(str_of(answer.payload, answer.len));
    *out_all_read = unpack_u8(&in) != 0;
    *out_list = templates_unpack(&in, out_count);
    if (unpack_done(&in, err) && *out_list)
        return true;
    free(take_ptr(out_list));
    return err_wrap(err, "templates from keeper");
}

static bool copy_templates(struct front *front, struct arena *arena, struct err *err)
{
    struct str *ids = NULL;
    bool all_read = true;
    uint32_t count = LIMIT_TEMPLATES_PAGE;
    size_t total = 0;

    while (count == LIMIT_TEMPLATES_PAGE) {
        auto_free struct template *page = NULL;
        if (!ask_for_page(front, total ? ids[total - 1] : STR(""), &all_read, &page, &count, err))
            return false;
        struct str *more = ARENA_ARRAY(arena, struct str, total + count);
        if (total)
            memcpy(more, ids, total * sizeof *ids);
        ids = more;
        for (uint32_t i = 0; i < count; i++) {
            ids[total++] = arena_copy(arena, str_from(page[i].id));
            if (!put_template(front, &page[i], err))
                return false;
        }
    }
    /* A file that keeper could not read may be of a template that is in use. */
    return !all_read || store_template_keep(front->store, ids, total, err);
}

/* Keeper knows which templates are on disk; the store keeps the list for all other callers. On a worker. */
static bool refresh_templates(void *context, struct err *err)
{
    struct front *front = context;
    struct arena arena;

    /* One at a time: an older list must not remove what a newer one has brought. */
    auto_unlock pthread_mutex_t *held = lock_mutex(&front->refresh_lock);
    arena_init(&arena);
    bool ok = copy_templates(front, &arena, err);
    arena_done(&arena);
    return ok;
}

/* ---- egress ---- */

static void send_policy(void *context, const char *id, struct str policy)
{
    struct front *front = context;

    front_egress_send(front->egress, id, policy);
}

static bool apply_policy(void *context, const char *id, struct str policy, struct err *err)
{
    struct front *front = context;

    return front_egress_apply(front->egress, id, policy, err);
}

/* ---- requests ---- */

static void on_request(struct http_exchange *ex, void *context)
{
    struct front *front = context;

    if (proxy_is_edge(front->proxy, &ex->head))
        proxy_handle(front->proxy, ex);
    else
        api_handle(front->api, ex);
}

/* From inside a sandbox: only mail is there, and it knows which sandbox asks. */
static void on_guest_request(struct http_exchange *ex, void *context)
{
    struct front *front = context;

    api_handle_inside(front->api, ex, http_label(ex));
}

static void on_guest(void *context, const char *sandbox_id, int fd)
{
    struct front *front = context;

    if (front->guests)
        http_server_adopt_as(front->guests, fd, sandbox_id);
    else
        fd_close(&fd);
}

static void on_connection(struct stream *stream, void *context)
{
    struct front *front = context;

    front_tls_accept(front->tls, stream);
}

static void on_unroutable(void *context, const char *id)
{
    struct front *front = context;

    proxy_cut(front->proxy, id);
}

/* ---- upkeep ---- */

static void upkeep_run(struct job *job)
{
    struct front *front = container_of(job, struct front, upkeep);

    sandboxes_measure_paused(front->sandboxes);
    sandboxes_measure_snapshots(front->sandboxes);
    if (front->sweep_ms > clock_mono_ms())
        return;
    action_sweep_kept(&front->actions);
    bool more = builder_tidy(front->builder);
    uploads_sweep(front->uploads);
    front->sweep_ms = more ? 0 : clock_mono_ms() + SWEEP_MS;
}

static void on_upkeep(struct timer *timer);

static void upkeep_done(struct job *job)
{
    struct front *front = container_of(job, struct front, upkeep);

    if (!timer_is_set(&front->stopping))
        timer_set(&front->upkeep_timer, front->loop, UPKEEP_MS, on_upkeep);
}

static void on_upkeep(struct timer *timer)
{
    struct front *front = container_of(timer, struct front, upkeep_timer);

    front->upkeep = (struct job){ .run = upkeep_run, .done = upkeep_done };
    workers_run(front->workers, &front->upkeep);
}

/* ---- start ---- */

/* The templates that clients use if they name none. What else is in use, the pool learns by itself. */
static void expect_creates(struct front *front)
{
    static const struct {
        struct str name;
        bool code;
    } usual[] = { { STR_INIT("base"), false }, { STR_INIT("code-interpreter-v1"), true } };
    struct template_row row;
    struct arena arena;
    struct err ignored; /* there is none of this name yet */

    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(usual); i++) {
        if (!store_template_by_alias(front->store, STR(""), usual[i].name, &arena, &row, &ignored))
            continue;
        const struct sandbox_want want = {
            .layer_count = row.layer_count, .layers = row.layers, .cpu_count = row.cpu_count, .memory_mb = row.memory_mb
        };
        sandboxes_expect(front->sandboxes, &want, usual[i].code);
    }
    arena_done(&arena);
}

static void boot_run(struct job *job)
{
    struct front *front = container_of(job, struct front, boot);
    struct err err;

    front->booted = refresh_templates(front, &err) && sandboxes_recover(front->sandboxes, &err);
    if (!front->booted)
        log_error("cannot start: %s", err_text(&err));
    else if (front->mail)
        front_mail_first(front->mail);
    if (front->booted)
        expect_creates(front);
}

static void boot_done(struct job *job)
{
    struct front *front = container_of(job, struct front, boot);

    if (timer_is_set(&front->stopping))
        return;
    if (!front->booted) {
        front->exit_code = 1;
        loop_stop_soon(front->loop);
        return;
    }
    sandboxes_send_policies(front->sandboxes);
    timer_set(&front->upkeep_timer, front->loop, UPKEEP_FIRST_MS, on_upkeep);
    if (front->mail)
        front_mail_begin(front->mail);
    front->server = http_server_new(front->loop, role_fd(front->self, GRANT_LISTENER),
                                    &(struct http_server_config){
                                        .on_request = on_request,
                                        .on_connection = on_connection,
                                        .http2 = &http2_protocol,
                                        .context = front,
                                        .stranger_ms = LIMIT_STRANGER_MS,
                                    });
    if (front->settings.mail.is_on)
        front->guests = http_server_new(front->loop, -1,
                                        &(struct http_server_config){
                                            .on_request = on_guest_request,
                                            .context = front,
                                            .collect_max = LIMIT_GUESTS_COLLECT_BYTES,
                                            .connections_max = LIMIT_INSIDE_CONNECTIONS,
                                        });
    channel_send_event(front->channel, MESSAGE_READY, STR(""), NULL, 0);
}

/* ---- stop ---- */

/* Calls that wait for keeper must fail now, while the loop still runs and can wake their workers. */
static void shut_channels(struct front *front)
{
    channel_shut(front->channel);
    for (int i = 0; i < ROLE_COUNT; i++)
        if (front->peers[i])
            channel_shut(front->peers[i]);
    front->is_shut = true;
    front->stop_ms = loop_now_ms(front->loop) + STOP_MS;
}

static void on_stopping(struct timer *timer)
{
    struct front *front = container_of(timer, struct front, stopping);
    bool has_time = loop_now_ms(front->loop) < front->stop_ms;

    /* First keeper ends what was killed, and the sandboxes of builds and of the pool: without a server they are of no use. */
    bool must_wait = builder_is_busy(front->builder) || !sandboxes_pool_is_empty(front->sandboxes) ||
                     sandboxes_are_ending(front->sandboxes);
    if (!front->is_shut && !(must_wait && has_time)) {
        shut_channels(front);
        has_time = true;
    }
    bool is_busy = workers_busy(front->workers) || builder_is_busy(front->builder);
    if (!front->is_shut || (is_busy && has_time))
        timer_set(timer, front->loop, STOP_LOOK_MS, on_stopping);
    else
        loop_stop_soon(front->loop);
}

static void on_signal(void *context, int number)
{
    struct front *front = context;

    (void)number;
    if (timer_is_set(&front->stopping))
        return;
    if (front->egress)
        front_egress_stop(front->egress);
    http_server_free(take_ptr(&front->server));
    http_server_free(take_ptr(&front->guests));
    if (front->mail)
        front_mail_stop(front->mail);
    timer_clear(&front->upkeep_timer);
    builder_stop(front->builder);
    sandboxes_close_pool(front->sandboxes);
    front->stop_ms = loop_now_ms(front->loop) + STOP_BUILDS_MS;
    timer_set(&front->stopping, front->loop, 0, on_stopping);
}

/* In the store's directory, the only one that front has. */
static bool open_uploads(struct front *front, struct err *err)
{
    if (mkdir("uploads", 0700) < 0 && errno != EEXIST)
        return err_sys(err, "make the directory of uploads");
    int fd = open("uploads", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, "open the directory of uploads");
    front->uploads = uploads_new(fd, NULL, err);
    return front->uploads != NULL;
}

static bool open_store(struct front *front, struct err *err)
{
    auto_close int dir_fd = role_fd(front->self, GRANT_STORE);
    struct err behind_err;

    if (fchdir(dir_fd) < 0)
        return err_sys(err, "enter the store's directory");
    front->store = store_open("cloister.db", str_from(front->settings.node_id), err);
    if (!front->store)
        return false;
    if (!store_checkpoint_behind(front->store, &behind_err)) /* front never forks */
        log_warn("store: some commits take longer, because they make checkpoints: %s", err_text(&behind_err));
    return store_key_ensure(front->store, store_team_default(front->store), STR("default"), &front->settings.api_key,
                            err);
}

/* On the loop, for each change that clients may wait for. */
static void on_mail_event(void *context, const struct mail_event *event)
{
    struct front *front = context;

    if (front->api)
        api_mail_heard(front->api, event);
}

static bool open_mail(struct front *front, struct err *err)
{
    if (!front->settings.mail.is_on)
        return true;
    front->peers[ROLE_COMPOSER] = channel_new(front->loop, -1, &(struct channel_handlers){ 0 }, NULL);
    front->peers[ROLE_WEBHOOKS] = channel_new(front->loop, -1, &(struct channel_handlers){ 0 }, NULL);
    front->mail = front_mail_new(&(struct front_mail_config){ .loop = front->loop,
                                                              .workers = front->workers,
                                                              .keeper = front->channel,
                                                              .composer = front->peers[ROLE_COMPOSER],
                                                              .webhooks = front->peers[ROLE_WEBHOOKS],
                                                              .settings = &front->settings.mail,
                                                              .actions = &front->actions,
                                                              .heard = on_mail_event,
                                                              .context = front },
                                 err);
    return front->mail || err_wrap(err, "mail");
}

/* On a worker. */
static bool open_pull(void *context, int *out_fd, struct err *err)
{
    struct front *front = context;
    auto_answer struct channel_answer answer = { 0 };

    if (!channel_call(front->peers[ROLE_PULLER], MESSAGE_PULL, STR(""), &answer, err))
        return false;
    if (answer.len || answer.fds.count != 1)
        return err_set(err, ERR_INTERNAL, "a reply to pull without a connection");
    *out_fd = take_fd(&answer.fds.at[0]);
    return true;
}

static void open_puller(struct front *front)
{
    front->peers[ROLE_PULLER] = channel_new(front->loop, -1, &(struct channel_handlers){ 0 }, NULL);
    front->puller = puller_new(&(struct puller_config){
        .open = open_pull, .context = front, .options = puller_settings_options(&front->settings.puller) });
}

static bool front_open(struct front *front, struct err *err)
{
    static const struct channel_handlers handlers = { .event = on_event, .broken = on_broken };
    auto_close int settings_fd = role_fd(front->self, GRANT_SETTINGS);

    if (!settings_read(settings_fd, &front->settings, err) || !open_store(front, err) || !open_uploads(front, err))
        return false;

    front->loop = loop_new();
    /* A terminal sends Ctrl-C to the whole group. Front stops when keeper sends SIGTERM. */
    (void)signal(SIGINT, SIG_IGN);
    if (!loop_on_signal(front->loop, SIGTERM, on_signal, front, err))
        return false;
    front->workers = workers_new(front->loop, LIMIT_WORKERS);
    front->channel = channel_new(front->loop, ROLE_CHANNEL_FD, &handlers, front);
    front->egress = front_egress_new(front->loop);
    front->peers[ROLE_EGRESS] = front_egress_channel(front->egress);
    front->peers[ROLE_SIGNER] = channel_new(front->loop, -1, &(struct channel_handlers){ 0 }, NULL);
    front->tls = front_tls_new(front->loop, front->workers, front->peers[ROLE_SIGNER]);
    front->driver = remote_driver_new(front->channel);
    front->sandboxes = sandboxes_new(&(struct sandboxes_config){
        .loop = front->loop,
        .workers = front->workers,
        .driver = front->driver,
        .store = front->store,
        .on_unroutable = on_unroutable,
        .send_policy = send_policy,
        .apply_policy = apply_policy,
        .context = front,
        .sandboxes_max = front->settings.sandboxes_max,
        .per_key_max = front->settings.key_sandboxes,
        .timeout_max_s = front->settings.timeout_max_s,
        .pids = front->settings.pids,
        .pool_most = front->settings.pool_most,
        .pool_is_auto = front->settings.pool_is_auto,
        .meminfo_fd = role_fd(front->self, GRANT_MEMINFO),
        .inside = front->settings.inside,
        .has_mail = front->settings.mail.is_on,
    });
    open_puller(front);
    front->builder = builder_new(&(struct builder_config){ .store = front->store,
                                                           .sandboxes = front->sandboxes,
                                                           .driver = front->driver,
                                                           .puller = front->puller,
                                                           .uploads = front->uploads,
                                                           .guestd_version = GUESTD_API_VERSION,
                                                           .disk_mb = DISK_MB,
                                                           .internet = front->settings.internet },
                                 err);
    if (!front->builder)
        return false;
    front_egress_report_to(front->egress, front->sandboxes);
    front_egress_guests_to(front->egress, on_guest, front);
    if (!open_mail(front, err))
        return false;
    front->actions = (struct actions){
        .store = front->store,
        .sandboxes = front->sandboxes,
        .admin_hash = &front->settings.admin_hash,
        .refresh_templates = refresh_templates,
        .context = front,
        .meters = meters_new(front->settings.key_requests),
        .code_always_has_token = front->settings.code_always_has_token,
        .internet = front->settings.internet,
        .mail = front->mail ? front_mail_setup(front->mail) : NULL,
        .ranges = { .allow_count = front->settings.egress_allow_count,
                    .allow = front->settings.egress_allow,
                    .deny_count = front->settings.egress_deny_count,
                    .deny = front->settings.egress_deny },
        .uploads = front->uploads,
        .builder = front->builder,
        .build_start = builder_start,
        .build_cancel = builder_cancel,
        .build_prune = builder_prune,
        .puller = front->puller,
        .pull_stock = puller_stock,
        .snapshots = { .of_team = front->settings.team_snapshots,
                       .of_all = front->settings.snapshots_max,
                       .bytes = (uint64_t)front->settings.snapshot_disk_gb << 30 },
        .cpus_most = front->settings.cpus,
        .memory_mb_most = front->settings.memory_mb,
        .retention = { .snapshot_days = front->settings.snapshot_days, .paused_days = front->settings.paused_days },
    };
    front->proxy = proxy_new(front->loop, front->sandboxes);
    proxy_use_workers(front->proxy, front->workers);
    proxy_limit_key(front->proxy, front->settings.key_streams);
    front->api = api_new(&(struct api_config){
        .loop = front->loop,
        .workers = front->workers,
        .actions = &front->actions,
        .domain = front->settings.domain,
    });
    front->boot = (struct job){ .run = boot_run, .done = boot_done };
    workers_run(front->workers, &front->boot);
    return true;
}

/* Sandboxes keep running. Callers are freed before what they call. */
static void front_close(struct front *front)
{
    http_server_free(front->server);
    http_server_free(front->guests);
    if (front->sandboxes)
        sandboxes_stop_work(front->sandboxes);
    if (front->workers)
        workers_free(front->workers);
    builder_free(front->builder);
    if (front->api)
        api_free(front->api);
    front_mail_free(front->mail);
    meters_free(front->actions.meters);
    if (front->proxy)
        proxy_free(front->proxy);
    if (front->sandboxes)
        sandboxes_free(front->sandboxes);
    puller_free(front->puller);
    driver_free(front->driver);
    front_egress_free(front->egress);
    if (front->peers[ROLE_PULLER])
        channel_free(front->peers[ROLE_PULLER]);
    if (front->peers[ROLE_COMPOSER])
        channel_free(front->peers[ROLE_COMPOSER]);
    if (front->peers[ROLE_WEBHOOKS])
        channel_free(front->peers[ROLE_WEBHOOKS]);
    if (front->peers[ROLE_SIGNER])
        channel_free(front->peers[ROLE_SIGNER]);
    if (front->channel)
        channel_free(front->channel);
    loop_free(front->loop);
    front_tls_free(front->tls);
    uploads_free(front->uploads);
    store_close(front->store);
    settings_wipe(&front->settings);
}

int front_main(const struct role_row *self)
{
    struct front *front = NEW(struct front);
    struct err err;

    front->self = self;
    pthread_mutex_init(&front->refresh_lock, NULL);
    /* Else malloc has an arena for each worker, and each keeps the memory of its largest request. */
    (void)mallopt(M_ARENA_MAX, 2);
    if (front_open(front, &err)) {
        loop_run(front->loop);
    } else {
        log_error("cannot start: %s", err_text(&err));
        front->exit_code = 1;
    }
    int code = front->exit_code;
    front_close(front);
    free(front);
    return code;
}
