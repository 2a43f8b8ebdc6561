/*
 * room.h - is there room on disk for another sandbox?
 *
 * Asked before a start makes anything: a start that runs out of room half-way fails in an odd place, and a sandbox on a
 * full disk is of no use.
 */
#ifndef ISOLATION_NATIVE_ROOM_H
#define ISOLATION_NATIVE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* ERR_FULL with a message that says which file system, how much is free, how much is needed, and what to do. */
bool room_check(int dir_fd, struct err *err) must_use;
/* The same for one that has so much memory, before that is written there. */
bool room_check_memory(int dir_fd, uint64_t memory_bytes, struct err *err) must_use;

#endif
