/*
 * edge.h - a whole edge in one process, for tests: a server with a proxy on a loop in a thread of its own, services that
 * listen on this machine's loopback instead of inside a sandbox, and clients that block.
 *
 * It brings doubles of what the proxy takes from elsewhere: sandbox_find() and friends know the sandbox "ilive" as long
 * as edge_kill() was not called, and its driver's sockets are plain ones. "iother" is another, without anything
 * special.
 */
#ifndef TESTS_UNIT_PROXY_EDGE_H
#define TESTS_UNIT_PROXY_EDGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

/* ---- the edge ---- */

struct edge_options {
    bool dial_later;           /* the driver answers in a later turn, as the real one does */
    bool dial_gone;            /* the driver knows no such sandbox */
    unsigned forwards_max;     /* 0: as many as usual */
    bool open_code;            /* run_code needs no access token */
    const char *traffic_token; /* the sandbox is private, and this opens its ports */
    const char *mask_host;
    const char *key_id;        /* who has made it; NULL: an administrator */
    unsigned key_forwards_max; /* 0: as many as usual */
    bool no_workers;           /* the proxy has none */
};

/* Before anything else: a loopback of our own, so that guestd's well-known port is free whatever else runs here. */
bool edge_use_private_network(void);
void edge_start(const struct edge_options *options); /* NULL: all off */
void edge_stop(void);                                /* checks that every reference was given back */
void edge_expect_tls(uint16_t port);                 /* services on this port do; until edge_stop() */
/* What the manager does: first nobody finds the sandbox any more, then its connections are cut. Returns afterwards. */
void edge_kill(void);
/* It is paused, and traffic may wake it. Returns when its connections are cut. */
void edge_sleep(void);
void edge_hold_wake(bool held);          /* sandbox_wake() does not return while it is held */
void edge_fail_wake(enum err_kind kind); /* why it fails; ERR_NONE: it does not */
void edge_pause_again(unsigned times);   /* so many wakes work, and it is paused again before anybody can use it */
unsigned edge_wakes(void);               /* calls of sandbox_wake() */
void edge_wait_wakes(unsigned total);
unsigned edge_dials(void); /* sockets that the driver has made */
/* Requests that have reached the edge since edge_start(), the refused ones too. Fails the test if they never come. */
unsigned edge_handled(void);
void edge_wait_handled(unsigned total);
void edge_wait_dials(unsigned total);
/* Time is a hand_clock. */
void edge_stand(void);       /* from here on the clock moves only by edge_turn() */
void edge_turn(uint64_t ms); /* turn it ahead and let the edge notice; 0: the edge has looked at all that has come */
/*
 * How often a signed link was looked for: "v1_right" and whatever follows is ilive's for reading "/a b", whoever asks.
 * What begins with "v1_" and is wrong was tried on EDGE_TRIES sandboxes, anything else on none.
 */
enum { EDGE_TRIES = 1000 };
unsigned edge_searches(void);
/* How often a request was on its way to ilive's port for code. */
int edge_code_notes(void);
/* And the access token of ilive is "ilives-token". */

/* ---- services: what runs in the sandbox ---- */

struct service;
/* Called for each connection, in the service's thread; closes nothing. `nth` counts from 0. */
typedef void talk_fn(struct service *service, int fd, unsigned nth);

struct service {
    uint16_t port;
    atomic_uint accepted;
    atomic_ulong seen; /* the talk function's own */
    talk_fn *talk;
    int listen_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    int fd; /* the connection that it talks on, or -1; under the lock */
};

void service_start(struct service *service, uint16_t port, talk_fn *talk); /* port 0: any */
void service_stop(struct service *service); /* a talk that waits for more hears the end */
uint16_t free_port(void);                   /* nobody listens there just now */

/* ---- clients and services: blocking talk ---- */

int client_new(void);                    /* connected to the edge; half a minute for each read or write */
int client_new_from(const char *source); /* from another address of this machine */
void say(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_bytes(int fd, struct str bytes);
/* The head of a request or an answer, with the empty line; fails the test when there is none. */
struct str hear_head(int fd, struct arena *arena);
struct str hear_exactly(int fd, struct arena *arena, size_t size);
/* Everything until the end. *out_errno is 0 for an orderly end, else why it ended. */
struct str hear_all(int fd, struct arena *arena, int *out_errno);

/* One whole answer, taken by its length or its chunks. */
struct answer {
    unsigned status;
    struct str head, body;
    bool chunked;
};
struct answer hear_answer(int fd, struct arena *arena);
bool has(struct str text, const char *part); /* any case */
/* Of the edge's own. Looks at the body, and whether a failure says if it may be repeated. */
void check_answer(int fd, struct arena *arena, unsigned status, const char *body);

/*
 * A head that is for the sandbox's port; the caller adds headers and the empty line. By whoever has the access token,
 * or by a stranger.
 */
#define TO(method, path) STRANGER("ilive", method, path) "X-Access-Token: ilives-token\r\n"
#define STRANGER(id, method, path) \
    method " " path " HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: " id "\r\nE2b-Sandbox-Port: %u\r\n"

#endif
