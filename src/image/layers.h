/*
 * layers.h - the read-only directories that sandboxes are made of, named by what is in them.
 *
 * Below the data directory:
 *   layers/<64 hex digits>/   a root file system or a part of one; never changes once it has its name
 *   tmp/                      what is being made; anything in it after a crash is rubbish
 *
 * Both are 0700 and root's: files in a layer keep the ids they have inside a sandbox, so its setuid programs are truly
 * setuid root to anybody on the host who could reach them.
 *
 * Threads    One process at a time makes layers; any number may mount them.
 * Failure    A layer has its name only when all of it is on disk.
 */
#ifndef IMAGE_LAYERS_H
#define IMAGE_LAYERS_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"

enum { LAYER_HEX_BYTES = 65 }; /* 64 hex digits and a zero byte */

/*
 * layers/, templates/ and tmp/, made if need be; and what a crash left in tmp/ removed. *out_lock_fd is tmp/, locked:
 * hold it while something is being made there. ERR_CONFLICT while somebody else does.
 */
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

/* 64 digits of lower-case hex. */
bool layer_hex_valid(const char *hex);

#endif
