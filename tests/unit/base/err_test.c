#include "base/err.h"

#include <errno.h>

#include "test.h"

static void the_trail_has_the_outermost_step_first(void **state)
{
    (void)state;
    struct err err;
    errno = ENOENT;
    assert_false(err_sys(&err, "open %s", "memory.max"));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_int_equal(err.sys, ENOENT);
    assert_false(err_wrap(&err, "limit sandbox %s", "sbx_1"));
    assert_false(err_wrap(&err, "create"));
    assert_string_equal(err_text(&err), "create: limit sandbox sbx_1: open memory.max: No such file or directory");
    assert_string_equal(err.message, "open memory.max: No such file or directory");
}

static void long_texts_are_cut_not_overrun(void **state)
{
    (void)state;
    struct err err;
    char longer[1000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    err_set(&err, ERR_INVALID, "%s", longer);
    for (int i = 0; i < 20; i++)
        err_wrap(&err, "%s", longer);
    assert_true(strlen(err.message) < sizeof err.message);
    assert_true(strlen(err.trail) < sizeof err.trail);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_trail_has_the_outermost_step_first),
        CASE(long_texts_are_cut_not_overrun),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
