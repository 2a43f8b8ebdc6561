/*
 * How it works: /proc/self/mountinfo says which trees there are and where, /proc/self/cgroup where in each of
 * them we are. On v1 we nest below our own place, because that is all a delegated or containerised root may touch, and
 * because limits on us then hold for our sandboxes too. On v2 processes may live only in leaves, and our own place is a
 * leaf with us in it; so there we use a directory at the mount's root and switch the controllers on along the way.
 *
 * A keeper that is started again may find itself in another place of a v1 tree (another login session). What its
 * predecessor made stays where it was: limits hold there as before, and it is looked for there when it ends.
 */
#include "isolation/native/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"

enum {
    PROC_FILE_BYTES = 1 << 20, /* mountinfo of a busy host; ours has 40 lines */
    RECORD_BYTES = 64 * 1024,
    SWITCH_TRIES = 50, /* a millisecond each */
};

const char *const cgroup_control_name[CGROUP_CONTROL_COUNT] = {
    [CGROUP_MEMORY] = "memory",
    [CGROUP_CPU] = "cpu",
    [CGROUP_PIDS] = "pids",
};

const char *const cgroup_layout_name[CGROUP_LAYOUT_COUNT] = {
    [CGROUP_NONE] = "none",
    [CGROUP_V1] = "v1",
    [CGROUP_HYBRID] = "hybrid",
    [CGROUP_V2] = "v2",
};

/*
 * What guestd may take. Its own limits add up to 328 MiB: output that it keeps (64), a listing (64), watchers (72),
 * buffers of all the streams that the edge opens (128). The rest is for the page cache of uploads and for the kernel's
 * part; where that is short the kernel writes back and waits, it does not kill. On v1 what an upload puts on a tmpfs
 * counts here too, and there is no writing that back: if it does not fit beside what `user` has, the kernel kills something.
 */
const struct cgroup_limits cgroup_guestd_limits = {
    .memory_bytes = 384ull << 20,
    .cpu_millis = 2000,           /* its loop, and a worker beside it */
    .pids = LIMIT_PROCESSES + 64, /* its threads, and all its children on their way to the `user` leaf at once */
};

/*
 * Our own directory in each tree: those that new sandboxes get (on v2 just one), and behind them those of earlier
 * keepers that were started elsewhere and have left something there.
 */
enum { TREES_MAX = CGROUP_TREE_COUNT + 32 };

struct cgroups {
    struct cgroup_report report;
    char name[64];
    int fds[TREES_MAX];
    int count;                  /* of fds; at least trees() */
    char *old_paths[TREES_MAX]; /* of fds[trees()..] */
};

/* ---- detection ---- */

static bool list_has(struct str list, char separator, struct str want)
{
    struct str item;

    while (list.len && str_cut(&list, separator, &item))
        if (str_eq(item, want))
            return true;
    return false;
}

/* mountinfo writes a space as \040 and so on; a cgroup mount has none of these in any sane place. */
static bool plain_path(struct str path)
{
    return path.len && path.at[0] == '/' && !str_has_char(path, '\\');
}

/* Our place in the tree with this controller, from lines like "4:memory:/some/where". */
static struct str own_place(struct str own_cgroup, struct str control)
{
    struct str line, id, controls;

    while (own_cgroup.len && str_cut(&own_cgroup, '\n', &line)) {
        if (!str_cut(&line, ':', &id) || !str_cut(&line, ':', &controls))
            continue;
        if (list_has(controls, ',', control))
            return line;
    }
    return STR("");
}

/*
 * A tree may be mounted from below its root (a container without a cgroup namespace): mountinfo's root field is then
 * what stands at the mount point, and our place counts from there.
 */
static bool join_place(struct str mount_root, struct str mount_point, struct str place, char *room, size_t room_size)
{
    if (!str_eq(mount_root, STR("/")) && !str_skip(&place, mount_root))
        return false;
    if (place.len && place.at[0] != '/')
        return false;
    if (str_eq(place, STR("/")))
        place = STR("");
    int len = snprintf(room, room_size, "%.*s%.*s", STR_ARG(mount_point), STR_ARG(place));
    return len > 0 && (size_t)len < room_size;
}

struct mount_line {
    struct str root, point, type, super_options;
};

/* "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:1 - tmpfs tmpfs rw": fields before the dash vary in number. */
static bool parse_mount_line(struct str line, struct mount_line *out)
{
    struct str word;

    for (int i = 0; i < 3; i++)
        if (!str_cut(&line, ' ', &word))
            return false;
    if (!str_cut(&line, ' ', &out->root) || !str_cut(&line, ' ', &out->point))
        return false;
    do {
        if (!line.len || !str_cut(&line, ' ', &word))
            return false;
    } while (!str_eq(word, STR("-")));
    return str_cut(&line, ' ', &out->type) && str_cut(&line, ' ', &word) && str_cut(&line, ' ', &out->super_options) &&
           plain_path(out->point) && plain_path(out->root);
}

void cgroup_read_report(struct str mountinfo, struct str own_cgroup, struct str v2_controllers,
                        struct cgroup_report *out)
{
    struct str v2_point = STR("");
    struct str line;
    bool any_v1 = false, any_freezer = false;

    memset(out, 0, sizeof *out);
    while (mountinfo.len && str_cut(&mountinfo, '\n', &line)) {
        struct mount_line mount;
        if (!parse_mount_line(line, &mount))
            continue;
        if (str_eq(mount.type, STR("cgroup2")))
            v2_point = mount.point;
        if (!str_eq(mount.type, STR("cgroup")))
            continue;
        for (int i = 0; i < CGROUP_CONTROL_COUNT; i++) {
            struct str control = str_from(cgroup_control_name[i]);
            if (list_has(mount.super_options, ',', control) &&
                join_place(mount.root, mount.point, own_place(own_cgroup, control), out->base[i], sizeof out->base[i]))
                any_v1 = true;
        }
        if (list_has(mount.super_options, ',', STR("freezer")) &&
            join_place(mount.root, mount.point, own_place(own_cgroup, STR("freezer")), out->base[CGROUP_FREEZER],
                       sizeof out->base[CGROUP_FREEZER]))
            any_freezer = true;
    }
    (void)snprintf(out->v2_mount, sizeof out->v2_mount, "%.*s", STR_ARG(v2_point));
    if (any_v1)
        out->layout = v2_point.len ? CGROUP_HYBRID : CGROUP_V1;
    else if (v2_point.len)
        out->layout = CGROUP_V2;
    if (any_freezer)
        out->freezer = CGROUP_FREEZER_V1;
    if (out->layout == CGROUP_HYBRID)
        out->freezer = CGROUP_FREEZER_BESIDE; /* cgroups_open() falls back to v1 where the kernel is too old */
    if (out->layout != CGROUP_V2)
        return;
    out->freezer = CGROUP_FREEZER_V2;
    out->base[CGROUP_FREEZER][0] = '\0';
    while (v2_controllers.len && v2_controllers.at[v2_controllers.len - 1] == '\n')
        v2_controllers.len--;
    for (int i = 0; i < CGROUP_CONTROL_COUNT; i++)
        if (list_has(v2_controllers, ' ', str_from(cgroup_control_name[i])))
            memcpy(out->base[i], out->v2_mount, sizeof out->base[i]);
}

bool cgroup_detect(struct cgroup_report *out, struct err *err)
{
    auto_free char *mountinfo = NULL, *own = NULL, *controllers = NULL;
    size_t mountinfo_len, own_len, controllers_len = 0;

    if (!fd_read_file(AT_FDCWD, "/proc/self/mountinfo", PROC_FILE_BYTES, &mountinfo, &mountinfo_len, err) ||
        !fd_read_file(AT_FDCWD, "/proc/self/cgroup", PROC_FILE_BYTES, &own, &own_len, err))
        return err_wrap(err, "detect cgroups");
    cgroup_read_report(str_of(mountinfo, mountinfo_len), str_of(own, own_len), STR(""), out);
    if (out->layout != CGROUP_V2)
        return true;
    /* What v2 offers stands in a file at its root; where that is we know only now. */
    char path[LIMIT_PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/cgroup.controllers", out->v2_mount);
    if (!fd_read_file(AT_FDCWD, path, 4096, &controllers, &controllers_len, err))
        return err_wrap(err, "detect cgroups");
    cgroup_read_report(str_of(mountinfo, mountinfo_len), str_of(own, own_len), str_of(controllers, controllers_len),
                       out);
    return true;
}

void cgroup_missing(const struct cgroup_report *report, char *room, size_t room_size)
{
    size_t len = 0;

    room[0] = '\0';
    for (int i = 0; i < CGROUP_CONTROL_COUNT; i++)
        if (!report->base[i][0] && len < room_size)
            len += (size_t)snprintf(room + len, room_size - len, "%s%s", len ? ", " : "", cgroup_control_name[i]);
}

/* ---- values ---- */

static void knob(struct cgroup_knob out[CGROUP_KNOBS_MAX], size_t *count, enum cgroup_control control, const char *file,
                 bool may_be_missing, const char *format, uint64_t value)
{
    struct cgroup_knob *added = &out[(*count)++];

    added->control = control;
    added->file = file;
    added->may_be_missing = may_be_missing;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(added->value, sizeof added->value, format, value);
#pragma GCC diagnostic pop
}

size_t cgroup_knobs(enum cgroup_layout layout, const struct cgroup_limits *limits,
                    struct cgroup_knob out[CGROUP_KNOBS_MAX])
{
    size_t count = 0;
    /* A tenth of a second is the kernel's own period: shorter ones cost more switches, longer ones stutter. */
    uint64_t quota_us = (uint64_t)limits->cpu_millis * 100;

    if (layout == CGROUP_V2) {
        knob(out, &count, CGROUP_MEMORY, "memory.max", false, "%" PRIu64, limits->memory_bytes);
        knob(out, &count, CGROUP_MEMORY, "memory.swap.max", true, "%" PRIu64, 0);
        knob(out, &count, CGROUP_CPU, "cpu.max", false, "%" PRIu64 " 100000", quota_us);
        knob(out, &count, CGROUP_PIDS, "pids.max", false, "%" PRIu64, limits->pids);
        return count;
    }
    knob(out, &count, CGROUP_MEMORY, "memory.limit_in_bytes", false, "%" PRIu64, limits->memory_bytes);
    /* Memory and swap together; after the line above, or the kernel refuses it as the smaller of the two. */
    knob(out, &count, CGROUP_MEMORY, "memory.memsw.limit_in_bytes", true, "%" PRIu64, limits->memory_bytes);
    /*
     * Buffers of TCP sockets have a counter of their own on v1, without a limit by default, and all of a machine's share
     * one pool: a guest that fills its sockets and never reads would starve all others. On v2 they are memory.
     */
    knob(out, &count, CGROUP_MEMORY, "memory.kmem.tcp.limit_in_bytes", true, "%" PRIu64, limits->memory_bytes / 8);
    /* No cpu.cfs_period_us: a new cgroup has that period, and to write it takes longer the more cgroups there are. */
    knob(out, &count, CGROUP_CPU, "cpu.cfs_quota_us", false, "%" PRIu64, quota_us);
    knob(out, &count, CGROUP_PIDS, "pids.max", false, "%" PRIu64, limits->pids);
    return count;
}

/* ---- our own directories ---- */

static int trees(const struct cgroups *cgroups)
{
    if (cgroups->report.layout == CGROUP_V2)
        return 1;
    return cgroups->report.freezer == CGROUP_FREEZER_NONE ? CGROUP_CONTROL_COUNT : CGROUP_TREE_COUNT;
}

static int tree_of(const struct cgroups *cgroups, enum cgroup_control control)
{
    return cgroups->report.layout == CGROUP_V2 ? 0 : (int)control;
}

/* The tree in which to look for the processes of a leaf: they are the same in all. */
static int holding_tree(const struct cgroups *cgroups)
{
    return tree_of(cgroups, CGROUP_PIDS);
}

#define ENABLE_ALL STR("+memory +cpu +pids")

static bool open_tree_dir(struct cgroups *cgroups, int tree, struct err *err)
{
    const char *base = cgroups->report.base[tree];
    auto_close int base_fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (base_fd < 0)
        return err_sys(err, "open cgroup %s", base);
    /* Each level of v2 passes on what the level above it has switched on. */
    if (cgroups->report.layout == CGROUP_V2 && !fd_write_file(base_fd, "cgroup.subtree_control", ENABLE_ALL, err))
        return err_wrap(err, "switch controllers on in %s", base);
    if (mkdirat(base_fd, cgroups->name, 0755) < 0 && errno != EEXIST)
        return err_sys(err, "make cgroup %s/%s", base, cgroups->name);
    cgroups->fds[tree] = openat(base_fd, cgroups->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cgroups->fds[tree] < 0)
        return err_sys(err, "open cgroup %s/%s", base, cgroups->name);
    if (cgroups->report.layout == CGROUP_V2 &&
        !fd_write_file(cgroups->fds[tree], "cgroup.subtree_control", ENABLE_ALL, err))
        return err_wrap(err, "switch controllers on in %s/%s", base, cgroups->name);
    return true;
}

/* One line a place: the path of our own directory there. */
static void remember_old(struct cgroups *cgroups, struct str path)
{
    char room[LIMIT_PATH_BYTES];
    struct err ignored; /* a path that is none is not ours */

    if (cgroups->count == TREES_MAX || !str_to_path(path, room, sizeof room, &ignored))
        return;
    for (int tree = 0; tree < trees(cgroups); tree++) {
        char now[LIMIT_PATH_BYTES + 80];
        (void)snprintf(now, sizeof now, "%s/%s", cgroups->report.base[tree], cgroups->name);
        if (str_eq(path, str_from(now)))
            return;
    }
    /* Empty or gone: nothing to remember. */
    if (rmdir(room) == 0)
        return;
    int fd = open(room, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    cgroups->old_paths[cgroups->count] = mem_copy_text(room);
    cgroups->fds[cgroups->count++] = fd;
}

/* Before anything is made in a place, it is on record. */
static bool keep_record(struct cgroups *cgroups, int record_fd, struct err *err)
{
    auto_free char *text = NULL;
    auto_buf struct buf out = buf_make(NULL, RECORD_BYTES);
    size_t len;

    if (fd_read_file(record_fd, "cgroups", RECORD_BYTES, &text, &len, err)) {
        struct str rest = str_of(text, len), line;
        while (rest.len && str_cut(&rest, '\n', &line))
            remember_old(cgroups, line);
    } else if (err->sys != ENOENT) {
        return err_wrap(err, "cgroups of earlier runs");
    }
    for (int tree = 0; tree < trees(cgroups); tree++)
        buf_format(&out, "%s/%s\n", cgroups->report.base[tree], cgroups->name);
    for (int i = trees(cgroups); i < cgroups->count; i++)
        buf_format(&out, "%s\n", cgroups->old_paths[i]);
    if (out.overflowed)
        return err_set(err, ERR_LIMIT, "too many cgroups of earlier runs");
    return fd_update_file(record_fd, "cgroups", buf_str(&out), 0600, err);
}

/* A directory there can be made, and has what we need. */
static bool freezer_works(const char *base, const char *name, const char *file)
{
    char path[LIMIT_PATH_BYTES + 128], probe[LIMIT_PATH_BYTES + 64];

    (void)snprintf(probe, sizeof probe, "%s/%s", base, name);
    if (mkdir(probe, 0755) < 0 && errno != EEXIST)
        return false;
    (void)snprintf(path, sizeof path, "%s/%s", probe, file);
    if (access(path, W_OK) == 0)
        return true;
    (void)rmdir(probe); /* unless an earlier keeper has left something there */
    return false;
}

/*
 * The v2 tree needs Linux 5.7, which also lets a process be born in a cgroup. There is no other sign of that than
 * cgroup.kill (5.14) below the root; kernels in between have the v1 controller mounted, or pause nothing.
 */
static void choose_freezer(struct cgroup_report *report, const char *name, bool old_freezer)
{
    char *base = report->base[CGROUP_FREEZER];
    char v1[LIMIT_PATH_BYTES];

    if (report->freezer == CGROUP_FREEZER_V2)
        return;
    memcpy(v1, base, sizeof v1);
    if (report->freezer == CGROUP_FREEZER_BESIDE && !old_freezer &&
        freezer_works(report->v2_mount, name, "cgroup.kill")) {
        memcpy(base, report->v2_mount, sizeof report->base[CGROUP_FREEZER]);
        return;
    }
    report->freezer = v1[0] && freezer_works(v1, name, "freezer.state") ? CGROUP_FREEZER_V1 : CGROUP_FREEZER_NONE;
}

struct cgroups *cgroups_open(const char *name, int record_fd, bool old_freezer, struct err *err)
{
    struct cgroups *cgroups = NEW(struct cgroups);
    char missing[64];

    for (int i = 0; i < TREES_MAX; i++)
        cgroups->fds[i] = -1;
    (void)snprintf(cgroups->name, sizeof cgroups->name, "%s", name);
    if (!cgroup_detect(&cgroups->report, err))
        goto failed;
    cgroup_missing(&cgroups->report, missing, sizeof missing);
    if (missing[0]) {
        (void)err_set(err, ERR_UNAVAILABLE, "the kernel offers no cgroup controller for: %s", missing);
        goto failed;
    }
    choose_freezer(&cgroups->report, name, old_freezer);
    cgroups->count = trees(cgroups);
    if (record_fd >= 0 && !keep_record(cgroups, record_fd, err))
        goto failed;
    for (int tree = 0; tree < trees(cgroups); tree++)
        if (!open_tree_dir(cgroups, tree, err))
            goto failed;
    return cgroups;
failed:
    cgroups_close(cgroups);
    return NULL;
}

void cgroups_close(struct cgroups *cgroups)
{
    if (!cgroups)
        return;
    for (int i = 0; i < TREES_MAX; i++) {
        fd_close(&cgroups->fds[i]);
        free(cgroups->old_paths[i]);
    }
    free(cgroups);
}

void cgroups_remove(struct cgroups *cgroups)
{
    if (!cgroups)
        return;
    for (int tree = 0; tree < trees(cgroups); tree++) {
        char path[LIMIT_PATH_BYTES + 80];
        (void)snprintf(path, sizeof path, "%s/%s", cgroups->report.base[tree], cgroups->name);
        (void)rmdir(path); /* stays while a sandbox is in it */
    }
    for (int i = trees(cgroups); i < cgroups->count; i++)
        (void)rmdir(cgroups->old_paths[i]);
    cgroups_close(cgroups);
}

const struct cgroup_report *cgroups_report(const struct cgroups *cgroups)
{
    return &cgroups->report;
}

/* ---- one sandbox ---- */

/* In the freezer's tree a sandbox is one directory. */
static bool has_leaves(int tree)
{
    return tree != CGROUP_FREEZER;
}

bool cgroup_has_guestd_leaf(const struct cgroups *cgroups)
{
    return cgroups->report.layout == CGROUP_V2;
}

/* Where guestd is, below <id>. */
static const char *guestd_place(const struct cgroups *cgroups)
{
    return cgroup_has_guestd_leaf(cgroups) ? "guestd" : ".";
}

static bool make_leaf(struct cgroups *cgroups, int tree, const char *id, const char *leaf, struct err *err)
{
    char path[LIMIT_ID_BYTES + 16];

    (void)snprintf(path, sizeof path, "%s/%s", id, leaf);
    return mkdirat(cgroups->fds[tree], path, 0755) == 0 || err_sys(err, "make cgroup %s", path);
}

static bool make_leaves(struct cgroups *cgroups, int tree, const char *id, struct err *err)
{
    if (mkdirat(cgroups->fds[tree], id, 0755) < 0)
        return err_sys(err, "make cgroup %s", id);
    if (!has_leaves(tree))
        return true;
    return (!cgroup_has_guestd_leaf(cgroups) || make_leaf(cgroups, tree, id, "guestd", err)) &&
           make_leaf(cgroups, tree, id, "user", err);
}

static bool set_limits(struct cgroups *cgroups, const char *id, const char *leaf, const struct cgroup_limits *limits,
                       struct err *err)
{
    struct cgroup_knob knobs[CGROUP_KNOBS_MAX];
    size_t count = cgroup_knobs(cgroups->report.layout, limits, knobs);

    for (size_t i = 0; i < count; i++) {
        char path[LIMIT_ID_BYTES + 64];
        (void)snprintf(path, sizeof path, "%s/%s/%s", id, leaf, knobs[i].file);
        int dir_fd = cgroups->fds[tree_of(cgroups, knobs[i].control)];
        if (knobs[i].may_be_missing && faccessat(dir_fd, path, F_OK, 0) < 0)
            continue;
        if (!fd_write_file(dir_fd, path, str_from(knobs[i].value), err))
            return false;
    }
    return true;
}

/* `user` never has more than its own limits, so what is left of the sum for guestd is never less than guestd's. */
static struct cgroup_limits with_guestd(const struct cgroup_limits *limits)
{
    const struct cgroup_limits *guestd = &cgroup_guestd_limits;

    return (struct cgroup_limits){ .memory_bytes = limits->memory_bytes + guestd->memory_bytes,
                                   .cpu_millis = limits->cpu_millis + guestd->cpu_millis,
                                   .pids = limits->pids + guestd->pids };
}

static bool set_all_limits(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err)
{
    const struct cgroup_limits place = cgroup_has_guestd_leaf(cgroups) ? cgroup_guestd_limits : with_guestd(limits);

    return set_limits(cgroups, id, "user", limits, err) && set_limits(cgroups, id, guestd_place(cgroups), &place, err);
}

bool cgroup_lay_out(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err)
{
    bool fine = true;

    for (int tree = 0; fine && tree < trees(cgroups); tree++)
        fine = make_leaves(cgroups, tree, id, err);
    if (fine && (cgroups->report.layout == CGROUP_V2 || set_all_limits(cgroups, id, limits, err)))
        return true;
    struct err ignored; /* nothing has ever run in there, so nothing can keep it */
    (void)!cgroup_remove(cgroups, id, &ignored);
    return err_wrap(err, "limit sandbox %s", id);
}

/* A process that was in <id> and has been waited for may count there for a moment longer. */
static bool switch_on(struct cgroups *cgroups, const char *id, struct err *err)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    char path[LIMIT_ID_BYTES + 32];

    (void)snprintf(path, sizeof path, "%s/cgroup.subtree_control", id);
    for (int i = 0; !fd_write_file(cgroups->fds[0], path, ENABLE_ALL, err); i++) {
        if (err->sys != EBUSY || i == SWITCH_TRIES)
            return false;
        (void)nanosleep(&moment, NULL);
    }
    return true;
}

bool cgroup_switch_on(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err)
{
    if (cgroups->report.layout != CGROUP_V2)
        return true;
    return (switch_on(cgroups, id, err) && set_all_limits(cgroups, id, limits, err)) ||
           err_wrap(err, "limit sandbox %s", id);
}

bool cgroup_make(struct cgroups *cgroups, const char *id, const struct cgroup_limits *limits, struct err *err)
{
    struct err ignored;

    if (!cgroup_lay_out(cgroups, id, limits, err))
        return false;
    if (cgroup_switch_on(cgroups, id, limits, err))
        return true;
    (void)!cgroup_remove(cgroups, id, &ignored); /* as above */
    return false;
}

/* NULL: above the leaves. */
static void procs_of(char *room, size_t room_size, int tree, const char *id, const char *leaf)
{
    if (has_leaves(tree) && leaf)
        (void)snprintf(room, room_size, "%s/%s/cgroup.procs", id, leaf);
    else
        (void)snprintf(room, room_size, "%s/cgroup.procs", id);
}

/* In one tree, the last: that of the freezer, or the only one. */
static bool is_born_inside(const struct cgroups *cgroups)
{
    return cgroups->report.freezer == CGROUP_FREEZER_BESIDE || cgroups->report.layout == CGROUP_V2;
}

bool cgroup_open_birth(struct cgroups *cgroups, const char *id, int *out_fd, struct err *err)
{
    *out_fd = -1;
    if (!is_born_inside(cgroups))
        return true;
    int tree = cgroups->report.layout == CGROUP_V2 ? 0 : CGROUP_FREEZER;
    *out_fd = openat(cgroups->fds[tree], id, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *out_fd >= 0 || err_sys(err, "open cgroup %s", id);
}

bool cgroup_hold(struct cgroups *cgroups, const char *id, pid_t pid, struct err *err)
{
    char path[LIMIT_ID_BYTES + 32], number[16];
    int born = is_born_inside(cgroups); /* cgroup_open_birth() */

    (void)snprintf(number, sizeof number, "%d", pid);
    /* Write all trees without a pause: on v1 only the first write waits for an RCU grace period. */
    for (int tree = 0; tree < trees(cgroups) - born; tree++) {
        procs_of(path, sizeof path, tree, id, NULL);
        if (!fd_write_file(cgroups->fds[tree], path, str_from(number), err))
            return false;
    }
    return true;
}

/* Calls fn for each process in one leaf; how many there were. */
static unsigned each_process(int dir_fd, const char *path, bool (*fn)(void *context, pid_t pid), void *context)
{
    int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    FILE *list = fd < 0 ? NULL : fdopen(fd, "r");
    unsigned count = 0;
    char line[32];

    if (!list) {
        fd_close(&fd);
        return 0; /* no leaf, no processes */
    }
    /* Line by line: the guest decides how long the list is, up to its limit of processes, and none may be missed. */
    while (fgets(line, sizeof line, list)) {
        uint64_t pid;
        /* 0 is a process of a foreign pid namespace: cannot be ours. */
        if (!str_to_u64(str_of(line, strcspn(line, "\n")), INT32_MAX, &pid) || pid == 0)
            continue;
        count++;
        if (!fn(context, (pid_t)pid))
            break;
    }
    (void)fclose(list);
    return count;
}

struct seek {
    pid_t pid;
    bool found;
};

static bool is_sought(void *context, pid_t pid)
{
    struct seek *seek = context;

    seek->found = pid == seek->pid;
    return !seek->found;
}

/*
 * Does <id> have a `user` leaf in this tree? In the freezer's it has none: there all processes of the sandbox are in <id>.
 * Not by the number of the tree: earlier keepers had freezers too, and behind trees() any tree can be one.
 */
static bool has_user_leaf(const struct cgroups *cgroups, int tree, const char *id)
{
    char path[LIMIT_ID_BYTES + 16];

    (void)snprintf(path, sizeof path, "%s/user", id);
    return faccessat(cgroups->fds[tree], path, F_OK, 0) == 0;
}

bool cgroup_holds(struct cgroups *cgroups, const char *id, pid_t pid)
{
    const char *const places[] = { guestd_place(cgroups), "guestd" }; /* the second: made by an earlier version */
    char path[LIMIT_ID_BYTES + 32];
    struct seek seek = { .pid = pid };

    for (size_t place = 0; place < COUNT_OF(places); place++) {
        (void)snprintf(path, sizeof path, "%s/%s/cgroup.procs", id, places[place]);
        for (int i = 0; i < cgroups->count && !seek.found; i++)
            if (has_user_leaf(cgroups, i, id))
                (void)each_process(cgroups->fds[i], path, is_sought, &seek);
    }
    return seek.found;
}

static bool open_leaf(struct cgroups *cgroups, const char *id, const char *leaf, int tree_count,
                      int out_fds[CGROUP_TREE_COUNT], size_t *out_count, struct err *err)
{
    char path[LIMIT_ID_BYTES + 32];
    size_t count = 0;

    for (int tree = 0; tree < tree_count; tree++) {
        procs_of(path, sizeof path, tree, id, leaf);
        int fd = openat(cgroups->fds[tree], path, O_WRONLY | O_CLOEXEC);
        if (fd < 0) {
            (void)err_sys(err, "open %s", path);
            while (count)
                fd_close(&out_fds[--count]);
            return false;
        }
        out_fds[count++] = fd;
    }
    *out_count = count;
    return true;
}

bool cgroup_open_user(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                      struct err *err)
{
    return open_leaf(cgroups, id, "user", trees(cgroups), out_fds, out_count, err);
}

bool cgroup_open_guestd(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                        struct err *err)
{
    int with_leaves = cgroups->report.layout == CGROUP_V2 ? 1 : CGROUP_CONTROL_COUNT;

    return open_leaf(cgroups, id, guestd_place(cgroups), with_leaves, out_fds, out_count, err);
}

bool cgroup_open_entry(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                       struct err *err)
{
    return open_leaf(cgroups, id, NULL, trees(cgroups) - is_born_inside(cgroups), out_fds, out_count, err);
}

bool cgroup_open_above(struct cgroups *cgroups, const char *id, int out_fds[CGROUP_TREE_COUNT], size_t *out_count,
                       struct err *err)
{
    return open_leaf(cgroups, id, NULL, cgroups->report.layout == CGROUP_V2 ? 0 : trees(cgroups), out_fds, out_count,
                     err);
}

bool cgroup_open_freezer(struct cgroups *cgroups, const char *id, int *out_fd, struct err *err)
{
    bool is_v2 = cgroups->report.freezer == CGROUP_FREEZER_V2;

    if (cgroups->report.freezer == CGROUP_FREEZER_NONE)
        return err_set(err, ERR_UNAVAILABLE, "this machine has no cgroup freezer");
    *out_fd = openat(cgroups->fds[is_v2 ? 0 : CGROUP_FREEZER], id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out_fd >= 0 || err_sys(err, "open the freezer of sandbox %s", id);
}

static int open_file(const struct cgroups *cgroups, enum cgroup_control control, const char *path, int flags)
{
    int fd = openat(cgroups->fds[tree_of(cgroups, control)], path, flags | O_CLOEXEC);

    /* Made by a keeper that was started elsewhere? No two controllers have a file of the same name. */
    for (int i = trees(cgroups); fd < 0 && errno == ENOENT && i < cgroups->count; i++)
        fd = openat(cgroups->fds[i], path, flags | O_CLOEXEC);
    return fd;
}

bool cgroup_read(const struct cgroups *cgroups, const char *id, enum cgroup_control control, const char *file,
                 char *room, size_t room_size, struct str *out_text, struct err *err)
{
    char path[LIMIT_ID_BYTES + 64];
    size_t len = 0;
    ssize_t n;

    (void)snprintf(path, sizeof path, "%s/%s", id, file);
    auto_close int fd = open_file(cgroups, control, path, O_RDONLY);
    if (fd < 0)
        return err_sys(err, "open %s", path);
    while ((n = read(fd, room + len, room_size - len)) > 0)
        if ((len += (size_t)n) == room_size)
            return err_set(err, ERR_LIMIT, "%s is longer than %zu bytes", path, room_size);
    if (n < 0)
        return err_sys(err, "read %s", path);
    *out_text = str_of(room, len);
    return true;
}

unsigned cgroup_each_user(const struct cgroups *cgroups, const char *id, bool (*fn)(void *context, pid_t pid),
                          void *context)
{
    char path[LIMIT_ID_BYTES + 32];
    unsigned count;

    (void)snprintf(path, sizeof path, "%s/user/cgroup.procs", id);
    count = each_process(cgroups->fds[holding_tree(cgroups)], path, fn, context);
    for (int i = trees(cgroups); count == 0 && i < cgroups->count; i++)
        count = each_process(cgroups->fds[i], path, fn, context);
    return count;
}

void cgroup_each_user_anywhere(const struct cgroups *cgroups, const char *id, bool (*fn)(void *context, pid_t pid),
                               void *context)
{
    char path[LIMIT_ID_BYTES + 32];

    (void)snprintf(path, sizeof path, "%s/user/cgroup.procs", id);
    for (int i = 0; i < cgroups->count; i++)
        (void)each_process(cgroups->fds[i], path, fn, context);
}

static bool kill_one(void *context, pid_t pid)
{
    (void)context;
    (void)kill(pid, SIGKILL); /* it may have gone since */
    return true;
}

/* ---- the freezer ---- */

/* A file of the sandbox's own directory in the freezer's tree, wherever a keeper has made it. */
static int open_freezer_file(const struct cgroups *cgroups, const char *id, const char *file, int flags)
{
    char path[LIMIT_ID_BYTES + 64];
    int fd = -1;

    (void)snprintf(path, sizeof path, "%s/%s", id, file);
    errno = ENOENT;
    for (int i = 0; fd < 0 && errno == ENOENT && i < cgroups->count; i++)
        fd = openat(cgroups->fds[i], path, flags | O_CLOEXEC);
    return fd;
}

/*
 * v1 and v2 by the name of the file that is there, not by today's layout: a sandbox stays in the tree in which it was
 * started. On hybrid the limits' trees have neither.
 */
static const struct {
    const char *file, *freeze, *thaw;
} freezers[] = { { "cgroup.freeze", "1", "0" }, { "freezer.state", "FROZEN", "THAWED" } };

bool cgroup_freeze(struct cgroups *cgroups, const char *id, bool freeze, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(freezers); i++) {
        const char *text = freeze ? freezers[i].freeze : freezers[i].thaw;
        auto_close int fd = open_freezer_file(cgroups, id, freezers[i].file, O_WRONLY);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0 || write(fd, text, strlen(text)) < 0)
            return err_sys(err, "write %s to %s of sandbox %s", text, freezers[i].file, id);
        return true;
    }
    if (cgroups->report.freezer == CGROUP_FREEZER_NONE)
        return err_set(err, ERR_UNAVAILABLE, "this machine has no cgroup freezer that the server can use");
    return err_set(err, ERR_UNAVAILABLE, "sandbox %s was started by a server that had no freezer", id);
}

void cgroup_let_die(struct cgroups *cgroups, const char *id)
{
    auto_close int fd = open_freezer_file(cgroups, id, "freezer.state", O_WRONLY);

    if (fd >= 0)
        (void)!write(fd, "THAWED", 6); /* what is not frozen is thawed already */
}

/* Whole, in one read; the kernel's files here are short. */
static bool read_freezer_file(const struct cgroups *cgroups, const char *id, const char *file, char *room,
                              size_t room_size, struct str *out_text)
{
    auto_close int fd = open_freezer_file(cgroups, id, file, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, room, room_size);

    if (n < 0)
        return false;
    *out_text = str_of(room, (size_t)n);
    return true;
}

static bool has_line(struct str text, struct str want)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line))
        if (str_eq(line, want))
            return true;
    return false;
}

bool cgroup_read_ice(const struct cgroups *cgroups, const char *id, enum cgroup_ice *out, struct err *err)
{
    char room[256], events_room[256];
    struct str text, events;

    /* In each: has this directory been told to, and is it done? A directory above may be frozen too, which is not ours. */
    if (read_freezer_file(cgroups, id, "cgroup.freeze", room, sizeof room, &text)) {
        *out = CGROUP_THAWED;
        if (!has_line(text, STR("1")))
            return true;
        if (!read_freezer_file(cgroups, id, "cgroup.events", events_room, sizeof events_room, &events))
            return err_sys(err, "read cgroup.events of sandbox %s", id);
        *out = has_line(events, STR("frozen 1")) ? CGROUP_FROZEN : CGROUP_FREEZING;
        return true;
    }
    if (errno == ENOENT && read_freezer_file(cgroups, id, "freezer.self_freezing", room, sizeof room, &text)) {
        *out = CGROUP_THAWED;
        if (!has_line(text, STR("1")))
            return true;
        if (!read_freezer_file(cgroups, id, "freezer.state", events_room, sizeof events_room, &events))
            return err_sys(err, "read freezer.state of sandbox %s", id);
        *out = has_line(events, STR("FROZEN")) ? CGROUP_FROZEN : CGROUP_FREEZING;
        return true;
    }
    if (errno != ENOENT)
        return err_sys(err, "read the freezer of sandbox %s", id);
    *out = CGROUP_THAWED;
    return true;
}

/* What v1 has takes a zero. */
static bool open_reclaim(const struct cgroups *cgroups, const char *id, const char *v1_file, int *out_fd,
                         const char **out_text)
{
    /* More than there can be: the kernel takes what it finds, and then says that it was less. */
    const struct {
        const char *file, *text;
    } ways[] = { { "memory.reclaim", "1T" }, { v1_file, "0" } };
    char path[LIMIT_ID_BYTES + 64];

    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", id, ways[i].file);
        *out_text = ways[i].text;
        *out_fd = open_file(cgroups, CGROUP_MEMORY, path, O_WRONLY);
        if (*out_fd >= 0)
            return true;
    }
    return false;
}

bool cgroup_open_reclaim(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text)
{
    return open_reclaim(cgroups, id, "memory.force_empty", out_fd, out_text);
}

/*
 * On v1 by a limit of zero: the kernel takes pages back until a try finds none. memory.force_empty goes on for 16 such tries as
 * long as anything is charged, and kernel objects always are: six times as much processor time. It also fetches the few pages
 * that another processor has just put aside, which a limit leaves for the next drain. The limit itself stays only where nothing
 * is charged; else the kernel refuses it.
 */
bool cgroup_open_drain(const struct cgroups *cgroups, const char *id, int *out_fd, const char **out_text)
{
    return open_reclaim(cgroups, id, "memory.limit_in_bytes", out_fd, out_text);
}

/* ---- the end ---- */

/* The directories of a sandbox, those inside others first. A child is in the freezer's before it is in a leaf. */
static const char *const parts[] = { "/guestd", "/user", "" };

unsigned cgroup_kill(struct cgroups *cgroups, const char *id)
{
    unsigned count = 0;

    for (int tree = 0; tree < cgroups->count; tree++) {
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            char path[LIMIT_ID_BYTES + 32];
            struct err ignored; /* v1, or a kernel before 5.14: one by one, as below */
            (void)snprintf(path, sizeof path, "%s%s/cgroup.kill", id, parts[i]);
            if (faccessat(cgroups->fds[tree], path, F_OK, 0) == 0)
                (void)!fd_write_file(cgroups->fds[tree], path, STR("1"), &ignored);
            (void)snprintf(path, sizeof path, "%s%s/cgroup.procs", id, parts[i]);
            count += each_process(cgroups->fds[tree], path, kill_one, NULL);
        }
    }
    cgroup_let_die(cgroups, id);
    return count;
}

static const char *oom_file(const struct cgroups *cgroups)
{
    return cgroups->report.layout == CGROUP_V2 ? "memory.events" : "memory.oom_control";
}

static uint64_t parse_oom_kills(struct str text)
{
    struct str line;
    uint64_t kills = 0;

    while (text.len && str_cut(&text, '\n', &line))
        if (str_skip(&line, STR("oom_kill ")) && !str_to_u64(line, UINT64_MAX, &kills))
            kills = 0;
    return kills;
}

uint64_t cgroup_guestd_oom_kills(const struct cgroups *cgroups, const char *id)
{
    static const char *const places[] = { "guestd", "." }; /* "." second: an earlier version made the first on v1 too */
    char file[64], room[512];
    struct str text;
    struct err ignored; /* then 0 is the answer */

    for (size_t i = 0; i < COUNT_OF(places); i++) {
        (void)snprintf(file, sizeof file, "%s/%s", places[i], oom_file(cgroups));
        if (cgroup_read(cgroups, id, CGROUP_MEMORY, file, room, sizeof room, &text, &ignored))
            return parse_oom_kills(text);
    }
    return 0;
}

/* ---- limits that change ---- */

static bool open_knob(const struct cgroups *cgroups, const char *id, const char *place, const struct cgroup_knob *knob,
                      int *out_fd, struct err *err)
{
    char path[LIMIT_ID_BYTES + 64];

    (void)snprintf(path, sizeof path, "%s/%s/%s", id, place, knob->file);
    *out_fd = open_file(cgroups, knob->control, path, O_WRONLY);
    return *out_fd >= 0 || (errno == ENOENT && knob->may_be_missing) || err_sys(err, "open %s", path);
}

bool cgroup_open_reins(const struct cgroups *cgroups, const char *id, struct cgroup_reins *out, struct err *err)
{
    struct cgroup_knob knobs[CGROUP_KNOBS_MAX];
    char path[LIMIT_ID_BYTES + 64];

    *out =
        (struct cgroup_reins){ .layout = cgroups->report.layout, .events_fd = -1, .current_fd = -1, .reclaim_fd = -1 };
    size_t count = cgroup_knobs(out->layout, &cgroup_guestd_limits, knobs); /* only their names matter */
    for (size_t i = 0; i < count; i++) {
        out->above_fds[i] = -1;
        out->count = i + 1;
        if (!open_knob(cgroups, id, "user", &knobs[i], &out->fds[i], err) ||
            (!cgroup_has_guestd_leaf(cgroups) && !open_knob(cgroups, id, ".", &knobs[i], &out->above_fds[i], err))) {
            cgroup_close_reins(out);
            return false;
        }
    }
    if (out->layout == CGROUP_V2) {
        (void)snprintf(path, sizeof path, "%s/user/memory.reclaim", id);
        out->reclaim_fd = open_file(cgroups, CGROUP_MEMORY, path, O_WRONLY); /* Linux 5.19 */
        (void)snprintf(path, sizeof path, "%s/user/memory.current", id);
        out->current_fd = open_file(cgroups, CGROUP_MEMORY, path, O_RDONLY);
    }
    if (out->layout != CGROUP_V2 || out->current_fd >= 0) {
        (void)snprintf(path, sizeof path, "%s/user/%s", id, oom_file(cgroups));
        out->events_fd = open_file(cgroups, CGROUP_MEMORY, path, O_RDONLY);
    }
    if (out->events_fd >= 0)
        return true;
    (void)err_sys(err, "open %s", path);
    cgroup_close_reins(out);
    return false;
}

void cgroup_close_reins(struct cgroup_reins *reins)
{
    for (size_t i = 0; i < reins->count; i++) {
        fd_close(&reins->fds[i]);
        fd_close(&reins->above_fds[i]);
    }
    reins->count = 0;
    fd_close(&reins->events_fd);
    fd_close(&reins->current_fd);
    fd_close(&reins->reclaim_fd);
}

static bool read_current(const struct cgroup_reins *reins, uint64_t *out, struct err *err)
{
    char room[32];
    ssize_t n = pread(reins->current_fd, room, sizeof room, 0);
    struct str text = str_of(room, n < 0 ? 0 : (size_t)n), line;

    if (n < 0)
        return err_sys(err, "read memory.current");
    return (str_cut(&text, '\n', &line) && str_to_u64(line, UINT64_MAX, out)) ||
           err_set(err, ERR_INTERNAL, "memory.current is no number");
}

/*
 * On v2 the kernel takes any limit, and kills processes until what is in use fits. So we look first, and have it take back
 * what it can without that.
 */
static bool fit_in(const struct cgroup_reins *reins, uint64_t memory_bytes, struct err *err)
{
    uint64_t used;
    char text[24];

    if (!read_current(reins, &used, err))
        return false;
    if (used <= memory_bytes)
        return true;
    int len = snprintf(text, sizeof text, "%" PRIu64, used - memory_bytes);
    (void)!pwrite(reins->reclaim_fd, text, (size_t)len, 0); /* it may be less, or there is no such file */
    if (!read_current(reins, &used, err))
        return false;
    return used <= memory_bytes || err_sys_num(err, EBUSY, "take memory back");
}

static bool write_knobs(const int *fds, const struct cgroup_knob *knobs, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        ssize_t len = (ssize_t)strlen(knobs[i].value);
        if (fds[i] >= 0 && pwrite(fds[i], knobs[i].value, (size_t)len, 0) != len)
            return err_sys(err, "write %s to %s", knobs[i].value, knobs[i].file);
    }
    return true;
}

bool cgroup_tighten(const struct cgroup_reins *reins, const struct cgroup_limits *limits, struct err *err)
{
    const struct cgroup_limits both = with_guestd(limits);
    struct cgroup_knob knobs[CGROUP_KNOBS_MAX], above[CGROUP_KNOBS_MAX];

    if (reins->layout == CGROUP_V2 && !fit_in(reins, limits->memory_bytes, err))
        return false;
    (void)cgroup_knobs(reins->layout, limits, knobs);
    (void)cgroup_knobs(reins->layout, &both, above);
    /* <id> last: the kernel lets no quota be smaller than one below it. */
    return write_knobs(reins->fds, knobs, reins->count, err) && write_knobs(reins->above_fds, above, reins->count, err);
}

uint64_t cgroup_user_oom_kills(const struct cgroup_reins *reins)
{
    char room[512];
    ssize_t n = pread(reins->events_fd, room, sizeof room, 0);

    return n < 0 ? 0 : parse_oom_kills(str_of(room, (size_t)n));
}

/* Its directories in one tree. */
static bool remove_from(const struct cgroups *cgroups, int tree, const char *id, struct err *err)
{
    bool fine = true;

    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char path[LIMIT_ID_BYTES + 16];
        (void)snprintf(path, sizeof path, "%s%s", id, parts[i]);
        if (unlinkat(cgroups->fds[tree], path, AT_REMOVEDIR) < 0 && errno != ENOENT)
            fine = err_sys(err, "remove cgroup %s", path); /* go on: the other trees can be cleared meanwhile */
    }
    return fine;
}

bool cgroup_remove(struct cgroups *cgroups, const char *id, struct err *err)
{
    bool fine = true;

    for (int tree = 0; tree < cgroups->count; tree++)
        fine = remove_from(cgroups, tree, id, err) && fine;
    return fine;
}

static bool one_is_enough(void *context, pid_t pid)
{
    (void)context;
    (void)pid;
    return false;
}

static bool is_empty(const struct cgroups *cgroups, int tree, const char *id, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char path[LIMIT_ID_BYTES + 32];
        (void)snprintf(path, sizeof path, "%s%s/cgroup.procs", id, parts[i]);
        if (each_process(cgroups->fds[tree], path, one_is_enough, NULL))
            return err_set(err, ERR_CONFLICT, "a process is left in cgroup %s%s", id, parts[i]);
    }
    return true;
}

bool cgroup_leave_memory(struct cgroups *cgroups, const char *id, struct err *err)
{
    int memory_tree = tree_of(cgroups, CGROUP_MEMORY);
    bool fine = true;

    for (int tree = 0; tree < cgroups->count; tree++)
        fine = (tree == memory_tree ? is_empty(cgroups, tree, id, err) : remove_from(cgroups, tree, id, err)) && fine;
    return fine;
}

bool cgroup_is_there(const struct cgroups *cgroups, const char *id)
{
    for (int tree = 0; tree < cgroups->count; tree++)
        if (faccessat(cgroups->fds[tree], id, F_OK, 0) == 0)
            return true;
    return false;
}

void cgroups_walk(struct cgroups *cgroups, void (*fn)(void *context, const char *id), void *context)
{
    for (int tree = 0; tree < cgroups->count; tree++) {
        int fd = openat(cgroups->fds[tree], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir) {
            fd_close(&fd);
            continue; /* the directory we hold is gone: so is all that was in it */
        }
        for (struct dirent *entry; (entry = readdir(dir));)
            if (entry->d_type == DT_DIR && entry->d_name[0] != '.' && strlen(entry->d_name) < LIMIT_ID_BYTES)
                fn(context, entry->d_name);
        (void)closedir(dir);
    }
}
