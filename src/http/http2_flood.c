#include "http/http2_flood.h"

#include "base/limits.h"

enum {
    PREFACE_BYTES = 24, /* "PRI * HTTP/2.0…", which nghttp2 checks */
    HEAD_BYTES = 9,
    TYPE_DATA = 0,
    TYPE_HEADERS = 1,
    TYPE_CONTINUATION = 9,
    FLAG_END_STREAM = 1,
    FLAG_END_HEADERS = 4,
    FLAG_PADDED = 8,
    PADDING_MOST = 256, /* with its length */
};

static const struct quota_rule frames_rule = { .per_s = LIMIT_HTTP2_FRAMES_PER_S, .burst = LIMIT_HTTP2_FRAMES };

void http2_flood_begin(struct http2_flood *flood)
{
    *flood = (struct http2_flood){ .skip = PREFACE_BYTES };
}

/* Does a frame like this one bring anything by itself? HEADERS do when they begin a request, see http2_flood_useful(). */
static bool is_useful(unsigned type, unsigned flags, uint32_t size)
{
    bool may_be_empty = size == 0 || ((flags & FLAG_PADDED) && size <= PADDING_MOST);

    return type == TYPE_DATA && (!may_be_empty || (flags & FLAG_END_STREAM));
}

static const char *look_at_frame(struct http2_flood *flood, uint64_t now_ms)
{
    const unsigned char *head = flood->head;
    uint32_t size = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
    unsigned type = head[3], flags = head[4];

    flood->skip = size;
    flood->head_len = 0;
    flood->is_head = type == TYPE_HEADERS || type == TYPE_CONTINUATION;
    if (flood->is_head)
        flood->in_block = !(flags & FLAG_END_HEADERS);
    flood->continuations = type == TYPE_CONTINUATION ? flood->continuations + 1 : 0;
    if (flood->continuations > LIMIT_HTTP2_CONTINUATIONS)
        return "CONTINUATION frames";
    if (!is_useful(type, flags, size) && !quota_take(&frames_rule, &flood->frames, now_ms, NULL))
        return "frames that bring nothing";
    return NULL;
}

const char *http2_flood_look(struct http2_flood *flood, struct str input, uint64_t now_ms)
{
    for (size_t at = 0; at < input.len;) {
        if (flood->skip) {
            size_t skipped = MIN((size_t)flood->skip, input.len - at);
            at += skipped;
            flood->skip -= (uint32_t)skipped;
            continue;
        }
        flood->head[flood->head_len++] = (unsigned char)input.at[at++];
        const char *why = flood->head_len == HEAD_BYTES ? look_at_frame(flood, now_ms) : NULL;
        if (why)
            return why;
    }
    return NULL;
}

const char *http2_flood_reset(struct http2_flood *flood, bool is_trusted, uint64_t now_ms)
{
    unsigned times = is_trusted ? LIMIT_HTTP2_RESETS_TRUST : 1;
    const struct quota_rule rule = { .per_s = LIMIT_HTTP2_RESETS_PER_S * times, .burst = LIMIT_HTTP2_RESETS * times };

    return quota_take(&rule, &flood->resets, now_ms, NULL) ? NULL : "streams that end early";
}

void http2_flood_useful(struct http2_flood *flood)
{
    quota_give(&flood->frames, LIMIT_HTTP2_FRAMES_EACH);
}

bool http2_flood_in_head(const struct http2_flood *flood)
{
    return flood->in_block || (flood->is_head && flood->skip > 0);
}
