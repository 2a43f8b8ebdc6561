#include "io/tls_authority.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/hmac.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/tls_inside.h"
#include "io/tls_key.h"
#include "io/tls_make.h"

enum {
    SERVER_DAYS = 365, /* browsers refuse more than 398 */
    WIDE_BYTES = 64,   /* reduced to a P-256 scalar: with twice its size, no value is likelier than another */
};

struct tls_authority {
    EVP_PKEY *key, *server_key;
    X509 *certificate;
    struct tls_key *signer; /* server_key again, as handshakes use it */
    char *pem;
};

/* ---- keys ---- */

/* A number from 1 to order - 1 that follows from the seed and the label. */
static BIGNUM *derive_scalar(const uint8_t seed[TLS_SEED_BYTES], const char *label, const EC_GROUP *group)
{
    unsigned char wide[WIDE_BYTES];
    BIGNUM *scalar = NULL, *most = BN_dup(EC_GROUP_get0_order(group));
    BN_CTX *context = BN_CTX_new();
    unsigned len = sizeof wide;

    if (most && context &&
        HMAC(EVP_sha512(), seed, TLS_SEED_BYTES, (const unsigned char *)label, strlen(label), wide, &len) &&
        (scalar = BN_bin2bn(wide, (int)len, NULL)) &&
        !(BN_sub_word(most, 1) && BN_mod(scalar, scalar, most, context) && BN_add_word(scalar, 1))) {
        BN_clear_free(scalar);
        scalar = NULL;
    }
    explicit_bzero(wide, sizeof wide);
    BN_free(most);
    BN_CTX_free(context);
    return scalar;
}

static EVP_PKEY *make_key(const EC_GROUP *group, const BIGNUM *scalar, const EC_POINT *point)
{
    unsigned char public[65];
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    OSSL_PARAM *params = NULL;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    EVP_PKEY *key = NULL;

    if (build && context &&
        EC_POINT_point2oct(group, point, POINT_CONVERSION_UNCOMPRESSED, public, sizeof public, NULL) == sizeof public &&
        OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0) &&
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, public, sizeof public) &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, scalar) && (params = OSSL_PARAM_BLD_to_param(build)) &&
        EVP_PKEY_fromdata_init(context) > 0)
        (void)EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEYPAIR, params);
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(build);
    EVP_PKEY_CTX_free(context);
    return key;
}

static EVP_PKEY *derive_key(const uint8_t seed[TLS_SEED_BYTES], const char *label)
{
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    EC_POINT *point = group ? EC_POINT_new(group) : NULL;
    BIGNUM *scalar = group ? derive_scalar(seed, label, group) : NULL;
    EVP_PKEY *key = NULL;

    if (point && scalar && EC_POINT_mul(group, point, scalar, NULL, NULL, NULL))
        key = make_key(group, scalar, point);
    BN_clear_free(scalar);
    EC_POINT_free(point);
    EC_GROUP_free(group);
    return key;
}

/* ---- certificates ---- */

static char *certificate_text(X509 *x509)
{
    BIO *bio = BIO_new(BIO_s_mem());

    if (!bio || !PEM_write_bio_X509(bio, x509)) {
        BIO_free(bio);
        return NULL;
    }
    return tls_take_text(bio);
}

static struct tls_key *signer_of(EVP_PKEY *key, struct err *err)
{
    BIO *bio = BIO_new(BIO_s_secmem());

    if (!bio || !PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL)) {
        BIO_free(bio);
        (void)tls_make_error(err, "write a key");
        return NULL;
    }
    char *text = tls_take_text(bio);
    struct tls_key *signer = tls_key_read(str_from(text), err);
    explicit_bzero(text, strlen(text));
    free(text);
    return signer;
}

/* It follows from the seed, so that all who make the authority from the same seed call it alike. */
static void make_subject(const uint8_t seed[TLS_SEED_BYTES], char *room, size_t size)
{
    static const char label[] = "cloister sandbox name";
    unsigned char name[EVP_MAX_MD_SIZE] = { 0 };
    unsigned len = sizeof name;

    (void)HMAC(EVP_sha256(), seed, TLS_SEED_BYTES, (const unsigned char *)label, strlen(label), name, &len);
    (void)snprintf(room, size, "Cloister sandbox authority %02x%02x%02x%02x", name[0], name[1], name[2], name[3]);
}

struct tls_authority *tls_authority_new(const uint8_t seed[TLS_SEED_BYTES], struct err *err)
{
    struct tls_authority *authority = NEW(struct tls_authority);
    char subject[64];

    tls_begin();
    make_subject(seed, subject, sizeof subject);
    authority->key = derive_key(seed, "cloister sandbox authority");
    authority->server_key = derive_key(seed, "cloister sandbox server");
    if (authority->key && authority->server_key)
        authority->certificate = tls_make_authority(authority->key, subject, NULL);
    if (authority->certificate)
        authority->pem = certificate_text(authority->certificate);
    if (!authority->pem)
        (void)tls_make_error(err, "make a sandbox's authority");
    else if ((authority->signer = signer_of(authority->server_key, err)))
        return authority;
    tls_authority_free(authority);
    return NULL;
}

void tls_authority_free(struct tls_authority *authority)
{
    if (!authority)
        return;
    tls_key_free(authority->signer);
    EVP_PKEY_free(authority->key);
    EVP_PKEY_free(authority->server_key);
    X509_free(authority->certificate);
    free(authority->pem);
    free(authority);
}

struct str tls_authority_pem(const struct tls_authority *authority)
{
    return str_from(authority->pem);
}

uint32_t tls_authority_hash(const struct tls_authority *authority)
{
    return (uint32_t)X509_subject_name_hash(authority->certificate);
}

char *tls_authority_issue(const struct tls_authority *authority, const char *name, struct err *err)
{
    char names[8 + 256];
    /* A common name has at most 64 characters; clients read the alternative names. */
    const char *subject = strlen(name) <= 64 ? name : "a host with a long name";

    (void)snprintf(names, sizeof names, "DNS:%.253s", name);
    X509 *x509 = tls_make_server(authority->server_key, subject, names, SERVER_DAYS,
                                 (struct tls_issuer){ authority->certificate, authority->key });
    char *text = x509 ? certificate_text(x509) : NULL;
    X509_free(x509);
    if (!text)
        (void)tls_make_error(err, "make a certificate");
    return text;
}

bool tls_authority_sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES],
                        size_t *out_len, struct err *err)
{
    const struct tls_authority *authority = context;

    return tls_key_sign(authority->signer, want, out, out_len, err);
}
