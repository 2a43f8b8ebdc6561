/*
 * mail_text.h - text of strangers on a terminal.
 *
 * A message may try to look like our own output, or send the terminal commands. So control characters, characters without
 * width and those that change the direction of text are shown as <U+XXXX>, and each line of a message's text has a bar in
 * front.
 */
#ifndef CLI_MAIL_TEXT_H
#define CLI_MAIL_TEXT_H

#include <stdio.h>

#include "base/arena.h"
#include "base/str.h"

/* On one line: line breaks are shown as <U+000A>. */
struct str mail_text_line(struct arena *arena, struct str text);
/* Several lines, each with "  | " in front; nothing for an empty text. */
void mail_text_print(FILE *out, struct arena *arena, struct str text);

#endif
