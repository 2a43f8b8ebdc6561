#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "test.h"

static void a_short_write_is_told_as_that_and_not_as_an_old_errno(void **state)
{
    (void)state;
    char path[] = "/tmp/fd_test.XXXXXX";
    struct rlimit before, small;
    struct err err;
    auto_close int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 4, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    errno = EPERM;
    bool ok = fd_write_file(AT_FDCWD, path, STR("0123456789"), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(unlink(path), 0);
    assert_false(ok);
    assert_int_equal(err.kind, ERR_INTERNAL);
    assert_int_equal(err.sys, 0);
    assert_non_null(strstr(err.message, "took 4 of 10 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_write_is_told_as_that_and_not_as_an_old_errno),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
