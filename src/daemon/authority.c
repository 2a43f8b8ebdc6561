/*
 * authority.c - theory of operation.
 *
 * authority.pem is written as a whole and is the only state: a line with the names, then four PEM blocks (authority's
 * certificate and key, server's certificate and key). If it cannot be read, or is for other names, all four are made
 * anew. If only the server's certificate is near its end, the first two are kept.
 *
 * Keys are ECDSA with P-256, which every client knows. A certificate of the server's lives for 90 days and is renewed
 * after 60; that of the authority for ten years, and is renewed in its last one. io/tls_make.c makes both.
 */
#include "daemon/authority.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/str.h"
#include "io/tls_make.h"

enum {
    CA_RENEW_DAYS = 365,
    LEAF_DAYS = 90, /* Apple refuses more than 825 */
    LEAF_RENEW_DAYS = 30,
    NAMES_BYTES = 512,
    FILE_BYTES = 64 * 1024,
    ROOTS_BYTES = 8 << 20, /* Debian's have 220 KB */
    SUFFIX_BYTES = 3,
};

/* What is in authority.pem. */
struct made {
    X509 *ca, *leaf;
    EVP_PKEY *ca_key, *leaf_key;
};

static void made_done(struct made *made)
{
    X509_free(made->ca);
    X509_free(made->leaf);
    EVP_PKEY_free(made->ca_key);
    EVP_PKEY_free(made->leaf_key);
    *made = (struct made){ 0 };
}
#define auto_made __attribute__((cleanup(made_done)))

void key_pair_done(struct key_pair *pair)
{
    if (pair->key)
        explicit_bzero(pair->key, strlen(pair->key));
    free(take_ptr(&pair->key));
    free(take_ptr(&pair->chain));
}

void authority_host(const char *domain, char *room, size_t size)
{
    size_t len = strcspn(domain, ":");
    bool has_letter = false, is_fine = len > 0 && len < size && len < 200 && memchr(domain, '.', len);

    for (size_t i = 0; i < len && is_fine; i++) {
        char c = domain[i];
        has_letter |= char_is_letter(c);
        /* A label: letters, digits and inner hyphens. A number is an address, which has no names below it. */
        is_fine =
            char_is_alnum(c) || (c == '-' && i && domain[i - 1] != '.') || (c == '.' && i && domain[i - 1] != '.');
    }
    is_fine = is_fine && has_letter && domain[len - 1] != '.' && domain[len - 1] != '-';
    (void)snprintf(room, size, "%.*s", is_fine ? (int)len : 0, domain);
    text_lower(room, strlen(room));
}

/* ---- making ---- */

static bool make_authority(const char *name, struct made *out)
{
    char constraints[NAMES_BYTES], subject[64];
    char serial[SUFFIX_BYTES * 2 + 1] = { 0 };
    unsigned char suffix[SUFFIX_BYTES];

    /* Two authorities with the same subject confuse browsers. */
    random_bytes(suffix, sizeof suffix);
    (void)hex_text(str_of(suffix, sizeof suffix), serial);
    (void)snprintf(subject, sizeof subject, "Cloister local authority %s", serial);
    (void)snprintf(constraints, sizeof constraints,
                   "critical,permitted;DNS:" AUTHORITY_NAME "%s%s,permitted;IP:127.0.0.0/255.0.0.0,"
                   "permitted;IP:::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                   name[0] ? ",permitted;DNS:" : "", name);
    out->ca_key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    out->ca = out->ca_key ? tls_make_authority(out->ca_key, subject, constraints) : NULL;
    return out->ca;
}

static bool make_leaf(const char *name, struct made *made)
{
    char names[NAMES_BYTES];

    (void)snprintf(names, sizeof names, "DNS:" AUTHORITY_NAME ",DNS:*." AUTHORITY_NAME "%s%s%s%s,IP:127.0.0.1,IP:::1",
                   name[0] ? ",DNS:" : "", name, name[0] ? ",DNS:*." : "", name);
    X509_free(made->leaf);
    EVP_PKEY_free(made->leaf_key);
    made->leaf_key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    made->leaf = made->leaf_key ? tls_make_server(made->leaf_key, AUTHORITY_NAME, names, LEAF_DAYS,
                                                  (struct tls_issuer){ made->ca, made->ca_key })
                                : NULL;
    return made->leaf;
}

/* ---- the file ---- */

static bool has_days(const X509 *x509, int days)
{
    time_t now = (time_t)(clock_wall_us() / 1000000), later = now + (time_t)days * TLS_DAY_S;

    return X509_cmp_time(X509_get0_notBefore(x509), &now) < 0 && X509_cmp_time(X509_get0_notAfter(x509), &later) > 0;
}

static void write_names(const char *name, char room[NAMES_BYTES])
{
    (void)snprintf(room, NAMES_BYTES, "names " AUTHORITY_NAME " %s\n", name);
}

/* False, with nothing in *out, if there is none that can be used for these names. */
static bool read_made(int tls_fd, const char *name, struct made *out)
{
    auto_free char *text = NULL;
    char names[NAMES_BYTES];
    size_t len;
    struct err err;

    if (!fd_read_file(tls_fd, "authority.pem", FILE_BYTES, &text, &len, &err)) {
        if (err.sys != ENOENT)
            log_warn("tls/authority.pem cannot be read, so another authority is made: %s", err_text(&err));
        return false;
    }
    write_names(name, names);
    if (!str_starts(str_of(text, len), str_from(names))) {
        log_info("the server's domain has changed: making another local authority");
        explicit_bzero(text, len);
        return false;
    }
    BIO *bio = BIO_new_mem_buf(text, (int)len);
    if (bio) {
        out->ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        out->ca_key = PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);
        out->leaf = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        out->leaf_key = PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);
    }
    BIO_free(bio);
    explicit_bzero(text, len);
    ERR_clear_error();
    if (out->leaf_key && out->leaf && X509_check_private_key(out->ca, out->ca_key) == 1 &&
        X509_check_private_key(out->leaf, out->leaf_key) == 1)
        return true;
    ERR_clear_error();
    log_warn("tls/authority.pem is damaged, so another authority is made: clients that run have to be started again");
    made_done(out);
    return false;
}

static BIO *new_text(void)
{
    BIO *bio = BIO_new(BIO_s_secmem()); /* wiped when it is freed */

    if (!bio)
        log_die("authority: OpenSSL has no memory");
    return bio;
}

static bool write_made(int tls_fd, const char *name, const struct made *made, struct err *err)
{
    char names[NAMES_BYTES];
    BIO *bio = new_text();

    write_names(name, names);
    bool ok = BIO_puts(bio, names) > 0 && PEM_write_bio_X509(bio, made->ca) &&
              PEM_write_bio_PrivateKey(bio, made->ca_key, NULL, NULL, 0, NULL, NULL) &&
              PEM_write_bio_X509(bio, made->leaf) &&
              PEM_write_bio_PrivateKey(bio, made->leaf_key, NULL, NULL, 0, NULL, NULL);
    char *text = tls_take_text(bio);
    ok = ok ? fd_replace_file(tls_fd, "authority.pem", str_from(text), 0600, err) : tls_make_error(err, "write PEM");
    explicit_bzero(text, strlen(text));
    free(text);
    return ok;
}

/* ---- for clients ---- */

/* Debian and Ubuntu, Fedora, SUSE, Alpine. */
static const char *const places[] = { "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                      "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem" };

int authority_open_roots(struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        int fd = open(places[i], O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
    }
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        (void)err_sys(err, "open /dev/null");
    return fd;
}

/* Not fd_update_file(): its spare would lie among the files that people copy. */
static bool write_if_new(int tls_fd, const char *name, struct str bytes, struct err *err)
{
    auto_free char *old = NULL;
    size_t old_len = 0;
    struct err ignored;

    if (fd_read_file(tls_fd, name, bytes.len, &old, &old_len, &ignored) && str_eq(str_of(old, old_len), bytes))
        return true;
    return fd_replace_file(tls_fd, name, bytes, 0644, err);
}

static bool write_bundle(int tls_fd, struct str ca, struct err *err)
{
    auto_buf struct buf bundle = buf_make(NULL, ROOTS_BYTES + FILE_BYTES);
    struct err ignored;

    for (size_t i = 0; i < COUNT_OF(places) && bundle.len == 0; i++) {
        auto_free char *roots = NULL;
        size_t len;
        if (fd_read_file(AT_FDCWD, places[i], ROOTS_BYTES, &roots, &len, &ignored) && len) {
            buf_add(&bundle, str_of(roots, len));
            if (roots[len - 1] != '\n')
                buf_add_char(&bundle, '\n');
        }
    }
    buf_add(&bundle, ca);
    return write_if_new(tls_fd, "ca-bundle.pem", buf_str(&bundle), err);
}

static bool write_for_clients(int tls_fd, const char *ca, struct err *err)
{
    (void)unlinkat(tls_fd, "ca.pem.new", 0); /* a spare that earlier versions left */
    return write_if_new(tls_fd, "ca.pem", str_from(ca), err) && write_bundle(tls_fd, str_from(ca), err);
}

static int open_tls(int data_fd, struct err *err)
{
    if (mkdirat(data_fd, "tls", 0755) < 0 && errno != EEXIST) {
        (void)err_sys(err, "make tls");
        return -1;
    }
    auto_close int fd = openat(data_fd, "tls", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fchmod(fd, 0755) < 0) {
        (void)err_sys(err, "open tls");
        return -1;
    }
    return take_fd(&fd);
}

bool authority_refresh_bundle(int data_fd, struct err *err)
{
    auto_free char *ca = NULL;
    size_t len;
    auto_close int tls_fd = open_tls(data_fd, err);

    return tls_fd >= 0 && fd_read_file(tls_fd, "ca.pem", FILE_BYTES, &ca, &len, err) &&
           write_bundle(tls_fd, str_of(ca, len), err);
}

bool authority_certificate(int data_fd, const char *name, struct key_pair *out, bool *out_is_new, struct err *err)
{
    auto_made struct made made = { 0 };
    auto_close int tls_fd = open_tls(data_fd, err);
    bool is_new = false;

    (void)OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
    if (strcmp(name, AUTHORITY_NAME) == 0)
        name = "";
    if (tls_fd < 0)
        return false;
    if (read_made(tls_fd, name, &made) && !has_days(made.ca, CA_RENEW_DAYS)) {
        log_info("the local authority is near its end: making another one; clients that run have to be started again");
        made_done(&made);
    }
    if (!made.ca) {
        is_new = true;
        if (!make_authority(name, &made) || !make_leaf(name, &made))
            return tls_make_error(err, "make a local authority");
    } else if (!has_days(made.leaf, LEAF_RENEW_DAYS)) {
        is_new = true;
        if (!make_leaf(name, &made))
            return tls_make_error(err, "renew the server's certificate");
    }
    if (is_new && !write_made(tls_fd, name, &made, err))
        return err_wrap(err, "keep the local authority");

    BIO *ca = new_text(), *chain = new_text(), *key = new_text();
    bool ok = PEM_write_bio_X509(ca, made.ca) && PEM_write_bio_X509(chain, made.leaf) &&
              PEM_write_bio_PrivateKey(key, made.leaf_key, NULL, NULL, 0, NULL, NULL);
    auto_free char *ca_text = tls_take_text(ca);
    auto_pair struct key_pair pair = { .chain = tls_take_text(chain), .key = tls_take_text(key) };
    if (!ok)
        return tls_make_error(err, "write PEM");
    if (!write_for_clients(tls_fd, ca_text, err))
        return err_wrap(err, "write the certificates for clients");
    *out = (struct key_pair){ .chain = take_ptr(&pair.chain), .key = take_ptr(&pair.key) };
    *out_is_new = is_new;
    return true;
}
