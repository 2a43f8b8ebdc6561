/*
 * Removes depth first, with one open descriptor a level. Below DEPTH levels a directory is renamed into the top instead
 * of entered, and the next pass removes it from there. So the depth of a tree costs passes, not descriptors or stack.
 */
#include "base/remove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/random.h"

enum {
    DEPTH = 64,       /* levels held open at once; deeper directories are moved to the top first */
    DEPTH_MOST = 256, /* for directories that cannot be moved: of a lower layer, or of another file system */
    PASSES_MOST = 1000,
    UNIQUE_CHARS = 16,
};

/* The result of one pass over the tree. */
struct pass {
    int top_fd;
    bool has_moved;   /* a directory was moved to the top, for the next pass */
    bool has_removed; /* at least one entry was removed */
    int error;        /* the first error */
};

static void note_error(struct pass *pass, int number)
{
    if (!pass->error && number != ENOENT)
        pass->error = number;
}

static void remove_below(struct pass *pass, int dir_fd, unsigned depth);

/* `name` is a directory, or an entry that cannot be unlinked. */
static void remove_dir(struct pass *pass, int dir_fd, const char *name, unsigned depth)
{
    char unique[UNIQUE_CHARS + 1];

    if (depth >= DEPTH) {
        random_id(unique, UNIQUE_CHARS);
        if (renameat(dir_fd, name, pass->top_fd, unique) == 0) {
            pass->has_moved = true;
            return;
        }
        if (depth >= DEPTH_MOST) {
            note_error(pass, errno);
            return;
        }
    }
    int child = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (child < 0) {
        note_error(pass, errno == ENOTDIR ? EPERM : errno); /* ENOTDIR: not a directory, and unlink refused it */
        return;
    }
    remove_below(pass, child, depth + 1);
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0)
        pass->has_removed = true;
    else
        note_error(pass, errno);
}

/* Everything in the directory. Takes the descriptor. */
static void remove_below(struct pass *pass, int dir_fd, unsigned depth)
{
    DIR *dir = fdopendir(dir_fd);

    if (!dir) {
        note_error(pass, errno);
        fd_close(&dir_fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            pass->has_removed = true;
        else if (errno == EISDIR || errno == EPERM) /* a directory: EISDIR on Linux, EPERM in POSIX */
            remove_dir(pass, dirfd(dir), entry->d_name, depth);
        else
            note_error(pass, errno);
    }
    (void)closedir(dir);
}

bool remove_inside(int dir_fd, struct err *err)
{
    struct pass pass = { 0 };

    /* Again while directories were moved to the top, or new files appear meanwhile; PASSES_MOST bounds it. */
    for (int i = 0; i < PASSES_MOST; i++) {
        pass = (struct pass){ .top_fd = dir_fd };
        int again = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (again < 0)
            return err_sys(err, "open a directory to empty it");
        remove_below(&pass, again, 1);
        if (!pass.has_moved && !(pass.error == ENOTEMPTY && pass.has_removed))
            break;
    }
    if (pass.has_moved && !pass.error)
        pass.error = ENOTEMPTY;
    return !pass.error || err_sys_num(err, pass.error, "empty a directory");
}

bool remove_tree(int dir_fd, const char *name, struct err *err)
{
    for (int i = 0; i < PASSES_MOST; i++) {
        if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
            return true;
        int refused = errno;
        if (refused != EISDIR && refused != EPERM)
            return err_sys(err, "remove %s", name);
        auto_close int top_fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (top_fd < 0 && errno == ENOENT)
            return true;
        if (top_fd < 0)
            return err_sys_num(err, errno == ENOTDIR ? refused : errno, "remove %s", name);
        if (!remove_inside(top_fd, err))
            return err_wrap(err, "remove %s", name);
        if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
            return true;
        if (errno != ENOTEMPTY && errno != EEXIST) /* these two: a new file appeared meanwhile, try again */
            return err_sys(err, "remove directory %s", name);
    }
    return err_sys_num(err, ENOTEMPTY, "remove directory %s", name);
}
