#include "io/tls_authority.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "io/tls_inside.h"
#include "io/tls_key.h"

enum {
    DAY_S = 86400,
    AUTHORITY_DAYS = 3650,
    SERVER_DAYS = 365, /* browsers refuse more than 398 */
    SERIAL_BYTES = 16,
    WIDE_BYTES = 64, /* reduced to a P-256 scalar: with twice its size, no value is likelier than another */
};

struct tls_authority {
    EVP_PKEY *key, *server_key;
    X509 *certificate;
    struct tls_key *signer; /* server_key again, as handshakes use it */
    char *pem;
};

static bool crypto_error(struct err *err, const char *doing)
{
    return err_set(err, ERR_INTERNAL, "%s: %s", doing, tls_reason());
}

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

struct extension {
    int nid;
    const char *value;
};

static bool add_extension(X509 *x509, X509 *issuer, const struct extension *one)
{
    X509V3_CTX context;

    X509V3_set_ctx(&context, issuer, x509, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, one->nid, one->value);
    bool ok = extension && X509_add_ext(x509, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool set_serial(X509 *x509)
{
    unsigned char bytes[SERIAL_BYTES];

    random_bytes(bytes, sizeof bytes);
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and always as long */
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool ok = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x509));
    BN_free(number);
    return ok;
}

/* Without an issuer it signs itself. */
static X509 *make_certificate(EVP_PKEY *key, const char *subject, int days, X509 *issuer, EVP_PKEY *issuer_key,
                              const struct extension *extensions, size_t count)
{
    X509 *x509 = X509_new();
    X509_NAME *name = x509 ? X509_get_subject_name(x509) : NULL;
    time_t now = (time_t)(clock_wall_us() / 1000000);
    bool ok = x509 && X509_set_version(x509, X509_VERSION_3) && set_serial(x509) &&
              ASN1_TIME_set(X509_getm_notBefore(x509), now - DAY_S) &&
              ASN1_TIME_set(X509_getm_notAfter(x509), now + (time_t)days * DAY_S) &&
              X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8, (const unsigned char *)"Cloister", -1, -1, 0) &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)subject, -1, -1, 0) &&
              X509_set_issuer_name(x509, issuer ? X509_get_subject_name(issuer) : name) && X509_set_pubkey(x509, key);

    for (size_t i = 0; ok && i < count; i++)
        ok = add_extension(x509, issuer ? issuer : x509, &extensions[i]);
    ok = ok && X509_sign(x509, issuer_key ? issuer_key : key, EVP_sha256()) > 0;
    if (ok)
        return x509;
    X509_free(x509);
    return NULL;
}

/* Frees the BIO. */
static char *take_text(BIO *bio)
{
    char *at;
    long len = BIO_get_mem_data(bio, &at);
    char *text = str_copy(str_of(at, (size_t)MAX(len, 0)));

    BIO_free(bio);
    return text;
}

static char *certificate_text(X509 *x509)
{
    BIO *bio = BIO_new(BIO_s_mem());

    if (!bio || !PEM_write_bio_X509(bio, x509)) {
        BIO_free(bio);
        return NULL;
    }
    return take_text(bio);
}

static struct tls_key *signer_of(EVP_PKEY *key, struct err *err)
{
    BIO *bio = BIO_new(BIO_s_secmem());

    if (!bio || !PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL)) {
        BIO_free(bio);
        (void)crypto_error(err, "write a key");
        return NULL;
    }
    char *text = take_text(bio);
    struct tls_key *signer = tls_key_read(str_from(text), err);
    explicit_bzero(text, strlen(text));
    free(text);
    return signer;
}

struct tls_authority *tls_authority_new(const uint8_t seed[TLS_SEED_BYTES], const char *owner, struct err *err)
{
    static const struct extension extensions[] = {
        { NID_basic_constraints, "critical,CA:TRUE,pathlen:0" },
        { NID_key_usage, "critical,keyCertSign,cRLSign" },
        { NID_ext_key_usage, "serverAuth" },
        { NID_subject_key_identifier, "hash" },
    };
    struct tls_authority *authority = NEW(struct tls_authority);
    char subject[64];

    tls_begin();
    (void)snprintf(subject, sizeof subject, "Cloister sandbox %.32s", owner);
    authority->key = derive_key(seed, "cloister sandbox authority");
    authority->server_key = derive_key(seed, "cloister sandbox server");
    if (authority->key && authority->server_key)
        authority->certificate =
            make_certificate(authority->key, subject, AUTHORITY_DAYS, NULL, NULL, extensions, COUNT_OF(extensions));
    if (authority->certificate)
        authority->pem = certificate_text(authority->certificate);
    if (!authority->pem)
        (void)crypto_error(err, "make a sandbox's authority");
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
    const struct extension extensions[] = {
        { NID_basic_constraints, "critical,CA:FALSE" },
        { NID_key_usage, "critical,digitalSignature" },
        { NID_ext_key_usage, "serverAuth" },
        { NID_subject_key_identifier, "hash" },
        { NID_authority_key_identifier, "keyid:always" },
        { NID_subject_alt_name, names },
    };
    X509 *x509 = make_certificate(authority->server_key, subject, SERVER_DAYS, authority->certificate, authority->key,
                                  extensions, COUNT_OF(extensions));
    char *text = x509 ? certificate_text(x509) : NULL;
    X509_free(x509);
    if (!text)
        (void)crypto_error(err, "make a certificate");
    return text;
}

bool tls_authority_sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES],
                        size_t *out_len, struct err *err)
{
    const struct tls_authority *authority = context;

    return tls_key_sign(authority->signer, want, out, out_len, err);
}
