/*
 * heads.h - which fields of a request's head the service inside sees.
 *
 * Left out: fields of one connection, our own credentials, and claims about where a request came from. Pure.
 */
#ifndef PROXY_HEADS_H
#define PROXY_HEADS_H

#include <stdbool.h>
#include <stdint.h>

#include "http/http.h"
#include "proxy/target.h"

/*
 * The request's head as bytes, in the exchange's arena. `mask_host`: what a service sees as its host, with ${PORT} for
 * its port; empty: what the client sent. False if it became too long.
 */
bool heads_write_request(struct http_exchange *ex, const struct target *target, struct str mask_host,
                         struct str *out_head) must_use;

#endif
