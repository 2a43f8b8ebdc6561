/*
 * create_client.c - a client of bench/create that makes and kills sandboxes over many connections; prints one line of JSON.
 *
 *   create_client burst PORT TEMPLATE N          N connections, each sends a create; until the last answer
 *   create_client churn PORT TEMPLATE N MS       N connections, each makes a sandbox and kills it, again and again
 *
 * One thread and poll(): with two CPUs, a hundred threads here would compete with the server. Connections are made before the
 * clock starts. The API key is in $E2B_API_KEY. All times are in seconds. An answer that is not 2xx counts as an error;
 * after one, its connection makes no further requests.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 1000,
    ANSWER_BYTES = 16 * 1024,
    REQUEST_BYTES = 1024,
    ID_BYTES = 64,
    ANSWER_WAIT_MS = 60 * 1000
};

enum state { CREATING, KILLING, DONE };

struct connection {
    int fd;
    enum state state;
    double begun;
    size_t used;
    char answer[ANSWER_BYTES];
};

struct times {
    double *values;
    size_t count, room;
};

static struct connection connections[CONNECTIONS_MAX];
static struct pollfd watched[CONNECTIONS_MAX];
static struct times creates, kills;
static const char *key, *template;
static size_t errors;
static char first_error[256];

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "create_client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void times_add(struct times *times, double value)
{
    if (times->count == times->room) {
        times->room = times->room ? 2 * times->room : 1024;
        times->values = realloc(times->values, times->room * sizeof *times->values);
        if (!times->values)
            die("realloc");
    }
    times->values[times->count++] = value;
}

/* ---- requests ---- */

static void send_request(struct connection *c, enum state state, const char *method, const char *path, const char *body)
{
    char request[REQUEST_BYTES];
    int size = snprintf(request, sizeof request,
                        "%s %s HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %s\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n\r\n%s",
                        method, path, key, strlen(body), body);
    if (size < 0 || size >= REQUEST_BYTES) {
        errno = EMSGSIZE;
        die("request");
    }
    c->state = state;
    c->used = 0;
    c->begun = now_s();
    /* A request is smaller than the socket's buffer, so that this never waits. */
    if (send(c->fd, request, (size_t)size, MSG_NOSIGNAL) != size)
        die("send");
}

static void send_create(struct connection *c)
{
    char body[REQUEST_BYTES / 2];
    (void)snprintf(body, sizeof body, "{\"templateID\":\"%s\",\"timeout\":600,\"secure\":true}", template);
    send_request(c, CREATING, "POST", "/sandboxes", body);
}

static void send_kill(struct connection *c, const char *id)
{
    char path[ID_BYTES + 16];
    (void)snprintf(path, sizeof path, "/sandboxes/%s", id);
    send_request(c, KILLING, "DELETE", path, "");
}

/* ---- answers ---- */

/* Is the answer complete? It has a Content-Length, or no body. */
static bool is_complete(struct connection *c)
{
    c->answer[c->used] = '\0';
    const char *end = strstr(c->answer, "\r\n\r\n");
    if (!end)
        return false;
    const char *length = strcasestr(c->answer, "\r\ncontent-length:");
    size_t body = length && length < end ? strtoul(length + strlen("\r\ncontent-length:"), NULL, 10) : 0;
    return c->used >= (size_t)(end + 4 - c->answer) + body;
}

static bool find_id(const struct connection *c, char id[ID_BYTES])
{
    const char *field = strstr(c->answer, "\"sandboxID\":\"");
    return field && sscanf(field, "\"sandboxID\":\"%63[^\"]", id) == 1;
}

static void fail(struct connection *c)
{
    c->state = DONE;
    if (errors++ == 0)
        (void)snprintf(first_error, sizeof first_error, "%.200s", c->answer);
}

static void take_answer(struct connection *c, bool again)
{
    double seconds = now_s() - c->begun;
    char id[ID_BYTES];
    if (strncmp(c->answer, "HTTP/1.1 2", 10) != 0 || (c->state == CREATING && !find_id(c, id))) {
        fail(c);
        return;
    }
    times_add(c->state == CREATING ? &creates : &kills, seconds);
    if (!again)
        c->state = DONE;
    else if (c->state == CREATING)
        send_kill(c, id);
    else
        send_create(c);
}

/* Returns false if there was nothing complete yet. */
static bool read_answer(struct connection *c)
{
    ssize_t n = recv(c->fd, c->answer + c->used, sizeof c->answer - 1 - c->used, 0);
    if (n <= 0) {
        (void)snprintf(c->answer, sizeof c->answer, "the connection was closed, or the answer is too long");
        fail(c);
        return false;
    }
    c->used += (size_t)n;
    return is_complete(c);
}

/* Until all are done. A connection that has made a sandbox still kills it after the deadline. */
static void run(size_t count, bool churn, double deadline)
{
    for (;;) {
        size_t waiting = 0;
        for (size_t i = 0; i < count; i++) {
            watched[i].fd = connections[i].state == DONE ? -1 : connections[i].fd;
            waiting += connections[i].state != DONE;
        }
        if (waiting == 0)
            return;
        int ready = poll(watched, count, ANSWER_WAIT_MS);
        if (ready <= 0) {
            errno = ready == 0 ? ETIMEDOUT : errno;
            die("wait for an answer");
        }
        for (size_t i = 0; i < count; i++)
            if (watched[i].fd >= 0 && watched[i].revents && read_answer(&connections[i]))
                take_answer(&connections[i], churn && (connections[i].state == CREATING || now_s() < deadline));
    }
}

/* ---- what is printed ---- */

static void print_text(const char *text)
{
    for (; *text; text++)
        if (*text == '\r' || *text == '\n')
            (void)putchar(' ');
        else if (*text != '"' && *text != '\\' && (unsigned char)*text >= ' ')
            (void)putchar(*text);
}

static void print_times(const char *name, const struct times *times)
{
    (void)printf(", \"%s\": [", name);
    for (size_t i = 0; i < times->count; i++)
        (void)printf("%s%.6f", i ? ", " : "", times->values[i]);
    (void)printf("]");
}

int main(int argc, char **argv)
{
    bool churn = argc == 6 && strcmp(argv[1], "churn") == 0;
    key = getenv("E2B_API_KEY");
    if (!key || (!churn && (argc != 5 || strcmp(argv[1], "burst") != 0))) {
        (void)fprintf(stderr, "usage: E2B_API_KEY=… create_client burst PORT TEMPLATE N | churn PORT TEMPLATE N MS\n");
        return 2;
    }
    struct sockaddr_in server = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    server.sin_port = htons((uint16_t)atoi(argv[2]));
    template = argv[3];
    size_t count = strtoul(argv[4], NULL, 10);
    if (count == 0 || count > CONNECTIONS_MAX) {
        errno = ERANGE;
        die(argv[4]);
    }
    for (size_t i = 0; i < count; i++) {
        int one = 1;
        connections[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connections[i].fd < 0 || connect(connections[i].fd, (struct sockaddr *)&server, sizeof server) < 0)
            die("connect");
        (void)setsockopt(connections[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watched[i].events = POLLIN;
    }
    (void)usleep(200 * 1000); /* the server accepts them before the clock starts */
    double begun = now_s();
    for (size_t i = 0; i < count; i++)
        send_create(&connections[i]);
    run(count, churn, begun + (churn ? atof(argv[5]) / 1e3 : 0));
    (void)printf("{\"seconds\": %.6f, \"errors\": %zu, \"first_error\": \"", now_s() - begun, errors);
    print_text(first_error);
    (void)printf("\"");
    print_times("creates", &creates);
    print_times("kills", &kills);
    (void)printf("}\n");
    return 0;
}
