/*
 * header_kind.h - which HTTP header fields belong to one connection, or are written by our own code.
 *
 * One table for all that read, write, pass on or refuse such fields. In base/ because policy/ needs it too.
 */
#ifndef BASE_HEADER_KIND_H
#define BASE_HEADER_KIND_H

#include <stdbool.h>

#include "base/str.h"

enum header_kind {
    HEADER_HOP = 1,             /* of one connection (RFC 9110 section 7.6.1): never passed on */
    HEADER_PROXY = 2,           /* between a client and its proxy: never passed on, but a header rule may set it */
    HEADER_WRITTEN = 4,         /* says where a message ends and whether another follows; http/ writes it itself */
    HEADER_OF_REQUEST = 8,      /* of a request, and written or answered anew by a program that passes it on */
    HEADER_HTTP2_REFUSED = 16,  /* must not be in a request by HTTP/2 (RFC 9113 section 8.2.2) */
    HEADER_HTTP2_NO_ANSWER = 32 /* must not be in an answer by HTTP/2 */
};

/* Has the field one of these kinds? Any case. */
bool header_is(struct str name, unsigned kinds);

#endif
