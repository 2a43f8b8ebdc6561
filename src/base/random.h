/*
 * random.h - unpredictable bytes from the kernel.
 */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stddef.h>

void random_bytes(void *out, size_t size); /* aborts when the kernel has none: going on would not be safe */
/* `count` characters of [a-z0-9], ended by a zero byte: room is count + 1. */
void random_id(char *room, size_t count);
/* A version 4 UUID in text: 36 characters and a zero byte. */
void random_uuid(char room[37]);

#endif
