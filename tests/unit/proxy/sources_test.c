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
    struct source a = from("192.0.2.1", NULL), b = from("192.0.2.2", NULL);

    (void)state;
    sources_charge(sources, &a, 5000, LIMIT_LINK_TRIES - 1);
    assert_true(sources_may(sources, &a, 5500));
    sources_charge(sources, &a, 5500, 1);
    assert_false(sources_may(sources, &a, 5999));
    assert_true(sources_may(sources, &b, 5999));
    assert_true(sources_may(sources, &a, 6000));
    sources_charge(sources, &a, 6000, 1);
    assert_true(sources_may(sources, &a, 6000));
    sources_free(sources);
    sources_free(NULL);
}

static void who_was_heard_of_least_lately_is_forgotten_first(void **state)
{
    struct sources *sources = sources_new();
    struct source first = from("192.0.2.1", NULL), second = from("192.0.2.2", NULL);
    char text[32];

    (void)state;
    sources_charge(sources, &first, 1000, LIMIT_LINK_TRIES);
    sources_charge(sources, &second, 1000, LIMIT_LINK_TRIES);
    sources_charge(sources, &first, 1000, 1);
    for (int i = 0; i < LIMIT_LINK_SOURCES - 1; i++) {
        snprintf(text, sizeof text, "10.0.%d.%d", i / 256, i % 256);
        struct source other = from(text, NULL);
        sources_charge(sources, &other, 1000, 0); /* nothing: takes no place */
        sources_charge(sources, &other, 1000, LIMIT_LINK_TRIES);
        assert_false(sources_may(sources, &other, 1000));
    }
    assert_false(sources_may(sources, &first, 1000));
    assert_true(sources_may(sources, &second, 1000));
    sources_free(sources);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(an_ipv6_address_counts_by_its_network),
        CASE(only_a_proxy_of_this_machine_is_believed),
        CASE(work_is_counted_by_source_and_second),
        CASE(who_was_heard_of_least_lately_is_forgotten_first),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
