#include "io/tls_authority.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include "test.h"

static X509 *read_pem(struct str text)
{
    BIO *bio = BIO_new_mem_buf(text.at, (int)text.len);
    X509 *x509 = PEM_read_bio_X509(bio, NULL, NULL, NULL);

    BIO_free(bio);
    assert_non_null(x509);
    return x509;
}

/* Does whoever trusts `root` accept the chain for this name? */
static bool is_accepted(struct str root, const char *chain, const char *name)
{
    X509 *anchor = read_pem(root), *server = read_pem(str_from(chain));
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();

    X509_STORE_add_cert(store, anchor);
    X509_STORE_CTX_init(context, store, server, NULL);
    X509_VERIFY_PARAM *param = X509_STORE_CTX_get0_param(context);
    X509_VERIFY_PARAM_set_purpose(param, X509_PURPOSE_SSL_SERVER);
    X509_VERIFY_PARAM_set_flags(param, X509_V_FLAG_X509_STRICT);
    X509_VERIFY_PARAM_set1_host(param, name, 0);
    bool ok = X509_verify_cert(context) == 1;
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    X509_free(anchor);
    X509_free(server);
    return ok;
}

static void the_same_seed_makes_the_same_authority(void **state)
{
    (void)state;
    uint8_t seed[TLS_SEED_BYTES] = { 1, 2, 3 }, other_seed[TLS_SEED_BYTES] = { 1, 2, 4 };
    struct err err;
    struct tls_authority *egress = tls_authority_new(seed, &err);
    struct tls_authority *front = tls_authority_new(seed, &err);
    struct tls_authority *other = tls_authority_new(other_seed, &err);
    char *chain = tls_authority_issue(egress, "api.example.com", &err);

    assert_non_null(chain);
    assert_true(is_accepted(tls_authority_pem(egress), chain, "api.example.com"));
    assert_true(is_accepted(tls_authority_pem(front), chain, "api.example.com"));
    assert_false(is_accepted(tls_authority_pem(other), chain, "api.example.com"));
    assert_false(is_accepted(tls_authority_pem(front), chain, "www.example.com"));
    assert_false(is_accepted(tls_authority_pem(front), chain, "a.api.example.com"));
    free(chain);
    tls_authority_free(egress);
    tls_authority_free(front);
    tls_authority_free(other);
}

static void the_longest_name_has_a_certificate(void **state)
{
    (void)state;
    uint8_t seed[TLS_SEED_BYTES] = { 9 };
    char name[254];
    struct err err;

    memset(name, 'a', sizeof name);
    for (size_t i = 49; i < sizeof name; i += 50)
        name[i] = '.';
    name[253] = '\0';
    struct tls_authority *authority = tls_authority_new(seed, &err);
    char *chain = tls_authority_issue(authority, name, &err);
    assert_non_null(chain);
    assert_true(is_accepted(tls_authority_pem(authority), chain, name));
    free(chain);
    tls_authority_free(authority);
}

static void every_seed_makes_a_key(void **state)
{
    (void)state;
    uint8_t seed[TLS_SEED_BYTES];
    struct err err;

    for (unsigned i = 0; i < 64; i++) {
        memset(seed, (int)(i * 4 + (i == 63) * 3), sizeof seed);
        struct tls_authority *authority = tls_authority_new(seed, &err);
        if (!authority)
            fail_msg("seed %u: %s", i, err.message);
        tls_authority_free(authority);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_same_seed_makes_the_same_authority),
        CASE(the_longest_name_has_a_certificate),
        CASE(every_seed_makes_a_key),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
