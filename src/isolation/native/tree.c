#include "isolation/native/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"

int tree_open(int root_fd, const char *path, struct err *err)
{
    struct open_how how = {
        .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, root_fd, path, &how, sizeof how);

    if (fd < 0)
        (void)err_sys(err, "open /%s", path);
    return fd;
}

bool tree_attach(int root_fd, int mount_fd, const char *path, struct err *err)
{
    if (mkdirat(root_fd, path, 0755) < 0 && errno != EEXIST && errno != EROFS)
        return err_sys(err, "make /%s", path);
    auto_close int place_fd = tree_open(root_fd, path, err);
    if (place_fd < 0)
        return false;
    if (move_mount(mount_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, "mount /%s", path);
    return true;
}

int tree_clone(int dir_fd, const char *path, uint64_t attributes, struct err *err)
{
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | (path[0] ? 0 : AT_EMPTY_PATH);
    int fd = open_tree(dir_fd, path, flags);
    struct mount_attr want = { .attr_set = attributes };

    if (fd >= 0 && (!attributes || mount_setattr(fd, "", AT_EMPTY_PATH, &want, sizeof want) == 0))
        return fd;
    (void)err_sys(err, "clone mount %s", path);
    fd_close(&fd);
    return -1;
}

bool tree_bind(int root_fd, const char *from, const char *path, struct err *err)
{
    auto_close int fd = tree_clone(root_fd, from, MOUNT_ATTR_NODEV, err);

    return fd >= 0 && tree_attach(root_fd, fd, path, err);
}

bool tree_mount(int root_fd, const char *type, const char *path, uint64_t attributes, const struct tree_option *options,
                size_t option_count, struct err *err)
{
    auto_close int context = fsopen(type, FSOPEN_CLOEXEC);

    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", type, 0) < 0)
        return err_sys(err, "mount %s", type);
    for (size_t i = 0; i < option_count; i++)
        if (fsconfig(context, FSCONFIG_SET_STRING, options[i].key, options[i].value, 0) < 0)
            return err_sys(err, "mount %s: %s=%s", type, options[i].key, options[i].value);
    if (fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return err_sys(err, "mount %s", type);
    auto_close int fd = fsmount(context, FSMOUNT_CLOEXEC, (unsigned)attributes);
    if (fd < 0)
        return err_sys(err, "mount %s", type);
    return tree_attach(root_fd, fd, path, err);
}

/*
 * Not chroot: with CAP_SYS_CHROOT a guest leaves one. After pivot_root(".", ".") the old root is mounted on top of the
 * new one, at the place we stand; taking it off leaves nothing of the host's tree to stand on.
 */
bool tree_pivot(int root_fd, struct err *err)
{
    if (fchdir(root_fd) < 0)
        return err_sys(err, "enter the new root");
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return err_sys(err, "pivot_root");
    if (umount2(".", MNT_DETACH) < 0)
        return err_sys(err, "let go of the host's tree");
    if (chdir("/") < 0)
        return err_sys(err, "enter /");
    return true;
}
