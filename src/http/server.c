/*
 * server.c - accepts connections and decides which one to close when there are too many.
 *
 * A connection rests (server_settle()) while it waits for a request, or while its client is slow to take a complete
 * answer or to close. At connections_max the one that has rested the longest is closed for the new one, untrusted ones
 * first. So only requests under way can use up all places, and those are bounded elsewhere: by keys, and by the edge's
 * share.
 */
#include <stdio.h>

#include "base/fd.h"
#include "base/limits.h"
#include "http/inside.h"
#include "io/listen.h"

enum {
    LINGER_MS = 2000,
    ACCEPTS_A_TURN = 64, /* then existing connections are served */
    REFUSALS_MOST = 64,  /* connections past the limit that are told so, at a time */
};

/* ---- memory that all bodies share ---- */

static void server_dispose(void *object)
{
    struct http_server *server = object;

    buf_done(&server->scratch);
    free(server->spare);
    free(server);
}

static void server_unref(struct http_server *server)
{
    if (--server->references == 0)
        loop_retire(server->loop, server, server_dispose);
}

/* An exchange that a worker holds may outlive its server: as long as it has lent bytes it holds a reference. */
void server_lend(struct http_server *server, struct exchange *e, size_t size)
{
    if (!e->lender) {
        e->lender = server;
        server->references++;
    }
    e->lent += size;
    server->lent += size;
}

void server_take_back(struct exchange *e)
{
    struct http_server *server = take_ptr(&e->lender);

    if (!server)
        return;
    server->lent -= e->lent;
    e->lent = 0;
    server_unref(server);
}

/* ---- crowds ---- */

/* An answer is being made for it, or, if it is trusted, is being sent to it. */
static bool is_served(const struct connection *c)
{
    for (struct queue_link *link = c->exchanges.first; link; link = link->next) {
        const struct exchange *e = container_of(link, struct exchange, place);
        if (!e->outer.gone && (e->answer != ANSWER_ENDED || c->trusted))
            return true;
    }
    return false;
}

/* The list it rests in, or NULL while it is busy. */
static struct queue *resting_place(const struct connection *c)
{
    struct http_server *server = c->server;

    if (c->state == CONN_CLOSED || c->is_refused)
        return NULL;
    if (c->state == CONN_BUSY && is_served(c))
        return NULL;
    return c->trusted ? &server->known : &server->strangers;
}

void server_settle(struct connection *c)
{
    struct queue *place = resting_place(c);

    if (c->resting.in == place && c->rested_after == c->requests)
        return;
    queue_leave(&c->resting);
    if (place)
        queue_join(place, &c->resting);
    c->rested_after = c->requests;
}

static void evict(struct connection *c)
{
    conn_close(c, c->state == CONN_BUSY);
    conn_step(c);
}

/* At the limit: close the connection that has rested the longest, or else give up the body that was started first. */
static bool make_room(struct http_server *server)
{
    struct queue_link *resting = server->strangers.first ? server->strangers.first : server->known.first;
    struct queue_link *collecting = server->collecting.first;
    struct connection *c;

    /* With HTTP/2 a connection may carry other exchanges, which are not given up with the body. */
    while (collecting && container_of(collecting, struct exchange, collecting)->connection->exchanges.first->next)
        collecting = collecting->next;
    if (resting)
        c = container_of(resting, struct connection, resting);
    else if (collecting)
        c = container_of(collecting, struct exchange, collecting)->connection;
    else
        return false;
    evict(c);
    return true;
}

/* A resting connection whose exchanges are answered, and whose client is slow to take the answers. */
static struct connection *slow_one(const struct queue *resting, const struct connection *except)
{
    for (struct queue_link *link = resting->first; link; link = link->next) {
        struct connection *c = container_of(link, struct connection, resting);
        if (c != except && c->http2 && c->exchanges.first)
            return c;
    }
    return NULL;
}

bool server_has_room(struct http_server *server, const struct connection *c)
{
    while (server->stream_count >= LIMIT_HTTP2_EXCHANGES) {
        struct connection *slow = slow_one(&server->strangers, c);
        if (!slow)
            slow = slow_one(&server->known, c);
        if (!slow)
            return false;
        evict(slow);
    }
    return true;
}

struct exchange *server_spare(struct http_server *server)
{
    if (!server->spare)
        server->spare = NEW(struct exchange);
    return server->spare;
}

static void adopt(struct http_server *server, int fd, const struct http_protocol *protocol, const char *label)
{
    bool is_refused = server->connection_count >= server->config.connections_max && !make_room(server);

    if (is_refused && server->refused_count >= REFUSALS_MOST) {
        fd_close(&fd);
        return;
    }
    struct connection *c = NEW(struct connection);
    (void)snprintf(c->label, sizeof c->label, "%s", label);
    c->is_refused = is_refused;
    c->server = server;
    c->loop = server->loop;
    c->protocol = protocol ? protocol : &http1_protocol;
    c->is_chosen = protocol;
    c->stream = stream_new(server->loop, fd, EARLY_INPUT_BYTES, &conn_events, c);
    c->next = server->connections;
    if (c->next)
        c->next->previous = c;
    server->connections = c;
    *(is_refused ? &server->refused_count : &server->connection_count) += 1;
    c->protocol->begin(c);
    if (is_refused)
        conn_refuse(c, NULL, 503, "too many connections"); /* plain: a handshake for each is what we have no room for */
    else if (server->config.on_connection)
        server->config.on_connection(c->stream, server->config.context);
    stream_read(c->stream, true);
    server_settle(c);
    conn_watch(c);
}

void server_adopt(struct http_server *server, int fd, const struct http_protocol *protocol)
{
    adopt(server, fd, protocol, "");
}

void http_server_adopt(struct http_server *server, int fd)
{
    adopt(server, fd, NULL, "");
}

void http_server_adopt_as(struct http_server *server, int fd, const char *label)
{
    adopt(server, fd, NULL, label);
}

static void on_accepted(void *context, int fd)
{
    http_server_adopt(context, fd);
}

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    return value ? value : otherwise;
}

struct http_server *http_server_new(struct loop *loop, int listen_fd, const struct http_server_config *config)
{
    struct http_server *server = NEW(struct http_server);

    server->loop = loop;
    server->config = *config;
    server->config.connections_max = config->connections_max ? config->connections_max : LIMIT_CONNECTIONS;
    server->config.head_ms = or_default(config->head_ms, LIMIT_HEAD_MS);
    server->config.body_idle_ms = or_default(config->body_idle_ms, LIMIT_BODY_IDLE_MS);
    server->config.write_idle_ms = or_default(config->write_idle_ms, LIMIT_WRITE_IDLE_MS);
    server->config.keepalive_ms = or_default(config->keepalive_ms, LIMIT_KEEPALIVE_MS);
    server->config.stranger_ms = or_default(config->stranger_ms, server->config.keepalive_ms);
    server->config.linger_ms = or_default(config->linger_ms, LINGER_MS);
    server->config.collect_max = or_default(config->collect_max, LIMIT_COLLECT_BYTES);
    server->references = 1;
    server->scratch = buf_make(NULL, LIMIT_HEAD_BYTES);
    if (listen_fd >= 0)
        server->listener = listener_new(loop, listen_fd, ACCEPTS_A_TURN, on_accepted, server);
    return server;
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    listener_free(server->listener);
    while (server->connections) {
        struct connection *c = server->connections;
        bool is_busy = c->state == CONN_BUSY;
        conn_close(c, is_busy);
        conn_step(c); /* unless we are inside a step of its own, which then ends by itself */
    }
    server_unref(server);
}
