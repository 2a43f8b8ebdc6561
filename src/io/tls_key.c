#include "io/tls_key.h"

#include <assert.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/mem.h"
#include "io/tls_inside.h"

enum { RSA_LEAST_BITS = 2048, RSA_MOST_BITS = 8192, HASH_MOST_BYTES = 64 };

static_assert(RSA_MOST_BITS / 8 <= TLS_SIGNATURE_BYTES && RSA_MOST_BITS / 8 <= TLS_BLOCK_BYTES, "a block has room");

struct tls_key {
    EVP_PKEY *pkey;
    bool is_rsa;
    unsigned char id[TLS_KEY_ID_BYTES];
};

/* Without its configuration file: roles may not open it, and what TLS may do here is in tls_context.c. */
void tls_begin(void)
{
    (void)OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
}

bool tls_public_id(EVP_PKEY *key, unsigned char out[TLS_KEY_ID_BYTES])
{
    unsigned char *der = NULL;
    int len = i2d_PUBKEY(key, &der);
    bool ok = len > 0 && EVP_Digest(der, (size_t)len, out, NULL, EVP_sha256(), NULL) == 1;

    OPENSSL_free(der);
    return ok;
}

/* OpenSSL would ask the terminal. */
static int no_passphrase(char *room, int size, int rwflag, void *context)
{
    (void)room;
    (void)size;
    (void)rwflag;
    (void)context;
    return -1;
}

static bool is_usable(EVP_PKEY *pkey, bool *out_is_rsa, struct err *err)
{
    int bits = EVP_PKEY_get_bits(pkey);

    *out_is_rsa = EVP_PKEY_get_base_id(pkey) == EVP_PKEY_RSA;
    if (*out_is_rsa && bits >= RSA_LEAST_BITS && bits <= RSA_MOST_BITS && bits % 8 == 0)
        return true;
    if (*out_is_rsa)
        return err_set(err, ERR_INVALID, "an RSA key must have %d to %d bits, not %d", RSA_LEAST_BITS, RSA_MOST_BITS,
                       bits);
    if (EVP_PKEY_get_base_id(pkey) == EVP_PKEY_EC && bits >= 256)
        return true;
    return err_set(err, ERR_INVALID, "the key must be RSA, or ECDSA with P-256, P-384 or P-521");
}

struct tls_key *tls_key_read(struct str pem, struct err *err)
{
    tls_begin();
    BIO *bio = BIO_new_mem_buf(pem.at, (int)pem.len);
    EVP_PKEY *pkey = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    struct tls_key *key = NEW(struct tls_key);

    BIO_free(bio);
    key->pkey = pkey;
    if (!pkey) {
        ERR_clear_error(); /* "unsupported", or that we gave no passphrase: nothing that helps */
        (void)err_set(err, ERR_INVALID, "there is no private key in PEM without a passphrase");
    } else if (!tls_public_id(pkey, key->id))
        (void)err_set(err, ERR_INVALID, "the key has no public half: %s", tls_reason());
    else if (is_usable(pkey, &key->is_rsa, err))
        return key;
    tls_key_free(key);
    return NULL;
}

void tls_key_free(struct tls_key *key)
{
    if (!key)
        return;
    EVP_PKEY_free(key->pkey);
    free(key);
}

const unsigned char *tls_key_id(const struct tls_key *key)
{
    return key->id;
}

bool tls_key_fits(const struct tls_key *key, struct str chain, struct err *err)
{
    BIO *bio = BIO_new_mem_buf(chain.at, (int)chain.len);
    X509 *leaf = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    bool ok = true;

    if (!leaf)
        ok = err_set(err, ERR_INVALID, "there is no certificate in PEM: %s", tls_reason());
    else if (X509_check_private_key(leaf, key->pkey) != 1)
        ok = err_set(err, ERR_INVALID, "the first certificate is not for this key");
    ERR_clear_error();
    X509_free(leaf);
    BIO_free(bio);
    return ok;
}

static bool time_of(const ASN1_TIME *time, int64_t *out_us)
{
    struct tm parts;

    if (ASN1_TIME_to_tm(time, &parts) != 1)
        return false;
    *out_us = (int64_t)timegm(&parts) * 1000000;
    return true;
}

/* The first name of a host that a certificate is for; "" if it has none, or one that does not print well. */
static void first_name(const X509 *leaf, char room[TLS_NAME_BYTES])
{
    GENERAL_NAMES *names = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);

    room[0] = '\0';
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && !room[0]; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_DNS)
            continue;
        size_t len = (size_t)ASN1_STRING_length(name->d.dNSName);
        const char *text = (const char *)ASN1_STRING_get0_data(name->d.dNSName);
        bool is_fine = len < TLS_NAME_BYTES;
        for (size_t k = 0; k < len && is_fine; k++)
            is_fine = char_is_alnum(text[k]) || (text[k] && strchr("*.-_", text[k]));
        (void)snprintf(room, TLS_NAME_BYTES, "%.*s", is_fine ? (int)len : 0, text);
    }
    GENERAL_NAMES_free(names);
}

bool tls_chain_look(struct str chain, const char *name, struct tls_chain_facts *out, struct err *err)
{
    tls_begin();
    BIO *bio = BIO_new_mem_buf(chain.at, (int)chain.len);
    X509 *leaf = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    struct tls_chain_facts facts = { 0 };
    bool ok = leaf && time_of(X509_get0_notBefore(leaf), &facts.begins_us) &&
              time_of(X509_get0_notAfter(leaf), &facts.ends_us);

    if (ok) {
        facts.has_name = name[0] && X509_check_host(leaf, name, 0, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1;
        first_name(leaf, facts.first_name);
        *out = facts;
    } else {
        (void)err_set(err, ERR_INVALID, "there is no certificate in PEM: %s", tls_reason());
    }
    ERR_clear_error();
    X509_free(leaf);
    BIO_free(bio);
    return ok;
}

/* ---- signing ---- */

static const EVP_MD *hash_of(size_t bytes)
{
    return bytes == 32 ? EVP_sha256() : bytes == 48 ? EVP_sha384() : bytes == 64 ? EVP_sha512() : NULL;
}

/* RFC 8017, B.2.1: xors the mask that `seed` makes over `bytes`. */
static bool unmask(const EVP_MD *hash, struct str seed, unsigned char *bytes, size_t len)
{
    unsigned char block[HASH_MOST_BYTES + 4], mask[HASH_MOST_BYTES];
    size_t step = (size_t)EVP_MD_get_size(hash);

    memcpy(block, seed.at, seed.len);
    for (size_t at = 0; at < len; at += step) {
        uint32_t counter = (uint32_t)(at / step);
        unsigned char big_endian[4] = { (unsigned char)(counter >> 24), (unsigned char)(counter >> 16),
                                        (unsigned char)(counter >> 8), (unsigned char)counter };
        memcpy(block + seed.len, big_endian, sizeof big_endian);
        if (EVP_Digest(block, seed.len + sizeof big_endian, mask, NULL, hash, NULL) != 1)
            return false;
        for (size_t i = 0; i < step && at + i < len; i++)
            bytes[at + i] ^= mask[i];
    }
    return true;
}

/* RFC 8017, 9.1.2, as far as it can be checked without the message: zeros, 01, and a salt as long as the hash. */
static bool is_pss(struct str block, const EVP_MD *hash)
{
    unsigned char open[TLS_BLOCK_BYTES];
    size_t hash_len = (size_t)EVP_MD_get_size(hash), open_len = block.len - hash_len - 1;
    size_t zeros = open_len - hash_len - 1;

    if (block.len < 2 * hash_len + 2 || block.len > sizeof open || (unsigned char)block.at[block.len - 1] != 0xbc ||
        block.at[0] & 0x80)
        return false;
    memcpy(open, block.at, open_len);
    if (!unmask(hash, str_of(block.at + open_len, hash_len), open, open_len))
        return false;
    open[0] &= 0x7f;
    for (size_t i = 0; i < zeros; i++)
        if (open[i])
            return false;
    return open[zeros] == 1;
}

static bool may_sign(const struct tls_key *key, const struct tls_to_sign *want, struct err *err)
{
    size_t len = want->bytes.len;

    if (memcmp(want->key_id, key->id, sizeof key->id) != 0)
        return err_set(err, ERR_NOT_FOUND, "there is no such key");
    switch (want->algorithm) {
    case TLS_ECDSA:
        if (!key->is_rsa && hash_of(len))
            return true;
        break;
    case TLS_RSA_PKCS1:
        if (key->is_rsa && hash_of(len))
            return true;
        break;
    case TLS_RSA_PSS:
        if (key->is_rsa && len == (size_t)EVP_PKEY_get_size(key->pkey) &&
            (is_pss(want->bytes, EVP_sha256()) || is_pss(want->bytes, EVP_sha384()) ||
             is_pss(want->bytes, EVP_sha512())))
            return true;
        break;
    case TLS_ALGORITHM_END:
        break;
    }
    return err_set(err, ERR_INVALID, "this is nothing that a TLS handshake signs with this key");
}

static bool choose_padding(EVP_PKEY_CTX *context, const struct tls_to_sign *want)
{
    switch (want->algorithm) {
    case TLS_RSA_PKCS1:
        return EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING) == 1 &&
               EVP_PKEY_CTX_set_signature_md(context, hash_of(want->bytes.len)) == 1;
    case TLS_RSA_PSS:
        return EVP_PKEY_CTX_set_rsa_padding(context, RSA_NO_PADDING) == 1;
    default:
        return true;
    }
}

bool tls_key_sign(const struct tls_key *key, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES],
                  size_t *out_len, struct err *err)
{
    size_t len = TLS_SIGNATURE_BYTES;

    if (!may_sign(key, want, err))
        return false;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(key->pkey, NULL);
    bool ok = context && EVP_PKEY_sign_init(context) == 1 && choose_padding(context, want) &&
              EVP_PKEY_sign(context, out, &len, (const unsigned char *)want->bytes.at, want->bytes.len) == 1;
    EVP_PKEY_CTX_free(context);
    if (!ok)
        return err_set(err, ERR_INTERNAL, "the key does not sign: %s", tls_reason());
    *out_len = len;
    return true;
}
