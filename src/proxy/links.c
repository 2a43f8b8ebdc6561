#include "proxy/links.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "proxy/target.h"

enum { SIGNATURE_BYTES = 48 }; /* "v1_" and 43 characters of base64 */

/* A link that was found. Only a hint for the next time: guestd checks the signature. */
struct known {
    char signature[SIGNATURE_BYTES];
    char id[LIMIT_ID_BYTES];
};

struct links {
    struct sandboxes *sandboxes;
    struct known known[LIMIT_LINKS_KNOWN]; /* the oldest is overwritten */
    size_t next;
    struct map by_signature;
    struct sources *sources;
};

struct links *links_new(struct sandboxes *sandboxes)
{
    struct links *links = NEW(struct links);
    links->sandboxes = sandboxes;
    links->sources = sources_new();
    map_init(&links->by_signature);
    return links;
}

void links_free(struct links *links)
{
    if (!links)
        return;
    sources_free(links->sources);
    map_done(&links->by_signature);
    free(links);
}

static const char *operation_of(const struct http_head *head)
{
    if (head->method == HTTP_GET || head->method == HTTP_HEAD)
        return "read";
    return head->method == HTTP_POST ? "write" : NULL;
}

bool links_is_link(const struct http_head *head)
{
    struct str rest = head->query, name, value;
    if (!str_eq(target_path(head->path), STR("/files")) || !operation_of(head))
        return false;
    while (http_query_next(&rest, &name, &value)) {
        if (str_eq(name, STR("signature")))
            return true;
    }
    return false;
}

static struct str parameter(const struct http_head *head, struct arena *arena, struct str name)
{
    struct str value;
    return http_query(head, arena, name, &value) ? value : STR("");
}

static struct sandbox *recall(struct links *links, struct str signature)
{
    const struct known *known = map_get(&links->by_signature, signature);
    return known ? sandbox_find(links->sandboxes, str_from(known->id)) : NULL;
}

static void remember(struct links *links, struct str signature, const char *id)
{
    struct known *known = &links->known[links->next];
    if (signature.len >= sizeof known->signature || map_get(&links->by_signature, signature))
        return;
    if (known->signature[0])
        (void)map_remove(&links->by_signature, str_from(known->signature));
    snprintf(known->signature, sizeof known->signature, "%.*s", STR_ARG(signature));
    snprintf(known->id, sizeof known->id, "%s", id);
    (void)map_put(&links->by_signature, str_from(known->signature), known);
    links->next = (links->next + 1) % LIMIT_LINKS_KNOWN;
}

static struct file_link link_of(const struct http_head *head, struct arena *arena)
{
    return (struct file_link){
        .path = parameter(head, arena, STR("path")),
        .operation = str_from(operation_of(head)),
        .user = parameter(head, arena, STR("username")),
        .expiration = parameter(head, arena, STR("signature_expiration")),
        .signature = parameter(head, arena, STR("signature")),
    };
}

/* guestd's rule: the link is valid until the end of the second that it names. */
static bool is_expired(struct str expiration)
{
    uint64_t expires_s;
    return expiration.len &&
           (!str_to_u64(expiration, INT64_MAX, &expires_s) || expires_s < (uint64_t)clock_wall_us() / 1000000);
}

bool links_is_valid(const struct http_head *head, struct arena *arena, const struct sandbox *sandbox)
{
    const struct file_link link = link_of(head, arena);
    return !is_expired(link.expiration) && sandbox_has_signed(sandbox, &link);
}

enum links_verdict links_find(struct links *links, const struct http_head *head, struct arena *arena,
                              const struct source *source, uint64_t now_ms, struct sandbox **out)
{
    const struct file_link link = link_of(head, arena);
    struct sandbox *sandbox = recall(links, link.signature);
    if (sandbox) {
        *out = sandbox;
        return LINK_FOUND;
    }
    uint32_t tried;
    if (!sources_may(links->sources, source, now_ms))
        return LINK_BUSY;
    sandbox = sandbox_find_by_link(links->sandboxes, &link, &tried);
    if (!sandbox) {
        sources_charge(links->sources, source, now_ms, tried);
        return LINK_WRONG;
    }
    remember(links, link.signature, sandbox_id(sandbox));
    *out = sandbox;
    return LINK_FOUND;
}
