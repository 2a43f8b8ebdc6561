#include "isolation/stats.h"

#include <string.h>

#include "privsep/message.h"

void stats_pack_ask(struct buf *out, const struct held *which, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++)
        message_pack_id(out, which[i].id);
}

void stats_unpack_ask(struct unpack *in, struct held out_which[LIMIT_STATS], uint32_t *out_count)
{
    uint32_t count = unpack_count(in, LIMIT_STATS);

    if (count == 0)
        in->failed = true;
    for (uint32_t i = 0; i < count; i++)
        message_unpack_id(in, out_which[i].id);
    *out_count = in->failed ? 0 : count;
}

void stats_pack(struct buf *out, const struct stats *stats, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        message_pack_id(out, stats[i].id);
        pack_u64(out, stats[i].cpu_us);
        pack_u64(out, stats[i].memory_used_bytes);
        pack_u64(out, stats[i].memory_cache_bytes);
        pack_u64(out, stats[i].memory_limit_bytes);
        pack_u64(out, stats[i].disk_used_bytes);
        pack_u64(out, stats[i].disk_total_bytes);
    }
}

void stats_unpack(struct unpack *in, const struct held *asked, uint32_t asked_count, struct stats out[LIMIT_STATS],
                  uint32_t *out_count)
{
    uint32_t count = unpack_count(in, asked_count < LIMIT_STATS ? asked_count : LIMIT_STATS), next = 0;

    for (uint32_t i = 0; i < count; i++) {
        message_unpack_id(in, out[i].id);
        /* They come in the order of the request, some left out; so this finds one that comes twice. */
        while (next < asked_count && strcmp(asked[next].id, out[i].id) != 0)
            next++;
        if (next++ >= asked_count)
            in->failed = true;
        out[i].cpu_us = unpack_u64(in);
        out[i].memory_used_bytes = unpack_u64(in);
        out[i].memory_cache_bytes = unpack_u64(in);
        out[i].memory_limit_bytes = unpack_u64(in);
        out[i].disk_used_bytes = unpack_u64(in);
        out[i].disk_total_bytes = unpack_u64(in);
    }
    *out_count = in->failed ? 0 : count;
}
