#include "egress/resolver.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/random.h"
#include "io/address.h"
#include "io/stream.h"
#include "policy/net_policy.h"
#include "wire/dns.h"

/*
 * A lookup is one name and type: first on its way, then ready, and kept as long as the answer holds. Everyone who asks for
 * the same meanwhile gets the same lookup's answer.
 *
 * On its way, a lookup makes up to LIMIT_DNS_TRIES tries, at one server after the other and first at the one that has
 * answered last, each with a new socket and a new id: the kernel picks a random port for each socket, so a forged answer must guess both, and connect() leaves out what
 * other addresses send. A datagram that is not a well-formed answer to our question is ignored. An answer that did not fit
 * a datagram is asked for again over TCP, at the same server. A try that fails at once (nothing listens there) is followed
 * by the next one at once.
 *
 * c-ares was the alternative. Debian 12's reads /dev/urandom and the configuration itself, which egress cannot open, and
 * then takes its ids from rand(); and it uses one port for all questions. wire/dns has to read and write both kinds of
 * messages anyway, so what is left to do is this file.
 */

enum {
    WARN_EVERY_MS = 60 * 1000, /* while no server answers: sandboxes that go on asking must not fill the log */
    SERVER_TEXT = 64,          /* an address in brackets with its scope and port */
};

struct server {
    struct sockaddr_storage address;
    socklen_t len;
    char text[SERVER_TEXT]; /* as the configuration has it, for the log */
};

struct resolver {
    struct loop *loop;
    struct server servers[LIMIT_RESOLVERS];
    unsigned server_count;
    unsigned first;               /* the one that has answered last: a dead one must not cost time for every name */
    struct map lookups;           /* key → struct lookup */
    struct queue askers;          /* who has lookups on their way */
    struct resolver_asker nobody; /* has those whose asker has gone */
    struct queue ready;           /* those with an answer, the one used longest ago first */
    uint32_t ready_count, asking_count;
    size_t ready_bytes;
    uint64_t answers;         /* that came, good or bad */
    uint64_t warned_until_ms; /* the log says by then that none come; 0: it does not */
};

enum lookup_state {
    LOOKUP_ASKING, /* a socket waits for an answer */
    LOOKUP_READY,  /* has an answer, perhaps an old one */
};

struct lookup {
    struct resolver *resolver;
    enum lookup_state state;
    struct str key;
    uint16_t type;
    char name[DNS_NAME_TEXT];
    struct queue questions; /* who waits */
    bool is_telling;        /* done() functions run: the answer must stay */
    struct timer later;     /* asking: the end of this try; ready: tell those who wait */

    /* asking */
    struct resolver_asker *asker;  /* who began it… */
    struct queue_link asking;      /* …and has it in its list */
    unsigned tries, first, server; /* first: where the tries begin */
    uint64_t answers;              /* the resolver's when it began */
    uint16_t id;
    int fd; /* UDP, or -1 */
    struct watch *watch;
    struct stream *stream; /* TCP, or NULL */

    /* ready */
    struct queue_link ready; /* in resolver->ready */
    struct arena arena;
    struct dns_answer answer;
    size_t bytes;      /* that it counts for */
    uint64_t since_ms; /* when it came… */
    uint32_t aged_s;   /* …and by how much the TTLs have been lowered since */
    bool is_stale;     /* from servers that we do not use any more, or not to be kept */
};

struct resolver_question {
    struct lookup *lookup;
    struct queue_link link; /* in lookup->questions */
    resolver_done_fn *done;
    void *context;
};

/* ---- lookups that have an answer ---- */

static void close_try(struct lookup *lookup)
{
    timer_clear(&lookup->later);
    watch_free(lookup->watch);
    lookup->watch = NULL;
    fd_close(&lookup->fd);
    stream_free(lookup->stream);
    lookup->stream = NULL;
}

static void leave_ready(struct lookup *lookup)
{
    if (!lookup->ready.in)
        return;
    queue_leave(&lookup->ready);
    lookup->resolver->ready_count--;
    lookup->resolver->ready_bytes -= lookup->bytes;
}

static void join_asking(struct lookup *lookup, struct resolver_asker *asker)
{
    lookup->asker = asker;
    queue_join(&asker->lookups, &lookup->asking);
    if (asker->count++ == 0)
        queue_join(&lookup->resolver->askers, &asker->link);
    lookup->resolver->asking_count++;
}

static void leave_asking(struct lookup *lookup)
{
    if (!lookup->asking.in)
        return;
    queue_leave(&lookup->asking);
    if (--lookup->asker->count == 0)
        queue_leave(&lookup->asker->link);
    lookup->resolver->asking_count--;
}

static void lookup_free(struct lookup *lookup)
{
    struct queue_link *next;

    close_try(lookup);
    leave_ready(lookup);
    leave_asking(lookup);
    (void)map_remove(&lookup->resolver->lookups, lookup->key);
    for (struct queue_link *link = lookup->questions.first; link; link = next) {
        next = link->next;
        free(container_of(link, struct resolver_question, link));
    }
    arena_done(&lookup->arena);
    free((char *)lookup->key.at);
    free(lookup);
}

static bool is_in_use(const struct lookup *lookup)
{
    return lookup->state == LOOKUP_ASKING || lookup->is_telling || lookup->questions.first;
}

static struct lookup *oldest_unused(const struct resolver *resolver)
{
    for (struct queue_link *link = resolver->ready.first; link; link = link->next) {
        struct lookup *lookup = container_of(link, struct lookup, ready);
        if (!is_in_use(lookup))
            return lookup;
    }
    return NULL;
}

/* Ready lookups are kept within their caps: the one used longest ago goes first. */
static void make_room(struct resolver *resolver)
{
    while (resolver->ready_count > LIMIT_DNS_CACHE || resolver->ready_bytes > LIMIT_DNS_CACHE_BYTES) {
        struct lookup *lookup = oldest_unused(resolver);
        if (!lookup)
            return;
        lookup_free(lookup);
    }
}

static uint32_t age_s(const struct lookup *lookup)
{
    return (uint32_t)((loop_now_ms(lookup->resolver->loop) - lookup->since_ms) / 1000);
}

static bool is_fresh(const struct lookup *lookup)
{
    return lookup->state == LOOKUP_READY && !lookup->is_stale && age_s(lookup) < lookup->answer.ttl_s;
}

/* An answer that was kept for a while holds for less long. */
static void lower_ttls(struct lookup *lookup)
{
    uint32_t by = age_s(lookup) - lookup->aged_s;

    lookup->aged_s += by;
    for (uint32_t i = 0; i < lookup->answer.count; i++)
        lookup->answer.records[i].ttl_s -= MIN(by, lookup->answer.records[i].ttl_s);
}

static void tell(struct timer *timer)
{
    struct lookup *lookup = container_of(timer, struct lookup, later);
    struct queue now = { 0 };
    struct queue_link *link;

    lower_ttls(lookup);
    lookup->is_telling = true;
    /* Only those who wait now: a done() that asks for the same again waits for the next turn. */
    while ((link = lookup->questions.first))
        queue_join(&now, link);
    while ((link = now.first)) {
        struct resolver_question *question = container_of(link, struct resolver_question, link);
        queue_leave(link);
        question->done(question->context, &lookup->answer);
        free(question);
    }
    lookup->is_telling = false;
    if (!is_fresh(lookup) && !lookup->questions.first)
        lookup_free(lookup);
}

/* ---- asking ---- */

static void next_try(struct lookup *lookup);

static void become_ready(struct lookup *lookup, const struct dns_answer *answer)
{
    struct resolver *resolver = lookup->resolver;

    close_try(lookup);
    leave_asking(lookup);
    lookup->state = LOOKUP_READY;
    lookup->answer = *answer;
    lookup->since_ms = loop_now_ms(resolver->loop);
    lookup->aged_s = 0;
    bool is_negative = answer->count == 0 || answer->code != DNS_FINE;
    if (is_negative)
        lookup->answer.ttl_s = MIN(answer->ttl_s, (uint32_t)LIMIT_DNS_NEGATIVE_S);
    lookup->is_stale = answer->code == DNS_SERVER_FAILURE;
    lookup->bytes = sizeof *lookup + lookup->arena.used;
    queue_join(&resolver->ready, &lookup->ready);
    resolver->ready_count++;
    resolver->ready_bytes += lookup->bytes;
    timer_set(&lookup->later, resolver->loop, 0, tell);
    make_room(resolver);
}

static void give_up(struct lookup *lookup, struct str reason)
{
    become_ready(lookup, &(struct dns_answer){ .code = DNS_SERVER_FAILURE, .ede = DNS_EDE_NETWORK, .reason = reason });
}

/* One name that a server is silent about may be that name's fault: not if any answer has come since it was asked. */
static void warn_of_servers(const struct lookup *lookup)
{
    struct resolver *resolver = lookup->resolver;
    uint64_t now_ms = loop_now_ms(resolver->loop);
    char list[LIMIT_RESOLVERS * (SERVER_TEXT + 2)] = "";

    if (lookup->answers != resolver->answers || now_ms < resolver->warned_until_ms)
        return;
    resolver->warned_until_ms = now_ms + WARN_EVERY_MS;
    for (unsigned i = 0; i < resolver->server_count; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                       resolver->servers[i].text);
    if (list[0])
        log_warn("no name server answers: %s; --dns names others", list);
    else
        log_warn("no name server is known: /etc/resolv.conf has none; --dns names some");
}

static void on_slow(struct timer *timer)
{
    next_try(container_of(timer, struct lookup, later));
}

static void on_tcp_input(struct stream *stream);
static void on_tcp_end(struct stream *stream, const struct err *err)
{
    (void)err;
    next_try(stream->owner);
}

static const struct stream_events tcp_events = { .on_input = on_tcp_input, .on_end = on_tcp_end };

/* Two bytes with the length first. */
static void ask_over_tcp(struct lookup *lookup)
{
    struct resolver *resolver = lookup->resolver;
    const struct server *server = &resolver->servers[lookup->server];
    auto_buf struct buf message = buf_make(NULL, LIMIT_DNS_QUESTION_BYTES);

    close_try(lookup);
    auto_close int fd = socket(server->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, (const struct sockaddr *)&server->address, server->len) != 0 && errno != EINPROGRESS)) {
        next_try(lookup);
        return;
    }
    random_bytes(&lookup->id, sizeof lookup->id);
    buf_add(&message, STR("\0\0"));
    dns_write_question(&message, lookup->id, str_from(lookup->name), lookup->type);
    message.data[0] = (char)((message.len - 2) >> 8);
    message.data[1] = (char)(message.len - 2);
    lookup->stream = stream_new_connecting(resolver->loop, take_fd(&fd), DNS_MESSAGE_MAX + 2, &tcp_events, lookup);
    stream_write(lookup->stream, buf_str(&message));
    stream_read(lookup->stream, true);
    timer_set(&lookup->later, resolver->loop, LIMIT_DNS_TRY_MS, on_slow);
}

/* False: that was nothing for us. */
static bool take_answer(struct lookup *lookup, struct str message)
{
    struct dns_answer answer;
    struct err err;

    arena_done(&lookup->arena);
    if (!dns_answer_parse(message, lookup->id, str_from(lookup->name), lookup->type, &lookup->arena, &answer, &err)) {
        arena_done(&lookup->arena);
        return false;
    }
    lookup->resolver->answers++;
    if (answer.is_truncated && !lookup->stream) {
        ask_over_tcp(lookup);
        return true;
    }
    bool is_failure = answer.is_truncated || answer.code == DNS_SERVER_FAILURE;
    if (is_failure && lookup->tries < LIMIT_DNS_TRIES && lookup->resolver->server_count > 1) {
        next_try(lookup); /* another server may know better */
    } else if (is_failure) {
        give_up(lookup, STR("the host's DNS server could not answer"));
    } else {
        lookup->resolver->first = lookup->server;
        become_ready(lookup, &answer);
    }
    return true;
}

static void on_tcp_input(struct stream *stream)
{
    struct lookup *lookup = stream->owner;
    const unsigned char *at = (const unsigned char *)stream->in.data;

    if (stream->in.len < 2)
        return;
    size_t size = (size_t)at[0] << 8 | at[1];
    if (stream->in.len < 2 + size)
        return;
    if (!take_answer(lookup, str_of(at + 2, size)))
        next_try(lookup);
}

static void on_udp(void *context, unsigned ready)
{
    struct lookup *lookup = context;
    char room[DNS_UDP_ROOM_MAX];

    (void)ready;
    /* A few at a time: a flood of forged answers must not keep the loop busy. */
    for (int i = 0; i < 16; i++) {
        ssize_t len = recv(lookup->fd, room, sizeof room, MSG_DONTWAIT | MSG_TRUNC);
        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (len < 0) { /* nothing listens there, or there is no way there */
            next_try(lookup);
            return;
        }
        if ((size_t)len <= sizeof room && take_answer(lookup, str_of(room, (size_t)len)))
            return;
    }
}

static bool ask_over_udp(struct lookup *lookup)
{
    struct resolver *resolver = lookup->resolver;
    const struct server *server = &resolver->servers[lookup->server];
    auto_buf struct buf message = buf_make(NULL, LIMIT_DNS_QUESTION_BYTES);

    random_bytes(&lookup->id, sizeof lookup->id);
    dns_write_question(&message, lookup->id, str_from(lookup->name), lookup->type);
    auto_close int fd = socket(server->address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&server->address, server->len) != 0 ||
        send(fd, message.data, message.len, MSG_NOSIGNAL) != (ssize_t)message.len)
        return false;
    lookup->fd = take_fd(&fd);
    lookup->watch = watch_new(resolver->loop, lookup->fd, on_udp, lookup);
    watch_want(lookup->watch, WATCH_READ);
    timer_set(&lookup->later, resolver->loop, LIMIT_DNS_TRY_MS, on_slow);
    return true;
}

static void next_try(struct lookup *lookup)
{
    struct resolver *resolver = lookup->resolver;

    close_try(lookup);
    if (resolver->server_count == 0) {
        warn_of_servers(lookup);
        give_up(lookup, STR("this server knows no DNS server: see /etc/resolv.conf, or --dns"));
        return;
    }
    while (lookup->tries < LIMIT_DNS_TRIES) {
        lookup->server = (lookup->first + lookup->tries++) % resolver->server_count;
        if (ask_over_udp(lookup))
            return;
    }
    warn_of_servers(lookup);
    give_up(lookup, STR("no DNS server of the host answered"));
}

static void begin(struct timer *timer)
{
    next_try(container_of(timer, struct lookup, later));
}

/* ---- who asks ---- */

static bool is_name_char(char c)
{
    return char_is_alnum(c) || c == '-' || c == '_' || c == '.';
}

/* What wire/dns reads and writes: labels of 1 to 63 characters; "" is the root. */
static bool can_be_asked(struct str name)
{
    struct str rest = name, label;

    if (name.len >= DNS_NAME_TEXT)
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (!is_name_char(name.at[i]))
            return false;
    while (name.len && str_cut(&rest, '.', &label))
        if (label.len == 0 || label.len > 63)
            return false;
    return true;
}

static struct lookup *lookup_new(struct resolver *resolver, struct str name, uint16_t type, struct str key)
{
    struct lookup *lookup = mem_new(sizeof *lookup);

    *lookup = (struct lookup){ .resolver = resolver, .type = type, .fd = -1 };
    memcpy(lookup->name, name.at, name.len);
    arena_init(&lookup->arena);
    lookup->key = str_of(str_copy(key), key.len);
    (void)map_put(&resolver->lookups, lookup->key, lookup);
    return lookup;
}

/*
 * Where too many are on their way, the oldest of whoever has most is given up: names that a server never answers for must
 * not keep those away that it would answer at once, and nobody may push out the questions of those who ask little.
 */
static void give_up_one(struct resolver *resolver)
{
    struct resolver_asker *most = container_of(resolver->askers.first, struct resolver_asker, link);

    for (struct queue_link *link = resolver->askers.first; link; link = link->next) {
        struct resolver_asker *asker = container_of(link, struct resolver_asker, link);
        if (asker->count > most->count)
            most = asker;
    }
    give_up(container_of(most->lookups.first, struct lookup, asking),
            STR("too many DNS questions are open: ask again later"));
}

static void ask_soon(struct lookup *lookup, struct resolver_asker *asker)
{
    struct resolver *resolver = lookup->resolver;

    if (resolver->asking_count >= LIMIT_DNS_ASKING)
        give_up_one(resolver);
    join_asking(lookup, asker);
    timer_set(&lookup->later, resolver->loop, 0, begin);
}

/* Sets out, from the next turn of the loop on. Some need no server. */
static void lookup_begin(struct lookup *lookup, struct resolver_asker *asker, bool can_ask)
{
    leave_ready(lookup);
    lookup->state = LOOKUP_ASKING;
    lookup->tries = 0;
    lookup->first = lookup->resolver->first;
    lookup->answers = lookup->resolver->answers;
    lookup->is_stale = false;
    if (!can_ask)
        become_ready(lookup, &(struct dns_answer){ .code = DNS_NO_SUCH_NAME, .ede = DNS_EDE_NONE });
    else if (!dns_type_is_known(lookup->type))
        become_ready(lookup, &(struct dns_answer){ .code = DNS_FINE, .ede = DNS_EDE_NONE });
    else
        ask_soon(lookup, asker);
}

enum { KEY_TEXT = DNS_NAME_TEXT + 8 };

/* "" is the name of all that cannot be asked. */
static struct str key_of(struct str name, bool can_ask, uint16_t type, char room[KEY_TEXT])
{
    int len = snprintf(room, KEY_TEXT, "%u %s%.*s", type, can_ask ? "" : "?", STR_ARG(name));

    text_lower(room, strlen(room));
    return str_of(room, (size_t)len);
}

bool resolver_knows(const struct resolver *resolver, struct str name, uint16_t type)
{
    char room[KEY_TEXT];

    if (!can_be_asked(name))
        return true;
    const struct lookup *lookup = map_get(&resolver->lookups, key_of(name, true, type, room));
    return lookup && (lookup->state == LOOKUP_ASKING || is_fresh(lookup));
}

struct resolver_question *resolver_ask(struct resolver *resolver, struct resolver_asker *asker, struct str name,
                                       uint16_t type, resolver_done_fn *done, void *context)
{
    char room[KEY_TEXT];
    bool can_ask = can_be_asked(name);
    struct str asked = can_ask ? name : STR("");
    struct str key_text = key_of(asked, can_ask, type, room);
    struct lookup *lookup = map_get(&resolver->lookups, key_text);
    bool is_new = !lookup;
    if (is_new)
        lookup = lookup_new(resolver, asked, type, key_text);
    text_lower(lookup->name, strlen(lookup->name));

    struct resolver_question *question = mem_new(sizeof *question);
    *question = (struct resolver_question){ .lookup = lookup, .done = done, .context = context };
    queue_join(&lookup->questions, &question->link);
    if (is_new ||
        (lookup->state == LOOKUP_READY && !is_fresh(lookup) && !lookup->is_telling && !timer_is_set(&lookup->later))) {
        lookup_begin(lookup, asker, can_ask);
    } else if (lookup->state == LOOKUP_READY) {
        queue_leave(&lookup->ready);
        queue_join(&resolver->ready, &lookup->ready); /* used last */
        timer_set(&lookup->later, resolver->loop, 0, tell);
    }
    return question;
}

void resolver_cancel(struct resolver_question *question)
{
    if (!question)
        return;
    queue_leave(&question->link);
    free(question); /* the lookup goes on: its answer will be useful to the next who asks */
}

bool resolver_has_share(const struct resolver *resolver, const struct resolver_asker *asker)
{
    return asker->count == 0 || asker->count < LIMIT_DNS_ASKING - resolver->asking_count;
}

void resolver_asker_done(struct resolver *resolver, struct resolver_asker *asker)
{
    struct queue_link *link;

    while ((link = asker->lookups.first)) {
        struct lookup *lookup = container_of(link, struct lookup, asking);
        if (lookup->questions.first) {
            leave_asking(lookup);
            join_asking(lookup, &resolver->nobody);
        } else {
            lookup_free(lookup);
        }
    }
}

/* ---- servers ---- */

static bool take_server(struct str text, struct server *out)
{
    struct net_address address;
    struct err err;
    char room[NET_ADDRESS_TEXT + 8];

    *out = (struct server){ .len = 0 };
    (void)snprintf(out->text, sizeof out->text, "%.*s", STR_ARG(text));
    if (net_address_parse(text, &address)) {
        bool v4 = !str_has_char(text, ':');
        (void)snprintf(room, sizeof room, v4 ? "%.*s:53" : "[%.*s]:53", STR_ARG(text));
        text = str_from(room);
    }
    return address_parse(text, &out->address, &out->len, &err);
}

static bool server_eq(const struct server *a, const struct server *b)
{
    const struct sockaddr_in *v4[] = { (const struct sockaddr_in *)&a->address,
                                       (const struct sockaddr_in *)&b->address };
    const struct sockaddr_in6 *v6[] = { (const struct sockaddr_in6 *)&a->address,
                                        (const struct sockaddr_in6 *)&b->address };

    if (a->address.ss_family != b->address.ss_family)
        return false;
    if (a->address.ss_family == AF_INET)
        return v4[0]->sin_port == v4[1]->sin_port && v4[0]->sin_addr.s_addr == v4[1]->sin_addr.s_addr;
    return v6[0]->sin6_port == v6[1]->sin6_port && IN6_ARE_ADDR_EQUAL(&v6[0]->sin6_addr, &v6[1]->sin6_addr);
}

static bool next_word(struct str *line, struct str *out)
{
    while (line->len && (line->at[0] == ' ' || line->at[0] == '\t'))
        *line = str_of(line->at + 1, line->len - 1);
    size_t len = 0;
    while (len < line->len && line->at[len] != ' ' && line->at[len] != '\t' && line->at[len] != '\r')
        len++;
    *out = str_of(line->at, len);
    *line = str_of(line->at + len, line->len - len);
    return len > 0;
}

void resolver_use(struct resolver *resolver, struct str resolv_conf)
{
    struct server servers[LIMIT_RESOLVERS];
    unsigned count = 0;
    struct str line, word;
    struct lookup *lookup;

    memset(servers, 0, sizeof servers);
    while (count < LIMIT_RESOLVERS && str_cut(&resolv_conf, '\n', &line)) {
        if (!next_word(&line, &word) || !str_eq(word, STR("nameserver")) || !next_word(&line, &word))
            continue;
        if (take_server(word, &servers[count]))
            count++;
        else
            log_warn("resolver: the name server %.*s is not an address that can be used", STR_ARG(word));
    }
    bool is_same = count == resolver->server_count;
    for (unsigned i = 0; is_same && i < count; i++)
        is_same = server_eq(&servers[i], &resolver->servers[i]);
    if (is_same)
        return;
    memcpy(resolver->servers, servers, sizeof servers);
    resolver->server_count = count;
    resolver->first = 0;
    resolver->warned_until_ms = 0;
    /* Another server may know other names: a host that has joined another network, for example. */
    for (size_t i = 0; (lookup = map_next(&resolver->lookups, &i));)
        if (lookup->state == LOOKUP_READY)
            lookup->is_stale = true;
    log_debug("resolver: %u name server%s", count, count == 1 ? "" : "s");
}

struct resolver *resolver_new(struct loop *loop)
{
    struct resolver *resolver = mem_new(sizeof *resolver);

    resolver->loop = loop;
    map_init(&resolver->lookups);
    return resolver;
}

void resolver_free(struct resolver *resolver)
{
    struct lookup *lookup;

    if (!resolver)
        return;
    for (size_t i = 0; (lookup = map_next(&resolver->lookups, &i)); i = 0)
        lookup_free(lookup);
    map_done(&resolver->lookups);
    free(resolver);
}
