/*
 * front_calls.h - every system call that front may make.
 */
#ifndef DAEMON_FRONT_CALLS_H
#define DAEMON_FRONT_CALLS_H

#include <stddef.h>

#include "privsep/confine.h"

extern const struct confine_rule front_calls[];

#endif
