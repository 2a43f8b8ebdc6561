#include "wire/guestlink.h"

#include "base/encode.h"
#include "base/pack.h"

/* Each message is packed behind four bytes that are filled in once its length is known. */
static size_t begin(struct buf *out, enum guestlink_type type)
{
    size_t at = out->len;

    pack_u32(out, 0);
    pack_u8(out, (uint8_t)type);
    return at;
}

static void end(struct buf *out, size_t at)
{
    size_t length = out->len - at - GUESTLINK_HEADER_BYTES;

    if (out->overflowed)
        return;
    if (length > LIMIT_GUESTLINK_BYTES) {
        out->overflowed = true;
        return;
    }
    for (size_t i = 0; i < GUESTLINK_HEADER_BYTES; i++)
        out->data[at + i] = (char)(length >> (8 * (GUESTLINK_HEADER_BYTES - 1 - i)));
}

static void pack_authority(struct buf *out, const struct guestlink_authority *authority)
{
    pack_str(out, authority->pem);
    pack_u32(out, authority->hash);
}

static void unpack_authority(struct unpack *in, struct guestlink_authority *out)
{
    out->pem = unpack_str(in, LIMIT_AUTHORITY_BYTES);
    out->hash = unpack_u32(in);
}

static void pack_network(struct buf *out, const struct guestlink_network *network)
{
    pack_u8(out, network->reach);
    if (network->reach == GUESTLINK_INSIDE)
        pack_str(out, network->inside);
    pack_authority(out, &network->authority);
}

static void pack_envs(struct buf *out, const struct guestlink_env *envs, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        pack_str(out, envs[i].name);
        pack_str(out, envs[i].value);
    }
}

void guestlink_write_setup(struct buf *out, const struct guestlink_setup *setup)
{
    size_t at = begin(out, GUESTLINK_SETUP);

    pack_str(out, setup->sandbox_id);
    pack_str(out, setup->template_id);
    pack_str(out, setup->access_token);
    pack_bool(out, setup->open_code);
    pack_str(out, setup->default_user);
    pack_str(out, setup->default_workdir);
    pack_network(out, &setup->network);
    pack_envs(out, setup->envs, setup->env_count);
    end(out, at);
}

void guestlink_write_ready(struct buf *out, const struct guestlink_ready *ready)
{
    size_t at = begin(out, GUESTLINK_READY);

    pack_envs(out, ready->envs, ready->env_count);
    end(out, at);
}

void guestlink_write_simple(struct buf *out, enum guestlink_type type)
{
    end(out, begin(out, type));
}

void guestlink_write_network(struct buf *out, const struct guestlink_network *network)
{
    size_t at = begin(out, GUESTLINK_NETWORK);

    pack_network(out, network);
    end(out, at);
}

void guestlink_write_log(struct buf *out, const struct guestlink_log *log)
{
    size_t at = begin(out, GUESTLINK_LOG);

    pack_u32(out, log->dropped);
    pack_u32(out, log->line_count);
    for (uint32_t i = 0; i < log->line_count; i++) {
        const struct guestlink_log_line *line = &log->lines[i];
        pack_u8(out, (uint8_t)line->kind);
        pack_u64(out, (uint64_t)line->at_us);
        pack_u32(out, line->pid);
        pack_u32(out, (uint32_t)line->exit_code);
        pack_u64(out, line->output_bytes);
        pack_str(out, line->text);
    }
    end(out, at);
}

static void pack_err(struct buf *out, const struct err *err)
{
    pack_u8(out, (uint8_t)err->kind);
    pack_u32(out, (uint32_t)err->sys);
    pack_str(out, str_from(err->message));
    pack_str(out, str_from(err->trail));
}

void guestlink_write_error(struct buf *out, const struct err *err)
{
    size_t at = begin(out, GUESTLINK_ERROR);

    pack_err(out, err);
    end(out, at);
}

void guestlink_write_warmed(struct buf *out, const struct err *err)
{
    size_t at = begin(out, GUESTLINK_WARMED);

    pack_bool(out, !err);
    if (err)
        pack_err(out, err);
    end(out, at);
}

bool guestlink_body_length(const unsigned char header[GUESTLINK_HEADER_BYTES], uint32_t *out_length, struct err *err)
{
    uint32_t length = (uint32_t)header[0] << 24 | (uint32_t)header[1] << 16 | (uint32_t)header[2] << 8 | header[3];

    if (length == 0 || length > LIMIT_GUESTLINK_BYTES)
        return err_set(err, ERR_INVALID, "a guestlink message of %u bytes", length);
    *out_length = length;
    return true;
}

/* A name that a process can be given: not empty, no "=", no zero byte. */
static bool env_name_ok(struct str name)
{
    return name.len && !str_has_char(name, '=') && !str_has_char(name, '\0');
}

/* Host names with a newline each. They become lines of configuration files, where other characters could mean more. */
static bool are_names(struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (!char_is_alnum(c) && c != '.' && c != '-' && c != '_' && c != '\n')
            return false;
    }
    return str_ends(text, STR("\n"));
}

static void unpack_network(struct unpack *in, struct guestlink_network *network)
{
    uint8_t reach = unpack_u8(in);

    network->reach = reach;
    network->inside = reach == GUESTLINK_INSIDE ? unpack_str(in, LIMIT_INSIDE_BYTES) : STR("");
    unpack_authority(in, &network->authority);
    if (reach >= GUESTLINK_REACH_COUNT || (reach == GUESTLINK_INSIDE && !are_names(network->inside)))
        in->failed = true;
}

static bool read_envs(struct unpack *in, struct arena *arena, struct guestlink_env **out, uint32_t *out_count,
                      struct err *err)
{
    uint32_t count = unpack_count(in, LIMIT_ENV_PAIRS);
    struct guestlink_env *envs = ARENA_ARRAY(arena, struct guestlink_env, count);
    size_t bytes = 0;

    for (uint32_t i = 0; i < count && !in->failed; i++) {
        struct guestlink_env *env = &envs[i];
        env->name = unpack_str(in, LIMIT_ENV_BYTES);
        env->value = unpack_str(in, LIMIT_ENV_BYTES);
        bytes += env->name.len + env->value.len;
        if (!in->failed && (!env_name_ok(env->name) || str_has_char(env->value, '\0')))
            return err_set(err, ERR_INVALID, "a malformed environment variable");
        if (bytes > LIMIT_ENV_BYTES)
            return err_set(err, ERR_LIMIT, "more than %d bytes of environment", LIMIT_ENV_BYTES);
    }
    *out = envs;
    *out_count = count;
    return true;
}

static bool read_setup(struct unpack *in, struct arena *arena, struct guestlink_setup *setup, struct err *err)
{
    setup->sandbox_id = unpack_str(in, LIMIT_ID_BYTES - 1);
    setup->template_id = unpack_str(in, LIMIT_ID_BYTES - 1);
    setup->access_token = unpack_str(in, SECRET_MAX_BYTES);
    setup->open_code = unpack_bool(in);
    setup->default_user = unpack_str(in, LIMIT_NAME_BYTES);
    setup->default_workdir = unpack_str(in, LIMIT_PATH_BYTES - 1);
    unpack_network(in, &setup->network);
    return read_envs(in, arena, &setup->envs, &setup->env_count, err);
}

static bool read_log(struct unpack *in, struct arena *arena, struct guestlink_log *log, struct err *err)
{
    log->dropped = unpack_u32(in);
    log->line_count = unpack_count(in, LIMIT_LOG_BATCH);
    log->lines = ARENA_ARRAY(arena, struct guestlink_log_line, log->line_count);
    for (uint32_t i = 0; i < log->line_count && !in->failed; i++) {
        struct guestlink_log_line *line = &log->lines[i];
        uint8_t kind = unpack_u8(in);
        line->kind = kind;
        line->at_us = (int64_t)unpack_u64(in);
        line->pid = unpack_u32(in);
        line->exit_code = (int32_t)unpack_u32(in);
        line->output_bytes = unpack_u64(in);
        line->text = unpack_str(in, LIMIT_LOG_TEXT_BYTES);
        if (!in->failed && (kind == 0 || kind >= GUESTLINK_LOG_KIND_END || line->at_us < 0 || !utf8_valid(line->text)))
            return err_set(err, ERR_INVALID, "a malformed log line");
    }
    return true;
}

static bool read_err(struct unpack *in, struct err *out, struct err *err)
{
    uint8_t kind = unpack_u8(in);

    if (kind == ERR_NONE || kind >= ERR_KIND_COUNT)
        return err_set(err, ERR_INVALID, "a guestlink error of unknown kind %u", kind);
    out->kind = kind;
    out->sys = (int)unpack_u32(in);
    unpack_text(in, out->message, sizeof out->message);
    unpack_text(in, out->trail, sizeof out->trail);
    return true;
}

bool guestlink_read(struct str body, struct arena *arena, struct guestlink_message *out, struct err *err)
{
    struct unpack in = unpack_from(body);
    struct guestlink_message message = { .type = unpack_u8(&in) };

    switch (message.type) {
    case GUESTLINK_SETUP:
        if (!read_setup(&in, arena, &message.setup, err))
            return false;
        break;
    case GUESTLINK_PING:
    case GUESTLINK_LISTEN:
    case GUESTLINK_TAKEN:
    case GUESTLINK_PREPARE:
    case GUESTLINK_RESUMED:
    case GUESTLINK_WARM:
    case GUESTLINK_OK:
        break;
    case GUESTLINK_NETWORK:
        unpack_network(&in, &message.network);
        break;
    case GUESTLINK_READY:
        if (!read_envs(&in, arena, &message.ready.envs, &message.ready.env_count, err))
            return false;
        break;
    case GUESTLINK_LOG:
        if (!read_log(&in, arena, &message.log, err))
            return false;
        break;
    case GUESTLINK_ERROR:
        if (!read_err(&in, &message.error, err))
            return false;
        break;
    case GUESTLINK_WARMED:
        if (!unpack_bool(&in) && !read_err(&in, &message.error, err))
            return false;
        break;
    default:
        return err_set(err, ERR_INVALID, "a guestlink message of unknown type %u", (unsigned)message.type);
    }
    if (!unpack_done(&in, err))
        return false;
    *out = message;
    return true;
}
