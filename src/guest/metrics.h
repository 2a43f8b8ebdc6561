/*
 * metrics.h - what the sandbox uses, as one JSON object.
 */
#ifndef GUEST_METRICS_H
#define GUEST_METRICS_H

#include "base/buf.h"

/* CPU is the share since the last call. */
void metrics_write(struct buf *out);

#endif
