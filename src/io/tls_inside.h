/*
 * tls_inside.h - what tls.c (connections) and tls_context.c (certificates, keys, tickets) share.
 */
#ifndef IO_TLS_INSIDE_H
#define IO_TLS_INSIDE_H

#include <openssl/ssl.h>
#include <pthread.h>

#include "base/limits.h"
#include "base/queue.h"
#include "io/tls.h"

enum { TICKET_NAME_BYTES = 16, TICKET_KEY_BYTES = 32 };

struct ticket_key {
    unsigned char name[TICKET_NAME_BYTES];
    unsigned char cipher[TICKET_KEY_BYTES], mac[TICKET_KEY_BYTES];
    uint64_t made_ms; /* 0: none */
};

struct tls_server {
    struct tls_server_config config;
    struct lane *lane;
    unsigned char alpn[64]; /* as on the wire */
    unsigned alpn_len;
    struct queue handshakes; /* that have an SSL, oldest first */
    unsigned handshake_count;
    struct queue orphans; /* a worker had them when their stream went */

    pthread_mutex_t lock; /* around the rest: workers read it in callbacks of OpenSSL's */
    SSL_CTX *contexts[LIMIT_TLS_CERTIFICATES];
    size_t count;
    struct ticket_key tickets[2]; /* current, previous */
};

struct tls_client {
    struct loop *loop;
    SSL_CTX *context;
    bool is_verified;
    unsigned references;
    struct lane *lane;    /* NULL: handshakes run on the loop */
    struct queue orphans; /* a worker had them when their stream went */
};

/* ---- tls.c ---- */

enum { TLS_OWNER_BYTES = 48 }; /* an address in text, or a sandbox's id */
/* Who is at this address, for sharing workers. Of IPv6 a /64 is one party: whoever has one has all of it. */
void tls_owner_of(const struct sockaddr_storage *peer, char out[TLS_OWNER_BYTES]);
void tls_orphans_free(struct queue *orphans);

/* ---- tls_context.c ---- */

/* The reason of OpenSSL's oldest error in this thread, as text, and forgets all of them. */
const char *tls_reason(void);
void tls_tickets_wipe(struct tls_server *server);

/* ---- tls_key.c ---- */

/* Before the first call of OpenSSL's. */
void tls_begin(void);
bool tls_public_id(EVP_PKEY *key, unsigned char out[TLS_KEY_ID_BYTES]) must_use;

#endif
