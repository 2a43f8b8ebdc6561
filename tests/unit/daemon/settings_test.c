#include "daemon/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "test.h"

static void settings_survive_the_trip_to_front(void **state)
{
    (void)state;
    struct settings sent = { .node_id = "n0de",
                             .domain = "sbx.example.com:8443",
                             .sandboxes_max = 7,
                             .timeout_max_s = 3600,
                             .memory_mb = 512,
                             .cpus = 3,
                             .key_sandboxes = 5,
                             .snapshots_max = 31,
                             .team_snapshots = 32,
                             .snapshot_disk_gb = 33,
                             .snapshot_days = 34,
                             .paused_days = 35,
                             .key_requests = 6,
                             .key_streams = 8,
                             .pids = 99,
                             .code_always_has_token = true,
                             .internet = true,
                             .inside = "mirror.internal\n" },
                    got;
    struct err err;
    sent.egress_allow_count = 1;
    assert_true(net_range_parse(STR("10.0.0.0/8"), &sent.egress_allow[0]));
    sent.egress_deny_count = 1;
    assert_true(net_range_parse(STR("203.0.113.0/24"), &sent.egress_deny[0]));
    assert_true(secret_set(&sent.api_key, STR("e2b_00")) && secret_set(&sent.admin_hash, STR("11ff")));
    sent.mail = (struct mail_settings){ .is_on = true,
                                        .domain = "mail.example.com",
                                        .strict_inbox_keys = true,
                                        .webhooks_http = true,
                                        .sends_per_minute = 21,
                                        .sends_per_day = 22,
                                        .inboxes_most = 23,
                                        .signups_per_hour = 24,
                                        .disk_gb = 25,
                                        .operator_public = { "thirty-two bytes, as of a key..." } };
    assert_true(secret_set(&sent.mail.server_key, STR("srv_1")) && secret_set(&sent.mail.inbox_key, STR("mm_2")) &&
                secret_set(&sent.mail.token, STR("lm_3")));
    auto_close int fd = settings_write(&sent, &err);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), -1); /* sealed */
    assert_true(settings_read(fd, &got, &err));
    assert_string_equal(got.node_id, sent.node_id);
    assert_string_equal(got.domain, sent.domain);
    assert_int_equal(got.pids, 99);
    assert_true(got.code_always_has_token && got.internet);
    assert_string_equal(got.inside, sent.inside);
    assert_int_equal(got.egress_allow_count, 1);
    assert_memory_equal(got.egress_allow, sent.egress_allow, sizeof sent.egress_allow[0]);
    assert_int_equal(got.egress_deny_count, 1);
    assert_memory_equal(got.egress_deny, sent.egress_deny, sizeof sent.egress_deny[0]);
    assert_int_equal(got.key_sandboxes, 5);
    assert_int_equal(got.snapshots_max, 31);
    assert_int_equal(got.team_snapshots, 32);
    assert_int_equal(got.snapshot_disk_gb, 33);
    assert_int_equal(got.snapshot_days, 34);
    assert_int_equal(got.paused_days, 35);
    assert_int_equal(got.key_requests, 6);
    assert_int_equal(got.key_streams, 8);
    assert_true(secret_eq(&got.api_key, STR("e2b_00")));
    assert_true(secret_eq(&got.admin_hash, STR("11ff")));
    assert_true(got.mail.is_on && got.mail.strict_inbox_keys && got.mail.webhooks_http);
    assert_string_equal(got.mail.domain, "mail.example.com");
    assert_int_equal(got.mail.sends_per_minute, 21);
    assert_int_equal(got.mail.sends_per_day, 22);
    assert_int_equal(got.mail.inboxes_most, 23);
    assert_int_equal(got.mail.signups_per_hour, 24);
    assert_int_equal(got.mail.disk_gb, 25);
    assert_memory_equal(&got.mail.operator_public, &sent.mail.operator_public, sizeof got.mail.operator_public);
    assert_true(secret_eq(&got.mail.server_key, STR("srv_1")) && secret_eq(&got.mail.inbox_key, STR("mm_2")) &&
                secret_eq(&got.mail.token, STR("lm_3")));
    settings_wipe(&got);
    assert_int_equal(got.api_key.len + got.admin_hash.len + got.mail.server_key.len + got.mail.inbox_key.len +
                         got.mail.token.len,
                     0);
}

static void options_of_mail_are_checked(void **state)
{
    (void)state;
    auto_free struct config *config = NEW(struct config);
    struct mail_settings got;
    struct err err;
    assert_true(config_load(0, NULL, config, &err));
    assert_true(mail_settings_make(config, &got, &err));
    assert_true(got.is_on && !got.strict_inbox_keys);
    assert_string_equal(got.domain, "mail.cloister.localhost");
    assert_int_equal(got.sends_per_minute, 20);
    assert_int_equal(got.sends_per_day, 100);
    assert_int_equal(got.inboxes_most, 100);
    assert_int_equal(got.signups_per_hour, 0); /* no key, no account */
    (void)snprintf(config->mail_domain, sizeof config->mail_domain, "Mail.Example.COM");
    assert_true(mail_settings_make(config, &got, &err));
    assert_string_equal(got.domain, "mail.example.com");
    static const char *const bad[] = {
        "", "mail", "*.example.com", "mail.example.com.", "a b.example.com", "@example.com"
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        (void)snprintf(config->mail_domain, sizeof config->mail_domain, "%s", bad[i]);
        assert_false(mail_settings_make(config, &got, &err));
        assert_non_null(strstr(err.message, "--mail-domain"));
    }
    (void)snprintf(config->mail, sizeof config->mail, "maybe");
    assert_false(mail_settings_make(config, &got, &err));
    assert_string_equal(err.message, "--mail must be on or off, not 'maybe'");
}

static void an_unknown_log_level_is_refused_by_name(void **state)
{
    (void)state;
    enum log_level level;
    struct err err;
    assert_true(settings_log_level("debug", &level, &err));
    assert_false(settings_log_level("loud", &level, &err));
    assert_string_equal(err.message, "--log must be debug, info, warn or error, not 'loud'");
}

static void an_unknown_token_for_code_is_refused_by_name(void **state)
{
    (void)state;
    bool always;
    struct err err;
    assert_true(settings_token_for_code("always", &always, &err) && always);
    assert_true(settings_token_for_code("as-asked", &always, &err) && !always);
    assert_false(settings_token_for_code("never", &always, &err));
    assert_string_equal(err.message, "--token-for-code must be as-asked or always, not 'never'");
}

static void an_unknown_word_for_internet_is_refused(void **state)
{
    (void)state;
    bool on;
    struct err err;
    assert_true(settings_switch("internet", "on", &on, &err) && on);
    assert_true(settings_switch("internet", "off", &on, &err) && !on);
    assert_false(settings_switch("internet", "no", &on, &err));
    assert_string_equal(err.message, "--internet must be on or off, not 'no'");
}

static void resolver_is(const struct egress_resolver *resolver, const char *address, uint16_t port)
{
    struct net_address want;
    assert_true(net_address_parse(str_from(address), &want));
    assert_true(net_address_eq(&resolver->address, &want));
    assert_int_equal(resolver->port, port);
}

static void a_domain_is_a_name_with_a_dot_and_perhaps_a_port(void **state)
{
    (void)state;
    static const char *const fine[] = { "", "example.com", "a-b.Sandboxes.example.com:7070", "cloister.localhost:1" };
    static const char *const wrong[] = {
        "https://x.com", "localhost", "x.com/",    "x.com:",        "x.com:0",   "x.com:65536", "x.com:a",
        ":7070",         "*.x.com",   "192.0.2.1", "a..com",        ".x.com",    "x.com.",      "-a.com",
        "a-.com",        "a_b.com",   "a b.com",   "[2001:db8::1]", "x.com:1:2", "u@x.com",     " x.com",
    };
    struct err err;

    for (size_t i = 0; i < COUNT_OF(fine); i++)
        assert_true(settings_domain(fine[i], &err));
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_false(settings_domain(wrong[i], &err));
        assert_non_null(strstr(err.message, wrong[i]));
    }
    assert_false(settings_domain("https://x.com", &err));
    assert_string_equal(err.message, "--domain takes a name such as sandboxes.example.com or "
                                     "sandboxes.example.com:7070, not 'https://x.com'");
}

static void a_server_that_loopback_leads_to_has_a_domain(void **state)
{
    (void)state;
    static const char *const listens[][2] = {
        { "127.0.0.1:7070", "cloister.localhost:7070" },
        { "[::1]:7070", "cloister.localhost:7070" },
        { "0.0.0.0:7602", "cloister.localhost:7602" },
        { "[::]:7602", "cloister.localhost:7602" },
        { "127.0.0.2:7070", "" },
        { "192.0.2.1:7070", "" },
    };
    char domain[CONFIG_TEXT_BYTES];
    for (size_t i = 0; i < COUNT_OF(listens); i++) {
        struct config config = { 0 };
        (void)snprintf(config.listen, sizeof config.listen, "%s", listens[i][0]);
        settings_choose_domain(&config, domain);
        assert_string_equal(domain, listens[i][1]);
        (void)snprintf(config.domain, sizeof config.domain, "sandboxes.example.com");
        settings_choose_domain(&config, domain);
        assert_string_equal(domain, "sandboxes.example.com");
    }
}

static void network_options_reach_egress(void **state)
{
    (void)state;
    struct config config = {
        .egress_allow = "10.1.0.0/16, 2001:db8::/32,192.0.2.7",
        .egress_deny = "203.0.113.0/24,64:ff9b::/96",
        .webhook_allow = "10.0.0.0/8",
        .dns = "192.0.2.53,[2001:db8::53]:5353,192.0.2.54:54",
        .egress_rate_mb = 3,
    };
    struct egress_settings made, got;
    struct net_range range;
    struct err err;
    assert_true(egress_settings_make(&config, &made, &err));
    auto_close int fd = egress_settings_write(&made, &err);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), -1); /* sealed */
    assert_true(egress_settings_read(fd, &got, &err));
    assert_int_equal(got.allow_count, 3);
    assert_true(net_range_parse(STR("2001:db8::/32"), &range));
    assert_memory_equal(&got.allow[1], &range, sizeof range);
    assert_true(net_range_parse(STR("192.0.2.7"), &range));
    assert_memory_equal(&got.allow[2], &range, sizeof range);
    assert_int_equal(got.deny_count, 2);
    assert_true(net_range_parse(STR("64:ff9b::/96"), &range));
    assert_memory_equal(&got.deny[1], &range, sizeof range);
    assert_int_equal(got.hook_allow_count, 1);
    assert_true(net_range_parse(STR("10.0.0.0/8"), &range));
    assert_memory_equal(&got.hook_allow[0], &range, sizeof range);
    assert_int_equal(got.resolver_count, 3);
    resolver_is(&got.resolvers[0], "192.0.2.53", 53);
    resolver_is(&got.resolvers[1], "2001:db8::53", 5353);
    resolver_is(&got.resolvers[2], "192.0.2.54", 54);
    assert_int_equal(got.bytes_per_s, 3 << 20);
    auto_buf struct buf text = buf_make(NULL, 1000);
    egress_settings_resolvers(&got, &text);
    CHECK_STR(buf_str(&text),
              STR("nameserver 192.0.2.53:53\nnameserver [2001:db8::53]:5353\nnameserver 192.0.2.54:54\n"));
}

static void service_is(const struct egress_service *service, const char *name, const char *address, uint16_t port,
                       const char *to, uint16_t to_port)
{
    struct net_address want;
    assert_string_equal(service->name, name);
    assert_true(net_address_parse(str_from(address), &want) && net_address_eq(&service->address, &want));
    assert_int_equal(service->port, port);
    assert_true(net_address_parse(str_from(to), &want) && net_address_eq(&service->to, &want));
    assert_int_equal(service->to_port, to_port);
}

static void services_inside_reach_egress_with_an_address_for_each_name(void **state)
{
    (void)state;
    struct config config = { .inside = "Mirror.Internal:80=127.0.0.1:8080, mail.internal:25=10.1.2.3:2525,"
                                       "mirror.internal:443=[::1]:8443,pypi.org:443=192.0.2.7:443" };
    struct egress_settings made, got;
    struct err err;
    assert_true(egress_settings_make(&config, &made, &err));
    auto_close int fd = egress_settings_write(&made, &err);
    assert_true(fd >= 0 && egress_settings_read(fd, &got, &err));
    assert_int_equal(got.service_count, 4);
    service_is(&got.services[0], "mirror.internal", "192.0.0.64", 80, "127.0.0.1", 8080);
    service_is(&got.services[1], "mail.internal", "192.0.0.65", 25, "10.1.2.3", 2525);
    service_is(&got.services[2], "mirror.internal", "192.0.0.64", 443, "::1", 8443);
    service_is(&got.services[3], "pypi.org", "192.0.0.66", 443, "192.0.2.7", 443);
    char names[LIMIT_INSIDE_BYTES];
    egress_settings_names(&got, names);
    assert_string_equal(names, "mirror.internal\nmail.internal\npypi.org\n");
}

static void a_wrong_service_inside_is_refused_with_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *list, *says;
    } wrong[] = {
        { "mirror.internal", "--inside takes NAME:PORT=ADDR:PORT" },
        { "mirror.internal:80", "--inside takes NAME:PORT=ADDR:PORT" },
        { "mirror.internal=127.0.0.1:80", "--inside takes NAME:PORT=ADDR:PORT" },
        { "a.b:80=127.0.0.1:80,,c.d:80=127.0.0.1:80", "--inside takes NAME:PORT=ADDR:PORT" },
        { "mirror:80=127.0.0.1:80", "'mirror' is not a host name with a dot" },
        { "*.internal:80=127.0.0.1:80", "'*.internal' is not one name: give an entry for each name" },
        { "10.0.0.1:80=127.0.0.1:80", "'10.0.0.1' is not a host name" },
        { "a.b.:80=127.0.0.1:80", "write 'a.b.' without the dot at its end" },
        { ":80=127.0.0.1:80", "'' is not a host name" },
        { "a.LocalHost:80=127.0.0.1:80", "'a.LocalHost' cannot be used" },
        { "a.b:0=127.0.0.1:80", "the port of a.b must be" },
        { "a.b:65536=127.0.0.1:80", "the port of a.b must be" },
        { "a.b:x=127.0.0.1:80", "the port of a.b must be" },
        { "a.b:53=127.0.0.1:80", "not 53" },
        { "a.b:80=127.0.0.1", "a.b must lead to an address and a port" },
        { "a.b:80=127.0.0.1:0", "not '127.0.0.1:0'" },
        { "a.b:80=[::1]", "not '[::1]'" },
        { "a.b:80=::1", "write an IPv6 address in brackets: [::1]:PORT, not '::1'" },
        { "foo.bar:80=::1:80", "write an IPv6 address in brackets: [::1]:80, not '::1:80'" },
        { "a.b:80=2001:db8::1", "[2001:db8::1]:PORT" },
        { "a.b:80=2001:db8:1:2:3:4:5:6:8080", "[2001:db8:1:2:3:4:5:6]:8080, not '2001:db8:1:2:3:4:5:6:8080'" },
        { "a.b:80=127.0.0.1:80:80", "a.b must lead to an address and a port" },
        { "http://foo.bar:80=127.0.0.1:80", "no URL: write 'http://foo.bar:80=127.0.0.1:80' without http://" },
        { "foo.bar:80=http://127.0.0.1:80", "no URL: write 'foo.bar:80=http" },
        { "a.b:80=", "not ''" },
        { "a.b:80=localhost:80", "not 'localhost:80'" },
        { "a.b:80=unix:/run/x", "not 'unix:/run/x'" },
        { "a.b:80=127.0.0.1:80,A.B:80=127.0.0.1:81", "--inside has port 80 of a.b twice" },
    };
    struct egress_settings made;
    struct config config = { 0 };
    struct err err;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        (void)snprintf(config.inside, sizeof config.inside, "%s", wrong[i].list);
        assert_false(egress_settings_make(&config, &made, &err));
        assert_int_equal(err.kind, ERR_INVALID);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("'%s' does not contain '%s'", err.message, wrong[i].says);
    }
}

/* The most there can be, with the longest names that the option has room for. */
static void as_many_services_inside_as_there_are_addresses(void **state)
{
    (void)state;
    auto_buf struct buf list = buf_make(NULL, CONFIG_LIST_BYTES);
    struct config config = { 0 };
    struct egress_settings made, got;
    struct err err;
    char label[64];
    memset(label, 'a', sizeof label);
    for (int i = 0; i < LIMIT_INSIDE; i++)
        buf_format(&list, "%sn%d.%.63s:80=127.0.0.1:80", i ? "," : "", i, label);
    memcpy(config.inside, list.data, list.len);
    assert_true(egress_settings_make(&config, &made, &err));
    auto_close int fd = egress_settings_write(&made, &err);
    assert_true(fd >= 0 && egress_settings_read(fd, &got, &err));
    assert_int_equal(got.service_count, LIMIT_INSIDE);
    assert_int_equal(got.services[LIMIT_INSIDE - 1].address.at[15], 127);
    strcat(config.inside, ",one.more:80=127.0.0.1:80");
    assert_false(egress_settings_make(&config, &made, &err));
    assert_string_equal(err.message, "--inside has more than 64 entries");
}

static void name_servers_are_addresses(void **state)
{
    (void)state;
    static const char *const fine[] = { "2001:db8::53", "[2001:db8::53]", "192.0.2.1:65535" };
    static const char *const wrong[] = { "dns.example.com", "192.0.2.1:0",  "192.0.2.1:", "192.0.2.1:65536",
                                         "[2001:db8::1",    "[192.0.2.1]x", ":53",        "192.0.2.1,,192.0.2.2" };
    struct egress_settings made;
    struct err err;
    for (size_t i = 0; i < COUNT_OF(fine); i++) {
        struct config config = { 0 };
        (void)snprintf(config.dns, sizeof config.dns, "%s", fine[i]);
        assert_true(egress_settings_make(&config, &made, &err));
    }
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct config config = { 0 };
        (void)snprintf(config.dns, sizeof config.dns, "%s", wrong[i]);
        assert_false(egress_settings_make(&config, &made, &err));
        assert_non_null(strstr(err.message, "--dns takes ADDR, ADDR:PORT or [ADDR]:PORT"));
    }
}

static void a_bad_entry_of_a_list_of_ranges_is_named(void **state)
{
    (void)state;
    struct config config = { .egress_allow = "10.0.0.0/8,10.0.0.0/33" };
    struct egress_settings made;
    struct err err;
    assert_false(egress_settings_make(&config, &made, &err));
    assert_string_equal(err.message, "--egress-allow takes addresses and CIDR blocks, not '10.0.0.0/33'");
    config = (struct config){ 0 };
    for (int i = 0; i <= LIMIT_EGRESS_RANGES; i++)
        strcat(config.egress_allow, i ? ",10.0.0.1" : "10.0.0.1");
    assert_false(egress_settings_make(&config, &made, &err));
    assert_non_null(strstr(err.message, "more than 128 entries"));
    config = (struct config){ .egress_deny = "neighbour.example.com" };
    assert_false(egress_settings_make(&config, &made, &err));
    assert_string_equal(err.message, "--egress-deny takes addresses and CIDR blocks, not 'neighbour.example.com'");
}

static void options_of_registries_reach_puller_and_are_checked(void **state)
{
    struct config *config = NEW(struct config);
    struct puller_settings *settings = NEW(struct puller_settings), *again = NEW(struct puller_settings);
    struct err err;

    (void)state;
    (void)snprintf(config->registry_mirror, sizeof config->registry_mirror, "docker.io=https://mirror.example.com");
    (void)snprintf(config->registry_insecure, sizeof config->registry_insecure, "127.0.0.1:5000");
    (void)snprintf(config->registry_allow, sizeof config->registry_allow, "registry.example.com");
    (void)snprintf(config->image, sizeof config->image, "python:3=template:base");
    assert_true(puller_settings_make(config, settings, &err));
    int fd = puller_settings_write(settings, &err);
    assert_true(puller_settings_read(fd, again, &err));
    fd_close(&fd);
    assert_memory_equal(settings, again, sizeof *settings);
    struct registry_options options = puller_settings_options(again);
    CHECK_STR(options.images, STR("python:3=template:base"));
    CHECK_STR(options.insecure, STR("127.0.0.1:5000"));
    (void)snprintf(config->image, sizeof config->image, "python:3=base");
    assert_false(puller_settings_make(config, settings, &err));
    assert_non_null(strstr(err.message, "--image has 'python:3=base'"));
    free(config);
    free(settings);
    free(again);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(settings_survive_the_trip_to_front),
        CASE(options_of_mail_are_checked),
        CASE(options_of_registries_reach_puller_and_are_checked),
        CASE(an_unknown_log_level_is_refused_by_name),
        CASE(an_unknown_token_for_code_is_refused_by_name),
        CASE(an_unknown_word_for_internet_is_refused),
        CASE(a_domain_is_a_name_with_a_dot_and_perhaps_a_port),
        CASE(a_server_that_loopback_leads_to_has_a_domain),
        CASE(network_options_reach_egress),
        CASE(services_inside_reach_egress_with_an_address_for_each_name),
        CASE(a_wrong_service_inside_is_refused_with_what_is_wrong),
        CASE(as_many_services_inside_as_there_are_addresses),
        CASE(name_servers_are_addresses),
        CASE(a_bad_entry_of_a_list_of_ranges_is_named),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
