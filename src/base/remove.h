/*
 * remove.h - removes a directory tree that an untrusted party made.
 *
 * Opens names inside directories that it holds, never a path, and follows no link. A tree may be deeper than PATH_MAX
 * and than the number of descriptors. What cannot be removed (an attribute, a mount, a damaged file system) is skipped,
 * and the rest is removed. After a kill at any moment, the next call continues.
 *
 * Blocks as long as it takes: call it from a worker or a process of its own, never from a loop.
 */
#ifndef BASE_REMOVE_H
#define BASE_REMOVE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"

/* Removes everything in the directory, which stays. False when something is left; err->sys is the first reason. */
bool remove_inside(int dir_fd, struct err *err) must_use;
/* Removes the file or tree of this name. True when nothing of that name is left, or there was none. */
bool remove_tree(int dir_fd, const char *name, struct err *err) must_use;

#endif
