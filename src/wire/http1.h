/*
 * http1.h - HTTP/1.1 as bytes: heads, framing, chunks. RFC 9112, read strictly.
 *
 * Requests can be smuggled when two programs read one message differently. So everything ambiguous is refused: bare LF,
 * space before a colon, folded lines, several or signed lengths, length together with chunks, chunked that is not last,
 * control characters, absolute or asterisk targets other than for OPTIONS.
 *
 * Pure: no I/O, no clock, no allocation. What is decoded borrows from the input.
 */
#ifndef WIRE_HTTP1_H
#define WIRE_HTTP1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

enum http_method {
    HTTP_GET,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_PATCH,
    HTTP_DELETE,
    HTTP_OPTIONS,
    HTTP_OTHER, /* a well-formed method that we do not know */
    HTTP_METHOD_COUNT,
};
extern const char *const http_method_name[HTTP_METHOD_COUNT];

struct http_header {
    struct str name, value; /* value without surrounding white space */
};

enum http_framing {
    HTTP_NO_BODY,
    HTTP_LENGTH,
    HTTP_CHUNKED,
    HTTP_UNTIL_CLOSE, /* responses only */
};

struct http_head {
    /* of a request */
    enum http_method method;
    struct str method_text;
    struct str target; /* as sent */
    struct str path;   /* raw, still percent-encoded, begins with "/"; or "*", with OPTIONS only */
    struct str query;  /* raw, without the "?" */
    /* of a response */
    unsigned status;
    struct str reason;
    /* of both */
    unsigned minor; /* HTTP/1.minor: 0 or 1 */
    size_t header_count;
    struct http_header headers[LIMIT_HEADERS];
    enum http_framing framing;
    uint64_t length; /* with HTTP_LENGTH */
    bool keep_alive;
    bool expect_continue;
    bool upgrade; /* Connection: upgrade together with an Upgrade header */
};

enum http_parse {
    HTTP_MORE, /* not all there yet */
    HTTP_DONE,
    HTTP_BAD, /* err says why: ERR_INVALID, or ERR_LIMIT for too long or too many */
};

/*
 * The head at the front of `in`. Feed it everything received so far; it is cheap to ask again. On HTTP_DONE *out_used
 * bytes belong to the head and *out_head borrows from them. Leading empty lines before a request line are skipped. On
 * HTTP_BAD out_head->status is the status to answer a request with: 400, 414, 417, 431, 501 or 505.
 */
enum http_parse http_parse_request(struct str in, struct http_head *out_head, size_t *out_used, struct err *err)
    must_use;
/* `to_head_request`: the response to a HEAD request has no body, whatever its headers say. */
enum http_parse http_parse_response(struct str in, bool to_head_request, struct http_head *out_head, size_t *out_used,
                                    struct err *err) must_use;

/* The head's bytes were copied from `from` to `to`: make it borrow from there. */
void http_head_move(struct http_head *head, const char *from, const char *to);

/* The first header of that name (any case), or NULL. */
const struct str *http_header(const struct http_head *head, struct str name);
/* Is `token` in a comma list such as Connection, Accept-Encoding without parameters? Any case. */
bool http_has_token(const struct http_head *head, struct str name, struct str token);

/* Chunked bodies. Zero it to start. */
struct http_chunks {
    int state;
    uint64_t left;
    unsigned line; /* bytes of the present line */
};
/*
 * Consume from *in. Returns HTTP_DONE at the end of the body (trailers skipped), HTTP_MORE when all of *in is consumed.
 * In between it returns HTTP_MORE with a non-empty *out_data to be used at once: call again while in->len > 0.
 */
enum http_parse http_chunks_next(struct http_chunks *chunks, struct str *in, struct str *out_data, struct err *err)
    must_use;
/* A body in any framing that a head can announce. */
struct http_body {
    enum http_framing framing;
    uint64_t left; /* with HTTP_LENGTH */
    struct http_chunks chunks;
};
struct http_body http_body_of(const struct http_head *head);
/*
 * The same for every framing: one piece at a time, HTTP_DONE with the last one. With HTTP_UNTIL_CLOSE the body ends
 * only with the connection.
 */
enum http_parse http_body_next(struct http_body *body, struct str *in, struct str *out_data, struct err *err) must_use;
/* "1a2b\r\n": the line before a chunk. Returns its length; the chunk's data is followed by "\r\n". */
enum { HTTP_CHUNK_LINE_BYTES = 20 };
size_t http_chunk_line(uint64_t size, char room[HTTP_CHUNK_LINE_BYTES]);
#define HTTP_LAST_CHUNK STR("0\r\n\r\n")

/* Writing heads. */
const char *http_reason(unsigned status);
void http_write_request_line(struct buf *out, struct str method, struct str target);
void http_write_status_line(struct buf *out, unsigned status);
/* Name and value are checked: a control character in either marks the buf as overflowed, so it is never sent. */
void http_write_header(struct buf *out, struct str name, struct str value);
void http_write_header_number(struct buf *out, struct str name, uint64_t value);
void http_write_head_end(struct buf *out);

/* Query strings: the next "name=value" of *rest, raw. */
bool http_query_next(struct str *rest, struct str *out_name, struct str *out_value);

#endif
