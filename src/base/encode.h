/*
 * encode.h - bytes as text and back: hex, base64, percent; and is it UTF-8?
 *
 * Decoders are strict: one wrong character refuses the whole text.
 */
#ifndef BASE_ENCODE_H
#define BASE_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

/* Lower case; room is 2 * bytes.len + 1. */
char *hex_text(struct str bytes, char *room);
/* Either case. False on an odd length, another character, or when it would not fit. */
bool hex_bytes(struct str text, unsigned char *room, size_t room_size, size_t *out_len) must_use;

static inline size_t base64_size(size_t bytes)
{
    return (bytes + 2) / 3 * 4;
}
/* Standard alphabet, padded. `room` has base64_size(bytes.len) bytes; no zero is added. Returns the size written. */
size_t base64_encode(struct str bytes, char *room);
/* Standard or URL-safe alphabet (not both), padded or not, no white space. room: text.len / 4 * 3 + 3. */
bool base64_decode(struct str text, unsigned char *room, size_t *out_len) must_use;

enum percent_plus {
    PERCENT_PLUS_IS_PLUS,  /* in a path */
    PERCENT_PLUS_IS_SPACE, /* in a query */
};
/* False on a broken escape. The result lives in the arena, or is the input itself when there is nothing to decode. */
bool percent_decode(struct arena *arena, struct str text, enum percent_plus plus, struct str *out) must_use;
/* Everything but letters, digits and -._~ becomes %XX. */
void percent_encode(struct buf *out, struct str text);

/* Well-formed UTF-8 in the sense of Unicode: no overlong forms, no surrogates. */
bool utf8_valid(struct str text);
/* A copy with each broken byte replaced by U+FFFD; the input itself when it is already well-formed. */
struct str utf8_repair(struct arena *arena, struct str text);
/* Takes the first character off `rest`, which is well-formed and not empty. Its size is how much shorter `rest` is then. */
uint32_t utf8_next(struct str *rest);
/*
 * Would not be seen, or would change how the text around it is seen: controls, also the end of a line and the tab, what has
 * no width, what turns the direction. People who decide by what they see are shown it as <U+...>.
 */
bool utf8_is_hidden(uint32_t c);

#endif
