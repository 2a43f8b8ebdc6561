/*
 * str.h - a borrowed piece of text: where it is and how long.
 *
 * A struct str owns nothing and need not end in a zero byte. Text is read by consuming it: str_skip() and str_cut()
 * move the front of the string forward and say whether they did.
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/attr.h"
#include "base/err.h"

struct str {
    const char *at;
    size_t len;
};

/* A literal, also where a constant is needed. */
#define STR(literal) ((struct str){ "" literal, sizeof(literal) - 1 })
#define STR_INIT(literal)               \
    {                                   \
        "" literal, sizeof(literal) - 1 \
    }
/* For printf: "%.*s", STR_ARG(s). */
#define STR_ARG(s) (int)(s).len, (s).at

static inline struct str str_from(const char *text)
{
    return (struct str){ text, text ? strlen(text) : 0 };
}

static inline struct str str_of(const void *at, size_t len)
{
    return (struct str){ at, len };
}

/* ASCII, in every locale. */
static inline char char_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

static inline bool char_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline bool char_is_letter(char c)
{
    return char_lower(c) >= 'a' && char_lower(c) <= 'z';
}

static inline bool char_is_alnum(char c)
{
    return char_is_letter(c) || char_is_digit(c);
}

bool char_is_token(char c);              /* RFC 9110 section 5.6.2 */
bool str_is_token(struct str s);         /* one such character or more */
void text_lower(char *text, size_t len); /* in place */

bool str_eq(struct str a, struct str b);
bool str_eq_nocase(struct str a, struct str b); /* ASCII letters only */
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
int str_order(struct str a, struct str b); /* bytewise, as strcmp */
bool str_has_char(struct str s, char c);

/* Consume a prefix: true and *s moved past it, or false and *s as it was. */
bool str_skip(struct str *s, struct str prefix);
bool str_skip_nocase(struct str *s, struct str prefix);

/*
 * Consume up to and including the next separator. *out_head is the text before it, or the rest at the last piece. False
 * once nothing is left, so `while (str_cut(&rest, ',', &item))` walks a list. "a,,b" has three items; "" has one empty
 * item.
 */
bool str_cut(struct str *s, char separator, struct str *out_head);

/* Without spaces and tabs at either end. */
struct str str_trim(struct str s);

/* Decimal digits and nothing else, at most max. */
bool str_to_u64(struct str s, uint64_t max, uint64_t *out_value) must_use;

/*
 * For a system call: copies into room and ends it with a zero byte. Refuses an empty path, a zero byte inside, and a
 * path that does not fit.
 */
bool str_to_path(struct str s, char *room, size_t room_size, struct err *err) must_use;

/* Heap copy, ended by a zero byte. */
char *str_copy(struct str s) must_use;

#endif
