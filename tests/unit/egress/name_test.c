#include "egress/name.h"

#include "base/mem.h"
#include "hello.h"
#include "test.h"

static char name[LIMIT_NET_NAME_BYTES + 1];

static enum name_found find(struct str bytes)
{
    return name_find(&(struct name_search){ 0 }, bytes, name);
}

/* Also in two pieces, cut anywhere, and byte by byte. */
static void check_found(struct str bytes, const char *want)
{
    struct name_search bytewise = { 0 };

    for (size_t len = 0; len < bytes.len; len++) {
        struct name_search search = { 0 };
        assert_int_equal(name_find(&search, str_of(bytes.at, len), name), NAME_MORE);
        assert_int_equal(name_find(&search, bytes, name), NAME_FOUND);
        assert_string_equal(name, want);
        assert_int_equal(name_find(&bytewise, str_of(bytes.at, len), name), NAME_MORE);
    }
    assert_int_equal(name_find(&bytewise, bytes, name), NAME_FOUND);
    assert_string_equal(name, want);
}

static void a_tls_hello_has_the_name_in_sni(void **state)
{
    auto_buf struct buf hello = hello_make("WWW.Example.com");

    (void)state;
    check_found(buf_str(&hello), "www.example.com");
}

static void a_request_has_the_name_in_host(void **state)
{
    (void)state;
    check_found(STR("GET / HTTP/1.1\r\nHost: Example.COM:8080\r\n\r\n"), "example.com");
    check_found(STR("POST /x HTTP/1.0\r\nA: b\r\nhost: example.com.\r\n\r\n"), "example.com");
}

static void check_none(struct str bytes)
{
    assert_int_equal(find(bytes), NAME_NONE);
}

static void what_has_no_name_or_two_has_none(void **state)
{
    auto_buf struct buf hello = hello_make(NULL);

    (void)state;
    check_none(buf_str(&hello));
    check_none(STR("GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n"));
    check_none(STR("GET / HTTP/1.0\r\n\r\n"));
    check_none(STR("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n"));
    check_none(STR("GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n"));
    check_none(STR("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"));
    check_none(STR("GET / HTTP/1.1\r\nHost:\r\n\r\n"));
    check_none(STR("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
}

static void other_protocols_are_not_waited_for(void **state)
{
    (void)state;
    check_none(STR("SSH-2.0-OpenSSH_9.2\r\n"));
    check_none(STR("\0\0\0\x08\x04\xd2\x16\x2f")); /* PostgreSQL asks for TLS */
    check_none(STR("\xff"));
    check_none(STR("\x16\x09\x09nonsense that is not TLS"));
    check_none(STR("*1\r\n$4\r\nPING\r\n"));
    /* In pieces too: the end of the first line, or a byte that no head has, tells. */
    struct name_search ssh = { 0 }, amqp = { 0 }, not_tls = { 0 };
    assert_int_equal(name_find(&ssh, STR("SSH-2.0-OpenSSH_9.2"), name), NAME_MORE);
    assert_int_equal(name_find(&ssh, STR("SSH-2.0-OpenSSH_9.2\r\n"), name), NAME_NONE);
    assert_int_equal(name_find(&amqp, STR("AMQP"), name), NAME_MORE);
    assert_int_equal(name_find(&amqp, STR("AMQP\0\0\x09\x01"), name), NAME_NONE);
    assert_int_equal(name_find(&not_tls, STR("\x16"), name), NAME_MORE);
    assert_int_equal(name_find(&not_tls, STR("\x16\x09"), name), NAME_NONE);
}

/* Returns how often bytes were parsed that come one by one; with an end, `last` is the answer. */
static unsigned count_parses(struct str bytes, enum name_found last)
{
    struct name_search search = { 0 };
    enum name_found found = NAME_MORE;
    unsigned count = 0;

    for (size_t len = 1; len <= bytes.len; len++) {
        size_t before = search.parse_at;
        assert_int_equal(found, NAME_MORE);
        found = name_find(&search, str_of(bytes.at, len), name);
        count += search.parse_at != before || found != NAME_MORE;
    }
    assert_int_equal(found, last);
    return count;
}

static void bytes_that_come_one_by_one_are_not_parsed_for_each(void **state)
{
    auto_buf struct buf head = buf_make(NULL, 1 << 20), hello = buf_make(NULL, 1 << 20);
    auto_buf struct buf whole = hello_make("www.example.com");

    (void)state;
    buf_add(&head, STR("GET / HTTP/1.1\r\nHost: www.example.com\r\n"));
    for (int i = 0; i < 60; i++)
        buf_format(&head, "h%d: %0400d\r\n", i, 0);
    assert_in_range(count_parses(buf_str(&head), NAME_MORE), 1, 20);
    buf_add(&head, STR("\r\n"));
    assert_in_range(count_parses(buf_str(&head), NAME_FOUND), 1, 20);

    for (size_t i = 5; i < whole.len; i++) { /* a record for each byte */
        buf_add(&hello, STR("\x16\3\1\0\1"));
        buf_add(&hello, str_of(whole.data + i, 1));
    }
    assert_in_range(count_parses(buf_str(&hello), NAME_FOUND), 1, 80);
    assert_string_equal(name, "www.example.com");
    hello.len = 0; /* one of 16 KiB, which does not fit */
    buf_add(&hello, STR("\x16\3\1\0\4\1\0\x3f\0"));
    while (hello.len < LIMIT_TLS_HELLO_RECORD_BYTES - 6)
        buf_add(&hello, STR("\x16\3\1\0\1x"));
    assert_in_range(count_parses(buf_str(&hello), NAME_MORE), 1, 80);
}

static void a_head_without_end_is_given_up(void **state)
{
    size_t len = LIMIT_EGRESS_NAME_BYTES;
    auto_free char *long_head = mem_new(len);

    (void)state;
    memset(long_head, 'a', len);
    memcpy(long_head, "GET / HTTP/1.1\r\nCookie: ", 24);
    assert_int_equal(find(str_of(long_head, len - 1)), NAME_MORE);
    check_none(str_of(long_head, len));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_tls_hello_has_the_name_in_sni),  CASE(a_request_has_the_name_in_host),
        CASE(what_has_no_name_or_two_has_none), CASE(other_protocols_are_not_waited_for),
        CASE(a_head_without_end_is_given_up),   CASE(bytes_that_come_one_by_one_are_not_parsed_for_each),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
