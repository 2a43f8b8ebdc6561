/*
 * manifest.h - what a snapshot is made of: one small file, snapshots/<id>/manifest.
 *
 *   snapshots/<id>/          manifest, and image/ if the snapshot has the memory of processes
 *   snapshots/<id>/copy      in place of a manifest: it was made for a fork, and is rubbish for the next keeper
 *   snapshots/<id>.new/      one that is being made; after a crash it is rubbish
 *   layers/<id>/             its own layer
 *
 * The layers that a manifest names are in use, also one in <id>.new. It is complete on disk before its directory has its
 * final name.
 */
#ifndef ISOLATION_NATIVE_MANIFEST_H
#define ISOLATION_NATIVE_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "isolation/plan.h"

enum { MANIFEST_TEXT_BYTES = 160, MANIFEST_BYTES = 1024 + LIMIT_LAYERS * (LAYER_ID_BYTES + 8) };

struct manifest {
    uint32_t layer_count;                      /* at least one */
    char layers[LIMIT_LAYERS][LAYER_ID_BYTES]; /* lowest first, its own last */
    uint64_t layer_bytes;                      /* on disk, of its own layer */
    bool has_image;
    uint64_t image_bytes;
    /*
     * The image can be restored only where these are as they were; without one they say where the snapshot is from.
     * Printable ASCII; empty where it is not known.
     */
    char kernel[MANIFEST_TEXT_BYTES], cpu[MANIFEST_TEXT_BYTES], guestd[MANIFEST_TEXT_BYTES], criu[MANIFEST_TEXT_BYTES];
};

void manifest_print(struct buf *out, const struct manifest *manifest);
/* ERR_UNAVAILABLE: a newer version wrote it. */
bool manifest_parse(struct str text, struct manifest *out, struct err *err) must_use;

/* In a directory of snapshots/. Written whole and synced, under a name that no reader sees until then. */
bool manifest_write(int snapshot_fd, const struct manifest *manifest, struct err *err) must_use;
/* The same as `copy`, and not synced: after a power cut there may be half of it. */
bool manifest_write_copy(int snapshot_fd, const struct manifest *manifest, struct err *err) must_use;
bool manifest_is_copy(int snapshots_fd, const char *id) must_use;
/* Of either kind. */
bool manifest_read(int snapshot_fd, struct manifest *out, struct err *err) must_use;

/*
 * Calls use() for each layer of each snapshot, also of those being made. Fails when the layers of one are not known: then
 * any layer may be in use.
 */
bool manifests_used_layers(int snapshots_fd, void (*use)(void *context, const char *layer), void *context,
                           struct err *err) must_use;

#endif
