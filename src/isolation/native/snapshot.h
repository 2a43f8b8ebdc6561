/*
 * snapshot.h - PAUSE_SNAPSHOT, PAUSE_SEAL, PAUSE_COPY and PAUSE_DROP: a copy of a sandbox's files, or with SEAL these files
 * themselves, become a layer that others are made of.
 *
 * manifest.h says what is on disk. A snapshot without the memory of processes is its layer and its manifest.
 *
 * Threads    Keeper's one. Nothing here waits.
 * Failure    Nothing is left of a snapshot that fails, and its sandbox goes on. Of a seal, nothing is left of either.
 */
#ifndef ISOLATION_NATIVE_SNAPSHOT_H
#define ISOLATION_NATIVE_SNAPSHOT_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"

struct box;
struct native;

/* Before anything else: moves to the trash what a keeper before us has left half-made. */
bool snapshots_open(struct native *native, struct err *err) must_use;
void snapshots_close(struct native *native); /* those under way fail */

/* Its box ends: if its files are not copied yet, they never will be. */
void snapshot_lost(struct box *box, const struct err *why);

/* The processes of a box that is sealed are gone: takes its files out of its directory. Nothing if it is not sealed. */
void seal_take_files(struct box *box);
void seal_lost(struct box *box, const struct err *why);

/* Has a guest written this layer? Also true if that cannot be told. */
bool snapshot_made_layer(int layers_fd, const char *layer) must_use;
/* The same, and its processes went on afterwards: those of a copy may have files open as they were below this layer. */
bool snapshot_outlived_layer(int layers_fd, const char *layer) must_use;

/* driver_ops.snapshot, .seal, .copy and .drop */
void native_snapshot(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context);
void native_seal(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
void native_copy(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
void native_drop(struct driver *driver, const char *snapshot, driver_kept_fn *done, void *context);
/* In pages; the directory is read each time: it is asked for once at each start of front. */
void native_list_snapshots(struct driver *driver, const char *after, driver_kept_fn *done, void *context);

#endif
