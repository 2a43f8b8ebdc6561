/*
 * Whose a request is that names no sandbox: by its signature, or by its token. The first byte says who has signed it;
 * then comes the request. A fuzzer finds no signature by itself, so we put the right one in front of those it has.
 */
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>

#include "base/encode.h"
#include "proxy/links.h"
#include "proxy/target.h"
#include "sandbox/inside.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { BOXES = 3, ENDED = 2 };

static struct sandboxes all;
static struct sandbox boxes[BOXES];

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void set_up(void)
{
    static const char *const ids[BOXES] = { "ifirst", "isecond", "iended" };

    if (all.by_id.count)
        return;
    check(sodium_init() >= 0 && pthread_mutex_init(&all.lock, NULL) == 0);
    map_init(&all.by_id);
    map_init(&all.by_token);
    for (size_t i = 0; i < BOXES; i++) {
        (void)snprintf(boxes[i].id, sizeof boxes[i].id, "%s", ids[i]);
        (void)snprintf(boxes[i].token, sizeof boxes[i].token, "token-of-%s", ids[i]);
        boxes[i].references = 1;
        boxes[i].state = i == ENDED ? SANDBOX_STOPPING : SANDBOX_RUNNING;
        boxes[i].all = &all;
        sandbox_enlist(&boxes[i]);
    }
}

/* Only a borrowed look at it: every reference is given back. */
static const struct sandbox *returned(struct sandbox *found)
{
    check(found == &boxes[0] || found == &boxes[1]);
    check(found->references == 2);
    sandbox_unref(found);
    return found;
}

static struct str parameter(const struct http_head *head, struct arena *arena, struct str name)
{
    struct str value;
    return http_query(head, arena, name, &value) ? value : STR("");
}

/* As the SDKs make it. */
static struct str sign(const struct sandbox *box, const struct http_head *head, struct arena *arena)
{
    struct str expiration = parameter(head, arena, STR("signature_expiration"));
    struct buf text = buf_make(arena, 1 << 20);
    unsigned char hash[crypto_hash_sha256_BYTES];
    char *room = arena_alloc(arena, 64);

    buf_add(&text, parameter(head, arena, STR("path")));
    buf_add(&text, head->method == HTTP_POST ? STR(":write:") : STR(":read:"));
    buf_add(&text, parameter(head, arena, STR("username")));
    buf_add_char(&text, ':');
    buf_add(&text, str_from(box->token));
    if (expiration.len) {
        buf_add_char(&text, ':');
        buf_add(&text, expiration);
    }
    check(!text.overflowed);
    (void)crypto_hash_sha256(hash, (const unsigned char *)text.data, text.len);
    memcpy(room, "v1_", 3);
    size_t len = 3 + base64_encode(str_of(hash, sizeof hash), room + 3);
    while (room[len - 1] == '=')
        len--;
    return str_of(room, len);
}

/* By way of a proxy on this machine, so that what it says about others is looked at too. */
static enum links_verdict look(struct links *links, const struct http_head *head, struct arena *arena,
                               struct sandbox **out)
{
    struct sockaddr_storage peer = { .ss_family = AF_INET6 };
    ((struct sockaddr_in6 *)&peer)->sin6_addr = in6addr_loopback;
    struct source source = source_of(&peer, head);

    return links_find(links, head, arena, &source, 1000, out);
}

static void try_as_it_is(struct links *links, const struct http_head *head, struct arena *arena)
{
    struct sandbox *found = NULL;

    if (look(links, head, arena, &found) == LINK_FOUND)
        check(str_eq(parameter(head, arena, STR("signature")), sign(returned(found), head, arena)));
    else
        check(!found);
}

static struct http_head with_signature(const struct http_head *head, struct str signature, struct arena *arena)
{
    struct http_head again = *head;
    struct buf query = buf_make(arena, 1 << 20);

    buf_add(&query, STR("signature="));
    for (size_t i = 0; i < signature.len; i++) {
        if (signature.at[i] == '+')
            buf_add(&query, STR("%2B"));
        else
            buf_add_char(&query, signature.at[i]);
    }
    buf_add_char(&query, '&');
    buf_add(&query, head->query);
    check(!query.overflowed);
    again.query = buf_str(&query);
    return again;
}

static void try_signed(struct links *links, size_t by, const struct http_head *head, struct arena *arena)
{
    struct http_head again = with_signature(head, sign(&boxes[by], head, arena), arena);
    bool is_number = parameter(head, arena, STR("signature_expiration")).len <= FILE_LINK_EXPIRATION_MAX;
    struct sandbox *found = NULL;

    check(links_is_link(&again));
    for (int i = 0; i < 2; i++) { /* searched for, then remembered */
        enum links_verdict verdict = look(links, &again, arena, &found);
        if (by == ENDED || !is_number)
            check(verdict == LINK_WRONG && !found);
        else
            check(verdict == LINK_FOUND && returned(found) == &boxes[by]);
    }
    /* What is remembered is no longer true once that one has ended. */
    boxes[by].state = SANDBOX_STOPPING;
    found = NULL;
    check(look(links, &again, arena, &found) == LINK_WRONG && !found);
    boxes[by].state = by == ENDED ? SANDBOX_STOPPING : SANDBOX_RUNNING;
    /* And for the other operation it was not made. */
    struct links *fresh = links_new(&all);
    again.method = head->method == HTTP_POST ? HTTP_GET : HTTP_POST;
    check(look(fresh, &again, arena, &found) == LINK_WRONG && !found);
    links_free(fresh);
}

static void try_token(struct str token)
{
    struct sandbox *found = sandbox_find_by_token(&all, token);

    if (found)
        check(str_eq(token, str_from(returned(found)->token)));
    else
        for (size_t i = 0; i < BOXES; i++)
            check(i == ENDED || !str_eq(token, str_from(boxes[i].token)));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct arena arena;
    struct http_head head;
    struct str token;
    size_t used;
    struct err err;

    set_up();
    if (!size || http_parse_request(str_of(data + 1, size - 1), &head, &used, &err) != HTTP_DONE)
        return 0;
    arena_init(&arena);
    if (links_is_link(&head)) {
        struct links *links = links_new(&all);
        try_as_it_is(links, &head, &arena);
        try_signed(links, data[0] % BOXES, &head, &arena);
        links_free(links);
    }
    if (target_has_token(&head, &token))
        try_token(token);
    arena_done(&arena);
    return 0;
}
