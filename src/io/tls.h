/*
 * tls.h - TLS beneath a stream (OpenSSL 3; TLS 1.2 and 1.3).
 *
 * Server: tls_accept() makes a new stream one that may speak TLS: the first byte tells. The handshake runs on a worker,
 * because a signature takes long; from then on the loop decrypts and encrypts. The private key is elsewhere: a handshake
 * calls tls_sign_fn. Which certificate a client gets is decided by the name that it asks for (SNI), else the first.
 *
 * Client: tls_connect() before anything is written. The handshake runs on the loop, or on workers where the client was
 * given some: what a server sends decides what it costs.
 *
 * Not there on purpose: TLS 1.1 and older, key exchange without forward secrecy, renegotiation, compression, 0-RTT.
 * Sessions resume by tickets, whose keys live in memory and change every LIMIT_TLS_TICKET_S.
 *
 * Ownership  The stream owns its part of TLS. A tls_server must outlive its streams and their workers. A tls_client is
 *            counted: a stream has a reference of its own.
 * Threads    The loop's; tls_sign_fn is called on workers.
 * Failure    A handshake that fails, takes longer than LIMIT_TLS_HANDSHAKE_MS or sends more than
 *            LIMIT_TLS_HANDSHAKE_BYTES fails the stream: on_end() with the reason.
 */
#ifndef IO_TLS_H
#define IO_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/worker.h"

/* A key is named by the SHA-256 of its public half (SubjectPublicKeyInfo). */
enum { TLS_KEY_ID_BYTES = 32, TLS_SIGNATURE_BYTES = 1024, TLS_BLOCK_BYTES = 1024 };

enum tls_algorithm {
    TLS_ECDSA = 1, /* of a digest; the signature is DER */
    TLS_RSA_PKCS1, /* of a SHA-256, SHA-384 or SHA-512 digest: its length tells which */
    TLS_RSA_PSS,   /* of a whole PSS block, already padded (RFC 8017, 9.1.1) */
    TLS_ALGORITHM_END,
};

struct tls_to_sign {
    unsigned char key_id[TLS_KEY_ID_BYTES];
    enum tls_algorithm algorithm;
    struct str bytes; /* the digest or block */
};
/* On a worker; may wait. */
typedef bool tls_sign_fn(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES],
                         size_t *out_len, struct err *err);

struct tls_server_config {
    struct loop *loop;
    struct workers *workers;      /* NULL: handshakes run on the loop (tests) */
    const char *const *protocols; /* for ALPN, best first, ended by NULL. A client that offers none of them gets none */
    tls_sign_fn *sign;
    void *context;
    /* 0: the limits of these names in base/limits.h. Tests shorten them. */
    uint64_t handshake_ms;
    unsigned handshakes_max;
};

struct tls_server;
struct tls_server *tls_server_new(const struct tls_server_config *config) must_use;
/*
 * Certificates with their chains, in PEM, in place of all that it had. The first one is for clients without a name, or
 * with one that none has. If one of them cannot be used, nothing changes. Connections that are open are not affected.
 */
bool tls_server_use(struct tls_server *server, const struct str *chains, size_t count, struct err *err) must_use;
/* Would tls_server_use() take this chain? For those who hand it to another process. */
bool tls_chain_is_usable(struct str chain, struct err *err) must_use;
bool tls_server_is_ready(const struct tls_server *server); /* it has a certificate */
/* After its streams, its workers and its loop's last turn. NULL is fine. */
void tls_server_free(struct tls_server *server);

/* A new stream that nothing was read from or written to. Has no effect while the server has no certificate. */
void tls_accept(struct tls_server *server, struct stream *stream);

struct tls_client;
/* NULL roots: the peer's certificate is not verified. Else PEM of those to trust. */
struct tls_client *tls_client_new(struct loop *loop, const struct str *roots, struct err *err) must_use;
struct tls_client *tls_client_ref(struct tls_client *client); /* NULL is fine, here and below */
void tls_client_unref(struct tls_client *client);
/*
 * Handshakes run on these. Then the one who made the client drops its reference as that of a server: after the streams,
 * the workers and the loop's last turn.
 */
void tls_client_use_workers(struct tls_client *client, struct workers *workers);
/* For a stream that is connected or connecting. `name` is sent (SNI, unless it is an address) and verified. */
bool tls_connect(struct tls_client *client, struct stream *stream, const char *name, struct err *err) must_use;

/* The same for one of many who share the workers, or where the end of the handshake matters. */
struct tls_connect_want {
    const char *name;
    const char *owner; /* who has the use of it, for a fair share of the workers; NULL: nobody in particular */
    /* Called once, on the loop: the handshake has succeeded or failed, or the stream was freed. NULL: nobody asks. */
    void (*over)(void *context);
    void *context;
};
bool tls_connect_for(struct tls_client *client, struct stream *stream, const struct tls_connect_want *want,
                     struct err *err) must_use;

#endif
