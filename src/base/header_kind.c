#include "base/header_kind.h"

#include "base/mem.h"

enum { NOT_IN_HTTP2 = HEADER_HTTP2_REFUSED | HEADER_HTTP2_NO_ANSWER };

static const struct {
    struct str name;
    unsigned kinds;
} table[] = {
    { STR_INIT("Connection"), HEADER_HOP | HEADER_WRITTEN | NOT_IN_HTTP2 },
    { STR_INIT("Content-Length"), HEADER_WRITTEN },
    { STR_INIT("Expect"), HEADER_OF_REQUEST },
    { STR_INIT("Host"), HEADER_OF_REQUEST },
    { STR_INIT("Keep-Alive"), HEADER_HOP | NOT_IN_HTTP2 },
    { STR_INIT("Proxy-Authenticate"), HEADER_PROXY },
    { STR_INIT("Proxy-Authorization"), HEADER_PROXY },
    { STR_INIT("Proxy-Connection"), HEADER_HOP | NOT_IN_HTTP2 },
    { STR_INIT("TE"), HEADER_HOP | HEADER_HTTP2_NO_ANSWER }, /* requests may have it; nghttp2 checks its value */
    { STR_INIT("Trailer"), HEADER_HOP },
    { STR_INIT("Transfer-Encoding"), HEADER_HOP | HEADER_WRITTEN | NOT_IN_HTTP2 },
    { STR_INIT("Upgrade"), HEADER_HOP | NOT_IN_HTTP2 },
};

bool header_is(struct str name, unsigned kinds)
{
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (str_eq_nocase(name, table[i].name))
            return table[i].kinds & kinds;
    return false;
}
