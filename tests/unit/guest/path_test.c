#include "guest/path.h"

#include "base/limits.h"
#include "test.h"

static struct arena arena;
static const struct user user = { .name = STR_INIT("user"), .home = STR_INIT("/home/user"), .uid = 1, .gid = 1 };

static int set_up(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static void paths_are_resolved_as_upstream_does(void **state)
{
    (void)state;
    static const struct {
        struct str path, workdir;
        const char *want;
    } rows[] = {
        { STR_INIT(""), STR_INIT(""), "/home/user" },
        { STR_INIT(""), STR_INIT("/code"), "/code" },
        { STR_INIT("~"), STR_INIT("/code"), "/home/user" },
        { STR_INIT("~/a"), STR_INIT("/code"), "/home/user/a" },
        { STR_INIT("a/b"), STR_INIT("/code"), "/home/user/a/b" }, /* never to the work directory */
        { STR_INIT("./a/../../x"), STR_INIT(""), "/home/x" },
        { STR_INIT("../../../.."), STR_INIT(""), "/" },
        { STR_INIT("/a/../b"), STR_INIT(""), "/a/../b" }, /* as it is: ".." behind a link is the kernel's business */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *got = NULL;
        struct err err;
        assert_true(path_resolve(&arena, rows[i].path, &user, rows[i].workdir, &got, &err));
        assert_string_equal(got, rows[i].want);
    }
}

static void what_no_system_call_would_take_is_refused(void **state)
{
    (void)state;
    const char *got;
    struct err err;
    char long_path[LIMIT_PATH_BYTES + 1];
    memset(long_path, 'a', sizeof long_path);
    long_path[0] = '/';
    assert_false(path_resolve(&arena, STR("~root/x"), &user, STR(""), &got, &err));
    assert_false(path_resolve(&arena, STR("/a\0b"), &user, STR(""), &got, &err));
    assert_false(path_resolve(&arena, STR("~/a\0b"), &user, STR(""), &got, &err));
    assert_false(path_resolve(&arena, str_of(long_path, LIMIT_PATH_BYTES), &user, STR(""), &got, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_true(path_resolve(&arena, str_of(long_path, LIMIT_PATH_BYTES - 1), &user, STR(""), &got, &err));
}

static void base_and_parent_take_a_path_apart(void **state)
{
    (void)state;
    CHECK_STR(path_base(STR("/a/b")), STR("b"));
    CHECK_STR(path_base(STR("/a/b//")), STR("b"));
    CHECK_STR(path_base(STR("/")), STR("/"));
    assert_string_equal(path_parent(&arena, "/a/b"), "/a");
    assert_string_equal(path_parent(&arena, "/a"), "/");
    assert_string_equal(path_parent(&arena, "/"), "/");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(paths_are_resolved_as_upstream_does),
        CASE(what_no_system_call_would_take_is_refused),
        CASE(base_and_parent_take_a_path_apart),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
