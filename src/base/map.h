/*
 * map.h - a hash map from text to pointer.
 *
 * Keys are borrowed: they live in the objects they lead to. The hash is keyed with random bytes, so a peer that chooses
 * keys cannot make them collide.
 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct map_slot {
    struct str key; /* at == NULL: free */
    void *value;
    uint64_t hash;
};

struct map {
    struct map_slot *slots;
    size_t room, count; /* room is a power of two or 0 */
    uint64_t seed[2];
};

void map_init(struct map *map);
void map_done(struct map *map); /* the values are not touched */

void *map_get(const struct map *map, struct str key); /* NULL if absent */
/* Returns the value that the key had before, or NULL. The new key pointer replaces the old one too. */
void *map_put(struct map *map, struct str key, void *value);
void *map_remove(struct map *map, struct str key); /* NULL if absent */

/* Walk: `for (size_t i = 0; (value = map_next(&map, &i)); )`. Do not put or remove while walking. */
void *map_next(const struct map *map, size_t *cursor);

#endif
