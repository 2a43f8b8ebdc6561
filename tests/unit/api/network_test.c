#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "served.h"

#define BASE "{\"templateID\":\"base\"}"

static const char *at(struct served *s, const char *id)
{
    return served_path(s, "/sandboxes/", id, "");
}

static const char *network_of(struct served *s, const char *id)
{
    return served_path(s, "/sandboxes/", id, "/network");
}

/* `network` of the sandbox as a GET shows it, with sorted keys; "" when there is none. */
static const char *shown(struct served *s, const char *id)
{
    assert_int_equal(CALL(s, "GET", at(s, id), NULL).status, 200);
    const json_t *network = json_object_get(s->last, "network");
    if (!network)
        return "";
    char *text = json_dumps(network, JSON_COMPACT | JSON_SORT_KEYS);
    const char *copy = arena_text(&s->rig.arena, str_from(text));
    free(text);
    return copy;
}

static bool internet_is_on(struct served *s, const char *id)
{
    assert_int_equal(CALL(s, "GET", at(s, id), NULL).status, 200);
    const json_t *flag = json_object_get(s->last, "allowInternetAccess");
    assert_true(json_is_boolean(flag));
    return json_is_true(flag);
}

static const char *create(struct served *s, const char *options)
{
    const char *body = arena_text(&s->rig.arena, arena_format(&s->rig.arena, "{\"templateID\":\"base\"%s}", options));
    return arena_text(&s->rig.arena, str_from(served_create(s, body)));
}

static const char *create_with(struct served *s, const char *network)
{
    return create(s, arena_text(&s->rig.arena, arena_format(&s->rig.arena, ",\"network\":%s", network)));
}

static void internet_access_is_as_asked_or_as_the_operator_says(void **state)
{
    struct served *s = *state;

    for (int off = 0; off < 2; off++) {
        s->internet_is_off = off;
        served_start(s);
        assert_int_equal(internet_is_on(s, create(s, "")), !off);
        assert_int_equal(s->rig.policy.internet, !off);
        assert_true(internet_is_on(s, create(s, ",\"allow_internet_access\":true")));
        assert_true(s->rig.policy.internet);
        assert_false(internet_is_on(s, create(s, ",\"allow_internet_access\":false")));
        assert_false(s->rig.policy.internet);
        assert_int_equal(internet_is_on(s, create(s, ",\"allow_internet_access\":null")), !off);
        /* Old clients send it in every create, so it says nothing there. */
        assert_int_equal(
            CALL(s, "POST", "/sandboxes", "{\"templateID\":\"base\",\"allow_internet_access\":true}").status, 201);
        const char *old = arena_text(&s->rig.arena, str_from(got_text(s, "sandboxID")));
        assert_int_equal(internet_is_on(s, old), !off);
        assert_int_equal(CALL(s, "PUT", network_of(s, old), "{\"allow_internet_access\":true}").status, 204);
        assert_true(internet_is_on(s, old));
        served_stop(s);
    }
}

static void rules_are_sent_to_egress_and_shown(void **state)
{
    struct served *s = *state;
    const char *id = create_with(
        s, "{\"allowOut\":[\"1.1.1.1\",\"8.8.8.8/24\",\"2001:db8::/32\",\"Example.com\",\"*.example.org\",\"*\"],"
           "\"denyOut\":[\"0.0.0.0/0\",\"10.0.0.0/8\",\"::/0\"],\"dnsServers\":[\"9.9.9.9\"],"
           "\"rules\":{\"API.example.com\":[{\"transform\":{\"headers\":{\"X-Key\":\"v 1\"}}}],\"*.a.example\":[]}}");

    assert_string_equal(s->rig.policy_id, id);
    const struct net_policy *policy = &s->rig.policy;
    assert_int_equal(policy->allow_count, 3);
    assert_int_equal(policy->name_count, 3);
    CHECK_STR(policy->names[0], STR("example.com"));
    assert_int_equal(policy->deny_count, 3);
    assert_true(policy->has_dns && policy->dns_count == 1);
    assert_int_equal(policy->transform_count, 2);
    assert_string_equal(
        shown(s, id),
        "{\"allowOut\":[\"1.1.1.1\",\"8.8.8.0/24\",\"2001:db8::/32\",\"example.com\",\"*.example.org\",\"*\"],"
        "\"allowPublicTraffic\":true,\"denyOut\":[\"0.0.0.0/0\",\"10.0.0.0/8\",\"::/0\"],\"dnsServers\":[\"9.9.9.9\"],"
        "\"rules\":{\"*.a.example\":[{\"transform\":{\"headers\":{}}}],"
        "\"api.example.com\":[{\"transform\":{\"headers\":{\"X-Key\":\"v 1\"}}}]}}");
    /* The same after a restart of front. */
    served_stop(s);
    served_start(s);
    assert_non_null(strstr(shown(s, id), "\"X-Key\":\"v 1\""));
}

static void a_proxy_at_a_private_address_is_the_operators_to_allow(void **state)
{
    struct served *s = *state;
    struct net_range ranges[2];

    assert_true(net_range_parse(STR("192.0.2.0/24"), &ranges[0]) && net_range_parse(STR("10.1.0.0/16"), &ranges[1]));
    s->actions.ranges = (struct net_operator){ 2, ranges };
    (void)create_with(s, "{\"egressProxy\":{\"address\":\"10.1.2.3:1080\"}}");
    CHECK_STR(s->rig.policy.proxy.host, STR("10.1.2.3"));
    struct http_answer answer = CALL(s, "POST", "/v2/sandboxes",
                                     "{\"templateID\":\"base\",\"network\":{\"egressProxy\":{\"address\":"
                                     "\"10.2.2.3:1080\"}}}");
    check_error(s, &answer, 400, "not a public address");
    s->actions.ranges.deny_count = 1;
    s->actions.ranges.deny = &ranges[1];
    answer = CALL(s, "POST", "/v2/sandboxes",
                  "{\"templateID\":\"base\",\"network\":{\"egressProxy\":{\"address\":\"10.1.2.3:1080\"}}}");
    check_error(s, &answer, 400, "the operator of this server lets no sandbox reach");
}

static void a_proxys_password_and_certificate_are_never_shown(void **state)
{
    struct served *s = *state;
    const char *id = create_with(
        s,
        "{\"egressProxy\":{\"address\":\"Proxy.example.com:1080\",\"username\":\"u\",\"password\":\"hunter2\",\"tls\":"
        "{\"enabled\":true,\"serverName\":\"p.example.com\",\"caCert\":\"-----BEGIN CERTIFICATE-----\\nx\"}}}");

    CHECK_STR(s->rig.policy.proxy.password, STR("hunter2"));
    CHECK_STR(s->rig.policy.proxy.host, STR("proxy.example.com"));
    assert_int_equal(s->rig.policy.proxy.port, 1080);
    assert_true(s->rig.policy.proxy.tls && s->rig.policy.proxy.ca_pem.len);
    assert_string_equal(shown(s, id),
                        "{\"allowPublicTraffic\":true,\"egressProxy\":{\"address\":\"proxy.example.com:1080\",\"tls\":"
                        "{\"enabled\":true,\"serverName\":\"p.example.com\"},\"username\":\"u\"}}");
    id = create_with(s, "{\"egressProxy\":{\"address\":\"[2001:db8::1]:1080\",\"tls\":{\"enabled\":false}}}");
    CHECK_STR(s->rig.policy.proxy.host, STR("2001:db8::1"));
    assert_string_equal(shown(s, id),
                        "{\"allowPublicTraffic\":true,\"egressProxy\":{\"address\":\"[2001:db8::1]:1080\"}}");
}

/* What is wrong with these is wrong in a create and in an update. */
static const struct {
    const char *network, *message;
} bad[] = {
    { "{\"allowOut\":\"x\"}", "'allowOut'" },
    { "{\"allowOut\":[5]}", "allowOut' (allow_out in Python) must be a list of strings" },
    { "{\"allowOut\":[\"a b\"]}", "takes addresses, CIDR blocks and domains, not 'a b'" },
    { "{\"allowOut\":[\"10.0.0.0/33\"]}", "not '10.0.0.0/33'" },
    { "{\"allowOut\":[\"0.0.0.0\"]}", "not '0.0.0.0'" },
    { "{\"allowOut\":[\"https://example.com\"]}", "not 'https://example.com'" },
    { "{\"allowOut\":[\"example.com\"]}",
      "allowOut' (allow_out in Python) has the domain example.com: also set allow_internet_access to false "
      "(--no-internet) or denyOut to 0.0.0.0/0" },
    { "{\"allowOut\":[\"a-name-that-does-not-fit.example.com\"]}", "or denyOut to 0.0.0.0/0" },
    { "{\"allowOut\":[\"*\"],\"denyOut\":[\"::/0\"]}", "has the domain *: also set allow_internet_access to false" },
    { "{\"denyOut\":\"0.0.0.0/0\"}", "'denyOut'" },
    { "{\"denyOut\":[5]}", "denyOut' (deny_out in Python) must be a list of strings" },
    { "{\"denyOut\":[\"example.com\"]}", "takes addresses and CIDR blocks, not 'example.com'" },
    { "{\"denyOut\":[\"1.1.1.1/33\"]}", "CIDR" },
    { "{\"denyOut\":[\"1.1.1.1/\"]}", "CIDR" },
    { "{\"denyOut\":[\"::/129\"]}", "CIDR" },
    { "{\"denyOut\":[\"0.0.0.0/8\"]}", "CIDR" },
    { "{\"denyOut\":[\"::\"]}", "CIDR" },
    { "{\"dnsServers\":[\"dns.example.com\"]}", "dnsServers' (dns_servers in Python) takes IPv4 addresses" },
    { "{\"dnsServers\":[\"2001:db8::1\"]}", "takes IPv4 addresses" },
    { "{\"dnsServers\":[\"1.1.1.0/24\"]}", "takes IPv4 addresses" },
    { "{\"dnsServers\":[\"1.1.1.1\",\"1.1.1.2\",\"1.1.1.3\",\"1.1.1.4\",\"1.1.1.5\",\"1.1.1.6\",\"1.1.1.7\","
      "\"1.1.1.8\",\"1.1.1.9\",\"1.1.1.10\",\"1.1.1.11\"]}",
      "more than 10 entries" },
    { "{\"dnsServers\":[\"1.1.1.1\"],\"denyOut\":[\"0.0.0.0/0\"]}",
      "dnsServers' (dns_servers in Python) counts only where allowOut has a domain: add one; addresses to be reached "
      "belong in allowOut" },
    { "{\"dnsServers\":[\"1.1.1.1\"],\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"1.1.1.1\"]}", "counts only where" },
    { "{\"rules\":[]}", "'rules'" },
    { "{\"rules\":{\"*\":[]}}", "takes a domain or *.domain" },
    { "{\"rules\":{\"1.1.1.1\":[]}}", "takes a domain or *.domain" },
    { "{\"rules\":{\"a.example\":{}}}", "a list with one rule for a.example" },
    { "{\"rules\":{\"a.example\":[{},{}]}}", "a list with one rule" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{\"headers\":{\"a\":5}}}]}}", "header a must be a string" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{\"headers\":{\"a b\":\"c\"}}}]}}", "header name" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{\"headers\":{\"a\":\"c\\r\\nd: e\"}}}]}}", "control characters" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{\"headers\":{\"Host\":\"b\"}}}]}}", "cannot set the header Host" },
    { "{\"rules\":{\"a.example\":[{\"headers\":{\"a\":\"b\"}}]}}",
      "rules' for a.example: 'headers' belongs inside 'transform'" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{},\"headers\":{}}]}}", "'headers' belongs inside 'transform'" },
    { "{\"rules\":{\"a.example\":[{\"transforms\":{\"headers\":{\"a\":\"b\"}}}]}}",
      "rules' for a.example: a rule has 'transform', not 'transforms'" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{\"Authorization\":\"b\"}}]}}",
      "rules' for a.example: 'transform' has 'headers', not 'Authorization'" },
    { "{\"rules\":{\"a.example\":[],\"A.example\":[]}}", "two rules for a.example" },
    { "{\"rules\":{\"a.example\":[{\"transform\":{\"headers\":{\"Auth\":\"Bearer ${e2b.secrets.key}\"}}}]}}",
      "header Auth has a placeholder (Secret.fill); secrets and identity tokens are not available" },
    { "{\"egressProxy\":{}}", "'address' is required" },
    { "{\"egressProxy\":{\"address\":\"proxy\"}}", "egressProxy.address' (egress_proxy in Python) must be host:port" },
    { "{\"egressProxy\":{\"address\":\"proxy:0\"}}", "must be host:port" },
    { "{\"egressProxy\":{\"address\":\"pro xy:1\"}}", "must be host:port" },
    { "{\"egressProxy\":{\"address\":\"2001:db8::1:1080\"}}", "must be host:port" },
    { "{\"egressProxy\":{\"address\":\"*.example:1\"}}", "must be host:port" },
    { "{\"egressProxy\":{\"address\":\"p.example:1\",\"password\":\"x\"}}", "a password and no username" },
    { "{\"egressProxy\":{\"address\":\"127.0.0.1:1080\"}}", "is not a public address; an operator can allow it" },
    { "{\"egressProxy\":{\"address\":\"[fd00::1]:1080\"}}", "is not a public address" },
    { "{\"egressProxy\":{\"address\":\"p.example:1\",\"tls\":{\"caCert\":\"x\"}}}", "'enabled' is not true" },
    { "{\"egressProxy\":{\"address\":\"p.example:1\",\"tls\":{\"enabled\":true,\"caCert\":\"x\"}}}", "PEM" },
    { "{\"egressProxy\":{\"address\":\"p.example:1\",\"tls\":{\"enabled\":true,\"serverName\":\"a b\"}}}",
      "server name" },
};

static void malformed_rules_are_refused_by_name(void **state)
{
    struct served *s = *state;
    const char *id = create(s, "");

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer =
            CALL(s, "POST", i % 2 ? "/sandboxes" : "/v2/sandboxes",
                 arena_text(&s->rig.arena,
                            arena_format(&s->rig.arena, "{\"templateID\":\"base\",\"network\":%s}", bad[i].network)));
        check_error(s, &answer, 400, bad[i].message);
        answer = CALL(s, "PUT", network_of(s, id), bad[i].network);
        check_error(s, &answer, 400, bad[i].message);
    }
    assert_int_equal(s->rig.fake.starts, 1);
    assert_int_equal(s->rig.policies_applied, 0);
    assert_string_equal(shown(s, id), "");
}

/* Ignored, each would leave open what was meant to be shut. */
static void misspelt_restrictions_are_refused_with_their_spelling(void **state)
{
    struct served *s = *state;
    const char *id = create(s, ",\"allow_internet_access\":false");
    static const struct {
        const char *field, *beside, *inside, *update; /* the error by place; NULL: ignored there */
    } cases[] = {
#define SPELT " is spelt allow_internet_access in requests"
#define BESIDE " belongs beside 'network', as allow_internet_access"
        { "\"allowInternetAccess\":false", "'allowInternetAccess'" SPELT, "'network.allowInternetAccess'" BESIDE,
          "'allowInternetAccess'" SPELT },
        { "\"internet_access\":false", "'internet_access'" SPELT, "'network.internet_access'" BESIDE,
          "'internet_access'" SPELT },
        { "\"internetAccess\":false", "'internetAccess'" SPELT, "'network.internetAccess'" BESIDE,
          "'internetAccess'" SPELT },
#undef BESIDE
#undef SPELT
        { "\"allow_internet_access\":false", NULL, "'network.allow_internet_access' belongs beside 'network'", NULL },
        { "\"allow_out\":[]", "'allow_out' belongs inside 'network', as allowOut",
          "'network.allow_out' is spelt allowOut", "'allow_out' is spelt allowOut" },
        { "\"deny_out\":[\"8.8.8.8\"]", "'deny_out' belongs inside 'network', as denyOut",
          "'network.deny_out' is spelt denyOut", "'deny_out' is spelt denyOut" },
        { "\"dns_servers\":[]", "inside 'network', as dnsServers", "is spelt dnsServers", "is spelt dnsServers" },
        { "\"egress_proxy\":{}", "inside 'network', as egressProxy", "is spelt egressProxy", "is spelt egressProxy" },
#define UPDATE "is for creates: an update cannot change it"
        { "\"https_ports\":[]", "inside 'network', as httpsPorts", "is spelt httpsPorts", UPDATE },
        { "\"allow_public_traffic\":false", "inside 'network', as allowPublicTraffic", "is spelt allowPublicTraffic",
          UPDATE },
        { "\"mask_request_host\":\"a\"", "inside 'network', as maskRequestHost", "is spelt maskRequestHost", UPDATE },
        { "\"httpsPorts\":[8443]", "'httpsPorts' belongs inside 'network'", NULL, "'httpsPorts' " UPDATE },
        { "\"allowPublicTraffic\":true", "'allowPublicTraffic' belongs inside 'network'", NULL,
          "'allowPublicTraffic' " UPDATE },
        { "\"maskRequestHost\":\"a\"", "'maskRequestHost' belongs inside 'network'", NULL,
          "'maskRequestHost' " UPDATE },
#undef UPDATE
        { "\"network\":{}", NULL, NULL, "'network' is for creates: in an update its fields are the body itself" },
        { "\"denyOut\":[\"8.8.8.8\"]", "'denyOut' belongs inside 'network'", NULL, NULL },
        { "\"allowOut\":[\"8.8.8.8\"]", "'allowOut' belongs inside 'network'", NULL, NULL },
        { "\"dnsServers\":[\"9.9.9.9\"]", "'dnsServers' belongs inside 'network'", NULL, NULL },
        { "\"egressProxy\":{\"address\":\"p.example.com:1\"}", "'egressProxy' belongs inside 'network'", NULL, NULL },
        { "\"rules\":{}", "'rules' belongs inside 'network'", NULL, NULL },
        { "\"rules\":{\"a.example\":[{\"headers\":null,\"transform\":{\"other\":null}}]}",
          "'rules' belongs inside 'network'", NULL, NULL },
        { "\"httpsPorts\":null", NULL, NULL, NULL },
        { "\"internetAccess\":null", NULL, NULL, NULL },
        { "\"somethingNew\":false", NULL, NULL, NULL },
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *beside =
            arena_text(&s->rig.arena, arena_format(&s->rig.arena, "{\"templateID\":\"base\",%s}", cases[i].field));
        const char *inside = arena_text(
            &s->rig.arena, arena_format(&s->rig.arena, "{\"templateID\":\"base\",\"network\":{%s}}", cases[i].field));
        const char *update = arena_text(&s->rig.arena, arena_format(&s->rig.arena, "{%s}", cases[i].field));
        for (int old = 0; old < 2; old++) {
            struct http_answer answer = CALL(s, "POST", old ? "/sandboxes" : "/v2/sandboxes", beside);
            if (cases[i].beside)
                check_error(s, &answer, 400, cases[i].beside);
            else
                assert_int_equal(answer.status, 201);
            answer = CALL(s, "POST", old ? "/sandboxes" : "/v2/sandboxes", inside);
            if (cases[i].inside)
                check_error(s, &answer, 400, cases[i].inside);
            else
                assert_int_equal(answer.status, 201);
        }
        struct http_answer answer = CALL(s, "PUT", network_of(s, id), update);
        if (cases[i].update)
            check_error(s, &answer, 400, cases[i].update);
        else
            assert_int_equal(answer.status, 204);
    }
}

static void too_many_rules_are_refused(void **state)
{
    struct served *s = *state;
    struct buf body = buf_make(&s->rig.arena, 1 << 20);
    const char *id = create(s, "");

    buf_format(&body, "{\"denyOut\":[\"10.0.0.1\"");
    for (int i = 0; i < LIMIT_NET_RANGES; i++)
        buf_format(&body, ",\"10.0.0.1\"");
    buf_format(&body, "]}");
    struct http_answer answer = CALL(s, "PUT", network_of(s, id), arena_text(&s->rig.arena, buf_str(&body)));
    check_error(s, &answer, 400, "'denyOut' (deny_out in Python) has more than 1024 entries");

    /* Each field is in range, and all together are too much. */
    static char value[LIMIT_NET_HEADER_VALUE_BYTES + 1];
    memset(value, 'x', sizeof value - 1);
    body = buf_make(&s->rig.arena, 1 << 20);
    buf_format(&body, "{\"rules\":{");
    for (int i = 0; i < 2; i++) {
        buf_format(&body, "%s\"a%d.example\":[{\"transform\":{\"headers\":{", i ? "," : "", i);
        for (int k = 0; k < LIMIT_NET_HEADERS; k++)
            buf_format(&body, "%s\"h%d\":\"%s\"", k ? "," : "", k, value);
        buf_format(&body, "}}}]");
    }
    buf_format(&body, "}}");
    answer = CALL(s, "PUT", network_of(s, id), arena_text(&s->rig.arena, buf_str(&body)));
    check_error(s, &answer, 400, "together have at most 61440 bytes");
}

static void a_domain_needs_no_denial_when_internet_access_is_off(void **state)
{
    struct served *s = *state;
    const char *id = create(s, ",\"allow_internet_access\":false,\"network\":{\"allowOut\":[\"example.com\"]}");

    assert_string_equal(shown(s, id), "{\"allowOut\":[\"example.com\"],\"allowPublicTraffic\":true}");
    assert_false(internet_is_on(s, id));
}

static void ports_that_expect_tls_are_kept(void **state)
{
    struct served *s = *state;
    const char *id = create_with(s, "{\"httpsPorts\":[8443,443]}");

    for (int i = 0; i < 2; i++) {
        assert_string_equal(shown(s, id), "{\"allowPublicTraffic\":true,\"httpsPorts\":[8443,443]}");
        struct sandbox *sandbox = sandbox_find(s->rig.all, str_from(id));
        assert_non_null(sandbox);
        assert_true(sandbox_port_has_tls(sandbox, 443) && sandbox_port_has_tls(sandbox, 8443));
        assert_false(sandbox_port_has_tls(sandbox, 80));
        sandbox_unref(sandbox);
        served_stop(s);
        served_start(s);
    }
}

static void an_update_replaces_everything(void **state)
{
    struct served *s = *state;
    const char *id = create(s, ",\"allow_internet_access\":false,\"network\":{\"allowOut\":[\"1.1.1.1\"],"
                               "\"maskRequestHost\":\"a.example\",\"allowPublicTraffic\":false}");

    assert_int_equal(CALL(s, "PUT", network_of(s, id), "{\"denyOut\":[\"8.8.8.8\"]}").status, 204);
    assert_string_equal(s->rig.policy_id, id);
    assert_int_equal(s->rig.policies_applied, 1);
    assert_true(s->rig.policy.internet && s->rig.policy.deny_count == 1 && s->rig.policy.allow_count == 0);
    /* What leads in stays as it was. */
    assert_string_equal(shown(s, id), "{\"allowPublicTraffic\":false,\"denyOut\":[\"8.8.8.8\"],"
                                      "\"maskRequestHost\":\"a.example\"}");
    /* The flag was left out, so it is the operator's default again: what is reported is what is in force. */
    assert_true(internet_is_on(s, id));
    assert_int_equal(CALL(s, "PUT", network_of(s, id), "{\"allow_internet_access\":false}").status, 204);
    assert_false(internet_is_on(s, id) || s->rig.policy.internet);
    assert_int_equal(CALL(s, "PUT", network_of(s, id), "{}").status, 204);
    assert_true(internet_is_on(s, id));
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs"), NULL).status, 200);
    const json_t *entry = json_array_get(json_object_get(s->last, "logEntries"), 1);
    assert_string_equal(json_string_value(json_object_get(entry, "message")),
                        "network rules changed: internet access on, allowOut 0, denyOut 1");
}

/* The proxy by its host alone: a username can be a secret, too. */
static void a_change_of_every_kind_is_named_in_the_log(void **state)
{
    struct served *s = *state;
    static const struct {
        const char *body, *message;
    } rows[] = {
        { "{\"egressProxy\":{\"address\":\"proxy.example.com:1080\",\"username\":\"me\",\"password\":\"hunter2\"}}",
          "network rules changed: internet access on, allowOut 0, denyOut 0, egressProxy proxy.example.com" },
        { "{\"rules\":{\"a.example\":[],\"b.example\":[{\"transform\":{\"headers\":{\"X-Key\":\"hunter2\"}}}]}}",
          "network rules changed: internet access on, allowOut 0, denyOut 0, hosts with header rules 2" },
        { "{\"dnsServers\":[]}", "network rules changed: internet access on, allowOut 0, denyOut 0, dnsServers 0" },
        { "{\"allow_internet_access\":false,\"allowOut\":[\"a.example\",\"1.1.1.1\"],\"dnsServers\":[\"9.9.9.9\"],"
          "\"rules\":{\"a.example\":[]},\"egressProxy\":{\"address\":\"[2001:db8::1]:1080\"}}",
          "network rules changed: internet access off, allowOut 2, denyOut 0, dnsServers 1, hosts with header rules 1, "
          "egressProxy 2001:db8::1" },
    };

    const char *id = create(s, "");
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(CALL(s, "PUT", network_of(s, id), rows[i].body).status, 204);
    assert_int_equal(CALL(s, "GET", served_path(s, "/sandboxes/", id, "/logs"), NULL).status, 200);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const json_t *entry = json_array_get(json_object_get(s->last, "logEntries"), i + 1);
        assert_string_equal(json_string_value(json_object_get(entry, "message")), rows[i].message);
    }
}

static void an_update_without_a_body_is_a_mistake(void **state)
{
    struct served *s = *state;
    const char *id = create(s, ",\"allow_internet_access\":false");
    static const char *const bodies[] = { NULL, "", "[]", "null", "{" };

    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        struct http_answer answer = CALL(s, "PUT", network_of(s, id), bodies[i]);
        check_error(s, &answer, 400, "validation error");
    }
    struct http_answer answer = CALL(s, "PUT", network_of(s, id), "{\"allow_internet_access\":1}");
    check_error(s, &answer, 400, "'allow_internet_access'");
    assert_false(internet_is_on(s, id));
}

static void an_update_of_a_sandbox_that_is_not_there_is_a_404(void **state)
{
    struct served *s = *state;
    const char *id = create(s, "");

    struct http_answer answer = CALL(s, "PUT", network_of(s, "inone"), "{}");
    check_error(s, &answer, 404, "inone");
    assert_int_equal(CALL(s, "DELETE", at(s, id), NULL).status, 204);
    answer = CALL(s, "PUT", network_of(s, id), "{}");
    check_error(s, &answer, 404, id);
}

static void an_update_while_egress_is_away_may_be_repeated(void **state)
{
    struct served *s = *state;
    const char *id = create(s, "");

    s->rig.egress_is_away = true;
    struct http_answer answer = CALL(s, "PUT", network_of(s, id), "{\"allow_internet_access\":false}");
    check_error(s, &answer, 503, "egress is away");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "true");
    /* It is stored, and egress will get it when it is back. */
    assert_false(internet_is_on(s, id));
    s->rig.egress_is_away = false;
    assert_int_equal(CALL(s, "PUT", network_of(s, id), "{\"allow_internet_access\":false}").status, 204);
    assert_false(s->rig.policy.internet);
}

static void refusals_are_log_lines_and_events(void **state)
{
    struct served *s = *state;
    const char *id = create(s, "");
    struct sandbox_refusal refusal = { .rule = STR("denyOut"),
                                       .destination = STR("198.51.100.7:443"),
                                       .text = STR("refused 198.51.100.7:443: denyOut has 198.51.100.0/24 \xff"),
                                       .count = 3 };

    rig_refuse(&s->rig, str_from(id), &refusal, 1);
    assert_int_equal(CALL(s, "GET", served_path(s, "/v2/sandboxes/", id, "/logs?level=warn"), NULL).status, 200);
    const json_t *logs = json_object_get(s->last, "logs"), *entry = json_array_get(logs, 0);
    assert_int_equal(json_array_size(logs), 1);
    assert_string_equal(json_string_value(json_object_get(entry, "message")),
                        "refused 198.51.100.7:443: denyOut has 198.51.100.0/24 \xef\xbf\xbd");
    const json_t *fields = json_object_get(entry, "fields");
    assert_string_equal(json_string_value(json_object_get(fields, "event_type")), "network_refused");
    assert_string_equal(json_string_value(json_object_get(fields, "rule")), "denyOut");
    assert_string_equal(json_string_value(json_object_get(fields, "destination")), "198.51.100.7:443");
    assert_string_equal(json_string_value(json_object_get(fields, "count")), "3");
    /* And as an event, which the log does not repeat. */
    do /* a worker writes it */
        assert_int_equal(
            CALL(s, "GET", served_path(s, "/events/sandboxes/", id, "?types=sandbox.network.refused"), NULL).status,
            200);
    while (json_array_size(s->last) == 0);
    const json_t *data = json_object_get(json_array_get(s->last, 0), "eventData");
    assert_int_equal(json_integer_value(json_object_get(data, "refused_count")), 3);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(data, "refused"), 0), "destination")),
        "198.51.100.7:443");
    assert_int_equal(CALL(s, "GET", served_path(s, "/v2/sandboxes/", id, "/logs?level=warn"), NULL).status, 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "logs")), 1);
}

#define API_CASE(function) cmocka_unit_test_setup_teardown(function, served_set_up, served_tear_down)

/* ---- many changes at once ---- */

static atomic_uint at_egress;
static atomic_bool egress_waits;

static void wait_for_egress(struct rig *rig, const char *id)
{
    (void)rig;
    (void)id;
    at_egress++;
    while (egress_waits)
        usleep(500);
}

static void slow_changes_of_a_key_leave_workers_for_other_calls(void **state)
{
    enum { MANY = LIMIT_CHANGES + 4 };
    struct served *s = *state;
    int fds[MANY];
    char room[512];

    at_egress = 0;
    egress_waits = true;
    s->rig.before_apply = wait_for_egress;
    for (int i = 0; i < MANY; i++) {
        const char *id = served_create(s, BASE);
        fds[i] = served_connect(s);
        MUST(fd_write_all(fds[i],
                          arena_format(&s->rig.arena,
                                       "PUT /sandboxes/%s/network HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n"
                                       "Connection: close\r\nContent-Length: 2\r\n\r\n{}",
                                       id, s->key),
                          &err));
    }
    while (at_egress < LIMIT_CHANGES_PER_KEY)
        usleep(500);
    const char *other = served_create(s, BASE);
    assert_int_equal(CALL(s, "DELETE", at(s, other), NULL).status, 204);
    assert_int_equal(at_egress, LIMIT_CHANGES_PER_KEY);
    egress_waits = false;
    for (int i = 0; i < MANY; i++) {
        ssize_t n = recv(fds[i], room, sizeof room, MSG_WAITALL);
        assert_true(n > 13);
        assert_memory_equal(room, "HTTP/1.1 204 ", 13);
        close(fds[i]);
    }
    s->rig.before_apply = NULL;
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(internet_access_is_as_asked_or_as_the_operator_says, served_set_up_only,
                                        served_tear_down),
        API_CASE(rules_are_sent_to_egress_and_shown),
        API_CASE(a_proxy_at_a_private_address_is_the_operators_to_allow),
        API_CASE(a_proxys_password_and_certificate_are_never_shown),
        API_CASE(malformed_rules_are_refused_by_name),
        API_CASE(misspelt_restrictions_are_refused_with_their_spelling),
        API_CASE(too_many_rules_are_refused),
        API_CASE(a_domain_needs_no_denial_when_internet_access_is_off),
        API_CASE(ports_that_expect_tls_are_kept),
        API_CASE(slow_changes_of_a_key_leave_workers_for_other_calls),
        API_CASE(an_update_replaces_everything),
        API_CASE(a_change_of_every_kind_is_named_in_the_log),
        API_CASE(an_update_without_a_body_is_a_mistake),
        API_CASE(an_update_of_a_sandbox_that_is_not_there_is_a_404),
        API_CASE(an_update_while_egress_is_away_may_be_repeated),
        API_CASE(refusals_are_log_lines_and_events),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
