/*
 * entry.h - a file system entry as the API describes it.
 */
#ifndef GUEST_ENTRY_H
#define GUEST_ENTRY_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "guest/users.h"
#include "wire/json.h"

enum entry_detail {
    ENTRY_FULL,
    ENTRY_LEGACY, /* name, type and path: old Python SDKs cannot parse the rest */
};

/* Writes one object. `st` is what lstat() says of the path. Temporary memory comes from the arena. */
void entry_write(struct json_out *out, const char *name, const char *path, const struct stat *st,
                 enum entry_detail detail, struct users *users, struct arena *arena);

/* "-rw-r--r--", "dtrwxrwxrwx": the mode as Go prints it. */
enum { ENTRY_PERMISSIONS_BYTES = 24 };
const char *entry_permissions(mode_t mode, char room[ENTRY_PERMISSIONS_BYTES]);

/* A file's metadata is kept in extended attributes of this prefix. */
#define ENTRY_METADATA_PREFIX "user.e2b."
/* {"key":"value"…}; writes nothing, not even the name, if there is none. Follows links. */
void entry_write_metadata(struct json_out *out, const char *name, const char *path, struct arena *arena);

#endif
