/*
 * layers.h - the read-only directories that sandboxes are made of, named by what is in them.
 *
 * Below the data directory:
 *   layers/<64 hex digits>/   a root file system or a part of one; never changes once it has its name
 *   tmp/                      layers that are being built; after a crash its contents are rubbish
 *
 * Both are 0700 and root's: files in a layer keep the ids they have inside a sandbox, so a setuid-root program in it is one
 * for every user of the host who could reach it.
 *
 * Threads    One process at a time makes or removes layers (layers_lock()); any number may mount them.
 * Failure    A layer has its name only when all of it is on disk.
 */
#ifndef IMAGE_LAYERS_H
#define IMAGE_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/map.h"

enum { LAYER_HEX_BYTES = 65 }; /* 64 hex digits and a zero byte */

/*
 * *out_lock_fd is tmp/, locked for as long as it is open. ERR_CONFLICT while another process has it. A builder holds it
 * until the template that refers to its layer is saved.
 */
bool layers_lock(int data_fd, int *out_lock_fd, struct err *err) must_use;
/* Makes layers/, templates/ and tmp/ if need be, locks as layers_lock() does, and removes what a crash left in tmp/. */
bool layers_prepare(int data_fd, int *out_lock_fd, struct err *err) must_use;

/*
 * BLAKE2b-256 over names, types, modes, owners, contents, link targets, device numbers and extended attributes, in
 * sorted order. Times are left out: they differ between two runs of one recipe and nothing in a sandbox depends on
 * them, so equal trees get equal names. Links between files are not seen: linked files count as two equal ones.
 */
bool layer_digest(int dir_fd, char out_hex[LAYER_HEX_BYTES], struct err *err) must_use;

/* Turns tmp/<name> into layers/<its digest>. If that layer is there already, tmp/<name> goes. */
bool layer_seal(int data_fd, const char *name, char out_hex[LAYER_HEX_BYTES], struct err *err) must_use;

bool layer_exists(int data_fd, const char *hex);
/*
 * Moves each layer whose id is not a key of `used` into trash/, from where the driver deletes it. Call it with the lock
 * held, and look up what is used after taking the lock: a builder's newest layer has no template yet. A crash leaves each
 * layer in one of the two places.
 */
bool layers_sweep(int data_fd, const struct map *used, uint32_t *out_count, struct err *err) must_use;

/* 64 digits of lower-case hex. */
bool layer_hex_valid(const char *hex);

#endif
