/*
 * A list of blocks of at least BLOCK_BYTES. The newest block hands out memory from its front; when it is too full, a
 * new one is allocated. Nothing moves, so pointers stay valid until arena_done() frees all blocks.
 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"

enum { BLOCK_BYTES = 4096 };

struct arena_block {
    struct arena_block *older;
    size_t used, room;
    alignas(max_align_t) unsigned char bytes[];
};

void arena_init(struct arena *arena)
{
    *arena = (struct arena){ 0 };
}

void arena_done(struct arena *arena)
{
    while (arena->newest) {
        struct arena_block *block = arena->newest;
        arena->newest = block->older;
        free(block);
    }
    arena->used = 0;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    const size_t align = alignof(max_align_t);

    if (size > SIZE_MAX / 2)
        log_die("arena: %zu bytes requested", size);
    size = (size + align - 1) & ~(align - 1);
    struct arena_block *block = arena->newest;
    if (!block || block->room - block->used < size) {
        size_t room = MAX(size, (size_t)BLOCK_BYTES);
        struct arena_block *fresh = mem_new(sizeof *fresh + room);
        fresh->room = room;
        /* A big block goes behind the newest one, which keeps the room it has left. */
        if (block && size > BLOCK_BYTES / 2) {
            fresh->older = block->older;
            block->older = fresh;
        } else {
            fresh->older = block;
            arena->newest = fresh;
        }
        block = fresh;
    }
    void *p = block->bytes + block->used;
    block->used += size;
    arena->used += size;
    return p;
}

void *arena_alloc_array(struct arena *arena, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        log_die("arena: %zu times %zu bytes requested", count, size);
    return arena_alloc(arena, count * size);
}

char *arena_text(struct arena *arena, struct str s)
{
    char *copy = arena_alloc(arena, s.len + 1);

    if (s.len)
        memcpy(copy, s.at, s.len);
    return copy;
}

struct str arena_copy(struct arena *arena, struct str s)
{
    return str_of(arena_text(arena, s), s.len);
}

struct str arena_format(struct arena *arena, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0)
        log_die("arena: bad format '%s'", format);
    char *text = arena_alloc(arena, (size_t)len + 1);
    (void)vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    return str_of(text, (size_t)len);
}
