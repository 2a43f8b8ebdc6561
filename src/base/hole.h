/*
 * hole.h - protections that the network tests switch off, one at a time, to prove that they would notice.
 *
 * Only a build with -Dtest_holes=true can do that: there, the environment variable CLOISTER_TEST_HOLE names the one
 * protection that is off. In every other build hole_is_open() is the constant false, and the program has no trace of
 * the names.
 */
#ifndef BASE_HOLE_H
#define BASE_HOLE_H

#include <stdbool.h>

#ifdef CLOISTER_TEST_HOLES
bool hole_is_open(const char *name);
#else
#define hole_is_open(name) false
#endif

#endif
