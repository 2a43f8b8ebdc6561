/*
 * `cloister doctor`: can this machine run sandboxes? The driver's probe tries everything that sandboxes need; this file
 * adds what the server needs: a user, a port, templates. Every row that is not ok says how to fix it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/cli.h"
#include "daemon/authority.h"
#include "daemon/certificates.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/data_dir.h"
#include "daemon/settings.h"
#include "daemon/users.h"
#include "http/http.h"
#include "image/recipe.h"
#include "image/templates.h"
#include "io/listen.h"
#include "io/tls_key.h"
#include "io/tls_look.h"
#include "isolation/native/probe.h"
#include "wire/json.h"

enum {
    ROWS_MAX = PROBE_ROWS_MAX + 20,
    HEALTH_TIMEOUT_MS = 3000,
    ENDS_SOON_DAYS = 14, /* ACME clients renew 30 days before the end: whoever has less has a problem there */
};
#define DAY_US (86400 * (int64_t)1000000)
#define RENEW "renew it; a running server loads the new files by itself"

struct findings {
    struct probe_row rows[ROWS_MAX];
    size_t count;
};

static struct probe_row *finding(struct findings *all, const char *name, enum probe_verdict verdict)
{
    struct probe_row *row = &all->rows[all->count++];

    *row = (struct probe_row){ .name = name, .verdict = verdict };
    return row;
}

static void look_at_user(struct findings *all, const char *name, const char *user)
{
    uid_t uid;
    gid_t gid;
    struct err err;
    bool ok = role_user(user, &uid, &gid, &err);
    struct probe_row *row = finding(all, name, ok ? PROBE_OK : PROBE_FAIL);

    if (ok) {
        (void)snprintf(row->found, sizeof row->found, "%.32s (%u)", user, uid);
        return;
    }
    (void)snprintf(row->found, sizeof row->found, "no usable user %.32s", user);
    (void)snprintf(row->fix, sizeof row->fix, "useradd --system --no-create-home --shell /usr/sbin/nologin %.32s",
                   user);
}

static void refuse(struct findings *all, const struct config *config, const struct err *why)
{
    struct probe_row *row = finding(all, "configuration", PROBE_FAIL);

    (void)snprintf(row->found, sizeof row->found, "%s", why->message);
    if (access(config->file, F_OK) == 0)
        (void)snprintf(row->fix, sizeof row->fix, "correct it in %.90s, or on the command line of serve", config->file);
    else
        (void)snprintf(row->fix, sizeof row->fix, "correct it on the command line of serve");
}

/* One list at a time: egress_settings_make() stops at the first mistake. */
static void look_at_lists(struct findings *all, const struct config *config)
{
    static const size_t lists[] = { offsetof(struct config, egress_allow), offsetof(struct config, egress_deny),
                                    offsetof(struct config, dns), offsetof(struct config, inside) };
    auto_free struct egress_settings *made = NEW(struct egress_settings);
    struct err err;

    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        auto_free struct config *one = NEW(struct config);
        memcpy((char *)one + lists[i], (const char *)config + lists[i], CONFIG_LIST_BYTES);
        if (!egress_settings_make(one, made, &err))
            refuse(all, config, &err);
    }
}

/* What serve checks before it opens anything: make_settings() in keeper.c. Every mistake has a row. */
static void look_at_settings(struct findings *all, const struct config *config)
{
    size_t before = all->count;
    struct mail_settings mail;
    enum log_level level;
    uint32_t most;
    bool is_on;
    struct err err;

    if (!settings_log_level(config->log, &level, &err))
        refuse(all, config, &err);
    if (!settings_token_for_code(config->token_for_code, &is_on, &err))
        refuse(all, config, &err);
    if (!settings_switch("internet", config->internet, &is_on, &err))
        refuse(all, config, &err);
    if (!settings_pool(config->pool, &most, &is_on, &err))
        refuse(all, config, &err);
    if (!settings_domain(config->domain, &err))
        refuse(all, config, &err);
    if (!mail_settings_make(config, &mail, &err))
        refuse(all, config, &err);
    if (!certificates_check_paths(config->tls_cert, config->tls_key, &err))
        refuse(all, config, &err);
    look_at_lists(all, config);
    if (all->count > before)
        return;
    struct probe_row *row = finding(all, "configuration", PROBE_OK);
    (void)snprintf(row->found, sizeof row->found, "every option has a value that serve accepts");
}

/* True if a Cloister server answers there. The request carries no credential. */
static bool is_ours(const char *address)
{
    struct http_answer answer;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    bool ours = http_fetch(&arena, str_from(address), STR("GET"), STR("/health"), NULL, 0, STR(""), HEALTH_TIMEOUT_MS,
                           &answer, &err) &&
                answer.status == 204;
    arena_done(&arena);
    return ours;
}

/* Checks the address of the directory's last server, unless --listen names one; without either, the configured one. */
static void look_at_port(struct findings *all, const struct config *config, bool listen_is_given)
{
    char address[CONFIG_TEXT_BYTES];
    struct err err;
    auto_close int data_fd = open(config->data, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool is_noted = !listen_is_given && data_fd >= 0 && data_dir_noted_address(data_fd, address, sizeof address, &err);

    if (!is_noted)
        (void)snprintf(address, sizeof address, "%s", config->listen);
    auto_close int fd = listen_open(str_from(address), &err);
    struct probe_row *row = finding(all, "listen address", PROBE_OK);
    if (fd >= 0) {
        (void)snprintf(row->found, sizeof row->found, "%.80s is free%s", address,
                       is_noted ? "; the server of this directory used it last" : "");
    } else if (err.kind == ERR_CONFLICT && is_noted && is_ours(address)) {
        (void)snprintf(row->found, sizeof row->found, "%.80s, where the server of this directory answers", address);
    } else if (err.kind == ERR_CONFLICT) {
        row->verdict = PROBE_WARN;
        (void)snprintf(row->found, sizeof row->found, "%.80s is taken, by a running cloister or by another program",
                       address);
        (void)snprintf(row->fix, sizeof row->fix, "if it is not cloister: serve --listen with another port");
    } else {
        row->verdict = PROBE_FAIL;
        (void)snprintf(row->found, sizeof row->found, "%s", err.message);
        (void)snprintf(row->fix, sizeof row->fix, "serve --listen with an address of this machine");
    }
}

/* The server of the directory, if it answers. */
struct running {
    bool is_there;
    char address[CONFIG_TEXT_BYTES], host[CONFIG_TEXT_BYTES]; /* host: its domain without the port; may be "" */
};

static struct running find_running(const struct config *config)
{
    auto_close int data_fd = open(config->data, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct running found = { 0 };
    char domain[CONFIG_TEXT_BYTES];
    struct err ignored; /* then there is none */

    found.is_there = data_fd >= 0 && data_dir_noted_address(data_fd, found.address, sizeof found.address, &ignored) &&
                     is_ours(found.address);
    if (found.is_there && data_dir_noted_domain(data_fd, domain, sizeof domain, &ignored))
        authority_host(domain, found.host, sizeof found.host);
    return found;
}

/* A socket can be bound to it, whatever interface has it. */
static bool is_of_this_machine(const struct addrinfo *found)
{
    auto_close int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    return fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
}

/* SDKs that know only a domain need it, and get_host() of all. */
static void look_at_names(struct findings *all, const struct config *config, const struct running *running)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *found = NULL;
    struct probe_row *row = finding(all, "names", PROBE_WARN);
    char host[CONFIG_TEXT_BYTES], name[CONFIG_TEXT_BYTES + 8], text[NI_MAXHOST] = "?";

    (void)snprintf(host, sizeof host, "%s", running->host);
    if (!host[0])
        authority_host(config->domain, host, sizeof host);
    if (!host[0])
        (void)snprintf(host, sizeof host, AUTHORITY_NAME);
    bool is_local = strcmp(host, AUTHORITY_NAME) == 0;
    (void)snprintf(name, sizeof name, "doctor.%s", host);
    if (getaddrinfo(name, NULL, &hints, &found) != 0) {
        (void)snprintf(row->found, sizeof row->found, "*.%.80s is unknown to programs", host);
        (void)snprintf(row->fix, sizeof row->fix,
                       is_local ? "apt-get install libnss-myhostname (or use systemd-resolved, or a domain of your own)"
                                : "add a DNS record for *.%.80s that leads to this server",
                       host);
        return;
    }
    const struct addrinfo *away = found;
    while (away && is_of_this_machine(away))
        away = away->ai_next;
    if (away) {
        (void)getnameinfo(away->ai_addr, away->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
        (void)snprintf(row->found, sizeof row->found, "*.%.60s leads to %.46s, not an address of this machine", host,
                       text);
        (void)snprintf(row->fix, sizeof row->fix,
                       "correct the DNS record, unless a router or proxy at that address leads to this server");
    } else {
        row->verdict = PROBE_OK;
        (void)snprintf(row->found, sizeof row->found, "*.%.80s leads to this machine%s", host,
                       is_local ? " (static programs, musl: may not)" : "");
    }
    freeaddrinfo(found);
}

/* What clients of the running server see. They can use plain HTTP whatever it is, so nothing here is a failure. */
static void look_at_shown(struct probe_row *row, const char *host, const struct tls_seen *seen)
{
    int64_t days = (seen->facts.ends_us - clock_wall_us()) / DAY_US;
    bool is_local = strcmp(host, AUTHORITY_NAME) == 0;
    char day[CLOCK_TEXT_BYTES];

    (void)clock_text(seen->facts.ends_us, day);
    row->verdict = PROBE_WARN;
    if (!seen->facts.has_name) {
        (void)snprintf(row->found, sizeof row->found, "clients refuse it: it is for %.50s and not for *.%.50s",
                       seen->facts.first_name[0] ? seen->facts.first_name : "no name", host);
        (void)snprintf(row->fix, sizeof row->fix, "get one for *.%.60s, or name its domain with --domain", host);
    } else if (seen->facts.ends_us < clock_wall_us()) {
        (void)snprintf(row->found, sizeof row->found, "clients refuse it: it ended on %.10s", day);
        (void)snprintf(row->fix, sizeof row->fix, "%s", RENEW);
    } else if (seen->facts.begins_us > clock_wall_us()) {
        (void)snprintf(row->found, sizeof row->found, "clients refuse it: it begins on %.10s",
                       clock_text(seen->facts.begins_us, day));
        (void)snprintf(row->fix, sizeof row->fix, "correct this machine's clock, or take another certificate");
    } else if (!seen->is_trusted) {
        (void)snprintf(row->found, sizeof row->found, "clients refuse it: %.96s", seen->why_not);
        (void)snprintf(row->fix, sizeof row->fix,
                       "name a file with its whole chain in --tls-cert (fullchain.pem), signed by an authority that "
                       "clients trust");
    } else if (days < ENDS_SOON_DAYS && !is_local) {
        (void)snprintf(row->found, sizeof row->found, "for *.%.50s, ends on %.10s, in %d days", host, day, (int)days);
        (void)snprintf(row->fix, sizeof row->fix, "%s", RENEW);
    } else {
        row->verdict = PROBE_OK;
        (void)snprintf(row->found, sizeof row->found, "for *.%.50s, until %.10s, %d days%s", host, day, (int)days,
                       is_local ? "; renewed by the server" : "");
    }
}

/* The certificate that clients get to see. True if there was somebody to ask. */
static bool look_at_running(struct findings *all, const struct config *config, const struct running *running)
{
    auto_close int data_fd = open(config->data, O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_free char *roots = NULL;
    char name[CONFIG_TEXT_BYTES + 8];
    struct tls_seen seen;
    struct err err;
    size_t len;

    if (!running->host[0] || data_fd < 0)
        return false;
    struct probe_row *row = finding(all, "certificate", PROBE_WARN);
    (void)snprintf(name, sizeof name, "doctor.%s", running->host);
    /* What clients trust with the lines of `cloister env`. */
    if (fd_read_file(data_fd, "tls/ca-bundle.pem", LIMIT_BUNDLE_BYTES, &roots, &len, &err) &&
        tls_look(str_from(running->address), name, str_of(roots, len), HEALTH_TIMEOUT_MS, &seen, &err)) {
        look_at_shown(row, running->host, &seen);
        return true;
    }
    (void)snprintf(row->found, sizeof row->found, "%.150s", err.message);
    (void)snprintf(row->fix, sizeof row->fix, "see what the server has logged about certificates, and start it again");
    return true;
}

/* Without a server that runs: what is configured. */
static void look_at_certificate(struct findings *all, const struct config *config)
{
    auto_close int data_fd = open(config->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_pair struct key_pair pair = { 0 };
    struct tls_chain_facts facts;
    char day[CLOCK_TEXT_BYTES];
    struct err err;

    if (config->tls_cert[0] && geteuid() != 0) {
        (void)finding(all, "certificate", PROBE_SKIP);
    } else if (config->tls_cert[0]) {
        bool ok = certificates_read(config->tls_cert, config->tls_key, config->domain, &pair, &err) &&
                  tls_chain_look(str_from(pair.chain), "", &facts, &err);
        bool is_over = ok && facts.ends_us < clock_wall_us();
        struct probe_row *row = finding(all, "certificate", ok && !is_over ? PROBE_OK : PROBE_FAIL);
        if (ok)
            (void)snprintf(row->found, sizeof row->found, "%.60s, until %.10s", config->tls_cert,
                           clock_text(facts.ends_us, day));
        else
            (void)snprintf(row->found, sizeof row->found, "%.150s", err.message);
        (void)snprintf(row->fix, sizeof row->fix, "%s", is_over ? RENEW : "correct --tls-cert and --tls-key");
    } else {
        bool is_made = data_fd >= 0 && faccessat(data_fd, "tls/ca.pem", R_OK, 0) == 0;
        struct probe_row *row = finding(all, "certificate", PROBE_OK);
        (void)snprintf(row->found, sizeof row->found, "of the local authority%s",
                       is_made ? "" : ", which the first start makes");
    }
}

/* What the server that runs says about its pool. */
static bool ask_pool(const struct config *config, const struct running *running, struct probe_row *row, struct err *err)
{
    struct secret token = { 0 };
    struct http_answer answer;
    struct arena arena;
    int64_t most, ready, taken, missed;
    bool is_low;

    auto_close int data_fd = open(config->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (data_fd < 0)
        return err_sys(err, "open %s", config->data);
    if (!data_dir_admin_token(data_fd, &token, err))
        return false;
    arena_init(&arena);
    struct http_field field = { STR("X-Admin-Token"), secret_reveal(&token) };
    bool ok = http_fetch(&arena, str_from(running->address), STR("GET"), STR("/admin/pool"), &field, 1, STR(""),
                         HEALTH_TIMEOUT_MS, &answer, err);
    if (ok && answer.status != 200)
        ok = err_set(err, ERR_UNAVAILABLE, "the server answers with status %d", answer.status);
    auto_json json_t *body = ok ? json_parse_object(answer.body, err) : NULL;
    ok = body && json_take_int(body, "most", JSON_REQUIRED, 0, LIMIT_POOL, &most, err) &&
         json_take_int(body, "ready", JSON_REQUIRED, 0, LIMIT_POOL, &ready, err) &&
         json_take_int(body, "taken", JSON_REQUIRED, 0, INT64_MAX, &taken, err) &&
         json_take_int(body, "missed", JSON_REQUIRED, 0, INT64_MAX, &missed, err) &&
         json_take_bool(body, "memoryIsLow", JSON_REQUIRED, &is_low, err);
    secret_wipe(&token);
    arena_done(&arena);
    if (!ok)
        return false;
    if (!most)
        (void)snprintf(row->found, sizeof row->found, "off");
    else
        (void)snprintf(row->found, sizeof row->found,
                       "ready: %lld of at most %lld; used by %lld of %lld creates from templates", (long long)ready,
                       (long long)most, (long long)taken, (long long)(taken + missed));
    row->verdict = is_low ? PROBE_WARN : PROBE_OK;
    if (is_low)
        (void)snprintf(row->fix, sizeof row->fix,
                       "the machine is short of memory, so the pool is empty: end programs "
                       "or sandboxes");
    return true;
}

static void look_at_pool(struct findings *all, const struct config *config, const struct running *running)
{
    struct err err;

    if (!running->is_there)
        return;
    struct probe_row *row = finding(all, "pool", PROBE_SKIP);
    if (geteuid() != 0 || ask_pool(config, running, row, &err))
        return;
    row->verdict = PROBE_WARN;
    (void)snprintf(row->found, sizeof row->found, "%.150s", err.message);
    (void)snprintf(row->fix, sizeof row->fix, "if the server is older than this program: start it again");
}

/* Nothing needs it yet: the microVM driver will. */
static void look_at_kvm(struct findings *all)
{
    auto_close int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    struct probe_row *row = finding(all, "KVM", PROBE_OK);

    (void)snprintf(row->found, sizeof row->found, "%s",
                   fd >= 0           ? "usable; native sandboxes do not need it"
                   : errno == ENOENT ? "absent; native sandboxes do not need it"
                                     : "present, but not accessible; native sandboxes do not need it");
}

static bool in_path(const char *program)
{
    static const char *const places[] = {
        "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"
    };
    char path[128];

    for (size_t i = 0; i < COUNT_OF(places); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", places[i], program);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

static void look_at_template(struct findings *all, const struct config *config)
{
    auto_close int data_fd = open(config->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum recipe_state state = data_fd >= 0 ? recipe_state(data_fd, "base") : RECIPE_NOT_BUILT;
    bool can_build = in_path("mmdebstrap");

    if (geteuid() != 0) {
        (void)finding(all, "base template", PROBE_SKIP);
        return;
    }
    struct probe_row *row = finding(all, "base template", state == RECIPE_CURRENT ? PROBE_OK : PROBE_WARN);
    (void)snprintf(row->found, sizeof row->found, "%s",
                   state == RECIPE_CURRENT    ? "built"
                   : state == RECIPE_OUTDATED ? "built by another version of Cloister"
                   : can_build                ? "not built yet"
                                              : "not built yet, and there is no mmdebstrap to build it with");
    (void)snprintf(row->fix, sizeof row->fix, "%s%s template build base --data %.50s",
                   can_build ? "" : "apt-get install mmdebstrap debian-archive-keyring, then ", cli_program_as_root(),
                   config->data);
}

/* Templates other than base. They may be absent: only run_code with packages or in other languages needs them. */
static void look_at_recipes(struct findings *all, const struct config *config)
{
    auto_close int data_fd = open(config->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *name, *makes;

    for (size_t i = 1; recipe_at(i, &name, &makes) && all->count < ROWS_MAX; i++) {
        struct probe_row *row = finding(all, name, geteuid() == 0 ? PROBE_OK : PROBE_SKIP);
        if (row->verdict == PROBE_SKIP)
            continue;
        enum recipe_state state = data_fd >= 0 ? recipe_state(data_fd, makes) : RECIPE_NOT_BUILT;
        if (state == RECIPE_CURRENT) {
            (void)snprintf(row->found, sizeof row->found, "built: %.60s", makes);
        } else if (state == RECIPE_OUTDATED) {
            row->verdict = PROBE_WARN;
            (void)snprintf(row->found, sizeof row->found, "built by another version of Cloister");
            (void)snprintf(row->fix, sizeof row->fix, "%s template build %s --data %.50s", cli_program_as_root(), name,
                           config->data);
        } else {
            (void)snprintf(row->found, sizeof row->found, "not built; to have it: %s template build %s --data %.50s",
                           cli_program_as_root(), name, config->data);
        }
    }
}

int doctor_main(int argc, char **argv)
{
    struct config config;
    struct err err;
    bool json = false, listen_is_given = false;
    int rest = 0;
    char *words[64];

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (rest < (int)COUNT_OF(words))
            words[rest++] = argv[i];
        listen_is_given |= strcmp(argv[i], "--listen") == 0 || strncmp(argv[i], "--listen=", 9) == 0;
    }
    if (!config_load(rest, words, &config, &err))
        return cli_fail(&err);

    struct findings all = { 0 };
    all.count = native_probe(config.data, all.rows);
    native_probe_memory(strcmp(config.criu, "off") == 0 ? NULL : config.criu, &all.rows[all.count++]);
    native_probe_kept(config.data, config.snapshot_disk_gb << 30, &all.rows[all.count++]);
    look_at_settings(&all, &config);
    look_at_user(&all, "system user", config.user);
    look_at_user(&all, "user of egress", config.egress_user);
    look_at_user(&all, "user of signer", config.signer_user);
    look_at_user(&all, "user of puller", config.puller_user);
    if (strcmp(config.mail, "off") != 0) {
        look_at_user(&all, "user of composer", config.composer_user);
        look_at_user(&all, "user of webhooks", config.webhooks_user);
    }
    look_at_port(&all, &config, listen_is_given);
    struct running running = find_running(&config);
    look_at_names(&all, &config, &running);
    if (!look_at_running(&all, &config, &running))
        look_at_certificate(&all, &config);
    look_at_pool(&all, &config, &running);
    look_at_template(&all, &config);
    look_at_recipes(&all, &config);
    look_at_kvm(&all);

    static const enum doctor_verdict verdicts[PROBE_VERDICT_COUNT] = {
        [PROBE_OK] = DOCTOR_OK,
        [PROBE_WARN] = DOCTOR_WARN,
        [PROBE_FAIL] = DOCTOR_FAIL,
        [PROBE_SKIP] = DOCTOR_SKIP,
    };
    struct doctor_row rows[ROWS_MAX];
    for (size_t i = 0; i < all.count; i++) {
        const struct probe_row *row = &all.rows[i];
        rows[i] = (struct doctor_row){
            .verdict = verdicts[row->verdict],
            .what = row->name,
            .found = row->found[0] ? row->found : "not checked: needs root",
            /* Skipped checks all have the same fix, which the last line of the output gives. */
            .fix = row->fix[0] && row->verdict != PROBE_SKIP ? row->fix : NULL,
        };
    }
    return cli_doctor_print(stdout, rows, all.count, config.data, json);
}
