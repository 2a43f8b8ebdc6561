/*
 * copy.h - POST /cloister/copy: the files of a COPY step of a template's build, as an archive.
 *
 * Query: source and dest as in the recipe; user and workdir, where a relative dest begins; owner ("name", "name:group",
 * numbers; empty: user) and mode (octal; empty: as in the archive). The body is tar, perhaps gzip or zstd. 204 when all of it
 * is in place; else a JSON error, and nothing of it is left but directories that dest needed.
 */
#ifndef GUEST_COPY_H
#define GUEST_COPY_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "guest/guest.h"

void copy_serve(struct guest *guest, struct http_exchange *ex);

/* ---- for tests ---- */

/* The part of a source that the client's search for files began at: "a/b" of "a/b/?.txt", "." of "?.c". In the arena. */
struct str copy_source_base(struct arena *arena, struct str source);

struct copy_to {
    const char *dest;  /* absolute */
    bool is_directory; /* dest ended in "/" */
    uid_t uid;
    gid_t gid;
    bool has_mode;
    mode_t mode;
};
/*
 * Puts `base` of what was unpacked in this directory in its place. ERR_NOT_FOUND: there is no such entry. ERR_INVALID: it
 * cannot be put there; the text says why.
 */
bool copy_place(int unpacked_fd, struct str base, const struct copy_to *to, struct arena *arena, struct err *err)
    must_use;

#endif
