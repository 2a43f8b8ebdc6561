#include "proxy/sources.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"

enum { COUNTED_V6_BYTES = 8 };

/* ---- who ---- */

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

/* What stands before the last one, in this header or in one above it, is what the client has claimed. */
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

/* ---- how much ---- */

struct entry {
    struct source source;
    uint64_t second, tries; /* in that second */
    struct entry *newer, *older;
};

struct sources {
    struct entry entries[LIMIT_LINK_SOURCES];
    size_t used;
    struct map by_source;
    struct entry *newest, *oldest;
};

struct sources *sources_new(void)
{
    struct sources *sources = NEW(struct sources);

    map_init(&sources->by_source);
    return sources;
}

void sources_free(struct sources *sources)
{
    if (!sources)
        return;
    map_done(&sources->by_source);
    free(sources);
}

static struct str key_of(const struct source *source)
{
    return str_of((const char *)source->bytes, sizeof source->bytes);
}

bool sources_may(const struct sources *sources, const struct source *source, uint64_t now_ms)
{
    const struct entry *entry = map_get(&sources->by_source, key_of(source));

    return !entry || entry->second != now_ms / 1000 || entry->tries < LIMIT_LINK_TRIES;
}

static void unlink_entry(struct sources *sources, struct entry *entry)
{
    *(entry->newer ? &entry->newer->older : &sources->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &sources->oldest) = entry->newer;
}

static void link_newest(struct sources *sources, struct entry *entry)
{
    entry->newer = NULL;
    entry->older = sources->newest;
    *(sources->newest ? &sources->newest->newer : &sources->oldest) = entry;
    sources->newest = entry;
}

/* Its own, or one that is new, or the one that was heard of least lately. */
static struct entry *entry_of(struct sources *sources, const struct source *source)
{
    struct entry *entry = map_get(&sources->by_source, key_of(source));

    if (entry) {
        unlink_entry(sources, entry);
    } else {
        if (sources->used < LIMIT_LINK_SOURCES) {
            entry = &sources->entries[sources->used++];
        } else {
            entry = sources->oldest;
            unlink_entry(sources, entry);
            (void)map_remove(&sources->by_source, key_of(&entry->source));
        }
        *entry = (struct entry){ .source = *source };
        (void)map_put(&sources->by_source, key_of(&entry->source), entry);
    }
    link_newest(sources, entry);
    return entry;
}

void sources_charge(struct sources *sources, const struct source *source, uint64_t now_ms, uint64_t tries)
{
    if (tries == 0)
        return;
    struct entry *entry = entry_of(sources, source);
    if (entry->second != now_ms / 1000) {
        entry->second = now_ms / 1000;
        entry->tries = 0;
    }
    entry->tries += tries;
}
