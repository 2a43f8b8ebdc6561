/*
 * fake_resolver.h - resolver.h as a table: the test says what a name leads to, and when.
 *
 * Takes the place of egress/resolver.c: the linker finds all of its functions here first.
 */
#ifndef TESTS_UNIT_EGRESS_FAKE_RESOLVER_H
#define TESTS_UNIT_EGRESS_FAKE_RESOLVER_H

#include <stdlib.h>

#include "base/mem.h"
#include "egress/resolver.h"
#include "test.h"
#include "wire/dns.h"

struct resolver_question {
    resolver_done_fn *done;
    void *context;
    struct resolver_asker *asker;
    uint16_t type;
    char name[DNS_NAME_TEXT];
    struct resolver_question *next;
};

static struct resolver *const fake_resolver = NULL;
static struct resolver_question *fake_open; /* the newest first */
static unsigned fake_open_count, fake_asked;
static bool fake_has_no_share, fake_knows;

struct resolver *resolver_new(struct loop *loop)
{
    (void)loop;
    return NULL;
}

void resolver_free(struct resolver *resolver)
{
    (void)resolver;
}

void resolver_use(struct resolver *resolver, struct str resolv_conf)
{
    (void)resolver;
    (void)resolv_conf;
}

bool resolver_has_share(const struct resolver *resolver, const struct resolver_asker *asker)
{
    (void)resolver;
    (void)asker;
    return !fake_has_no_share;
}

bool resolver_knows(const struct resolver *resolver, struct str name, uint16_t type)
{
    (void)resolver;
    (void)name;
    (void)type;
    return fake_knows;
}

void resolver_asker_done(struct resolver *resolver, struct resolver_asker *asker)
{
    (void)resolver;
    asker->count = 0;
}

struct resolver_question *resolver_ask(struct resolver *resolver, struct resolver_asker *asker, struct str name,
                                       uint16_t type, resolver_done_fn *done, void *context)
{
    struct resolver_question *question = NEW(struct resolver_question);

    (void)resolver;
    *question =
        (struct resolver_question){ .done = done, .context = context, .asker = asker, .type = type, .next = fake_open };
    asker->count++;
    assert_true(name.len < sizeof question->name);
    memcpy(question->name, name.at, name.len);
    fake_open = question;
    fake_open_count++;
    fake_asked++;
    return question;
}

static inline void fake_take(struct resolver_question *question)
{
    struct resolver_question **at = &fake_open;

    while (*at != question)
        at = &(*at)->next;
    *at = question->next;
    fake_open_count--;
}

/* The asker's lookup goes on, as with the real one. */
void resolver_cancel(struct resolver_question *question)
{
    if (!question)
        return;
    fake_take(question);
    free(question);
}

#define FAKE_FAILURE "no DNS server of the host answered"

/* Answers the newest question. */
static inline void fake_answer_records(enum dns_code code, struct dns_record *records, uint32_t count)
{
    struct resolver_question *question = fake_open;

    assert_non_null(question);
    fake_take(question);
    question->asker->count--;
    struct dns_answer answer = { .code = code, .count = count, .records = records, .ede = DNS_EDE_NONE };
    if (code == DNS_SERVER_FAILURE) {
        answer.ede = DNS_EDE_NETWORK;
        answer.reason = STR(FAKE_FAILURE);
    }
    question->done(question->context, &answer);
    free(question);
}

/* The same, with these IPv4 addresses. */
static inline void fake_answer(enum dns_code code, const char (*addresses)[4], uint32_t count)
{
    struct dns_record records[16] = { 0 };

    assert_non_null(fake_open);
    assert_true(count <= 16);
    for (uint32_t i = 0; i < count; i++) {
        records[i] = (struct dns_record){ .name = str_from(fake_open->name), .type = DNS_A, .ttl_s = 300 };
        memcpy(records[i].address, addresses[i], 4);
    }
    fake_answer_records(code, records, count);
}

#endif
