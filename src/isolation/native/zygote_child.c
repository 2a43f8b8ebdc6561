/* From keeper's fork to python3; the comment above zygote_child() says where it runs and in which order it must go. */
#include "isolation/native/zygote_child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/origins.h"
#include "isolation/native/mounts.h"
#include "isolation/native/shed.h"
#include "isolation/native/tree.h"
#include "wire/zygote.h"

enum {
    TAME = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
    FILES_MAX = 16384, /* five per sandbox; its forks have GUEST_FILES */
};

static bool enter_cgroups(const struct zygote_setup *setup, struct err *err)
{
    for (size_t i = 0; i < setup->cgroup_count; i++)
        if (write(setup->cgroup_fds[i], "0", 1) != 1)
            return err_sys(err, "enter a cgroup");
    if (unshare(CLONE_NEWCGROUP) < 0)
        return err_sys(err, "make a cgroup namespace");
    return true;
}

/*
 * Its pid namespace is the host's, which shows only here. Of the host's processes it sees those that it could trace: itself
 * and what its sandboxes run.
 */
static bool mount_proc(int root_fd, struct err *err)
{
    static const struct tree_option narrow[] = { { "hidepid", "ptraceable" }, { "subset", "pid" } };
    static const struct tree_option old[] = { { "hidepid", "2" } }; /* before 5.8 */

    return tree_mount(root_fd, "proc", "proc", TAME | MOUNT_ATTR_NOEXEC, narrow, COUNT_OF(narrow), err) ||
           tree_mount(root_fd, "proc", "proc", TAME | MOUNT_ATTR_NOEXEC, old, COUNT_OF(old), err);
}

static bool build_tree(const struct zygote_setup *setup, struct err *err)
{
    static const struct tree_option shm[] = { { "mode", "1777" }, { "size", "16m" } };
    int root_fd = setup->root_fd;

    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(err, "make its mounts private");
    if (move_mount(root_fd, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, "attach its root");
    return mount_proc(root_fd, err) && tree_attach(root_fd, setup->devices_fd, "dev", err) &&
           tree_bind(root_fd, "dev/" MOUNTS_EMPTY, "sys", err) &&
           tree_mount(root_fd, "tmpfs", "dev/shm", TAME, shm, COUNT_OF(shm), err) && tree_pivot(root_fd, err);
}

enum { ASIDE = 64 }; /* where descriptors stand while the low numbers are dealt out */

static bool arrange_descriptors(const struct zygote_setup *setup, int *report_fd, struct err *err)
{
    const struct {
        int from, to;
    } wanted[] = { { setup->control_fd, ZYGOTE_CONTROL_FD },
                   { open("/dev/null", O_RDWR | O_CLOEXEC), 1 },
                   { open("/dev/null", O_RDWR | O_CLOEXEC), 2 },
                   { setup->enter_fd, ZYGOTE_ENTER_FD },
                   { setup->report_fd, ZYGOTE_REPORT_FD } };
    int aside[COUNT_OF(wanted)];

    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        if ((aside[i] = fcntl(wanted[i].from, F_DUPFD_CLOEXEC, ASIDE)) < 0)
            return err_sys(err, "keep descriptor %d", wanted[i].to);
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        if (dup2(aside[i], wanted[i].to) < 0)
            return err_sys(err, "place descriptor %d", wanted[i].to);
    *report_fd = ZYGOTE_REPORT_FD;
    if (close_range(ZYGOTE_REPORT_FD + 1, ~0u, 0) < 0)
        return err_sys(err, "close the host's descriptors");
    return true;
}

/* Not no_new_privs: its forks run sudo inside. So nothing that the zygote can see is mounted with suid. */
static bool drop_power(const struct zygote_setup *setup, struct err *err)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[2] = { 0 };
    uid_t ids[3];

    if (!shed_capabilities(0, err) || !shed_calls(setup->filter, NULL, err))
        return false;
    if (setgroups(0, NULL) < 0 || setresgid(setup->uid, setup->uid, setup->uid) < 0 ||
        setresuid(setup->uid, setup->uid, setup->uid) < 0)
        return err_sys(err, "become user %u", setup->uid);
    if (syscall(SYS_capset, &header, none) < 0)
        return err_sys(err, "drop all capabilities");
    if (getresuid(&ids[0], &ids[1], &ids[2]) < 0 || ids[0] != setup->uid || ids[1] != setup->uid ||
        ids[2] != setup->uid || syscall(SYS_capget, &header, none) < 0 || none[0].permitted || none[1].permitted)
        return err_set(err, ERR_INTERNAL, "privileges were not dropped");
    return true;
}

static bool exec_python(struct err *err)
{
    static const char *const files[] = { "/usr/local/sbin/python3", "/usr/local/bin/python3", "/usr/sbin/python3",
                                         "/usr/bin/python3",        "/sbin/python3",          "/bin/python3" };
    const char *argv[] = { "python3", "-c", ZYGOTE_BOOT, "outside", NULL };
    /* What guestd gives to its own, before the sandbox's variables. */
    const char *environment[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                  "HOME=" ZYGOTE_HOME,
                                  "USER=" ZYGOTE_USER,
                                  "LOGNAME=" ZYGOTE_USER,
                                  "LANG=C.UTF-8",
                                  NULL };

    for (size_t i = 0; i < COUNT_OF(files); i++)
        (void)execve(files[i], (char *const *)argv, (char *const *)environment); /* writes to neither */
    return err_sys(err, "start python3");
}

static bool run(const struct zygote_setup *setup, int *report_fd, struct err *err)
{
    static const char name[] = "zygote";

    if (!enter_cgroups(setup, err) || !origins_leave(err) || !build_tree(setup, err))
        return false;
    if (sethostname(name, strlen(name)) < 0)
        return err_sys(err, "set the host name");
    return arrange_descriptors(setup, report_fd, err) && shed_limits(FILES_MAX, err) && drop_power(setup, err) &&
           exec_python(err);
}

/*
 * zygote_child() - between keeper's fork and a template's python3, outside all sandboxes.
 *   user ns   the host's, as root with all capabilities     mount ns  its own, still showing the host's tree
 *   pid ns    the host's                                    network   its own, loopback down, and so it stays
 *   ipc, uts  its own                                       cgroup    keeper's, then its own
 *   memory    a copy of keeper's, gone at exec
 *   must      pivot; close all descriptors but its own; drop capabilities; load seccomp; become its uid; in this order
 *   must not  follow a link of the template's
 */
no_return void zygote_child(const struct zygote_setup *setup)
{
    int report_fd = setup->report_fd;
    char text[256];
    struct err err;

    (void)close(setup->keeper_fd);
    (void)!run(setup, &report_fd, &err); /* it returns with an error, or not at all */
    int len = snprintf(text, sizeof text, "%c%s", ZYGOTE_FAILED, err_text(&err));
    (void)!write(report_fd, text, (size_t)MIN(len, (int)sizeof text - 1)); /* keeper may be gone */
    _exit(1);
}
