#include "io/tls_make.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/x509v3.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/str.h"
#include "io/tls_inside.h"

enum { AUTHORITY_DAYS = 3650, SERIAL_BYTES = 16 };

struct extension {
    int nid;
    const char *value; /* NULL: left out */
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
static X509 *make_certificate(EVP_PKEY *key, const char *subject, int days, struct tls_issuer issuer,
                              const struct extension *extensions, size_t count)
{
    X509 *x509 = X509_new();
    X509_NAME *name = x509 ? X509_get_subject_name(x509) : NULL;
    time_t now = (time_t)(clock_wall_us() / 1000000);
    bool ok = x509 && X509_set_version(x509, X509_VERSION_3) && set_serial(x509) &&
              ASN1_TIME_set(X509_getm_notBefore(x509), now - TLS_DAY_S) &&
              ASN1_TIME_set(X509_getm_notAfter(x509), now + (time_t)days * TLS_DAY_S) &&
              X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8, (const unsigned char *)"Cloister", -1, -1, 0) &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)subject, -1, -1, 0) &&
              X509_set_issuer_name(x509, issuer.certificate ? X509_get_subject_name(issuer.certificate) : name) &&
              X509_set_pubkey(x509, key);

    for (size_t i = 0; ok && i < count; i++)
        ok =
            !extensions[i].value || add_extension(x509, issuer.certificate ? issuer.certificate : x509, &extensions[i]);
    ok = ok && X509_sign(x509, issuer.key ? issuer.key : key, EVP_sha256()) > 0;
    if (ok)
        return x509;
    X509_free(x509);
    return NULL;
}

X509 *tls_make_authority(EVP_PKEY *key, const char *subject, const char *constraints)
{
    const struct extension extensions[] = {
        { NID_basic_constraints, "critical,CA:TRUE,pathlen:0" },
        { NID_key_usage, "critical,keyCertSign,cRLSign" },
        { NID_ext_key_usage, "serverAuth" },
        { NID_subject_key_identifier, "hash" },
        { NID_name_constraints, constraints },
    };

    return make_certificate(key, subject, AUTHORITY_DAYS, (struct tls_issuer){ 0 }, extensions, COUNT_OF(extensions));
}

X509 *tls_make_server(EVP_PKEY *key, const char *subject, const char *names, int days, struct tls_issuer issuer)
{
    const struct extension extensions[] = {
        { NID_basic_constraints, "critical,CA:FALSE" },
        { NID_key_usage, "critical,digitalSignature" },
        { NID_ext_key_usage, "serverAuth" },
        { NID_subject_key_identifier, "hash" },
        { NID_authority_key_identifier, "keyid:always" },
        { NID_subject_alt_name, names },
    };

    return make_certificate(key, subject, days, issuer, extensions, COUNT_OF(extensions));
}

bool tls_make_error(struct err *err, const char *doing)
{
    return err_set(err, ERR_INTERNAL, "%s: %s", doing, tls_reason());
}

char *tls_take_text(BIO *bio)
{
    char *at;
    long len = BIO_get_mem_data(bio, &at);
    char *text = str_copy(str_of(at, (size_t)MAX(len, 0)));

    BIO_free(bio);
    return text;
}
