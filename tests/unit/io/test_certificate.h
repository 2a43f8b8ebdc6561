/*
 * test_certificate.h - a key and a certificate that it has signed itself, for tests of TLS.
 */
#ifndef TESTS_UNIT_IO_TEST_CERTIFICATE_H
#define TESTS_UNIT_IO_TEST_CERTIFICATE_H

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include "base/str.h"
#include "test.h"

struct test_certificate {
    char *key, *chain; /* PEM; free() them */
};

static inline char *test_pem_(BIO *bio)
{
    char *at;
    long len = BIO_get_mem_data(bio, &at);
    char *copy = calloc(1, (size_t)len + 1); /* what is in a BIO has no zero byte at its end */

    memcpy(copy, at, (size_t)len);
    BIO_free(bio);
    return copy;
}

/* RSA, ED25519, a curve, or "weak" for RSA with MD5. `names` as in openssl.cnf: "DNS:a.test,DNS:*.a.test". */
static inline struct test_certificate test_certificate_make(const char *kind, const char *names)
{
    EVP_PKEY *key = strcmp(kind, "RSA") == 0 || strcmp(kind, "weak") == 0
                        ? EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048)
                    : strcmp(kind, "ED25519") == 0 ? EVP_PKEY_Q_keygen(NULL, NULL, "ED25519")
                                                   : EVP_PKEY_Q_keygen(NULL, NULL, "EC", kind);
    X509 *x509 = X509_new();
    struct test_certificate made;
    BIO *bio = BIO_new(BIO_s_mem());

    assert_non_null(key);
    X509_set_version(x509, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 86400);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1,
                               0);
    X509_set_issuer_name(x509, X509_get_subject_name(x509));
    if (strcmp(kind, "weak") == 0) /* nobody looks at the signature of one that has signed itself */
        X509_NAME_add_entry_by_txt(X509_get_issuer_name(x509), "O", MBSTRING_ASC, (const unsigned char *)"x", -1, -1,
                                   0);
    X509_set_pubkey(x509, key);
    X509_EXTENSION *alt = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, names);
    assert_non_null(alt);
    X509_add_ext(x509, alt, -1);
    X509_EXTENSION_free(alt);
    assert_true(X509_sign(x509, key,
                          strcmp(kind, "ED25519") == 0 ? NULL
                          : strcmp(kind, "weak") == 0  ? EVP_md5()
                                                       : EVP_sha256()) > 0);
    PEM_write_bio_X509(bio, x509);
    made.chain = test_pem_(bio);
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL);
    made.key = test_pem_(bio);
    X509_free(x509);
    EVP_PKEY_free(key);
    return made;
}

static inline void test_certificate_done(struct test_certificate *certificate)
{
    free(certificate->key);
    free(certificate->chain);
}

#endif
