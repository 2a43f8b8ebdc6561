#include "egress/tunnel.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "egress/inside.h"
#include "egress/sockets.h"
#include "wire/dns.h"
#include "wire/socks5.h"

/*
 *   RESOLVING  the proxy's name: first IPv4, then IPv6; skipped for an address
 *   DIALING    one address after the other; a stream connects, TLS begins by itself, the greeting is queued. With TLS,
 *              first it waits for its turn (handshakes.h)
 *   TALKING    the proxy has answered something
 *   OVER       done() was called
 *
 * A proxy that has answered is not given up for another address.
 */
enum tunnel_state {
    TUNNEL_RESOLVING,
    TUNNEL_DIALING,
    TUNNEL_TALKING,
    TUNNEL_OVER,
};

struct tunnel {
    struct tunnel_want want;
    enum tunnel_state state;
    char host[LIMIT_NET_PROXY_BYTES + 1], server_name[LIMIT_NET_PROXY_BYTES + 1];
    uint16_t port;
    bool has_tls;
    char username[LIMIT_NET_PROXY_BYTES + 1], password[LIMIT_NET_PROXY_BYTES + 1];
    char name[LIMIT_NET_NAME_BYTES + 1];
    struct question *question;
    uint16_t asked_type;
    struct net_address addresses[LIMIT_EGRESS_TRIES];
    unsigned count, next;
    bool was_refused;           /* an address of the proxy's may not be dialed */
    struct handshake handshake; /* with has_tls, while dialing */
    struct stream *stream;
    struct socks5_want socks_want;
    struct socks5 socks;
    struct timer timer;      /* for all of it */
    struct timer dial_timer; /* for this address, while there is another */
    struct err err;          /* for done() */
};

static void text_copy(char *room, size_t size, struct str text)
{
    size_t len = MIN(text.len, size - 1); /* net_policy_check() has seen to it that it fits */

    memcpy(room, text.at, len);
    room[len] = '\0';
}

static void let_go(struct tunnel *tunnel)
{
    timer_clear(&tunnel->timer);
    timer_clear(&tunnel->dial_timer);
    questions_cancel(take_ptr(&tunnel->question));
    stream_free(take_ptr(&tunnel->stream));
    handshake_end(&tunnel->handshake);
}

static void on_failed(struct timer *timer)
{
    struct tunnel *tunnel = container_of(timer, struct tunnel, timer);

    tunnel->want.done(tunnel->want.context, NULL, &tunnel->err);
}

/* done() comes when the turn ends: we may be inside tunnel_new(). */
static void fail(struct tunnel *tunnel)
{
    if (tunnel->state == TUNNEL_OVER)
        return;
    tunnel->state = TUNNEL_OVER;
    let_go(tunnel);
    timer_set(&tunnel->timer, tunnel->want.loop, 0, on_failed);
}

static void fail_as(struct tunnel *tunnel, enum err_kind kind, const char *text)
{
    (void)err_set(&tunnel->err, kind, "the egress proxy: %s", text);
    fail(tunnel);
}

static void on_late(struct timer *timer)
{
    struct tunnel *tunnel = container_of(timer, struct tunnel, timer);

    if (handshake_waits(&tunnel->handshake))
        fail_as(tunnel, ERR_TIMEOUT, "too many TLS handshakes of this sandbox are before it");
    else
        fail_as(tunnel, ERR_TIMEOUT, "it took too long");
}

/* ---- talking ---- */

static void dial_next(struct tunnel *tunnel);

static void on_input(struct stream *stream)
{
    struct tunnel *tunnel = stream->owner;
    struct str in = buf_str(&stream->in);
    size_t before = in.len;
    auto_buf struct buf out = buf_make(NULL, 1024);

    tunnel->state = TUNNEL_TALKING;
    timer_clear(&tunnel->dial_timer);
    enum socks5_step step = socks5_next(&tunnel->socks, &in, &out, &tunnel->err);
    buf_drop(&stream->in, before - in.len);
    if (out.len) {
        stream_write(stream, buf_str(&out));
        explicit_bzero(out.data, out.len); /* the password */
    }
    if (step == SOCKS5_BAD) {
        fail(tunnel);
    } else if (step == SOCKS5_DONE) {
        tunnel->state = TUNNEL_OVER;
        timer_clear(&tunnel->timer);
        stream_read(stream, false);
        tunnel->stream = NULL;
        tunnel->want.done(tunnel->want.context, stream, NULL);
    }
}

static void on_end(struct stream *stream, const struct err *err)
{
    struct tunnel *tunnel = stream->owner;

    if (tunnel->state == TUNNEL_DIALING && err) {
        tunnel->err = *err;
        dial_next(tunnel);
        return;
    }
    if (err)
        (void)err_set(&tunnel->err, ERR_UNAVAILABLE, "the egress proxy: %.120s", err->message);
    else
        (void)err_set(&tunnel->err, ERR_UNAVAILABLE, "the egress proxy: it closed the connection");
    fail(tunnel);
}

static const struct stream_events events = { .on_input = on_input, .on_end = on_end };

/* ---- dialing ---- */

static void on_handshake_over(void *context)
{
    handshake_end(&((struct tunnel *)context)->handshake);
}

static bool dial(struct tunnel *tunnel, const struct net_address *address)
{
    const struct tunnel_want *want = &tunnel->want;
    const struct tls_connect_want tls = { .name = tunnel->server_name, .over = on_handshake_over, .context = tunnel };
    auto_buf struct buf out = buf_make(NULL, 16);
    int fd = socket_dial(address, tunnel->port, want->buffer_bytes, &tunnel->err);

    if (fd < 0)
        return false;
    tunnel->stream = stream_new_connecting(want->loop, fd, want->in_cap, &events, tunnel);
    if (tunnel->has_tls && !tls_connect_for(want->tls, tunnel->stream, &tls, &tunnel->err)) {
        stream_free(take_ptr(&tunnel->stream));
        return false;
    }
    socks5_begin(&tunnel->socks, &tunnel->socks_want, &out);
    stream_write(tunnel->stream, buf_str(&out));
    stream_read(tunnel->stream, true);
    return true;
}

static void on_dial_late(struct timer *timer)
{
    struct tunnel *tunnel = container_of(timer, struct tunnel, dial_timer);

    (void)err_set(&tunnel->err, ERR_TIMEOUT, "it took too long");
    dial_next(tunnel);
}

static void on_turn(struct handshake *handshake)
{
    dial_next(container_of(handshake, struct tunnel, handshake));
}

static void dial_next(struct tunnel *tunnel)
{
    stream_free(take_ptr(&tunnel->stream));
    timer_clear(&tunnel->dial_timer);
    if (tunnel->has_tls && tunnel->next < tunnel->count && !handshake_has_begun(&tunnel->handshake)) {
        handshake_begin(&tunnel->handshake, tunnel->want.handshakes, on_turn);
        return;
    }
    while (tunnel->next < tunnel->count)
        if (dial(tunnel, &tunnel->addresses[tunnel->next++])) {
            if (tunnel->next < tunnel->count)
                timer_set(&tunnel->dial_timer, tunnel->want.loop, LIMIT_EGRESS_DIAL_ONE_MS, on_dial_late);
            return;
        }
    if (tunnel->count) {
        struct err why = tunnel->err;
        (void)err_set(&tunnel->err, ERR_UNAVAILABLE, "the egress proxy: %.120s", why.message);
        fail(tunnel);
    } else if (tunnel->was_refused) {
        fail_as(tunnel, ERR_DENIED, "its address is not one that sandboxes may reach");
    } else {
        fail_as(tunnel, ERR_UNAVAILABLE, "its name leads nowhere");
    }
}

static void add_address(struct tunnel *tunnel, const struct net_address *address)
{
    if (!tunnel->want.may_dial(tunnel->want.dial_context, address, tunnel->port))
        tunnel->was_refused = true;
    else if (tunnel->count < LIMIT_EGRESS_TRIES)
        tunnel->addresses[tunnel->count++] = *address;
}

/* ---- resolving ---- */

static void resolve(struct tunnel *tunnel, uint16_t type);

static void on_resolved(void *context, const struct dns_answer *answer)
{
    struct tunnel *tunnel = context;
    struct net_address address;

    tunnel->question = NULL;
    for (uint32_t i = 0; i < answer->count; i++)
        if (dns_record_address(&answer->records[i], &address))
            add_address(tunnel, &address);
    if (tunnel->count == 0 && tunnel->asked_type == DNS_A) {
        resolve(tunnel, DNS_AAAA);
        return;
    }
    tunnel->state = TUNNEL_DIALING;
    dial_next(tunnel);
}

static void resolve(struct tunnel *tunnel, uint16_t type)
{
    tunnel->asked_type = type;
    tunnel->question = questions_ask(tunnel->want.sandbox, str_from(tunnel->host), type, on_resolved, tunnel);
    if (!tunnel->question)
        fail_as(tunnel, ERR_LIMIT, "too many DNS questions to look it up");
}

/* ---- life ---- */

static void fill_in(struct tunnel *tunnel, const struct net_proxy *proxy)
{
    const struct tunnel_want *want = &tunnel->want;

    text_copy(tunnel->host, sizeof tunnel->host, proxy->host);
    text_copy(tunnel->server_name, sizeof tunnel->server_name,
              proxy->server_name.len ? proxy->server_name : proxy->host);
    text_copy(tunnel->name, sizeof tunnel->name, want->name);
    text_copy(tunnel->username, sizeof tunnel->username, proxy->username);
    text_copy(tunnel->password, sizeof tunnel->password, proxy->password);
    tunnel->port = proxy->port;
    tunnel->has_tls = proxy->tls;
    tunnel->want.proxy = NULL; /* the policy may be replaced meanwhile */
    tunnel->socks_want = (struct socks5_want){
        .username = str_of(tunnel->username, proxy->username.len),
        .password = str_of(tunnel->password, proxy->password.len),
        .name = str_from(tunnel->name),
        .is_v4 = net_address_is_v4(&want->to),
        .port = want->port,
    };
    memcpy(tunnel->socks_want.address, net_address_bytes(&want->to).at, net_address_bytes(&want->to).len);
}

/* A proxy at a name that stays inside: every sandbox may reach it. */
static void use_service(struct tunnel *tunnel, const struct egress_service *any)
{
    const struct egress_service *service = egress_service_on(tunnel->want.sandbox->egress, any, tunnel->port);

    if (!service) {
        fail_as(tunnel, ERR_UNAVAILABLE, "its name stays inside, and --inside does not have this port");
        return;
    }
    tunnel->state = TUNNEL_DIALING;
    tunnel->port = service->to_port;
    tunnel->addresses[tunnel->count++] = service->to;
    dial_next(tunnel);
}

struct tunnel *tunnel_new(const struct tunnel_want *want)
{
    struct tunnel *tunnel = NEW(struct tunnel);
    const struct egress_service *inside = egress_service_named(want->sandbox->egress, want->proxy->host);
    struct net_address address;

    tunnel->want = *want;
    tunnel->want.tls = tls_client_ref(want->tls);
    fill_in(tunnel, want->proxy);
    timer_set(&tunnel->timer, want->loop, LIMIT_EGRESS_DIAL_MS, on_late);
    if (tunnel->has_tls && !want->tls) {
        fail_as(tunnel, ERR_UNAVAILABLE, "this server knows no certificates to trust");
    } else if (inside) {
        use_service(tunnel, inside);
    } else if (net_address_parse(str_from(tunnel->host), &address)) {
        tunnel->state = TUNNEL_DIALING;
        add_address(tunnel, &address);
        dial_next(tunnel);
    } else {
        resolve(tunnel, DNS_A);
    }
    return tunnel;
}

static void dispose(void *object)
{
    struct tunnel *tunnel = object;

    tls_client_unref(tunnel->want.tls);
    explicit_bzero(tunnel, sizeof *tunnel);
    free(tunnel);
}

void tunnel_free(struct tunnel *tunnel)
{
    if (!tunnel)
        return;
    let_go(tunnel);
    tunnel->state = TUNNEL_OVER;
    loop_retire(tunnel->want.loop, tunnel, dispose);
}
