/*
 * text.h - output for people: tables, sizes, ages, quoting, and the nearest name to a misspelled one.
 */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

/*
 * Rows and columns, aligned when the table is printed. Cells are copied. Control characters in them become '?', because
 * names and metadata come from callers and must not control the terminal.
 */
enum { TABLE_COLUMNS = 8 };

struct table_row;

struct table {
    struct arena *arena;
    size_t column_count;
    const char *heads[TABLE_COLUMNS];
    bool is_right[TABLE_COLUMNS]; /* numbers */
    struct table_row *first, **last;
};

/* heads ends with NULL; one that begins with '>' is a column of numbers. */
void table_init(struct table *table, struct arena *arena, const char *const *heads);
void table_row(struct table *table, const struct str *cells); /* as many as there are columns */
/* Prints only `empty` when there are no rows. */
void table_print(const struct table *table, FILE *out, bool is_colored, const char *empty);

/* "12 s", "3 min", "2 h", "5 d"; never negative. */
struct str text_span(struct arena *arena, int64_t us);
/* "3 min ago" for an RFC 3339 time; "-" for any other text, such as an empty one. */
struct str text_ago(struct arena *arena, struct str when);
/* "512 MiB", "1.5 GiB". */
struct str text_mib(struct arena *arena, int64_t mib);
/* "12 KiB", rounded up; from 1 MiB on as text_mib(). */
struct str text_bytes(struct arena *arena, uint64_t bytes);

/* Quotes any text as one word for a POSIX shell. */
void text_shell_quote(struct buf *out, struct str word);

/*
 * The name that `word` probably means: the nearest within two mistakes (a letter added, missing, changed, or two
 * swapped), or one that `word` is the beginning of. NULL: none is near.
 */
const char *text_nearest(const char *word, const char *const *names, size_t count);

#endif
