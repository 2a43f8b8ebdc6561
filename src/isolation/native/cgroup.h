/*
 * cgroup.h - limits for what runs in a sandbox, on the three layouts a host can have.
 *
 *   v2      one tree: <mount>/cloister.<n>/<id>/{guestd,user}, controllers enabled from the top
 *   v1      a tree per controller: <mount><our own cgroup>/cloister.<n>/<id>/user
 *   hybrid  v1 trees for the controllers, and a v2 tree that offers none of those we need
 *
 * The freezer makes everything in a sandbox stand still. On v2 it is a file of <id>. Elsewhere the sandbox has a directory
 * <id> in one more tree: in the v2 tree where there is one, since a process can be born there and a frozen one can be
 * killed; else in the v1 tree of the freezer controller.
 *
 * The `user` leaf carries the sandbox's limits. guestd is not in it, so that a sandbox which has used up its memory, its CPU
 * time or its processes can still be spoken to. On v2 it is in the leaf `guestd`, because there processes are in leaves
 * only; on v1 in <id> itself, which is a directory less in each tree, and a memory cgroup costs the kernel most of what a
 * sandbox takes. What a guest makes guestd use is not the host's either: there are cgroup_guestd_limits for it. <id> on v1
 * has the sum of both.
 *
 * Threads    One: keeper's.
 * Failure    A controller that the host does not have is an error that names it, never skipped; but sandboxes do not need
 *            the freezer to run.
 */
#ifndef ISOLATION_NATIVE_CGROUP_H
#define ISOLATION_NATIVE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "isolation/plan.h"

enum cgroup_control {
    CGROUP_MEMORY,
    CGROUP_CPU,
    CGROUP_PIDS,
    CGROUP_CONTROL_COUNT,
    CGROUP_FREEZER = CGROUP_CONTROL_COUNT, /* a tree, not a limit */
    CGROUP_TREE_COUNT,
};
extern const char *const cgroup_control_name[CGROUP_CONTROL_COUNT];

enum cgroup_layout {
    CGROUP_NONE,   /* no controller of ours anywhere */
    CGROUP_V1,     /* each controller has a tree of its own */
    CGROUP_HYBRID, /* as v1, and there is a v2 mount beside it */
    CGROUP_V2,     /* one tree */
    CGROUP_LAYOUT_COUNT,
};
extern const char *const cgroup_layout_name[CGROUP_LAYOUT_COUNT];

enum cgroup_freezer {
    CGROUP_FREEZER_NONE,
    CGROUP_FREEZER_V1,     /* the v1 controller. SIGKILL does not end what it has frozen before the thaw */
    CGROUP_FREEZER_BESIDE, /* a directory in the v2 tree beside v1; processes are born into it */
    CGROUP_FREEZER_V2,     /* the sandbox's own directory in the one tree */
};

/* Where things are, as read from /proc; pure, so that every layout is testable anywhere. */
struct cgroup_report {
    enum cgroup_layout layout;
    char v2_mount[LIMIT_PATH_BYTES]; /* empty if there is none */
    /* The directory below which our own begins; empty where the controller is missing. v2: the same for all. */
    char base[CGROUP_TREE_COUNT][LIMIT_PATH_BYTES];
    enum cgroup_freezer freezer;
};

/*
 * mountinfo and own_cgroup are /proc/self/mountinfo and /proc/self/cgroup. v2_controllers is cgroup.controllers at the
 * root of the v2 mount, empty if there is none.
 */
void cgroup_read_report(struct str mountinfo, struct str own_cgroup, struct str v2_controllers,
                        struct cgroup_report *out);
/* The same from this machine. */
bool cgroup_detect(struct cgroup_report *out, struct err *err) must_use;
/* "memory, pids" or "" */
void cgroup_missing(const struct cgroup_report *report, char *room, size_t room_size);

struct cgroup_limits {
    uint64_t memory_bytes;
    uint32_t cpu_millis;
    uint32_t pids;
};

static inline struct cgroup_limits cgroup_limits_of(const struct plan *plan)
{
    return (
        struct cgroup_limits){ .memory_bytes = plan->memory_bytes, .cpu_millis = plan->cpu_millis, .pids = plan->pids };
}

/* One knob and what goes into it, for tests and for the writer alike. */
struct cgroup_knob {
    enum cgroup_control control;
    const char *file;
    char value[48];
    bool may_be_missing; /* swap accounting is off on many kernels; then there is no swap to limit by it either */
};
enum { CGROUP_KNOBS_MAX = 8 };
/* For each guestd, whatever its sandbox may have. */
extern const struct cgroup_limits cgroup_guestd_limits;
size_t cgroup_knobs(enum cgroup_layout layout, const struct cgroup_limits *limits,
                    struct cgroup_knob out[CGROUP_KNOBS_MAX]);

struct cgroups; /* our own directory in each tree, held open */

/*
 * `name` is that directory's. Fails naming the controllers that are missing. On v1 our place depends on where we were
 * started; the file `cgroups` in record_fd remembers earlier places, so that what was made there is found and removed
 * from here. -1: nothing is remembered. With old_freezer the v2 tree of a hybrid host is not used (for tests).
 */
struct cgroups *cgroups_open(const char *name, int record_fd, bool old_freezer, struct err *err) must_use;

void cgroups_close(struct cgroups *cgroups); /* directories stay */
/* Takes our own directories away as well, if no sandbox is left in them. */
void cgroups_remove(struct cgroups *cgroups);
const struct cgroup_report *cgroups_report(const struct cgroups *cgroups);

/*
 * The cgroups of one sandbox, limits set. On failure nothing is left.
 *
 * A sandbox's cgroup namespace has to begin at <id>, above the leaves: what is outside of it cannot be written to disk. A
 * namespace begins where its maker is, and on v2 no process can be in <id> once its leaves have limits. So for a sandbox
 * there are two halves, and its first process is in <id> in between. On v1 the first half does all.
 */
bool cgroup_make(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err) must_use;
bool cgroup_lay_out(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err)
    must_use;
/* When nothing is in <id> any more. On failure what is there stays. */
bool cgroup_switch_on(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err)
    must_use;
/*
 * A directory for clone3's CLONE_INTO_CGROUP: its child is in <id> of the freezer's tree (on v2: of the one tree) from its
 * birth, which is cheaper than to be moved there. *out_fd is -1 where that tree cannot do this.
 */
bool cgroup_open_birth(struct cgroups *cgroups, const char *id, int *out_fd, struct err *err) must_use;
/*
 * Write-only cgroup.procs of <id>, where a process is not born there: for a process (guestd to be) that goes there by itself,
 * to make its cgroup namespace, and from there on by cgroup_open_guestd() if that is another place. None on v2. The write
 * may take long.
 */
bool cgroup_open_entry(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                       struct err *err) must_use;
/* The same for another process, by us, who wait: not for keeper. */
bool cgroup_hold(struct cgroups *cgroups, const char *id, pid_t pid, struct err *err) must_use;
/* Is guestd below <id>, and not in it? */
bool cgroup_has_guestd_leaf(const struct cgroups *cgroups);
/* Write-only cgroup.procs of guestd's place, as cgroup_open_user(). */
bool cgroup_open_guestd(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                        struct err *err) must_use;
/* Of <id> itself, above the leaves, and of the freezer's. None on v2. */
bool cgroup_open_above(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                       struct err *err) must_use;
/* The sandbox's directory in the freezer's tree. */
bool cgroup_open_freezer(struct cgroups *cgroups, const char *id, int *out_fd, struct err *err) must_use;
/* Is it where guestd belongs? Its place there proves whose it is, whatever its number was before. */
bool cgroup_holds(struct cgroups *cgroups, const char *id, pid_t pid);
/* How often the kernel has killed something in guestd's place for want of memory; 0 also if it does not say. */
uint64_t cgroup_guestd_oom_kills(const struct cgroups *cgroups, const char *id);
/* Write-only cgroup.procs of the `user` leaf, one a tree: a process that writes "0" there is moved there. */
bool cgroup_open_user(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                      struct err *err) must_use;
/*
 * For a process that may wait and does not see the tree: to set the limits of the `user` leaf lower than they are, and on v1
 * those of <id> with them. A lower limit takes memory back, and fails (sys is EBUSY) if what is in use does not fit. Filled by
 * open, closed by close.
 */
struct cgroup_reins {
    enum cgroup_layout layout;
    int fds[CGROUP_KNOBS_MAX];       /* by knob; -1: missing */
    int above_fds[CGROUP_KNOBS_MAX]; /* v1: of <id>, which has guestd's limits too; else -1 */
    size_t count;
    int events_fd;              /* of memory */
    int current_fd, reclaim_fd; /* v2: what is in use, and to take it back; -1: none */
};
bool cgroup_open_reins(const struct cgroups *cgroups, const char *id, struct cgroup_reins *out, struct err *err)
    must_use;
void cgroup_close_reins(struct cgroup_reins *reins);
bool cgroup_tighten(const struct cgroup_reins *reins, const struct cgroup_limits *limits, struct err *err) must_use;
/* As cgroup_guestd_oom_kills(), of `user`. */
uint64_t cgroup_user_oom_kills(const struct cgroup_reins *reins);
/* A small file of the sandbox, `file` being below its own directory; whole, or it is ERR_LIMIT. */
bool cgroup_read(const struct cgroups *cgroups, const char *id, enum cgroup_control control, const char *file,
                 char *room, size_t room_size, struct str *out_text, struct err *err) must_use;
/* Calls fn for each process in the `user` leaf until it is false; how many there were. */
unsigned cgroup_each_user(const struct cgroups *cgroups, const char *id, bool (*fn)(void *context, pid_t pid),
                          void *context);
/* Also for those that a hostile guestd has moved out of some trees only. One process can come several times. */
void cgroup_each_user_anywhere(const struct cgroups *cgroups, const char *id, bool (*fn)(void *context, pid_t pid),
                               void *context);
/*
 * Begins to freeze everything in both leaves, or thaws it. ERR_UNAVAILABLE without sys: there is no freezer here, or the
 * sandbox was started without one.
 */
bool cgroup_freeze(struct cgroups *cgroups, const char *id, bool freeze, struct err *err) must_use;
/* After a kill: on v1 a frozen process dies when it is thawed, and not before. Elsewhere nothing inside runs again. */
void cgroup_let_die(struct cgroups *cgroups, const char *id);
enum cgroup_ice { CGROUP_THAWED, CGROUP_FREEZING, CGROUP_FROZEN };
/* What the kernel says. A sandbox without a freezer is thawed. */
bool cgroup_read_ice(const struct cgroups *cgroups, const char *id, enum cgroup_ice *out, struct err *err) must_use;
/*
 * What the kernel offers for taking memory back from a sandbox: a file for writing, and the text to write. The write takes
 * long. False: it offers nothing.
 */
bool cgroup_open_reclaim(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text) must_use;
/*
 * The same for a sandbox that is killed, with less work and perhaps not all at the first time. It may leave the cgroup without
 * room for anything else.
 */
bool cgroup_open_drain(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text) must_use;

/* SIGKILL to everything in both leaves and above them, frozen or not. Returns how many processes were seen. */
unsigned cgroup_kill(struct cgroups *cgroups, const char *id);
/* False (ERR_CONFLICT) while the dead are still being cleared away: try again. True when there was nothing. */
bool cgroup_remove(struct cgroups *cgroups, const char *id, struct err *err) must_use;
/*
 * Removes all of them but those with the memory controller, which have no process in them then; cgroup_remove() removes the
 * rest. False as above.
 */
bool cgroup_leave_memory(struct cgroups *cgroups, const char *id, struct err *err) must_use;
/* Is any directory of it left, in any tree? */
bool cgroup_is_there(const struct cgroups *cgroups, const char *id) must_use;
/* Calls fn for every sandbox that has a cgroup in any tree; it may be called twice for one. */
void cgroups_walk(struct cgroups *cgroups, void (*fn)(void *context, const char *id), void *context);

#endif
