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

static void refill(struct bucket *bucket, uint64_t most, uint64_t per_second, uint64_t now_ms)
{
    uint64_t more = (now_ms - bucket->since_ms) * per_second / 1000;

    if (more == 0)
        return;
    bucket->tokens = MIN(bucket->tokens + more, most);
    bucket->since_ms = now_ms;
}

static bool take(struct bucket *bucket)
{
    if (bucket->tokens == 0)
        return false;
    bucket->tokens--;
    return true;
}

void http2_flood_begin(struct http2_flood *flood, uint64_t now_ms)
{
    *flood = (struct http2_flood){
        .frames = { LIMIT_HTTP2_FRAMES, now_ms },
        .resets = { LIMIT_HTTP2_RESETS, now_ms },
        .skip = PREFACE_BYTES,
    };
}

/* Does a frame like this one bring anything by itself? HEADERS do when they begin a request, see http2_flood_useful(). */
static bool is_useful(unsigned type, unsigned flags, uint32_t size)
{
    bool may_be_empty = size == 0 || ((flags & FLAG_PADDED) && size <= PADDING_MOST);

    return type == TYPE_DATA && (!may_be_empty || (flags & FLAG_END_STREAM));
}

static const char *look_at_frame(struct http2_flood *flood)
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
    if (!is_useful(type, flags, size) && !take(&flood->frames))
        return "frames that bring nothing";
    return NULL;
}

const char *http2_flood_look(struct http2_flood *flood, struct str input, uint64_t now_ms)
{
    refill(&flood->frames, LIMIT_HTTP2_FRAMES, LIMIT_HTTP2_FRAMES_PER_S, now_ms);
    for (size_t at = 0; at < input.len;) {
        if (flood->skip) {
            size_t skipped = MIN((size_t)flood->skip, input.len - at);
            at += skipped;
            flood->skip -= (uint32_t)skipped;
            continue;
        }
        flood->head[flood->head_len++] = (unsigned char)input.at[at++];
        const char *why = flood->head_len == HEAD_BYTES ? look_at_frame(flood) : NULL;
        if (why)
            return why;
    }
    return NULL;
}

const char *http2_flood_reset(struct http2_flood *flood, bool is_trusted, uint64_t now_ms)
{
    unsigned times = is_trusted ? LIMIT_HTTP2_RESETS_TRUST : 1;

    refill(&flood->resets, LIMIT_HTTP2_RESETS * times, LIMIT_HTTP2_RESETS_PER_S * times, now_ms);
    return take(&flood->resets) ? NULL : "streams that end early";
}

void http2_flood_useful(struct http2_flood *flood)
{
    flood->frames.tokens = MIN(flood->frames.tokens + LIMIT_HTTP2_FRAMES_EACH, (uint64_t)LIMIT_HTTP2_FRAMES);
}

bool http2_flood_in_head(const struct http2_flood *flood)
{
    return flood->in_block || (flood->is_head && flood->skip > 0);
}
