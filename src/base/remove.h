/*
 * remove.h - a directory and all that is below it, whoever made it.
 *
 * Opens names inside directories that it holds, never a path, and follows no link. A tree may be deeper than any path is
 * long and deeper than there are descriptors: what lies too deep is renamed into the top first. What cannot be removed
 * (an attribute, a mount, a damaged file system) is stepped over and holds nothing else up. Killed at any moment, the
 * next call goes on.
 *
 * Waits as long as it takes: for workers and processes of their own, never for a loop.
 */
#ifndef BASE_REMOVE_H
#define BASE_REMOVE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"

/* Everything in the directory, which stays. False when something is left; err->sys is the first reason that was met. */
bool remove_inside(int dir_fd, struct err *err) must_use;
/* What has this name, whatever it is, with all below it. True when there is nothing of that name (any more). */
bool remove_tree(int dir_fd, const char *name, struct err *err) must_use;

#endif
