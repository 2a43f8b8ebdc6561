/*
 * sources.h - how many sandboxes a wrong link was tried on, counted by the address that sent it.
 *
 * A wrong signature is compared with the token of every running sandbox. An address that has caused LIMIT_LINK_TRIES
 * comparisons in a second is refused until the next second. One counter for all addresses would be simpler, but
 * then one script could keep the new links of all clients from being looked up.
 *
 * An address has no entry of its own. It shares one of LIMIT_LINK_COUNTERS counters with the addresses that hash to it,
 * by a secret key that is drawn anew every second. To use up one counter takes a hundred requests in that second, even
 * with a thousand sandboxes; so a flood uses up few, cannot choose which, and meets others the second after.
 *
 * An IPv6 address counts by its first 64 bits, the least that one party gets. If the peer is a proxy on this machine,
 * the last address in X-Forwarded-For counts instead: the proxy has written it. Otherwise all clients of a proxy would
 * share one counter.
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

struct sources;
struct sources *sources_new(void) must_use;
void sources_free(struct sources *sources);

bool sources_may(struct sources *sources, const struct source *source, uint64_t now_ms);
void sources_charge(struct sources *sources, const struct source *source, uint64_t now_ms, uint32_t tries);

#endif
