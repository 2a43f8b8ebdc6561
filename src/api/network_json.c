/*
 * What a sandbox may reach, in the foreign API's JSON: `network` of a create, and the body of PUT /sandboxes/{id}/network.
 *
 * An update replaces everything: a field that is absent is cleared, and allow_internet_access that is absent is what it
 * would be in a create, the operator's default. So what a GET reports is always what is in force.
 */
#include "api/request.h"

/* Where a field stands, for errors: "network." in a create, "" in an update. */
struct place {
    const char *prefix;
    struct arena *arena;
    const struct net_operator *ranges;
};

enum { NAME_SHOWN = 22 }; /* bytes of a name in the longest error below, which just fits into struct err */

static struct str short_of(struct str text)
{
    text.len = MIN(text.len, (size_t)40);
    return text;
}

/* ---- reading ---- */

/*
 * Fields about the network by every name that people write, as it is in requests and in other languages, and the places
 * where it counts. Unknown fields are ignored, and a restriction that is ignored leaves open what its author means to be
 * shut. No SDK sends one of these under a wrong name or at a wrong place.
 */
static const struct field {
    const char *name, *right;
    unsigned places;
} fields[] = {
#define INTERNET "allow_internet_access", (NETWORK_BESIDE | NETWORK_UPDATE)
#define RULE (NETWORK_CREATE | NETWORK_UPDATE)
    { "allow_internet_access", INTERNET },
    { "allowInternetAccess", INTERNET },
    { "internet_access", INTERNET },
    { "internetAccess", INTERNET },
    { "allowOut", "allowOut", RULE },
    { "allow_out", "allowOut", RULE },
    { "denyOut", "denyOut", RULE },
    { "deny_out", "denyOut", RULE },
    { "dnsServers", "dnsServers", RULE },
    { "dns_servers", "dnsServers", RULE },
    { "egressProxy", "egressProxy", RULE },
    { "egress_proxy", "egressProxy", RULE },
    { "rules", "rules", RULE },
    { "httpsPorts", "httpsPorts", NETWORK_CREATE },
    { "https_ports", "httpsPorts", NETWORK_CREATE },
    { "allowPublicTraffic", "allowPublicTraffic", NETWORK_CREATE },
    { "allow_public_traffic", "allowPublicTraffic", NETWORK_CREATE },
    { "maskRequestHost", "maskRequestHost", NETWORK_CREATE },
    { "mask_request_host", "maskRequestHost", NETWORK_CREATE },
#undef RULE
#undef INTERNET
};

static bool refuse_field(const struct field *field, enum network_place place, struct err *err)
{
    bool is_right = strcmp(field->name, field->right) == 0;
    const char *spelling = is_right ? "" : field->right;

    if (field->places & place)
        return is_right || err_set(err, ERR_INVALID, "'%s%s' is spelt %s in requests",
                                   place == NETWORK_CREATE ? "network." : "", field->name, field->right);
    if (place == NETWORK_BESIDE)
        return err_set(err, ERR_INVALID, "'%s' belongs inside 'network'%s%s", field->name, is_right ? "" : ", as ",
                       spelling);
    if (place == NETWORK_CREATE)
        return err_set(err, ERR_INVALID, "'network.%s' belongs beside 'network'%s%s", field->name,
                       is_right ? "" : ", as ", spelling);
    return err_set(err, ERR_INVALID, "'%s' is for creates: an update cannot change it", field->name);
}

bool network_refuse_misspelt(const json_t *object, enum network_place place, struct err *err)
{
    if (place == NETWORK_UPDATE && json_has(object, "network"))
        return err_set(err, ERR_INVALID, "'network' is for creates: in an update its fields are the body itself");
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (json_has(object, fields[i].name) && !refuse_field(&fields[i], place, err))
            return false;
    return true;
}

/* An array of strings of at most `most` entries. NULL when absent. */
static bool take_texts(const json_t *object, const struct place *place, const char *name, const char *python,
                       uint32_t most, const json_t **out, struct err *err)
{
    const json_t *array, *entry;
    size_t i;

    if (!json_take_array(object, name, JSON_OPTIONAL, &array, err))
        return false;
    if (json_array_size(array) > most)
        return err_set(err, ERR_INVALID, "'%s%s' (%s in Python) has more than %u entries", place->prefix, name, python,
                       most);
    json_array_foreach(array, i, entry)
    {
        if (!json_is_string(entry))
            return err_set(err, ERR_INVALID, "'%s%s' (%s in Python) must be a list of strings", place->prefix, name,
                           python);
    }
    *out = array;
    return true;
}

static bool is_unspecified(const struct net_range *range)
{
    static const struct net_address v6 = { { 0 } }, v4 = NET_ADDRESS_V4(0, 0, 0, 0);

    return net_address_eq(&range->address, &v6) || net_address_eq(&range->address, &v4);
}

/* An address or a range. 0.0.0.0 and :: are no destinations; 0.0.0.0/0 is everything, and ::/0 every IPv6 address. */
static bool range_decode(struct str text, struct net_range *out)
{
    return net_range_parse(text, out) &&
           (!is_unspecified(out) || str_eq(text, STR("0.0.0.0/0")) || str_eq(text, STR("::/0")));
}

static bool take_allow_out(const json_t *object, const struct place *place, struct net_policy *out, struct err *err)
{
    const json_t *entries = NULL, *entry;
    size_t i;

    if (!take_texts(object, place, "allowOut", "allow_out", LIMIT_NET_RANGES, &entries, err))
        return false;
    out->allow = ARENA_ARRAY(place->arena, struct net_range, json_array_size(entries));
    out->names = ARENA_ARRAY(place->arena, struct str, json_array_size(entries));
    json_array_foreach(entries, i, entry)
    {
        struct str text = json_str(entry), shown = short_of(text);
        if (range_decode(text, &out->allow[out->allow_count]))
            out->allow_count++;
        else if (net_name_parse(place->arena, text, &out->names[out->name_count]))
            out->name_count++;
        else
            return err_set(err, ERR_INVALID,
                           "'%sallowOut' (allow_out in Python) takes addresses, CIDR blocks and domains, not '%.*s'",
                           place->prefix, STR_ARG(shown));
    }
    return true;
}

static bool take_deny_out(const json_t *object, const struct place *place, struct net_policy *out, struct err *err)
{
    const json_t *entries = NULL, *entry;
    size_t i;

    if (!take_texts(object, place, "denyOut", "deny_out", LIMIT_NET_RANGES, &entries, err))
        return false;
    out->deny = ARENA_ARRAY(place->arena, struct net_range, json_array_size(entries));
    json_array_foreach(entries, i, entry)
    {
        struct str shown = short_of(json_str(entry));
        if (!range_decode(json_str(entry), &out->deny[out->deny_count]))
            return err_set(err, ERR_INVALID,
                           "'%sdenyOut' (deny_out in Python) takes addresses and CIDR blocks, not '%.*s'",
                           place->prefix, STR_ARG(shown));
        out->deny_count++;
    }
    return true;
}

static bool denies_all(const struct net_policy *policy)
{
    for (uint32_t i = 0; i < policy->deny_count; i++)
        if (net_range_is_everything(&policy->deny[i]))
            return true;
    return !policy->internet;
}

/* E2B's rule: else the list of names would suggest a limit that is not there. A long name is cut before the advice is. */
static bool check_names(const struct net_policy *policy, const struct place *place, struct err *err)
{
    return !policy->name_count || denies_all(policy) ||
           err_set(err, ERR_INVALID,
                   "'%sallowOut' (allow_out in Python) has the domain %.*s: also set allow_internet_access to false "
                   "(--no-internet) or denyOut to 0.0.0.0/0",
                   place->prefix, (int)MIN(policy->names[0].len, (size_t)NAME_SHOWN), policy->names[0].at);
}

static bool take_dns_servers(const json_t *object, const struct place *place, struct net_policy *out, struct err *err)
{
    const json_t *entries = NULL, *entry;
    size_t i;

    if (!take_texts(object, place, "dnsServers", "dns_servers", LIMIT_NET_DNS, &entries, err))
        return false;
    out->has_dns = entries != NULL;
    out->dns = ARENA_ARRAY(place->arena, struct net_address, json_array_size(entries));
    json_array_foreach(entries, i, entry)
    {
        struct str text = json_str(entry), shown = short_of(text);
        if (str_has_char(text, ':') || !net_address_parse(text, &out->dns[out->dns_count]))
            return err_set(err, ERR_INVALID, "'%sdnsServers' (dns_servers in Python) takes IPv4 addresses, not '%.*s'",
                           place->prefix, STR_ARG(shown));
        out->dns_count++;
    }
    return true;
}

/* Else nothing would say that they cannot be reached, nor asked. E2B accepts such a list and ignores it. */
static bool check_dns_servers(const struct net_policy *policy, const struct place *place, struct err *err)
{
    return !policy->dns_count || policy->name_count || !denies_all(policy) ||
           err_set(err, ERR_INVALID,
                   "'%sdnsServers' (dns_servers in Python) counts only where allowOut has a domain: add one; addresses "
                   "to be reached belong in allowOut",
                   place->prefix);
}

/* `name` is all that E2B's API has in such an object. A header that is misplaced would never be set. */
static bool has_only(const json_t *object, const char *name, const char *whose, const struct place *place,
                     const struct net_transform *rule, struct err *err)
{
    struct str host = short_of(rule->host);
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value)
    {
        if (strcmp(key, name) == 0 || json_is_null(value))
            continue;
        if (strcmp(key, "headers") == 0)
            return err_set(err, ERR_INVALID, "'%srules' for %.*s: 'headers' belongs inside 'transform'", place->prefix,
                           STR_ARG(host));
        return err_set(err, ERR_INVALID, "'%srules' for %.*s: %s has '%s', not '%.*s'", place->prefix, STR_ARG(host),
                       whose, name, STR_ARG(short_of(str_from(key))));
    }
    return true;
}

static bool take_headers(const json_t *rule, const struct place *place, struct net_transform *out, struct err *err)
{
    const json_t *transform, *headers = NULL;
    const char *name;
    json_t *value;

    if (!has_only(rule, "transform", "a rule", place, out, err) ||
        !json_take_object(rule, "transform", JSON_OPTIONAL, &transform, err) ||
        !has_only(transform, "headers", "'transform'", place, out, err) ||
        (transform && !json_take_object(transform, "headers", JSON_OPTIONAL, &headers, err)))
        return false;
    if (json_object_size(headers) > LIMIT_NET_HEADERS)
        return err_set(err, ERR_INVALID, "'%srules' sets more than %d headers for %.*s", place->prefix,
                       LIMIT_NET_HEADERS, STR_ARG(short_of(out->host)));
    out->headers = ARENA_ARRAY(place->arena, struct net_header, json_object_size(headers));
    json_object_foreach((json_t *)headers, name, value)
    {
        struct str shown = short_of(str_from(name));
        if (!json_is_string(value))
            return err_set(err, ERR_INVALID, "'%srules': the value of header %.*s must be a string", place->prefix,
                           STR_ARG(shown));
        if (net_value_has_placeholder(json_str(value)))
            return err_set(
                err, ERR_INVALID,
                "'%srules': header %.*s has a placeholder (Secret.fill); secrets and identity tokens are not "
                "available in this version of Cloister",
                place->prefix, STR_ARG(shown));
        out->headers[out->header_count++] =
            (struct net_header){ arena_copy(place->arena, str_from(name)), arena_copy(place->arena, json_str(value)) };
    }
    return true;
}

/* A map from host to a list with one rule at most. */
static bool take_rules(const json_t *object, const struct place *place, struct net_policy *out, struct err *err)
{
    const json_t *rules;
    const char *host;
    json_t *list;

    if (!json_take_object(object, "rules", JSON_OPTIONAL, &rules, err))
        return false;
    if (json_object_size(rules) > LIMIT_NET_TRANSFORMS)
        return err_set(err, ERR_INVALID, "'%srules' has more than %d domains", place->prefix, LIMIT_NET_TRANSFORMS);
    out->transforms = ARENA_ARRAY(place->arena, struct net_transform, json_object_size(rules));
    json_object_foreach((json_t *)rules, host, list)
    {
        struct net_transform *transform = &out->transforms[out->transform_count];
        struct str shown = short_of(str_from(host));
        if (strlen(host) > LIMIT_NET_TRANSFORM_HOST_BYTES || str_eq(shown, STR("*")) ||
            !net_name_parse(place->arena, str_from(host), &transform->host))
            return err_set(err, ERR_INVALID,
                           "'%srules' takes a domain or *.domain of at most %d characters, not '%.*s'", place->prefix,
                           LIMIT_NET_TRANSFORM_HOST_BYTES, STR_ARG(shown));
        if (!json_is_array(list) || json_array_size(list) > 1 ||
            (json_array_size(list) && !json_is_object(json_array_get(list, 0))))
            return err_set(err, ERR_INVALID, "'%srules' must have a list with one rule for %.*s", place->prefix,
                           STR_ARG(shown));
        if (json_array_size(list) && !take_headers(json_array_get(list, 0), place, transform, err))
            return false;
        out->transform_count++;
    }
    return true;
}

static bool proxy_is_denied(struct str host, const struct net_operator *ranges)
{
    struct net_address address;

    return net_address_parse(host, &address) && net_operator_denies(ranges, &address);
}

/* Egress refuses a name that leads to such an address when it connects. */
static bool proxy_is_reachable(struct str host, const struct net_operator *ranges)
{
    struct net_address address;

    if (!net_address_parse(host, &address) || net_address_is_public(&address))
        return true;
    for (uint32_t i = 0; i < ranges->allow_count; i++)
        if (net_range_has(&ranges->allow[i], &address))
            return true;
    return false;
}

/* HOST:PORT or [ADDRESS]:PORT */
static bool address_decode(struct arena *arena, struct str text, struct net_proxy *out)
{
    struct net_address address;
    struct str host;
    uint64_t port;
    bool in_brackets = str_skip(&text, STR("["));
    char end = in_brackets ? ']' : ':';

    if (!str_has_char(text, end) || !str_cut(&text, end, &host) || (in_brackets && !str_skip(&text, STR(":"))) ||
        !str_to_u64(text, UINT16_MAX, &port) || port == 0)
        return false;
    out->port = (uint16_t)port;
    if (net_address_parse(host, &address))
        out->host = arena_copy(arena, host);
    else if (in_brackets || !net_name_is_valid(host) || !net_name_parse(arena, host, &out->host))
        return false;
    return true;
}

static bool take_proxy_tls(const json_t *proxy, const struct place *place, struct net_proxy *out, struct err *err)
{
    const json_t *tls;
    struct str server_name = STR(""), ca_pem = STR("");

    if (!json_take_object(proxy, "tls", JSON_OPTIONAL, &tls, err))
        return false;
    if (!tls)
        return true;
    if (!json_take_bool(tls, "enabled", JSON_OPTIONAL, &out->tls, err) ||
        !json_take_str(tls, "serverName", JSON_OPTIONAL, &server_name, err) ||
        !json_take_str(tls, "caCert", JSON_OPTIONAL, &ca_pem, err))
        return false;
    if (!out->tls && (server_name.len || ca_pem.len))
        return err_set(err, ERR_INVALID, "'%segressProxy.tls' has serverName or caCert, but 'enabled' is not true",
                       place->prefix);
    if (ca_pem.len > LIMIT_NET_CA_BYTES)
        return err_set(err, ERR_INVALID, "'%segressProxy.tls.caCert' has more than %d bytes", place->prefix,
                       LIMIT_NET_CA_BYTES);
    out->server_name = arena_copy(place->arena, server_name);
    out->ca_pem = arena_copy(place->arena, ca_pem);
    return true;
}

static bool take_proxy(const json_t *object, const struct place *place, struct net_proxy *out, struct err *err)
{
    struct str address = STR(""), username = STR(""), password = STR("");
    const json_t *proxy;

    if (!json_take_object(object, "egressProxy", JSON_OPTIONAL, &proxy, err))
        return false;
    if (!proxy)
        return true;
    if (!json_take_str(proxy, "address", JSON_REQUIRED, &address, err) ||
        !json_take_str(proxy, "username", JSON_OPTIONAL, &username, err) ||
        !json_take_str(proxy, "password", JSON_OPTIONAL, &password, err))
        return err_wrap(err, "egressProxy");
    if (!address_decode(place->arena, address, out))
        return err_set(err, ERR_INVALID, "'%segressProxy.address' (egress_proxy in Python) must be host:port",
                       place->prefix);
    if (proxy_is_denied(out->host, place->ranges))
        return err_set(err, ERR_INVALID,
                       "'%segressProxy.address' is an address that the operator of this server lets no sandbox reach",
                       place->prefix);
    if (!proxy_is_reachable(out->host, place->ranges))
        return err_set(err, ERR_INVALID,
                       "'%segressProxy.address' is not a public address; an operator can allow it with --egress-allow",
                       place->prefix);
    if (username.len > LIMIT_NET_PROXY_BYTES || password.len > LIMIT_NET_PROXY_BYTES)
        return err_set(err, ERR_INVALID, "'%segressProxy' has a username or password of more than %d bytes",
                       place->prefix, LIMIT_NET_PROXY_BYTES);
    if (password.len && !username.len)
        return err_set(err, ERR_INVALID, "'%segressProxy' has a password and no username", place->prefix);
    out->username = arena_copy(place->arena, username);
    out->password = arena_copy(place->arena, password);
    return take_proxy_tls(proxy, place, out, err);
}

bool network_decode(const json_t *network, const char *prefix, bool internet, const struct actions *actions,
                    struct arena *arena, struct net_policy *out, struct err *err)
{
    const struct place place = { prefix, arena, &actions->ranges };
    struct net_policy policy = { .internet = internet };

    if (!network_refuse_misspelt(network, prefix[0] ? NETWORK_CREATE : NETWORK_UPDATE, err) ||
        !take_allow_out(network, &place, &policy, err) || !take_deny_out(network, &place, &policy, err) ||
        !check_names(&policy, &place, err) || !take_dns_servers(network, &place, &policy, err) ||
        !check_dns_servers(&policy, &place, err) || !take_rules(network, &place, &policy, err) ||
        !take_proxy(network, &place, &policy.proxy, err) || !net_policy_check(&policy, err))
        return false;
    *out = policy;
    return true;
}

/* ---- writing ---- */

static void ranges_encode(struct json_out *json, const struct net_range *ranges, uint32_t count)
{
    char text[NET_RANGE_TEXT];

    for (uint32_t i = 0; i < count; i++) {
        net_range_text(&ranges[i], text);
        json_out_str(json, NULL, str_from(text));
    }
}

static void rules_encode(struct json_out *json, struct arena *arena, const struct net_policy *policy)
{
    json_out_object(json, "rules");
    for (uint32_t i = 0; i < policy->transform_count; i++) {
        const struct net_transform *transform = &policy->transforms[i];
        json_out_array(json, arena_text(arena, transform->host));
        json_out_object(json, NULL);
        json_out_object(json, "transform");
        json_out_object(json, "headers");
        for (uint32_t k = 0; k < transform->header_count; k++)
            json_out_pair(json, transform->headers[k].name, transform->headers[k].value);
        json_out_end(json);
        json_out_end(json);
        json_out_end(json);
        json_out_end(json);
    }
    json_out_end(json);
}

/* Never the password, nor the certificate. */
static void proxy_encode(struct json_out *json, struct arena *arena, const struct net_proxy *proxy)
{
    bool in_brackets = str_has_char(proxy->host, ':');

    json_out_object(json, "egressProxy");
    json_out_str(json, "address",
                 arena_format(arena, "%s%.*s%s:%u", in_brackets ? "[" : "", STR_ARG(proxy->host),
                              in_brackets ? "]" : "", proxy->port));
    if (proxy->username.len)
        json_out_str(json, "username", proxy->username);
    if (proxy->tls) {
        json_out_object(json, "tls");
        json_out_bool(json, "enabled", true);
        if (proxy->server_name.len)
            json_out_str(json, "serverName", proxy->server_name);
        json_out_end(json);
    }
    json_out_end(json);
}

bool network_is_given(const struct net_policy *policy)
{
    return policy->allow_count || policy->name_count || policy->deny_count || policy->has_dns ||
           policy->transform_count || policy->proxy.host.len;
}

void network_encode(struct json_out *json, struct arena *arena, const struct net_policy *policy)
{
    char text[NET_ADDRESS_TEXT];

    if (policy->allow_count || policy->name_count) {
        json_out_array(json, "allowOut");
        ranges_encode(json, policy->allow, policy->allow_count);
        for (uint32_t i = 0; i < policy->name_count; i++)
            json_out_str(json, NULL, policy->names[i]);
        json_out_end(json);
    }
    if (policy->deny_count) {
        json_out_array(json, "denyOut");
        ranges_encode(json, policy->deny, policy->deny_count);
        json_out_end(json);
    }
    if (policy->has_dns) {
        json_out_array(json, "dnsServers");
        for (uint32_t i = 0; i < policy->dns_count; i++) {
            net_address_text(&policy->dns[i], text);
            json_out_str(json, NULL, str_from(text));
        }
        json_out_end(json);
    }
    if (policy->transform_count)
        rules_encode(json, arena, policy);
    if (policy->proxy.host.len)
        proxy_encode(json, arena, &policy->proxy);
}

/* ---- the route ---- */

void api_sandbox_network(struct request *rq)
{
    struct net_policy network;
    struct str id;
    struct err err;

    if (!path_id(rq, &id))
        return;
    /* Not body_object(): an empty body is a mistake, and {} lifts every rule. */
    auto_json json_t *body = json_parse_object(rq->body, &err);
    bool internet = rq->actions->internet;
    if (!body || !json_take_bool(body, "allow_internet_access", JSON_OPTIONAL, &internet, &err) ||
        !network_decode(body, "", internet, rq->actions, rq->arena, &network, &err))
        reply_invalid(rq, &err);
    else if (!action_sandbox_set_network(rq->actions, &rq->caller, id, &network, rq->arena, &err))
        reply_err(rq, &err);
    else
        reply_empty(rq, 204);
}
