#include "http/http2_head.h"

#include "base/header_kind.h"
#include "base/limits.h"
#include "base/mem.h"

/* A byte that could end a line, or a part of the first line, of the text that we write. */
static bool is_clean(struct str s, bool may_have_space)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.at[i];
        if (c < 0x20 ? !(may_have_space && c == '\t') : c == 0x7f || (c == ' ' && !may_have_space))
            return false;
    }
    return true;
}

static void start_over(struct buf *buf)
{
    buf_done(buf);
    *buf = buf_make(NULL, LIMIT_HEAD_BYTES);
}

void http2_head_done(struct http2_head *head)
{
    struct buf *bufs[] = { &head->method, &head->scheme, &head->authority, &head->path,
                           &head->lines,  &head->host,   &head->cookie };

    for (size_t i = 0; i < COUNT_OF(bufs); i++)
        start_over(bufs[i]);
}

void http2_head_begin(struct http2_head *head)
{
    http2_head_done(head);
    head->has_authority = head->has_host = head->has_length = false;
    head->fields = head->status = 0;
    head->bytes = 0;
    head->why = NULL;
}

void http2_head_refuse(struct http2_head *head, unsigned status, const char *why)
{
    if (head->status)
        return;
    head->status = status;
    head->why = why;
}

static void set_once(struct http2_head *head, struct buf *buf, struct str value)
{
    if (buf->len)
        http2_head_refuse(head, 400, "a pseudo-header field is given twice");
    buf_add(buf, value);
}

static void add_pseudo(struct http2_head *head, struct str name, struct str value)
{
    if (!is_clean(value, false)) {
        http2_head_refuse(head, 400, "a pseudo-header field has a character that it must not have");
    } else if (str_eq(name, STR(":method"))) {
        set_once(head, &head->method, value);
    } else if (str_eq(name, STR(":scheme"))) {
        set_once(head, &head->scheme, value);
    } else if (str_eq(name, STR(":path"))) {
        set_once(head, &head->path, value);
    } else if (str_eq(name, STR(":authority"))) {
        set_once(head, &head->authority, value);
        head->has_authority = true;
    } else {
        http2_head_refuse(head, 400, "an unknown pseudo-header field");
    }
}

void http2_head_add(struct http2_head *head, struct str name, struct str value)
{
    head->fields++;
    head->bytes += name.len + value.len;
    if (head->bytes > LIMIT_HEAD_BYTES) {
        http2_head_refuse(head, 431, "the head is too long");
        http2_head_done(head); /* nothing of it is needed any more */
    } else if (str_starts(name, STR(":"))) {
        add_pseudo(head, name, value);
    } else if (!is_clean(name, false) || str_has_char(name, ':') || !is_clean(value, true)) {
        http2_head_refuse(head, 400, "a header has a character that it must not have");
    } else if (header_is(name, HEADER_HTTP2_REFUSED)) {
        /* In the text that we write they would change its framing. */
        http2_head_refuse(head, 400, "a header that HTTP/2 does not have");
    } else if (str_eq_nocase(name, STR("host"))) {
        if (head->has_host)
            http2_head_refuse(head, 400, "Host is given more than once");
        head->has_host = true;
        buf_add(&head->host, value);
    } else if (str_eq_nocase(name, STR("cookie"))) {
        if (head->cookie.len)
            buf_add(&head->cookie, STR("; "));
        buf_add(&head->cookie, value);
    } else {
        head->has_length |= str_eq_nocase(name, STR("content-length"));
        http_write_header(&head->lines, name, value);
    }
}

static bool check(struct http2_head *head, struct str host)
{
    struct str scheme = buf_str(&head->scheme);

    if (str_eq(buf_str(&head->method), STR("CONNECT")))
        http2_head_refuse(head, 400, "CONNECT is not possible here");
    if (!str_eq(scheme, STR("https")) && !str_eq(scheme, STR("http")))
        http2_head_refuse(head, 400, "the scheme is neither https nor http");
    if (head->has_host && !str_eq_nocase(buf_str(&head->host), host))
        http2_head_refuse(head, 400, "Host and :authority differ");
    if (head->path.overflowed || head->path.len > LIMIT_TARGET_BYTES)
        http2_head_refuse(head, 414, "the path and query are too long");
    if (head->lines.overflowed || head->cookie.overflowed)
        http2_head_refuse(head, 431, "the head is too long");
    return head->status == 0;
}

static bool refused(struct http_head *out, unsigned status, const char *why, struct err *err)
{
    out->header_count = 0;
    out->framing = HTTP_NO_BODY;
    out->expect_continue = false;
    out->status = status;
    return err_set(err, status == 414 || status == 431 ? ERR_LIMIT : ERR_INVALID, "%s", why);
}

bool http2_head_finish(struct http2_head *head, bool has_body, struct arena *arena, struct http_head *out,
                       struct err *err)
{
    struct str host = head->has_authority ? buf_str(&head->authority) : buf_str(&head->host);
    struct buf text = buf_make(arena, LIMIT_HEAD_BYTES);
    size_t used;

    out->method = str_eq(buf_str(&head->method), STR("HEAD")) ? HTTP_HEAD : HTTP_OTHER; /* for a refusal */
    if (!check(head, host))
        return refused(out, head->status, head->why, err);
    http_write_request_line(&text, buf_str(&head->method), buf_str(&head->path));
    if (text.overflowed)
        return refused(out, 400, "the method or the path has a character that it must not have", err);
    if (head->has_authority || head->has_host)
        http_write_header(&text, STR("host"), host);
    buf_add(&text, buf_str(&head->lines));
    if (head->cookie.len)
        http_write_header(&text, STR("cookie"), buf_str(&head->cookie));
    if (has_body && !head->has_length) /* HTTP/1.1 has no other way to say it */
        http_write_header(&text, STR("transfer-encoding"), STR("chunked"));
    http_write_head_end(&text);
    if (text.overflowed)
        return refused(out, 431, "the head is too long", err);
    switch (http_parse_request(buf_str(&text), out, &used, err)) {
    case HTTP_DONE:
        return true;
    case HTTP_BAD:
        return false; /* it has set out->status */
    case HTTP_MORE:
        break;
    }
    return refused(out, 400, "the head is not complete", err);
}
