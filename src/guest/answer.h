/*
 * answer.h - what all answers of guestd's public services have in common.
 *
 * A browser build of the SDK talks to guestd from any origin, so every answer to a request that names one carries the
 * headers that let the browser show it.
 */
#ifndef GUEST_ANSWER_H
#define GUEST_ANSWER_H

#include "http/http.h"

enum { ANSWER_FIELDS_MAX = 16 };

void answer(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t count, struct str body);
void answer_start(struct http_exchange *ex, unsigned status, const struct http_field *fields, size_t count,
                  uint64_t length);

/* {"code":404,"message":"…"}: the plain shape, for routes that are not RPC and for what is refused before routing. */
void answer_error(struct http_exchange *ex, unsigned status, const char *format, ...) printf_like(3, 4);

/* There is no such path (404), or not with this method (405, with `Allow`). `error` writes the service's 404. */
typedef void answer_error_fn(struct http_exchange *ex, unsigned status, const char *format, ...) printf_like(3, 4);
void answer_no_route(struct http_exchange *ex, const struct http_match *match, answer_error_fn *error);

/* Is it a CORS preflight? Then it has been answered. */
bool answer_preflight(struct http_exchange *ex);

#endif
