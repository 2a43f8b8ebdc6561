/*
 * criu_log.h - why CRIU could not write a sandbox to disk, from what it has logged: pure, so that it can be fuzzed. A guest
 * chooses parts of a log (names of files), so nothing of its text is repeated to callers.
 */
#ifndef ISOLATION_NATIVE_CRIU_LOG_H
#define ISOLATION_NATIVE_CRIU_LOG_H

#include "base/err.h"
#include "base/str.h"

/*
 * For a log that ends without success. ERR_INVALID where something inside cannot be kept, with what it is and what works
 * instead; ERR_FULL when the disk is; else ERR_INTERNAL. err->trail has the first error line, for our own log.
 */
void criu_log_explain(struct str log, struct err *out);

#endif
