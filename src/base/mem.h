/*
 * mem.h - memory with one owner, visible at the declaration.
 *
 * Small allocations abort rather than fail: without a few free bytes there is no sensible answer either. A size that a
 * peer chooses has a named cap in limits.h and is checked before it gets here.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdlib.h>

#include "base/attr.h"

/* Zeroed. Never NULL. */
void *mem_new(size_t size) must_use __attribute__((malloc, returns_nonnull));
void *mem_grow(void *old, size_t size) must_use __attribute__((returns_nonnull));
char *mem_copy_text(const char *text) must_use __attribute__((malloc, returns_nonnull));

#define NEW(type) ((type *)mem_new(sizeof(type)))

static inline void mem_free_at(void *pointer_at)
{
    free(*(void **)pointer_at);
}
#define auto_free __attribute__((cleanup(mem_free_at)))

/* Hand ownership on: the variable becomes NULL. */
#define take_ptr(pointer_at)                              \
    ({                                                    \
        __typeof__(*(pointer_at)) taken_ = *(pointer_at); \
        *(pointer_at) = NULL;                             \
        taken_;                                           \
    })

#endif
