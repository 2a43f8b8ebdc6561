/*
 * network_peer.c - both ends of bench/network: a server, and a client that measures and prints one line of JSON.
 *
 *   network_peer serve ADDRESS PORT              until it is killed
 *   network_peer connect ADDRESS PORT COUNT      connect, exchange a byte, close; one after the other
 *   network_peer requests ADDRESS PORT MS N      N connections, each sends a request and reads the answer, in turn
 *   network_peer down|up ADDRESS PORT BYTES N    N connections move that many bytes together
 *   network_peer hold ADDRESS PORT COUNT         opens a connection, stays in the background with it; every second it
 *                                                exchanges a byte. Returns when the first exchange is done.
 *   network_peer ping ADDRESS PORT COUNT         exchanges of a byte over one connection
 *
 * The first byte of a connection says what it is for. A connection is counted as made when a byte has come back,
 * because a proxy can accept before it dials. Static, so that it runs in any sandbox.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_BYTES = 200, ANSWER_BYTES = 1000, PIECE_BYTES = 256 * 1024, STACK_BYTES = 64 * 1024 };

static struct sockaddr_in peer;

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "network_peer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool send_all(int fd, const char *data, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(fd, data + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        sent += (size_t)n;
    }
    return true;
}

static bool receive_all(int fd, char *data, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = recv(fd, data + got, size - got, 0);
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

static int dial(char what)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0)
        die("socket");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer) < 0)
        die("connect");
    if (!send_all(fd, &what, 1))
        die("send");
    return fd;
}

/* ---- the server: a thread a connection ---- */

static void serve_requests(int fd)
{
    char request[REQUEST_BYTES], answer[ANSWER_BYTES];
    memset(answer, 'a', sizeof answer);
    while (receive_all(fd, request, sizeof request) && send_all(fd, answer, sizeof answer))
        continue;
}

static void serve_bytes(int fd, char what)
{
    static char zeros[PIECE_BYTES];
    uint64_t left;
    if (!receive_all(fd, (char *)&left, sizeof left))
        return;
    if (what == 'd') {
        for (; left > 0; left -= left < sizeof zeros ? left : sizeof zeros)
            if (!send_all(fd, zeros, left < sizeof zeros ? left : sizeof zeros))
                return;
        return;
    }
    char *room = malloc(PIECE_BYTES);
    while (left > 0) {
        ssize_t n = recv(fd, room, PIECE_BYTES, 0);
        if (n <= 0)
            break;
        left -= (size_t)n < left ? (size_t)n : left;
    }
    free(room);
    (void)send_all(fd, "k", 1);
}

static void *serve_one(void *argument)
{
    int fd = (int)(intptr_t)argument, one = 1;
    char what;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (receive_all(fd, &what, 1)) {
        if (what == 'r')
            serve_requests(fd);
        else if (what == 'd' || what == 'u')
            serve_bytes(fd, what);
        else
            while (send_all(fd, "k", 1) && receive_all(fd, &what, 1))
                continue;
    }
    (void)close(fd);
    return NULL;
}

static _Noreturn void serve(void)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    pthread_attr_t small;
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        bind(listener, (struct sockaddr *)&peer, sizeof peer) < 0 || listen(listener, 4096) < 0)
        die("listen");
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, STACK_BYTES);
    (void)pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    (void)puts("ready");
    (void)fflush(stdout);
    for (;;) {
        pthread_t thread;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && pthread_create(&thread, &small, serve_one, (void *)(intptr_t)fd) != 0)
            (void)close(fd);
    }
}

/* ---- the client ---- */

static int by_value(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

static void print_times(double *times, size_t count)
{
    qsort(times, count, sizeof *times, by_value);
    (void)printf("{\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"count\": %zu}\n", times[count / 2] * 1e6,
                 times[count * 9 / 10] * 1e6, times[count * 99 / 100] * 1e6, count);
}

static int measure_connects(size_t count)
{
    double *times = calloc(count, sizeof *times);
    char reply;
    for (size_t i = 0; i < count; i++) {
        double begun = now_s();
        int fd = dial('c');
        if (!receive_all(fd, &reply, 1))
            die("no byte came back");
        times[i] = now_s() - begun;
        (void)close(fd);
    }
    print_times(times, count);
    free(times);
    return 0;
}

static int measure_pings(size_t count)
{
    double *times = calloc(count, sizeof *times);
    char byte = 'p';
    int fd = dial('c');
    if (!receive_all(fd, &byte, 1))
        die("no byte came back");
    for (size_t i = 0; i < count; i++) {
        double begun = now_s();
        if (!send_all(fd, "p", 1) || !receive_all(fd, &byte, 1))
            die("ping");
        times[i] = now_s() - begun;
    }
    print_times(times, count);
    free(times);
    return 0;
}

static double deadline;
static uint64_t share;
static char direction;

static void *ask(void *argument)
{
    uint64_t *done = argument;
    char request[REQUEST_BYTES], answer[ANSWER_BYTES];
    memset(request, 'q', sizeof request);
    int fd = dial('r');
    while (now_s() < deadline) {
        if (!send_all(fd, request, sizeof request) || !receive_all(fd, answer, sizeof answer))
            die("request");
        (*done)++;
    }
    (void)close(fd);
    return NULL;
}

static void *move(void *argument)
{
    uint64_t *done = argument;
    char *room = calloc(1, PIECE_BYTES);
    int fd = dial(direction);
    if (!send_all(fd, (char *)&share, sizeof share))
        die("send");
    while (*done < share) {
        uint64_t left = share - *done;
        size_t want = left < PIECE_BYTES ? left : PIECE_BYTES;
        ssize_t n = direction == 'd' ? recv(fd, room, want, 0) : send(fd, room, want, MSG_NOSIGNAL);
        if (n <= 0)
            die("move");
        *done += (size_t)n;
    }
    if (direction == 'u' && !receive_all(fd, room, 1))
        die("no end came back");
    (void)close(fd);
    free(room);
    return NULL;
}

static uint64_t in_threads(void *(*work)(void *), size_t count)
{
    pthread_t *threads = calloc(count, sizeof *threads);
    uint64_t *done = calloc(count, 64), total = 0; /* a cache line each */
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, &done[i * 8]) != 0)
            die("thread");
    for (size_t i = 0; i < count; i++) {
        (void)pthread_join(threads[i], NULL);
        total += done[i * 8];
    }
    free(threads);
    free(done);
    return total;
}

static int measure_requests(size_t ms, size_t connections)
{
    double begun = now_s();
    deadline = begun + (double)ms / 1e3;
    uint64_t total = in_threads(ask, connections);
    (void)printf("{\"per_second\": %.1f}\n", (double)total / (now_s() - begun));
    return 0;
}

/* Of this process, system calls and what the kernel did in its name included. */
static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int measure_bytes(uint64_t bytes, size_t connections)
{
    double begun = now_s();
    share = bytes / connections;
    uint64_t total = in_threads(move, connections);
    (void)printf("{\"mb_per_second\": %.1f, \"cpu_s\": %.3f}\n", (double)total / 1e6 / (now_s() - begun), cpu_s());
    return 0;
}

static _Noreturn void hold(size_t count)
{
    int *fds = calloc(count, sizeof *fds);
    char byte;
    for (size_t i = 0; i < count; i++) {
        fds[i] = dial('c');
        if (!receive_all(fds[i], &byte, 1))
            die("no byte came back");
    }
    if (fork() != 0)
        _exit(0);
    (void)setsid();
    (void)close(0);
    (void)close(1);
    (void)close(2);
    for (;;) {
        (void)sleep(1);
        for (size_t i = 0; i < count; i++)
            if (!send_all(fds[i], "p", 1) || !receive_all(fds[i], &byte, 1))
                _exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        (void)fprintf(stderr, "usage: network_peer serve|connect|requests|down|up|hold|ping ADDRESS PORT [N [N]]\n");
        return 2;
    }
    const char *what = argv[1];
    uint64_t first = argc > 4 ? strtoull(argv[4], NULL, 10) : 1, second = argc > 5 ? strtoull(argv[5], NULL, 10) : 1;
    peer.sin_family = AF_INET;
    peer.sin_port = htons((uint16_t)strtoul(argv[3], NULL, 10));
    if (inet_pton(AF_INET, argv[2], &peer.sin_addr) != 1 || first == 0 || second == 0)
        die("arguments");
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    direction = what[0];
    if (strcmp(what, "serve") == 0)
        serve();
    if (strcmp(what, "connect") == 0)
        return measure_connects(first);
    if (strcmp(what, "ping") == 0)
        return measure_pings(first);
    if (strcmp(what, "requests") == 0)
        return measure_requests(first, second);
    if (strcmp(what, "down") == 0 || strcmp(what, "up") == 0)
        return measure_bytes(first, second);
    if (strcmp(what, "hold") == 0)
        hold(first);
    die("no such mode");
}
