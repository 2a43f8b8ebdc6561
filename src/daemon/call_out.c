#include "daemon/call_out.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/resolver.h"
#include "io/loop.h"
#include "policy/net_rules.h"
#include "wire/dns.h"

enum {
    ADDRESSES_MOST = 16, /* of a name; more refuse it */
    TRIES = 3,           /* addresses that are tried */
    BUFFER_BYTES = 256 * 1024,
};

struct call_out {
    struct call_out_config config;
    CURL *curl; /* keeps its connections for the next request */
};

/* One request, and what is known about its address. */
struct call {
    struct call_out *out;
    struct arena *arena;
    const struct call_request *request;
    uint64_t until_ms;
    CURLU *url;
    bool is_https;
    uint16_t port;
    char host[LIMIT_NET_NAME_BYTES + 1]; /* a name or an address, without brackets */
    struct call_rights rights;
    struct net_address addresses[ADDRESSES_MOST];
    unsigned address_count;
    const struct net_address *trying;
    bool has_enough; /* on_body() said so */
};

/* ---- the URL ---- */

static bool bad_url(const struct call *call, struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "the %s's address %s", call->out->config.subject, what);
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
        return bad_url(call, err, "has no host name, or too long a one");
    memcpy(call->host, host.at, host.len);
    text_lower(call->host, host.len);
    call->host[host.len] = '\0';
    return true;
}

static bool take_url(struct call *call, struct str url, struct err *err)
{
    uint64_t port;

    if (url.len == 0 || str_has_char(url, '\0'))
        return bad_url(call, err, "is empty");
    if (curl_url_set(call->url, CURLUPART_URL, arena_text(call->arena, url), CURLU_DISALLOW_USER) != CURLUE_OK)
        return bad_url(call, err, "is not a URL without user name, such as https://example.com/hook");
    struct str scheme = url_part(call, CURLUPART_SCHEME, 0);
    call->is_https = str_eq(scheme, STR("https"));
    if (!call->is_https && !str_eq(scheme, STR("http")))
        return bad_url(call, err, "must begin with https://");
    if (url_part(call, CURLUPART_ZONEID, 0).len)
        return bad_url(call, err, "has a zone, which only this machine knows");
    if (!str_to_u64(url_part(call, CURLUPART_PORT, CURLU_DEFAULT_PORT), UINT16_MAX, &port) || port == 0)
        return bad_url(call, err, "has a port that is none");
    call->port = (uint16_t)port;
    if (!take_host(call, err))
        return false;
    call->rights = call->out->config.rights(call->out->config.context, str_from(call->host), call->port);
    return true;
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
    const struct call_out_config *config = &call->out->config;
    struct lookup lookup = { .loop = loop_new(), .call = call, .waiting = COUNT_OF(types) };
    struct resolver *resolver = resolver_new(lookup.loop);
    struct resolver_asker asker = { 0 };
    struct timer late = { 0 };
    uint64_t now_ms = clock_mono_ms();

    resolver_use(resolver, config->resolv_conf);
    for (size_t i = 0; i < COUNT_OF(types); i++)
        (void)!resolver_ask(resolver, &asker, str_from(call->host), types[i], on_answer, &lookup);
    timer_set(&late, lookup.loop, call->until_ms > now_ms ? call->until_ms - now_ms : 0, on_late);
    loop_run(lookup.loop);
    timer_clear(&late);
    resolver_asker_done(resolver, &asker);
    resolver_free(resolver);
    loop_free(lookup.loop);
    if (lookup.has_more)
        return err_set(err, ERR_DENIED, "the %s's name has more than %d addresses", config->subject, ADDRESSES_MOST);
    if (call->address_count == 0)
        return err_set(err, ERR_UNAVAILABLE, "the %s's name %.80s has no address", config->subject, call->host);
    return true;
}

static bool find_addresses(struct call *call, struct err *err)
{
    static const struct net_policy open = { .internet = true };

    if (net_address_parse(str_from(call->host), &call->addresses[0])) {
        call->address_count = 1;
        return true;
    }
    if (!net_name_is_valid(str_from(call->host)))
        return bad_url(call, err, "has a host name with other characters than a-z, 0-9, - and .");
    /* Without addresses of their own network, operators have no names there that people may call. */
    if (!call->rights.allow_count &&
        !net_rule_allows(net_judge_private(&open, &(struct net_operator){ 0 }, str_from(call->host))))
        return err_set(err, ERR_DENIED, "the %s's name %.80s is one of a private network", call->out->config.subject,
                       call->host);
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

static bool ranges_have(const struct call_rights *rights, const struct net_address *address)
{
    for (uint32_t i = 0; i < rights->allow_count; i++)
        if (net_range_has(&rights->allow[i], address))
            return true;
    return false;
}

static bool judge(const struct call *call, const struct net_address *address, struct err *err)
{
    static const struct net_policy open = { .internet = true };
    const struct call_out_config *config = &call->out->config;
    const struct net_operator ranges = { .allow_count = call->rights.allow_count,
                                         .allow = call->rights.allow,
                                         .deny_count = config->deny_count,
                                         .deny = config->deny };
    const struct net_address reached = net_address_reached(address);
    const struct net_flow flow = { .to = *address, .port = call->port, .is_host = is_host(&reached) };
    enum net_rule rule = net_judge(&open, &ranges, &flow);

    /* By its name: strangers read this, and are not to learn which addresses the operator's network has. */
    if (!net_rule_allows(rule))
        return err_set(err, ERR_DENIED, "the %s's address leads to %.80s port %u, which %s may not call: %s",
                       config->subject, call->host, call->port, config->callers, net_rule_name[rule]);
    if (!call->is_https && !(call->rights.may_http && ranges_have(&call->rights, &reached)))
        return bad_url(call, err, "must begin with https://");
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

static size_t take_body(char *bytes, size_t size, size_t count, void *context)
{
    struct call *call = context;

    if (call->request->on_body(call->request->context, str_of(bytes, size * count)))
        return size * count;
    call->has_enough = true;
    return 0;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *context)
{
    struct call *call = context;
    struct str line = str_of(bytes, size * count);

    while (line.len && (line.at[line.len - 1] == '\n' || line.at[line.len - 1] == '\r'))
        line.len--;
    if (call->request->on_header)
        call->request->on_header(call->request->context, line);
    return size * count;
}

static int ask_cancelled(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct call *call = context;

    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return call->request->is_cancelled && call->request->is_cancelled(call->request->context);
}

static struct curl_slist *make_headers(struct call *call)
{
    struct curl_slist *list = NULL;

    for (uint32_t i = 0; i < call->request->header_count; i++)
        list = curl_slist_append(list, arena_text(call->arena, call->request->headers[i]));
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

static void set_times(CURL *curl, const struct call *call)
{
    const struct call_out_config *config = &call->out->config;
    uint64_t now_ms = clock_mono_ms();
    long left_ms = call->until_ms > now_ms ? (long)(call->until_ms - now_ms) : 1;

    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, left_ms);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                           config->connect_ms ? MIN((long)config->connect_ms, left_ms) : left_ms / 2 + 1);
    if (!call->request->idle_ms)
        return;
    (void)curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)((call->request->idle_ms + 999) / 1000));
}

static void set_method(CURL *curl, const struct call_request *request)
{
    if (strcmp(request->method, "POST") == 0) {
        (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)request->body.len);
        (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body.len ? request->body.at : "");
    } else if (strcmp(request->method, "HEAD") == 0) {
        (void)curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    } else {
        (void)curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
    }
}

static void set_up(CURL *curl, struct call *call, struct curl_slist *headers, struct curl_slist *target)
{
    struct str roots = call->out->config.roots;
    struct curl_blob blob = { .data = (void *)(uintptr_t)roots.at, .len = roots.len, .flags = CURL_BLOB_NOCOPY };

    (void)curl_easy_setopt(curl, CURLOPT_CURLU, call->url);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECT_TO, target);
    (void)curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    (void)curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, call);
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(curl, CURLOPT_CAINFO_BLOB, &blob);
    (void)curl_easy_setopt(curl, CURLOPT_CAINFO, NULL);
    (void)curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_USERAGENT, "Cloister/" CLOISTER_VERSION);
    (void)curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, call);
    (void)curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    (void)curl_easy_setopt(curl, CURLOPT_HEADERDATA, call);
    (void)curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, ask_cancelled);
    (void)curl_easy_setopt(curl, CURLOPT_XFERINFODATA, call);
    set_times(curl, call);
    set_method(curl, call->request);
}

/* One try. *out_again: nothing was sent, and another address may work. */
static bool send_once(struct call *call, uint32_t *out_status, bool *out_again, struct err *err)
{
    CURL *curl = call->out->curl;
    long status = 0;

    *out_again = false;
    if (!curl)
        return err_set(err, ERR_INTERNAL, "libcurl cannot make a request");
    struct curl_slist *headers = make_headers(call), *target = make_target(call);
    curl_easy_reset(curl);
    set_up(curl, call, headers, target);
    CURLcode code = curl_easy_perform(curl);
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_reset(curl); /* what it points to is about to go */
    curl_slist_free_all(headers);
    curl_slist_free_all(target);
    if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && call->has_enough && status >= 200)) {
        *out_status = (uint32_t)status;
        return true;
    }
    *out_again = code == CURLE_COULDNT_CONNECT;
    (void)err_set(err, code == CURLE_OPERATION_TIMEDOUT ? ERR_TIMEOUT : ERR_UNAVAILABLE,
                  "the %s's server gave no answer: %s", call->out->config.subject, curl_easy_strerror(code));
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        err->sys = EKEYREJECTED;
    return false;
}

static bool look(struct call *call, struct str url, struct err *err)
{
    if (!call->url)
        return err_set(err, ERR_INTERNAL, "libcurl has no memory");
    return take_url(call, url, err) && find_addresses(call, err) && judge_all(call, err);
}

bool call_out_check(struct call_out *out, struct str url, uint64_t until_ms, struct arena *arena, struct err *err)
{
    struct call call = { .out = out, .arena = arena, .until_ms = until_ms, .url = curl_url() };
    bool fine = look(&call, url, err);

    curl_url_cleanup(call.url);
    return fine;
}

bool call_out_send(struct call_out *out, const struct call_request *request, struct arena *arena, uint32_t *out_status,
                   struct err *err)
{
    struct call call = {
        .out = out, .arena = arena, .request = request, .until_ms = request->until_ms, .url = curl_url()
    };
    bool done = false, again = look(&call, request->url, err);

    for (unsigned i = 0; again && i < MIN(call.address_count, (unsigned)TRIES); i++) {
        call.trying = &call.addresses[i];
        done = send_once(&call, out_status, &again, err);
    }
    curl_url_cleanup(call.url);
    return done;
}

/* ---- life ---- */

struct call_out *call_out_new(const struct call_out_config *config)
{
    struct call_out *out = NEW(struct call_out);

    out->config = *config;
    out->curl = curl_easy_init();
    return out;
}

void call_out_free(struct call_out *out)
{
    if (!out)
        return;
    curl_easy_cleanup(out->curl);
    free(out);
}

void call_out_prepare(void)
{
    if (curl_global_init(CURL_GLOBAL_ALL) != CURLE_OK)
        log_error("libcurl cannot start: requests to the outside will fail");
}
