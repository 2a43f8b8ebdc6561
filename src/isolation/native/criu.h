/*
 * criu.h - runs CRIU, the program that writes the processes of a sandbox to disk and brings them back.
 *
 * CRIU has to be root: it stops processes, reads their memory, makes namespaces. It reads what guests have made, so it gets
 * as little else as it can work with:
 *
 *   mounts    a root of its own with CRIU and its libraries, read-only, from a directory that only root can write; /proc; the
 *             directory of the image; for a restore the sandbox's own file systems. Nothing of the host's tree
 *   network   none
 *   limits    a restore runs inside the sandbox's cgroup; both have LIMIT_DUMP_MS; a dump writes no file above
 *             LIMIT_IMAGE_FILE_BYTES, and
 *             ends when the disk has no more than LIMIT_ROOM_BYTES
 *   power     without the capabilities that it does not need (criu.c has the list)
 *
 * A seccomp filter is not possible: restored processes inherit it.
 *
 * Where      criu_enter() and criu_run() in a helper (helper.h) of its own; the rest in keeper.
 */
#ifndef ISOLATION_NATIVE_CRIU_H
#define ISOLATION_NATIVE_CRIU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"

/* What CRIU sees, as descriptors of keeper's. -1: not needed. */
struct criu_room {
    int tools_fd;
    int known_fd;   /* what CRIU found out about this kernel when it was tested; -1: it finds out again */
    int image_fd;   /* a directory, at /image; -1: a tmpfs */
    int freezer_fd; /* the sandbox's directory in the freezer's tree, at /run/freezer */
    int root_fd;    /* of a restore: the sandbox's root, a detached mount, at /box… */
    int devices_fd; /* …and its devices, at /run/dev */
};
#define CRIU_IMAGE "/image"
#define CRIU_FREEZER "/run/freezer"
#define CRIU_BOX "/box"
#define CRIU_DEVICES "/run/dev"
#define CRIU_LOG "/run/criu.log"

/* In the helper: from here on it has a mount namespace and a network of its own, and sees nothing else. */
bool criu_enter(const struct criu_room *room, struct err *err) must_use;
/* After a run of CRIU in there: writes what it knows by now to known_fd, an empty file, for later rooms. */
bool criu_keep_known(int known_fd) must_use;

enum { CRIU_ARGS = 1024 + 16384 }; /* some of its own; two for each file from outside, LIMIT_IMAGE_FILES of them */
struct criu_args {
    struct buf text;
    size_t count;
    size_t at[CRIU_ARGS];
};
void criu_args_init(struct criu_args *args);
void criu_args_done(struct criu_args *args);
void criu_arg(struct criu_args *args, const char *format, ...) printf_like(2, 3);

/*
 * In the helper: runs it and waits for its end. `act`, if there is one, is called when CRIU has come to a step with pid 1 of
 * what it restores. False with err when act() fails, or CRIU does: then err is what its log says.
 */
struct criu_run {
    struct criu_args *args;
    int dumps;      /* for a dump: pid 1 of the sandbox; else 0 */
    uint32_t owner; /* of its user namespace */
    bool is_test;   /* of processes without a user namespace: it may set the clock of their time namespace */
    bool (*act)(void *context, const char *step, int pid, struct err *err);
    bool (*look)(void *context, struct err *err); /* may be NULL; several times a second. False: CRIU is killed */
    void *context;
    /*
     * Of a dump: how long it may take (a time of clock_mono_ms()), and a socket whose other end is keeper's. After that, or
     * when that closes, CRIU is made to let go of everything and end: if it were killed in the middle, a process that it just
     * runs code in would die with it. So it may live a moment longer than keeper.
     */
    uint64_t until_ms;
    int keeper_fd;
};
bool criu_run(const struct criu_run *run, struct err *err) must_use;

/* For keeper: the tools, or -1 and why memory cannot be written on this machine. */
int criu_open_tools(const char *path, struct err *err) must_use;

extern const unsigned char criu_criu_shim_so[];
extern const unsigned long criu_criu_shim_so_size;
extern const unsigned char criu_criu_tool[];
extern const unsigned long criu_criu_tool_size;

#endif
