/*
 * stream_inside.h - what stream.c and splice.c call of each other.
 */
#ifndef IO_STREAM_INSIDE_H
#define IO_STREAM_INSIDE_H

#include "io/stream.h"

/* ---- stream.c ---- */

bool stream_is_dead(const struct stream *s);
void stream_watch(struct stream *s); /* tell the loop what we wait for */
void stream_flush(struct stream *s); /* hand the kernel what is queued: afterwards it is out, or `blocked`, or failed */
/* Nothing more gets out. What still comes in may be read, or spliced. The second is for use inside an owner's call: its
 * owner is told when the turn ends. */
void stream_break(struct stream *s, int error_number, const char *doing);
void stream_fail(struct stream *s, int error_number, const char *doing);
void stream_tell_end(struct stream *s);   /* on_end(), now… */
void stream_tell_later(struct stream *s); /* …or when the turn ends, if it has failed */

void stream_is_slow(struct stream *s); /* little comes at a time: small reads from here on */

/* ---- splice.c ---- */

bool splice_takes(const struct splice *splice);  /* more from its source */
size_t splice_held(const struct splice *splice); /* bytes in the pipe; NULL is fine */
void splice_run(struct splice *splice);          /* either end is ready */
void splice_end(struct splice *splice);          /* NULL is fine */

#endif
