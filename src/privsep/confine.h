/*
 * confine.h - how a process of ours drops privileges.
 *
 * Each call takes something away for good. A process calls them in this order: capabilities, no_new_privs, memory, files,
 * seccomp.
 */
#ifndef PRIVSEP_CONFINE_H
#define PRIVSEP_CONFINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

/* The capabilities that exec could give back. Needs CAP_SETPCAP, so call it before the switch to another user. */
bool confine_drop_bounding_set(struct err *err) must_use;
/* Bounding (as far as it can), ambient, inheritable, permitted, effective: nothing is left. */
bool confine_drop_all_capabilities(struct err *err) must_use;
/* No setuid program and no file capability works for us or our children any more. */
bool confine_no_new_privileges(struct err *err) must_use;
/* No core dump, no ptrace and no /proc/<pid>/mem for other processes of the same user. */
bool confine_hide_memory(struct err *err) must_use;

struct confine_rule {
    const char *call;    /* by name; one that this architecture does not have is skipped */
    const char *reason;  /* for readers */
    unsigned long only;  /* the second argument must be this, as with ioctl; 0: any */
    unsigned long first; /* the first argument must be this, as with socket; 0: any. A call may have several rules. */
};
/*
 * The list ends with an empty rule. What is not in the list fails with EPERM. Sets no_new_privs, without which the kernel
 * refuses. All threads.
 */
bool confine_load_seccomp(const struct confine_rule *rules, struct err *err) must_use;

/* The same in two steps, for a process whose many children have one list: compiling takes most of a millisecond. */
struct confine_filter {
    char *program; /* in the kernel's form */
    size_t len;
};
bool confine_compile_seccomp(const struct confine_rule *rules, struct confine_filter *out, struct err *err) must_use;
void confine_filter_done(struct confine_filter *filter);
/* For all threads of the process. They must have begun their work: a new thread needs calls of its own. */
bool confine_load_filter(const struct confine_filter *filter, struct err *err) must_use;

/*
 * Of all files, only what is below this directory can be opened, made, changed or removed from here on (Landlock); with
 * -1 no file at all. What is open already stays so. *out_done is false where the kernel has no Landlock: the caller
 * decides what that means.
 */
bool confine_files(int dir_fd, bool *out_done, struct err *err) must_use;
/* The same, and these files, and what is below these directories, can be read. */
bool confine_files_and_read(int dir_fd, const int *read_fds, uint32_t read_count, bool *out_done, struct err *err)
    must_use;

/* For processes that work on foreign bytes. All are hard limits; 0 leaves one as it is. */
struct confine_limits {
    uint64_t memory_bytes; /* address space; not enforced in builds with a sanitizer, which reserves terabytes of it */
    uint64_t cpu_s;        /* of the whole process; then it is killed */
    uint64_t files;        /* descriptors with a number below this */
    bool no_file_data;     /* nothing can be written to a file */
};
bool confine_limit(const struct confine_limits *limits, struct err *err) must_use;

/* Raises the soft limit of open files to the hard limit: a connection is a file. */
bool confine_raise_files(unsigned long *out_files, struct err *err) must_use;

#endif
