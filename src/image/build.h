/*
 * build.h - a child process that fills a tree below tmp/, and what bootstrap.c and recipe.c share.
 *
 * Where      As root and outside every role.
 * Threads    Blocks until the child has ended.
 */
#ifndef IMAGE_BUILD_H
#define IMAGE_BUILD_H

#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

#define BUILD_TREE "/tmp/tree" /* where the child sees its tree */

enum {
    BUILD_LINE_BYTES = 1024,            /* of a child's output; longer lines are cut */
    BUILD_PACKAGES_BYTES = 1024 * 1024, /* of a template's list; 1,000 packages take 30,000 */
};

struct build_child {
    void (*run)(void *context); /* in the child: calls exec, and build_give_up() when that fails */
    void (*line)(void *context, struct str line);
    void *context;
    int tree_fd; /* a directory that the child fills as BUILD_TREE */
};

/*
 * Forks. The child is kept apart from the host: root of a user namespace alone, it may read what every user of the host
 * may, use the host's network, and write to /tmp, which is empty, and to its tree, where files get the ids that it sees. It
 * has no input, no terminal and none of root's keys; of devices it has null, zero, full and random numbers. Its output is
 * read by the line. It ends with all that it has started and mounted. False only if it could not be started; *out_fine
 * tells whether it exited with 0.
 */
bool build_run(const struct build_child *child, bool *out_fine, struct err *err) must_use;
/* In the child: prints "E: doing: strerror(errno)" and exits. */
void build_give_up(const char *doing) no_return;

/* Writes packages/<name>: what a new layer has, one `package version` a line. */
bool build_note_packages(int data_fd, const char *name, const char *layer, struct str list, struct err *err) must_use;
/* Adds a text to the hash of a recipe. */
void build_hash_add(crypto_generichash_state *state, const char *text);

#endif
