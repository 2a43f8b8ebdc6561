/*
 * Theory of operation
 *
 * A head is read line by line from a window of at most LIMIT_HEAD_BYTES. The same bytes give the same answer in
 * whatever pieces they arrive: a complete line is checked, an incomplete one gives HTTP_MORE, and a full window without
 * the end of a head is too long. Only the first line is checked before it is complete, so that a client of another
 * protocol (TLS, say) gets an answer at once and not after a timeout.
 *
 * Framing is decided once, at the end of the head, in frame_request() and frame_response(); nothing else in the program
 * looks at Content-Length or Transfer-Encoding again.
 */
#include "wire/http1.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

const char *const http_method_name[HTTP_METHOD_COUNT] = {
    [HTTP_GET] = "GET",     [HTTP_HEAD] = "HEAD",     [HTTP_POST] = "POST",       [HTTP_PUT] = "PUT",
    [HTTP_PATCH] = "PATCH", [HTTP_DELETE] = "DELETE", [HTTP_OPTIONS] = "OPTIONS", [HTTP_OTHER] = "(other)",
};

enum { METHOD_MOST = 32 }; /* the longest registered one has 17 letters */

/* For field values and reason phrases: no control character except the tab. */
static bool is_text_char(unsigned char c)
{
    return (c >= 0x20 && c != 0x7f) || c == '\t';
}

static bool is_text(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!is_text_char((unsigned char)s.at[i]))
            return false;
    return true;
}

/* ---- lines ---- */

/* The next line of *rest without its CRLF. A CR or LF that is not part of a CRLF is refused. */
static enum http_parse next_line(struct str *rest, struct str *out_line, struct err *err)
{
    const char *lf = rest->len ? memchr(rest->at, '\n', rest->len) : NULL;

    if (!lf)
        return HTTP_MORE;
    size_t len = (size_t)(lf - rest->at);
    if (len == 0 || lf[-1] != '\r') {
        (void)err_set(err, ERR_INVALID, "a line of the head ends in LF without CR");
        return HTTP_BAD;
    }
    *out_line = str_of(rest->at, len - 1); /* a CR inside is refused with the other control characters */
    *rest = str_of(lf + 1, rest->len - len - 1);
    return HTTP_DONE;
}

static bool refuse(struct http_head *head, unsigned status, struct err *err, const char *message)
{
    head->status = status;
    return err_set(err, status == 414 || status == 431 ? ERR_LIMIT : ERR_INVALID, "%s", message);
}

static bool read_header(struct http_head *head, struct str line, struct err *err)
{
    struct str name, value = line;

    if (line.at[0] == ' ' || line.at[0] == '\t')
        return refuse(head, 400, err, "a header is folded over several lines");
    if (!str_has_char(line, ':') || !str_cut(&value, ':', &name))
        return refuse(head, 400, err, "a header has no colon");
    if (!str_is_token(name))
        return refuse(head, 400, err, "a header name has a character that it must not have");
    value = str_trim(value);
    if (!is_text(value))
        return refuse(head, 400, err, "a header value has a control character in it");
    if (head->header_count == LIMIT_HEADERS)
        return refuse(head, 431, err, "too many headers");
    head->headers[head->header_count++] = (struct http_header){ name, value };
    return true;
}

/* ---- looking things up ---- */

const struct str *http_header(const struct http_head *head, struct str name)
{
    for (size_t i = 0; i < head->header_count; i++)
        if (str_eq_nocase(head->headers[i].name, name))
            return &head->headers[i].value;
    return NULL;
}

static size_t count_headers(const struct http_head *head, struct str name)
{
    size_t count = 0;

    for (size_t i = 0; i < head->header_count; i++)
        count += str_eq_nocase(head->headers[i].name, name);
    return count;
}

bool http_has_token(const struct http_head *head, struct str name, struct str token)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (!str_eq_nocase(head->headers[i].name, name))
            continue;
        struct str list = head->headers[i].value, item;
        while (str_cut(&list, ',', &item))
            if (str_eq_nocase(str_trim(item), token))
                return true;
    }
    return false;
}

static void move(struct str *s, const char *from, const char *to)
{
    if (s->at)
        s->at = to + (s->at - from);
}

void http_head_move(struct http_head *head, const char *from, const char *to)
{
    move(&head->method_text, from, to);
    move(&head->target, from, to);
    move(&head->path, from, to);
    move(&head->query, from, to);
    move(&head->reason, from, to);
    for (size_t i = 0; i < head->header_count; i++) {
        move(&head->headers[i].name, from, to);
        move(&head->headers[i].value, from, to);
    }
}

/* ---- framing ---- */

static bool read_length(struct http_head *head, struct str value, struct err *err)
{
    /* Digits and nothing else: "+5", "5, 5" and "0x5" are read differently by different programs. */
    if (count_headers(head, STR("Content-Length")) > 1)
        return refuse(head, 400, err, "Content-Length is given more than once");
    if (!str_to_u64(value, INT64_MAX, &head->length))
        return refuse(head, 400, err, "Content-Length is not a number");
    head->framing = HTTP_LENGTH;
    return true;
}

static bool read_coding(struct http_head *head, struct str value, struct err *err)
{
    if (count_headers(head, STR("Transfer-Encoding")) > 1)
        return refuse(head, 400, err, "Transfer-Encoding is given more than once");
    if (head->minor == 0)
        return refuse(head, 400, err, "HTTP/1.0 knows no Transfer-Encoding");
    if (http_header(head, STR("Content-Length")))
        return refuse(head, 400, err, "Content-Length and Transfer-Encoding exclude each other");
    if (str_eq_nocase(value, STR("chunked"))) {
        head->framing = HTTP_CHUNKED;
        return true;
    }
    struct str item;
    bool after_chunked = false;
    for (struct str list = value; str_cut(&list, ',', &item);) {
        if (after_chunked)
            return refuse(head, 400, err, "chunked is not the last transfer coding");
        after_chunked = str_eq_nocase(str_trim(item), STR("chunked"));
    }
    return refuse(head, 501, err, "a transfer coding other than chunked");
}

static bool frame(struct http_head *head, struct err *err)
{
    const struct str *coding = http_header(head, STR("Transfer-Encoding"));
    const struct str *length = http_header(head, STR("Content-Length"));

    if (coding)
        return read_coding(head, *coding, err);
    return !length || read_length(head, *length, err);
}

static void read_connection(struct http_head *head)
{
    bool close = http_has_token(head, STR("Connection"), STR("close"));

    head->keep_alive = !close && (head->minor == 1 || http_has_token(head, STR("Connection"), STR("keep-alive")));
    head->upgrade = head->minor == 1 && http_has_token(head, STR("Connection"), STR("upgrade")) &&
                    http_header(head, STR("Upgrade"));
}

static bool is_host(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (!char_is_alnum(s.at[i]) && !strchr("-._~:[]%", s.at[i]))
            return false;
    }
    return true;
}

static bool frame_request(struct http_head *head, struct err *err)
{
    const struct str *host = http_header(head, STR("Host"));
    const struct str *expect = http_header(head, STR("Expect"));

    head->framing = HTTP_NO_BODY;
    if (!frame(head, err))
        return false;
    if (host ? count_headers(head, STR("Host")) > 1 : head->minor == 1)
        return refuse(head, 400, err, host ? "Host is given more than once" : "Host is missing");
    if (host && !is_host(*host))
        return refuse(head, 400, err, "Host is not a host");
    if (expect && head->minor == 1) {
        if (!str_eq_nocase(*expect, STR("100-continue")))
            return refuse(head, 417, err, "Expect asks for something other than 100-continue");
        head->expect_continue = head->framing == HTTP_CHUNKED || (head->framing == HTTP_LENGTH && head->length);
    }
    read_connection(head);
    return true;
}

static bool frame_response(struct http_head *head, bool to_head_request, struct err *err)
{
    head->framing = HTTP_UNTIL_CLOSE;
    if (!frame(head, err))
        return false;
    read_connection(head);
    /* RFC 9112, 6.3: these end with their head, whatever it says. */
    if (to_head_request || head->status < 200 || head->status == 204 || head->status == 304) {
        head->framing = HTTP_NO_BODY;
        head->length = 0;
    }
    if (head->framing == HTTP_UNTIL_CLOSE)
        head->keep_alive = false;
    return true;
}

/* ---- first lines ---- */

static bool read_version(struct http_head *head, struct str text, struct err *err)
{
    if (str_eq(text, STR("HTTP/1.1")))
        head->minor = 1;
    else if (str_eq(text, STR("HTTP/1.0")))
        head->minor = 0;
    else if (text.len == 8 && str_starts(text, STR("HTTP/")) && char_is_digit(text.at[5]) && text.at[6] == '.' &&
             char_is_digit(text.at[7]))
        return refuse(head, 505, err, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    else
        return refuse(head, 400, err, "the first line has no HTTP version");
    return true;
}

static enum http_method method_from(struct str text)
{
    for (int m = 0; m < HTTP_OTHER; m++)
        if (str_eq(text, str_from(http_method_name[m])))
            return (enum http_method)m;
    return HTTP_OTHER;
}

static bool read_target(struct http_head *head, struct str target, struct err *err)
{
    if (target.len > LIMIT_TARGET_BYTES)
        return refuse(head, 414, err, "the path and query are too long");
    for (size_t i = 0; i < target.len; i++) {
        unsigned char c = (unsigned char)target.at[i];
        if (c <= 0x20 || c >= 0x7f || c == '#')
            return refuse(head, 400, err, "the path has a character that must be percent-encoded");
    }
    head->target = target;
    if (str_starts(target, STR("/"))) {
        head->query = target;
        (void)str_cut(&head->query, '?', &head->path);
        return true;
    }
    if (str_eq(target, STR("*")) && head->method == HTTP_OPTIONS) {
        head->path = target;
        return true;
    }
    return refuse(head, 400, err, "the path does not begin with a slash");
}

static bool read_request_line(struct http_head *head, struct str line, struct err *err)
{
    struct str rest = line;

    if (!str_cut(&rest, ' ', &head->method_text) || !str_is_token(head->method_text) ||
        head->method_text.len > METHOD_MOST)
        return refuse(head, 400, err, "the first line does not begin with a method");
    head->method = method_from(head->method_text);
    struct str target;
    if (!str_cut(&rest, ' ', &target) || !rest.at)
        return refuse(head, 400, err, "the first line is not method, path and version");
    return read_version(head, rest, err) && read_target(head, target, err);
}

/* A line that has not ended yet: could it still become a request line? */
static bool may_be_request_line(struct http_head *head, struct str part, struct err *err)
{
    struct str rest = part, method;

    if (part.len == 0 || str_eq(part, STR("\r")))
        return true;
    (void)str_cut(&rest, ' ', &method);
    if (!str_is_token(method) || method.len > METHOD_MOST)
        return refuse(head, 400, err, "the first line does not begin with a method");
    if (rest.at && !str_has_char(rest, ' ') && rest.len > LIMIT_TARGET_BYTES)
        return refuse(head, 414, err, "the path and query are too long");
    return true;
}

static bool read_status_line(struct http_head *head, struct str line, struct err *err)
{
    struct str rest = line, version, status;
    uint64_t number;

    (void)str_cut(&rest, ' ', &version);
    if (!read_version(head, version, err))
        return false;
    /* Some servers leave out the space before an empty reason; that is not ambiguous. */
    if (!str_cut(&rest, ' ', &status) || status.len != 3 || !str_to_u64(status, 999, &number) || number < 100)
        return refuse(head, 400, err, "the first line has no status");
    if (rest.at && !is_text(rest))
        return refuse(head, 400, err, "the reason has a control character in it");
    head->status = (unsigned)number;
    head->reason = rest.at ? rest : str_of(line.at + line.len, 0); /* inside the head, as http_head_move() expects */
    return true;
}

/* ---- heads ---- */

static void clear(struct http_head *head)
{
    /* Not the headers: they are 4 KiB, and header_count says how many there are. */
    memset(head, 0, offsetof(struct http_head, headers));
    head->framing = HTTP_NO_BODY;
    head->length = 0;
    head->keep_alive = head->expect_continue = head->upgrade = false;
}

enum kind { REQUEST, RESPONSE, RESPONSE_TO_HEAD };

static enum http_parse parse(struct str in, enum kind kind, struct http_head *head, size_t *out_used, struct err *err)
{
    struct str rest = str_of(in.at, MIN(in.len, (size_t)LIMIT_HEAD_BYTES)), line;
    bool is_full = in.len >= LIMIT_HEAD_BYTES, has_first = false;

    clear(head);
    for (;;) {
        enum http_parse got = next_line(&rest, &line, err);
        if (got == HTTP_BAD) {
            head->status = 400;
            return HTTP_BAD;
        }
        if (got == HTTP_MORE) {
            if (kind == REQUEST && !has_first && !may_be_request_line(head, rest, err))
                return HTTP_BAD;
            if (!is_full)
                return HTTP_MORE;
            (void)refuse(head, 431, err, "the head is too long");
            return HTTP_BAD;
        }
        if (line.len == 0) {
            if (has_first)
                break;
            if (kind == REQUEST)
                continue;
        }
        bool fits = has_first         ? read_header(head, line, err)
                    : kind == REQUEST ? read_request_line(head, line, err)
                                      : read_status_line(head, line, err);
        if (!fits)
            return HTTP_BAD;
        has_first = true;
    }
    if (!(kind == REQUEST ? frame_request(head, err) : frame_response(head, kind == RESPONSE_TO_HEAD, err)))
        return HTTP_BAD;
    *out_used = (size_t)(rest.at - in.at);
    return HTTP_DONE;
}

enum http_parse http_parse_request(struct str in, struct http_head *out_head, size_t *out_used, struct err *err)
{
    return parse(in, REQUEST, out_head, out_used, err);
}

enum http_parse http_parse_response(struct str in, bool to_head_request, struct http_head *out_head, size_t *out_used,
                                    struct err *err)
{
    return parse(in, to_head_request ? RESPONSE_TO_HEAD : RESPONSE, out_head, out_used, err);
}

/* ---- chunks ---- */

enum chunk_state {
    CHUNK_SIZE,      /* at or in the hexadecimal digits */
    CHUNK_SPACE,     /* white space after them: an extension must follow */
    CHUNK_EXTENSION, /* skipped */
    CHUNK_SIZE_LF,   /* the CR was there */
    CHUNK_DATA,      /* `left` bytes to go */
    CHUNK_DATA_CR,   /* behind the data */
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* at the start of a trailer line, or of the empty line that ends it all */
    CHUNK_NAME,    /* in a trailer's name */
    CHUNK_VALUE,   /* in a trailer's value; `left` counts the bytes of all trailers */
    CHUNK_VALUE_LF,
    CHUNK_LAST_LF, /* of the empty line */
    CHUNK_END,
};

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool size_is_read(struct http_chunks *chunks)
{
    chunks->state = chunks->left ? CHUNK_DATA : CHUNK_TRAILER;
    chunks->line = 0;
    return true;
}

/* One byte outside of the data. */
static bool chunk_step(struct http_chunks *chunks, char c, struct err *err)
{
    switch ((enum chunk_state)chunks->state) {
    case CHUNK_SIZE: {
        int digit = hex_digit(c);
        if (digit >= 0) {
            if (chunks->left > (uint64_t)INT64_MAX >> 4)
                return err_set(err, ERR_LIMIT, "a chunk is too large");
            chunks->left = chunks->left << 4 | (unsigned)digit;
            break;
        }
        if (chunks->line == 0)
            return err_set(err, ERR_INVALID, "a chunk has no size");
    }
        __attribute__((fallthrough));
    case CHUNK_SPACE:
        if (c == ' ' || c == '\t')
            chunks->state = CHUNK_SPACE;
        else if (c == ';')
            chunks->state = CHUNK_EXTENSION;
        else if (c == '\r' && chunks->state == CHUNK_SIZE)
            chunks->state = CHUNK_SIZE_LF;
        else
            return err_set(err, ERR_INVALID, "a chunk size is not a hexadecimal number");
        break;
    case CHUNK_EXTENSION:
        if (c == '\r')
            chunks->state = CHUNK_SIZE_LF;
        else if (!is_text_char((unsigned char)c))
            return err_set(err, ERR_INVALID, "a chunk extension has a control character in it");
        break;
    case CHUNK_SIZE_LF:
        return c == '\n' ? size_is_read(chunks) : err_set(err, ERR_INVALID, "a chunk size does not end in CRLF");
    case CHUNK_DATA_CR:
        if (c != '\r')
            return err_set(err, ERR_INVALID, "a chunk is longer than its size");
        chunks->state = CHUNK_DATA_LF;
        return true;
    case CHUNK_DATA_LF:
        if (c != '\n')
            return err_set(err, ERR_INVALID, "a chunk does not end in CRLF");
        chunks->state = CHUNK_SIZE;
        return true;
    case CHUNK_TRAILER:
        if (c == '\r') {
            chunks->state = CHUNK_LAST_LF;
            return true;
        }
        chunks->state = CHUNK_NAME;
        if (!char_is_token(c))
            return err_set(err, ERR_INVALID, "a trailer has no name");
        break;
    case CHUNK_NAME:
        if (c == ':')
            chunks->state = CHUNK_VALUE;
        else if (!char_is_token(c))
            return err_set(err, ERR_INVALID, "a trailer name has a character that it must not have");
        break;
    case CHUNK_VALUE:
        if (c == '\r')
            chunks->state = CHUNK_VALUE_LF;
        else if (!is_text_char((unsigned char)c))
            return err_set(err, ERR_INVALID, "a trailer has a control character in it");
        break;
    case CHUNK_VALUE_LF:
        if (c != '\n')
            return err_set(err, ERR_INVALID, "a trailer does not end in CRLF");
        chunks->state = CHUNK_TRAILER;
        break;
    case CHUNK_LAST_LF:
        if (c != '\n')
            return err_set(err, ERR_INVALID, "the last chunk does not end in CRLF");
        chunks->state = CHUNK_END;
        return true;
    case CHUNK_DATA:
    case CHUNK_END:
        assert(!"data bytes and the end of the body do not come here");
    }
    chunks->line++;
    if (chunks->state >= CHUNK_TRAILER) {
        if (++chunks->left > LIMIT_HEAD_BYTES)
            return err_set(err, ERR_LIMIT, "the trailers are too long");
    } else if (chunks->line > LIMIT_CHUNK_LINE_BYTES) {
        return err_set(err, ERR_LIMIT, "a chunk's size line is too long");
    }
    return true;
}

enum http_parse http_chunks_next(struct http_chunks *chunks, struct str *in, struct str *out_data, struct err *err)
{
    *out_data = STR("");
    while (in->len > 0 && chunks->state != CHUNK_END) {
        if (chunks->state == CHUNK_DATA) {
            *out_data = str_of(in->at, (size_t)MIN((uint64_t)in->len, chunks->left));
            *in = str_of(in->at + out_data->len, in->len - out_data->len);
            chunks->left -= out_data->len;
            if (chunks->left == 0)
                chunks->state = CHUNK_DATA_CR;
            return HTTP_MORE;
        }
        if (!chunk_step(chunks, in->at[0], err))
            return HTTP_BAD;
        *in = str_of(in->at + 1, in->len - 1);
    }
    return chunks->state == CHUNK_END ? HTTP_DONE : HTTP_MORE;
}

struct http_body http_body_of(const struct http_head *head)
{
    return (struct http_body){ .framing = head->framing, .left = head->framing == HTTP_LENGTH ? head->length : 0 };
}

enum http_parse http_body_next(struct http_body *body, struct str *in, struct str *out_data, struct err *err)
{
    if (body->framing == HTTP_CHUNKED)
        return http_chunks_next(&body->chunks, in, out_data, err);
    uint64_t size = body->framing == HTTP_UNTIL_CLOSE ? in->len : MIN((uint64_t)in->len, body->left);
    *out_data = str_of(in->at, (size_t)size);
    *in = str_of(in->len ? in->at + size : in->at, in->len - (size_t)size);
    if (body->framing == HTTP_UNTIL_CLOSE)
        return HTTP_MORE;
    body->left -= size;
    return body->left == 0 ? HTTP_DONE : HTTP_MORE;
}

size_t http_chunk_line(uint64_t size, char room[HTTP_CHUNK_LINE_BYTES])
{
    return (size_t)snprintf(room, HTTP_CHUNK_LINE_BYTES, "%" PRIx64 "\r\n", size);
}

/* ---- writing ---- */

const char *http_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } table[] = {
        { 100, "Continue" },
        { 101, "Switching Protocols" },
        { 200, "OK" },
        { 201, "Created" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 206, "Partial Content" },
        { 301, "Moved Permanently" },
        { 302, "Found" },
        { 303, "See Other" },
        { 304, "Not Modified" },
        { 307, "Temporary Redirect" },
        { 308, "Permanent Redirect" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 402, "Payment Required" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 406, "Not Acceptable" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 410, "Gone" },
        { 411, "Length Required" },
        { 412, "Precondition Failed" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 416, "Range Not Satisfiable" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 426, "Upgrade Required" },
        { 428, "Precondition Required" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 502, "Bad Gateway" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
        { 507, "Insufficient Storage" },
    };

    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].status == status)
            return table[i].reason;
    return "Unknown";
}

/* A head with a bad field must not be sent even in part: the whole buf is marked as overflowed. */
static void add_checked(struct buf *out, struct str s, bool fits)
{
    if (fits)
        buf_add(out, s);
    else
        out->overflowed = true;
}

static bool is_visible(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.at[i] <= 0x20 || s.at[i] == 0x7f)
            return false;
    return s.len > 0;
}

void http_write_request_line(struct buf *out, struct str method, struct str target)
{
    add_checked(out, method, str_is_token(method));
    buf_add(out, STR(" "));
    add_checked(out, target, is_visible(target));
    buf_add(out, STR(" HTTP/1.1\r\n"));
}

void http_write_status_line(struct buf *out, unsigned status)
{
    assert(status >= 100 && status <= 999);
    buf_format(out, "HTTP/1.1 %u %s\r\n", status, http_reason(status));
}

void http_write_header(struct buf *out, struct str name, struct str value)
{
    add_checked(out, name, str_is_token(name));
    buf_add(out, STR(": "));
    add_checked(out, value, is_text(value));
    buf_add(out, STR("\r\n"));
}

void http_write_header_number(struct buf *out, struct str name, uint64_t value)
{
    char text[24];
    int len = snprintf(text, sizeof text, "%" PRIu64, value);

    http_write_header(out, name, str_of(text, (size_t)len));
}

void http_write_head_end(struct buf *out)
{
    buf_add(out, STR("\r\n"));
}

/* ---- queries ---- */

bool http_query_next(struct str *rest, struct str *out_name, struct str *out_value)
{
    struct str pair;

    while (rest->len && str_cut(rest, '&', &pair)) {
        if (pair.len == 0)
            continue;
        (void)str_cut(&pair, '=', out_name);
        *out_value = pair.at ? pair : STR("");
        return true;
    }
    return false;
}
