/*
 * unpack.h - driver_unpack(): an archive becomes a layer on top of others, by a confined child.
 *
 * The result is on disk like a snapshot (manifest.h): layers/<chain> and snapshots/<chain>/. Chain ids are made of what is in
 * the archives, so what is there already is not unpacked again, and front cannot give an id to other contents. But whoever wants
 * a layer must have its archive: sums are no secret, and the files of another team's image may be one.
 *
 * Threads    Keeper's one. Nothing here waits.
 * Failure    Nothing is left of a layer that fails.
 */
#ifndef ISOLATION_NATIVE_UNPACK_H
#define ISOLATION_NATIVE_UNPACK_H

#include "isolation/driver.h"

struct native;

void unpackings_close(struct native *native); /* those under way fail */

/* driver_ops.unpack */
void native_unpack(struct driver *driver, const struct unpack_want *want, driver_offer_fn *offer, driver_kept_fn *done,
                   void *context);

#endif
