#include "proxy/heads.h"

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"

/* Fields of one connection (RFC 9110 section 7.6.1), and those that the codec writes itself. */
static bool is_hop_field(const struct http_head *head, struct str name)
{
    static const struct str names[] = {
        STR_INIT("Connection"),
        STR_INIT("Keep-Alive"),
        STR_INIT("Proxy-Connection"),
        STR_INIT("TE"),
        STR_INIT("Trailer"),
        STR_INIT("Transfer-Encoding"),
        STR_INIT("Upgrade"),
        STR_INIT("Content-Length"),
        STR_INIT("Proxy-Authorization"),
        STR_INIT("Proxy-Authenticate"),
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (str_eq_nocase(name, names[i]))
            return true;
    }
    return http_has_token(head, STR("Connection"), name);
}

/* Only a proxy could say where a request came from, and a client may have written these. */
static bool is_origin_claim(struct str name)
{
    return str_eq_nocase(name, STR("Forwarded")) || str_skip_nocase(&name, STR("X-Forwarded-"));
}

/*
 * Our own credentials: a service that got one could act in the caller's name. guestd gets the access token, which it
 * checks. Authorization belongs to the service, or names guestd's user.
 */
static bool is_credential(struct str name, uint16_t port)
{
    bool is_guestd = port == GUESTD_PORT || port == GUESTD_CODE_PORT;
    return str_eq_nocase(name, STR("X-API-Key")) || str_eq_nocase(name, STR("X-Admin-Token")) ||
           str_eq_nocase(name, STR("X-Team-ID")) || (str_eq_nocase(name, STR("X-Access-Token")) && !is_guestd);
}

bool heads_want_upgrade(const struct http_head *head)
{
    return head->upgrade && head->framing == HTTP_NO_BODY;
}

static char next_char(struct str *text)
{
    text->len--;
    return *text->at++;
}

/* As the client wrote it, unless the sandbox has a mask for its services. */
static void write_host(struct http_exchange *ex, const struct target *target, struct str mask, struct buf *out)
{
    const struct str *sent = http_header(&ex->head, STR("Host"));
    struct str host = sent ? *sent : STR("localhost"); /* HTTP/1.0 may come without */
    if (mask.len == 0 || target->port == GUESTD_PORT) {
        http_write_header(out, STR("Host"), host);
        return;
    }
    struct buf shown = buf_make(&ex->arena, LIMIT_HEAD_BYTES);
    while (mask.len) {
        if (str_skip(&mask, STR("${PORT}")))
            buf_format(&shown, "%u", target->port);
        else
            buf_add_char(&shown, next_char(&mask));
    }
    http_write_header(out, STR("Host"), buf_str(&shown));
    http_write_header(out, STR("X-Forwarded-Host"), host);
}

bool heads_write_request(struct http_exchange *ex, const struct target *target, struct str mask_host,
                         struct str *out_head)
{
    const struct http_head *head = &ex->head;
    struct buf out = buf_make(&ex->arena, LIMIT_HEAD_BYTES + 1024);
    http_write_request_line(&out, head->method_text, target_path(head->target));

    write_host(ex, target, mask_host, &out);
    for (size_t i = 0; i < head->header_count; i++) {
        struct str name = head->headers[i].name;
        if (is_hop_field(head, name) || is_origin_claim(name) || is_credential(name, target->port) ||
            str_eq_nocase(name, STR("Host")) || str_eq_nocase(name, STR("Expect"))) /* http/ has answered it */
            continue;
        http_write_header(&out, name, head->headers[i].value);
    }
    if (head->framing == HTTP_LENGTH)
        http_write_header_number(&out, STR("Content-Length"), head->length);
    else if (head->framing == HTTP_CHUNKED)
        http_write_header(&out, STR("Transfer-Encoding"), STR("chunked"));

    if (heads_want_upgrade(head)) {
        http_write_header(&out, STR("Connection"), STR("Upgrade"));
        for (size_t i = 0; i < head->header_count; i++) {
            if (str_eq_nocase(head->headers[i].name, STR("Upgrade")))
                http_write_header(&out, STR("Upgrade"), head->headers[i].value);
        }
    } else if (target->port != GUESTD_PORT) {
        http_write_header(&out, STR("Connection"), STR("close"));
    }
    http_write_head_end(&out);
    *out_head = buf_str(&out);
    return !out.overflowed;
}

size_t heads_answer_fields(const struct http_head *head, struct http_field out[LIMIT_HEADERS])
{
    size_t count = 0;
    for (size_t i = 0; i < head->header_count; i++) {
        if (!is_hop_field(head, head->headers[i].name))
            out[count++] = (struct http_field){ head->headers[i].name, head->headers[i].value };
    }
    return count;
}

uint64_t heads_answer_length(const struct http_head *head)
{
    if (head->framing == HTTP_LENGTH)
        return head->length;
    if (head->framing != HTTP_NO_BODY)
        return HTTP_LENGTH_UNKNOWN;
    const struct str *length = http_header(head, STR("Content-Length"));
    uint64_t bytes;
    if (length && str_to_u64(*length, HTTP_LENGTH_UNKNOWN - 1, &bytes))
        return bytes;
    return http_header(head, STR("Transfer-Encoding")) ? HTTP_LENGTH_UNKNOWN : 0;
}
