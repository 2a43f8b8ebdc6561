/*
 * Theory of operation
 *
 * A connection is a filter (filter.h) around an SSL of OpenSSL's. OpenSSL never sees the socket: its BIO reads from `raw`
 * and writes to the filter's `out`. It is given whole records only (`ready` bytes of `raw`). So a peer that sends its
 * hello byte by byte costs neither a worker nor an SSL, and an SSL_read() that returns nothing while `ready` is not 0 has
 * seen a record without data.
 *
 *     HELLO      the first record is not complete; there is no SSL yet
 *     HANDSHAKE  each time the peer's next record is there, a worker runs SSL_do_handshake() once
 *     OPEN       SSL_read() and SSL_write() on the loop
 *
 * The worker waits for the signature, never for the peer. Meanwhile the filter is `is_busy`: it belongs to the worker. If
 * its stream goes in that time, it becomes an orphan and is freed when the worker is done.
 *
 * OpenSSL treats a missing close_notify as an error only when its BIO reports the end; ours never does. stream.c knows
 * the end of the socket, and whether FILTER_END came before.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/filter.h"
#include "io/tls_inside.h"

enum {
    RECORD_HEAD_BYTES = 5,
    RECORD_MOST = (1 << 14) + 2048, /* after the head, in TLS 1.2; 1.3 has less */
    CONTENT_HANDSHAKE = 22,
    RAW_MOST = 256 * 1024, /* far more than stream.c feeds before it reads */
};

enum step {
    STEP_MORE, /* from the peer */
    STEP_DONE,
    STEP_FAILED,
};

struct tls {
    struct filter filter;
    struct tls_server *server; /* NULL: we are the client… */
    struct tls_client *client; /* …of this kind; NULL again for an orphan */
    struct lane *lane;         /* the server's or the client's; NULL: handshakes run on the loop */
    struct loop *loop;
    SSL *ssl;
    struct buf raw; /* from the peer, not yet decrypted */
    size_t ready;   /* of it, in whole records */
    size_t taken;   /* bytes of the handshake that OpenSSL has had */
    bool is_too_large, has_begun;
    unsigned idle_records;
    const char *doom; /* why it fails when the worker is done; NULL: it does not */
    enum step step;   /* what the last one led to */
    char owner[TLS_OWNER_BYTES];
    void (*over)(void *context); /* NULL: nobody asks, or it was called */
    void *over_context;
    struct job job;
    struct timer soon, deadline;
    struct queue_link place; /* among the server's handshakes or orphans */
};

static struct tls *tls_of(struct filter *filter)
{
    return container_of(filter, struct tls, filter);
}

/* ---- the BIO ---- */

static BIO_METHOD *bio_method;
static pthread_once_t bio_once = PTHREAD_ONCE_INIT;

/*
 * The cap is on what OpenSSL takes, not on what has come: data may follow the end of the handshake in the same read.
 */
static int bio_read(BIO *bio, char *room, int size)
{
    struct tls *tls = BIO_get_data(bio);
    size_t n = MIN((size_t)MAX(size, 0), tls->ready);

    BIO_clear_retry_flags(bio);
    if (!tls->filter.is_open && tls->taken + n > LIMIT_TLS_HANDSHAKE_BYTES) {
        tls->is_too_large = true;
        return -1;
    }
    tls->taken += n;
    if (n == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(room, tls->raw.data, n);
    buf_drop(&tls->raw, n);
    tls->ready -= n;
    return (int)n;
}

static int bio_write(BIO *bio, const char *bytes, int size)
{
    struct tls *tls = BIO_get_data(bio);

    BIO_clear_retry_flags(bio);
    buf_add(&tls->filter.out, str_of(bytes, (size_t)MAX(size, 0)));
    return tls->filter.out.overflowed ? -1 : size;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static void make_bio_method(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stream");
    if (!bio_method || !BIO_meth_set_read(bio_method, bio_read) || !BIO_meth_set_write(bio_method, bio_write) ||
        !BIO_meth_set_ctrl(bio_method, bio_control))
        log_die("tls: OpenSSL has no memory");
}

static void give_bio(struct tls *tls)
{
    (void)pthread_once(&bio_once, make_bio_method);
    BIO *bio = BIO_new(bio_method);
    if (!bio)
        log_die("tls: OpenSSL has no memory");
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
}

/* ---- records ---- */

/* Counts the whole records in `raw`. A head that claims too much is OpenSSL's to refuse, now. */
static void count_records(struct tls *tls)
{
    const struct buf *raw = &tls->raw;

    while (raw->len - tls->ready >= RECORD_HEAD_BYTES) {
        const unsigned char *head = (const unsigned char *)raw->data + tls->ready;
        size_t size = (size_t)head[3] << 8 | head[4];
        if (size > RECORD_MOST || head[1] != 3) {
            tls->ready = raw->len;
            return;
        }
        if (raw->len - tls->ready < RECORD_HEAD_BYTES + size)
            return;
        tls->ready += RECORD_HEAD_BYTES + size;
    }
}

static void fail(struct tls *tls, const char *doing, const char *reason)
{
    tls->filter.has_failed = true;
    (void)snprintf(tls->filter.why, sizeof tls->filter.why, "%s%s%s", doing, reason ? ": " : "", reason ? reason : "");
}

/* ---- handshake ---- */

static void leave_handshakes(struct tls *tls)
{
    void (*over)(void *context) = take_ptr(&tls->over);

    if (tls->server && tls->place.in == &tls->server->handshakes)
        tls->server->handshake_count--;
    queue_leave(&tls->place);
    timer_clear(&tls->deadline);
    if (over)
        over(tls->over_context);
}

/* On a worker, or on the loop. The only code that touches the SSL while the filter is busy. */
static void handshake_step(struct tls *tls)
{
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    int error = SSL_get_error(tls->ssl, result);

    if (result == 1) {
        tls->step = STEP_DONE;
    } else if (error == SSL_ERROR_WANT_READ) {
        tls->step = STEP_MORE;
        ERR_clear_error();
    } else if (tls->is_too_large) {
        tls->step = STEP_FAILED;
        fail(tls, "the TLS handshake is too large", NULL);
        ERR_clear_error();
    } else {
        tls->step = STEP_FAILED;
        long verdict = SSL_get_verify_result(tls->ssl);
        fail(tls, "TLS handshake failed", verdict == X509_V_OK ? tls_reason() : X509_verify_cert_error_string(verdict));
        ERR_clear_error();
    }
}

static void tls_dispose(void *object)
{
    struct tls *tls = object;

    SSL_free(tls->ssl);
    tls_client_unref(tls->client);
    buf_done(&tls->raw);
    buf_done(&tls->filter.out);
    free(tls);
}

static void begin_step(struct tls *tls);

/* On the loop. */
static void end_step(struct tls *tls)
{
    struct filter *filter = &tls->filter;

    filter->is_busy = false;
    if (!filter->stream) {
        queue_leave(&tls->place);
        loop_retire(tls->loop, tls, tls_dispose);
        return;
    }
    if (tls->doom) {
        fail(tls, tls->doom, NULL);
    } else if (tls->step == STEP_DONE) {
        const unsigned char *protocol;
        unsigned int len;
        leave_handshakes(tls);
        SSL_get0_alpn_selected(tls->ssl, &protocol, &len);
        (void)snprintf(filter->protocol, sizeof filter->protocol, "%.*s", (int)len, len ? (const char *)protocol : "");
        filter->is_open = true;
    } else if (tls->step == STEP_FAILED) {
        leave_handshakes(tls);
    } else if (tls->ready) {
        begin_step(tls); /* a hello in several records */
    }
    stream_filter_changed(filter->stream);
}

static void job_run(struct job *job)
{
    handshake_step(container_of(job, struct tls, job));
}

static void job_done(struct job *job)
{
    end_step(container_of(job, struct tls, job));
}

static void on_soon(struct timer *timer)
{
    struct tls *tls = container_of(timer, struct tls, soon);

    handshake_step(tls);
    end_step(tls);
}

static void begin_step(struct tls *tls)
{
    tls->filter.is_busy = true;
    tls->job = (struct job){ .run = job_run, .done = job_done };
    if (!tls->lane) {
        timer_set(&tls->soon, tls->loop, 0, on_soon);
        return;
    }
    if (lane_run(tls->lane, str_from(tls->owner), 0, &tls->job))
        return;
    tls->filter.is_busy = false;
    fail(tls, "too many TLS handshakes of one party", NULL);
}

/* The filter of a stream that no longer deserves one. */
static void give_up(struct tls *tls, const char *why)
{
    leave_handshakes(tls);
    if (tls->filter.is_busy) {
        tls->doom = why; /* when the worker is done with it */
        return;
    }
    fail(tls, why, NULL);
    stream_filter_changed(tls->filter.stream);
}

static void on_deadline(struct timer *timer)
{
    give_up(container_of(timer, struct tls, deadline), "the TLS handshake took too long");
}

/* The first record is there: from here on the peer costs memory and a signature. */
static void begin_handshake(struct tls *tls)
{
    struct tls_server *server = tls->server;

    if (server->handshake_count >= server->config.handshakes_max) {
        struct tls *oldest = container_of(server->handshakes.first, struct tls, place);
        give_up(oldest, "too many TLS handshakes");
    }
    (void)pthread_mutex_lock(&server->lock);
    tls->ssl = server->count ? SSL_new(server->contexts[0]) : NULL;
    (void)pthread_mutex_unlock(&server->lock);
    if (!tls->ssl) {
        fail(tls, "there is no certificate", NULL);
        return;
    }
    give_bio(tls);
    SSL_set_accept_state(tls->ssl);
    queue_join(&server->handshakes, &tls->place);
    server->handshake_count++;
    begin_step(tls);
}

/* ---- what the stream calls ---- */

static bool tls_is_first(unsigned char byte)
{
    return byte == CONTENT_HANDSHAKE;
}

void tls_owner_of(const struct sockaddr_storage *peer, char out[TLS_OWNER_BYTES])
{
    enum { PARTY_BYTES = 8 };
    struct in6_addr v6 = ((const struct sockaddr_in6 *)peer)->sin6_addr;
    const void *address = NULL;
    int family = peer->ss_family;

    if (family == AF_INET) {
        address = &((const struct sockaddr_in *)peer)->sin_addr;
    } else if (family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6)) {
        family = AF_INET;
        address = v6.s6_addr + 12;
    } else if (family == AF_INET6) {
        memset(v6.s6_addr + PARTY_BYTES, 0, sizeof v6.s6_addr - PARTY_BYTES);
        address = &v6;
    }
    if (!address || !inet_ntop(family, address, out, TLS_OWNER_BYTES))
        out[0] = '\0';
}

/* The first bytes of a client are there. */
static void begin_serving(struct tls *tls)
{
    struct sockaddr_storage peer = { 0 };

    tls->has_begun = true;
    stream_peer(tls->filter.stream, &peer);
    tls_owner_of(&peer, tls->owner);
    timer_set(&tls->deadline, tls->loop, tls->server->config.handshake_ms, on_deadline);
}

static void tls_feed(struct filter *filter, struct str bytes)
{
    struct tls *tls = tls_of(filter);

    assert(!filter->is_busy);
    if (tls->server && !tls->has_begun)
        begin_serving(tls);
    buf_add(&tls->raw, bytes);
    count_records(tls);
    if (filter->is_open)
        return;
    if (tls->raw.overflowed) {
        leave_handshakes(tls);
        fail(tls, "the TLS handshake is too large", NULL);
        return;
    }
    if (!tls->ready)
        return;
    if (tls->ssl)
        begin_step(tls);
    else
        begin_handshake(tls);
}

static enum filter_read tls_read(struct filter *filter, char *room, size_t size, size_t *out_n)
{
    struct tls *tls = tls_of(filter);
    size_t n = 0;

    ERR_clear_error();
    if (SSL_read_ex(tls->ssl, room, size, &n) == 1) {
        tls->idle_records = 0;
        *out_n = n;
        return FILTER_DATA;
    }
    switch (SSL_get_error(tls->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
        ERR_clear_error();
        if (tls->ready == 0) {
            if (tls->raw.len == 0)
                buf_done(&tls->raw);
            return FILTER_MORE;
        }
        if (++tls->idle_records <= LIMIT_TLS_IDLE_RECORDS)
            return FILTER_LATER;
        fail(tls, "too many TLS records without data", NULL);
        return FILTER_FAILED;
    case SSL_ERROR_ZERO_RETURN:
        return FILTER_END;
    default:
        fail(tls, "TLS failed", tls_reason());
        return FILTER_FAILED;
    }
}

static bool tls_holds(const struct filter *filter)
{
    const struct tls *tls = container_of(filter, struct tls, filter);

    return filter->is_open && (tls->ready > 0 || SSL_pending(tls->ssl) > 0);
}

static void tls_write(struct filter *filter, struct str bytes)
{
    struct tls *tls = tls_of(filter);

    ERR_clear_error();
    while (bytes.len && !filter->has_failed) {
        size_t n = 0;
        if (SSL_write_ex(tls->ssl, bytes.at, bytes.len, &n) != 1 || filter->out.overflowed)
            fail(tls, "TLS failed", tls_reason());
        bytes = str_of(bytes.at + n, bytes.len - n);
    }
}

static void tls_finish(struct filter *filter)
{
    ERR_clear_error();
    (void)SSL_shutdown(tls_of(filter)->ssl); /* writes the close_notify; that the peer's is missing is not an error */
    ERR_clear_error();
}

static void tls_free(struct filter *filter)
{
    struct tls *tls = tls_of(filter);

    leave_handshakes(tls);
    timer_clear(&tls->soon);
    if (filter->is_busy && tls->lane && !lane_leave(tls->lane, &tls->job)) {
        struct tls_client *client = take_ptr(&tls->client);
        queue_join(client ? &client->orphans : &tls->server->orphans, &tls->place); /* end_step() frees it */
        tls_client_unref(client); /* whoever gave it workers has another reference */
        return;
    }
    loop_retire(tls->loop, tls, tls_dispose);
}

static const struct filter_ops tls_ops = {
    .is_first = tls_is_first,
    .feed = tls_feed,
    .read = tls_read,
    .holds = tls_holds,
    .write = tls_write,
    .finish = tls_finish,
    .free = tls_free,
};

static struct tls *tls_new(struct loop *loop, struct tls_server *server)
{
    struct tls *tls = NEW(struct tls);

    tls->filter.ops = &tls_ops;
    tls->loop = loop;
    tls->server = server;
    tls->lane = server ? server->lane : NULL;
    tls->raw = buf_make(NULL, RAW_MOST);
    return tls;
}

/* ---- server ---- */

bool tls_server_is_ready(const struct tls_server *server)
{
    return server->count > 0; /* only the loop changes it */
}

void tls_accept(struct tls_server *server, struct stream *stream)
{
    if (!tls_server_is_ready(server))
        return;
    struct tls *tls = tls_new(server->config.loop, server);
    tls->filter.is_undecided = true;
    stream_set_filter(stream, &tls->filter);
}

void tls_orphans_free(struct queue *orphans)
{
    for (struct queue_link *link = orphans->first, *next; link; link = next) {
        next = link->next;
        tls_dispose(container_of(link, struct tls, place));
    }
}

void tls_server_free(struct tls_server *server)
{
    if (!server)
        return;
    tls_orphans_free(&server->orphans);
    for (size_t i = 0; i < server->count; i++)
        SSL_CTX_free(server->contexts[i]);
    tls_tickets_wipe(server);
    (void)pthread_mutex_destroy(&server->lock);
    free(server);
}

/* ---- client ---- */

bool tls_connect(struct tls_client *client, struct stream *stream, const char *name, struct err *err)
{
    return tls_connect_for(client, stream, &(struct tls_connect_want){ .name = name }, err);
}

bool tls_connect_for(struct tls_client *client, struct stream *stream, const struct tls_connect_want *want,
                     struct err *err)
{
    struct tls *tls = tls_new(client->loop, NULL);
    const char *name = want->name;
    unsigned char address[sizeof(struct in6_addr)];
    bool is_address = inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;

    tls->client = tls_client_ref(client);
    tls->lane = client->lane;
    (void)snprintf(tls->owner, sizeof tls->owner, "%s", want->owner ? want->owner : "");
    tls->ssl = SSL_new(client->context);
    bool ok = tls->ssl;
    if (ok && is_address && client->is_verified)
        ok = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->ssl), name) == 1;
    else if (ok && !is_address)
        ok = SSL_set_tlsext_host_name(tls->ssl, name) == 1 &&
             (!client->is_verified || SSL_set1_host(tls->ssl, name) == 1);
    if (!ok) {
        tls_dispose(tls);
        return err_set(err, ERR_INVALID, "TLS cannot be set up for '%.80s': %s", name, tls_reason());
    }
    give_bio(tls);
    SSL_set_connect_state(tls->ssl);
    stream_set_filter(stream, &tls->filter);
    begin_step(tls);
    if (tls->filter.has_failed) /* the stream owns the filter: they go together */
        return err_set(err, ERR_LIMIT, "%s", tls->filter.why);
    tls->over = want->over;
    tls->over_context = want->context;
    timer_set(&tls->deadline, tls->loop, LIMIT_TLS_HANDSHAKE_MS, on_deadline);
    return true;
}
