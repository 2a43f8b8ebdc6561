/*
 * http2_flood.h - notices a client that keeps us busy with frames that lead to nothing.
 *
 * Two buckets of tokens. Every frame without a use of its own (PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM,
 * empty DATA, unknown types…) takes a token of the first; a request and each DATA frame that we send put some back,
 * because clients answer those with such frames. Every stream that ends before its answer is complete takes a token of
 * the second ("rapid reset", whoever sends the reset). nghttp2 has limits of its own for some of this, which differ
 * between its versions.
 *
 * Pure: reads the heads of frames (RFC 9113, 4.1) and skips the rest.
 */
#ifndef HTTP_HTTP2_FLOOD_H
#define HTTP_HTTP2_FLOOD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/quota.h"
#include "base/str.h"

struct http2_flood {
    struct quota frames, resets;
    uint32_t skip; /* of the preface, or of the present frame's payload */
    unsigned char head[9];
    unsigned head_len;      /* bytes of the next frame's head that are there */
    bool in_block;          /* HEADERS has come without END_HEADERS: CONTINUATION frames follow */
    bool is_head;           /* `skip` is of HEADERS or CONTINUATION */
    unsigned continuations; /* of this block */
};

void http2_flood_begin(struct http2_flood *flood);
/* The input, before it is used. NULL, or what there was too much of. */
const char *http2_flood_look(struct http2_flood *flood, struct str input, uint64_t now_ms) must_use;
/* A stream ended early. NULL, or what there was too much of. */
const char *http2_flood_reset(struct http2_flood *flood, bool is_trusted, uint64_t now_ms) must_use;
void http2_flood_useful(struct http2_flood *flood);        /* a request, or a DATA frame of ours */
bool http2_flood_in_head(const struct http2_flood *flood); /* part of a request's head is there */

#endif
