/*
 * ignore.h - a .dockerignore: which files of a directory a build does not take. Patterns mean what they mean to Docker.
 *
 * Paths are relative to the directory, without "." and "..", parted by single slashes.
 */
#ifndef WIRE_IGNORE_H
#define WIRE_IGNORE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct ignore;

/* Lives in the arena. ERR_INVALID: a pattern that is none; ERR_LIMIT. The message begins with the line: "line 3: …". */
bool ignore_parse(struct arena *arena, struct str text, const struct ignore **out, struct err *err) must_use;
/* Is it left out? The last pattern that matches it, or a directory above it, decides. */
bool ignore_matches(const struct ignore *ignore, struct str path);
/* Could a `!` pattern bring back something in this directory, if the directory itself is left out? */
bool ignore_may_return(const struct ignore *ignore, struct str dir);

#endif
