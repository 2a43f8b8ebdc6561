#include "io/tls_look.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/fd.h"
#include "io/dial.h"
#include "io/tls_inside.h"

/* A descriptor that blocks, and no longer than timeout_ms each time. */
static int connect_within(struct str address, int timeout_ms, struct err *err)
{
    auto_close int fd = dial_open(address, err);
    struct timeval timeout = { timeout_ms / 1000, (timeout_ms % 1000) * 1000 };
    int failure = 0;
    socklen_t len = sizeof failure;

    if (fd < 0)
        return -1;
    if (poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, timeout_ms) != 1)
        failure = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &len) < 0)
        failure = errno;
    errno = failure;
    if (failure || fcntl(fd, F_SETFL, 0) < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) < 0) {
        (void)err_sys(err, "connect to %.*s", STR_ARG(address));
        return -1;
    }
    return take_fd(&fd);
}

/* Errors that are about the dates: facts have those, and the one who asks can say more about them. */
static bool is_about_dates(long result)
{
    return result == X509_V_ERR_CERT_HAS_EXPIRED || result == X509_V_ERR_CERT_NOT_YET_VALID;
}

static bool take_facts(SSL *ssl, const char *name, struct tls_seen *out, struct err *err)
{
    X509 *leaf = SSL_get1_peer_certificate(ssl);
    BIO *bio = BIO_new(BIO_s_mem());
    struct tls_seen seen = { 0 };
    char *pem = NULL;
    long result = SSL_get_verify_result(ssl);
    bool ok = leaf && bio && PEM_write_bio_X509(bio, leaf) == 1;

    if (ok) {
        long len = BIO_get_mem_data(bio, &pem);
        ok = tls_chain_look(str_of(pem, (size_t)len), name, &seen.facts, err);
    } else {
        (void)err_set(err, ERR_INVALID, "the server shows no certificate");
    }
    seen.is_trusted = result == X509_V_OK || is_about_dates(result);
    if (!seen.is_trusted)
        (void)snprintf(seen.why_not, sizeof seen.why_not, "%s", X509_verify_cert_error_string(result));
    if (ok)
        *out = seen;
    BIO_free(bio);
    X509_free(leaf);
    return ok;
}

bool tls_look(struct str address, const char *name, struct str roots, int timeout_ms, struct tls_seen *out,
              struct err *err)
{
    auto_close int fd = connect_within(address, timeout_ms, err);
    struct tls_client *client = fd >= 0 ? tls_client_new(NULL, &roots, err) : NULL;

    if (!client)
        return false;
    SSL *ssl = SSL_new(client->context);
    bool ok = ssl && SSL_set_fd(ssl, fd) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
    if (ok)
        SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL); /* the handshake goes on, and the result is kept */
    ok = ok && SSL_connect(ssl) == 1;
    if (!ok)
        (void)err_set(err, ERR_UNAVAILABLE, "no TLS at %.*s: %s", STR_ARG(address), tls_reason());
    ok = ok && take_facts(ssl, name, out, err);
    if (ssl && SSL_is_init_finished(ssl))
        (void)SSL_shutdown(ssl); /* a courtesy: the server may have closed already */
    SSL_free(ssl);
    tls_client_unref(client);
    ERR_clear_error();
    return ok;
}
