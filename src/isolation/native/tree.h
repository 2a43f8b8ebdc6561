/*
 * tree.h - puts a file tree together below a root held by descriptor, for a process on its way to guestd or a zygote.
 *
 * Symbolic links in it are never followed: a template decides what is in the tree, not where we mount.
 */
#ifndef ISOLATION_NATIVE_TREE_H
#define ISOLATION_NATIVE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

/* A directory or file of the root, as O_PATH; -1 and err. */
int tree_open(int root_fd, const char *path, struct err *err) must_use;
/* A detached mount to its place; a template without the directory gets one. */
bool tree_attach(int root_fd, int mount_fd, const char *path, struct err *err) must_use;

/* The mount at that path once more, detached, with these attributes besides; "" is dir_fd itself. -1 and err. */
int tree_clone(int dir_fd, const char *path, uint64_t attributes, struct err *err) must_use;
/* The directory `from`, as it is below whatever will be mounted there, at `path` too: without devices. */
bool tree_bind(int root_fd, const char *from, const char *path, struct err *err) must_use;

struct tree_option {
    const char *key, *value;
};
/* A new file system of that type, to its place. */
bool tree_mount(int root_fd, const char *type, const char *path, uint64_t attributes, const struct tree_option *options,
                size_t option_count, struct err *err) must_use;

/* Make it the root of this mount namespace, in which it is attached somewhere, and let go of the old one. */
bool tree_pivot(int root_fd, struct err *err) must_use;

#endif
