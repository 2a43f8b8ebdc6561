#include "egress/name.h"

#include "base/mem.h"
#include "hello.h"
#include "test.h"

static char name[LIMIT_NET_NAME_BYTES + 1];

static void check_found(struct str bytes, const char *want)
{
    for (size_t len = 0; len < bytes.len; len++)
        assert_int_equal(name_find(str_of(bytes.at, len), name), NAME_MORE);
    assert_int_equal(name_find(bytes, name), NAME_FOUND);
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
    assert_int_equal(name_find(bytes, name), NAME_NONE);
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
}

static void a_head_without_end_is_given_up(void **state)
{
    size_t len = LIMIT_EGRESS_NAME_BYTES;
    auto_free char *long_head = mem_new(len);

    (void)state;
    memset(long_head, 'a', len);
    memcpy(long_head, "GET / HTTP/1.1\r\nCookie: ", 24);
    assert_int_equal(name_find(str_of(long_head, len - 1), name), NAME_MORE);
    check_none(str_of(long_head, len));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_tls_hello_has_the_name_in_sni),  CASE(a_request_has_the_name_in_host),
        CASE(what_has_no_name_or_two_has_none), CASE(other_protocols_are_not_waited_for),
        CASE(a_head_without_end_is_given_up),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
