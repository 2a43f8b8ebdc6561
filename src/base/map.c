/*
 * Open addressing with linear probing and backward-shift deletion: no tombstones, so a map with many insertions and
 * removals stays as fast as a fresh one. SipHash-1-3 over the key.
 */
#include "base/map.h"

#include "base/mem.h"
#include "base/random.h"

enum { FIRST_SLOTS = 16 };

static uint64_t rotl(uint64_t x, unsigned by)
{
    return x << by | x >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

static uint64_t hash_of(const struct map *map, struct str key)
{
    uint64_t v[4] = { map->seed[0] ^ 0x736f6d6570736575, map->seed[1] ^ 0x646f72616e646f6d,
                      map->seed[0] ^ 0x6c7967656e657261, map->seed[1] ^ 0x7465646279746573 };
    size_t i = 0;

    for (; i + 8 <= key.len; i += 8) {
        uint64_t word;
        memcpy(&word, key.at + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)key.len << 56;
    for (unsigned shift = 0; i < key.len; i++, shift += 8)
        last |= (uint64_t)(unsigned char)key.at[i] << shift;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int k = 0; k < 3; k++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void map_init(struct map *map)
{
    *map = (struct map){ 0 };
    random_bytes(map->seed, sizeof map->seed);
}

void map_done(struct map *map)
{
    free(map->slots);
    *map = (struct map){ 0 };
}

/* The key's slot, or the free one where it would go. The map is never full. */
static size_t slot_of(const struct map *map, struct str key, uint64_t hash)
{
    size_t mask = map->room - 1, i = hash & mask;

    while (map->slots[i].key.at && !(map->slots[i].hash == hash && str_eq(map->slots[i].key, key)))
        i = (i + 1) & mask;
    return i;
}

void *map_get(const struct map *map, struct str key)
{
    return map->room ? map->slots[slot_of(map, key, hash_of(map, key))].value : NULL;
}

static void map_rehash(struct map *map, size_t room)
{
    struct map_slot *old = map->slots;
    size_t old_room = map->room;

    map->slots = mem_new(room * sizeof *map->slots);
    map->room = room;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].key.at)
            map->slots[slot_of(map, old[i].key, old[i].hash)] = old[i];
    free(old);
}

void *map_put(struct map *map, struct str key, void *value)
{
    if ((map->count + 1) * 4 > map->room * 3)
        map_rehash(map, map->room ? map->room * 2 : FIRST_SLOTS);
    uint64_t hash = hash_of(map, key);
    struct map_slot *slot = &map->slots[slot_of(map, key, hash)];
    void *before = slot->value;
    if (!slot->key.at)
        map->count++;
    *slot = (struct map_slot){ .key = key.at ? key : STR(""), .value = value, .hash = hash };
    return before;
}

void *map_remove(struct map *map, struct str key)
{
    if (!map->room)
        return NULL;
    size_t mask = map->room - 1, gap = slot_of(map, key, hash_of(map, key));
    if (!map->slots[gap].key.at)
        return NULL;
    void *value = map->slots[gap].value;
    map->slots[gap] = (struct map_slot){ 0 };
    map->count--;
    /* Close the gap: move back the entries that linear probing had pushed past it. */
    for (size_t i = (gap + 1) & mask; map->slots[i].key.at; i = (i + 1) & mask) {
        size_t home = map->slots[i].hash & mask;
        if (((i - home) & mask) >= ((i - gap) & mask)) {
            map->slots[gap] = map->slots[i];
            map->slots[i] = (struct map_slot){ 0 };
            gap = i;
        }
    }
    return value;
}

void *map_next(const struct map *map, size_t *cursor)
{
    while (*cursor < map->room) {
        const struct map_slot *slot = &map->slots[(*cursor)++];
        if (slot->key.at)
            return slot->value;
    }
    return NULL;
}
