/*
 * pass_on.c - what a program that passes HTTP messages on does with their heads (proxy/, egress/).
 */
#include "base/header_kind.h"
#include "http/http.h"

bool http_is_hop_field(const struct http_head *head, struct str name)
{
    return header_is(name, HEADER_HOP | HEADER_PROXY | HEADER_WRITTEN) || http_has_token(head, STR("Connection"), name);
}

bool http_wants_upgrade(const struct http_head *request)
{
    return request->upgrade && request->framing == HTTP_NO_BODY;
}

size_t http_pass_fields(const struct http_head *answer, struct http_field out[LIMIT_HEADERS])
{
    size_t count = 0;

    for (size_t i = 0; i < answer->header_count; i++)
        if (!http_is_hop_field(answer, answer->headers[i].name))
            out[count++] = (struct http_field){ answer->headers[i].name, answer->headers[i].value };
    return count;
}

uint64_t http_announced_length(const struct http_head *answer)
{
    uint64_t bytes;

    if (answer->framing == HTTP_LENGTH)
        return answer->length;
    if (answer->framing != HTTP_NO_BODY)
        return HTTP_LENGTH_UNKNOWN;
    const struct str *length = http_header(answer, STR("Content-Length"));
    if (length && str_to_u64(*length, HTTP_LENGTH_UNKNOWN - 1, &bytes))
        return bytes;
    return http_header(answer, STR("Transfer-Encoding")) ? HTTP_LENGTH_UNKNOWN : 0;
}
