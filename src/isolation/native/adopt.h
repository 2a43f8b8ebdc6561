/*
 * adopt.h - what an earlier keeper has left: what runs is taken over, and the rest is cleared away.
 */
#ifndef ISOLATION_NATIVE_ADOPT_H
#define ISOLATION_NATIVE_ADOPT_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/native/box.h"

/* Before the first start: it takes the slots of those that live. */
bool native_find_again(struct native *native, struct err *err) must_use;

#endif
