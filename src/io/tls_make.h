/*
 * tls_make.h - makes certificates: an authority's, and those that it signs for servers.
 *
 * Used by the authority of this server (daemon/authority.c) and by those of sandboxes (tls_authority.c). Certificates are
 * signed with SHA-256, have a random serial number, and begin a day before they are made, for clients whose clock is
 * behind.
 *
 * Failure    NULL; tls_make_error() says why.
 */
#ifndef IO_TLS_MAKE_H
#define IO_TLS_MAKE_H

#include <openssl/x509.h>

#include "base/attr.h"
#include "base/err.h"

enum { TLS_DAY_S = 86400 };

/* Signs itself, is valid for ten years, and signs servers only. `constraints` are OpenSSL's name constraints, or NULL. */
X509 *tls_make_authority(EVP_PKEY *key, const char *subject, const char *constraints) must_use;

struct tls_issuer {
    X509 *certificate;
    EVP_PKEY *key;
};
/* `names` are OpenSSL's alternative names, such as "DNS:a.example,IP:127.0.0.1". */
X509 *tls_make_server(EVP_PKEY *key, const char *subject, const char *names, int days, struct tls_issuer issuer)
    must_use;

/* ERR_INTERNAL with OpenSSL's oldest error in this thread. Returns false. */
bool tls_make_error(struct err *err, const char *doing);

/* What a memory BIO holds, as text on the heap. Frees the BIO. */
char *tls_take_text(BIO *bio) must_use;

#endif
