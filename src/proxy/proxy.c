#include "proxy/proxy.h"

#include <assert.h>
#include <stdio.h>

#include "base/map.h"
#include "base/mem.h"
#include "io/tls.h"
#include "proxy/admit.h"
#include "proxy/forward.h"
#include "proxy/links.h"
#include "proxy/refuse.h"
#include "proxy/target.h"
#include "proxy/wake.h"

/* An API key with open peers. */
struct owner {
    char key_id[64];
    unsigned peer_count;
    struct places places;
};

struct proxy {
    struct loop *loop;
    struct sandboxes *sandboxes;
    struct map peers;     /* by sandbox id; a peer exists while something is open with its sandbox */
    struct peer *first;   /* the same as a list, to walk while some of them go */
    struct places places; /* of all peers together */
    unsigned forwards_max;
    struct map owners;  /* by key */
    unsigned owner_max; /* of one owner's peers together */
    struct timer sweep; /* set while there are idle connections */
    struct links *links;
    struct wakes *wakes;
    struct workers *workers; /* for handshakes with services that expect TLS… */
    struct tls_client *tls;  /* …and this is for them; NULL: none was reached yet */
};

static wake_go_fn handle_awake;

struct proxy *proxy_new(struct loop *loop, struct sandboxes *sandboxes)
{
    struct proxy *proxy = NEW(struct proxy);
    proxy->loop = loop;
    proxy->sandboxes = sandboxes;
    proxy->forwards_max = LIMIT_EDGE_SHARE;
    proxy->owner_max = LIMIT_EDGE_KEY;
    map_init(&proxy->owners);
    proxy->links = links_new(sandboxes);
    proxy->wakes = wakes_new(loop, handle_awake, proxy);
    map_init(&proxy->peers);
    return proxy;
}

void proxy_limit(struct proxy *proxy, unsigned forwards_max)
{
    proxy->forwards_max = forwards_max;
}

void proxy_limit_key(struct proxy *proxy, unsigned forwards_max)
{
    proxy->owner_max = forwards_max;
}

void proxy_use_workers(struct proxy *proxy, struct workers *workers)
{
    proxy->workers = workers;
    wakes_use_workers(proxy->wakes, workers);
}

/* ---- peers ---- */

static struct owner *owner_of(struct proxy *proxy, const char *key_id)
{
    if (!key_id[0])
        return NULL;
    struct owner *owner = map_get(&proxy->owners, str_from(key_id));
    if (!owner) {
        owner = NEW(struct owner);
        snprintf(owner->key_id, sizeof owner->key_id, "%s", key_id);
        map_put(&proxy->owners, str_from(owner->key_id), owner);
    }
    owner->peer_count++;
    return owner;
}

static void owner_left(struct proxy *proxy, struct owner *owner)
{
    if (!owner || --owner->peer_count)
        return;
    map_remove(&proxy->owners, str_from(owner->key_id));
    free(owner);
}

static struct peer *peer_of(struct proxy *proxy, const struct sandbox *sandbox)
{
    const char *id = sandbox_id(sandbox);
    struct peer *peer = map_get(&proxy->peers, str_from(id));
    if (!peer) {
        peer = NEW(struct peer);
        snprintf(peer->id, sizeof peer->id, "%s", id);
        peer->proxy = proxy;
        peer->owner = owner_of(proxy, sandbox_key_id(sandbox));
        peer->next = proxy->first;
        peer->at = &proxy->first;
        if (peer->next)
            peer->next->at = &peer->next;
        proxy->first = peer;
        map_put(&proxy->peers, str_from(peer->id), peer);
    }
    return peer;
}

static void drop_if_unused(struct peer *peer)
{
    if (peer->references || peer->idle_count)
        return;
    map_remove(&peer->proxy->peers, str_from(peer->id));
    *peer->at = peer->next;
    if (peer->next)
        peer->next->at = peer->at;
    owner_left(peer->proxy, peer->owner);
    free(peer);
}

struct loop *peer_loop(const struct peer *peer)
{
    return peer->proxy->loop;
}

void peer_ref(struct peer *peer)
{
    peer->references++;
}

void peer_unref(struct peer *peer)
{
    peer->references--;
    drop_if_unused(peer);
}

static void count_one(struct places *places, enum admission admission, int by)
{
    places->all += (unsigned)by;
    if (admission != ADMIT_KNOWN)
        places->outsiders += (unsigned)by;
    if (admission == ADMIT_STRANGER)
        places->strangers += (unsigned)by;
}

static void count_everywhere(struct peer *peer, enum admission admission, int by)
{
    count_one(&peer->places, admission, by);
    count_one(&peer->proxy->places, admission, by);
    if (peer->owner)
        count_one(&peer->owner->places, admission, by);
}

void peer_take_place(struct peer *peer, enum admission admission)
{
    count_everywhere(peer, admission, 1);
}

void peer_give_place(struct peer *peer, enum admission admission)
{
    count_everywhere(peer, admission, -1);
}

bool peer_add_tls(struct peer *peer, struct stream *stream, struct err *err)
{
    struct proxy *proxy = peer->proxy;
    if (!proxy->tls) {
        proxy->tls = tls_client_new(proxy->loop, NULL, err);
        if (proxy->tls && proxy->workers)
            tls_client_use_workers(proxy->tls, proxy->workers);
    }
    /* An address: no name is sent, as E2B's edge does. */
    const struct tls_connect_want want = { .name = "127.0.0.1", .owner = peer->id };
    return proxy->tls && tls_connect_for(proxy->tls, stream, &want, err);
}

struct stream *peer_take_idle(struct peer *peer)
{
    /* The newest is the least likely to have died. If it has, the request is sent again: see forward.c. */
    return peer->idle_count ? peer->idle[--peer->idle_count].stream : NULL;
}

/* guestd has closed it, or sent bytes that we did not ask for. */
static void on_idle_over(struct stream *stream)
{
    struct peer *peer = stream->owner;
    unsigned at = 0;
    while (peer->idle[at].stream != stream)
        at++;
    peer->idle_count--;
    memmove(peer->idle + at, peer->idle + at + 1, (peer->idle_count - at) * sizeof *peer->idle);
    stream_free(stream);
    drop_if_unused(peer);
}

static void on_idle_end(struct stream *stream, const struct err *err)
{
    (void)err;
    on_idle_over(stream);
}

static const struct stream_events idle_events = { .on_input = on_idle_over, .on_end = on_idle_end };

/* Close the connections that are idle since before `before_ms`; they are the first ones. */
static void drop_idle(struct peer *peer, uint64_t before_ms)
{
    unsigned old = 0;
    while (old < peer->idle_count && peer->idle[old].since_ms < before_ms)
        stream_free(peer->idle[old++].stream);
    peer->idle_count -= old;
    memmove(peer->idle, peer->idle + old, peer->idle_count * sizeof *peer->idle);
}

static void on_sweep(struct timer *timer)
{
    struct proxy *proxy = container_of(timer, struct proxy, sweep);
    uint64_t now_ms = loop_now_ms(proxy->loop);
    uint64_t before_ms = now_ms > LIMIT_EDGE_IDLE_MS ? now_ms - LIMIT_EDGE_IDLE_MS : 0;
    bool more = false;
    for (struct peer *peer = proxy->first, *next; peer; peer = next) {
        next = peer->next;
        drop_idle(peer, before_ms);
        more |= peer->idle_count > 0;
        drop_if_unused(peer);
    }
    if (more)
        timer_set(&proxy->sweep, proxy->loop, LIMIT_EDGE_IDLE_MS / 4, on_sweep);
}

void peer_keep_idle(struct peer *peer, struct http_call *call)
{
    struct proxy *proxy = peer->proxy;
    struct stream *stream = peer->idle_count < LIMIT_EDGE_IDLE ? http_call_take_idle(call, &idle_events, peer) : NULL;
    if (!stream)
        return; /* it is closed with its call */
    peer->idle[peer->idle_count++] = (struct idle){ .stream = stream, .since_ms = loop_now_ms(proxy->loop) };
    if (!timer_is_set(&proxy->sweep))
        timer_set(&proxy->sweep, proxy->loop, LIMIT_EDGE_IDLE_MS / 4, on_sweep);
}

static void cut_peer(struct peer *peer)
{
    drop_idle(peer, UINT64_MAX);
    forward_cut_all(peer);
}

void proxy_cut(struct proxy *proxy, const char *sandbox_id)
{
    struct peer *peer = map_get(&proxy->peers, str_from(sandbox_id));
    if (peer)
        cut_peer(peer);
}

void proxy_free(struct proxy *proxy)
{
    if (!proxy)
        return;
    for (struct peer *peer = proxy->first, *next; peer; peer = next) {
        next = peer->next;
        cut_peer(peer);
    }
    timer_clear(&proxy->sweep);
    map_done(&proxy->peers);
    map_done(&proxy->owners);
    wakes_free(proxy->wakes);
    links_free(proxy->links);
    tls_client_unref(proxy->tls);
    free(proxy);
}

/* ---- requests ---- */

bool proxy_is_edge(const struct proxy *proxy, const struct http_head *head)
{
    struct target target;
    struct str token;
    (void)proxy;
    return target_of(head, &target) != TARGET_NONE || links_is_link(head) || target_has_token(head, &token);
}

/* guestd checks the access token. All other ports of a private sandbox need the traffic token. */
static bool may_enter(const struct sandbox *sandbox, const struct target *target, const struct http_head *head)
{
    const struct str *token = http_header(head, STR("E2b-Traffic-Access-Token"));
    return target->port == GUESTD_PORT || sandbox_admits(sandbox, token ? *token : STR(""));
}

/* ---- places ---- */

/* Outsiders have fewer places than there are, so that some are always left for callers with a token. */
static_assert(LIMIT_EDGE_GUESTD < LIMIT_GUEST_CONNECTIONS, "connections that close still count for a moment");
static_assert(LIMIT_EDGE_STRANGERS < LIMIT_EDGE_OUTSIDERS, "strangers could keep out links");

/* One of the three limits on what is open. */
struct level {
    const struct places *places;
    unsigned most, outsiders_most, strangers_most;
    enum refusal why;
};

enum { LEVEL_SANDBOX, LEVEL_KEY, LEVEL_ALL, LEVELS };

static bool is_in(const struct peer *peer, const struct peer *other, int level)
{
    return level == LEVEL_ALL || peer == other || (level == LEVEL_KEY && peer->owner == other->owner);
}

/*
 * The forward to evict for a newcomer. Known newcomer: evict an outsider of the sandbox with most outsiders. Outsider:
 * the same, if that sandbox has at least two more than its own; else only one of its own sandbox that is waiting for
 * its client.
 */
static struct forward *find_evicted(struct proxy *proxy, const struct peer *peer, int level, bool is_known)
{
    const struct peer *crowded = peer;
    for (const struct peer *other = proxy->first; other; other = other->next) {
        if (is_in(other, peer, level) && other->places.outsiders > crowded->places.outsiders)
            crowded = other;
    }
    bool is_unfair = crowded->places.outsiders > peer->places.outsiders + 1;
    return is_known || is_unfair ? forward_outsider(crowded, 0, true) : forward_outsider(peer, 0, false);
}

/* Outsiders' part, rounded up: a single place is open to all. */
static unsigned part_of(unsigned most)
{
    return (most + LIMIT_EDGE_STRANGERS_PART - 1) / LIMIT_EDGE_STRANGERS_PART;
}

static bool is_full(const struct level *level, enum admission admission)
{
    const struct places *places = level->places;
    return places->all >= level->most || (admission != ADMIT_KNOWN && places->outsiders >= level->outsiders_most) ||
           (admission == ADMIT_STRANGER && places->strangers >= level->strangers_most);
}

/* guestd accepts fewer connections at each of its ports than the edge: outsiders there make room for known callers. */
static void make_room_inside(const struct peer *peer, const struct target *target)
{
    struct forward *evicted;
    if (target->port != GUESTD_PORT && target->port != GUESTD_CODE_PORT)
        return;
    while (forward_count_at(peer, target->port) >= LIMIT_EDGE_GUESTD &&
           (evicted = forward_outsider(peer, target->port, true)))
        forward_evict(evicted);
}

static bool make_place(struct proxy *proxy, struct peer *peer, enum admission admission, enum refusal *out_why)
{
    bool is_known = admission == ADMIT_KNOWN;
    unsigned key_part = part_of(proxy->owner_max), all_part = part_of(proxy->forwards_max);
    const struct level levels[LEVELS] = {
        [LEVEL_SANDBOX] = { &peer->places, LIMIT_EDGE_CONNECTIONS, LIMIT_EDGE_OUTSIDERS, LIMIT_EDGE_STRANGERS,
                            is_known ? REFUSE_CROWDED : REFUSE_STRANGERS },
        [LEVEL_KEY] = { peer->owner ? &peer->owner->places : NULL, proxy->owner_max, key_part, key_part,
                        REFUSE_GREEDY },
        [LEVEL_ALL] = { &proxy->places, proxy->forwards_max, all_part, all_part, REFUSE_FULL },
    };
    for (int i = 0; i < LEVELS; i++) {
        const struct level *level = &levels[i];
        while (level->places && is_full(level, admission)) {
            struct forward *evicted = find_evicted(proxy, peer, i, is_known);
            *out_why = level->why;
            if (!evicted)
                return false;
            forward_evict(evicted);
        }
    }
    return true;
}

/* Takes the reference. */
static void enter(struct proxy *proxy, struct http_exchange *ex, const struct target *target, struct sandbox *sandbox,
                  enum admission admission)
{
    struct peer *peer = peer_of(proxy, sandbox);
    enum refusal why;
    peer_ref(peer); /* an eviction may take its last forward */
    if (admission == ADMIT_KNOWN)
        make_room_inside(peer, target);
    if (make_place(proxy, peer, admission, &why)) {
        forward_start(peer, sandbox, ex, target, admission);
    } else {
        sandbox_unref(sandbox);
        refuse(ex, target, why);
    }
    peer_unref(peer);
}

/* Takes the reference. */
static void pass_on(struct proxy *proxy, struct http_exchange *ex, const struct target *target, struct sandbox *sandbox)
{
    bool is_private = !may_enter(sandbox, target, &ex->head);
    enum admission admission = is_private ? ADMIT_REFUSED : admit(sandbox, target, &ex->head, &ex->arena);
    /* In any case its body has little time. */
    if (admission == ADMIT_STRANGER || admission == ADMIT_REFUSED)
        http_body_patience(ex, LIMIT_STRANGER_BODY_MS);
    if (admission != ADMIT_REFUSED) {
        enter(proxy, ex, target, sandbox, admission);
        return;
    }
    sandbox_unref(sandbox);
    if (is_private)
        refuse(ex, target, REFUSE_PRIVATE);
    else
        refuse_token(ex, target);
}

static void handle_link(struct proxy *proxy, struct http_exchange *ex)
{
    struct target target = { .port = GUESTD_PORT };
    struct sockaddr_storage peer = { 0 };
    struct sandbox *sandbox;
    http_peer(ex, &peer);
    struct source source = source_of(&peer, &ex->head);
    enum links_verdict verdict =
        links_find(proxy->links, &ex->head, &ex->arena, &source, loop_now_ms(proxy->loop), &sandbox);
    if (verdict != LINK_FOUND) {
        refuse_link(ex, verdict);
        return;
    }
    snprintf(target.id, sizeof target.id, "%s", sandbox_id(sandbox));
    pass_on(proxy, ex, &target, sandbox);
}

/* The token grants access. A wrong token and one of a sandbox that has ended are answered alike. */
static void handle_token(struct proxy *proxy, struct http_exchange *ex, struct str token)
{
    struct target target = { .port = GUESTD_PORT };
    struct sandbox *sandbox = sandbox_find_by_token(proxy->sandboxes, token);
    if (!sandbox) {
        refuse(ex, &target, REFUSE_NOT_FOUND);
        return;
    }
    snprintf(target.id, sizeof target.id, "%s", sandbox_id(sandbox));
    pass_on(proxy, ex, &target, sandbox);
}

/*
 * May this request wake the sandbox? A caller of guestd needs the token, or a link that was signed with it, whatever the
 * route: strangers could keep the sandbox awake with requests for /health. Other ports are open unless it is private.
 */
static bool may_wake(const struct sandbox *sandbox, const struct target *target, struct http_exchange *ex,
                     enum refusal *out_why)
{
    *out_why = REFUSE_PRIVATE;
    if (!may_enter(sandbox, target, &ex->head))
        return false;
    *out_why = REFUSE_ASLEEP;
    enum admission admission = admit(sandbox, target, &ex->head, &ex->arena);
    return admission != ADMIT_REFUSED && (admission != ADMIT_STRANGER || target->port != GUESTD_PORT);
}

/* It does not run. If it is paused and traffic may wake it, the request waits for that. */
static void handle_absent(struct proxy *proxy, struct http_exchange *ex, const struct target *target, uint64_t until_ms)
{
    bool is_preflight = target->port == GUESTD_PORT && target_is_preflight(&ex->head); /* refuse() grants it */
    struct sandbox *sandbox = is_preflight ? NULL : sandbox_find_sleeping(proxy->sandboxes, str_from(target->id));
    enum refusal why = REFUSE_NOT_FOUND;
    if (sandbox && may_wake(sandbox, target, ex, &why)) {
        wakes_add(proxy->wakes, sandbox, ex, target, until_ms);
        return;
    }
    if (sandbox)
        sandbox_unref(sandbox);
    refuse(ex, target, why);
}

static void handle_awake(void *context, struct http_exchange *ex, const struct target *target, uint64_t until_ms)
{
    struct proxy *proxy = context;
    struct sandbox *sandbox = sandbox_find(proxy->sandboxes, str_from(target->id));
    if (sandbox)
        pass_on(proxy, ex, target, sandbox);
    else
        handle_absent(proxy, ex, target, until_ms);
}

void proxy_handle(struct proxy *proxy, struct http_exchange *ex)
{
    struct target target;
    struct str token;
    enum target_verdict verdict = target_of(&ex->head, &target);
    if (verdict == TARGET_PREFLIGHT) {
        grant_preflight(ex);
        return;
    }
    if (verdict == TARGET_NONE && links_is_link(&ex->head)) {
        handle_link(proxy, ex);
        return;
    }
    if (verdict == TARGET_NONE && target_has_token(&ex->head, &token)) {
        handle_token(proxy, ex, token);
        return;
    }
    if (verdict != TARGET_FOUND) {
        refuse_unroutable(ex, verdict);
        return;
    }
    /* Before the lookup: these are refused whether the sandbox exists or not. */
    struct str path;
    if (target.port == GUESTD_PORT && target_is_control_path(ex->head.path, &ex->arena, &path)) {
        refuse_control_path(ex, path);
        return;
    }
    struct sandbox *sandbox = sandbox_find(proxy->sandboxes, str_from(target.id));
    if (sandbox)
        pass_on(proxy, ex, &target, sandbox);
    else
        handle_absent(proxy, ex, &target, 0);
}
