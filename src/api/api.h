/*
 * api.h - the REST API: decode, call the action, encode.
 *
 * Names and shapes of the foreign API appear only here. A request is checked on the loop (CORS, route, key) and its
 * body collected. Then its handler runs on a worker from top to bottom, and the loop sends the answer. A request that
 * starts a sandbox goes through a lane (io/worker.h) in which each key has a share, because a guest can make a start
 * slow.
 *
 * Mail has paths of its own below the same host, and dialects of its own (mail_dialect.h).
 *
 * Every error is {"code":<status>,"message":…}, because clients read the code from the body and parse every error as
 * JSON. Every 429, 502, 503 and 504 says in Should-Retry whether a repeat is safe, because clients repeat by
 * themselves.
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
        *domain; /* sent to clients, which then reach sandboxes at <port>-<id>.<domain>; empty or NULL: not sent */
};

/* The configuration is copied; what it points to must outlive the API. */
struct api *api_new(const struct api_config *config) must_use;
/* When the workers are freed. */
void api_free(struct api *api);

/* Answers it, now or later. On the loop. */
void api_handle(struct api *api, struct http_exchange *ex);
/* The same for a request that comes from inside this sandbox: only mail can be reached, as the sandbox's own inbox. */
void api_handle_inside(struct api *api, struct http_exchange *ex, const char *sandbox_id);

/* Something happened to a message or an inbox: tells those who wait for it. On the loop. */
struct mail_event;
void api_mail_heard(struct api *api, const struct mail_event *event);

/* Every route there is, for docs and the command line. */
const struct http_route *api_routes(size_t *out_count);

#endif
