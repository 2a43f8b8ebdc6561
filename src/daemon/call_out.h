/*
 * call_out.h - HTTP requests from this machine to addresses that others have chosen, by libcurl. For children of the roles
 * webhooks and puller.
 *
 * The URL is taken apart by libcurl. Its name is looked up by the resolver that egress uses, and every address is judged. One
 * that is refused refuses the request: a name that leads to a public and a private address is an attempt to get at the
 * private one. Then libcurl sends the request to an address that was judged, and to no other: it is told the address
 * (CURLOPT_CONNECT_TO), and the function that makes its sockets compares it once more. Redirects are not followed.
 *
 * Threads    One at a time.
 */
#ifndef DAEMON_CALL_OUT_H
#define DAEMON_CALL_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "policy/net_policy.h"

struct call_out;

/* What the operator allows for one host and port. */
struct call_rights {
    uint32_t allow_count;
    const struct net_range *allow; /* addresses that are not public and may be called all the same */
    bool may_http;                 /* at those; all others only by https */
};

struct call_out_config {
    const char *subject; /* "webhook": "the webhook's address…" */
    const char *callers; /* "webhooks": "…which webhooks may not call" */
    struct str roots;    /* certificates, in PEM */
    struct str resolv_conf;
    uint32_t deny_count;
    const struct net_range *deny;
    uint64_t connect_ms; /* 0: half of what is left */
    struct call_rights (*rights)(void *context, struct str host, uint16_t port);
    void *context;
};
struct call_out *call_out_new(const struct call_out_config *config) must_use;
void call_out_free(struct call_out *out); /* NULL is fine */

struct call_request {
    const char *method; /* GET, HEAD, POST */
    struct str url;
    uint32_t header_count;
    const struct str *headers; /* lines "Name: value", without line ends */
    struct str body;           /* of POST */
    uint64_t until_ms;         /* clock_mono_ms() */
    uint64_t idle_ms;          /* without a byte; 0: no limit of its own */
    /* A line of the answer's head, also its first ("HTTP/1.1 200 OK"), without the line's end. May be NULL. */
    void (*on_header)(void *context, struct str line);
    /* False: no more is wanted, and what was sent so far counts as the answer. */
    bool (*on_body)(void *context, struct str piece);
    /* Asked several times a second. May be NULL. */
    bool (*is_cancelled)(void *context);
    void *context;
};
/* May it be called? Looks up the name. ERR_INVALID, ERR_DENIED, ERR_UNAVAILABLE. */
bool call_out_check(struct call_out *out, struct str url, uint64_t until_ms, struct arena *arena, struct err *err)
    must_use;
/*
 * The same, and then sends it. ERR_TIMEOUT and ERR_UNAVAILABLE: there was no answer, or only a part; err->sys is EKEYREJECTED
 * if the server's certificate was the reason.
 */
bool call_out_send(struct call_out *out, const struct call_request *request, struct arena *arena, uint32_t *out_status,
                   struct err *err) must_use;

/* Once, while files can be opened: OpenSSL reads its configuration. */
void call_out_prepare(void);

/* The system calls that it needs besides those of any child (forker.h). For lists of struct confine_rule. */
#define CALL_OUT_CALLS                                                                                                \
    { "socket", "the server, name servers", .first = AF_INET }, { "socket", "the same", .first = AF_INET6 },          \
        { "socketpair", "libcurl wakes itself by one", .first = AF_UNIX }, { "connect", "the server, name servers" }, \
        { "bind", "is this an address of this machine?" }, { "read", "TLS" }, { "readv", "streams" },                 \
        { "writev", "streams" }, { "recvmsg", "DNS" }, { "sendmsg", "DNS" }, { "shutdown", "orderly ends" },          \
        { "setsockopt", "TCP_NODELAY" }, { "getsockopt", "SO_ERROR after connect" },                                  \
        { "getsockname", "libcurl keeps it" }, { "getpeername", "the same" }, { "fcntl", "O_NONBLOCK" },              \
        { "ioctl", "the same", .only = FIONBIO }, { "epoll_create1", "the resolver's loop" },                         \
        { "epoll_ctl", "the same" }, { "epoll_wait", "the same" }, { "epoll_pwait", "the same" },                     \
        { "eventfd2", "the same" }, { "getuid", "libraries" }, { "geteuid", "libraries" }, { "getgid", "libraries" }, \
        { "getegid", "libraries" },                                                                                   \
    {                                                                                                                 \
        "prlimit64", "libc"                                                                                           \
    }

#endif
