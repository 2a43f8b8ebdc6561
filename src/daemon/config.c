#include "daemon/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/cli.h"

enum option_type {
    OPTION_TEXT,
    OPTION_NUMBER,
    OPTION_LIST, /* separated by commas, and the option may be repeated; a later source replaces it */
    OPTION_SUM,  /* a list whose entries of all sources add up: a later source must not drop a restriction */
};

struct option {
    const char *name;
    enum option_type type;
    size_t field;
    uint64_t least, most; /* of a number */
    const char *initial;  /* "": none, which is 0 for a number */
    const char *help;
};

#define TEXT(member) OPTION_TEXT, offsetof(struct config, member), 0, 0
#define NUMBER(member, least, most) OPTION_NUMBER, offsetof(struct config, member), least, most
#define LIST(member) OPTION_LIST, offsetof(struct config, member), 0, 0
#define SUM(member) OPTION_SUM, offsetof(struct config, member), 0, 0

static const struct option options[] = {
    { "data", TEXT(data), "/var/lib/cloister", "directory for everything that must survive a restart" },
    { "listen", TEXT(listen), "127.0.0.1:7070", "address and port of the API and of the sandboxes' edge" },
    { "domain", TEXT(domain), "",
      "clients reach a sandbox's port at <port>-<id>.DOMAIN (default: cloister.localhost:PORT)" },
    { "tls-cert", TEXT(tls_cert), "", "certificate for DOMAIN and *.DOMAIN with its chain, a file in PEM" },
    { "tls-key", TEXT(tls_key), "", "its private key, a file in PEM; both are loaded again when they change" },
    { "user", TEXT(user), "cloister", "unprivileged user that everything facing the network runs as" },
    { "egress-user", TEXT(egress_user), "cloister-egress", "unprivileged user that connects sandboxes to the outside" },
    { "signer-user", TEXT(signer_user), "cloister-signer", "unprivileged user that holds the private keys of TLS" },
    { "composer-user", TEXT(composer_user), "cloister-composer", "unprivileged user that makes and reads mail" },
    { "webhooks-user", TEXT(webhooks_user), "cloister-webhooks", "unprivileged user that calls webhooks" },
    { "puller-user", TEXT(puller_user), "cloister-puller", "unprivileged user that gets images from registries" },
    { "guestd", TEXT(guestd), "", "the daemon inside sandboxes (default: cloister-guestd beside this program)" },
    { "criu", TEXT(criu), "/var/cache/cloister/criu",
      "where scripts/criu.sh has put CRIU, which writes the memory of paused sandboxes to disk; or off" },
    { "compress-after", NUMBER(compress_after_s, 0, 1 << 30), "60",
      "compress memory on disk that was not used for this many seconds; 0: never" },
    { "log", TEXT(log), "info", "lowest level that is logged: debug, info, warn or error" },
    { "sandboxes", NUMBER(sandboxes_max, 1, LIMIT_SANDBOXES), "1000", "running sandboxes, at most" },
    { "pool", TEXT(pool), "auto",
      "sandboxes that are started before a create asks for them: as many as were created lately, at most so many (1 to "
      "256), auto (as many as the machine has memory for, up to 128) or off (or 0). They are not counted by "
      "--sandboxes" },
    { "key-sandboxes", NUMBER(key_sandboxes, 1, LIMIT_SANDBOXES), "1000", "running sandboxes of one API key, at most" },
    { "key-requests", NUMBER(key_requests, 0, 1000000), "2000",
      "API requests per second of one key, in bursts of twice as many; 0: no limit" },
    { "key-streams", NUMBER(key_streams, 1, LIMIT_EDGE_SHARE), "2048",
      "concurrent requests and tunnels into the sandboxes of one key" },
    { "timeout", NUMBER(timeout_max_s, 15, LIMIT_TIMEOUT_S), "86400", "longest life of a sandbox, in seconds" },
    { "snapshots", NUMBER(snapshots_max, 1, LIMIT_SNAPSHOTS), "1000", "snapshots that are kept, at most" },
    { "team-snapshots", NUMBER(team_snapshots, 1, LIMIT_SNAPSHOTS), "200", "snapshots of one team, at most" },
    { "snapshot-disk", NUMBER(snapshot_disk_gb, 1, 1 << 20), "100",
      "GiB that all snapshots may take together, one team half of it" },
    { "snapshot-days", NUMBER(snapshot_days, 0, LIMIT_KEPT_DAYS), "0",
      "delete a snapshot that was not used for this many days; 0: never" },
    { "paused-days", NUMBER(paused_days, 0, LIMIT_KEPT_DAYS), "0",
      "days after which a paused sandbox is killed, with its files; 0: never" },
    { "memory", NUMBER(memory_mb, 128, 1 << 20), "",
      "memory of a sandbox, in MiB (default: what its template asks for)" },
    { "cpus", NUMBER(cpus, 1, 256), "", "CPUs of a sandbox (default: what its template asks for)" },
    { "pids", NUMBER(pids, 16, 1 << 20), "1024", "processes and threads of a sandbox" },
    { "token-for-code", TEXT(token_for_code), "as-asked",
      "when run_code wants a token: always, or as-asked (not if made by POST /sandboxes, as SDKs 1.x do, without "
      "secure)" },
    { "internet", TEXT(internet), "on",
      "may sandboxes reach the internet if their create does not set allow_internet_access: on or off" },
    { "egress-allow", LIST(egress_allow), "",
      "private addresses that sandboxes may reach all the same: CIDR,CIDR…; may be repeated" },
    { "egress-deny", SUM(egress_deny), "",
      "addresses that no sandbox reaches, whatever is allowed otherwise: CIDR,CIDR…; may be repeated, and adds to the "
      "file's" },
    { "dns", LIST(dns), "", "name servers for sandboxes: ADDR[:PORT],… (default: those in /etc/resolv.conf)" },
    { "inside", LIST(inside), "",
      "services for every sandbox, also without internet access: NAME:PORT=ADDR:PORT,…; may be repeated" },
    { "egress-rate", NUMBER(egress_rate_mb, 0, 100000), "",
      "MiB per second that one sandbox may send, and receive, through the network (default: no limit)" },
    { "mail", TEXT(mail), "on", "inboxes for agents, with their API: on or off" },
    { "mail-domain", TEXT(mail_domain), "mail.cloister.localhost", "what follows the @ in the addresses of inboxes" },
    { "mail-names", TEXT(mail_names), "api.multimail.dev,api.lobstermail.ai",
      "host names that lead to mail inside sandboxes, besides mail.cloister.internal: NAME,…; or none" },
    { "strict-inbox-keys", TEXT(strict_inbox_keys), "off",
      "an account's token only makes inboxes, and each needs its own key: on or off" },
    { "mail-sends-per-minute", NUMBER(mail_sends_per_minute, 1, 1000000), "20", "messages of one inbox" },
    { "mail-sends-per-day", NUMBER(mail_sends_per_day, 1, 100000000), "100", "messages of one inbox" },
    { "mail-inboxes", NUMBER(mail_inboxes, 1, 1000000), "100", "inboxes of one account" },
    { "mail-disk", NUMBER(mail_disk_gb, 1, 1 << 20), "100",
      "GiB that all inboxes may take together, one team half of it" },
    { "mail-signups-per-hour", NUMBER(mail_signups_per_hour, 0, 1000000), "0",
      "new mail accounts that one address of the network may make without a key; 0: none" },
    { "webhook-allow", LIST(webhook_allow), "",
      "private addresses that webhooks may call all the same, also by http: CIDR,CIDR…; may be repeated" },
    { "registry-mirror", LIST(registry_mirror), "",
      "ask this mirror first for the images of a registry: HOST=URL, as in docker.io=https://mirror.example.com; may "
      "be "
      "repeated" },
    { "registry-insecure", LIST(registry_insecure), "",
      "registries that are asked by http, also at private addresses: HOST[:PORT],…; may be repeated" },
    { "registry-allow", LIST(registry_allow), "",
      "registries that may have private addresses, by https: HOST[:PORT],…; may be repeated" },
    { "image", LIST(image), "",
      "where an image is: NAME=SOURCE with docker://HOST/NAME[:TAG], oci:DIR[:TAG], docker-archive:FILE[:NAME] or "
      "template:NAME; NAME may end with *, as in *=docker://registry.example.com/; may be repeated" },
};

/* The configuration while it is read. The entries of one source add up. */
struct loading {
    struct config config;
    bool has_list[COUNT_OF(options)]; /* this source has begun a list */
};

static uint32_t entry_count(struct str list)
{
    struct str entry;
    uint32_t count = 0;

    while (list.len && str_cut(&list, ',', &entry))
        count += str_trim(entry).len > 0;
    return count;
}

static void note_replaced(struct config *config, const struct option *option, uint32_t entries)
{
    if (entries && config->replaced_count < CONFIG_LISTS)
        config->replaced[config->replaced_count++] = (struct config_replaced){ option->name, entries };
}

static bool list_add(struct loading *loading, const struct option *option, struct str value, struct err *err)
{
    char *field = (char *)&loading->config + option->field;
    bool *has_list = &loading->has_list[option - options];
    bool adds = *has_list || option->type == OPTION_SUM;
    size_t len = adds ? strlen(field) : 0;

    if (str_has_char(value, '\0') || len + 1 + value.len >= CONFIG_LIST_BYTES)
        return err_set(err, ERR_INVALID, "--%s is too long", option->name);
    if (!adds)
        note_replaced(&loading->config, option, entry_count(str_from(field)));
    if (len && value.len)
        field[len++] = ',';
    memcpy(field + len, value.at, value.len);
    field[len + value.len] = '\0';
    *has_list = true;
    return true;
}

static bool option_store(const struct option *option, struct str value, struct loading *loading, struct err *err)
{
    char *field = (char *)&loading->config + option->field;

    if (option->type == OPTION_LIST || option->type == OPTION_SUM)
        return list_add(loading, option, value, err);
    if (option->type == OPTION_TEXT) {
        if (value.len >= CONFIG_TEXT_BYTES || str_has_char(value, '\0'))
            return err_set(err, ERR_INVALID, "--%s is too long", option->name);
        memcpy(field, value.at, value.len);
        field[value.len] = '\0';
        return true;
    }
    uint64_t number;
    if (!str_to_u64(value, option->most, &number) || number < option->least)
        return err_set(err, ERR_INVALID, "--%s must be a number from %llu to %llu, not '%.*s'", option->name,
                       (unsigned long long)option->least, (unsigned long long)option->most,
                       (int)MIN(value.len, (size_t)40), value.at);
    memcpy(field, &number, sizeof number);
    return true;
}

static const struct option *option_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (str_eq(name, str_from(options[i].name)))
            return &options[i];
    return NULL;
}

/* `name = value` lines, # begins a comment line. */
static bool config_read_text(struct str text, const char *path, struct loading *loading, struct err *err)
{
    struct str line;

    for (unsigned number = 1; str_cut(&text, '\n', &line); number++) {
        line = str_trim(line);
        if (line.len == 0 || line.at[0] == '#')
            continue;
        struct str name;
        struct str rest = line;
        if (!str_has_char(line, '=') || !str_cut(&rest, '=', &name))
            return err_set(err, ERR_INVALID, "%s line %u: must be `name = value`", path, number);
        const struct option *option = option_find(str_trim(name));
        if (!option)
            return err_set(err, ERR_INVALID, "%s line %u: no option '%.*s'; `%s serve --help` lists them", path, number,
                           (int)MIN(name.len, (size_t)40), name.at, cli_program());
        if (!option_store(option, str_trim(rest), loading, err))
            return err_wrap(err, "%s line %u", path, number);
    }
    return true;
}

static bool config_read_file(const char *path, bool must_exist, struct loading *loading, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(AT_FDCWD, path, 64 * 1024, &text, &len, err))
        return (err->sys == ENOENT && !must_exist) || err_wrap(err, "configuration file");
    return config_read_text(str_of(text, len), path, loading, err);
}

static bool unknown_option(struct str name, struct err *err)
{
    return err_set(err, ERR_INVALID, "no option --%.*s; `%s serve --help` lists them", (int)MIN(name.len, (size_t)40),
                   name.at, cli_program());
}

/* --name VALUE or --name=VALUE; *at moves past the words that were used. *out_option is NULL for --config. */
static bool argv_option(int argc, char **argv, int *at, const struct option **out_option, struct str *out_value,
                        struct err *err)
{
    struct str word = str_from(argv[*at]), name = word, value = STR("");

    if (!str_skip(&word, STR("--")))
        return err_set(err, ERR_INVALID, "unexpected '%.60s'; options begin with --", argv[*at]);
    bool has_value = str_has_char(word, '=');
    name = word;
    if (has_value) {
        (void)str_cut(&word, '=', &name);
        value = word.at ? word : STR("");
    }
    /* Before the value: an unknown option is the more useful error. */
    const struct option *option = option_find(name);
    if (!option && !str_eq(name, STR("config")))
        return unknown_option(name, err);
    if (!has_value && *at + 1 >= argc)
        return err_set(err, ERR_INVALID, "%.60s needs a value", argv[*at]);
    *out_option = option;
    *out_value = has_value ? value : str_from(argv[*at + 1]);
    *at += has_value ? 1 : 2;
    return true;
}

bool config_load(int argc, char **argv, struct config *out, struct err *err)
{
    struct loading loading = { 0 };
    const struct option *option;
    struct str value;

    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (options[i].initial[0] && !option_store(&options[i], str_from(options[i].initial), &loading, err))
            return err_wrap(err, "default");

    /* Look for --config first: the file must be read before the other options, which override it. */
    auto_free char *path = NULL;
    for (int at = 0; at < argc;) {
        if (!argv_option(argc, argv, &at, &option, &value, err))
            return false;
        if (!option) {
            free(path);
            path = str_copy(value);
        }
    }
    if (!config_read_file(path ? path : CONFIG_FILE, path != NULL, &loading, err))
        return false;
    (void)snprintf(loading.config.file, sizeof loading.config.file, "%s", path ? path : CONFIG_FILE);

    memset(loading.has_list, 0, sizeof loading.has_list);
    for (int at = 0; at < argc;)
        if (!argv_option(argc, argv, &at, &option, &value, err) ||
            (option && !option_store(option, value, &loading, err)))
            return false;
    *out = loading.config;
    return true;
}

void config_help(FILE *out)
{
    for (size_t i = 0; i < COUNT_OF(options); i++)
        fprintf(out, "  --%-14s %s%s%s%s\n", options[i].name, options[i].help, options[i].initial[0] ? " [" : "",
                options[i].initial, options[i].initial[0] ? "]" : "");
    fprintf(out, "  --%-14s file of `name = value` lines with the same names [" CONFIG_FILE "]\n", "config");
    fprintf(out,
            "\nAn option on the command line replaces that of the file, a list as a whole; only --egress-deny adds to "
            "it.\n");
}
