/*
 * buf.h - bytes that grow, up to a cap.
 *
 * A buf remembers overflow instead of failing at each step, so one check at the end is enough. With an arena, the
 * memory is the arena's; without one it is heap memory, and buf_done() frees it. As a queue: add at the end, buf_drop()
 * at the front.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/str.h"

struct buf {
    char *data; /* the bytes; not zero-ended */
    size_t len;
    size_t cap;      /* never grows past this */
    bool overflowed; /* something was left out: do not use the bytes */
    bool is_secret;  /* set it after buf_make(): memory that it leaves behind, growing or done, is wiped */
    /* private */
    size_t room;
    size_t dropped; /* bytes in front of data that were consumed */
    struct arena *arena;
};

struct buf buf_make(struct arena *arena, size_t cap); /* arena may be NULL */
void buf_done(struct buf *buf);
#define auto_buf __attribute__((cleanup(buf_done)))

void buf_add(struct buf *buf, struct str s);
void buf_add_char(struct buf *buf, char c);
void buf_format(struct buf *buf, const char *format, ...) printf_like(2, 3);

/* Room for at least `size` more bytes, or NULL and overflowed. Write there, then buf_grew(). */
char *buf_reserve(struct buf *buf, size_t size) must_use;
void buf_grew(struct buf *buf, size_t size);

/* Consume from the front. */
void buf_drop(struct buf *buf, size_t size);
/* Empty again, overflow forgotten, memory kept. */
void buf_clear(struct buf *buf);

static inline struct str buf_str(const struct buf *buf)
{
    return str_of(buf->data, buf->len);
}

#endif
