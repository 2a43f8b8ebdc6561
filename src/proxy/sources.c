#include "proxy/sources.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"

enum { COUNTED_V6_BYTES = 8 };

/* ---- addresses ---- */

static struct source of_v4(const void *address)
{
    struct source source = { { 4 } };

    memcpy(source.bytes + 1, address, 4);
    return source;
}

static struct source of_v6(const struct in6_addr *address)
{
    struct source source = { { 6 } };

    if (IN6_IS_ADDR_V4MAPPED(address))
        return of_v4(address->s6_addr + 12);
    memcpy(source.bytes + 1, address->s6_addr, COUNTED_V6_BYTES);
    return source;
}

static bool is_this_machine(const struct sockaddr_storage *peer)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)peer;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)peer)->sin6_addr;

    if (peer->ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return peer->ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET));
}

static bool parse(struct str text, struct source *out)
{
    char room[INET6_ADDRSTRLEN];
    struct in_addr v4;
    struct in6_addr v6;

    if (text.len == 0 || text.len >= sizeof room)
        return false;
    memcpy(room, text.at, text.len);
    room[text.len] = '\0';
    if (inet_pton(AF_INET, room, &v4) == 1)
        *out = of_v4(&v4);
    else if (inet_pton(AF_INET6, room, &v6) == 1)
        *out = of_v6(&v6);
    else
        return false;
    return true;
}

/* The last address of the last such header: the proxy has added it. The client may have written those before it. */
static struct str last_forwarded(const struct http_head *head)
{
    struct str last = STR("");

    for (size_t i = 0; i < head->header_count; i++)
        if (str_eq_nocase(head->headers[i].name, STR("X-Forwarded-For")))
            last = head->headers[i].value;
    for (size_t i = last.len; i > 0; i--) {
        if (last.at[i - 1] == ',' || last.at[i - 1] == ' ' || last.at[i - 1] == '\t')
            return str_of(last.at + i, last.len - i);
    }
    return last;
}

struct source source_of(const struct sockaddr_storage *peer, const struct http_head *head)
{
    struct source source = { 0 };

    if (is_this_machine(peer) && parse(last_forwarded(head), &source))
        return source;
    if (peer->ss_family == AF_INET)
        return of_v4(&((const struct sockaddr_in *)peer)->sin_addr);
    if (peer->ss_family == AF_INET6)
        return of_v6(&((const struct sockaddr_in6 *)peer)->sin6_addr);
    return source;
}

/* ---- counters ---- */

struct sources {
    uint64_t second;
    unsigned char key[crypto_shorthash_KEYBYTES]; /* of this second */
    uint32_t tries[LIMIT_LINK_COUNTERS];          /* in this second */
};

struct sources *sources_new(void)
{
    struct sources *sources = NEW(struct sources);

    crypto_shorthash_keygen(sources->key);
    return sources;
}

void sources_free(struct sources *sources)
{
    free(sources);
}

static uint32_t *counter_of(struct sources *sources, const struct source *source, uint64_t now_ms)
{
    unsigned char hash[crypto_shorthash_BYTES];
    uint64_t number;

    if (sources->second != now_ms / 1000) {
        sources->second = now_ms / 1000;
        memset(sources->tries, 0, sizeof sources->tries);
        crypto_shorthash_keygen(sources->key);
    }
    (void)crypto_shorthash(hash, source->bytes, sizeof source->bytes, sources->key);
    memcpy(&number, hash, sizeof number);
    return &sources->tries[number % LIMIT_LINK_COUNTERS];
}

bool sources_may(struct sources *sources, const struct source *source, uint64_t now_ms)
{
    return *counter_of(sources, source, now_ms) < LIMIT_LINK_TRIES;
}

void sources_charge(struct sources *sources, const struct source *source, uint64_t now_ms, uint32_t tries)
{
    uint32_t *counter = counter_of(sources, source, now_ms);

    *counter += MIN(tries, UINT32_MAX - *counter);
}
