/*
 * seccomp.h - which system calls a guest may make: a list of those allowed, each group with its reason.
 *
 * Compiled once with libseccomp and loaded raw in every sandbox: building it there took five times as long as loading.
 */
#ifndef ISOLATION_NATIVE_SECCOMP_H
#define ISOLATION_NATIVE_SECCOMP_H

#include <linux/filter.h>
#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"

/* The filter as BPF; out->filter is on the heap, the caller's. no_landlock: guests find a kernel without Landlock. */
bool seccomp_guest_filter(bool no_landlock, struct sock_fprog *out, struct err *err) must_use;
/* The same for a zygote outside (zygotes.h), which may also enter a sandbox. */
bool seccomp_zygote_filter(bool no_landlock, struct sock_fprog *out, struct err *err) must_use;

#endif
