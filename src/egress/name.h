/*
 * name.h - which host a client wants, from the first bytes that it sends: SNI of TLS, or Host of HTTP.
 *
 * Pure. The bytes stay as they are: whoever reads them sends them on.
 */
#ifndef EGRESS_NAME_H
#define EGRESS_NAME_H

#include "base/limits.h"
#include "base/str.h"

enum name_found {
    NAME_MORE, /* not all there yet: ask again with everything received so far */
    NAME_FOUND,
    NAME_NONE, /* there is no name in them, or it is none that a policy could have */
};

/* On NAME_FOUND the name is a valid one in lower case, without a trailing dot. */
enum name_found name_find(struct str received, char out[LIMIT_NET_NAME_BYTES + 1]);
/* Of TLS: does the client speak HTTP/1.1, as far as it says? True too of anything else. */
bool name_offers_http1(struct str received);

#endif
