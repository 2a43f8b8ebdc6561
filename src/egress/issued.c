#include "egress/issued.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

struct issued_by {
    struct tls_authority *authority;
    uint8_t seed[TLS_SEED_BYTES];
    uint32_t refs; /* the set's, and one of each that it has issued */
};

static struct issued_by *by_new(const uint8_t seed[TLS_SEED_BYTES], struct err *err)
{
    struct tls_authority *authority = tls_authority_new(seed, err);

    if (!authority)
        return NULL;
    struct issued_by *by = NEW(struct issued_by);
    by->authority = authority;
    by->refs = 1;
    memcpy(by->seed, seed, sizeof by->seed);
    return by;
}

static void by_unref(struct issued_by *by)
{
    if (!by || --by->refs)
        return;
    tls_authority_free(by->authority);
    explicit_bzero(by->seed, sizeof by->seed);
    free(by);
}

static void dispose(void *object)
{
    struct issued *issued = object;

    tls_server_free(issued->tls);
    by_unref(issued->by);
    free(issued->name);
    free(issued);
}

/* Nobody uses it, but streams that were freed in this turn may still need it until the turn ends. */
static void forget(struct issued *issued)
{
    queue_leave(&issued->link);
    issued->set->count--;
    loop_retire(issued->set->loop, issued, dispose);
}

static void begin_anew(struct issued_set *set)
{
    for (struct queue_link *link = set->all.first, *next; link; link = next) {
        struct issued *issued = container_of(link, struct issued, link);
        next = link->next;
        if (issued->users == 0) {
            forget(issued);
            continue;
        }
        queue_leave(&issued->link);
        issued->is_old = true;
    }
    by_unref(take_ptr(&set->by));
}

/* The one used longest ago that nobody uses now. False: all are in use. */
static bool make_room(struct issued_set *set)
{
    for (struct queue_link *link = set->all.first; link; link = link->next) {
        struct issued *issued = container_of(link, struct issued, link);
        if (issued->users == 0) {
            forget(issued);
            return true;
        }
    }
    return false;
}

static struct issued *find(struct issued_set *set, struct str name)
{
    for (struct queue_link *link = set->all.first; link; link = link->next) {
        struct issued *issued = container_of(link, struct issued, link);
        if (str_eq_nocase(str_from(issued->name), name))
            return issued;
    }
    return NULL;
}

static struct tls_server *make_server(struct issued_set *set, const char *name, struct err *err)
{
    static const char *const protocols[] = { "http/1.1", NULL };
    auto_free char *chain = tls_authority_issue(set->by->authority, name, err);

    if (!chain)
        return NULL;
    struct tls_server *tls = tls_server_new(&(struct tls_server_config){
        .loop = set->loop, .protocols = protocols, .sign = tls_authority_sign, .context = set->by->authority });
    struct str text = str_from(chain);
    if (tls_server_use(tls, &text, 1, err))
        return tls;
    tls_server_free(tls);
    return NULL;
}

static bool may_make(struct issued_set *set, struct err *err)
{
    static const struct quota_rule rule = { .per_s = LIMIT_EGRESS_ISSUED_S, .burst = LIMIT_EGRESS_ISSUED };

    if (!quota_take(&rule, &set->rate, loop_now_ms(set->loop), NULL))
        return err_set(err, ERR_LIMIT, "a sandbox may connect to %d new hosts with header rules per second",
                       LIMIT_EGRESS_ISSUED_S);
    if (set->count >= LIMIT_EGRESS_ISSUED && !make_room(set))
        return err_set(err, ERR_LIMIT, "connections to %d hosts with header rules are open already",
                       LIMIT_EGRESS_ISSUED);
    return true;
}

struct issued *issued_get(struct issued_set *set, struct loop *loop, const uint8_t seed[TLS_SEED_BYTES],
                          struct str name, struct err *err)
{
    set->loop = loop;
    if (set->by && memcmp(set->by->seed, seed, sizeof set->by->seed) != 0)
        begin_anew(set);
    struct issued *issued = find(set, name);
    if (!issued) {
        if (!may_make(set, err))
            return NULL;
        if (!set->by && !(set->by = by_new(seed, err)))
            return NULL;
        auto_free char *text = str_copy(name);
        struct tls_server *tls = make_server(set, text, err);
        if (!tls)
            return NULL;
        issued = NEW(struct issued);
        *issued = (struct issued){ .set = set, .by = set->by, .tls = tls, .name = take_ptr(&text) };
        set->by->refs++;
        set->count++;
    }
    queue_join(&set->all, &issued->link); /* used last */
    issued->users++;
    return issued;
}

void issued_unref(struct issued *issued)
{
    if (issued && --issued->users == 0 && issued->is_old)
        forget(issued);
}

void issued_done(struct issued_set *set)
{
    for (struct queue_link *link = set->all.first, *next; link; link = next) {
        next = link->next;
        dispose(container_of(link, struct issued, link));
    }
    set->all = (struct queue){ 0 };
    by_unref(take_ptr(&set->by));
}
