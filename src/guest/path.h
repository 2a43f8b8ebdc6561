/*
 * path.h - resolves paths of requests, and makes missing directories.
 *
 * guestd acts as root of the sandbox, and a caller may name any path in it. The user only determines where a relative
 * path begins and who owns new files.
 */
#ifndef GUEST_PATH_H
#define GUEST_PATH_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "guest/users.h"

/*
 * Empty: the work directory if one is set, else the user's home. "~" and "~/x": in the home. Absolute: as it is. Else:
 * below the home, with "." and ".." taken out. The result is an absolute C string in the arena. ERR_INVALID for
 * "~name", zero bytes and paths that are too long.
 */
bool path_resolve(struct arena *arena, struct str path, const struct user *user, struct str workdir,
                  const char **out_path, struct err *err) must_use;

/* Joined and without ".", ".." and doubled slashes; ".." at the root stays there. */
struct str path_clean(struct arena *arena, struct str path);
/* The last component ("/" for the root itself), and the part before it. */
struct str path_base(struct str path);
const char *path_parent(struct arena *arena, const char *path);

/*
 * open(2) that does not block on a FIFO and does not follow links in /proc that lead directly to an open file (ELOOP):
 * that may be a file without a path, such as memory that would then be charged to us.
 */
int path_open(const char *path, int flags, mode_t mode);

/*
 * Makes every directory of `path` that is missing, 0755 and the user's; what exists is not changed. A component that is
 * no directory is ERR_INVALID "path is a file: …" (with the whole sentence in out_message, which has room for it).
 */
bool path_make_dirs(struct arena *arena, const char *path, const struct user *user, struct str *out_message,
                    struct err *err) must_use;

#endif
