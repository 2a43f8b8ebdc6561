/*
 * blobs.h - the directory of the role puller: what was downloaded, and what was begun.
 *
 * A file has the name of its place (a registry and a repository) and its digest: who may not read a repository must not get
 * at its layers by naming their digests elsewhere. A download is a file "….part" that one process at a time holds a lock
 * on; what a process left behind, the next one goes on with. When it is whole and its digest is right, it loses ".part".
 * A file is checked again before it is used, so nothing depends on what a crash has left.
 *
 * Who is about to download says first how much, or all those who find room at the same time would fill it together. That is a
 * file "promise-…" as long as what is still to come, which its process holds a lock on: without the lock it means nothing.
 *
 * How much there is to download is what a stranger's manifest says. So what others have downloaded is not removed at once, but as
 * the bytes arrive, a step ahead of them. For how many of its bytes there is room now is in the promise, and whose it is: the
 * downloads of one team that are under way leave half of the room to others, unless it is one alone that has more.
 */
#ifndef REGISTRY_BLOBS_H
#define REGISTRY_BLOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "registry/reference.h"

struct blobs {
    int dir_fd;
    uint64_t bytes_most; /* 0: LIMIT_BLOBS_BYTES */
    uint64_t step;       /* 0: LIMIT_BLOBS_STEP_BYTES */
    uint64_t owner;      /* who downloads: blobs_owner() */
};
/* A number for a team. */
uint64_t blobs_owner(struct str team_id);

struct blob_promise {
    int fd; /* -1: none */
    char name[32];
    uint64_t bytes;
    uint64_t ready; /* of these, there is room for so many… */
    uint64_t used;  /* …of which so many have arrived */
    uint64_t owner;
    int dir_fd;
};
/*
 * Promises so many bytes, if removing the oldest can make room for them, and removes them for the first step; what *promise had
 * before is given up. ERR_FULL, ERR_LIMIT: there is no room. ERR_CONFLICT: there may be, when downloads under way have ended.
 * Removes what is too old in any case. Waits for other processes that do the same.
 */
bool blobs_make_room(const struct blobs *blobs, uint64_t bytes, struct blob_promise *promise, struct err *err) must_use;
/* So many of them are about to be written: makes room for them, and for a step more, if there is none yet. ERR_FULL. */
bool blob_promise_use(const struct blobs *blobs, struct blob_promise *promise, uint64_t bytes, struct err *err)
    must_use;
/* So many of them are here, or do not come. */
void blob_promise_less(struct blob_promise *promise, uint64_t bytes);
void blob_promise_done(struct blob_promise *promise);

/* What is not in use, and how much it is. removes: it goes. */
bool blobs_stock(const struct blobs *blobs, bool removes, uint64_t *out_files, uint64_t *out_bytes, struct err *err)
    must_use;

enum { BLOB_NAME_BYTES = 32 + 1 + 64 + 5 + 1 };
struct blob {
    char name[BLOB_NAME_BYTES]; /* without ".part" */
    char hex[DIGEST_HEX_BYTES];
    uint64_t size;
    int fd; /* of the part */
    uint64_t have;
    struct sha256 *sha; /* of what is there */
};
/* `place` names the repository. */
void blob_init(struct blob *blob, struct str place, const char *hex, uint64_t size);
void blob_done(struct blob *blob); /* what is there stays */

/* Seems it to be here? If so, it counts as used just now. */
bool blob_seems_here(const struct blobs *blobs, const struct blob *blob);
/* True: it is here and its digest is right; *out_fd is for reading. */
bool blob_find(const struct blobs *blobs, const struct blob *blob, int *out_fd) must_use;
/* ERR_CONFLICT: another process downloads it just now. */
bool blob_begin(const struct blobs *blobs, struct blob *blob, struct err *err) must_use;
bool blob_write(struct blob *blob, struct str bytes, struct err *err) must_use;
bool blob_restart(struct blob *blob, struct err *err) must_use;
/* ERR_INVALID: the digest is wrong; then the part is gone. */
bool blob_finish(const struct blobs *blobs, struct blob *blob, int *out_fd, struct err *err) must_use;

/* A file without a name, for what must be copied out of an archive. */
int blobs_make_file(const struct blobs *blobs, struct err *err) must_use;

#endif
