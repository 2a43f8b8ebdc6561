/*
 * arena.h - memory that is freed all at once.
 *
 * A request has one arena; a sandbox or a session has one of its own. Nothing in an arena is freed singly, and nothing
 * in it is stored in an object that outlives it.
 *
 * Threads    One at a time. A request's arena moves with the request from loop to worker and back.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

#include "base/attr.h"
#include "base/str.h"

struct arena_block;

struct arena {
    struct arena_block *newest;
    size_t used; /* bytes handed out, for accounting */
};

void arena_init(struct arena *arena);
void arena_done(struct arena *arena); /* frees everything; the arena may be used again */

/* Zeroed, aligned for any type, never NULL. */
void *arena_alloc(struct arena *arena, size_t size) must_use;
#define ARENA_NEW(arena, type) ((type *)arena_alloc((arena), sizeof(type)))
#define ARENA_ARRAY(arena, type, count) ((type *)arena_alloc_array((arena), (count), sizeof(type)))
void *arena_alloc_array(struct arena *arena, size_t count, size_t size) must_use;

/* Copies that live as long as the arena. Both end in a zero byte that does not count. */
struct str arena_copy(struct arena *arena, struct str s);
char *arena_text(struct arena *arena, struct str s) must_use;
struct str arena_format(struct arena *arena, const char *format, ...) printf_like(2, 3);

#endif
