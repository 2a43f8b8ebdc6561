#include "proxy/sources.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "test.h"

static struct sockaddr_storage address(const char *text)
{
    struct sockaddr_storage room = { 0 };
    struct sockaddr_in *v4 = (struct sockaddr_in *)&room;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&room;

    room.ss_family = strchr(text, ':') ? AF_INET6 : AF_INET;
    assert_int_equal(room.ss_family == AF_INET ? inet_pton(AF_INET, text, &v4->sin_addr)
                                               : inet_pton(AF_INET6, text, &v6->sin6_addr),
                     1);
    return room;
}

/* `forwarded` NULL: no such header. */
static struct source from(const char *peer, const char *forwarded)
{
    struct sockaddr_storage room = address(peer);
    struct http_head *head = calloc(1, sizeof *head);

    if (forwarded) {
        head->headers[0] = (struct http_header){ STR("X-Forwarded-For"), STR("192.0.2.99") };
        head->headers[1] = (struct http_header){ STR("x-forwarded-for"), str_from(forwarded) };
        head->header_count = 2;
    }
    struct source source = source_of(&room, head);
    free(head);
    return source;
}

static bool same(struct source a, struct source b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void an_ipv6_address_counts_by_its_network(void **state)
{
    (void)state;
    assert_true(same(from("2001:db8:1:2::1", NULL), from("2001:db8:1:2:ffff::9", NULL)));
    assert_false(same(from("2001:db8:1:2::1", NULL), from("2001:db8:1:3::1", NULL)));
    assert_false(same(from("192.0.2.1", NULL), from("192.0.2.2", NULL)));
    assert_true(same(from("192.0.2.1", NULL), from("::ffff:192.0.2.1", NULL)));
    assert_false(same(from("::ffff:192.0.2.1", NULL), from("::ffff:192.0.2.2", NULL)));
    struct sockaddr_storage none = { 0 };
    struct http_head *head = calloc(1, sizeof *head);
    assert_true(same(source_of(&none, head), (struct source){ { 0 } }));
    free(head);
}

static void only_a_proxy_of_this_machine_is_believed(void **state)
{
    struct source client = from("192.0.2.1", NULL);
    static const char *const ours[] = { "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ours); i++) {
        assert_true(same(from(ours[i], "192.0.2.1"), client));
        assert_true(same(from(ours[i], "10.0.0.1, 192.0.2.1"), client));
        assert_true(same(from(ours[i], "10.0.0.1,192.0.2.1"), client));
        /* What is no address is nobody's. */
        assert_true(same(from(ours[i], ""), from(ours[i], NULL)));
        assert_true(same(from(ours[i], "192.0.2.1, unknown"), from(ours[i], NULL)));
        assert_true(same(from(ours[i], "192.0.2.1,"), from(ours[i], NULL)));
        assert_true(same(from(ours[i], "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000"), from(ours[i], NULL)));
    }
    assert_true(same(from("198.51.100.1", "192.0.2.1"), from("198.51.100.1", NULL)));
    assert_true(same(from("2001:db8::1", "192.0.2.1"), from("2001:db8::1", NULL)));
}

static void work_is_counted_by_source_and_second(void **state)
{
    struct sources *sources = sources_new();
    struct source a = from("192.0.2.1", NULL);

    (void)state;
    sources_charge(sources, &a, 5000, LIMIT_LINK_TRIES - 1);
    assert_true(sources_may(sources, &a, 5500));
    sources_charge(sources, &a, 5500, 1);
    assert_false(sources_may(sources, &a, 5999));
    assert_true(sources_may(sources, &a, 6000));
    sources_charge(sources, &a, 6000, 1);
    assert_true(sources_may(sources, &a, 6000));
    sources_free(sources);
    sources_free(NULL);
}

static struct source numbered(unsigned i)
{
    char text[32];
    (void)snprintf(text, sizeof text, "10.%u.%u.%u", i >> 16, i >> 8 & 255, i & 255);
    return from(text, NULL);
}

/* What a hundred addresses can do, each with all it may: more than a server answers requests in a second. */
static void flood(struct sources *sources, uint64_t now_ms)
{
    for (unsigned i = 0; i < 100; i++) {
        struct source stranger = numbered(i);
        sources_charge(sources, &stranger, now_ms, LIMIT_LINK_TRIES);
        assert_false(sources_may(sources, &stranger, now_ms));
    }
}

static void a_flood_keeps_few_others_out_and_others_the_second_after(void **state)
{
    enum { OWNERS = 2000, SECONDS = 8 };
    struct sources *sources = sources_new();
    unsigned refused[OWNERS] = { 0 }, total = 0, always = 0;

    (void)state;
    for (unsigned second = 1; second <= SECONDS; second++) {
        flood(sources, second * 1000);
        for (unsigned i = 0; i < OWNERS; i++) {
            struct source owner = numbered(1000 + i);
            refused[i] += !sources_may(sources, &owner, second * 1000);
        }
    }
    for (unsigned i = 0; i < OWNERS; i++) {
        total += refused[i];
        always += refused[i] == SECONDS;
    }
    /* 100 of 4,096 counters: 390 of 16,000 are to be expected, and twice as many by chance never. */
    assert_in_range(total, 1, 2 * 390);
    assert_int_equal(always, 0);
    sources_free(sources);
}

static void a_counter_does_not_wrap(void **state)
{
    struct sources *sources = sources_new();
    struct source a = from("192.0.2.1", NULL);

    (void)state;
    sources_charge(sources, &a, 1000, UINT32_MAX);
    sources_charge(sources, &a, 1000, 2);
    assert_false(sources_may(sources, &a, 1000));
    sources_free(sources);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(an_ipv6_address_counts_by_its_network),
        CASE(only_a_proxy_of_this_machine_is_believed),
        CASE(work_is_counted_by_source_and_second),
        CASE(a_flood_keeps_few_others_out_and_others_the_second_after),
        CASE(a_counter_does_not_wrap),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
