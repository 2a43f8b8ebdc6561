/*
 * tls_key.h - a private key that signs for handshakes (tls.h's tls_sign_fn ends here).
 *
 * Signs digests, and RSA blocks with PSS padding: nothing else. So whoever may ask for signatures cannot have other
 * things decrypted by an RSA key.
 *
 * Threads    A key may be used by several at once.
 */
#ifndef IO_TLS_KEY_H
#define IO_TLS_KEY_H

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "io/tls.h"

struct tls_key;

/* PEM without a passphrase: RSA with 2048 bits or more, or ECDSA with P-256, P-384 or P-521. */
struct tls_key *tls_key_read(struct str pem, struct err *err) must_use;
void tls_key_free(struct tls_key *key);                     /* NULL is fine */
const unsigned char *tls_key_id(const struct tls_key *key); /* TLS_KEY_ID_BYTES */
/* Is the first certificate of this chain, in PEM, one for this key? ERR_INVALID says why it is not. */
bool tls_key_fits(const struct tls_key *key, struct str chain, struct err *err) must_use;
/* What a chain's first certificate says. */
enum { TLS_NAME_BYTES = 254 }; /* DNS has no longer names */
struct tls_chain_facts {
    int64_t begins_us, ends_us; /* wall time */
    bool has_name;
    char first_name[TLS_NAME_BYTES]; /* of a host that it is for, such as *.example.com; may be "" */
};
/* Is `name` (a host name, may be "") one of the names of the first certificate, and when is it valid? */
bool tls_chain_look(struct str chain, const char *name, struct tls_chain_facts *out, struct err *err) must_use;

/* want->key_id must be this key's. */
bool tls_key_sign(const struct tls_key *key, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES],
                  size_t *out_len, struct err *err) must_use;

#endif
