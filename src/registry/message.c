#include "registry/message.h"

#include <string.h>

#include "privsep/message.h"

void pull_ask_pack(struct buf *out, const struct pull_ask *ask)
{
    const struct pull_login *login = &ask->login;

    pack_u8(out, PULL_ASK);
    pack_str(out, ask->image);
    pack_bool(out, ask->is_archive);
    pack_str(out, ask->team_id);
    pack_bool(out, ask->only_digest);
    pack_str(out, str_from(ask->architecture));
    pack_u8(out, (uint8_t)login->kind);
    pack_str(out, login->user);
    pack_str(out, login->password);
    pack_str(out, login->key_id);
    pack_str(out, login->key);
    pack_str(out, login->region);
    pack_str(out, login->account);
}

bool pull_ask_unpack(struct str bytes, struct pull_ask *out, struct err *err)
{
    struct unpack in = unpack_from(bytes);
    struct pull_ask got = { 0 };
    uint8_t type = unpack_u8(&in);

    got.image = unpack_str(&in, LIMIT_REFERENCE_BYTES);
    got.is_archive = unpack_bool(&in);
    got.team_id = unpack_str(&in, LIMIT_PULL_TEAM_BYTES);
    got.only_digest = unpack_bool(&in);
    unpack_text(&in, got.architecture, sizeof got.architecture);
    uint8_t kind = unpack_u8(&in);
    got.login.user = unpack_str(&in, LIMIT_LOGIN_BYTES);
    got.login.password = unpack_str(&in, LIMIT_LOGIN_BYTES);
    got.login.key_id = unpack_str(&in, LIMIT_LOGIN_BYTES);
    got.login.key = unpack_str(&in, LIMIT_LOGIN_BYTES);
    got.login.region = unpack_str(&in, LIMIT_LOGIN_BYTES);
    got.login.account = unpack_str(&in, LIMIT_LOGIN_BYTES);
    if (type != PULL_ASK || kind > PULL_LOGIN_GCP)
        in.failed = true;
    if (!unpack_done(&in, err))
        return err_wrap(err, "pull");
    got.login.kind = (enum pull_login_kind)kind;
    *out = got;
    return true;
}

void pull_said_pack(struct buf *out, struct str line)
{
    pack_u8(out, PULL_SAID);
    pack_str(out, str_of(line.at, MIN(line.len, (size_t)LIMIT_BUILD_LINE_BYTES)));
}

void pull_chains_pack(struct buf *out, const struct pull_layer *layers, uint32_t count)
{
    pack_u8(out, PULL_CHAINS);
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        pack_str(out, str_from(layers[i].diff_hex));
        pack_str(out, str_from(layers[i].chain_hex));
        pack_u64(out, layers[i].size);
    }
}

void pull_layer_pack(struct buf *out, uint32_t layer)
{
    pack_u8(out, PULL_LAYER);
    pack_u32(out, layer);
}

void pull_done_pack(struct buf *out, const struct pull_done *done)
{
    pack_u8(out, PULL_DONE);
    pack_str(out, str_from(done->reference_hex));
    pack_str(out, str_from(done->digest_hex));
    pack_u32(out, done->env_count);
    for (uint32_t i = 0; i < done->env_count; i++)
        pack_str(out, done->envs[i]);
}

void pull_failed_pack(struct buf *out, const struct err *err)
{
    pack_u8(out, PULL_FAILED);
    message_pack_err(out, err);
}

void pull_have_pack(struct buf *out, const bool *have, uint32_t count)
{
    pack_u8(out, PULL_HAVE);
    for (uint32_t i = 0; i < count; i++)
        pack_bool(out, have[i]);
}

bool pull_have_unpack(struct str bytes, bool *out, uint32_t count, struct err *err)
{
    struct unpack in = unpack_from(bytes);

    if (unpack_u8(&in) != PULL_HAVE)
        in.failed = true;
    for (uint32_t i = 0; i < count; i++)
        out[i] = unpack_bool(&in);
    return unpack_done(&in, err);
}

void pull_stock_pack(struct buf *out, bool removes)
{
    pack_u8(out, PULL_STOCK);
    pack_bool(out, removes);
}

bool pull_stock_unpack(struct str bytes, bool *out_removes, struct err *err)
{
    struct unpack in = unpack_from(bytes);

    if (unpack_u8(&in) != PULL_STOCK)
        in.failed = true;
    bool removes = unpack_bool(&in);
    if (!unpack_done(&in, err))
        return false;
    *out_removes = removes;
    return true;
}

void pull_stocked_pack(struct buf *out, uint64_t files, uint64_t bytes)
{
    pack_u8(out, PULL_STOCKED);
    pack_u64(out, files);
    pack_u64(out, bytes);
}

static void hex_unpack(struct unpack *in, char out[DIGEST_HEX_BYTES], bool may_be_empty)
{
    char text[DIGEST_HEX_BYTES + 8] = "sha256:";

    unpack_text(in, text + 7, DIGEST_HEX_BYTES);
    if (may_be_empty && text[7] == '\0')
        out[0] = '\0';
    else if (!digest_parse(str_from(text), out))
        in->failed = true;
}

static void chains_unpack(struct unpack *in, struct arena *arena, struct pull_told *out)
{
    out->layer_count = unpack_count(in, LIMIT_IMAGE_LAYERS);
    out->layers = ARENA_ARRAY(arena, struct pull_layer, out->layer_count);
    for (uint32_t i = 0; i < out->layer_count && !in->failed; i++) {
        hex_unpack(in, out->layers[i].diff_hex, false);
        hex_unpack(in, out->layers[i].chain_hex, false);
        out->layers[i].size = unpack_u64(in);
    }
    if (out->layer_count == 0)
        in->failed = true;
}

static void done_unpack(struct unpack *in, struct arena *arena, struct pull_done *out)
{
    hex_unpack(in, out->reference_hex, false);
    hex_unpack(in, out->digest_hex, true);
    out->env_count = unpack_count(in, LIMIT_IMAGE_ENVS);
    struct str *envs = ARENA_ARRAY(arena, struct str, out->env_count);
    for (uint32_t i = 0; i < out->env_count; i++)
        envs[i] = unpack_str(in, LIMIT_IMAGE_ENV_BYTES);
    out->envs = envs;
}

bool pull_told_unpack(struct str bytes, struct arena *arena, struct pull_told *out, struct err *err)
{
    struct unpack in = unpack_from(bytes);

    *out = (struct pull_told){ .type = unpack_u8(&in) };
    switch ((int)out->type) {
    case PULL_SAID:
        out->line = unpack_str(&in, LIMIT_BUILD_LINE_BYTES);
        break;
    case PULL_CHAINS:
        chains_unpack(&in, arena, out);
        break;
    case PULL_LAYER:
        out->layer = unpack_u32(&in);
        if (out->layer >= LIMIT_IMAGE_LAYERS)
            in.failed = true;
        break;
    case PULL_DONE:
        done_unpack(&in, arena, &out->done);
        break;
    case PULL_FAILED:
        message_unpack_err(&in, &out->err);
        break;
    case PULL_STOCKED:
        out->files = unpack_u64(&in);
        out->bytes = unpack_u64(&in);
        break;
    default:
        in.failed = true;
    }
    return unpack_done(&in, err);
}
