/*
 * refuse.h - the edge's own answers, to requests that cannot be passed on.
 *
 * SDKs read these: the status tells them that a sandbox is gone, and the Python SDK looks for the phrases "was not
 * found" and "port is not open" to tell two errors apart. So neither phrase may be in any other message here, and
 * none of these is a 404 or 409 on guestd's port, where clients would take it for guestd's own answer.
 */
#ifndef PROXY_REFUSE_H
#define PROXY_REFUSE_H

#include "http/http.h"
#include "proxy/links.h"
#include "proxy/target.h"

enum refusal {
    REFUSE_NOT_FOUND,   /* unknown, ended, or ended meanwhile */
    REFUSE_CLOSED,      /* running, nothing listens on that port */
    REFUSE_BROKEN,      /* the service closed without an answer, or with one that is not HTTP */
    REFUSE_UNAVAILABLE, /* cannot be reached just now */
    REFUSE_PRIVATE,     /* the traffic token is missing or wrong */
    REFUSE_CROWDED,     /* LIMIT_EDGE_CONNECTIONS are open */
    REFUSE_STRANGERS,   /* too many are open without a token, or callers with a token need the places */
    REFUSE_GREEDY,      /* LIMIT_EDGE_KEY are open, into the sandboxes of one key */
    REFUSE_FULL,        /* LIMIT_EDGE_SHARE are open, into all sandboxes together */
    /* of a paused sandbox that traffic may wake */
    REFUSE_ASLEEP,          /* this request may not: it has no token */
    REFUSE_RESUMING,        /* LIMIT_EDGE_WAKE_MS were not enough */
    REFUSE_RESUMING_GUESTD, /* the same, on guestd's port */
    REFUSE_CROWDED_ASLEEP,  /* LIMIT_EDGE_WAKE_WAITING or LIMIT_EDGE_WAKE_ALL wait already */
    REFUSE_NO_ROOM,         /* as many sandboxes run as may */
    REFUSAL_COUNT,
};

/*
 * Answers the exchange. A browser's preflight for guestd is granted instead: if it were refused, the page would not see
 * the message that the request itself gets.
 */
void refuse(struct http_exchange *ex, const struct target *target, enum refusal why);
/* The access token is missing or wrong: what guestd itself would answer on that port, word for word. */
void refuse_token(struct http_exchange *ex, const struct target *target);
/* For one that names no target: plain text, 400. */
void refuse_unroutable(struct http_exchange *ex, enum target_verdict verdict);
/* For a signed link without a sandbox: 401 as guestd's, or 429. */
void refuse_link(struct http_exchange *ex, enum links_verdict verdict);
void refuse_control_path(struct http_exchange *ex, struct str path);
/* Grants a preflight that cannot be passed on, in guestd's words. */
void grant_preflight(struct http_exchange *ex);

#endif
