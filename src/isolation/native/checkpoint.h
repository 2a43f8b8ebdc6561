/*
 * checkpoint.h - writes the processes of a sandbox into an image, by CRIU.
 *
 * Threads    Keeper's one. Nothing here waits: a helper does the work.
 */
#ifndef ISOLATION_NATIVE_CHECKPOINT_H
#define ISOLATION_NATIVE_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/driver.h"

struct box;
struct checkpoint;

/* With err there is no image. */
typedef void checkpoint_fn(void *context, const struct err *err);

/*
 * Makes dir_fd/image, which must not be there, of a box that is RUNNING and frozen; it stays so. done() comes later, unless
 * this is false. Half an image is in image.new.
 */
bool box_checkpoint(struct box *box, int dir_fd, checkpoint_fn *done, void *context, struct err *err) must_use;
/* The box goes, or its image is not wanted any more: done() gets this now. The box is busy until CRIU is gone. */
void checkpoint_forget(struct box *box, const struct err *why);

#endif
