/*
 * Sandboxes in the foreign API's JSON. An absent value is left out instead of written as null, because some clients
 * crash on null.
 */
#include "api/request.h"
#include "base/clock.h"
#include "base/ports.h"

enum {
    CREATE_V1_TIMEOUT_S = 15, /* when the request names none; the two versions of the route differ */
    CREATE_V2_TIMEOUT_S = 300,
};

/* ---- reading ---- */

json_t *body_object(const struct request *rq, struct err *err)
{
    return rq->body.len ? json_parse_object(rq->body, err) : json_object();
}

bool take_seconds(const json_t *object, const char *name, enum json_need need, int64_t least, int64_t *out,
                  struct err *err)
{
    if (json_is_string(json_object_get(object, name)))
        return err_set(err, ERR_INVALID, "'%s' must be a number", name);
    int64_t seconds = *out;
    if (!json_take_int(object, name, need, INT64_MIN, INT64_MAX, &seconds, err))
        return false;
    if (json_has(object, name) && seconds < least)
        return err_set(err, ERR_INVALID, "'%s' must be at least %lld", name, (long long)least);
    *out = seconds;
    return true;
}

bool sandbox_id_decode(struct str segment, struct str *out_id, struct err *err)
{
    struct str rest = segment, id;

    /* "<id>-<client id>" is what old SDKs called a sandbox id. */
    if (!str_cut(&rest, '-', &id) || id.len == 0)
        return err_set(err, ERR_INVALID, "Invalid sandbox ID");
    for (size_t i = 0; i < segment.len; i++) {
        char c = segment.at[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '-' && i == id.len)))
            return err_set(err, ERR_INVALID, "Invalid sandbox ID");
    }
    *out_id = id;
    return true;
}

bool path_id(struct request *rq, struct str *out_id)
{
    struct err err;

    if (sandbox_id_decode(rq->match.params[0], out_id, &err))
        return true;
    reply_err(rq, &err);
    return false;
}

struct pair_limits {
    const char *field;
    uint32_t count;
    size_t bytes;
    bool are_envs;
};

static bool pair_check(const struct pair_limits *limits, const struct pair *pair, struct err *err)
{
    if (limits->are_envs && (pair->name.len == 0 || str_has_char(pair->name, '=')))
        return err_set(err, ERR_INVALID, "'%s' has the name '%.*s': a variable's name must not be empty or contain '='",
                       limits->field, (int)MIN(pair->name.len, (size_t)60), pair->name.at);
    return true;
}

/* A map from string to string. */
static bool take_pairs(const json_t *object, const struct pair_limits *limits, struct arena *arena,
                       const struct pair **out, uint32_t *out_count, struct err *err)
{
    const json_t *map;
    const char *name;
    json_t *value;
    size_t bytes = 0;
    uint32_t count = 0;

    if (!json_take_object(object, limits->field, JSON_OPTIONAL, &map, err))
        return false;
    if (!map)
        return true;
    if (json_object_size(map) > limits->count)
        return err_set(err, ERR_INVALID, "'%s' has more than %u entries", limits->field, limits->count);
    struct pair *pairs = ARENA_ARRAY(arena, struct pair, json_object_size(map));
    json_object_foreach((json_t *)map, name, value)
    {
        if (!json_is_string(value))
            return err_set(err, ERR_INVALID, "'%s.%.60s' must be a string", limits->field, name);
        struct pair pair = { str_from(name), json_str(value) };
        if (!pair_check(limits, &pair, err))
            return false;
        bytes += pair.name.len + pair.value.len;
        pairs[count++] = pair;
    }
    if (bytes > limits->bytes)
        return err_set(err, ERR_INVALID, "'%s' is larger than %zu bytes", limits->field, limits->bytes);
    *out = pairs;
    *out_count = count;
    return true;
}

/* ---- options of upstream's that are not implemented yet: refused, not ignored ---- */

enum option_id {
    VOLUME_MOUNTS,
    IAM_TOKENS,
    MCP,
};

/* An option as it is written in Python, in JavaScript and in the JSON. */
struct option {
    const char *name; /* of the JSON field, in its object */
    const char *python, *js, *wire;
};

static const struct option options[] = {
    [VOLUME_MOUNTS] = { "volumeMounts", "volume_mounts={…}", "volumeMounts: {…}", "volumeMounts" },
    [IAM_TOKENS] = { "tokens", "iam={\"tokens\": …}", "iam: { tokens: … }", "iam.tokens" },
    [MCP] = { "mcp", "mcp={…}", "mcp: {…}", "mcp" },
};

static bool not_yet(enum option_id id, struct err *err)
{
    const struct option *option = &options[id];

    return err_set(err, ERR_INVALID, "%s (JS %s, API '%s') is not available in this version of Cloister; leave it out",
                   option->python, option->js, option->wire);
}

static bool refuse_nonempty_array(const json_t *object, enum option_id id, struct err *err)
{
    const json_t *array;

    if (!json_take_array(object, options[id].name, JSON_OPTIONAL, &array, err))
        return false;
    return json_array_size(array) == 0 || not_yet(id, err);
}

static bool refuse_nonempty_object(const json_t *object, enum option_id id, struct err *err)
{
    const json_t *inner;

    if (!json_take_object(object, options[id].name, JSON_OPTIONAL, &inner, err))
        return false;
    return json_object_size(inner) == 0 || not_yet(id, err);
}

/* "name.example.com:${PORT}": only characters of a Host field, none that could end the header. */
static bool mask_check(struct str mask, struct err *err)
{
    struct str rest = mask;

    while (rest.len) {
        char c = rest.at[0];
        if (str_skip(&rest, STR("${PORT}")))
            continue;
        if (!(char_is_alnum(c) || strchr(".-_:[]", c)) || !c)
            break;
        rest = str_of(rest.at + 1, rest.len - 1);
    }
    return (rest.len == 0 && mask.len < LIMIT_NAME_BYTES * 2) ||
           err_set(err, ERR_INVALID, "'network.maskRequestHost' must be a host: NAME, NAME:PORT or NAME:${PORT}");
}

/* Ports that the edge reaches by TLS. guestd's own is not among them. */
static bool take_https_ports(const json_t *network, struct arena *arena, struct sandbox_request *out, struct err *err)
{
    const json_t *array, *entry;
    size_t i;

    if (!json_take_array(network, "httpsPorts", JSON_OPTIONAL, &array, err))
        return false;
    if (json_array_size(array) > LIMIT_HTTPS_PORTS)
        return err_set(err, ERR_INVALID, "'network.httpsPorts' (https_ports in Python) has more than %d ports",
                       LIMIT_HTTPS_PORTS);
    uint16_t *ports = ARENA_ARRAY(arena, uint16_t, json_array_size(array));
    json_array_foreach(array, i, entry)
    {
        json_int_t port = json_is_integer(entry) ? json_integer_value(entry) : 0;
        if (port < 1 || port > UINT16_MAX || port == GUESTD_PORT)
            return err_set(err, ERR_INVALID,
                           "'network.httpsPorts' (https_ports in Python) takes ports from 1 to 65535 other than %d",
                           GUESTD_PORT);
        ports[i] = (uint16_t)port;
    }
    out->https_ports = ports;
    out->https_port_count = (uint32_t)json_array_size(array);
    return true;
}

/*
 * Clients of the first version send `true` in every create, whether their user asked for it or not. So there it does not
 * overrule an operator whose default is off; an update does.
 */
static bool take_internet(const json_t *body, enum create_version version, bool usual, bool *out, struct err *err)
{
    bool asked = usual;

    if (!json_take_bool(body, "allow_internet_access", JSON_OPTIONAL, &asked, err))
        return false;
    *out = version == CREATE_V1 ? asked && usual : asked;
    return true;
}

static bool take_network(const json_t *body, bool internet, const struct actions *actions, struct arena *arena,
                         struct sandbox_request *out, struct err *err)
{
    const json_t *network;
    bool public_traffic = true;

    if (!json_take_object(body, "network", JSON_OPTIONAL, &network, err))
        return false;
    out->network.internet = internet;
    if (!network)
        return true;
    if (!network_decode(network, "network.", internet, actions, arena, &out->network, err) ||
        !take_https_ports(network, arena, out, err) ||
        !json_take_bool(network, "allowPublicTraffic", JSON_OPTIONAL, &public_traffic, err) ||
        !json_take_str(network, "maskRequestHost", JSON_OPTIONAL, &out->mask_host, err))
        return false;
    out->is_private = !public_traffic;
    return mask_check(out->mask_host, err);
}

/* What happens at the deadline, and whether traffic wakes it. */
static bool take_lifecycle(const json_t *body, struct sandbox_lifecycle *out, struct err *err)
{
    struct sandbox_lifecycle lifecycle = { .keep_memory = true };
    const json_t *auto_resume;

    if (!json_take_bool(body, "autoPause", JSON_OPTIONAL, &lifecycle.auto_pause, err) ||
        !json_take_bool(body, "autoPauseMemory", JSON_OPTIONAL, &lifecycle.keep_memory, err) ||
        !json_take_object(body, "autoResume", JSON_OPTIONAL, &auto_resume, err) ||
        (auto_resume && !json_take_bool(auto_resume, "enabled", JSON_OPTIONAL, &lifecycle.auto_resume, err)))
        return false;
    if (!lifecycle.keep_memory && !lifecycle.auto_pause)
        return err_set(
            err, ERR_INVALID,
            "'autoPauseMemory' (keep_memory in Python, keepMemory in JS) is false, but 'autoPause' is not set");
    if (!lifecycle.keep_memory && lifecycle.auto_resume)
        return err_set(err, ERR_INVALID,
                       "'autoResume.enabled' needs the memory: traffic wakes no sandbox whose 'autoPauseMemory' "
                       "(keep_memory in Python, keepMemory in JS) is false");
    *out = lifecycle;
    return true;
}

static bool refuse_iam(const json_t *body, struct err *err)
{
    const json_t *iam;

    if (!json_take_object(body, "iam", JSON_OPTIONAL, &iam, err))
        return false;
    if (!iam)
        return true;
    return refuse_nonempty_object(iam, IAM_TOKENS, err);
}

/*
 * Refuses `mcp`, also an empty one: the SDKs then use a template with the MCP gateway and start it. With another
 * template it is accepted, because the SDK starts the gateway there and reports that it is missing.
 */
static bool refuse_mcp(const json_t *body, struct str template_ref, struct err *err)
{
    const json_t *mcp;

    return json_take_object(body, options[MCP].name, JSON_OPTIONAL, &mcp, err) &&
           (!mcp || !str_eq(template_ref, STR("mcp-gateway")) || not_yet(MCP, err));
}

static bool refuse_unavailable(const json_t *body, struct str template_ref, struct err *err)
{
    return refuse_nonempty_array(body, VOLUME_MOUNTS, err) && refuse_iam(body, err) &&
           refuse_mcp(body, template_ref, err);
}

bool create_decode(const json_t *body, enum create_version version, const struct actions *actions, struct arena *arena,
                   struct sandbox_request *out, struct err *err)
{
    static const struct pair_limits metadata = { "metadata", LIMIT_METADATA_PAIRS, LIMIT_METADATA_BYTES, false };
    static const struct pair_limits envs = { "envVars", LIMIT_ENV_PAIRS, LIMIT_ENV_BYTES, true };
    struct sandbox_request want = { 0 };
    int64_t timeout_s = version == CREATE_V1 ? CREATE_V1_TIMEOUT_S : CREATE_V2_TIMEOUT_S;
    bool secure = false, internet;

    if (!json_take_str(body, "templateID", JSON_REQUIRED, &want.template_ref, err) ||
        !take_seconds(body, "timeout", JSON_OPTIONAL, 1, &timeout_s, err) ||
        !json_take_bool(body, "secure", JSON_OPTIONAL, &secure, err) ||
        !take_pairs(body, &metadata, arena, &want.metadata, &want.metadata_count, err) ||
        !take_pairs(body, &envs, arena, &want.envs, &want.env_count, err) ||
        !network_refuse_misspelt(body, NETWORK_BESIDE, err) ||
        !take_internet(body, version, actions->internet, &internet, err) ||
        !take_network(body, internet, actions, arena, &want, err) || !take_lifecycle(body, &want.lifecycle, err) ||
        !refuse_unavailable(body, want.template_ref, err))
        return false;
    want.timeout_s = (uint64_t)timeout_s;
    /* Clients that do not ask for `secure` send no token with run_code. Files and commands always need the token. */
    want.open_code = version == CREATE_V1 && !secure;
    *out = want;
    return true;
}

/* ---- writing ---- */

void time_encode(struct json_out *json, const char *name, int64_t wall_us)
{
    char text[CLOCK_TEXT_BYTES];

    json_out_str(json, name, str_from(clock_text(wall_us, text)));
}

static void names_encode(struct json_out *json, const struct sandbox_info *info)
{
    json_out_str(json, "templateID", info->template_id);
    json_out_str(json, "sandboxID", info->id);
    json_out_str(json, "clientID", STR(CLIENT_ID));
    json_out_str(json, "alias", info->alias);
    json_out_str(json, "envdVersion", info->guestd_version);
}

static void facts_encode(struct json_out *json, const struct sandbox_info *info)
{
    time_encode(json, "startedAt", info->started_us);
    time_encode(json, "endAt", info->deadline_us);
    json_out_int(json, "cpuCount", info->cpu_count);
    json_out_int(json, "memoryMB", info->memory_mb);
    json_out_int(json, "diskSizeMB", info->disk_mb);
    json_out_str(json, "state", info->is_paused ? STR("paused") : STR("running"));
    if (info->sizes.files_bytes ||
        info->sizes.memory_bytes) { /* a paused one that was measured; SDKs do not know these */
        json_out_int(json, "diskBytes", (int64_t)info->sizes.files_bytes);
        json_out_int(json, "memoryBytes", (int64_t)info->sizes.memory_bytes);
        json_out_int(json, "memoryRawBytes", (int64_t)info->sizes.raw_bytes);
    }
    if (info->is_paused && info->was_silent)
        json_out_bool(json, "envdUnresponsiveAtPause", true);
    json_out_object(json, "metadata");
    for (uint32_t i = 0; i < info->metadata_count; i++)
        json_out_pair(json, info->metadata[i].name, info->metadata[i].value);
    json_out_end(json);
    json_out_array(json, "volumeMounts");
    json_out_end(json);
}

static void access_encode(struct json_out *json, const struct request *rq, const struct sandbox_info *info)
{
    json_out_str(json, "envdAccessToken", info->access_token);
    if (info->traffic_token.len)
        json_out_str(json, "trafficAccessToken", info->traffic_token);
    if (rq->config->domain[0])
        json_out_str(json, "domain", str_from(rq->config->domain));
}

void sandbox_encode(struct json_out *json, const char *name, const struct request *rq, const struct sandbox_info *info)
{
    json_out_object(json, name);
    names_encode(json, info);
    access_encode(json, rq, info);
    json_out_end(json);
}

void sandbox_row_encode(struct json_out *json, const struct sandbox_info *info)
{
    json_out_object(json, NULL);
    names_encode(json, info);
    facts_encode(json, info);
    json_out_end(json);
}

void sandbox_detail_encode(struct json_out *json, const struct request *rq, const struct sandbox_info *info)
{
    json_out_object(json, NULL);
    names_encode(json, info);
    facts_encode(json, info);
    access_encode(json, rq, info);
    /* What is in force, never null: clients take absence for true. */
    json_out_bool(json, "allowInternetAccess", info->network.internet);
    if (info->is_private || info->mask_host.len || info->https_port_count || network_is_given(&info->network)) {
        json_out_object(json, "network");
        network_encode(json, rq->arena, &info->network);
        json_out_bool(json, "allowPublicTraffic", !info->is_private);
        if (info->https_port_count) {
            json_out_array(json, "httpsPorts");
            for (uint32_t i = 0; i < info->https_port_count; i++)
                json_out_int(json, NULL, info->https_ports[i]);
            json_out_end(json);
        }
        if (info->mask_host.len)
            json_out_str(json, "maskRequestHost", info->mask_host);
        json_out_end(json);
    }
    if (info->is_paused && !info->is_pausing)
        json_out_str(json, "pauseMode", info->has_memory ? STR("full") : STR("filesystem"));
    json_out_object(json, "lifecycle");
    json_out_bool(json, "autoResume", info->lifecycle.auto_resume);
    json_out_str(json, "onTimeout", info->lifecycle.auto_pause ? STR("pause") : STR("kill"));
    json_out_end(json);
    json_out_end(json);
}
