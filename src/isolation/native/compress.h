/*
 * compress.h - images of memory that nobody has used for a while take less room on disk.
 *
 * Of each image that is kept, the pages are compressed (zpages.h) once it was neither made nor used for some time, one image
 * after the other and at low priority. A restore asks for the pages first, and gets them as they were. Of a snapshot they
 * then stay on disk as long as it is used again and again.
 *
 * Threads    Keeper's one. Nothing here waits: helpers do the work.
 * Failure    Whatever fails or dies, an image has its pages in one form or the other.
 */
#ifndef ISOLATION_NATIVE_COMPRESS_H
#define ISOLATION_NATIVE_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/map.h"
#include "io/loop.h"

struct native;
struct kept_image;

struct compress {
    uint64_t after_ms;        /* 0: none is compressed */
    struct map images;        /* all that are kept, by the id of their sandbox or snapshot */
    struct kept_image *first; /* being compressed, or NULL */
    struct timer timer;
    uint64_t timer_ms; /* when it is over */
};

void compress_open(struct native *native, uint64_t after_ms);
void compress_close(struct native *native);

/* There is an image of this parked sandbox, or of this snapshot. Again: it was used. */
void compress_note(struct native *native, const char *id);
/* It goes. Before its directory does. */
void compress_forget(struct native *native, const char *id);

/* Its image, if it has one, stays as it is until somebody uses it. */
bool compress_is_done(const struct native *native, const char *id);

/*
 * For a restore, until image_release(): its pages are not compressed meanwhile, and if they are being so that is given up.
 * The image may be forgotten before it is released.
 */
struct kept_image *image_hold(struct native *native, const char *id) must_use;
/* Its files are as CRIU wants them. If not: done() comes later, with err if they could not be made so, unless this is false. */
typedef void image_fn(void *context, const struct err *err);
bool image_is_whole(struct kept_image *image);
bool image_expand(struct kept_image *image, image_fn *done, void *context, struct err *err) must_use;
/* The end of it; `context` waits for no image_expand() any more. */
void image_release(struct kept_image *image, void *context);

#endif
