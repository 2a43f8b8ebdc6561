/* Services that expect TLS (httpsPorts): what clients see of them is the same as of others. */
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "edge.h"
#include "io/test_certificate.h"
#include "test.h"

enum { BODY_BYTES = 3 << 20 }; /* past what is spliced, and past the buffers */

static struct arena arena;
static SSL_CTX *context;

static SSL_CTX *context_make(void)
{
    struct test_certificate certificate = test_certificate_make("P-256", "DNS:nobody.test");
    SSL_CTX *made = SSL_CTX_new(TLS_server_method());
    BIO *key = BIO_new_mem_buf(certificate.key, -1), *chain = BIO_new_mem_buf(certificate.chain, -1);
    EVP_PKEY *private_key = PEM_read_bio_PrivateKey(key, NULL, NULL, NULL);
    X509 *x509 = PEM_read_bio_X509(chain, NULL, NULL, NULL);

    assert_int_equal(SSL_CTX_use_certificate(made, x509), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(made, private_key), 1);
    EVP_PKEY_free(private_key);
    X509_free(x509);
    BIO_free(key);
    BIO_free(chain);
    test_certificate_done(&certificate);
    return made;
}

static int set_up(void **state)
{
    (void)state;
    arena_init(&arena);
    context = context_make();
    edge_start(NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    edge_stop();
    SSL_CTX_free(context);
    arena_done(&arena);
    return 0;
}

/* ---- services ---- */

/* NULL: the client does not speak TLS. */
static SSL *accept_tls(int fd)
{
    SSL *ssl = SSL_new(context);

    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1)
        return ssl;
    SSL_free(ssl);
    return NULL;
}

static void read_head(SSL *ssl, char *head, size_t size)
{
    head[0] = '\0';
    for (size_t len = 0; len + 1 < size && !strstr(head, "\r\n\r\n"); len++) {
        if (SSL_read(ssl, head + len, 1) != 1)
            return;
        head[len + 1] = '\0';
    }
}

static void say_tls(SSL *ssl, const char *text)
{
    (void)SSL_write(ssl, text, (int)strlen(text));
}

static void echo_head_by_tls(struct service *service, int fd, unsigned nth)
{
    char head[4096], line[128];
    SSL *ssl = accept_tls(fd);

    (void)nth;
    if (!ssl)
        return;
    service->seen++;
    read_head(ssl, head, sizeof head);
    (void)snprintf(line, sizeof line, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", strlen(head));
    say_tls(ssl, line);
    say_tls(ssl, head);
    SSL_shutdown(ssl);
    SSL_free(ssl);
}

static void pour_out_by_tls(struct service *service, int fd, unsigned nth)
{
    static char piece[65536];
    char head[4096], line[128];
    SSL *ssl = accept_tls(fd);

    (void)nth;
    (void)service;
    if (!ssl)
        return;
    read_head(ssl, head, sizeof head);
    (void)snprintf(line, sizeof line, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BODY_BYTES);
    say_tls(ssl, line);
    memset(piece, 'x', sizeof piece);
    for (size_t left = BODY_BYTES; left;) {
        int n = SSL_write(ssl, piece, (int)MIN(left, sizeof piece));
        if (n <= 0)
            break;
        left -= (size_t)n;
    }
    SSL_shutdown(ssl);
    SSL_free(ssl);
}

static void shout_back_by_tls(struct service *service, int fd, unsigned nth)
{
    char head[4096], piece[4096];
    SSL *ssl = accept_tls(fd);
    int n;

    (void)nth;
    if (!ssl)
        return;
    read_head(ssl, head, sizeof head);
    say_tls(ssl, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello");
    while ((n = SSL_read(ssl, piece, sizeof piece)) > 0) {
        service->seen += (unsigned long)n;
        (void)SSL_write(ssl, piece, n);
    }
    SSL_shutdown(ssl);
    SSL_free(ssl);
}

static void answer_in_plain(struct service *service, int fd, unsigned nth)
{
    char piece[64];

    (void)nth;
    (void)service;
    (void)!recv(fd, piece, sizeof piece, 0);
    say(fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
}

/* ---- tests ---- */

static void a_service_that_expects_tls_gets_it(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, echo_head_by_tls);
    edge_expect_tls(service.port);
    for (int i = 0; i < 2; i++) {
        auto_close int fd = client_new();
        say(fd, TO("GET", "/path?q") "X-Mine: 1\r\n\r\n", service.port);
        struct answer answer = hear_answer(fd, &arena);
        assert_int_equal(answer.status, 200);
        assert_non_null(strstr(arena_text(&arena, answer.body), "GET /path?q HTTP/1.1\r\n"));
        assert_non_null(strstr(arena_text(&arena, answer.body), "X-Mine: 1\r\n"));
    }
    assert_int_equal(service.seen, 2);
    service_stop(&service);
}

static void a_large_answer_arrives_whole(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, pour_out_by_tls);
    edge_expect_tls(service.port);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.len, BODY_BYTES);
    service_stop(&service);
}

static void a_websocket_works_over_tls(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, shout_back_by_tls);
    edge_expect_tls(service.port);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/ws") "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly", service.port);
    assert_non_null(strstr(arena_text(&arena, hear_head(fd, &arena)), "HTTP/1.1 101 "));
    CHECK_STR(hear_exactly(fd, &arena, 10), STR("helloearly"));
    say_bytes(fd, STR("\x81\x00\xff"));
    CHECK_STR(hear_exactly(fd, &arena, 3), STR("\x81\x00\xff"));
    service_stop(&service);
}

static void a_service_without_tls_is_a_502(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, answer_in_plain);
    edge_expect_tls(service.port);
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    struct answer answer = hear_answer(fd, &arena);
    assert_int_equal(answer.status, 502);
    assert_non_null(strstr(arena_text(&arena, answer.body), "ended before it answered"));
    service_stop(&service);
}

static void other_ports_are_reached_without_tls(void **state)
{
    (void)state;
    struct service service;
    service_start(&service, 0, answer_in_plain);
    edge_expect_tls((uint16_t)(service.port + 1));
    auto_close int fd = client_new();
    say(fd, TO("GET", "/") "\r\n", service.port);
    assert_int_equal(hear_answer(fd, &arena).status, 400);
    service_stop(&service);
}

#define EDGE_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        EDGE_CASE(a_service_that_expects_tls_gets_it),  EDGE_CASE(a_large_answer_arrives_whole),
        EDGE_CASE(a_websocket_works_over_tls),          EDGE_CASE(a_service_without_tls_is_a_502),
        EDGE_CASE(other_ports_are_reached_without_tls),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    (void)!edge_use_private_network();
    return cmocka_run_group_tests(cases, NULL, NULL);
}
