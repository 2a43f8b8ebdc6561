/*
 * analyzer_hints.h - what clang-tidy cannot see, because it reads one file at a time: failing always returns false.
 *
 * Without this it follows `return err_set(…)` into the branch where the call succeeded, and reports every output that
 * was rightly left untouched. Included by lint.sh in front of each file; never compiled.
 */
#include "base/err.h"

#define err_set(...) (err_set(__VA_ARGS__), false)
#define err_sys(...) (err_sys(__VA_ARGS__), false)
#define err_sys_num(...) (err_sys_num(__VA_ARGS__), false)
#define err_wrap(...) (err_wrap(__VA_ARGS__), false)
