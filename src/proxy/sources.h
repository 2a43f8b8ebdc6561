/*
 * sources.h - how much work strangers have made for nothing lately, each by the address they come from.
 *
 * Whoever passes LIMIT_LINK_TRIES in a second is not served until the next one; nobody else notices. An IPv6 address
 * counts by its first 64 bits, which is the least that one party gets. Of a proxy on this machine we take the word for
 * who is behind it: the last address in X-Forwarded-For is the one that it has seen itself.
 *
 * Threads    The loop's.
 */
#ifndef PROXY_SOURCES_H
#define PROXY_SOURCES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/attr.h"
#include "http/http.h"

struct source {
    unsigned char bytes[9]; /* 4 or 6, then as much of the address as counts; zeroes if there is none */
};

struct source source_of(const struct sockaddr_storage *peer, const struct http_head *head);

struct sources; /* LIMIT_LINK_SOURCES of them; who was heard of least lately is forgotten first */
struct sources *sources_new(void) must_use;
void sources_free(struct sources *sources);

bool sources_may(const struct sources *sources, const struct source *source, uint64_t now_ms);
void sources_charge(struct sources *sources, const struct source *source, uint64_t now_ms, uint64_t tries);

#endif
