/*
 * origins.h - what a process inherits without asking, and must not have when it runs programs that come from elsewhere.
 */
#ifndef BASE_ORIGINS_H
#define BASE_ORIGINS_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"

/*
 * In a child: leaves its parent's session (or /dev/tty would open the terminal that the parent was started from, and could
 * type into it), its session keyring, its signals and its umask.
 */
bool origins_leave(struct err *err) must_use;

#endif
