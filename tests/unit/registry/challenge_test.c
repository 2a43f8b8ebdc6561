#include "registry/challenge.h"

#include "test.h"

static struct arena arena;

static int make_arena(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int drop_arena(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static void a_bearer_challenge_has_its_parts(void **state)
{
    struct challenge list[CHALLENGES_MOST];
    uint32_t count = 0;

    (void)state;
    assert_true(challenges_parse(&arena,
                                 STR("Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\","
                                     "scope=\"repository:library/python:pull,push\",error=\"insufficient_scope\""),
                                 list, &count));
    assert_int_equal(count, 1);
    assert_int_equal(list[0].scheme, CHALLENGE_BEARER);
    CHECK_STR(list[0].realm, STR("https://auth.docker.io/token"));
    CHECK_STR(list[0].service, STR("registry.docker.io"));
    CHECK_STR(list[0].scope, STR("repository:library/python:pull,push"));
}

static void several_challenges_are_told_apart(void **state)
{
    struct challenge list[CHALLENGES_MOST];
    uint32_t count = 0;

    (void)state;
    assert_true(challenges_parse(&arena,
                                 STR("Negotiate YWJj==, basic realm=\"a \\\"quoted\\\" one\" , BEARER Realm = x/y ,, "
                                     "service=s"),
                                 list, &count));
    assert_true(challenges_parse(&arena, STR("Digest"), list, &count));
    assert_int_equal(count, 4 + (list[1].scheme == CHALLENGE_OTHER)); /* "YWJj==" may count as one of no kind */
    const struct challenge *basic = NULL, *bearer = NULL;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].scheme == CHALLENGE_BASIC)
            basic = &list[i];
        if (list[i].scheme == CHALLENGE_BEARER)
            bearer = &list[i];
    }
    assert_non_null(basic);
    assert_non_null(bearer);
    CHECK_STR(basic->realm, STR("a \"quoted\" one"));
    CHECK_STR(bearer->realm, STR("x/y"));
    CHECK_STR(bearer->service, STR("s"));
}

static void nonsense_is_refused(void **state)
{
    static const char *const cases[] = { "=x", "Bearer realm=\"open", "\"Basic\"", "Basic realm=\"a\" ;", "\x01" };
    struct challenge list[CHALLENGES_MOST];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint32_t count = 0;
        if (challenges_parse(&arena, str_from(cases[i]), list, &count))
            fail_msg("taken: %s", cases[i]);
    }
    uint32_t count = 0;
    assert_false(challenges_parse(&arena, STR("a,b,c,d,e,f,g,h,i"), list, &count));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_bearer_challenge_has_its_parts),
        CASE(several_challenges_are_told_apart),
        CASE(nonsense_is_refused),
    };

    return cmocka_run_group_tests(cases, make_arena, drop_arena);
}
