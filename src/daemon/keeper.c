/*
 * keeper_main() - the only process that stays root.
 *   holds     the data directory, cgroups, namespaces of sandboxes, the other roles (supervisor.h)
 *   must not  parse a byte from a client, a guest or a mail server: it takes typed messages from roles, and nothing else
 *
 * How it works: keeper opens everything that needs root, makes the driver, starts the roles of the table in roles.c with
 * the descriptors that their rows name, and then answers their requests: those for the driver in isolation/serve.c, the
 * list of templates here. Sandboxes outlive keeper: the next one finds them by what is written below the data directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "daemon/authority.h"
#include "daemon/catalog.h"
#include "daemon/certificates.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/data_dir.h"
#include "daemon/inboxes.h"
#include "daemon/resolvers.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "daemon/supervisor.h"
#include "daemon/users.h"
#include "image/recipe.h"
#include "image/templates.h"
#include "io/listen.h"
#include "io/loop.h"
#include "isolation/native/native.h"
#include "isolation/serve.h"
#include "privsep/channel.h"
#include "privsep/confine.h"
#include "store/store.h"

enum { LISTEN_MS = 1000, LISTEN_RETRY_MS = 20 };

struct keeper {
    struct config config;
    struct settings settings;
    struct egress_settings egress;
    struct role_account accounts[ROLE_COUNT];
    struct loop *loop;
    int data_fd, store_fd, blobs_fd, listen_fd, mail_program_fd;
    struct driver *driver;
    struct serve *serve;
    struct catalog *catalog;
    struct inboxes *inboxes;                                       /* NULL: --mail off */
    struct resolvers *resolvers, *hook_resolvers, *pull_resolvers; /* for egress, for webhooks, for puller */
    struct supervisor *supervisor;
    struct certificates *certificates;
    struct channel *channels[ROLE_COUNT]; /* of the roles that run */
    bool announced;
};

/* ---- messages from roles ---- */

static bool reply_templates(struct keeper *keeper, struct channel *channel, uint32_t id, struct str payload,
                            struct err *err)
{
    auto_buf struct buf page = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct unpack in = unpack_from(payload);
    char after[LIMIT_ID_BYTES];
    struct err why;

    unpack_text(&in, after, sizeof after);
    if (!unpack_done(&in, err))
        return err_wrap(err, "templates");
    if (catalog_page(keeper->catalog, after, &page, &why))
        channel_reply(channel, MESSAGE_TEMPLATES, id, buf_str(&page), NULL, 0);
    else
        channel_reply_error(channel, MESSAGE_TEMPLATES, id, &why);
    return true;
}

static bool on_request(void *context, uint32_t role, struct channel *channel, enum message_type type, uint32_t id,
                       struct str payload, struct err *err)
{
    struct keeper *keeper = context;

    (void)role;
    if (type == MESSAGE_TEMPLATES)
        return reply_templates(keeper, channel, id, payload, err);
    if (type == MESSAGE_INBOX || type == MESSAGE_INBOXES || type == MESSAGE_UNMAKE)
        return keeper->inboxes ? inboxes_request(keeper->inboxes, channel, type, id, payload, err)
                               : err_set(err, ERR_INVALID, "front asks for an inbox with --mail off");
    return serve_request(keeper->serve, channel, type, id, payload, err);
}

/*
 * The domain for the lines that clients on this machine paste. They have one even if the server has none: without it old
 * SDKs would connect to E2B's cloud and send it the key.
 */
static void local_domain(const struct keeper *keeper, char *room, size_t size)
{
    const char *colon = strrchr(keeper->config.listen, ':');

    if (keeper->settings.domain[0])
        (void)snprintf(room, size, "%s", keeper->settings.domain);
    else
        (void)snprintf(room, size, AUTHORITY_NAME "%s", colon ? colon : "");
}

/* Where clients on this machine reach the server: they cannot connect to "any address". */
static void reachable_address(const char *listen, char *room, size_t size)
{
    struct str rest = str_from(listen);

    if (str_skip(&rest, STR("0.0.0.0:")) || str_skip(&rest, STR("[::]:")))
        (void)snprintf(room, size, "127.0.0.1:%.*s", STR_ARG(rest));
    else
        (void)snprintf(room, size, "%s", listen);
}

/* Before the server answers: a command line that finds it must not use the address of the last run. */
static void note_address(struct keeper *keeper)
{
    char address[CONFIG_TEXT_BYTES + 16], domain[CONFIG_TEXT_BYTES + 32];
    struct err err;

    reachable_address(keeper->config.listen, address, sizeof address);
    local_domain(keeper, domain, sizeof domain);
    if (!data_dir_note_address(keeper->data_fd, address, domain, keeper->settings.mail.is_on, &err))
        log_warn("cannot write the server's address for the command line: %s", err_text(&err));
}

/* After an upgrade, templates may be older than the recipes that make them. */
static void tell_outdated(const struct keeper *keeper)
{
    const char *name, *makes;

    for (size_t i = 0; recipe_at(i, &name, &makes); i++)
        if (recipe_state(keeper->data_fd, makes) == RECIPE_OUTDATED)
            printf("The template %s was made by another version of Cloister. It works. To build it with this "
                   "version: %s template build %s --data %s\n",
                   makes, cli_program_as_root(), name, keeper->config.data);
}

/* The same as `cloister env` prints (cli/env.c). */
static void print_lines(const struct keeper *keeper, const char *address, const char *domain)
{
    char data[PATH_MAX];

    if (!realpath(keeper->config.data, data))
        (void)snprintf(data, sizeof data, "%s", keeper->config.data);
    printf("\nCloister is up on http://%s%s%s. Paste these lines into another terminal:\n\n"
           "  export E2B_API_URL=http://%s\n"
           "  export E2B_SANDBOX_URL=http://%s\n"
           "  export E2B_API_KEY=%.*s\n"
           "  export E2B_DOMAIN=%s\n"
           "  export SSL_CERT_FILE=%s/tls/ca-bundle.pem\n"
           "  export REQUESTS_CA_BUNDLE=%s/tls/ca-bundle.pem\n"
           "  export CURL_CA_BUNDLE=%s/tls/ca-bundle.pem\n"
           "  export NODE_EXTRA_CA_CERTS=%s/tls/ca-bundle.pem\n",
           address, keeper->settings.domain[0] ? " and https://api." : "", keeper->settings.domain, address, address,
           STR_ARG(secret_reveal(&keeper->settings.api_key)), domain, data, data, data, data);
    if (keeper->settings.mail.is_on)
        printf("  export MULTIMAIL_API_URL=http://%s\n"
               "  export MULTIMAIL_API_KEY=%.*s\n"
               "  export LOBSTERMAIL_API_URL=http://%s\n"
               "  export LOBSTERMAIL_TOKEN=%.*s\n",
               address, STR_ARG(secret_reveal(&keeper->settings.mail.inbox_key)), address,
               STR_ARG(secret_reveal(&keeper->settings.mail.token)));
    printf("\n");
}

static bool is_loopback(const char *listen)
{
    return strncmp(listen, "127.", 4) == 0 || strncmp(listen, "[::1]:", 6) == 0;
}

/* To everybody who looks: keys that cross a network in clear text belong to everybody on the way. */
static void warn_if_open(const struct keeper *keeper)
{
    if (is_loopback(keeper->config.listen) || certificates_are_given(keeper->certificates))
        return;
    log_warn("LISTENING ON %s WITHOUT A CERTIFICATE: other machines do not trust the local authority, so clients there "
             "would send API keys and data unencrypted. Name one with --domain, --tls-cert and --tls-key, put a TLS "
             "proxy in front, or listen on 127.0.0.1",
             keeper->config.listen);
}

static void announce(struct keeper *keeper)
{
    char address[CONFIG_TEXT_BYTES + 16], domain[CONFIG_TEXT_BYTES + 32];
    struct err err;
    struct template base;

    if (keeper->announced) {
        log_info("front is back");
        return;
    }
    keeper->announced = true;
    reachable_address(keeper->config.listen, address, sizeof address);
    local_domain(keeper, domain, sizeof domain);
    /* Print the key only to a terminal: a log may have other readers. */
    if (isatty(STDOUT_FILENO))
        print_lines(keeper, address, domain);
    else
        printf("Cloister is up on http://%s%s%s. In another shell: eval \"$(%s env --data %s)\"\n", address,
               keeper->settings.domain[0] ? " and https://api." : "", keeper->settings.domain, cli_program_as_root(),
               keeper->config.data);
    warn_if_open(keeper);
    if (!template_find(keeper->data_fd, "base", &base, &err))
        printf("There is no `base` template yet, so nothing can start: %s template build base --data %s\n\n",
               cli_program_as_root(), keeper->config.data);
    tell_outdated(keeper);
    (void)fflush(stdout);
}

static bool on_event(void *context, uint32_t role, enum message_type type, struct str payload, struct err *err)
{
    if (role != ROLE_FRONT || type != MESSAGE_READY || payload.len)
        return err_set(err, ERR_INVALID, "malformed message: not for keeper");
    announce(context);
    return true;
}

/* ---- roles ---- */

static int grant(void *context, enum role_grant grant, struct err *err)
{
    struct keeper *keeper = context;
    int fd = -1;

    switch (grant) {
    case GRANT_SETTINGS:
        return settings_write(&keeper->settings, err);
    case GRANT_LISTENER:
        fd = fcntl(keeper->listen_fd, F_DUPFD_CLOEXEC, 3);
        break;
    case GRANT_STORE:
        fd = fcntl(keeper->store_fd, F_DUPFD_CLOEXEC, 3);
        break;
    case GRANT_BLOBS:
        fd = fcntl(keeper->blobs_fd, F_DUPFD_CLOEXEC, 3);
        break;
    case GRANT_PULLER:
        return puller_settings_write(&keeper->settings.puller, err);
    case GRANT_EGRESS:
        return egress_settings_write(&keeper->egress, err);
    case GRANT_ROOTS:
        return authority_open_roots(err);
    case GRANT_MEMINFO:
        fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
        break;
    case GRANT_INBOX: /* inboxes.c gives it */
    case GRANT_NONE:
    case GRANT_COUNT:
        errno = EINVAL;
    }
    if (fd < 0)
        (void)err_sys(err, "open a descriptor for a role");
    return fd;
}

static void on_started(void *context, uint32_t role, struct channel *channel)
{
    struct keeper *keeper = context;

    keeper->channels[role] = channel;
    if (role == ROLE_FRONT) {
        serve_tell_exits(keeper->serve, channel);
        certificates_send_chains(keeper->certificates, channel);
    }
    if (role == ROLE_EGRESS) {
        resolvers_tell(keeper->resolvers, channel);
        serve_tell_networks(keeper->serve, channel);
    }
    if (role == ROLE_WEBHOOKS)
        resolvers_tell(keeper->hook_resolvers, channel);
    if (role == ROLE_PULLER)
        resolvers_tell(keeper->pull_resolvers, channel);
    if (role == ROLE_SIGNER)
        certificates_send_keys(keeper->certificates, channel);
}

/* Keys first: a handshake with a new certificate needs the new key. */
static void on_certificates(void *context)
{
    struct keeper *keeper = context;

    if (keeper->channels[ROLE_SIGNER])
        certificates_send_keys(keeper->certificates, keeper->channels[ROLE_SIGNER]);
    if (keeper->channels[ROLE_FRONT])
        certificates_send_chains(keeper->certificates, keeper->channels[ROLE_FRONT]);
}

static void on_ended(void *context, uint32_t role, struct channel *channel)
{
    struct keeper *keeper = context;

    keeper->channels[role] = NULL;
    serve_leave(keeper->serve, channel);
    if (role == ROLE_EGRESS)
        resolvers_tell(keeper->resolvers, NULL);
    if (role == ROLE_WEBHOOKS)
        resolvers_tell(keeper->hook_resolvers, NULL);
    if (role == ROLE_PULLER)
        resolvers_tell(keeper->pull_resolvers, NULL);
}

static void on_stopped(void *context)
{
    struct keeper *keeper = context;

    loop_stop_soon(keeper->loop);
}

static void on_signal(void *context, int number)
{
    struct keeper *keeper = context;

    (void)number;
    supervisor_stop(keeper->supervisor);
}

/* Tells the operator what is still there. */
static void print_what_runs_on(struct keeper *keeper)
{
    auto_free struct held *held = NULL;
    uint32_t count, running = 0;
    char paused[40] = "";
    struct err err;

    if (!driver_list(keeper->driver, &held, &count, &err) || !count)
        return;
    for (uint32_t i = 0; i < count; i++)
        running += held[i].state == HELD_RUNNING;
    if (count > running)
        (void)snprintf(paused, sizeof paused, " and %u %s paused", count - running,
                       count - running == 1 ? "is" : "are");
    printf("\n%u sandbox%s on%s; the next server here finds %s again.\n", running, running == 1 ? " runs" : "es run",
           paused, count == 1 ? "it" : "them");
}

/* ---- start ---- */

/* The path of another program of ours, which is in the directory of this one. */
static bool beside(const char *name, char path[PATH_MAX], struct err *err)
{
    ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - NAME_MAX);
    char *slash = len < 0 ? NULL : memrchr(path, '/', (size_t)len);

    if (!slash)
        return err_sys(err, "readlink /proc/self/exe");
    memcpy(slash + 1, name, strlen(name) + 1);
    return true;
}

static int mail_program_open(struct err *err)
{
    char path[PATH_MAX];

    if (!beside("cloister-mail", path, err))
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        (void)err_set(err, ERR_NOT_FOUND,
                      "no cloister-mail at %.100s, which mail and images from registries need: run make", path);
    return fd;
}

/* Beside this program, unless the operator names another. */
static int guestd_open(const struct config *config, struct err *err)
{
    char path[PATH_MAX];

    if (config->guestd[0])
        (void)snprintf(path, sizeof path, "%s", config->guestd);
    else if (!beside("cloister-guestd", path, err))
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        (void)err_set(err, ERR_NOT_FOUND, "no guestd at %.100s: run make, or say where with --guestd", path);
    return fd;
}

/* After keeper was killed, its front holds the address for a moment longer. So try for a second. */
static int listen_patiently(const char *address, struct err *err)
{
    int fd = listen_open(str_from(address), err);

    for (int waited_ms = 0; fd < 0 && err->kind == ERR_CONFLICT && waited_ms < LISTEN_MS;
         waited_ms += LISTEN_RETRY_MS) {
        (void)usleep(LISTEN_RETRY_MS * 1000);
        fd = listen_open(str_from(address), err);
    }
    return fd;
}

/* What front may know of the token: its hash, and the public half of the key pair that it stands for. */
static bool use_admin_token(struct keeper *keeper, struct err *err)
{
    auto_wipe struct secret token = { 0 };
    auto_seal_key struct seal_key private_key = { 0 };
    char hash[STORE_HASH_BYTES];

    if (!seal_begin(err) || !data_dir_admin_token(keeper->data_fd, &token, err))
        return false;
    store_secret_hash(secret_reveal(&token), hash);
    seal_pair_of(secret_reveal(&token), "operator", &keeper->settings.mail.operator_public, &private_key);
    return secret_set(&keeper->settings.admin_hash, str_from(hash)) ||
           err_set(err, ERR_INTERNAL, "a hash is longer than a secret");
}

/*
 * The limits that the operator sets, or else the most that any template asks for: those on disk, and those that may be
 * built while the server runs, by the operator or by teams. A plan of front's may not exceed them.
 */
static bool choose_limits(const struct config *config, int data_fd, struct serve_limits *out, struct err *err)
{
    auto_templates struct templates all = { 0 };
    uint32_t memory_mb, cpus, pool_most;
    bool is_auto;

    if (!settings_pool(config->pool, &pool_most, &is_auto, err))
        return false;
    recipe_largest(&cpus, &memory_mb);
    cpus = MAX(cpus, (uint32_t)LIMIT_BUILD_CPUS);
    memory_mb = MAX(memory_mb, (uint32_t)LIMIT_BUILD_MEMORY_MB);
    if (!templates_read(data_fd, &all, err))
        return err_wrap(err, "templates");
    for (uint32_t i = 0; i < all.count; i++) {
        cpus = MAX(cpus, template_cpus(&all.list[i]));
        memory_mb = MAX(memory_mb, template_memory_mb(&all.list[i]));
    }
    *out = (struct serve_limits){
        .memory_bytes = (config->memory_mb ? config->memory_mb : memory_mb) << 20,
        .cpu_millis = (uint32_t)(config->cpus ? config->cpus : cpus) * 1000,
        .pids = (uint32_t)config->pids,
        .sandboxes = (uint32_t)config->sandboxes_max + pool_most,
    };
    return true;
}

/* BIT(role): does not run here. */
static uint32_t roles_off(const struct keeper *keeper)
{
    uint32_t off = 0;

    for (uint32_t i = 0; i < ROLE_COUNT; i++)
        if (roles[i].is_of_mail && !keeper->settings.mail.is_on)
            off |= BIT(i);
    return off;
}

static bool find_accounts(struct keeper *keeper, struct err *err)
{
    const uint32_t off = roles_off(keeper);

    for (uint32_t i = 0; i < ROLE_COUNT; i++)
        if (!roles[i].on_demand && !(off & BIT(i)) &&
            !role_user((const char *)&keeper->config + roles[i].user, &keeper->accounts[i].uid,
                       &keeper->accounts[i].gid, err))
            return false;
    return true;
}

static void on_swept(void *context)
{
    native_empty_trash(((struct keeper *)context)->driver);
}

static void on_unused(void *context)
{
    struct keeper *keeper = context;

    if (keeper->catalog)
        catalog_sweep_soon(keeper->catalog);
}

/* ---- opening, step by step ---- */

/* An operator who adds to a list of the file may not expect that the file's entries are gone. */
static void tell_replaced(const struct config *config)
{
    for (uint32_t i = 0; i < config->replaced_count; i++)
        log_info("the command line replaces the %u entr%s of '%s' in %s", config->replaced[i].entries,
                 config->replaced[i].entries == 1 ? "y" : "ies", config->replaced[i].option, config->file);
}

/* What roles are told, from the configuration. Opens nothing. */
static bool make_settings(struct keeper *keeper, struct err *err)
{
    const struct config *config = &keeper->config;
    enum log_level log_least;

    if (!mail_settings_make(config, &keeper->settings.mail, err) || !find_accounts(keeper, err) ||
        !settings_log_level(config->log, &log_least, err) ||
        !settings_token_for_code(config->token_for_code, &keeper->settings.code_always_has_token, err) ||
        !settings_switch("internet", config->internet, &keeper->settings.internet, err) ||
        !settings_pool(config->pool, &keeper->settings.pool_most, &keeper->settings.pool_is_auto, err) ||
        !settings_domain(config->domain, err) || !certificates_check_paths(config->tls_cert, config->tls_key, err) ||
        !egress_settings_make(config, &keeper->egress, err) ||
        !puller_settings_make(config, &keeper->settings.puller, err))
        return false;
    keeper->settings.egress_allow_count = keeper->egress.allow_count;
    memcpy(keeper->settings.egress_allow, keeper->egress.allow, sizeof keeper->egress.allow);
    keeper->settings.egress_deny_count = keeper->egress.deny_count;
    memcpy(keeper->settings.egress_deny, keeper->egress.deny, sizeof keeper->egress.deny);
    egress_settings_names(&keeper->egress, keeper->settings.inside);
    log_setup("keeper", log_least);
    tell_replaced(config);
    settings_choose_domain(config, keeper->settings.domain);
    keeper->egress.sandboxes_max += keeper->settings.pool_most;
    keeper->settings.sandboxes_max = (uint32_t)config->sandboxes_max;
    keeper->settings.key_sandboxes = (uint32_t)config->key_sandboxes;
    keeper->settings.key_requests = (uint32_t)config->key_requests;
    keeper->settings.key_streams = (uint32_t)config->key_streams;
    keeper->settings.timeout_max_s = config->timeout_max_s;
    keeper->settings.snapshots_max = (uint32_t)config->snapshots_max;
    keeper->settings.team_snapshots = (uint32_t)config->team_snapshots;
    keeper->settings.snapshot_disk_gb = (uint32_t)config->snapshot_disk_gb;
    keeper->settings.snapshot_days = (uint32_t)config->snapshot_days;
    keeper->settings.paused_days = (uint32_t)config->paused_days;
    keeper->settings.memory_mb = (uint32_t)config->memory_mb;
    keeper->settings.cpus = (uint32_t)config->cpus;
    keeper->settings.pids = (uint32_t)config->pids;
    return true;
}

static bool open_descriptors(struct keeper *keeper, struct err *err)
{
    const struct config *config = &keeper->config;

    /* First: below a directory that was opened in the old namespace nothing can be mounted. */
    if (!native_enter_mount_namespace(err))
        return false;
    keeper->data_fd = data_dir_open(config->data, err);
    if (keeper->data_fd < 0)
        return false;
    keeper->store_fd =
        data_dir_store(keeper->data_fd, keeper->accounts[ROLE_FRONT].uid, keeper->accounts[ROLE_FRONT].gid, err);
    if (keeper->store_fd < 0)
        return false;
    keeper->blobs_fd =
        data_dir_blobs(keeper->data_fd, keeper->accounts[ROLE_PULLER].uid, keeper->accounts[ROLE_PULLER].gid, err);
    if (keeper->blobs_fd < 0)
        return false;
    keeper->listen_fd = listen_patiently(config->listen, err);
    return keeper->listen_fd >= 0;
}

static bool start_driver(struct keeper *keeper, struct err *err)
{
    unsigned long files;

    auto_close int guestd_fd = guestd_open(&keeper->config, err);
    if (guestd_fd < 0 || !confine_raise_files(&files, err))
        return false;
    keeper->loop = loop_new();
    if (!loop_on_signal(keeper->loop, SIGTERM, on_signal, keeper, err) ||
        !loop_on_signal(keeper->loop, SIGINT, on_signal, keeper, err))
        return false;
    const char *criu = keeper->config.criu;
    const struct native_config config = { .data_fd = keeper->data_fd,
                                          .guestd_fd = guestd_fd,
                                          .criu = strcmp(criu, "off") == 0 ? NULL : criu,
                                          .compress_after_ms = keeper->config.compress_after_s * 1000,
                                          .on_unused = on_unused,
                                          .on_unused_context = keeper };
    keeper->driver = native_driver_new(keeper->loop, &config, err);
    if (!keeper->driver)
        return err_wrap(err, "make sandboxes here (`%s doctor` may know why not)", cli_program_as_root());
    return true;
}

/* Read from the data directory, or made at the first start. */
static bool open_secrets(struct keeper *keeper, struct err *err)
{
    struct mail_settings *mail = &keeper->settings.mail;

    return data_dir_node_id(keeper->data_fd, keeper->settings.node_id, err) &&
           data_dir_api_key(keeper->data_fd, &keeper->settings.api_key, err) && use_admin_token(keeper, err) &&
           (!mail->is_on ||
            data_dir_mail_keys(keeper->data_fd, &mail->server_key, &mail->inbox_key, &mail->token, err));
}

static bool open_certificates(struct keeper *keeper, struct err *err)
{
    const struct config *config = &keeper->config;

    keeper->certificates = certificates_new(&(struct certificates_config){ .loop = keeper->loop,
                                                                           .data_fd = keeper->data_fd,
                                                                           .domain = keeper->settings.domain,
                                                                           .cert_path = config->tls_cert,
                                                                           .key_path = config->tls_key,
                                                                           .changed = on_certificates,
                                                                           .context = keeper },
                                            err);
    return keeper->certificates || err_wrap(err, "TLS");
}

/* What front asks keeper for. */
static bool open_services(struct keeper *keeper, struct err *err)
{
    struct serve_limits limits;

    keeper->catalog = catalog_new(&(struct catalog_config){ .loop = keeper->loop,
                                                            .data_fd = keeper->data_fd,
                                                            .sweep_ms = CATALOG_SWEEP_MS,
                                                            .on_swept = on_swept,
                                                            .context = keeper });
    keeper->resolvers = resolvers_new(keeper->loop, "/etc/resolv.conf", RESOLVERS_LOOK_MS);
    keeper->hook_resolvers = resolvers_new(keeper->loop, "/etc/resolv.conf", RESOLVERS_LOOK_MS);
    keeper->pull_resolvers = resolvers_new(keeper->loop, "/etc/resolv.conf", RESOLVERS_LOOK_MS);
    if (!choose_limits(&keeper->config, keeper->data_fd, &limits, err))
        return false;
    keeper->serve = serve_new(keeper->loop, keeper->driver, &limits);
    return true;
}

static bool open_mail(struct keeper *keeper, struct err *err)
{
    if (!keeper->settings.mail.is_on)
        return true;
    keeper->inboxes = inboxes_new(&(struct inboxes_config){ .loop = keeper->loop,
                                                            .data_fd = keeper->data_fd,
                                                            .log_level = keeper->config.log,
                                                            .workers_most = LIMIT_INBOX_PROCESSES },
                                  err);
    return keeper->inboxes || err_wrap(err, "mail");
}

static void make_supervisor(struct keeper *keeper)
{
    keeper->supervisor = supervisor_new(&(struct supervisor_config){
        .loop = keeper->loop,
        .rows = roles,
        .count = ROLE_COUNT,
        .accounts = keeper->accounts,
        .log_level = keeper->config.log,
        .without = roles_off(keeper),
        .mail_program = keeper->mail_program_fd,
        .grant = grant,
        .started = on_started,
        .ended = on_ended,
        .request = on_request,
        .event = on_event,
        .stopped = on_stopped,
        .context = keeper,
    });
}

static bool keeper_open(struct keeper *keeper, struct err *err)
{
    if (geteuid() != 0)
        return err_set(err, ERR_DENIED, "serving needs root, to make sandboxes: %s serve", cli_program_as_root());
    /* Secrets after the driver, which locks the data directory: two servers that start at once must not both make them. */
    if (!make_settings(keeper, err) || !open_descriptors(keeper, err) || !start_driver(keeper, err) ||
        !open_secrets(keeper, err) || !open_certificates(keeper, err) || !open_services(keeper, err) ||
        !open_mail(keeper, err))
        return false;
    keeper->mail_program_fd = mail_program_open(err);
    if (keeper->mail_program_fd < 0)
        return false;
    make_supervisor(keeper);
    return true;
}

static void keeper_close(struct keeper *keeper)
{
    supervisor_free(keeper->supervisor);
    inboxes_free(keeper->inboxes);
    serve_free(keeper->serve);
    catalog_free(keeper->catalog);
    resolvers_free(keeper->resolvers);
    resolvers_free(keeper->hook_resolvers);
    resolvers_free(keeper->pull_resolvers);
    certificates_free(keeper->certificates);
    driver_free(keeper->driver);
    loop_free(keeper->loop);
    fd_close(&keeper->mail_program_fd);
    fd_close(&keeper->listen_fd);
    fd_close(&keeper->store_fd);
    fd_close(&keeper->blobs_fd);
    fd_close(&keeper->data_fd);
    settings_wipe(&keeper->settings);
}

int keeper_main(int argc, char **argv)
{
    auto_free struct keeper *keeper = NEW(struct keeper);
    struct err err;
    int code = 0;

    keeper->data_fd = keeper->store_fd = keeper->blobs_fd = keeper->listen_fd = keeper->mail_program_fd = -1;
    if (config_load(argc, argv, &keeper->config, &err) && keeper_open(keeper, &err)) {
        note_address(keeper);
        supervisor_start(keeper->supervisor);
        loop_run(keeper->loop);
        print_what_runs_on(keeper);
    } else {
        code = cli_fail(&err);
    }
    keeper_close(keeper);
    return code;
}
