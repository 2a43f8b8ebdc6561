/*
 * text.h - Unicode text of a message: made safe to show, and compared by what it looks like.
 *
 * Pure. Broken UTF-8 reads as U+FFFD.
 */
#ifndef MAIL_TEXT_H
#define MAIL_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

/* Consumes one character of a text that is not empty. */
uint32_t text_next(struct str *rest);
void text_put(struct buf *out, uint32_t character);

/* Characters that show nothing but change how others are read: zero-width, bidi controls, tags, fillers. */
bool text_is_invisible(uint32_t character);

enum text_form {
    TEXT_LINES, /* line ends become \n, tabs stay */
    TEXT_LINE,  /* one line: line ends and tabs become spaces */
};
/*
 * Without control characters and invisible ones; joiners stay between letters of scripts that need them. *out_removed
 * counts the invisible ones. Always UTF-8.
 */
struct str text_clean(struct arena *arena, struct str text, enum text_form form, uint32_t *out_removed);

/* Tag characters (U+E0020…) as the ASCII that they stand for: text that nobody sees and models read. At most 4 KiB. */
struct str text_tags(struct arena *arena, struct str text);

/* The first 200 characters on one line, without runs of spaces. */
struct str text_preview(struct arena *arena, struct str text);
/* At most `most` bytes, cut between two characters. */
struct str text_cut(struct str text, size_t most);

/* The lower-case ASCII letter or digit that a character looks like; 0: none. ASCII is itself. */
char text_fold(uint32_t character);

enum text_script { SCRIPT_NONE, SCRIPT_LATIN, SCRIPT_GREEK, SCRIPT_CYRILLIC, SCRIPT_ARMENIAN, SCRIPT_OTHER };
/* SCRIPT_NONE: digits, punctuation, marks. */
enum text_script text_script(uint32_t character);

#endif
