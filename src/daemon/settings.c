#include "daemon/settings.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/network.h"
#include "base/pack.h"
#include "daemon/authority.h"

enum {
    SETTINGS_BYTES = 80 * 1024, /* lists are at most 8 KiB of text each: CONFIG_LIST_BYTES */
};

bool settings_token_for_code(const char *word, bool *out_always, struct err *err)
{
    bool always = strcmp(word, "always") == 0;

    if (!always && strcmp(word, "as-asked") != 0)
        return err_set(err, ERR_INVALID, "--token-for-code must be as-asked or always, not '%.40s'", word);
    *out_always = always;
    return true;
}

bool settings_switch(const char *option, const char *word, bool *out_on, struct err *err)
{
    bool on = strcmp(word, "on") == 0;

    if (!on && strcmp(word, "off") != 0)
        return err_set(err, ERR_INVALID, "--%s must be on or off, not '%.40s'", option, word);
    *out_on = on;
    return true;
}

bool settings_pool(const char *word, uint32_t *out_most, bool *out_auto, struct err *err)
{
    uint64_t most = strcmp(word, "auto") == 0 ? LIMIT_POOL_AUTO : 0;

    if (!most && strcmp(word, "off") != 0 && !str_to_u64(str_from(word), LIMIT_POOL, &most))
        return err_set(err, ERR_INVALID, "the option pool must be auto, off or a number from 0 to %d, not '%.40s'",
                       LIMIT_POOL, word);
    *out_most = (uint32_t)most;
    *out_auto = strcmp(word, "auto") == 0;
    return true;
}

/* NAME or NAME:PORT. An URL or a single word would make addresses of sandboxes that lead nowhere. */
static bool domain_is_valid(struct str text)
{
    char host[CONFIG_TEXT_BYTES];
    struct str name;
    uint64_t port;
    bool has_port = str_has_char(text, ':');

    authority_host(text.at, host, sizeof host); /* empty: without a dot, too long, or a character of no host */
    return str_cut(&text, ':', &name) && host[0] && net_name_is_valid(name) &&
           (!has_port || (str_to_u64(text, UINT16_MAX, &port) && port));
}

bool settings_domain(const char *text, struct err *err)
{
    return !text[0] || domain_is_valid(str_from(text)) ||
           err_set(err, ERR_INVALID,
                   "--domain takes a name such as sandboxes.example.com or sandboxes.example.com:7070, not '%.40s'",
                   text);
}

void settings_choose_domain(const struct config *config, char out[CONFIG_TEXT_BYTES])
{
    static const struct str local[] = { STR_INIT("127.0.0.1:"), STR_INIT("[::1]:"), STR_INIT("0.0.0.0:"),
                                        STR_INIT("[::]:") };
    struct str port = str_from(config->listen);
    bool is_local = false;

    for (size_t i = 0; i < COUNT_OF(local) && !is_local; i++)
        is_local = str_skip(&port, local[i]);
    if (is_local && !config->domain[0])
        (void)snprintf(out, CONFIG_TEXT_BYTES, AUTHORITY_NAME ":%.*s", STR_ARG(port));
    else
        (void)snprintf(out, CONFIG_TEXT_BYTES, "%s", config->domain);
}

/* A descriptor of a memory file that has these bytes and never changes. */
static int seal(const struct buf *bytes, struct err *err)
{
    if (bytes->overflowed) {
        (void)err_set(err, ERR_INTERNAL, "the settings of a role are too long");
        return -1;
    }
    auto_close int fd = memfd_create("settings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        (void)err_sys(err, "memfd_create");
        return -1;
    }
    if (!fd_write_all(fd, buf_str(bytes), err))
        return -1;
    if (lseek(fd, 0, SEEK_SET) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0) {
        (void)err_sys(err, "seal the settings");
        return -1;
    }
    return take_fd(&fd);
}

static void address_pack(struct buf *out, const struct net_address *address)
{
    pack_str(out, str_of(address->at, sizeof address->at));
}

static void address_unpack(struct unpack *in, struct net_address *out)
{
    struct str bytes = unpack_str(in, sizeof out->at);

    if (bytes.len == sizeof out->at)
        memcpy(out->at, bytes.at, sizeof out->at);
    else
        in->failed = true;
}

static void ranges_pack(struct buf *out, const struct net_range *ranges, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        address_pack(out, &ranges[i].address);
        pack_u8(out, ranges[i].bits);
    }
}

static uint32_t ranges_unpack(struct unpack *in, struct net_range out[LIMIT_EGRESS_RANGES])
{
    uint32_t count = unpack_count(in, LIMIT_EGRESS_RANGES);

    for (uint32_t i = 0; i < count; i++) {
        address_unpack(in, &out[i].address);
        out[i].bits = unpack_u8(in);
    }
    return count;
}

static void secret_unpack(struct unpack *in, struct secret *out)
{
    struct str text = unpack_str(in, SECRET_MAX_BYTES);

    if (!secret_set(out, text))
        in->failed = true;
}

/* ---- mail ---- */

static bool mail_domain(const char *text, char out[LIMIT_NET_NAME_BYTES + 1], struct err *err)
{
    struct str name = str_from(text);

    if (!net_name_is_valid(name) || !str_has_char(name, '.') || str_ends(name, STR(".")) || str_starts(name, STR("*")))
        return err_set(err, ERR_INVALID, "--mail-domain takes a name such as mail.example.com, not '%.40s'", text);
    memcpy(out, name.at, name.len);
    text_lower(out, name.len);
    out[name.len] = '\0';
    return true;
}

bool mail_settings_make(const struct config *config, struct mail_settings *out, struct err *err)
{
    if (!settings_switch("mail", config->mail, &out->is_on, err) ||
        !settings_switch("strict-inbox-keys", config->strict_inbox_keys, &out->strict_inbox_keys, err) ||
        !mail_domain(config->mail_domain, out->domain, err))
        return false;
    out->webhooks_http = config->webhook_allow[0] != '\0';
    out->sends_per_minute = (uint32_t)config->mail_sends_per_minute;
    out->sends_per_day = (uint32_t)config->mail_sends_per_day;
    out->inboxes_most = (uint32_t)config->mail_inboxes;
    out->signups_per_hour = (uint32_t)config->mail_signups_per_hour;
    out->disk_gb = (uint32_t)config->mail_disk_gb;
    return true;
}

static void mail_pack(struct buf *out, const struct mail_settings *mail)
{
    pack_bool(out, mail->is_on);
    pack_str(out, str_from(mail->domain));
    pack_bool(out, mail->strict_inbox_keys);
    pack_bool(out, mail->webhooks_http);
    pack_u32(out, mail->sends_per_minute);
    pack_u32(out, mail->sends_per_day);
    pack_u32(out, mail->inboxes_most);
    pack_u32(out, mail->signups_per_hour);
    pack_u32(out, mail->disk_gb);
    pack_str(out, secret_reveal(&mail->server_key));
    pack_str(out, str_of(mail->operator_public.bytes, sizeof mail->operator_public.bytes));
    pack_str(out, secret_reveal(&mail->inbox_key));
    pack_str(out, secret_reveal(&mail->token));
}

static void mail_unpack(struct unpack *in, struct mail_settings *out)
{
    out->is_on = unpack_bool(in);
    unpack_text(in, out->domain, sizeof out->domain);
    out->strict_inbox_keys = unpack_bool(in);
    out->webhooks_http = unpack_bool(in);
    out->sends_per_minute = unpack_u32(in);
    out->sends_per_day = unpack_u32(in);
    out->inboxes_most = unpack_u32(in);
    out->signups_per_hour = unpack_u32(in);
    out->disk_gb = unpack_u32(in);
    secret_unpack(in, &out->server_key);
    struct str operator_public = unpack_str(in, sizeof out->operator_public.bytes);
    if (operator_public.len == sizeof out->operator_public.bytes)
        memcpy(out->operator_public.bytes, operator_public.at, operator_public.len);
    else
        in->failed = true;
    secret_unpack(in, &out->inbox_key);
    secret_unpack(in, &out->token);
}

/* ---- registries ---- */

struct registry_options puller_settings_options(const struct puller_settings *settings)
{
    return (struct registry_options){ .mirrors = str_from(settings->mirrors),
                                      .insecure = str_from(settings->insecure),
                                      .allow = str_from(settings->allow),
                                      .images = str_from(settings->images) };
}

bool puller_settings_make(const struct config *config, struct puller_settings *out, struct err *err)
{
    memcpy(out->mirrors, config->registry_mirror, sizeof out->mirrors);
    memcpy(out->insecure, config->registry_insecure, sizeof out->insecure);
    memcpy(out->allow, config->registry_allow, sizeof out->allow);
    memcpy(out->images, config->image, sizeof out->images);
    const struct registry_options options = puller_settings_options(out);
    return registry_options_check(&options, err);
}

static void puller_pack(struct buf *out, const struct puller_settings *settings)
{
    pack_str(out, str_from(settings->mirrors));
    pack_str(out, str_from(settings->insecure));
    pack_str(out, str_from(settings->allow));
    pack_str(out, str_from(settings->images));
}

static void puller_unpack(struct unpack *in, struct puller_settings *out)
{
    unpack_text(in, out->mirrors, sizeof out->mirrors);
    unpack_text(in, out->insecure, sizeof out->insecure);
    unpack_text(in, out->allow, sizeof out->allow);
    unpack_text(in, out->images, sizeof out->images);
}

int puller_settings_write(const struct puller_settings *settings, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, SETTINGS_BYTES);

    puller_pack(&out, settings);
    return seal(&out, err);
}

bool puller_settings_read(int fd, struct puller_settings *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_all(fd, SETTINGS_BYTES, &text, &len, err))
        return err_wrap(err, "settings");
    struct unpack in = unpack_from(str_of(text, len));
    puller_unpack(&in, out);
    return unpack_done(&in, err) || err_wrap(err, "settings");
}

/* ---- front ---- */

void settings_wipe(struct settings *settings)
{
    secret_wipe(&settings->api_key);
    secret_wipe(&settings->admin_hash);
    secret_wipe(&settings->mail.server_key);
    secret_wipe(&settings->mail.inbox_key);
    secret_wipe(&settings->mail.token);
}

int settings_write(const struct settings *settings, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, SETTINGS_BYTES);

    pack_str(&out, str_from(settings->node_id));
    pack_str(&out, str_from(settings->domain));
    pack_u32(&out, settings->sandboxes_max);
    pack_u32(&out, settings->pool_most);
    pack_bool(&out, settings->pool_is_auto);
    pack_u32(&out, settings->key_sandboxes);
    pack_u32(&out, settings->key_requests);
    pack_u32(&out, settings->key_streams);
    pack_u64(&out, settings->timeout_max_s);
    pack_u32(&out, settings->snapshots_max);
    pack_u32(&out, settings->team_snapshots);
    pack_u32(&out, settings->snapshot_disk_gb);
    pack_u32(&out, settings->snapshot_days);
    pack_u32(&out, settings->paused_days);
    pack_u32(&out, settings->memory_mb);
    pack_u32(&out, settings->cpus);
    pack_u32(&out, settings->pids);
    pack_u8(&out, settings->code_always_has_token);
    pack_bool(&out, settings->internet);
    pack_str(&out, str_from(settings->inside));
    ranges_pack(&out, settings->egress_allow, settings->egress_allow_count);
    ranges_pack(&out, settings->egress_deny, settings->egress_deny_count);
    mail_pack(&out, &settings->mail);
    puller_pack(&out, &settings->puller);
    pack_str(&out, secret_reveal(&settings->api_key));
    pack_str(&out, secret_reveal(&settings->admin_hash));

    int fd = seal(&out, err);
    if (out.data)
        explicit_bzero(out.data, out.len);
    return fd;
}

bool settings_read(int fd, struct settings *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_all(fd, SETTINGS_BYTES, &text, &len, err))
        return err_wrap(err, "settings");
    struct unpack in = unpack_from(str_of(text, len));
    struct settings got = { 0 };
    unpack_text(&in, got.node_id, sizeof got.node_id);
    unpack_text(&in, got.domain, sizeof got.domain);
    got.sandboxes_max = unpack_u32(&in);
    got.pool_most = unpack_u32(&in);
    got.pool_is_auto = unpack_bool(&in);
    got.key_sandboxes = unpack_u32(&in);
    got.key_requests = unpack_u32(&in);
    got.key_streams = unpack_u32(&in);
    got.timeout_max_s = unpack_u64(&in);
    got.snapshots_max = unpack_u32(&in);
    got.team_snapshots = unpack_u32(&in);
    got.snapshot_disk_gb = unpack_u32(&in);
    got.snapshot_days = unpack_u32(&in);
    got.paused_days = unpack_u32(&in);
    got.memory_mb = unpack_u32(&in);
    got.cpus = unpack_u32(&in);
    got.pids = unpack_u32(&in);
    got.code_always_has_token = unpack_u8(&in) != 0;
    got.internet = unpack_bool(&in);
    unpack_text(&in, got.inside, sizeof got.inside);
    got.egress_allow_count = ranges_unpack(&in, got.egress_allow);
    got.egress_deny_count = ranges_unpack(&in, got.egress_deny);
    mail_unpack(&in, &got.mail);
    puller_unpack(&in, &got.puller);
    secret_unpack(&in, &got.api_key);
    secret_unpack(&in, &got.admin_hash);
    bool ok = unpack_done(&in, err) && (got.node_id[0] || err_set(err, ERR_INVALID, "malformed settings"));
    explicit_bzero(text, len);
    if (ok)
        *out = got;
    settings_wipe(&got);
    return ok || err_wrap(err, "settings");
}

/* ---- egress ---- */

/* ADDR:PORT or [ADDR]:PORT. ADDR or [ADDR] alone has the port that is passed; 0: it needs one of its own. */
static bool endpoint_parse(struct str text, uint64_t port, struct net_address *out_address, uint16_t *out_port)
{
    struct str address;

    if (port && net_address_parse(text, out_address)) {
        *out_port = (uint16_t)port;
        return true;
    }
    bool in_brackets = str_skip(&text, STR("["));
    char end = in_brackets ? ']' : ':';
    if (!str_has_char(text, end) || !str_cut(&text, end, &address))
        return false;
    bool has_port = !in_brackets || str_skip(&text, STR(":"));
    if (has_port ? !str_to_u64(text, UINT16_MAX, &port) || port == 0 : text.len > 0 || port == 0)
        return false;
    *out_port = (uint16_t)port;
    return net_address_parse(address, out_address);
}

static bool ranges_make(const char *option, struct str list, struct net_range out[LIMIT_EGRESS_RANGES],
                        uint32_t *out_count, struct err *err)
{
    struct str entry;

    while (list.len && str_cut(&list, ',', &entry)) {
        entry = str_trim(entry);
        if (*out_count == LIMIT_EGRESS_RANGES)
            return err_set(err, ERR_INVALID, "%s has more than %d entries", option, LIMIT_EGRESS_RANGES);
        if (!net_range_parse(entry, &out[*out_count]))
            return err_set(err, ERR_INVALID, "%s takes addresses and CIDR blocks, not '%.*s'", option,
                           (int)MIN(entry.len, (size_t)60), entry.at);
        ++*out_count;
    }
    return true;
}

static bool resolvers_make(struct str list, struct egress_settings *out, struct err *err)
{
    struct str entry;

    while (list.len && str_cut(&list, ',', &entry)) {
        entry = str_trim(entry);
        if (out->resolver_count == LIMIT_RESOLVERS)
            return err_set(err, ERR_INVALID, "--dns has more than %d name servers", LIMIT_RESOLVERS);
        struct egress_resolver *resolver = &out->resolvers[out->resolver_count];
        if (!endpoint_parse(entry, NETWORK_DNS_PORT, &resolver->address, &resolver->port))
            return err_set(err, ERR_INVALID, "--dns takes ADDR, ADDR:PORT or [ADDR]:PORT, not '%.*s'",
                           (int)MIN(entry.len, (size_t)60), entry.at);
        out->resolver_count++;
    }
    return true;
}

/* ---- names that stay inside ---- */

enum { SHOWN = 60 }; /* bytes of an entry in an error */

static bool inside_name(const char *option, struct str text, char out[LIMIT_NET_NAME_BYTES + 1], struct err *err)
{
    const struct str own = STR(".localhost");
    const int shown = (int)MIN(text.len, (size_t)SHOWN);

    if (str_starts(text, STR("*")))
        return err_set(err, ERR_INVALID, "%s: '%.*s' is not one name: give an entry for each name, without *", option,
                       shown, text.at);
    if (str_ends(text, STR(".")))
        return err_set(err, ERR_INVALID, "%s: write '%.*s' without the dot at its end", option, shown, text.at);
    if (!net_name_is_valid(text) || !str_has_char(text, '.'))
        return err_set(err, ERR_INVALID, "%s: '%.*s' is not a host name with a dot, such as mirror.internal", option,
                       shown, text.at);
    if (text.len > own.len && str_eq_nocase(str_of(text.at + (text.len - own.len), own.len), own))
        return err_set(err, ERR_INVALID, "%s: '%.*s' cannot be used: programs take it for their own machine", option,
                       shown, text.at);
    memcpy(out, text.at, text.len);
    text_lower(out, text.len);
    out[text.len] = '\0';
    return true;
}

/* That of another service of the name, or the next one that is free. */
static struct net_address inside_address(const struct egress_service *services, uint32_t count, const char *name)
{
    struct net_address address;
    bool parsed = net_address_parse(STR(NETWORK_INSIDE_IPV4), &address);

    assert(parsed);
    (void)parsed;
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(services[i].name, name) == 0)
            return services[i].address;
        if (services[i].address.at[15] >= address.at[15])
            address.at[15] = (uint8_t)(services[i].address.at[15] + 1);
    }
    return address;
}

/* Says what is wrong with the target of a service. Always false. */
static bool inside_target_error(struct str name, struct str target, struct err *err)
{
    const char *colon = target.len ? memrchr(target.at, ':', target.len) : NULL;
    struct str before = colon ? str_of(target.at, (size_t)(colon - target.at)) : STR("");
    struct net_address address;
    const int shown = (int)MIN(target.len, (size_t)SHOWN);

    /* "::1:80" is an address by itself, but who writes it means port 80 of ::1. */
    if (str_has_char(before, ':') && net_address_parse(before, &address))
        return err_set(err, ERR_INVALID, "--inside: write an IPv6 address in brackets: [%.*s]:%.*s, not '%.*s'",
                       STR_ARG(before), (int)(target.len - before.len - 1), colon + 1, shown, target.at);
    if (str_has_char(target, ':') && net_address_parse(target, &address))
        return err_set(err, ERR_INVALID, "--inside: write an IPv6 address in brackets: [%.*s]:PORT, not '%.*s'",
                       STR_ARG(target), shown, target.at);
    return err_set(err, ERR_INVALID,
                   "--inside: %.*s must lead to an address and a port, such as 127.0.0.1:8080, not '%.*s'",
                   (int)MIN(name.len, (size_t)SHOWN / 2), name.at, (int)MIN(target.len, (size_t)SHOWN / 2), target.at);
}

/* NAME:PORT=ADDR:PORT, into services[count]. */
static bool inside_parse(struct str entry, struct egress_service *services, uint32_t count, struct err *err)
{
    struct egress_service *out = &services[count];
    struct str target = entry, from, name;
    uint64_t port;

    if (memmem(entry.at, entry.len, "://", 3))
        return err_set(err, ERR_INVALID, "--inside takes NAME:PORT=ADDR:PORT and no URL: write '%.*s' without http://",
                       (int)MIN(entry.len, (size_t)SHOWN), entry.at);
    if (!str_has_char(entry, '=') || !str_cut(&target, '=', &from) || !str_has_char(from, ':') ||
        !str_cut(&from, ':', &name))
        return err_set(err, ERR_INVALID,
                       "--inside takes NAME:PORT=ADDR:PORT, such as mirror.internal:80=127.0.0.1:8080, not '%.*s'",
                       (int)MIN(entry.len, (size_t)SHOWN), entry.at);
    if (!inside_name("--inside", name, out->name, err))
        return false;
    if (!str_to_u64(from, UINT16_MAX, &port) || port == 0 || port == NETWORK_DNS_PORT)
        return err_set(err, ERR_INVALID, "--inside: the port of %.*s must be 1 to 65535 and not 53, which is DNS's",
                       (int)MIN(name.len, (size_t)SHOWN), name.at);
    out->port = (uint16_t)port;
    if (!endpoint_parse(target, 0, &out->to, &out->to_port))
        return inside_target_error(name, target, err);
    for (uint32_t i = 0; i < count; i++)
        if (services[i].port == out->port && strcmp(services[i].name, out->name) == 0)
            return err_set(err, ERR_INVALID, "--inside has port %u of %.*s twice", out->port, SHOWN, out->name);
    out->address = inside_address(services, count, out->name);
    return true;
}

static bool inside_make(struct str list, struct egress_settings *out, struct err *err)
{
    struct str entry;

    while (list.len && str_cut(&list, ',', &entry)) {
        if (out->service_count == LIMIT_INSIDE)
            return err_set(err, ERR_INVALID, "--inside has more than %d entries", LIMIT_INSIDE);
        if (!inside_parse(str_trim(entry), out->services, out->service_count, err))
            return false;
        out->service_count++;
    }
    return true;
}

/* ---- mail's names ---- */

static bool mail_name_add(struct str name, struct egress_settings *out, struct err *err)
{
    enum { HTTP = 80, HTTPS = 443 };
    struct egress_service service = { .kind = EGRESS_MAIL, .port = HTTP };

    if (out->service_count + 2 > LIMIT_SERVICES)
        return err_set(err, ERR_INVALID, "--mail-names has more than %d names", LIMIT_MAIL_NAMES - 1);
    if (!inside_name("--mail-names", name, service.name, err))
        return false;
    for (uint32_t i = 0; i < out->service_count; i++)
        if (strcmp(out->services[i].name, service.name) == 0)
            return err_set(err, ERR_INVALID,
                           out->services[i].kind == EGRESS_ADDRESS ? "%.*s is mail's and cannot be in --inside too"
                                                                   : "--mail-names has %.*s twice",
                           SHOWN, service.name);
    service.address = inside_address(out->services, out->service_count, service.name);
    out->services[out->service_count++] = service;
    service.kind = EGRESS_MAIL_TLS;
    service.port = HTTPS;
    out->services[out->service_count++] = service;
    return true;
}

/* After those of --inside, whose addresses do not depend on mail. */
static bool mail_names_make(const struct config *config, struct egress_settings *out, struct err *err)
{
    struct str list = str_from(config->mail_names), entry;

    if (strcmp(config->mail, "on") != 0)
        return true;
    if (!mail_name_add(STR("mail.cloister.internal"), out, err))
        return false;
    if (str_eq(list, STR("none")))
        return true;
    while (list.len && str_cut(&list, ',', &entry))
        if (!mail_name_add(str_trim(entry), out, err))
            return false;
    return true;
}

bool egress_settings_make(const struct config *config, struct egress_settings *out, struct err *err)
{
    struct egress_settings made = { .bytes_per_s = config->egress_rate_mb << 20,
                                    .sandboxes_max = (uint32_t)config->sandboxes_max };

    if (!ranges_make("--egress-allow", str_from(config->egress_allow), made.allow, &made.allow_count, err) ||
        !ranges_make("--egress-deny", str_from(config->egress_deny), made.deny, &made.deny_count, err) ||
        !ranges_make("--webhook-allow", str_from(config->webhook_allow), made.hook_allow, &made.hook_allow_count,
                     err) ||
        !resolvers_make(str_from(config->dns), &made, err) || !inside_make(str_from(config->inside), &made, err) ||
        !mail_names_make(config, &made, err))
        return false;
    *out = made;
    return true;
}

void egress_settings_names(const struct egress_settings *settings, char out[LIMIT_INSIDE_BYTES])
{
    auto_buf struct buf names = buf_make(NULL, LIMIT_INSIDE_BYTES - 1);

    for (uint32_t i = 0; i < settings->service_count; i++) {
        uint32_t first = 0;
        while (!net_address_eq(&settings->services[first].address, &settings->services[i].address))
            first++;
        if (first == i)
            buf_format(&names, "%s\n", settings->services[i].name);
    }
    assert(!names.overflowed); /* they come from options that are not longer together */
    if (names.len)
        memcpy(out, names.data, names.len);
    out[names.len] = '\0';
}

void egress_settings_resolvers(const struct egress_settings *settings, struct buf *out)
{
    char address[NET_ADDRESS_TEXT];

    for (uint32_t i = 0; i < settings->resolver_count; i++) {
        const struct egress_resolver *server = &settings->resolvers[i];
        net_address_text(&server->address, address);
        bool is_v4 = net_address_is_v4(&server->address);
        buf_format(out, is_v4 ? "nameserver %s:%u\n" : "nameserver [%s]:%u\n", address, server->port);
    }
}

int egress_settings_write(const struct egress_settings *settings, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, SETTINGS_BYTES);

    ranges_pack(&out, settings->allow, settings->allow_count);
    ranges_pack(&out, settings->deny, settings->deny_count);
    ranges_pack(&out, settings->hook_allow, settings->hook_allow_count);
    pack_u32(&out, settings->resolver_count);
    for (uint32_t i = 0; i < settings->resolver_count; i++) {
        address_pack(&out, &settings->resolvers[i].address);
        pack_u16(&out, settings->resolvers[i].port);
    }
    pack_u32(&out, settings->service_count);
    for (uint32_t i = 0; i < settings->service_count; i++) {
        const struct egress_service *service = &settings->services[i];
        pack_u8(&out, (uint8_t)service->kind);
        pack_str(&out, str_from(service->name));
        address_pack(&out, &service->address);
        pack_u16(&out, service->port);
        address_pack(&out, &service->to);
        pack_u16(&out, service->to_port);
    }
    pack_u64(&out, settings->bytes_per_s);
    pack_u32(&out, settings->sandboxes_max);
    return seal(&out, err);
}

bool egress_settings_read(int fd, struct egress_settings *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_all(fd, SETTINGS_BYTES, &text, &len, err))
        return err_wrap(err, "settings");
    struct unpack in = unpack_from(str_of(text, len));
    struct egress_settings got = { 0 };
    got.allow_count = ranges_unpack(&in, got.allow);
    got.deny_count = ranges_unpack(&in, got.deny);
    got.hook_allow_count = ranges_unpack(&in, got.hook_allow);
    got.resolver_count = unpack_count(&in, LIMIT_RESOLVERS);
    for (uint32_t i = 0; i < got.resolver_count; i++) {
        address_unpack(&in, &got.resolvers[i].address);
        got.resolvers[i].port = unpack_u16(&in);
    }
    got.service_count = unpack_count(&in, LIMIT_SERVICES);
    for (uint32_t i = 0; i < got.service_count; i++) {
        struct egress_service *service = &got.services[i];
        service->kind = unpack_u8(&in);
        in.failed |= service->kind >= EGRESS_SERVICE_KINDS;
        unpack_text(&in, service->name, sizeof service->name);
        address_unpack(&in, &service->address);
        service->port = unpack_u16(&in);
        address_unpack(&in, &service->to);
        service->to_port = unpack_u16(&in);
    }
    got.bytes_per_s = unpack_u64(&in);
    got.sandboxes_max = unpack_u32(&in);
    if (!unpack_done(&in, err))
        return err_wrap(err, "settings");
    *out = got;
    return true;
}
