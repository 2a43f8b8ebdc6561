/*
 * http2_head.h - the fields of an HTTP/2 head, written down as the HTTP/1.1 head that means the same.
 *
 * wire/http1.c then reads that text. So one parser decides for both protocols what a request may look like, with the
 * same limits, and the edge forwards nothing that this parser has not accepted. Pure.
 */
#ifndef HTTP_HTTP2_HEAD_H
#define HTTP_HTTP2_HEAD_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "wire/http1.h"

/* The head that a connection is receiving: there is one at a time. */
struct http2_head {
    struct buf method, scheme, authority, path;
    struct buf lines;  /* the ordinary fields */
    struct buf host;   /* may be there instead of `authority`, or must be the same */
    struct buf cookie; /* clients send it in several fields (RFC 9113, 8.2.3) */
    bool has_authority, has_host, has_length;
    unsigned fields;
    size_t bytes;
    unsigned status; /* to answer a malformed head with; 0 while it is well-formed */
    const char *why;
};

void http2_head_begin(struct http2_head *head);
void http2_head_add(struct http2_head *head, struct str name, struct str value);
void http2_head_refuse(struct http2_head *head, unsigned status, const char *why); /* the first reason counts */
/* The head's text in the arena, and parsed. False: out->status is the status to answer with. */
bool http2_head_finish(struct http2_head *head, bool has_body, struct arena *arena, struct http_head *out,
                       struct err *err) must_use;
void http2_head_done(struct http2_head *head);

#endif
