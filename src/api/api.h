/*
 * api.h - the REST door: decode, call the action, encode.
 *
 * The only home of the foreign API's names and shapes. A request is looked at on the loop (CORS, route, key), its body
 * collected, then its handler runs on a worker from top to bottom, and the answer goes out on the loop again. What starts
 * a sandbox goes by a lane (io/worker.h) in which each key has a share: it may wait for as long as a guest likes.
 *
 * Every error is {"code":<status>,"message":…} because clients look for the code in the body and parse every error as
 * JSON; every 429, 502, 503 and 504 says in Should-Retry whether repeating is safe, because clients do repeat.
 */
#ifndef API_API_H
#define API_API_H

#include <stddef.h>

#include "actions/actions.h"
#include "http/http.h"
#include "io/worker.h"

struct api;

struct api_config {
    struct loop *loop;
    struct workers *workers;
    const struct actions *actions;
    const char
        *domain; /* told to clients, which then find sandboxes at <port>-<id>.<domain>; empty or NULL: not told */
};

/* The configuration is copied; what it points to must outlive the API. */
struct api *api_new(const struct api_config *config) must_use;
/* When the workers are freed. */
void api_free(struct api *api);

/* Answers it, now or later. On the loop. */
void api_handle(struct api *api, struct http_exchange *ex);

/* Every route there is, for docs and the command line. */
const struct http_route *api_routes(size_t *out_count);

#endif
