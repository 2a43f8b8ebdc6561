#include "egress/flows.h"

#include <string.h>

#include "base/pack.h"
#include "privsep/message.h"

static void pack_refusal(struct buf *out, const struct flows_refusal *refusal)
{
    pack_u8(out, refusal->why);
    buf_add(out, str_of(refusal->to.at, sizeof refusal->to.at));
    pack_u16(out, refusal->port);
    pack_str(out, refusal->name);
    pack_u32(out, refusal->count);
    pack_str(out, refusal->text);
}

void flows_pack(struct buf *out, const struct flows_record *record)
{
    message_pack_id(out, record->id);
    pack_u64(out, record->bytes_in);
    pack_u64(out, record->bytes_out);
    pack_u32(out, record->made);
    pack_u32(out, record->refused);
    pack_u32(out, record->open);
    pack_u32(out, record->refusal_count);
    for (uint32_t i = 0; i < record->refusal_count; i++)
        pack_refusal(out, &record->refusals[i]);
}

static void unpack_refusal(struct unpack *in, struct flows_refusal *out)
{
    out->why = unpack_u8(in);
    for (size_t i = 0; i < sizeof out->to.at; i++)
        out->to.at[i] = unpack_u8(in);
    out->port = unpack_u16(in);
    out->name = unpack_str(in, LIMIT_NET_NAME_BYTES);
    out->count = unpack_u32(in);
    out->text = unpack_str(in, LIMIT_FLOWS_TEXT_BYTES);
    if (out->why >= FLOWS_WHY_COUNT || net_rule_allows((enum net_rule)out->why))
        in->failed = true;
}

static void unpack_record(struct unpack *in, struct flows_record *out)
{
    message_unpack_id(in, out->id);
    out->bytes_in = unpack_u64(in);
    out->bytes_out = unpack_u64(in);
    out->made = unpack_u32(in);
    out->refused = unpack_u32(in);
    out->open = unpack_u32(in);
    out->refusal_count = unpack_count(in, LIMIT_FLOWS_REFUSALS);
    for (uint32_t i = 0; i < out->refusal_count; i++)
        unpack_refusal(in, &out->refusals[i]);
}

static bool walk(struct str payload, flows_each_fn *each, void *context, struct err *err)
{
    struct unpack in = unpack_from(payload);
    struct flows_record record;

    do {
        unpack_record(&in, &record);
        if (each && !in.failed)
            each(context, &record);
    } while (!in.failed && in.rest.len);
    return unpack_done(&in, err) || err_wrap(err, "flows");
}

bool flows_unpack(struct str payload, flows_each_fn *each, void *context, struct err *err)
{
    return walk(payload, NULL, NULL, err) && walk(payload, each, context, err);
}
