/*
 * criu_test.h - does CRIU work on this machine? Two processes of ours are written to disk and brought back.
 */
#ifndef ISOLATION_NATIVE_CRIU_TEST_H
#define ISOLATION_NATIVE_CRIU_TEST_H

#include "base/attr.h"
#include "base/err.h"

/*
 * In a helper, whose next children are in another process namespace then: takes about 100 ms. outside_fd is a file of
 * keeper's that no mount table has:
 * the processes have it open, and must have it open again. known_fd is an empty file for criu_keep_known(), or -1; it stays
 * empty if CRIU has left nothing to keep.
 */
bool criu_test(int tools_fd, int outside_fd, int known_fd, struct err *err) must_use;

#endif
