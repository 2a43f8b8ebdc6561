/*
 * How an image is made, in the helper: everything inside stands still. The helper looks at what the processes have open and
 * mapped that is not of the sandbox's own mounts, because CRIU must be told of each such file: guestd's program and its
 * cgroup files, which are keeper's; and the programs and libraries of interpreters that came from a zygote outside. Then it
 * runs CRIU, which leaves the sandbox frozen, and writes down what it has found (image.h).
 *
 * CRIU thaws the cgroup once it has stopped each process by itself, and freezes it again at its end. If it is killed in
 * between, because it took too long or the helper has died, the processes run as soon as it is gone. So a pipe that only
 * the two have tells when both are gone, and then the sandbox is brought to where keeper has it: a freeze before that could
 * be undone by the last thing that CRIU does.
 * TCP connections that it has put into the kernel's repair mode stay in it: programs cannot use them any more.
 *
 * No network is dumped: it is set up anew at a restore. TCP connections inside are kept; those to the outside end when a
 * restored process uses them.
 */
#include "isolation/native/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/child.h"
#include "isolation/native/criu.h"
#include "isolation/native/helper.h"
#include "isolation/native/image.h"
#include "isolation/native/room.h"
#include "isolation/native/usage.h"

enum {
    MOUNTINFO_BYTES = 1 << 20,
    MOUNTS_MAX = 1024, /* a sandbox has about thirty, and cannot make more */
    LINK_BYTES = LIMIT_PATH_BYTES,
    STATUS_BYTES = 8192,
    MAPS_BYTES = 1 << 20, /* ten thousand mappings */
};

/* Under way; keeper's. */
struct checkpoint {
    struct box *box;
    struct helper *helper;
    int dir_fd, freezer_fd, image_fd;
    int alive_fd, life_fd; /* a pipe: life_fd is the helper's and CRIU's */
    uint32_t owner, layer_count;
    uint64_t used_bytes; /* what its cgroup says: with the files in memory, without what it shares with a zygote */
    checkpoint_fn *done; /* NULL: was called */
    void *context;
    struct watch *gone; /* of alive_fd, once it has failed */
    struct err why;     /* …because of this */
    bool is_freezing;
};

/* ---- in the helper: what is from outside ---- */

struct look {
    pid_t pid; /* of guestd */
    struct image *image;
    uint64_t mounts[MOUNTS_MAX];
    size_t mount_count;
    dev_t guestd_device; /* of its program */
    ino_t guestd_inode;
    uint64_t memory_bytes; /* of all processes */
    struct err *err;
};

static bool is_inside(const struct look *look, uint64_t mount_id)
{
    for (size_t i = 0; i < look->mount_count; i++)
        if (look->mounts[i] == mount_id)
            return true;
    return false;
}

/*
 * A line is "91 95 0:44 / /dev ro,nosuid - tmpfs dev rw". Ours are the mounts of the tmpfs with the devices: /dev itself, and
 * the covers of what /proc must not show.
 */
static bool take_mount(struct look *look, struct str line)
{
    struct str id, word, root, point, type, source;
    char where[LINK_BYTES], path[LINK_BYTES];
    uint64_t number;

    if (!str_cut(&line, ' ', &id) || !str_to_u64(id, UINT64_MAX, &number) || !str_cut(&line, ' ', &word) ||
        !str_cut(&line, ' ', &word) || !str_cut(&line, ' ', &root) || !str_cut(&line, ' ', &point))
        return err_set(look->err, ERR_INTERNAL, "the sandbox's list of mounts cannot be read");
    do {
        if (!line.len || !str_cut(&line, ' ', &word))
            return err_set(look->err, ERR_INTERNAL, "the sandbox's list of mounts cannot be read");
    } while (!str_eq(word, STR("-")));
    if (!str_cut(&line, ' ', &type) || !str_cut(&line, ' ', &source) || look->mount_count == MOUNTS_MAX)
        return err_set(look->err, ERR_INTERNAL, "the sandbox's list of mounts cannot be read");
    look->mounts[look->mount_count++] = number;
    if (!str_eq(type, STR("tmpfs")) || !str_eq(source, STR("dev")))
        return true;
    if (!str_to_path(point, where, sizeof where, look->err) || !str_to_path(root, path, sizeof path, look->err))
        return false;
    return image_add(look->image, &(struct image_part){ .from = IMAGE_MOUNT, .where = where, .path = path }, look->err);
}

static bool look_at_mounts(struct look *look)
{
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    struct str line;

    (void)snprintf(path, sizeof path, "/proc/%d/mountinfo", look->pid);
    if (!fd_read_file(AT_FDCWD, path, MOUNTINFO_BYTES, &text, &len, look->err))
        return false;
    for (struct str rest = str_of(text, len); rest.len && str_cut(&rest, '\n', &line);)
        if (!take_mount(look, line))
            return false;
    return true;
}

/* From "mnt_id:\t91" in a file of fdinfo. */
static bool read_mount_id(const char *path, uint64_t *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;
    struct str line, rest;

    if (!fd_read_file(AT_FDCWD, path, 64 * 1024, &text, &len, err))
        return false;
    for (rest = str_of(text, len); rest.len && str_cut(&rest, '\n', &line);)
        if (str_skip(&line, STR("mnt_id:")) && str_to_u64(str_trim(line), UINT64_MAX, out))
            return true;
    return err_set(err, ERR_INTERNAL, "%s has no mount", path);
}

/* An open file, or a mapped one. `number` is that of a descriptor of guestd's, else -1. */
static bool take_file(struct look *look, int fd, const char *path, uint64_t mount_id, int number)
{
    struct image_part part = { .from = IMAGE_FROM_COUNT, .mount_id = mount_id };
    char link[LINK_BYTES];
    struct statfs fs;
    struct stat st;

    if (is_inside(look, mount_id))
        return true;
    if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
        return err_sys(look->err, "look at a file that the sandbox has open");
    if (!S_ISREG(st.st_mode) || image_has_file(look->image, mount_id, st.st_ino))
        return true;
    part.inode = st.st_ino;
    if (st.st_dev == look->guestd_device && st.st_ino == look->guestd_inode) {
        part.from = IMAGE_GUESTD;
    } else if ((fs.f_type == CGROUP_SUPER_MAGIC || fs.f_type == CGROUP2_SUPER_MAGIC) && number >= GUESTD_CGROUP_FD) {
        part.from = IMAGE_CGROUP;
        part.number = (uint64_t)(number - GUESTD_CGROUP_FD);
    } else if (fs.f_type == OVERLAYFS_SUPER_MAGIC || (fs.f_type == TMPFS_MAGIC && st.st_uid == 0)) {
        ssize_t len = readlink(path, link, sizeof link - 1);
        if (len <= 0)
            return err_sys(look->err, "look at a program's file");
        link[len] = '\0';
        if (fs.f_type == OVERLAYFS_SUPER_MAGIC) {
            part.from = IMAGE_FILE;
            part.size = (uint64_t)st.st_size;
            part.changed_ns = image_changed_ns(&st);
            part.path = link;
        } else if (strcmp(link, "/" NATIVE_ENTER) == 0) {
            part.from = IMAGE_ENTER; /* perhaps of an earlier keeper, in another file system of that kind */
        }
    }
    /* Anything else is memory that has no file (memfd, /dev/shm of the kernel's), or CRIU says what it cannot keep. */
    return part.from == IMAGE_FROM_COUNT || image_add(look->image, &part, look->err);
}

/* Is there nothing to do about it? An interpreter maps hundreds of files, so with one call for each. */
static bool is_settled(const struct look *look, const char *path)
{
    struct statx st;

    return statx(AT_FDCWD, path, 0, STATX_TYPE | STATX_INO | STATX_MNT_ID, &st) == 0 && st.stx_mask & STATX_MNT_ID &&
           (is_inside(look, st.stx_mnt_id) || !S_ISREG(st.stx_mode) ||
            image_has_file(look->image, st.stx_mnt_id, st.stx_ino));
}

/* By a path of /proc that leads to the file itself. */
static bool look_at_path(struct look *look, const char *path)
{
    char info[64];
    uint64_t mount_id;

    if (is_settled(look, path))
        return true;
    auto_close int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ||
               err_sys(look->err, "open a file that the sandbox has open"); /* a kernel thread, a zombie */
    (void)snprintf(info, sizeof info, "/proc/self/fdinfo/%d", fd);
    return read_mount_id(info, &mount_id, look->err) && take_file(look, fd, path, mount_id, -1);
}

static bool each_name(struct look *look, const char *dir_path,
                      bool (*fn)(struct look *look, const char *dir, const char *name))
{
    DIR *dir = opendir(dir_path);
    bool fine = true;

    if (!dir)
        return errno == ENOENT || errno == ESRCH || err_sys(look->err, "look through %s", dir_path);
    for (struct dirent *entry; fine && (entry = readdir(dir));)
        fine = entry->d_name[0] == '.' || fn(look, dir_path, entry->d_name);
    (void)closedir(dir);
    return fine;
}

static bool look_at_mapping(struct look *look, const char *dir, const char *name)
{
    char path[96];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return look_at_path(look, path);
}

static struct str without_zeros(struct str hex)
{
    while (hex.len > 1 && hex.at[0] == '0')
        hex = str_of(hex.at + 1, hex.len - 1);
    return hex;
}

/*
 * A line is "7f8d31148000-7f8d3114a000 r-xp 0000c000 00:2b 2    /guestd". The mappings of a file follow each other, and what
 * comes after the offset is the same: it is enough to look at the first of them.
 */
static bool look_at_maps(struct look *look, pid_t pid, struct str maps)
{
    char path[96];
    struct str line, from, to, word, before = STR("");

    while (maps.len && str_cut(&maps, '\n', &line)) {
        if (!str_cut(&line, '-', &from) || !str_cut(&line, ' ', &to) || !str_cut(&line, ' ', &word) ||
            !str_cut(&line, ' ', &word))
            return err_set(look->err, ERR_INTERNAL, "a process's list of mappings cannot be read");
        bool is_new = !str_eq(line, before) && !str_starts(line, STR("00:00 0 ")); /* no file */
        before = line;
        from = without_zeros(from);
        to = without_zeros(to);
        (void)snprintf(path, sizeof path, "/proc/%d/map_files/%.*s-%.*s", pid, (int)MIN(from.len, 16), from.at,
                       (int)MIN(to.len, 16), to.at);
        if (is_new && !look_at_path(look, path))
            return false;
    }
    return true;
}

static bool look_at_mappings(struct look *look, pid_t pid)
{
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    struct err ignored; /* it is longer, or the process has gone */

    (void)snprintf(path, sizeof path, "/proc/%d/maps", pid);
    if (fd_read_file(AT_FDCWD, path, MAPS_BYTES, &text, &len, &ignored))
        return look_at_maps(look, pid, str_of(text, len));
    (void)snprintf(path, sizeof path, "/proc/%d/map_files", pid);
    return each_name(look, path, look_at_mapping);
}

static bool look_at_descriptor(struct look *look, const char *dir, const char *name)
{
    char path[96], own[64];
    struct stat st;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)snprintf(own, sizeof own, "/proc/%d/fd", look->pid);
    /* First without opening it: most are sockets and pipes. */
    if (fstatat(AT_FDCWD, path, &st, 0) < 0)
        return errno == ENOENT || err_sys(look->err, "look at a file that the sandbox has open");
    if (!S_ISREG(st.st_mode))
        return true;
    auto_close int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return err_sys(look->err, "open a file that the sandbox has open");
    char info[64];
    uint64_t mount_id;
    (void)snprintf(info, sizeof info, "/proc/self/fdinfo/%d", fd);
    return read_mount_id(info, &mount_id, look->err) &&
           take_file(look, fd, path, mount_id, strcmp(dir, own) == 0 ? atoi(name) : -1);
}

/*
 * What of it has no file, swapped out or not: it is in the image. One that has gone has none. And CRIU traces each process,
 * which one that is traced already does not allow: it would try for ten seconds.
 */
static bool look_at_status(struct look *look, pid_t pid)
{
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    struct str line, rest;
    uint64_t kib;
    struct err ignored;

    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (!fd_read_file(AT_FDCWD, path, STATUS_BYTES, &text, &len, &ignored))
        return true;
    for (rest = str_of(text, len); rest.len && str_cut(&rest, '\n', &line);) {
        if ((str_skip(&line, STR("RssAnon:")) || str_skip(&line, STR("VmSwap:"))) && line.len > 3 &&
            str_to_u64(str_trim(str_of(line.at, line.len - 3)), UINT64_MAX >> 20, &kib)) /* "  1234 kB" */
            look->memory_bytes += kib << 10;
        else if (str_skip(&line, STR("TracerPid:")) && !str_eq(str_trim(line), STR("0")))
            return err_set(look->err, ERR_INVALID,
                           "cannot be kept with its memory: a process is being debugged; without memory "
                           "(mode='filesystem') it works");
    }
    return true;
}

static bool look_at_process(struct look *look, pid_t pid)
{
    char path[64];

    if (!look_at_status(look, pid))
        return false;
    (void)snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (!look_at_path(look, path))
        return false;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", pid);
    if (!each_name(look, path, look_at_descriptor))
        return false;
    return look_at_mappings(look, pid);
}

static bool look_at_list(struct look *look, const char *path)
{
    FILE *list = fopen(path, "re");
    char line[32];
    bool fine = true;

    if (!list)
        return errno == ENOENT || err_sys(look->err, "list the sandbox's processes");
    while (fine && fgets(line, sizeof line, list)) {
        int pid = atoi(line);
        fine = pid <= 0 || pid == look->pid || look_at_process(look, pid);
    }
    (void)fclose(list);
    return fine;
}

/* guestd first: its descriptors have numbers that mean something. On v2 the freezer's directory has the leaves in it. */
static bool look_at_processes(struct look *look)
{
    static const char *const lists[] = { CRIU_FREEZER "/cgroup.procs", CRIU_FREEZER "/guestd/cgroup.procs",
                                         CRIU_FREEZER "/user/cgroup.procs" };
    bool fine = look_at_process(look, look->pid);

    for (size_t i = 0; fine && i < COUNT_OF(lists); i++)
        fine = look_at_list(look, lists[i]);
    return fine;
}

static bool look_at_guestd(struct look *look)
{
    char path[64];
    struct stat st;

    (void)snprintf(path, sizeof path, "/proc/%d/exe", look->pid);
    if (stat(path, &st) < 0)
        return err_sys(look->err, "look at guestd");
    look->guestd_device = st.st_dev;
    look->guestd_inode = st.st_ino;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", look->pid, GUESTD_HANDOVER_FD);
    if (stat(path, &st) < 0)
        return err_sys(look->err, "look at guestd's socket");
    if (!S_ISSOCK(st.st_mode))
        return err_set(look->err, ERR_INTERNAL, "guestd has no socket for handovers");
    return image_add(look->image, &(struct image_part){ .from = IMAGE_SOCKET, .number = st.st_ino }, look->err);
}

/* ---- in the helper: the dump ---- */

static void add_externals(struct criu_args *args, const struct image *image)
{
    for (size_t i = 0; i < image->count; i++) {
        const struct image_part *part = &image->parts[i];
        if (part->from == IMAGE_SOCKET)
            continue;
        criu_arg(args, "--external");
        if (part->from == IMAGE_MOUNT)
            criu_arg(args, "mnt[%s]:%s", part->where, part->where);
        else
            criu_arg(args, "file[%" PRIx64 ":%" PRIx64 "]", part->mount_id, part->inode);
    }
}

static bool dump(const struct helper_voice *voice, const struct checkpoint *checkpoint, const struct image *image,
                 struct err *err)
{
    struct criu_args args;

    criu_args_init(&args);
    static const char *const options[] = {
        "criu",
        "dump",
        "--images-dir",
        CRIU_IMAGE,
        "--work-dir",
        "/run",
        "--log-file",
        CRIU_LOG,
        "-v2",
        /* It stands still before, and afterwards as well. */
        "--freeze-cgroup",
        CRIU_FREEZER,
        "--leave-running",
        /* Its network is made anew, its place in the cgroups is keeper's business. */
        "--network-lock",
        "skip",
        "--empty-ns",
        "net",
        "--tcp-established",
        "--manage-cgroups=ignore",
        "--file-locks",
        "--force-irmap",
        "--irmap-scan-path",
        "/home",
        "--irmap-scan-path",
        "/tmp",
    };
    for (size_t i = 0; i < COUNT_OF(options); i++)
        criu_arg(&args, "%s", options[i]);
    criu_arg(&args, "--ghost-limit");
    criu_arg(&args, "%d", LIMIT_GHOST_BYTES);
    criu_arg(&args, "--tree");
    criu_arg(&args, "%d", checkpoint->box->pid);
    add_externals(&args, image);
    const struct criu_run run = { .args = &args,
                                  .dumps = checkpoint->box->pid,
                                  .owner = checkpoint->owner,
                                  .until_ms = clock_mono_ms() + checkpoint->box->native->memory.dump_ms,
                                  .keeper_fd = helper_keeper_fd(voice) };
    bool fine = criu_run(&run, err);
    criu_args_done(&args);
    return fine;
}

static bool write_image(const struct image *image, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, LIMIT_IMAGE_TEXT_BYTES);
    auto_close int fd = open(CRIU_IMAGE "/cloister", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    image_print(&text, image);
    if (text.overflowed)
        return err_set(err, ERR_LIMIT, "too many program files are in use");
    if (fd < 0 || write(fd, text.data, text.len) != (ssize_t)text.len)
        return err_sys(err, "write the image's own file");
    return true;
}

static bool copy_boot_id(pid_t pid, struct err *err)
{
    char path[64];
    auto_free char *text = NULL;
    size_t len;
    auto_close int fd = open(CRIU_IMAGE "/" IMAGE_BOOT_ID, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    (void)snprintf(path, sizeof path, "/proc/%d/root/proc/sys/kernel/random/boot_id", pid);
    if (!fd_read_file(AT_FDCWD, path, IMAGE_BOOT_ID_BYTES, &text, &len, err))
        return err_wrap(err, "the boot id inside");
    if (fd < 0 || write(fd, text, len) != (ssize_t)len)
        return err_sys(err, "write the boot id");
    return true;
}

static bool work(struct helper_voice *voice, void *context, struct err *err)
{
    struct checkpoint *checkpoint = context;
    auto_image struct image image = { .origin = checkpoint->box->native->memory.origin,
                                      .layer_count = checkpoint->layer_count };
    const struct criu_room room = { .tools_fd = checkpoint->box->native->memory.tools_fd,
                                    .known_fd = checkpoint->box->native->memory.known_fd,
                                    .image_fd = checkpoint->image_fd,
                                    .freezer_fd = checkpoint->freezer_fd,
                                    .root_fd = -1,
                                    .devices_fd = -1 };
    struct look *look = NEW(struct look);
    *look = (struct look){ .pid = checkpoint->box->pid, .image = &image, .err = err };

    bool fine = fd_set_cloexec(checkpoint->life_fd, false, err) && criu_enter(&room, err) && look_at_guestd(look) &&
                look_at_mounts(look) && look_at_processes(look) &&
                room_check_memory(checkpoint->image_fd, MAX(look->memory_bytes, checkpoint->used_bytes), err) &&
                dump(voice, checkpoint, &image, err) && write_image(&image, err) && copy_boot_id(look->pid, err);
    free(look);
    return fine;
}

/* ---- in keeper ---- */

static void checkpoint_free(struct checkpoint *checkpoint)
{
    if (checkpoint->box->checkpoint == checkpoint)
        checkpoint->box->checkpoint = NULL;
    watch_free(checkpoint->gone);
    fd_close(&checkpoint->dir_fd);
    fd_close(&checkpoint->freezer_fd);
    fd_close(&checkpoint->image_fd);
    fd_close(&checkpoint->alive_fd);
    fd_close(&checkpoint->life_fd);
    free(checkpoint);
}

/* The box may be asked for the next thing by done(). */
static void end(struct checkpoint *checkpoint, const struct err *err)
{
    checkpoint_fn *done = checkpoint->done;
    void *context = checkpoint->context;
    struct err why, left;

    if (err)
        why = *err;
    /* The disk may be full of it. */
    if (err && !trash_add(checkpoint->box->native->trash, checkpoint->dir_fd, "image.new", &left))
        log_warn("native: half an image of sandbox %s stays on disk: %s", checkpoint->box->id, err_text(&left));
    checkpoint_free(checkpoint);
    if (done)
        done(context, err ? &why : NULL);
}

static void frozen_again(void *context, const struct kept *kept, const struct err *err)
{
    struct checkpoint *checkpoint = context;

    (void)kept;
    checkpoint->is_freezing = false;
    if (err && err->kind != ERR_CONFLICT && checkpoint->box->state == BOX_RUNNING &&
        !checkpoint->box->native->is_stopping)
        log_error("native: sandbox %s runs, though it is paused: %s", checkpoint->box->id, err_text(err));
    end(checkpoint, &checkpoint->why);
}

/* Neither the helper nor CRIU is there any more. */
static void all_gone(void *context, unsigned ready)
{
    struct checkpoint *checkpoint = context;
    struct box *box = checkpoint->box;
    enum cgroup_ice ice;
    struct err err;

    (void)ready;
    watch_free(take_ptr(&checkpoint->gone));
    if (box->state == BOX_RUNNING && (!cgroup_read_ice(box->native->cgroups, box->id, &ice, &err) ||
                                      ice != (box->ice.is_frozen ? CGROUP_FROZEN : CGROUP_THAWED))) {
        if (box->ice.is_frozen) {
            box_forget_ice(box);
            checkpoint->is_freezing = true;
            box_freeze(box, frozen_again, checkpoint);
            return;
        }
        if (!cgroup_freeze(box->native->cgroups, box->id, false, &err))
            log_error("native: sandbox %s stays frozen: %s", box->id, err_text(&err));
    }
    end(checkpoint, &checkpoint->why);
}

static void fail(struct checkpoint *checkpoint, const struct err *why)
{
    checkpoint->why = *why;
    checkpoint->gone = watch_new(checkpoint->box->native->loop, checkpoint->alive_fd, all_gone, checkpoint);
    watch_want(checkpoint->gone, WATCH_READ);
}

static void ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct checkpoint *checkpoint = context;
    struct err why;

    (void)figures;
    checkpoint->helper = NULL;
    if (!err && renameat(checkpoint->dir_fd, "image.new", checkpoint->dir_fd, "image") < 0) {
        (void)err_sys(&why, "name the image");
        err = &why;
    }
    if (err)
        fail(checkpoint, err);
    else
        end(checkpoint, NULL);
}

void checkpoint_forget(struct box *box, const struct err *why)
{
    struct checkpoint *checkpoint = box->checkpoint;

    if (!checkpoint)
        return;
    checkpoint_fn *done = checkpoint->done;
    void *context = checkpoint->context;
    checkpoint->done = NULL;
    if (box->state != BOX_RUNNING || box->native->is_stopping) {
        helper_cancel(take_ptr(&checkpoint->helper));
        if (!checkpoint->is_freezing) /* else frozen_again() comes */
            checkpoint_free(checkpoint);
    } else if (checkpoint->helper) {
        helper_cancel(take_ptr(&checkpoint->helper));
        fail(checkpoint, why);
    }
    if (done)
        done(context, why);
}

static bool open_all(struct checkpoint *checkpoint, int dir_fd, struct err *err)
{
    struct native *native = checkpoint->box->native;
    int life[2];

    checkpoint->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
    if (checkpoint->dir_fd < 0)
        return err_sys(err, "keep the image's directory");
    if (!room_check(dir_fd, err))
        return false;
    if (pipe2(life, O_CLOEXEC) < 0)
        return err_sys(err, "make a pipe");
    checkpoint->alive_fd = life[0];
    checkpoint->life_fd = life[1];
    /* Of an earlier attempt. */
    if (!trash_add(native->trash, dir_fd, "image.new", err) || !trash_add(native->trash, dir_fd, "image", err))
        return false;
    if (mkdirat(dir_fd, "image.new", 0700) < 0)
        return err_sys(err, "make the image's directory");
    checkpoint->image_fd = openat(dir_fd, "image.new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    /* Processes that are being restored read it as the sandbox's root. On the host the directories above are root's. */
    if (checkpoint->image_fd < 0 || fchmod(checkpoint->image_fd, 0755) < 0)
        return err_sys(err, "open the image's directory");
    return cgroup_open_freezer(native->cgroups, checkpoint->box->id, &checkpoint->freezer_fd, err);
}

static bool read_record(struct checkpoint *checkpoint, struct err *err)
{
    struct state *state = NEW(struct state);
    auto_close int fd =
        openat(checkpoint->box->native->sandboxes_fd, checkpoint->box->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool fine = fd < 0 ? err_sys(err, "open the sandbox's directory") : state_read(fd, state, err);

    checkpoint->owner = state->owner;
    checkpoint->layer_count = state->layer_count;
    free(state);
    return fine;
}

bool box_checkpoint(struct box *box, int dir_fd, checkpoint_fn *done, void *context, struct err *err)
{
    struct native *native = box->native;
    struct checkpoint *checkpoint = NEW(struct checkpoint);
    struct usage usage;

    *checkpoint = (struct checkpoint){ .box = box,
                                       .dir_fd = -1,
                                       .freezer_fd = -1,
                                       .image_fd = -1,
                                       .alive_fd = -1,
                                       .life_fd = -1,
                                       .done = done,
                                       .context = context };
    if (usage_read(native->cgroups, box->id, box->pid, &usage, err) && open_all(checkpoint, dir_fd, err) &&
        read_record(checkpoint, err)) {
        checkpoint->used_bytes = usage.memory_used_bytes;
        struct helper_job job = { .work = work,
                                  .runs_criu = true,
                                  .ends_softly = true,
                                  .ended = ended,
                                  .context = checkpoint,
                                  .dirs = { { native->memory.tools_fd, HELPER_READ },
                                            { checkpoint->image_fd, HELPER_CHANGE },
                                            { checkpoint->freezer_fd, HELPER_CHANGE },
                                            { checkpoint->life_fd, HELPER_HOLD },
                                            /* With its lock: there is no next keeper while this one is at it. */
                                            { native->sandboxes_fd, HELPER_HOLD } },
                                  .dir_count = 5,
                                  .patience_ms = native->memory.dump_ms + HELPER_END_MS };
        if (native->memory.known_fd >= 0)
            job.dirs[job.dir_count++] = (struct helper_dir){ native->memory.known_fd, HELPER_HOLD };
        checkpoint->helper = helper_start(native->helpers, &job, err);
    }
    if (checkpoint->helper) {
        fd_close(&checkpoint->life_fd);
        box->checkpoint = checkpoint;
        return true;
    }
    checkpoint_free(checkpoint);
    return false;
}
