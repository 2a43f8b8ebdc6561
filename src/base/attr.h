/*
 * attr.h - attributes and small macros that every file may use.
 */
#ifndef BASE_ATTR_H
#define BASE_ATTR_H

#include <stddef.h>

#define must_use __attribute__((warn_unused_result))
#define printf_like(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#define no_return __attribute__((noreturn))

#define BIT(n) (1u << (n))
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* The object that holds this member: how a callback finds its object. */
#define container_of(member_at, type, member) ((type *)(void *)((char *)(member_at)-offsetof(type, member)))

#endif
