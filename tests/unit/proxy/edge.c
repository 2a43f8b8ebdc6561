#include "edge.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "../isolation/fake.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "hand_clock.h"
#include "http/http.h"
#include "io/listen.h"
#include "io/loop.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"
#include "test.h"

static pthread_t test_thread;

/* cmocka can fail a test from its own thread only; a service's thread ends the program. */
static void flunk(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void flunk(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (pthread_equal(pthread_self(), test_thread))
        fail_msg("%s", text);
    fprintf(stderr, "in a service's thread: %s\n", text);
    abort();
}

/* ---- doubles ---- */

struct sandbox {
    atomic_bool routable;
    atomic_int references;
    atomic_int code_notes;
};

static struct {
    struct edge_options options;
    struct loop *loop;
    struct http_server *server;
    struct proxy *proxy;
    struct sandbox sandbox, other;
    pthread_t thread;
    uint16_t port;
    struct fake fake;
    atomic_uint searches, handled;
    atomic_uint tls_port; /* 0: none */
    atomic_bool asleep, wake_held;
    atomic_uint wake_kind; /* why a wake fails; ERR_NONE: it does not */
    atomic_uint wakes;
    atomic_uint pauses_again; /* after so many wakes */
    struct workers *workers;
} edge;

enum {
    HANG_S = 30, /* only a hang takes so long */
    POLL_US = 1000,
};

struct sandbox *sandbox_find(struct sandboxes *all, struct str id)
{
    (void)all;
    struct sandbox *found = str_eq(id, STR("iother")) ? &edge.other : &edge.sandbox;
    if (!edge.sandbox.routable || (found == &edge.sandbox && !str_eq(id, STR("ilive"))))
        return NULL;
    found->references++;
    return found;
}

struct sandbox *sandbox_find_sleeping(struct sandboxes *all, struct str id)
{
    (void)all;
    if (!edge.asleep || !str_eq(id, STR("ilive")))
        return NULL;
    edge.sandbox.references++;
    return &edge.sandbox;
}

bool sandbox_wake(struct sandbox *sandbox, struct err *err)
{
    edge.wakes++;
    while (edge.wake_held)
        usleep(POLL_US);
    if (edge.wake_kind)
        return err_set(err, (enum err_kind)(unsigned)edge.wake_kind, "it does not wake");
    if (edge.pauses_again) {
        edge.pauses_again--;
        return true;
    }
    sandbox->routable = true;
    edge.asleep = false;
    return true;
}

struct sandbox *sandbox_find_by_link(struct sandboxes *all, const struct file_link *link, uint32_t *out_tried)
{
    edge.searches++;
    *out_tried = str_starts(link->signature, STR("v1_")) ? EDGE_TRIES : 0;
    return str_eq(link->path, STR("/a b")) && str_starts(link->signature, STR("v1_right")) &&
                   str_eq(link->operation, STR("read"))
               ? sandbox_find(all, STR("ilive"))
               : NULL;
}

struct sandbox *sandbox_find_by_token(struct sandboxes *all, struct str token)
{
    return str_eq(token, STR("ilives-token")) ? sandbox_find(all, STR("ilive")) : NULL;
}

bool sandbox_has_token(const struct sandbox *sandbox, struct str access_token)
{
    return sandbox == &edge.sandbox && str_eq(access_token, STR("ilives-token"));
}

bool sandbox_has_signed(const struct sandbox *sandbox, const struct file_link *link)
{
    return sandbox == &edge.sandbox && str_eq(link->path, STR("/a b")) && str_starts(link->signature, STR("v1_right"));
}

bool sandbox_is_private(const struct sandbox *sandbox)
{
    (void)sandbox;
    return edge.options.traffic_token;
}

bool sandbox_wants_token(const struct sandbox *sandbox, uint16_t port)
{
    (void)sandbox;
    return port != 49999 || !edge.options.open_code;
}

void sandbox_unref(struct sandbox *sandbox)
{
    sandbox->references--;
}

const char *sandbox_id(const struct sandbox *sandbox)
{
    return sandbox == &edge.other ? "iother" : "ilive";
}

int edge_code_notes(void)
{
    return edge.sandbox.code_notes;
}

void sandbox_note_code(struct sandbox *sandbox)
{
    sandbox->code_notes++;
}

bool sandbox_is_routable(const struct sandbox *sandbox)
{
    return sandbox->routable;
}

struct driver *sandbox_driver(const struct sandbox *sandbox)
{
    (void)sandbox;
    return &edge.fake.driver;
}

bool sandbox_admits(const struct sandbox *sandbox, struct str traffic_token)
{
    (void)sandbox;
    return !edge.options.traffic_token || str_eq(traffic_token, str_from(edge.options.traffic_token));
}

bool sandbox_port_has_tls(const struct sandbox *sandbox, uint16_t port)
{
    (void)sandbox;
    return port == edge.tls_port;
}

void edge_expect_tls(uint16_t port)
{
    edge.tls_port = port;
}

const char *sandbox_key_id(const struct sandbox *sandbox)
{
    (void)sandbox;
    return edge.options.key_id ? edge.options.key_id : "";
}

struct str sandbox_mask_host(const struct sandbox *sandbox)
{
    (void)sandbox;
    return edge.options.mask_host ? str_from(edge.options.mask_host) : STR("");
}

/* ---- the edge ---- */

static void on_request(struct http_exchange *ex, void *context)
{
    (void)context;
    if (proxy_is_edge(edge.proxy, &ex->head))
        proxy_handle(edge.proxy, ex);
    else
        http_reply(ex, 200, NULL, 0, STR("the API's"));
    edge.handled++;
}

static void *run_loop(void *context)
{
    (void)context;
    loop_run(edge.loop);
    return NULL;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    return ntohs(address.sin_port);
}

void edge_start(const struct edge_options *options)
{
    struct err err;
    signal(SIGPIPE, SIG_IGN);
    test_thread = pthread_self();
    hand_clock_start();
    memset(&edge, 0, sizeof edge);
    if (options)
        edge.options = *options;
    edge.loop = loop_new();
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    assert_true(fd >= 0);
    edge.port = port_of(fd);
    edge.sandbox.routable = true;
    fake_make(&edge.fake);
    if (!edge.options.dial_gone) {
        fake_hold(&edge.fake, "ilive");
        fake_hold(&edge.fake, "iother");
    }
    if (edge.options.dial_later)
        edge.fake.dial_later = edge.loop;
    edge.workers = workers_new(edge.loop, 4);
    edge.proxy = proxy_new(edge.loop, NULL);
    if (!edge.options.no_workers)
        proxy_use_workers(edge.proxy, edge.workers);
    if (edge.options.forwards_max)
        proxy_limit(edge.proxy, edge.options.forwards_max);
    if (edge.options.key_forwards_max)
        proxy_limit_key(edge.proxy, edge.options.key_forwards_max);
    edge.server = http_server_new(edge.loop, fd, &(struct http_server_config){ .on_request = on_request });
    assert_int_equal(pthread_create(&edge.thread, NULL, run_loop, NULL), 0);
}

bool edge_use_private_network(void)
{
    struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return false;
    auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
}

static void stop_loop(struct loop_task *task)
{
    (void)task;
    loop_stop_soon(edge.loop);
}

static void stop_here(struct loop_task *task)
{
    static struct loop_task after;
    (void)task;
    http_server_free(edge.server);
    workers_free(edge.workers);
    proxy_free(edge.proxy);
    after.fn = stop_loop; /* behind the ends of the workers' last jobs */
    loop_post(edge.loop, &after);
}

void edge_stop(void)
{
    struct loop_task task = { .fn = stop_here };
    loop_post(edge.loop, &task);
    pthread_join(edge.thread, NULL);
    loop_free(edge.loop);
    fake_drop(&edge.fake);
    assert_int_equal(edge.sandbox.references, 0);
    assert_int_equal(edge.other.references, 0);
}

static atomic_bool cut;

static void cut_here(struct loop_task *task)
{
    (void)task;
    proxy_cut(edge.proxy, "ilive");
    cut = true;
}

void edge_kill(void)
{
    struct loop_task task = { .fn = cut_here };
    edge.sandbox.routable = false;
    cut = false;
    loop_post(edge.loop, &task);
    while (!cut)
        usleep(1000);
}

void edge_sleep(void)
{
    edge_kill();
    edge.asleep = true;
}

void edge_hold_wake(bool held)
{
    edge.wake_held = held;
}

void edge_fail_wake(enum err_kind kind)
{
    edge.wake_kind = kind;
}

void edge_pause_again(unsigned times)
{
    edge.pauses_again = times;
}

unsigned edge_wakes(void)
{
    return edge.wakes;
}

void edge_wait_wakes(unsigned total)
{
    for (unsigned i = 0; edge.wakes < total; i++) {
        if (i > HANG_S * 1000000 / POLL_US)
            fail_msg("%u wakes, want %u", edge.wakes, total);
        usleep(POLL_US);
    }
}

unsigned edge_dials(void)
{
    return edge.fake.dials;
}

unsigned edge_handled(void)
{
    return edge.handled;
}

static void wait_for_count(const atomic_uint *count, unsigned total, const char *of_what)
{
    for (unsigned i = 0; *count < total; i++) {
        if (i > HANG_S * 1000000 / POLL_US)
            fail_msg("%u %s, want %u", *count, of_what, total);
        usleep(POLL_US);
    }
}

void edge_wait_handled(unsigned total)
{
    wait_for_count(&edge.handled, total, "requests");
}

void edge_wait_dials(unsigned total)
{
    wait_for_count(&edge.fake.dials, total, "dials");
}

void edge_stand(void)
{
    hand_clock_stand();
}

void edge_turn(uint64_t ms)
{
    hand_clock_turn(edge.loop, ms);
}

unsigned edge_searches(void)
{
    return edge.searches;
}

/* ---- services ---- */

static void *run_service(void *context)
{
    struct service *service = context;
    int fd;
    while ((fd = accept(service->listen_fd, NULL, NULL)) >= 0) {
        struct timeval limit = { .tv_sec = HANG_S };
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        pthread_mutex_lock(&service->lock);
        service->fd = fd;
        pthread_mutex_unlock(&service->lock);
        service->talk(service, fd, service->accepted++);
        pthread_mutex_lock(&service->lock);
        service->fd = -1;
        close(fd);
        pthread_mutex_unlock(&service->lock);
    }
    return NULL;
}

void service_start(struct service *service, uint16_t port, talk_fn *talk)
{
    const int on = 1;
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    *service = (struct service){ .talk = talk, .fd = -1 };
    pthread_mutex_init(&service->lock, NULL);
    service->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(service->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(service->listen_fd, (struct sockaddr *)&address, sizeof address) < 0)
        flunk("port %u: %s", port, strerror(errno));
    assert_int_equal(listen(service->listen_fd, 64), 0);
    service->port = port_of(service->listen_fd);
    assert_int_equal(pthread_create(&service->thread, NULL, run_service, service), 0);
}

void service_stop(struct service *service)
{
    shutdown(service->listen_fd, SHUT_RDWR);
    pthread_mutex_lock(&service->lock);
    if (service->fd >= 0)
        shutdown(service->fd, SHUT_RD);
    pthread_mutex_unlock(&service->lock);
    pthread_join(service->thread, NULL);
    pthread_mutex_destroy(&service->lock);
    close(service->listen_fd);
}

uint16_t free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    return port_of(fd);
}

/* ---- talk ---- */

int client_new(void)
{
    return client_new_from("127.0.0.1");
}

int client_new_from(const char *source)
{
    struct sockaddr_in from = { .sin_family = AF_INET };
    assert_int_equal(inet_pton(AF_INET, source, &from.sin_addr), 1);
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(edge.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval limit = { .tv_sec = HANG_S };
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

void say_bytes(int fd, struct str bytes)
{
    while (bytes.len) {
        ssize_t n = send(fd, bytes.at, bytes.len, MSG_NOSIGNAL);
        if (n < 0)
            flunk("send: %s", strerror(errno));
        bytes.at += n;
        bytes.len -= (size_t)n;
    }
}

void say(int fd, const char *format, ...)
{
    char text[8192];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_true(n >= 0 && (size_t)n < sizeof text);
    say_bytes(fd, str_of(text, (size_t)n));
}

/* The loop's thread gets signals too, and this one may have to try again. */
static ssize_t hear(int fd, void *room, size_t size)
{
    ssize_t n;
    do
        n = recv(fd, room, size, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

struct str hear_head(int fd, struct arena *arena)
{
    char text[16384];
    size_t len = 0;
    while (len < 4 || memcmp(text + len - 4, "\r\n\r\n", 4) != 0) {
        ssize_t n = len < sizeof text ? hear(fd, text + len, 1) : -1;
        if (n <= 0)
            flunk("no head: %s, after '%.*s'", n < 0 ? strerror(errno) : "end", (int)len, text);
        len++;
    }
    return arena_copy(arena, str_of(text, len));
}

struct str hear_exactly(int fd, struct arena *arena, size_t size)
{
    char *room = arena_alloc(arena, size + 1);
    for (size_t len = 0; len < size;) {
        ssize_t n = hear(fd, room + len, size - len);
        if (n <= 0)
            flunk("%zu of %zu bytes, then %s", len, size, n < 0 ? strerror(errno) : "the end");
        len += (size_t)n;
    }
    return str_of(room, size);
}

struct str hear_all(int fd, struct arena *arena, int *out_errno)
{
    struct buf all = buf_make(arena, 64 << 20);
    char piece[65536];
    ssize_t n;
    while ((n = hear(fd, piece, sizeof piece)) > 0)
        buf_add(&all, str_of(piece, (size_t)n));
    *out_errno = n < 0 ? errno : 0;
    return buf_str(&all);
}

bool has(struct str text, const char *part)
{
    size_t len = strlen(part);
    for (size_t i = 0; i + len <= text.len; i++) {
        if (strncasecmp(text.at + i, part, len) == 0)
            return true;
    }
    return false;
}

static struct str hear_line(int fd, struct arena *arena)
{
    struct buf line = buf_make(arena, 1024);
    while (!str_ends(buf_str(&line), STR("\r\n"))) {
        char c;
        if (hear(fd, &c, 1) != 1)
            flunk("no chunk line");
        buf_add_char(&line, c);
    }
    return buf_str(&line);
}

struct answer hear_answer(int fd, struct arena *arena)
{
    struct answer answer = { .head = hear_head(fd, arena) };
    struct http_head head;
    struct err err;
    size_t used;
    if (http_parse_response(answer.head, false, &head, &used, &err) != HTTP_DONE)
        flunk("not an answer: %.*s", STR_ARG(answer.head));
    answer.status = head.status;
    if (head.framing == HTTP_LENGTH) {
        answer.body = hear_exactly(fd, arena, (size_t)head.length);
    } else if (head.framing == HTTP_CHUNKED) {
        struct buf body = buf_make(arena, 64 << 20);
        size_t size;
        answer.chunked = true;
        while ((size = strtoul(arena_text(arena, hear_line(fd, arena)), NULL, 16)) > 0) {
            buf_add(&body, hear_exactly(fd, arena, size));
            CHECK_STR(hear_exactly(fd, arena, 2), STR("\r\n"));
        }
        CHECK_STR(hear_exactly(fd, arena, 2), STR("\r\n"));
        answer.body = buf_str(&body);
    }
    return answer;
}

void check_answer(int fd, struct arena *arena, unsigned status, const char *body)
{
    struct answer answer = hear_answer(fd, arena);
    if (answer.status != status)
        fail_msg("got %u, want %u: %.*s", answer.status, status, STR_ARG(answer.body));
    /* Clients repeat these by themselves, unless they are told. */
    assert_int_equal(has(answer.head, "Should-Retry: "), status == 429 || status == 502 || status == 503);
    CHECK_STR(answer.body, str_from(body));
}
