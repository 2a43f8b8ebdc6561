/*
 * A sandbox as the store keeps it. Metadata is one JSON object, so that a row is one row; an event's data is JSON in
 * the shape that clients of the lifecycle API will read.
 */
#include "base/clock.h"
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
        .internet = (int)sb->internet,
        .key_id = str_from(sb->key_id),
        .is_private = sb->traffic_token.len > 0,
        .mask_host = sb->mask_host,
        .open_code = sb->open_code,
        .started_us = sb->started_us,
        .deadline_us = sb->deadline_us,
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

bool record_adopt(struct sandbox *sb, const struct sandbox_row *row, struct err *err)
{
    sb->team_id = arena_copy(&sb->arena, row->team_id);
    sb->template_id = arena_copy(&sb->arena, row->template_id);
    sb->alias = arena_copy(&sb->arena, row->alias);
    sb->guestd_version = arena_copy(&sb->arena, row->guestd_version);
    sb->cpu_count = row->cpu_count;
    sb->memory_mb = row->memory_mb;
    sb->disk_mb = row->disk_mb;
    sb->internet = row->internet == YES ? YES : row->internet == NO ? NO : UNSET;
    sandbox_set_key(sb, row->key_id);
    sb->mask_host = arena_copy(&sb->arena, row->mask_host);
    sb->open_code = row->open_code;
    if (row->is_private)
        sandbox_make_private(sb);
    sb->started_us = row->started_us;
    sb->revision = row->revision;
    return metadata_read(sb, row->metadata, err);
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
    /* Older SDKs set it in every create, so it cannot be an error; the event has a notice instead. */
    if (sb->internet == YES)
        json_out_str(&json, "notice",
                     STR("allow_internet_access is true, but this version of Cloister gives sandboxes no network"));
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

struct event_row record_killed(const struct sandbox *sb, const char *reason, struct arena *arena)
{
    struct buf data = buf_make(arena, SIZE_MAX / 2);
    struct json_out json = json_out_to(&data);
    char time[CLOCK_TEXT_BYTES];

    json_out_object(&json, NULL);
    metadata_write(&json, "sandbox_metadata", sb);
    json_out_object(&json, "execution");
    json_out_str(&json, "started_at", str_from(clock_text(sb->started_us, time)));
    json_out_int(&json, "vcpu_count", sb->cpu_count);
    json_out_int(&json, "memory_mb", sb->memory_mb);
    json_out_int(&json, "execution_time", (clock_wall_us() - sb->started_us) / 1000);
    json_out_end(&json);
    json_out_str(&json, "kill_reason", str_from(reason));
    json_out_end(&json);
    return event_of(sb, event_type_name[EVENT_KILLED], buf_str(&data));
}
