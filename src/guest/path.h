/*
 * path.h - what a path in a request means, and making the directories it needs.
 *
 * guestd acts as root of the sandbox and any caller may name any path in it; the user decides only where a relative
 * path begins and who owns what is made.
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
 * below the home, with "." and ".." taken out. The result is an absolute C string in the arena. ERR_INVALID for what no
 * system call would take (zero bytes, too long) and for "~name".
 */
bool path_resolve(struct arena *arena, struct str path, const struct user *user, struct str workdir,
                  const char **out_path, struct err *err) must_use;

/* Joined and without ".", ".." and doubled slashes; ".." at the root stays there. */
struct str path_clean(struct arena *arena, struct str path);
/* The last component ("/" for the root itself), and what stands before it. */
struct str path_base(struct str path);
const char *path_parent(struct arena *arena, const char *path);

/*
 * open(2), never held up by a FIFO and never through one of the links in /proc that lead to an open file without being a
 * path (ELOOP): what they lead to may have no place in the file system, such as memory that is then charged to us.
 */
int path_open(const char *path, int flags, mode_t mode);

/*
 * Every directory of `path` that is missing is made, 0755 and the user's; what exists is left alone. A component that
 * is no directory is ERR_INVALID "path is a file: …" (with the whole sentence in out_message, which has room for it).
 */
bool path_make_dirs(struct arena *arena, const char *path, const struct user *user, struct str *out_message,
                    struct err *err) must_use;

#endif
