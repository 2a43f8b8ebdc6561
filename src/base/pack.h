/*
 * pack.h - typed messages as bytes, and back from an untrusted peer.
 *
 * Numbers are big-endian, text is a u32 length and its bytes. A reader never runs past the end: the first field that
 * does not fit makes it fail, every later field reads as zero or empty, and one unpack_done() at the end tells whether
 * the message was well-formed and consumed whole.
 */
#ifndef BASE_PACK_H
#define BASE_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

void pack_u8(struct buf *out, uint8_t value);
void pack_u16(struct buf *out, uint16_t value);
void pack_u32(struct buf *out, uint32_t value);
void pack_u64(struct buf *out, uint64_t value);
void pack_i64(struct buf *out, int64_t value);
void pack_bool(struct buf *out, bool value);
void pack_str(struct buf *out, struct str value);

struct unpack {
    struct str rest;
    bool failed;
};

static inline struct unpack unpack_from(struct str bytes)
{
    return (struct unpack){ .rest = bytes };
}

uint8_t unpack_u8(struct unpack *in);
uint16_t unpack_u16(struct unpack *in);
uint32_t unpack_u32(struct unpack *in);
uint64_t unpack_u64(struct unpack *in);
int64_t unpack_i64(struct unpack *in);
bool unpack_bool(struct unpack *in); /* 0 or 1, nothing else */
/* Borrowed from the message. Longer than max fails. */
struct str unpack_str(struct unpack *in, size_t max);
/* A list length; more than max fails and reads as 0. */
uint32_t unpack_count(struct unpack *in, uint32_t max);
/* Text into a fixed room, ended by a zero byte; a zero byte inside or a text that does not fit fails. */
void unpack_text(struct unpack *in, char *room, size_t room_size);

/* Everything was there and nothing is left over. */
bool unpack_done(const struct unpack *in, struct err *err) must_use;

#endif
