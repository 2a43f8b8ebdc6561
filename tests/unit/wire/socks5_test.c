#include "wire/socks5.h"

#include "test.h"

static struct err err;

static const struct socks5_want by_name = { .name = STR_INIT("www.example.com"), .port = 443 };
static const struct socks5_want with_login = {
    .username = STR_INIT("user"), .password = STR_INIT("pass"), .address = { 192, 0, 2, 7 }, .is_v4 = true, .port = 80
};

/* Feeds `in` whole, or byte by byte; returns the last step, and what we wrote in `out`. */
static enum socks5_step talk(const struct socks5_want *want, struct str in, size_t piece, struct buf *out, size_t *left)
{
    struct socks5 socks;
    enum socks5_step step = SOCKS5_MORE;
    size_t end = 0;
    struct str rest = str_of(in.at, 0);

    socks5_begin(&socks, want, out);
    while (step == SOCKS5_MORE && end < in.len) {
        size_t more = MIN(piece, in.len - end);
        end += more;
        rest.len += more;
        step = socks5_next(&socks, &rest, out, &err);
    }
    *left = rest.len;
    return step;
}

static void a_connection_by_name_without_a_password(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 30; piece++) {
        auto_buf struct buf out = buf_make(NULL, 1024);
        size_t left;
        enum socks5_step step = talk(&by_name,
                                     STR("\5\0"
                                         "\5\0\0\1\xc0\0\2\1\x1f\x90"
                                         "HELLO"),
                                     piece, &out, &left);
        assert_int_equal(step, SOCKS5_DONE);
        assert_true(left <= 5); /* the destination's first bytes are not eaten */
        CHECK_STR(buf_str(&out), STR("\5\1\0"
                                     "\5\1\0\3\x0fwww.example.com\1\xbb"));
    }
}

static void a_connection_by_address_with_a_password(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 30; piece++) {
        auto_buf struct buf out = buf_make(NULL, 1024);
        size_t left;
        assert_int_equal(talk(&with_login,
                              STR("\5\2\1\0\5\0\0\4"
                                  "0123456789abcdef"
                                  "\0\0"),
                              piece, &out, &left),
                         SOCKS5_DONE);
        assert_int_equal(left, 0);
        CHECK_STR(buf_str(&out), STR("\5\2\0\2"
                                     "\1\4user\4pass"
                                     "\5\1\0\1\xc0\0\2\7\0\x50"));
    }
}

static void ipv6_and_a_bound_name(void **state)
{
    (void)state;
    struct socks5_want want = { .address = { 0x20, 1, 0xd, 0xb8, [15] = 1 }, .port = 22 };
    auto_buf struct buf out = buf_make(NULL, 1024);
    size_t left;

    assert_int_equal(talk(&want, STR("\5\0\5\0\0\3\3abc\0\0"), 100, &out, &left), SOCKS5_DONE);
    CHECK_STR(buf_str(&out), STR("\5\1\0\5\1\0\4\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1\0\x16"));
}

static void what_a_proxy_does_wrong_is_told(void **state)
{
    (void)state;
    static const struct {
        const struct socks5_want *want;
        struct str in;
        enum err_kind kind;
        const char *text;
    } rows[] = {
        { &by_name, STR_INIT("HTTP/1.1 400"), ERR_INVALID, "does not speak SOCKS5" },
        { &by_name, STR_INIT("\4\0"), ERR_INVALID, "does not speak SOCKS5" },
        { &by_name, STR_INIT("\5\2"), ERR_INVALID, "not offered" },
        { &by_name, STR_INIT("\5\1"), ERR_INVALID, "not offered" },
        { &by_name, STR_INIT("\5\xff"), ERR_DENIED, "asks for a user name" },
        { &with_login, STR_INIT("\5\xff"), ERR_DENIED, "neither" },
        { &with_login, STR_INIT("\5\2\1\1"), ERR_DENIED, "does not accept this user name" },
        { &with_login, STR_INIT("\5\2\5\0"), ERR_INVALID, "answer to the password" },
        { &by_name, STR_INIT("\5\0\5\1"), ERR_UNAVAILABLE, "general failure" },
        { &by_name, STR_INIT("\5\0\5\2"), ERR_DENIED, "rules" },
        { &by_name, STR_INIT("\5\0\5\5"), ERR_UNAVAILABLE, "was refused" },
        { &by_name, STR_INIT("\5\0\5\x09"), ERR_UNAVAILABLE, "code" },
        { &by_name, STR_INIT("\5\0\5\xff"), ERR_UNAVAILABLE, "code" },
        { &by_name, STR_INIT("\5\0\4\0"), ERR_INVALID, "CONNECT" },
        { &by_name, STR_INIT("\5\0\5\0\0\2xxxxxx"), ERR_INVALID, "CONNECT" },
        { &by_name, STR_INIT("\5\0\5\0\1\1xxxxxx"), ERR_INVALID, "CONNECT" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t piece = 1; piece < 20; piece += 18) {
            auto_buf struct buf out = buf_make(NULL, 1024);
            size_t left;
            if (talk(rows[i].want, rows[i].in, piece, &out, &left) != SOCKS5_BAD || err.kind != rows[i].kind ||
                !strstr(err.message, rows[i].text))
                fail_msg("row %zu: %s", i, err.message);
        }
}

static void the_password_is_sent_only_when_it_is_asked_for(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1024);
    size_t left;

    assert_int_equal(talk(&with_login, STR("\5\0\5\0\0\1xxxxpp"), 1, &out, &left), SOCKS5_DONE);
    assert_null(memmem(out.data, out.len, "pass", 4));
}

static void a_finished_handshake_is_not_continued(void **state)
{
    (void)state;
    struct socks5 socks;
    auto_buf struct buf out = buf_make(NULL, 1024);
    struct str in = STR("\5\0\5\5");

    socks5_begin(&socks, &by_name, &out);
    assert_int_equal(socks5_next(&socks, &in, &out, &err), SOCKS5_BAD);
    in = STR("\5\0\0\1xxxxpp");
    assert_int_equal(socks5_next(&socks, &in, &out, &err), SOCKS5_BAD);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_connection_by_name_without_a_password),
        CASE(a_connection_by_address_with_a_password),
        CASE(ipv6_and_a_bound_name),
        CASE(what_a_proxy_does_wrong_is_told),
        CASE(the_password_is_sent_only_when_it_is_asked_for),
        CASE(a_finished_handshake_is_not_continued),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
