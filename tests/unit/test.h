/*
 * test.h - what every unit test starts with.
 */
#ifndef TESTS_UNIT_TEST_H
#define TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/str.h"

#define CHECK_STR(got, want)                                                    \
    do {                                                                        \
        struct str got_ = (got), want_ = (want);                                \
        if (!str_eq(got_, want_))                                               \
            fail_msg("got '%.*s', want '%.*s'", STR_ARG(got_), STR_ARG(want_)); \
    } while (0)

/* A case is a function whose name is a sentence; the group runs them in order. */
#define CASE(function) cmocka_unit_test(function)

#endif
