/*
 * compose.h - makes and reads MIME. Everything here runs in the composer's child, which lives for one message.
 *
 * The child has no files and no sockets but the one to front, and a budget of memory and processor time. GMime, cmark-gfm
 * and Gumbo run only there. A crash in one of them costs the sender of that message an error, and nothing else.
 */
#ifndef MAIL_COMPOSE_H
#define MAIL_COMPOSE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "mail/mail.h"

enum composer_op { COMPOSER_COMPOSE = 1, COMPOSER_PARSE };

/*
 * In the composer, once, before it is confined and forks children: loads what the libraries would load from files on first
 * use, such as tables of character sets.
 */
void composer_prepare(void);

/*
 * In the child: reads one frame (u8 operation, then a draft or a text with MIME), answers one frame (bool, then a content
 * or an error) and returns. False: the connection has ended early.
 */
bool composer_serve(int fd, struct err *err) must_use;

/*
 * The same draft gives the same bytes, except where its budget of time (LIMIT_MAIL_TREE_MS) decides whether it is too
 * complex. ERR_INVALID names the field that is wrong; ERR_LIMIT: too much of something.
 */
bool compose_message(const struct mail_draft *draft, struct arena *arena, struct mail_content *out, struct err *err)
    must_use;
/* Takes any bytes. ERR_LIMIT: more parts, deeper, or longer headers than allowed. */
bool parse_message(struct str mime, struct arena *arena, struct mail_content *out, struct err *err) must_use;

/* ---- shared by compose.c and parse.c ---- */

/* A safe file name: no path, no control or reserved characters, no reserved name, never empty, unlike the `taken` ones. */
struct str file_name_clean(struct arena *arena, struct str name, const struct mail_attachment *taken, size_t count);
/* In hex. */
void content_sha256(struct str bytes, char out[MAIL_HASH_TEXT_BYTES]);
/* "<…@…>" without spaces or controls. */
bool message_id_valid(struct str id);

#endif
