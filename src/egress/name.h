/*
 * name.h - which host a client wants, from the first bytes that it sends: SNI of TLS, or Host of HTTP.
 *
 * Pure. The bytes stay as they are: whoever reads them sends them on.
 */
#ifndef EGRESS_NAME_H
#define EGRESS_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "base/limits.h"
#include "base/str.h"

enum name_found {
    NAME_MORE, /* not all there yet: ask again with everything received so far */
    NAME_FOUND,
    NAME_NONE, /* there is no name in them, or it is none that a policy could have */
};

/*
 * How far the bytes of one client were looked at, zeroed at first. They may come one by one, and a head has 32 KiB: it is
 * parsed when its first line or its end has come, or twice as much as the last time, and so a few times altogether.
 */
struct name_search {
    size_t seen;     /* bytes that were there the last time */
    size_t parse_at; /* with fewer the answer is NAME_MORE, unless the new ones end a line that matters */
    bool has_line;   /* the first one */
};

/* On NAME_FOUND the name is a valid one in lower case, without a trailing dot. */
enum name_found name_find(struct name_search *search, struct str received, char out[LIMIT_NET_NAME_BYTES + 1]);
/* Of TLS: does the client speak HTTP/1.1, as far as it says? True too of anything else. */
bool name_offers_http1(struct str received);

#endif
