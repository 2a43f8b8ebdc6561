#include "proxy/heads.h"

#include "base/buf.h"
#include "base/header_kind.h"
#include "base/limits.h"

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
        if (http_is_hop_field(head, name) || is_origin_claim(name) || is_credential(name, target->port) ||
            header_is(name, HEADER_OF_REQUEST)) /* http/ has answered Expect */
            continue;
        http_write_header(&out, name, head->headers[i].value);
    }
    if (head->framing == HTTP_LENGTH)
        http_write_header_number(&out, STR("Content-Length"), head->length);
    else if (head->framing == HTTP_CHUNKED)
        http_write_header(&out, STR("Transfer-Encoding"), STR("chunked"));

    if (http_wants_upgrade(head)) {
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
