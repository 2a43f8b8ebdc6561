/*
 * client.h - talks to one registry about one image: logs in, follows redirects, tries again.
 *
 * Failure    Texts are those of E2B where there is one. ERR_NOT_FOUND, ERR_DENIED, ERR_UNAVAILABLE, ERR_TIMEOUT; ERR_INVALID
 *            for answers that make no sense; ERR_CONFLICT if nobody waits any more.
 */
#ifndef REGISTRY_CLIENT_H
#define REGISTRY_CLIENT_H

#include <stdbool.h>

#include "registry/manifest.h"
#include "registry/message.h"
#include "registry/options.h"
#include "registry/web.h"

struct client {
    const struct web *web;
    struct arena *arena;
    const struct pull_login *login; /* of the client; not for mirrors */
    const struct endpoint *endpoint;
    const struct reference *reference;
    struct str image;         /* as the client wrote it: for errors */
    struct str authorization; /* that worked last; empty: none */
};

/* GET or HEAD of /v2/<name>/<what>. Success is status 200. */
bool client_ask(struct client *client, const char *method, struct str what, struct str accept, struct web_answer *out,
                struct err *err) must_use;

/* Where a download goes. */
struct sink {
    uint64_t have; /* bytes that are there already */
    bool (*take)(void *context, struct str piece, struct err *err);
    bool (*restart)(void *context, struct err *err); /* the registry begins anew: all is dropped */
    void *context;
};
/* A blob, from sink->have on, until `size` bytes are there. Goes on where a connection broke. */
bool client_download(struct client *client, const struct descriptor *blob, struct sink *sink, struct err *err) must_use;

#endif
