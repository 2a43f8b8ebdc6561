/*
 * splice.h - bytes from one stream's socket to another's by splice(2): the kernel hands pages on, we never see them.
 *
 * For large bodies of a known length, and for relays while many bytes come at once. All else is copied, because a splice
 * takes a pipe, and a pipe is only worth it for many bytes.
 */
#ifndef IO_SPLICE_H
#define IO_SPLICE_H

#include "io/stream.h"

/*
 * The next *left bytes that come in on `from` go out on `to`, after what is queued there. *left counts down as they are
 * taken, and must live as long as `from`. Nothing else may be written to `to` meanwhile. When all of it is with the
 * kernel, `from` gets on_spliced().
 *
 * The splice is off early when `from` ends, `to` fails or either is freed. The streams report that as always, and *left
 * is what was not taken. If a write to `from` fails, that is reported after the splice: its peer may have sent the
 * whole body before it went.
 *
 * False: not possible here, the caller has to copy.
 */
bool splice_start(struct stream *from, struct stream *to, uint64_t *left) must_use;
/*
 * The same for a connection whose end nobody knows. It has a pipe only while there are bytes in it, so that thousands of
 * connections share a few. It is also off, with on_spliced() and *left above 0, when little comes at a time, and when
 * there is no pipe: then the caller copies, until stream_is_bulk() again. *share counts the pipes of all splices that
 * were begun with it, which get a fair share of them; it must live as long as they do, and may be NULL.
 */
bool splice_bulk(struct stream *from, struct stream *to, uint64_t *left, uint32_t *share) must_use;
bool splice_is_on(const struct stream *from);

#endif
