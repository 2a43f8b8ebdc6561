/*
 * A sandbox as the store keeps it. Metadata is one JSON object, so that a row is one row; an event's data is JSON in
 * the shape that clients of the lifecycle API will read.
 */
#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"
#include "sandbox/inside.h"
#include "wire/json.h"

enum { ESCAPED = 7 }; /* "\u0001" is six bytes for one; and commas and quotes */

static void metadata_write(struct json_out *out, const char *name, const struct sandbox *sb)
{
    json_out_object(out, name);
    for (uint32_t i = 0; i < sb->metadata_count; i++)
        json_out_pair(out, sb->metadata[i].name, sb->metadata[i].value);
    json_out_end(out);
}

struct str record_policy(struct arena *arena, struct str packed)
{
    char *text = arena_alloc(arena, base64_size(packed.len) + 1);

    return str_of(text, base64_encode(packed, text));
}

static struct str ports_text(const struct sandbox *sb, struct arena *arena)
{
    struct buf text = buf_make(arena, (size_t)LIMIT_HTTPS_PORTS * sizeof "65535,");

    for (uint32_t i = 0; i < sb->https_port_count; i++)
        buf_add(&text, arena_format(arena, "%s%u", i ? "," : "", sb->https_ports[i]));
    return buf_str(&text);
}

bool record_row(const struct sandbox *sb, struct arena *arena, struct sandbox_row *out, struct err *err)
{
    struct buf metadata = buf_make(arena, (size_t)ESCAPED * LIMIT_METADATA_BYTES);
    struct json_out json = json_out_to(&metadata);

    metadata_write(&json, NULL, sb);
    if (metadata.overflowed)
        return err_set(err, ERR_INVALID, "the metadata is larger than %d bytes", LIMIT_METADATA_BYTES);
    *out = (struct sandbox_row){
        .id = str_from(sb->id),
        .team_id = sb->team_id,
        .template_id = sb->template_id,
        .alias = sb->alias,
        .guestd_version = sb->guestd_version,
        .state = SANDBOX_ROW_STARTING,
        .metadata = buf_str(&metadata),
        .cpu_count = sb->cpu_count,
        .memory_mb = sb->memory_mb,
        .disk_mb = sb->disk_mb,
        .network = record_policy(arena, str_of(sb->policy, sb->policy_len)),
        .key_id = str_from(sb->key_id),
        .is_private = sb->traffic_token.len > 0,
        .mask_host = sb->mask_host,
        .https_ports = ports_text(sb, arena),
        .open_code = sb->open_code,
        .started_us = sb->started_us,
        .deadline_us = sb->deadline_us,
        .timeout_s = sb->timeout_s,
        .auto_pause = sb->lifecycle.auto_pause,
        .keep_memory = sb->lifecycle.keep_memory,
        .auto_resume = sb->lifecycle.auto_resume,
        .layer_count = sb->layer_count,
        .layers = sb->layers,
        .default_user = sb->default_user,
        .default_workdir = sb->default_workdir,
    };
    return true;
}

static bool metadata_read(struct sandbox *sb, struct str text, struct err *err)
{
    auto_json json_t *object = json_parse_object(text, err);
    const char *name;
    json_t *value;

    if (!object)
        return err_wrap(err, "read the metadata of sandbox %s", sb->id);
    sb->metadata = ARENA_ARRAY(&sb->arena, struct pair, json_object_size(object));
    json_object_foreach(object, name, value)
    {
        sb->metadata[sb->metadata_count++] = (struct pair){
            .name = arena_copy(&sb->arena, str_from(name)),
            .value = arena_copy(&sb->arena, json_str(value)),
        };
    }
    return true;
}

/* A policy that cannot be read counts as none: the sandbox then reaches nothing. */
static void policy_read(struct sandbox *sb, struct str text)
{
    struct net_policy network;
    struct arena arena;
    struct err err;
    size_t len;

    if (!text.len)
        return;
    arena_init(&arena);
    unsigned char *bytes = arena_alloc(&arena, text.len / 4 * 3 + 3);
    bool ok = base64_decode(text, bytes, &len) || err_set(&err, ERR_INVALID, "it is not base64");
    if (ok) {
        struct unpack in = unpack_from(str_of(bytes, len));
        net_policy_unpack(&in, &arena, &network);
        ok = unpack_done(&in, &err) && net_policy_check(&network, &err);
    }
    if (ok)
        sandbox_keep_policy(sb, &network);
    else
        log_warn("sandbox %s: found without its network rules, so it reaches nothing: %s", sb->id, err_text(&err));
    arena_done(&arena);
}

static void ports_read(struct sandbox *sb, struct str text)
{
    struct str word;
    uint64_t port;

    sb->https_ports = ARENA_ARRAY(&sb->arena, uint16_t, LIMIT_HTTPS_PORTS);
    while (text.len && sb->https_port_count < LIMIT_HTTPS_PORTS && str_cut(&text, ',', &word))
        if (str_to_u64(word, UINT16_MAX, &port))
            sb->https_ports[sb->https_port_count++] = (uint16_t)port;
}

bool record_adopt(struct sandbox *sb, const struct sandbox_row *row, struct err *err)
{
    sb->team_id = arena_copy(&sb->arena, row->team_id);
    sb->paying_team_id = sb->team_id; /* those of builds, which another pays for, end with the front before us */
    sb->template_id = arena_copy(&sb->arena, row->template_id);
    sb->alias = arena_copy(&sb->arena, row->alias);
    sb->guestd_version = arena_copy(&sb->arena, row->guestd_version);
    sb->cpu_count = row->cpu_count;
    sb->memory_mb = row->memory_mb;
    sb->disk_mb = row->disk_mb;
    policy_read(sb, row->network);
    if (row->https_ports.len)
        ports_read(sb, row->https_ports);
    sandbox_set_key(sb, row->key_id);
    sb->mask_host = arena_copy(&sb->arena, row->mask_host);
    sb->open_code = row->open_code;
    if (row->is_private)
        sandbox_make_private(sb);
    sb->started_us = row->started_us;
    sb->revision = row->revision;
    sb->timeout_s = row->timeout_s;
    sb->lifecycle = (struct sandbox_lifecycle){ row->auto_pause, row->keep_memory, row->auto_resume };
    sb->layer_count = row->layer_count;
    sb->layers = ARENA_ARRAY(&sb->arena, struct str, row->layer_count);
    for (uint32_t i = 0; i < row->layer_count; i++)
        sb->layers[i] = arena_copy(&sb->arena, row->layers[i]);
    sb->default_user = arena_copy(&sb->arena, row->default_user);
    sb->default_workdir = arena_copy(&sb->arena, row->default_workdir);
    sb->has_memory = row->has_memory;
    sb->was_silent = row->was_silent;
    sb->envs = row->envs.len ? str_copy(row->envs) : NULL;
    return metadata_read(sb, row->metadata, err);
}

struct str record_envs(const struct guestlink_env *envs, uint32_t count, struct arena *arena)
{
    struct buf text = buf_make(arena, (size_t)ESCAPED * LIMIT_ENV_BYTES + (size_t)ESCAPED * LIMIT_ENV_PAIRS);
    struct json_out json = json_out_to(&text);

    json_out_object(&json, NULL);
    for (uint32_t i = 0; i < count; i++)
        json_out_pair(&json, envs[i].name, envs[i].value);
    json_out_end(&json);
    return buf_str(&text);
}

bool record_read_envs(struct str text, struct arena *arena, struct guestlink_env **out, uint32_t *out_count,
                      struct err *err)
{
    auto_json json_t *object = json_parse_object(text, err);
    uint32_t count = 0;
    const char *name;
    json_t *value;

    if (!object)
        return err_wrap(err, "read the environment");
    struct guestlink_env *envs = ARENA_ARRAY(arena, struct guestlink_env, json_object_size(object));
    json_object_foreach(object, name, value)
    {
        envs[count++] = (struct guestlink_env){ arena_copy(arena, str_from(name)), arena_copy(arena, json_str(value)) };
    }
    *out = envs;
    *out_count = count;
    return true;
}

/* ---- events ---- */

static struct event_row event_of(const struct sandbox *sb, struct str type, struct str data)
{
    return (struct event_row){
        .type = type,
        .sandbox_id = str_from(sb->id),
        .team_id = sb->team_id,
        .template_id = sb->template_id,
        .at_us = clock_wall_us(),
        .data = data,
    };
}

struct event_row record_created(const struct sandbox *sb, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_CREATED], buf_str(&data));
}

struct event_row record_updated(const struct sandbox *sb, int64_t deadline_us, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);
    char time[CLOCK_TEXT_BYTES];

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    json_out_str(&json, "set_timeout", str_from(clock_text(deadline_us, time)));
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_UPDATED], buf_str(&data));
}

struct event_row record_network(const struct sandbox *sb, const struct net_policy *network, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    json_out_object(&json, "set_network");
    json_out_bool(&json, "allow_internet_access", network->internet);
    json_out_int(&json, "allow_out", (int64_t)network->allow_count + network->name_count);
    json_out_int(&json, "deny_out", network->deny_count);
    json_out_int(&json, "rules", network->transform_count);
    if (network->has_dns)
        json_out_int(&json, "dns_servers", network->dns_count);
    json_out_bool(&json, "egress_proxy", network->proxy.host.len > 0);
    if (network->proxy.host.len) /* no username: it can be a secret, too */
        json_out_str(&json, "egress_proxy_host", network->proxy.host);
    json_out_end(&json);
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_UPDATED], buf_str(&data));
}

struct event_row record_refused(const struct sandbox *sb, const struct sandbox_refusal *list, uint32_t count,
                                uint32_t total, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL); /* without the metadata: the guest decides how many of these there are */
    json_out_int(&json, "refused_count", total);
    json_out_array(&json, "refused");
    for (uint32_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        json_out_str(&json, "rule", list[i].rule);
        json_out_str(&json, "destination", list[i].destination);
        json_out_int(&json, "count", list[i].count);
        json_out_str(&json, "message", list[i].text);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_REFUSED], buf_str(&data));
}

static void execution_write(struct json_out *json, const struct sandbox *sb)
{
    char time[CLOCK_TEXT_BYTES];

    json_out_object(json, "execution");
    json_out_str(json, "started_at", str_from(clock_text(sb->started_us, time)));
    json_out_int(json, "vcpu_count", sb->cpu_count);
    json_out_int(json, "memory_mb", sb->memory_mb);
    json_out_int(json, "execution_time", (clock_wall_us() - sb->started_us) / 1000);
    json_out_end(json);
}

struct event_row record_killed(const struct sandbox *sb, const char *reason, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    execution_write(&json, sb);
    json_out_str(&json, "kill_reason", str_from(reason));
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_KILLED], buf_str(&data));
}

static struct str pause_mode(bool memory)
{
    return memory ? STR("full") : STR("filesystem");
}

struct event_row record_paused(const struct sandbox *sb, const char *reason, bool memory, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    execution_write(&json, sb);
    json_out_str(&json, "pause_reason", str_from(reason));
    json_out_str(&json, "pause_mode", pause_mode(memory));
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_PAUSED], buf_str(&data));
}

struct event_row record_resumed(const struct sandbox *sb, bool memory, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    json_out_str(&json, "resume_mode", pause_mode(memory));
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_RESUMED], buf_str(&data));
}

struct event_row record_checkpointed(const struct sandbox *sb, const struct kept *kept, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    json_out_str(&json, "snapshot_mode", pause_mode(kept->has_image));
    json_out_int(&json, "snapshot_bytes", (int64_t)(kept->layer_bytes + kept->image_bytes));
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_CHECKPOINTED], buf_str(&data));
}
