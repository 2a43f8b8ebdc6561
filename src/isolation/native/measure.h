/*
 * measure.h - PAUSE_MEASURE: what a parked sandbox or a snapshot takes on disk.
 *
 * Threads    Keeper's one. Nothing here waits: a helper reads the directories, which a guest has filled.
 */
#ifndef ISOLATION_NATIVE_MEASURE_H
#define ISOLATION_NATIVE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"

struct native;
struct measure;

struct measured {
    uint64_t files_bytes; /* of its upper: contents, and LIMIT_SNAPSHOT_ENTRY_BYTES for each file */
    uint64_t image_bytes; /* of its memory, as it is kept; 0: it has none */
    uint64_t raw_bytes;   /* the same before it was compressed */
};
/*
 * Of a directory with `upper`, `image`, both or neither. What a guest has put deeper than anybody would is not counted.
 * Where: in a helper, or in a program that may wait.
 */
bool measure_dir(int dir_fd, struct measured *out, struct err *err) must_use;

/* driver_ops.measure */
void native_measure(struct driver *driver, const char *id, driver_kept_fn *done, void *context);
void measures_close(struct native *native);

#endif
