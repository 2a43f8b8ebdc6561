/*
 * tls_context.c - certificates, remote keys, tickets: what all connections of a server share.
 *
 * How it works: each certificate has an SSL_CTX of its own; they are alike in all else. A connection begins with the
 * first one, and pick_certificate() changes it when the name is known.
 *
 * Remote keys: OpenSSL gets the public half with methods of our own (RSA_METHOD, EC_KEY_METHOD) that call tls_sign_fn.
 * These are deprecated in favour of providers. A provider for two signatures has five times the code, and every release
 * of OpenSSL 3 has the methods.
 *
 * Tickets: stateless, encrypted by a key that only this process has. LIMIT_TLS_TICKET_S after a key was made, the next
 * ticket makes a new one; tickets of the one before are still accepted and replaced.
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* the methods */
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "base/clock.h"
#include "base/hole.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "io/tls_inside.h"

/* Forward secrecy and authenticated encryption only. TLS 1.3 has nothing else. */
#define TLS12_CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!PSK"

const char *tls_reason(void)
{
    unsigned long code = ERR_peek_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return text ? text : "unknown reason";
}

/* ---- remote keys ---- */

struct remote_key {
    tls_sign_fn *sign;
    void *context;
    unsigned char id[TLS_KEY_ID_BYTES];
};

static pthread_once_t methods_once = PTHREAD_ONCE_INIT;
static EC_KEY_METHOD *ec_method;
static RSA_METHOD *rsa_method;
static int ec_index, rsa_index;

static bool sign_remotely(const struct remote_key *key, enum tls_algorithm algorithm, const unsigned char *bytes,
                          int size, unsigned char *out, size_t room, size_t *out_len)
{
    unsigned char signature[TLS_SIGNATURE_BYTES];
    struct tls_to_sign want = { .algorithm = algorithm, .bytes = str_of(bytes, (size_t)size) };
    struct err err;

    if (!key || size <= 0 || size > TLS_BLOCK_BYTES)
        return false;
    memcpy(want.key_id, key->id, sizeof want.key_id);
    if (!key->sign(key->context, &want, signature, out_len, &err)) {
        log_warn("a TLS handshake fails: no signature: %s", err_text(&err));
        return false;
    }
    if (*out_len == 0 || *out_len > room) {
        log_error("a TLS handshake fails: a signature of %zu bytes", *out_len);
        return false;
    }
    memcpy(out, signature, *out_len);
    return true;
}

static int ec_sign(int type, const unsigned char *digest, int digest_len, unsigned char *out, unsigned int *out_len,
                   const BIGNUM *kinv, const BIGNUM *r, EC_KEY *key)
{
    size_t len;

    (void)type;
    (void)kinv;
    (void)r;
    if (!sign_remotely(EC_KEY_get_ex_data(key, ec_index), TLS_ECDSA, digest, digest_len, out, (size_t)ECDSA_size(key),
                       &len))
        return 0;
    *out_len = (unsigned)len;
    return 1;
}

static int ec_sign_setup(EC_KEY *key, BN_CTX *ctx, BIGNUM **kinv, BIGNUM **r)
{
    (void)key;
    (void)ctx;
    (void)kinv;
    (void)r;
    return 1;
}

static ECDSA_SIG *ec_sign_parts(const unsigned char *digest, int digest_len, const BIGNUM *kinv, const BIGNUM *r,
                                EC_KEY *key)
{
    unsigned char signature[TLS_SIGNATURE_BYTES];
    const unsigned char *at = signature;
    unsigned int len = 0;

    if (!ec_sign(0, digest, digest_len, signature, &len, kinv, r, key))
        return NULL;
    return d2i_ECDSA_SIG(NULL, &at, (long)len);
}

static int rsa_sign(int type, const unsigned char *digest, unsigned int digest_len, unsigned char *out,
                    unsigned int *out_len, const RSA *key)
{
    size_t len;

    if (type != NID_sha256 && type != NID_sha384 && type != NID_sha512)
        return 0;
    if (!sign_remotely(RSA_get_ex_data(key, rsa_index), TLS_RSA_PKCS1, digest, (int)digest_len, out,
                       (size_t)RSA_size(key), &len))
        return 0;
    *out_len = (unsigned)len;
    return 1;
}

/* Only a block with PSS padding gets here: PKCS #1 signatures go to rsa_sign(). */
static int rsa_private(int size, const unsigned char *block, unsigned char *out, RSA *key, int padding)
{
    size_t len;

    if (padding != RSA_NO_PADDING || size != RSA_size(key))
        return -1;
    if (!sign_remotely(RSA_get_ex_data(key, rsa_index), TLS_RSA_PSS, block, size, out, (size_t)RSA_size(key), &len) ||
        len != (size_t)size)
        return -1;
    return size;
}

static void free_remote_key(void *parent, void *pointer, CRYPTO_EX_DATA *data, int index, long number, void *argument)
{
    (void)parent;
    (void)data;
    (void)index;
    (void)number;
    (void)argument;
    free(pointer);
}

static void make_methods(void)
{
    ec_index = EC_KEY_get_ex_new_index(0, NULL, NULL, NULL, free_remote_key);
    rsa_index = RSA_get_ex_new_index(0, NULL, NULL, NULL, free_remote_key);
    ec_method = EC_KEY_METHOD_new(EC_KEY_OpenSSL());
    rsa_method = RSA_meth_dup(RSA_PKCS1_OpenSSL());
    if (ec_index < 0 || rsa_index < 0 || !ec_method || !rsa_method)
        log_die("tls: OpenSSL has no memory");
    EC_KEY_METHOD_set_sign(ec_method, ec_sign, ec_sign_setup, ec_sign_parts);
    if (!RSA_meth_set1_name(rsa_method, "cloister signer") || !RSA_meth_set_sign(rsa_method, rsa_sign) ||
        !RSA_meth_set_priv_enc(rsa_method, rsa_private))
        log_die("tls: OpenSSL has no memory");
}

/* A key with the public half of this certificate, which signs by tls_sign_fn. NULL: of another kind than RSA or EC. */
static EVP_PKEY *remote_pkey(const struct tls_server *server, X509 *certificate)
{
    EVP_PKEY *public_key = X509_get0_pubkey(certificate), *key = EVP_PKEY_new();
    struct remote_key *remote = NEW(struct remote_key);
    bool ok = false;

    *remote = (struct remote_key){ .sign = server->config.sign, .context = server->config.context };
    if (!public_key || !key || !tls_public_id(public_key, remote->id)) {
        ok = false;
    } else if (EVP_PKEY_get_base_id(public_key) == EVP_PKEY_EC) {
        EC_KEY *shared = EVP_PKEY_get1_EC_KEY(public_key), *own = shared ? EC_KEY_dup(shared) : NULL;
        ok = own && EC_KEY_set_method(own, ec_method) && EC_KEY_set_ex_data(own, ec_index, remote);
        remote = ok ? NULL : remote;
        ok = ok && EVP_PKEY_set1_EC_KEY(key, own);
        EC_KEY_free(shared);
        EC_KEY_free(own);
    } else if (EVP_PKEY_get_base_id(public_key) == EVP_PKEY_RSA) {
        RSA *shared = EVP_PKEY_get1_RSA(public_key), *own = shared ? RSAPublicKey_dup(shared) : NULL;
        ok = own && RSA_set_method(own, rsa_method) && RSA_set_ex_data(own, rsa_index, remote);
        remote = ok ? NULL : remote;
        ok = ok && EVP_PKEY_set1_RSA(key, own);
        RSA_free(shared);
        RSA_free(own);
    }
    free(remote);
    if (ok)
        return key;
    EVP_PKEY_free(key);
    return NULL;
}

/* ---- tickets ---- */

static void renew_tickets(struct tls_server *server)
{
    struct ticket_key *now = &server->tickets[0], *before = &server->tickets[1];
    uint64_t time_ms = clock_mono_ms(), age_ms = time_ms - now->made_ms, life_ms = LIMIT_TLS_TICKET_S * UINT64_C(1000);

    if (now->made_ms && age_ms < life_ms)
        return;
    if (now->made_ms && age_ms < 2 * life_ms)
        *before = *now;
    else
        OPENSSL_cleanse(before, sizeof *before);
    random_bytes(now->name, sizeof now->name);
    random_bytes(now->cipher, sizeof now->cipher);
    random_bytes(now->mac, sizeof now->mac);
    now->made_ms = MAX(time_ms, UINT64_C(1));
}

void tls_tickets_wipe(struct tls_server *server)
{
    OPENSSL_cleanse(server->tickets, sizeof server->tickets);
}

static bool use_ticket_key(const struct ticket_key *key, const unsigned char *iv, EVP_CIPHER_CTX *cipher,
                           EVP_MAC_CTX *mac, bool encrypts)
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, (void *)key->mac, sizeof key->mac),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };

    return EVP_MAC_CTX_set_params(mac, params) &&
           EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, key->cipher, iv, encrypts);
}

/* As SSL_CTX_set_tlsext_ticket_key_evp_cb(3): 0 is an unknown ticket, 2 one to be replaced. On workers. */
static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                     int encrypts)
{
    struct tls_server *server = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    auto_unlock pthread_mutex_t *held = lock_mutex(&server->lock);

    renew_tickets(server);
    if (encrypts) {
        memcpy(name, server->tickets[0].name, TICKET_NAME_BYTES);
        random_bytes(iv, (size_t)EVP_CIPHER_get_iv_length(EVP_aes_256_cbc()));
        return use_ticket_key(&server->tickets[0], iv, cipher, mac, true) ? 1 : -1;
    }
    for (int i = 0; i < 2; i++) {
        const struct ticket_key *key = &server->tickets[i];
        if (key->made_ms && memcmp(key->name, name, TICKET_NAME_BYTES) == 0)
            return use_ticket_key(key, iv, cipher, mac, false) ? i + 1 : -1;
    }
    return 0;
}

/* ---- what a client asks for ---- */

static int pick_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *offer,
                         unsigned int offer_len, void *context)
{
    const struct tls_server *server = context;
    unsigned char *found = NULL;

    (void)ssl;
    if (SSL_select_next_proto(&found, out_len, server->alpn, server->alpn_len, offer, offer_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK; /* an alert would break clients that can do without */
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static int pick_certificate(SSL *ssl, int *alert, void *context)
{
    struct tls_server *server = context;
    const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);

    (void)alert;
    if (!name)
        return SSL_TLSEXT_ERR_NOACK;
    auto_unlock pthread_mutex_t *held = lock_mutex(&server->lock);
    for (size_t i = 0; i < server->count; i++) {
        X509 *certificate = SSL_CTX_get0_certificate(server->contexts[i]);
        if (X509_check_host(certificate, name, 0, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1) {
            (void)SSL_set_SSL_CTX(ssl, server->contexts[i]);
            return SSL_TLSEXT_ERR_OK;
        }
    }
    return SSL_TLSEXT_ERR_NOACK; /* the first one; the client says that it is the wrong one */
}

/* ---- contexts ---- */

static bool use_chain(SSL_CTX *context, const struct tls_server *server, struct str pem, struct err *err)
{
    BIO *bio = BIO_new_mem_buf(pem.at, (int)pem.len);
    X509 *leaf = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL, *next;
    EVP_PKEY *key = leaf ? remote_pkey(server, leaf) : NULL;
    bool ok = true;

    if (!leaf)
        ok = err_set(err, ERR_INVALID, "the file has no certificate in PEM: %s", tls_reason());
    else if (!key)
        ok = err_set(err, ERR_INVALID, "the certificate's key is neither RSA nor ECDSA");
    else if (SSL_CTX_use_certificate(context, leaf) != 1 || SSL_CTX_use_PrivateKey(context, key) != 1)
        ok = err_set(err, ERR_INVALID, "the certificate cannot be used: %s", tls_reason());
    while (ok && (next = PEM_read_bio_X509(bio, NULL, NULL, NULL)))
        if (SSL_CTX_add0_chain_cert(context, next) != 1) {
            X509_free(next);
            ok = err_set(err, ERR_INVALID, "the certificate's chain cannot be used: %s", tls_reason());
        }
    ERR_clear_error(); /* the end of the file */
    EVP_PKEY_free(key);
    X509_free(leaf);
    BIO_free(bio);
    return ok;
}

static void set_common(SSL_CTX *context)
{
    (void)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                           SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    /* Without auto-retry SSL_read() returns after each record that has no data: a peer could keep the loop busy. */
    (void)SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
    (void)SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
}

static SSL_CTX *make_context(struct tls_server *server, struct str pem, struct err *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());

    if (!context) {
        (void)err_set(err, ERR_INTERNAL, "OpenSSL has no context: %s", tls_reason());
        return NULL;
    }
    set_common(context);
    (void)SSL_CTX_set_app_data(context, server);
    (void)SSL_CTX_set_num_tickets(context, 1);
    (void)SSL_CTX_set_tlsext_ticket_key_evp_cb(context, on_ticket);
    (void)SSL_CTX_set_tlsext_servername_callback(context, pick_certificate);
    (void)SSL_CTX_set_tlsext_servername_arg(context, server);
    SSL_CTX_set_alpn_select_cb(context, pick_protocol, server);
    (void)SSL_CTX_set_timeout(context, LIMIT_TLS_TICKET_S);
    bool ok = SSL_CTX_set_cipher_list(context, TLS12_CIPHERS) == 1 &&
              SSL_CTX_set_session_id_context(context, (const unsigned char *)"cloister", 8) == 1;
    ok = ok || err_set(err, ERR_INTERNAL, "OpenSSL refuses its settings: %s", tls_reason());
    if (ok && use_chain(context, server, pem, err))
        return context;
    SSL_CTX_free(context);
    return NULL;
}

bool tls_server_use(struct tls_server *server, const struct str *chains, size_t count, struct err *err)
{
    SSL_CTX *made[LIMIT_TLS_CERTIFICATES] = { NULL }, *old[LIMIT_TLS_CERTIFICATES];
    bool ok = count <= LIMIT_TLS_CERTIFICATES || err_set(err, ERR_LIMIT, "too many certificates");

    for (size_t i = 0; ok && i < count; i++) {
        made[i] = make_context(server, chains[i], err);
        ok = made[i];
    }
    if (ok) {
        auto_unlock pthread_mutex_t *held = lock_mutex(&server->lock);
        memcpy(old, server->contexts, sizeof old);
        memcpy(server->contexts, made, sizeof made);
        memcpy(made, old, sizeof made);
        server->count = count;
    }
    for (size_t i = 0; i < LIMIT_TLS_CERTIFICATES; i++)
        SSL_CTX_free(made[i]);
    return ok;
}

bool tls_chain_is_usable(struct str chain, struct err *err)
{
    struct tls_server *server = tls_server_new(&(struct tls_server_config){ 0 });
    bool ok = tls_server_use(server, &chain, 1, err);

    tls_server_free(server);
    return ok;
}

static void add_protocols(struct tls_server *server)
{
    for (const char *const *at = server->config.protocols; at && *at; at++) {
        size_t len = strlen(*at);
        if (len > 255 || server->alpn_len + 1 + len > sizeof server->alpn)
            log_die("tls: too many protocols");
        server->alpn[server->alpn_len++] = (unsigned char)len;
        memcpy(server->alpn + server->alpn_len, *at, len);
        server->alpn_len += (unsigned)len;
    }
}

static void begin_openssl(void)
{
    tls_begin();
    (void)pthread_once(&methods_once, make_methods);
}

struct tls_server *tls_server_new(const struct tls_server_config *config)
{
    struct tls_server *server = NEW(struct tls_server);

    begin_openssl();
    server->config = *config;
    if (!server->config.handshake_ms)
        server->config.handshake_ms = LIMIT_TLS_HANDSHAKE_MS;
    if (!server->config.handshakes_max)
        server->config.handshakes_max = LIMIT_TLS_HANDSHAKES;
    if (config->workers)
        server->lane = lane_new(config->workers, &(struct lane_rule){ .most = LIMIT_TLS_WORKERS,
                                                                      .most_each = LIMIT_TLS_WORKERS_EACH,
                                                                      .waiting_each = LIMIT_TLS_HANDSHAKES });
    (void)pthread_mutex_init(&server->lock, NULL);
    add_protocols(server);
    return server;
}

/* ---- clients ---- */

static bool add_roots(SSL_CTX *context, struct str pem, struct err *err)
{
    BIO *bio = BIO_new_mem_buf(pem.at, (int)pem.len);
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    unsigned added = 0;

    for (X509 *root; bio && (root = PEM_read_bio_X509(bio, NULL, NULL, NULL)); X509_free(root))
        added += X509_STORE_add_cert(store, root) == 1;
    ERR_clear_error();
    BIO_free(bio);
    return added || err_set(err, ERR_INVALID, "there is no certificate in PEM to trust");
}

/* SSL_VERIFY_NONE alone builds and verifies the chain, and then ignores the result. */
static int accept_any(X509_STORE_CTX *store, void *argument)
{
    (void)store;
    (void)argument;
    return 1;
}

struct tls_client *tls_client_new(struct loop *loop, const struct str *roots, struct err *err)
{
    struct tls_client *client = NEW(struct tls_client);

    begin_openssl();
    *client = (struct tls_client){ .loop = loop,
                                   .references = 1,
                                   .context = SSL_CTX_new(TLS_client_method()),
                                   .is_verified = roots && !hole_is_open("TLS servers are verified") };
    if (!client->context) {
        (void)err_set(err, ERR_INTERNAL, "OpenSSL has no context: %s", tls_reason());
    } else {
        set_common(client->context);
        SSL_CTX_set_max_cert_list(client->context, LIMIT_TLS_PEER_CHAIN_BYTES);
        SSL_CTX_set_verify_depth(client->context, LIMIT_TLS_PEER_CHAIN);
        SSL_CTX_set_verify(client->context, client->is_verified ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
        if (!client->is_verified)
            SSL_CTX_set_cert_verify_callback(client->context, accept_any, NULL);
        if (!roots || add_roots(client->context, *roots, err))
            return client;
    }
    tls_client_unref(client);
    return NULL;
}

void tls_client_use_workers(struct tls_client *client, struct workers *workers)
{
    client->lane = lane_new(workers, &(struct lane_rule){ .most = LIMIT_TLS_CLIENT_WORKERS,
                                                          .most_each = 1,
                                                          .waiting_each = LIMIT_EDGE_CONNECTIONS });
}

struct tls_client *tls_client_ref(struct tls_client *client)
{
    if (client)
        client->references++;
    return client;
}

void tls_client_unref(struct tls_client *client)
{
    if (!client || --client->references)
        return;
    tls_orphans_free(&client->orphans);
    SSL_CTX_free(client->context);
    free(client);
}
