#include "cli/mail_text.h"

#include <stdint.h>

#include "base/buf.h"
#include "base/encode.h"

struct str mail_text_line(struct arena *arena, struct str text)
{
    struct buf out = buf_make(arena, SIZE_MAX / 2);

    for (struct str rest = utf8_repair(arena, text); rest.len;) {
        const char *at = rest.at;
        uint32_t c = utf8_next(&rest);
        if (utf8_is_hidden(c))
            buf_format(&out, "<U+%04X>", c);
        else
            buf_add(&out, str_of(at, (size_t)(rest.at - at)));
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
