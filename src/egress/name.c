#include "egress/name.h"

#include <string.h>

#include "policy/net_policy.h"
#include "wire/http1.h"
#include "wire/tls_hello.h"

enum { TLS_HANDSHAKE = 0x16 };

static enum name_found take(struct str name, char out[LIMIT_NET_NAME_BYTES + 1])
{
    if (str_ends(name, STR(".")))
        name.len--;
    if (name.len > LIMIT_NET_NAME_BYTES || !net_name_is_valid(name))
        return NAME_NONE;
    for (size_t i = 0; i < name.len; i++)
        out[i] = char_lower(name.at[i]);
    out[name.len] = '\0';
    return NAME_FOUND;
}

static enum name_found from_tls(struct name_search *search, struct str received, char out[LIMIT_NET_NAME_BYTES + 1])
{
    struct tls_hello hello;
    struct err err;

    switch (tls_hello_parse(received, &hello, &err)) {
    case TLS_HELLO_MORE:
        search->parse_at = received.len + hello.more;
        return NAME_MORE;
    case TLS_HELLO_DONE:
        return take(str_from(hello.name), out);
    case TLS_HELLO_NONE:
    case TLS_HELLO_BAD:
        break;
    }
    return NAME_NONE;
}

bool name_offers_http1(struct str received)
{
    struct tls_hello hello;
    struct err err;

    return tls_hello_parse(received, &hello, &err) != TLS_HELLO_DONE || hello.offers_http1;
}

/* Two of them could be read in two ways. */
static bool has_one_host(const struct http_head *head)
{
    unsigned count = 0;

    for (size_t i = 0; i < head->header_count; i++)
        count += str_eq_nocase(head->headers[i].name, STR("host"));
    return count == 1;
}

static enum name_found from_http(struct name_search *search, struct str received, char out[LIMIT_NET_NAME_BYTES + 1])
{
    struct http_head head;
    struct str host, name;
    struct err err;
    size_t used;

    switch (http_parse_request(received, &head, &used, &err)) {
    case HTTP_MORE:
        search->parse_at = MIN(2 * received.len, (size_t)LIMIT_EGRESS_NAME_BYTES);
        return received.len < LIMIT_EGRESS_NAME_BYTES ? NAME_MORE : NAME_NONE;
    case HTTP_DONE:
        if (!has_one_host(&head))
            return NAME_NONE;
        host = *http_header(&head, STR("host"));
        return str_cut(&host, ':', &name) ? take(name, out) : NAME_NONE;
    case HTTP_BAD:
        break;
    }
    return NAME_NONE;
}

/* Another protocol shows in its first line, and a head is complete with an empty one. */
static bool ends_line_that_matters(struct name_search *search, struct str received)
{
    static const char end[] = { '\n', '\r', '\n' };
    size_t from = search->seen - MIN(search->seen, sizeof end - 1);
    bool had_line = search->has_line;

    search->has_line = had_line || memchr(received.at + search->seen, '\n', received.len - search->seen);
    return search->has_line != had_line || memmem(received.at + from, received.len - from, end, sizeof end);
}

enum name_found name_find(struct name_search *search, struct str received, char out[LIMIT_NET_NAME_BYTES + 1])
{
    if (received.len == search->seen)
        return NAME_MORE;
    /* All methods begin with a letter. Binary protocols need not be waited for. */
    bool is_tls = received.at[0] == TLS_HANDSHAKE, may_be_http = char_is_letter(received.at[0]);
    bool is_line = may_be_http && ends_line_that_matters(search, received);
    search->seen = received.len;
    if (received.len < search->parse_at && !is_line)
        return NAME_MORE;
    return is_tls ? from_tls(search, received, out) : may_be_http ? from_http(search, received, out) : NAME_NONE;
}
