/*
 * One piece of memory: `dropped` consumed bytes, then `len` bytes of data, then free room. buf_reserve() makes room: it
 * moves the data over the dropped bytes when that is cheap, and doubles the memory otherwise. In an arena the old
 * memory stays behind until the arena is freed: that of a secret is wiped.
 */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"

enum { FIRST_ROOM = 256 };

struct buf buf_make(struct arena *arena, size_t cap)
{
    return (struct buf){ .arena = arena, .cap = cap };
}

static void leave(struct buf *buf)
{
    if (!buf->data)
        return;
    char *memory = buf->data - buf->dropped;
    if (buf->is_secret)
        explicit_bzero(memory, buf->dropped + buf->room);
    if (!buf->arena)
        free(memory);
}

void buf_done(struct buf *buf)
{
    leave(buf);
    *buf = (struct buf){ .cap = buf->cap, .arena = buf->arena, .is_secret = buf->is_secret };
}

char *buf_reserve(struct buf *buf, size_t size)
{
    if (buf->overflowed || size > buf->cap || buf->len > buf->cap - size) {
        buf->overflowed = true;
        return NULL;
    }
    size_t need = buf->len + size;
    if (need <= buf->room)
        return buf->data + buf->len;
    /* Before growing, use the room that dropped bytes left in front, once it is worth the copy. */
    if (buf->dropped >= buf->len && need <= buf->room + buf->dropped) {
        char *start = buf->data - buf->dropped;
        memmove(start, buf->data, buf->len);
        buf->data = start;
        buf->room += buf->dropped;
        buf->dropped = 0;
        return buf->data + buf->len;
    }
    size_t room = MAX(buf->room, (size_t)FIRST_ROOM);
    while (room < need)
        room *= 2;
    if (room > buf->cap)
        room = buf->cap;
    /* Not zeroed: a reader asks for 64 KiB and gets some hundred bytes, and a page that is not written costs nothing. */
    char *bigger = buf->arena ? arena_alloc(buf->arena, room) : mem_grow(NULL, room);
    if (buf->len)
        memcpy(bigger, buf->data, buf->len);
    leave(buf);
    buf->data = bigger;
    buf->room = room;
    buf->dropped = 0;
    return buf->data + buf->len;
}

void buf_grew(struct buf *buf, size_t size)
{
    assert(size <= buf->room - buf->len);
    buf->len += size;
}

void buf_add(struct buf *buf, struct str s)
{
    if (s.len == 0)
        return;
    char *room = buf_reserve(buf, s.len);
    if (!room)
        return;
    memcpy(room, s.at, s.len);
    buf->len += s.len;
}

void buf_add_char(struct buf *buf, char c)
{
    buf_add(buf, str_of(&c, 1));
}

void buf_format(struct buf *buf, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    /* vsnprintf wants a byte for its zero; the buf does not count it. */
    char *room = len < 0 ? NULL : buf_reserve(buf, (size_t)len + 1);
    if (room) {
        (void)vsnprintf(room, (size_t)len + 1, format, again);
        buf->len += (size_t)len;
    }
    va_end(again);
}

void buf_drop(struct buf *buf, size_t size)
{
    assert(size <= buf->len);
    if (size == 0)
        return; /* there may be no memory yet to point into */
    buf->data += size;
    buf->dropped += size;
    buf->room -= size;
    buf->len -= size;
    if (buf->len == 0 && buf->data) {
        buf->data -= buf->dropped;
        buf->room += buf->dropped;
        buf->dropped = 0;
    }
}

void buf_clear(struct buf *buf)
{
    buf->overflowed = false;
    buf_drop(buf, buf->len);
}
