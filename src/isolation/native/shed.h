/*
 * shed.h - how a process of keeper's drops its privileges before it becomes guestd or a zygote.
 */
#ifndef ISOLATION_NATIVE_SHED_H
#define ISOLATION_NATIVE_SHED_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

/* Keeper's limits, which are for a thousand sandboxes; `files` is how many may be open. */
bool shed_limits(unsigned files, struct err *err) must_use;
/* The bounding set but for `keep`, and what is ambient. Takes effect at exec. */
bool shed_capabilities(uint64_t keep, struct err *err) must_use;
/*
 * System calls. Wants CAP_SYS_ADMIN in the user namespace that we are in. With out_listener_fd, which may be NULL: the filter's
 * listener (options.h), or -1.
 */
bool shed_calls(const struct sock_fprog *filter, int *out_listener_fd, struct err *err) must_use;

#endif
