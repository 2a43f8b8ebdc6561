/*
 * web.h - how a request leaves: the role puller does it by libcurl (daemon/puller.c), tests by a table of answers.
 */
#ifndef REGISTRY_WEB_H
#define REGISTRY_WEB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "registry/challenge.h"

enum { WEB_HEADERS_MOST = 8 };

struct web_header {
    const char *name;
    struct str value;
};

struct web_answer {
    uint32_t status;
    struct str content_type, digest, location, retry_after, content_range; /* empty: not there */
    struct str challenges[CHALLENGES_MOST];
    uint32_t challenge_count;
    struct str body; /* what take() did not get; cut at a limit, which for a success is an error */
};

struct web_want {
    const char *method; /* GET, HEAD, POST */
    struct str url;
    uint32_t header_count;
    struct web_header headers[WEB_HEADERS_MOST];
    struct str body; /* of POST */
    /* The body of a 200 or 206, as it comes; `head` has no body then. False ends it: *err says why. NULL: it is collected. */
    bool (*take)(void *context, const struct web_answer *head, struct str piece, struct err *err);
    void *take_context;
};

struct web {
    /*
     * False: there is no complete answer. ERR_UNAVAILABLE and ERR_TIMEOUT: it may work another time. ERR_CONFLICT: nobody
     * waits for it any more. Anything else does not change: an address that may not be reached, for example. Redirects are
     * not followed.
     */
    bool (*send)(void *context, const struct web_want *want, struct arena *arena, struct web_answer *out,
                 struct err *err);
    /* False: there is no more time, or nobody waits any more. */
    bool (*wait)(void *context, uint64_t ms, struct err *err);
    /* A line for the build's log. */
    void (*said)(void *context, struct str line);
    void *context;
};

#endif
