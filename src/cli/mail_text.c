#include "cli/mail_text.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/encode.h"

/* The text is well-formed UTF-8. Returns the size of the character at its beginning. */
static size_t decode(struct str text, uint32_t *out)
{
    unsigned char first = (unsigned char)text.at[0];
    size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    *out = size == 1 ? first : first & (0xffu >> (size + 1));
    for (size_t i = 1; i < size; i++)
        *out = *out << 6 | ((unsigned char)text.at[i] & 0x3f);
    return size;
}

static bool is_in(uint32_t c, uint32_t from, uint32_t to)
{
    return c >= from && c <= to;
}

/* Would not be seen, or would change what is seen around it. */
static bool is_hidden(uint32_t c)
{
    return c < 0x20 || is_in(c, 0x7f, 0x9f) || c == 0xad || c == 0x61c || c == 0x180e || is_in(c, 0x200b, 0x200f) ||
           is_in(c, 0x2028, 0x202e) || is_in(c, 0x2060, 0x206f) || c == 0xfeff || is_in(c, 0xfff9, 0xfffb) ||
           is_in(c, 0xe0000, 0xe0fff);
}

struct str mail_text_line(struct arena *arena, struct str text)
{
    struct buf out = buf_make(arena, SIZE_MAX / 2);
    struct str rest = utf8_repair(arena, text);
    uint32_t c;

    while (rest.len) {
        size_t size = decode(rest, &c);
        if (is_hidden(c))
            buf_format(&out, "<U+%04X>", c);
        else
            buf_add(&out, str_of(rest.at, size));
        rest = str_of(rest.at + size, rest.len - size);
    }
    return buf_str(&out);
}

void mail_text_print(FILE *out, struct arena *arena, struct str text)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        if (line.len && line.at[line.len - 1] == '\r')
            line.len--;
        line = mail_text_line(arena, line);
        fprintf(out, "  | %.*s\n", STR_ARG(line));
    }
}
