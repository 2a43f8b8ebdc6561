/*
 * Theory of operation: the kernel lets an idmapped mount show files under other owners. Lower and upper are cloned
 * (open_tree), idmapped with the sandbox's user namespace (mount_setattr) and given to overlay by descriptor. Kernels
 * before 6.15 take only layers that are attached somewhere; there we attach the clones in our tmpfs for a moment, mount
 * overlay beside them, clone that, and detach everything again.
 *
 * A clone that was used must end again, and the end of a mount waits for all processors (an RCU grace period: tens of
 * microseconds on an idle machine, milliseconds on a busy one). With a hundred layers that took longer than all the rest of
 * a start. But mounts of one tree end together. So detached clones are mounted one on top of the other before the lowest is
 * closed, and attached ones are below one mount, STAGE, that is detached with all of them.
 */
#include "isolation/native/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/random.h"

/* ---- our own tmpfs ---- */

#define ZYGOTE_PLACE "zygote"
#define STAGE "stage"

/* Mount points for kernels that need layers attached: one for each layer, the upper, and the overlay itself. */
static bool make_places(int scratch_fd, struct err *err)
{
    for (int i = 0; i < LIMIT_LAYERS + 2; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "l%d", i);
        if (mkdirat(scratch_fd, name, 0700) < 0)
            return err_sys(err, "make %s", name);
    }
    return true;
}

bool mounts_open(int data_fd, struct mounts *out, struct err *err)
{
    if (mkdirat(data_fd, "mnt", 0700) < 0 && errno != EEXIST)
        return err_sys(err, "make directory mnt");
    auto_close int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", "tmpfs", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "mode", "0700", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "size", "1m", 0) < 0 ||
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return err_sys(err, "make a tmpfs");
    auto_close int mount_fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    if (mount_fd < 0)
        return err_sys(err, "mount a tmpfs");
    if (move_mount(mount_fd, "", data_fd, "mnt", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach a tmpfs at mnt"); /* EINVAL: data_fd is from another mount namespace */
    if (!make_places(mount_fd, err))
        return false;
    if (mkdirat(mount_fd, ZYGOTE_PLACE, 0700) < 0 || mkdirat(mount_fd, STAGE, 0700) < 0)
        return err_sys(err, "make " ZYGOTE_PLACE " and " STAGE);
    out->scratch_fd = take_fd(&mount_fd);
    out->old_overlay = false;
    return true;
}

static void detach(int dir_fd, const char *name)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir_fd, name);
    (void)umount2(path, MNT_DETACH); /* it may never have been attached */
}

void mounts_close(struct mounts *mounts)
{
    if (mounts->scratch_fd >= 0)
        detach(mounts->scratch_fd, ".");
    fd_close(&mounts->scratch_fd);
}

/* ---- clones seen through a sandbox's ids; NULL: through ours ---- */

static bool clone_idmapped(int dir_fd, const char *name, uint64_t attributes, const struct mounts_ids *ids, int *out_fd,
                           struct err *err)
{
    auto_close int fd = open_tree(dir_fd, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    /* Private, or what is mounted on it would show wherever the data directory does. */
    struct mount_attr want = { .attr_set = attributes, .propagation = MS_PRIVATE };

    if (fd < 0)
        return err_sys(err, "clone mount %s", name);
    if (ids) {
        want.attr_set |= MOUNT_ATTR_IDMAP;
        want.userns_fd = (uint64_t)ids->userns_fd;
    }
    if (mount_setattr(fd, "", AT_EMPTY_PATH, &want, sizeof want) < 0)
        return err_sys(err, "idmap %s", name);
    *out_fd = take_fd(&fd);
    return true;
}

/* ---- devices ---- */

static const struct {
    const char *name;
    unsigned major, minor;
} devices[] = {
    { "null", 1, 3 }, { "zero", 1, 5 }, { "full", 1, 7 }, { "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 },
};

static const struct {
    const char *name, *target;
} device_links[] = {
    { "fd", "/proc/self/fd" },       { "stdin", "/proc/self/fd/0" }, { "stdout", "/proc/self/fd/1" },
    { "stderr", "/proc/self/fd/2" }, { "ptmx", "pts/ptmx" },
};

static bool make_boot_id(int dev_fd, const char *boot_id, struct err *err)
{
    auto_close int fd = openat(dev_fd, MOUNTS_BOOT_ID, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    char text[38];

    if (boot_id)
        memcpy(text, boot_id, 36);
    else
        random_uuid(text);
    text[36] = '\n';
    if (fd < 0 || fchmod(fd, 0444) < 0 || write(fd, text, 37) != 37)
        return err_sys(err, "make a boot id");
    return true;
}

static bool make_devices(int dev_fd, const char *boot_id, struct err *err)
{
    if (mkdirat(dev_fd, "pts", 0755) < 0 || mkdirat(dev_fd, MOUNTS_EMPTY, 0755) < 0)
        return err_sys(err, "make directories for devices");
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        /* chmod after: mknod's mode went through our umask. */
        if (mknodat(dev_fd, devices[i].name, S_IFCHR | 0666, makedev(devices[i].major, devices[i].minor)) < 0 ||
            fchmodat(dev_fd, devices[i].name, 0666, 0) < 0)
            return err_sys(err, "make device %s", devices[i].name);
    }
    for (size_t i = 0; i < COUNT_OF(device_links); i++)
        if (symlinkat(device_links[i].target, dev_fd, device_links[i].name) < 0)
            return err_sys(err, "make link %s", device_links[i].name);
    return make_boot_id(dev_fd, boot_id, err);
}

/*
 * A tmpfs for each sandbox: locks and watches are on files, not on mounts, so with one for all a guest would see and
 * block what its neighbours do with theirs. By us and not from inside, where no device can be made.
 */
bool mounts_devices(const struct mounts_ids *ids, const char *boot_id, int *out_fd, struct err *err)
{
    struct mount_attr want = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_IDMAP,
                               .userns_fd = (uint64_t)ids->userns_fd };
    auto_close int context = fsopen("tmpfs", FSOPEN_CLOEXEC);

    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", "dev", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "size", "64k", 0) < 0 || /* names, and one page for the boot id */
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return err_sys(err, "make a tmpfs for devices");
    auto_close int fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    if (fd < 0)
        return err_sys(err, "mount a tmpfs for devices");
    if (!make_devices(fd, boot_id, err))
        return false;
    if (mount_setattr(fd, "", AT_EMPTY_PATH, &want, sizeof want) < 0) {
        /* Before 6.3 a tmpfs cannot be idmapped. Its files then belong to user nobody, which works too. */
        want = (struct mount_attr){ .attr_set = MOUNT_ATTR_RDONLY };
        if (errno != EINVAL || mount_setattr(fd, "", AT_EMPTY_PATH, &want, sizeof want) < 0)
            return err_sys(err, "idmap a tmpfs for devices");
    }
    *out_fd = take_fd(&fd);
    return true;
}

/* ---- overlay ---- */

/*
 * Overlay writes to the upper with the credentials of the process that mounted it. Plain root has no id in an upper
 * that is idmapped for the sandbox: the work directory cannot be made, and overlay silently mounts read-only. So for
 * the length of the call our file system ids are the sandbox's root. NO_SETUID_FIXUP keeps the kernel from taking our
 * capabilities away at that change; it must not outlive the call, or a role started later would keep its own.
 */
struct borrowed_ids {
    int securebits;
};

static bool ids_borrow(struct borrowed_ids *saved, uint32_t uid_base, struct err *err)
{
    saved->securebits = prctl(PR_GET_SECUREBITS);
    if (saved->securebits < 0 || prctl(PR_SET_SECUREBITS, saved->securebits | SECBIT_NO_SETUID_FIXUP) < 0)
        return err_sys(err, "set securebits");
    (void)setfsgid(uid_base); /* they return the old id and no error: the read-only check below notices */
    (void)setfsuid(uid_base);
    return true;
}

static bool ids_return(const struct borrowed_ids *saved, struct err *err)
{
    int number = errno;

    (void)setfsuid(0);
    (void)setfsgid(0);
    /* A negative id is never valid, so this only asks. */
    if (setfsuid((uid_t)-1) != 0 || setfsgid((gid_t)-1) != 0)
        return err_set(err, ERR_INTERNAL, "cannot return to user 0");
    if (prctl(PR_SET_SECUREBITS, saved->securebits) < 0)
        return err_sys(err, "reset securebits");
    errno = number;
    return true;
}

/* The kernel's own sentence on why a mount failed, where it has one. */
static bool mount_err(struct err *err, int context_fd, const char *what)
{
    int number = errno;
    char said[128];
    ssize_t len = read(context_fd, said, sizeof said - 1);

    errno = number;
    if (len <= 0)
        return err_sys(err, "%s", what);
    said[len] = '\0';
    said[strcspn(said, "\n")] = '\0';
    return err_sys(err, "%s (%s)", what, said);
}

struct layers {
    uint32_t count;
    int lower[LIMIT_LAYERS]; /* lowest first */
    int top;                 /* holds upper/ and work/; one mount, as overlay demands */
};

/* When overlay has clones of its own. If the kernel will not, they end one by one, which only takes longer. */
static void layers_pile(const struct layers *layers)
{
    for (uint32_t i = 1; i <= layers->count; i++)
        if (move_mount(i < layers->count ? layers->lower[i] : layers->top, "", layers->lower[i - 1], "",
                       MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
            return;
}

static void layers_done(struct layers *layers)
{
    fd_close_each(layers->lower, layers->count);
    fd_close(&layers->top);
}
#define auto_layers __attribute__((cleanup(layers_done)))

/*
 * An upper may become a layer among others, or one with them (copy.h), so what it has must not depend on how this kernel
 * was built: no directories and files that are kept in part in a layer below, and no handles of files below.
 */
static const struct {
    const char *key, *value;
} behaviour[] = { { "redirect_dir", "off" }, { "metacopy", "off" }, { "index", "off" } };
#define BEHAVIOUR "redirect_dir=off,metacopy=off,index=off"

static bool set_behaviour(int context, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(behaviour); i++)
        if (fsconfig(context, FSCONFIG_SET_STRING, behaviour[i].key, behaviour[i].value, 0) < 0)
            return mount_err(err, context, behaviour[i].key);
    return true;
}

static bool overlay_detached(struct layers *layers, const struct mounts_ids *ids, int *out_fd, struct err *err)
{
    auto_close int context = fsopen("overlay", FSOPEN_CLOEXEC);
    auto_close int upper = openat(layers->top, "upper", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_close int work = openat(layers->top, "work", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct borrowed_ids saved;

    if (context < 0)
        return err_sys(err, "overlay");
    if (upper < 0 || work < 0)
        return err_sys(err, "open upper and work");
    for (uint32_t i = layers->count; i-- > 0;) /* overlay wants the uppermost first */
        if (fsconfig(context, FSCONFIG_SET_FD, "lowerdir+", NULL, layers->lower[i]) < 0)
            return mount_err(err, context, "overlay lowerdir+");
    if (fsconfig(context, FSCONFIG_SET_FD, "upperdir", NULL, upper) < 0 ||
        fsconfig(context, FSCONFIG_SET_FD, "workdir", NULL, work) < 0)
        return mount_err(err, context, "overlay upperdir");
    if (fsconfig(context, FSCONFIG_SET_STRING, "source", "overlay", 0) < 0)
        return mount_err(err, context, "overlay source");
    if (!set_behaviour(context, err))
        return false;
    /* Without it the end of every sandbox waits for a sync of the whole disk below. */
    if (fsconfig(context, FSCONFIG_SET_FLAG, "volatile", NULL, 0) < 0)
        return mount_err(err, context, "overlay volatile");
    if (!ids_borrow(&saved, ids ? ids->uid_base : 0, err))
        return false;
    int created = fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
    if (!ids_return(&saved, err))
        return false;
    if (created < 0)
        return mount_err(err, context, "overlay");
    int fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV);
    if (fd < 0)
        return mount_err(err, context, "overlay");
    *out_fd = fd;
    return true;
}

static bool attach_at(int stage_fd, int mount_fd, int place, struct err *err)
{
    char name[8];

    (void)snprintf(name, sizeof name, "l%d", place);
    if (move_mount(mount_fd, "", stage_fd, name, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach a layer");
    return true;
}

enum { PLACE_TOP = LIMIT_LAYERS, PLACE_OVERLAY };

static bool overlay_on_stage(int stage, const struct layers *layers, const struct mounts_ids *ids, int *out_fd,
                             struct err *err)
{
    auto_buf struct buf options = buf_make(NULL, 4000); /* the kernel takes a page */
    struct borrowed_ids saved;
    char target[64], place[8];

    buf_add(&options, STR("volatile," BEHAVIOUR ",lowerdir="));
    for (uint32_t i = layers->count; i-- > 0;) {
        if (!attach_at(stage, layers->lower[i], (int)i, err))
            return false;
        buf_format(&options, "/proc/self/fd/%d/l%u%s", stage, i, i ? ":" : "");
    }
    if (!attach_at(stage, layers->top, PLACE_TOP, err))
        return false;
    buf_format(&options, ",upperdir=/proc/self/fd/%d/l%d/upper,workdir=/proc/self/fd/%d/l%d/work", stage, PLACE_TOP,
               stage, PLACE_TOP);
    buf_add_char(&options, '\0');
    if (options.overflowed)
        return err_set(err, ERR_LIMIT, "too many layers for this kernel's overlay");
    (void)snprintf(target, sizeof target, "/proc/self/fd/%d/l%d", stage, PLACE_OVERLAY);
    if (!ids_borrow(&saved, ids ? ids->uid_base : 0, err))
        return false;
    int mounted = mount("overlay", target, "overlay", MS_NODEV, options.data);
    if (!ids_return(&saved, err))
        return false;
    if (mounted < 0)
        return err_sys(err, "overlay");
    (void)snprintf(place, sizeof place, "l%d", PLACE_OVERLAY);
    int fd = open_tree(stage, place, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0)
        return err_sys(err, "clone the overlay");
    *out_fd = fd;
    return true;
}

static bool overlay_attached(struct mounts *mounts, const struct layers *layers, const struct mounts_ids *ids,
                             int *out_fd, struct err *err)
{
    auto_close int stage = -1;

    if (!clone_idmapped(mounts->scratch_fd, ".", 0, NULL, &stage, err))
        return false;
    if (move_mount(stage, "", mounts->scratch_fd, STAGE, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach " STAGE);
    bool fine = overlay_on_stage(stage, layers, ids, out_fd, err);
    detach(mounts->scratch_fd, STAGE);
    return fine;
}

static bool overlay(struct mounts *mounts, int layers_fd, int sandbox_fd, const struct plan *plan,
                    const struct mounts_ids *ids, int *out_fd, struct err *err)
{
    auto_layers struct layers layers = { .top = -1 };

    for (uint32_t i = 0; i < plan->layer_count; i++) {
        if (!clone_idmapped(layers_fd, plan->layers[i], 0, ids, &layers.lower[i], err))
            return err_wrap(err, "layer %u", i);
        layers.count = i + 1;
    }
    if (!clone_idmapped(sandbox_fd, ".", 0, ids, &layers.top, err))
        return false;
    if (!mounts->old_overlay) {
        if (overlay_detached(&layers, ids, out_fd, err)) {
            layers_pile(&layers);
            return true;
        }
        /*
         * EOPNOTSUPP: before 6.5 overlay takes no descriptors. EBADF: before 6.13 none like ours, that only name a place
         * (O_PATH). EINVAL: lowerdir+ or detached layers are unknown. The layers are still detached.
         */
        if (err->sys != EINVAL && err->sys != EOPNOTSUPP && err->sys != EBADF)
            return false;
    }
    bool fine = overlay_attached(mounts, &layers, ids, out_fd, err);
    mounts->old_overlay = mounts->old_overlay || fine; /* do not try the new way each time */
    return fine;
}

bool mounts_overlay(struct mounts *mounts, int layers_fd, int sandbox_fd, const struct plan *plan,
                    const struct mounts_ids *ids, int *out_fd, struct err *err)
{
    auto_close int fd = -1;
    struct statvfs status;

    if (!overlay(mounts, layers_fd, sandbox_fd, plan, ids, &fd, err))
        return err_wrap(err, "root file system");
    if (fstatvfs(fd, &status) < 0)
        return err_sys(err, "look at the overlay");
    if (status.f_flag & ST_RDONLY)
        return err_set(err, ERR_INTERNAL, "the kernel mounted the root file system read-only");
    *out_fd = take_fd(&fd);
    return true;
}

bool mounts_unpack(struct mounts *mounts, int layers_fd, int draft_fd, const struct plan *plan, int *out_fd,
                   struct err *err)
{
    const struct mount_attr harmless = { .attr_set = MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC };
    auto_close int fd = -1;

    if (!mounts_overlay(mounts, layers_fd, draft_fd, plan, NULL, &fd, err))
        return false;
    if (mount_setattr(fd, "", AT_EMPTY_PATH, (struct mount_attr *)&harmless, sizeof harmless) < 0)
        return err_sys(err, "restrict a mount");
    *out_fd = take_fd(&fd);
    return true;
}

/* ---- a zygote's root ---- */

/* Attached, because overlay_attached() and older kernels clone only what is. */
static bool scratch_attach(struct mounts *mounts, struct err *err)
{
    auto_close int context = fsopen("tmpfs", FSOPEN_CLOEXEC);

    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", "tmpfs", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "size", MOUNTS_ZYGOTE_SIZE, 0) < 0 ||
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return err_sys(err, "make a tmpfs");
    auto_close int fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (fd < 0 || mkdirat(fd, "upper", 0755) < 0 || mkdirat(fd, "work", 0700) < 0)
        return err_sys(err, "make upper and work");
    if (move_mount(fd, "", mounts->scratch_fd, ZYGOTE_PLACE, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach a tmpfs");
    return true;
}

bool mounts_zygote(struct mounts *mounts, int layers_fd, const struct plan *plan, const struct mounts_ids *ids,
                   int *out_fd, struct err *err)
{
    const struct mount_attr tame = { .attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };

    if (!scratch_attach(mounts, err))
        return err_wrap(err, "a zygote's root");
    auto_close int place_fd = openat(mounts->scratch_fd, ZYGOTE_PLACE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int fd = -1;
    bool fine =
        place_fd < 0 ? err_sys(err, "open a tmpfs") : mounts_overlay(mounts, layers_fd, place_fd, plan, ids, &fd, err);
    fd_close(&place_fd);
    detach(mounts->scratch_fd, ZYGOTE_PLACE);
    if (!fine)
        return false;
    if (mount_setattr(fd, "", AT_EMPTY_PATH, (struct mount_attr *)&tame, sizeof tame) < 0)
        return err_sys(err, "tame a zygote's root");
    *out_fd = take_fd(&fd);
    return true;
}
