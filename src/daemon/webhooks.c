/*
 * webhooks_main() - calls the webhooks that people have registered, each in a child of its own (forker.h).
 *   holds     the operator's address ranges, certificates that the host trusts, name servers to ask; a channel to front
 *   must not  open a file, accept a connection, reach an address that is not public unless the operator allows it
 *
 * How it works, in the child: the URL is taken apart by libcurl. Its name is looked up by the resolver that egress uses, and
 * every address is judged. One that is refused refuses the call: a name that leads to a public and a private address is an
 * attempt to get at the private one. Then libcurl sends the request to an address that was judged, and to no other: it is
 * told the address (CURLOPT_CONNECT_TO), and the function that makes its sockets compares it once more. Redirects are not
 * followed. The answer's status is the result; its body is read up to a limit and dropped.
 */
#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/forker.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "egress/resolver.h"
#include "io/loop.h"
#include "mail/hook.h"
#include "policy/net_rules.h"
#include "privsep/frame.h"
#include "privsep/role.h"
#include "wire/dns.h"

#ifndef WEBHOOKS_MS /* a test has less time */
#define WEBHOOKS_MS LIMIT_HOOK_MS
#endif

enum {
    ADDRESSES_MOST = 16, /* of a name; more are not tried, but judged */
    TRIES = 3,           /* addresses that are tried */
    READ_MS = 5000,      /* for front's request */
    CHILD_FILES = 64,
};

struct webhooks {
    struct egress_settings settings;
    char *roots; /* certificates, in PEM */
    size_t roots_len;
    struct buf resolv_conf;
};

/* One call, in the child. */
struct call {
    const struct webhooks *webhooks;
    struct arena *arena;
    const struct mail_hook *hook;
    uint64_t until_ms;
    CURLU *url;
    bool is_https;
    uint16_t port;
    char host[LIMIT_NET_NAME_BYTES + 1]; /* a name or an address, without brackets */
    struct net_address addresses[ADDRESSES_MOST];
    unsigned address_count;
    const struct net_address *trying;
    size_t answer_bytes;
};

/* ---- the URL ---- */

static bool bad_url(struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "the webhook's address %s", what);
}

/* A part of the URL, in the arena; empty: it has none. */
static struct str url_part(struct call *call, CURLUPart part, unsigned flags)
{
    char *text = NULL;

    if (curl_url_get(call->url, part, &text, flags) != CURLUE_OK)
        return STR("");
    struct str copy = arena_copy(call->arena, str_from(text));
    curl_free(text);
    return copy;
}

static bool take_host(struct call *call, struct err *err)
{
    struct str host = url_part(call, CURLUPART_HOST, 0);

    if (str_starts(host, STR("[")) && str_ends(host, STR("]")))
        host = str_of(host.at + 1, host.len - 2);
    if (host.len == 0 || host.len >= sizeof call->host)
        return bad_url(err, "has no host name, or too long a one");
    memcpy(call->host, host.at, host.len);
    text_lower(call->host, host.len);
    call->host[host.len] = '\0';
    return true;
}

static bool take_url(struct call *call, struct err *err)
{
    struct str url = call->hook->url;
    uint64_t port;

    if (url.len == 0 || str_has_char(url, '\0'))
        return bad_url(err, "is empty");
    if (curl_url_set(call->url, CURLUPART_URL, arena_text(call->arena, url), CURLU_DISALLOW_USER) != CURLUE_OK)
        return bad_url(err, "is not a URL without user name, such as https://example.com/hook");
    struct str scheme = url_part(call, CURLUPART_SCHEME, 0);
    call->is_https = str_eq(scheme, STR("https"));
    if (!call->is_https && !str_eq(scheme, STR("http")))
        return bad_url(err, "must begin with https://");
    if (url_part(call, CURLUPART_ZONEID, 0).len)
        return bad_url(err, "has a zone, which only this machine knows");
    if (!str_to_u64(url_part(call, CURLUPART_PORT, CURLU_DEFAULT_PORT), UINT16_MAX, &port) || port == 0)
        return bad_url(err, "has a port that is none");
    call->port = (uint16_t)port;
    return take_host(call, err);
}

/* ---- addresses ---- */

struct lookup {
    struct loop *loop;
    struct call *call;
    unsigned waiting;
    bool has_more; /* addresses than there is room for */
};

static void add_address(struct lookup *lookup, const struct dns_record *record)
{
    struct call *call = lookup->call;
    struct net_address address;

    if (record->type == DNS_A)
        address = net_address_of_v4(record->address);
    else if (record->type == DNS_AAAA)
        memcpy(address.at, record->address, sizeof address.at);
    else
        return;
    if (call->address_count == ADDRESSES_MOST)
        lookup->has_more = true;
    else
        call->addresses[call->address_count++] = address;
}

static void on_answer(void *context, const struct dns_answer *answer)
{
    struct lookup *lookup = context;

    for (uint32_t i = 0; answer->code == DNS_FINE && i < answer->count; i++)
        add_address(lookup, &answer->records[i]);
    if (--lookup->waiting == 0)
        loop_stop_soon(lookup->loop);
}

static void on_late(struct timer *timer)
{
    loop_stop_soon(timer->loop);
}

static bool look_up(struct call *call, struct err *err)
{
    static const uint16_t types[] = { DNS_A, DNS_AAAA };
    struct lookup lookup = { .loop = loop_new(), .call = call, .waiting = COUNT_OF(types) };
    struct resolver *resolver = resolver_new(lookup.loop);
    struct resolver_asker asker = { 0 };
    struct timer late = { 0 };
    uint64_t now_ms = clock_mono_ms();

    resolver_use(resolver, buf_str(&call->webhooks->resolv_conf));
    for (size_t i = 0; i < COUNT_OF(types); i++)
        (void)!resolver_ask(resolver, &asker, str_from(call->host), types[i], on_answer, &lookup);
    timer_set(&late, lookup.loop, call->until_ms > now_ms ? call->until_ms - now_ms : 0, on_late);
    loop_run(lookup.loop);
    timer_clear(&late);
    resolver_asker_done(resolver, &asker);
    resolver_free(resolver);
    loop_free(lookup.loop);
    if (lookup.has_more)
        return err_set(err, ERR_DENIED, "the webhook's name has more than %d addresses", ADDRESSES_MOST);
    if (call->address_count == 0)
        return err_set(err, ERR_UNAVAILABLE, "the webhook's name %.80s has no address", call->host);
    return true;
}

static bool find_addresses(struct call *call, struct err *err)
{
    static const struct net_policy open = { .internet = true };
    const struct egress_settings *settings = &call->webhooks->settings;

    if (net_address_parse(str_from(call->host), &call->addresses[0])) {
        call->address_count = 1;
        return true;
    }
    if (!net_name_is_valid(str_from(call->host)))
        return bad_url(err, "has a host name with other characters than a-z, 0-9, - and .");
    /* Without addresses of their own network, operators have no names there that people may call. */
    if (!settings->hook_allow_count &&
        !net_rule_allows(net_judge_private(&open, &(struct net_operator){ 0 }, str_from(call->host))))
        return err_set(err, ERR_DENIED, "the webhook's name %.80s is one of a private network", call->host);
    return look_up(call, err);
}

static socklen_t socket_address(const struct net_address *address, uint16_t port, struct sockaddr_storage *out)
{
    struct str bytes = net_address_bytes(address);

    memset(out, 0, sizeof *out);
    if (net_address_is_v4(address)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        memcpy(&v4->sin_addr, bytes.at, sizeof v4->sin_addr);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    memcpy(&v6->sin6_addr, bytes.at, sizeof v6->sin6_addr);
    return sizeof *v6;
}

/* An address of this machine can be bound to. */
static bool is_host(const struct net_address *address)
{
    struct sockaddr_storage room;
    socklen_t len = socket_address(address, 0, &room);
    auto_close int fd = socket(room.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    return fd < 0 || bind(fd, (struct sockaddr *)&room, len) == 0;
}

static bool ranges_have(const struct net_range *ranges, uint32_t count, const struct net_address *address)
{
    for (uint32_t i = 0; i < count; i++)
        if (net_range_has(&ranges[i], address))
            return true;
    return false;
}

static bool judge(const struct call *call, const struct net_address *address, struct err *err)
{
    static const struct net_policy open = { .internet = true };
    const struct egress_settings *settings = &call->webhooks->settings;
    const struct net_operator ranges = { .allow_count = settings->hook_allow_count,
                                         .allow = settings->hook_allow,
                                         .deny_count = settings->deny_count,
                                         .deny = settings->deny };
    const struct net_address reached = net_address_reached(address);
    const struct net_flow flow = { .to = *address, .port = call->port, .is_host = is_host(&reached) };
    enum net_rule rule = net_judge(&open, &ranges, &flow);
    char text[NET_ADDRESS_TEXT];

    net_address_text(address, text);
    if (!net_rule_allows(rule))
        return err_set(err, ERR_DENIED, "the webhook's address leads to %s port %u, which webhooks may not call: %s",
                       text, call->port, net_rule_name[rule]);
    if (!call->is_https && !ranges_have(settings->hook_allow, settings->hook_allow_count, &reached))
        return bad_url(err, "must begin with https://");
    return true;
}

static bool judge_all(const struct call *call, struct err *err)
{
    for (unsigned i = 0; i < call->address_count; i++)
        if (!judge(call, &call->addresses[i], err))
            return false;
    return true;
}

/* ---- the request ---- */

static curl_socket_t open_socket(void *context, curlsocktype purpose, struct curl_sockaddr *to)
{
    const struct call *call = context;
    struct sockaddr_storage want;
    socklen_t len = socket_address(call->trying, call->port, &want);

    if (purpose != CURLSOCKTYPE_IPCXN || to->addrlen != len || memcmp(&to->addr, &want, len) != 0)
        return CURL_SOCKET_BAD;
    return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

static size_t drop_body(char *bytes, size_t size, size_t count, void *context)
{
    struct call *call = context;

    (void)bytes;
    call->answer_bytes += size * count;
    return call->answer_bytes > LIMIT_HOOK_ANSWER_BYTES ? 0 : size * count;
}

static struct curl_slist *make_headers(struct call *call)
{
    struct curl_slist *list = NULL;

    for (uint32_t i = 0; i < call->hook->header_count; i++) {
        const struct mail_pair *header = &call->hook->headers[i];
        struct str line = arena_format(call->arena, "%.*s: %.*s", STR_ARG(header->key), STR_ARG(header->value));
        list = curl_slist_append(list, arena_text(call->arena, line));
    }
    list = curl_slist_append(list, "Expect:"); /* no waiting for "100 Continue" */
    return list;
}

static struct curl_slist *make_target(struct call *call)
{
    char address[NET_ADDRESS_TEXT];

    net_address_text(call->trying, address);
    bool is_v4 = net_address_is_v4(call->trying);
    struct str target = arena_format(call->arena, is_v4 ? "::%s:%u" : "::[%s]:%u", address, call->port);
    return curl_slist_append(NULL, arena_text(call->arena, target));
}

static void set_up(CURL *curl, struct call *call, struct curl_slist *headers, struct curl_slist *target)
{
    struct curl_blob roots = { .data = call->webhooks->roots,
                               .len = call->webhooks->roots_len,
                               .flags = CURL_BLOB_NOCOPY };
    uint64_t now_ms = clock_mono_ms();
    long left_ms = call->until_ms > now_ms ? (long)(call->until_ms - now_ms) : 1;

    (void)curl_easy_setopt(curl, CURLOPT_CURLU, call->url);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECT_TO, target);
    (void)curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    (void)curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, call);
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(curl, CURLOPT_CAINFO_BLOB, &roots);
    (void)curl_easy_setopt(curl, CURLOPT_CAINFO, NULL);
    (void)curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, left_ms);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, left_ms / 2 + 1);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_USERAGENT, "Cloister/" CLOISTER_VERSION);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)call->hook->body.len);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call->hook->body.len ? call->hook->body.at : "");
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop_body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, call);
}

/* One try. *out_again: nothing was sent, and another address may work. */
static bool post(struct call *call, uint32_t *out_status, bool *out_again, struct err *err)
{
    CURL *curl = curl_easy_init();
    long status = 0;

    *out_again = false;
    if (!curl)
        return err_set(err, ERR_INTERNAL, "libcurl cannot make a request");
    struct curl_slist *headers = make_headers(call), *target = make_target(call);
    set_up(curl, call, headers, target);
    CURLcode code = curl_easy_perform(curl);
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    curl_slist_free_all(target);
    if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && status >= 200)) {
        *out_status = (uint32_t)status;
        return true;
    }
    *out_again = code == CURLE_COULDNT_CONNECT;
    return err_set(err, code == CURLE_OPERATION_TIMEDOUT ? ERR_TIMEOUT : ERR_UNAVAILABLE,
                   "the webhook's server gave no answer: %s", curl_easy_strerror(code));
}

static bool run(struct call *call, uint32_t *out_status, struct err *err)
{
    if (!take_url(call, err) || !find_addresses(call, err) || !judge_all(call, err))
        return false;
    *out_status = 0;
    bool done = call->hook->only_check, again = !done;
    for (unsigned i = 0; again && i < MIN(call->address_count, (unsigned)TRIES); i++) {
        call->trying = &call->addresses[i];
        done = post(call, out_status, &again, err);
    }
    return done;
}

/* ---- the child ---- */

static void answer(const struct webhooks *webhooks, struct str request, struct arena *arena, struct buf *out)
{
    struct mail_hook hook;
    struct call call = { .webhooks = webhooks, .arena = arena, .hook = &hook, .url = curl_url() };
    uint32_t status;
    struct err why;

    bool fine =
        call.url ? mail_hook_unpack(request, arena, &hook, &why) : err_set(&why, ERR_INTERNAL, "libcurl has no memory");
    if (fine) {
        call.until_ms = clock_mono_ms() + (hook.only_check ? MIN(WEBHOOKS_MS, LIMIT_HOOK_CHECK_MS) : WEBHOOKS_MS);
        fine = run(&call, &status, &why);
    }
    pack_bool(out, fine);
    if (fine)
        pack_u32(out, status);
    else
        message_pack_err(out, &why);
    curl_url_cleanup(call.url);
}

static bool serve(void *context, int fd, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_HOOK_BYTES);
    auto_free char *request = NULL;
    struct arena arena;
    size_t len;

    if (!frame_read(fd, LIMIT_HOOK_BYTES, READ_MS, &request, &len, err))
        return false;
    arena_init(&arena);
    answer(context, str_of(request, len), &arena, &out);
    arena_done(&arena);
    return frame_write(fd, buf_str(&out), READ_MS, err);
}

/* ---- the role ---- */

void webhooks_prepare(void)
{
    /* OpenSSL reads its configuration here, while files can be opened. */
    if (curl_global_init(CURL_GLOBAL_ALL) != CURLE_OK)
        log_error("libcurl cannot start: webhooks will fail");
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct err *err)
{
    struct webhooks *webhooks = context;

    if (type != MESSAGE_RESOLVERS)
        return err_set(err, ERR_INVALID, "malformed message: %s is not for webhooks", message_type_name[type]);
    if (webhooks->settings.resolver_count)
        return true; /* --dns wins */
    buf_clear(&webhooks->resolv_conf);
    buf_add(&webhooks->resolv_conf, payload);
    return true;
}

static bool role_open(const struct role_row *self, struct webhooks *webhooks, struct err *err)
{
    auto_close int settings_fd = role_fd(self, GRANT_EGRESS);
    auto_close int roots_fd = role_fd(self, GRANT_ROOTS);

    webhooks->resolv_conf = buf_make(NULL, LIMIT_RESOLV_CONF_BYTES);
    if (!egress_settings_read(settings_fd, &webhooks->settings, err) ||
        !fd_read_all(roots_fd, LIMIT_ROOTS_BYTES, &webhooks->roots, &webhooks->roots_len, err))
        return false;
    egress_settings_resolvers(&webhooks->settings, &webhooks->resolv_conf);
    return true;
}

/* Every system call of a child: the composer's, and sockets to the outside. It opens no file. */
static const struct confine_rule child_calls[] = {
    FORKER_CHILD_CALLS,
    { "socket", "the webhook's server, name servers", .first = AF_INET },
    { "socket", "the same", .first = AF_INET6 },
    { "socketpair", "libcurl wakes itself by one", .first = AF_UNIX },
    { "connect", "the webhook's server, name servers" },
    { "bind", "is this an address of this machine?" },
    { "read", "TLS" },
    { "readv", "streams" },
    { "writev", "streams" },
    { "recvmsg", "DNS" },
    { "sendmsg", "DNS" },
    { "shutdown", "orderly ends" },
    { "setsockopt", "TCP_NODELAY" },
    { "getsockopt", "SO_ERROR after connect" },
    { "getsockname", "libcurl keeps it" },
    { "getpeername", "the same" },
    { "fcntl", "O_NONBLOCK" },
    { "ioctl", "the same", .only = FIONBIO },
    { "epoll_create1", "the resolver's loop" },
    { "epoll_ctl", "the same" },
    { "epoll_wait", "the same" },
    { "epoll_pwait", "the same" },
    { "eventfd2", "the same" },
    { "getuid", "libraries" },
    { "geteuid", "libraries" },
    { "getgid", "libraries" },
    { "getegid", "libraries" },
    { "prlimit64", "libc" },
    { NULL },
};

/* Every system call of the parent, and those of its children. */
const struct confine_rule webhooks_calls[] = {
    FORKER_CHILD_CALLS,
    FORKER_PARENT_CALLS,
    { "socket", "children", .first = AF_INET },
    { "socket", "children", .first = AF_INET6 },
    { "connect", "children" },
    { "bind", "children" },
    { "readv", "children" },
    { "writev", "children" },
    { "shutdown", "children" },
    { "getsockname", "children" },
    { "getpeername", "children" },
    { "lseek", "settings" },
    { "fstat", "settings" },
    { "newfstatat", "the same, by libc" },
    { "getuid", "libraries" },
    { "geteuid", "libraries" },
    { "getgid", "libraries" },
    { "getegid", "libraries" },
    { NULL },
};

int webhooks_main(const struct role_row *self)
{
    auto_free struct webhooks *webhooks = NEW(struct webhooks);
    struct err err;
    int code = 1;

    if (role_open(self, webhooks, &err))
        code = forker_run(&(struct forker_config){
            .what = "webhook",
            .message = MESSAGE_HOOK,
            .children_most = 2 * (LIMIT_HOOKS + LIMIT_HOOK_CHECKS),
            .seconds = (LIMIT_HOOK_MS + READ_MS) / 1000,
            .limits = { .memory_bytes = LIMIT_HOOK_MEMORY_BYTES,
                        .cpu_s = LIMIT_HOOK_MS / 1000,
                        .files = CHILD_FILES,
                        .no_file_data = true },
            .calls = child_calls,
            .serve = serve,
            .keeper_event = on_keeper_event,
            .context = webhooks,
        });
    else
        log_error("cannot start: %s", err_text(&err));
    buf_done(&webhooks->resolv_conf);
    free(webhooks->roots);
    return code;
}
