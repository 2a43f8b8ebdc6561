#include "base/header_kind.h"

#include "base/mem.h"
#include "test.h"

/* All names of the table, and one that is not in it. */
static const struct str all[] = {
    STR_INIT("Connection"),
    STR_INIT("Content-Length"),
    STR_INIT("Expect"),
    STR_INIT("Host"),
    STR_INIT("Keep-Alive"),
    STR_INIT("Proxy-Authenticate"),
    STR_INIT("Proxy-Authorization"),
    STR_INIT("Proxy-Connection"),
    STR_INIT("TE"),
    STR_INIT("Trailer"),
    STR_INIT("Transfer-Encoding"),
    STR_INIT("Upgrade"),
    STR_INIT("Accept"),
};

/* Exactly the names in `want`, a list with commas, have one of these kinds. */
static void check(unsigned kinds, struct str want)
{
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        struct str rest = want, item;
        bool is_wanted = false;
        while (str_cut(&rest, ',', &item))
            is_wanted |= str_eq(item, all[i]);
        if (header_is(all[i], kinds) != is_wanted)
            fail_msg("%.*s: %s", STR_ARG(all[i]), is_wanted ? "is not of that kind" : "is of that kind");
    }
}

static void a_message_that_is_passed_on_loses_the_fields_of_its_connection(void **state)
{
    (void)state;
    check(HEADER_HOP | HEADER_PROXY | HEADER_WRITTEN,
          STR("Connection,Keep-Alive,Proxy-Connection,TE,Trailer,Transfer-Encoding,Upgrade,Content-Length,"
              "Proxy-Authorization,Proxy-Authenticate"));
}

static void a_header_rule_may_set_what_is_for_a_proxy_and_nothing_that_frames(void **state)
{
    (void)state;
    check(
        HEADER_HOP | HEADER_WRITTEN | HEADER_OF_REQUEST,
        STR("Connection,Content-Length,Expect,Host,Keep-Alive,Proxy-Connection,TE,Trailer,Upgrade,Transfer-Encoding"));
}

static void http2_has_te_in_requests_only(void **state)
{
    (void)state;
    check(HEADER_HTTP2_REFUSED, STR("Connection,Keep-Alive,Proxy-Connection,Transfer-Encoding,Upgrade"));
    check(HEADER_HTTP2_NO_ANSWER, STR("Connection,Keep-Alive,Proxy-Connection,Transfer-Encoding,Upgrade,TE"));
}

static void the_server_writes_the_framing_itself(void **state)
{
    (void)state;
    check(HEADER_WRITTEN, STR("Connection,Content-Length,Transfer-Encoding"));
}

static void names_have_any_case(void **state)
{
    (void)state;
    assert_true(header_is(STR("kEEP-aLIVE"), HEADER_HOP));
    assert_false(header_is(STR("Keep-Aliv"), HEADER_HOP));
    assert_false(header_is(STR(""), ~0u));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_message_that_is_passed_on_loses_the_fields_of_its_connection),
        CASE(a_header_rule_may_set_what_is_for_a_proxy_and_nothing_that_frames),
        CASE(http2_has_te_in_requests_only),
        CASE(the_server_writes_the_framing_itself),
        CASE(names_have_any_case),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
