#include "guest/interpreter/dialect.h"

#include <string.h>

static const struct dialect dialects[] = {
    { "bash", "export %s=%s\n", "unset %s\n", '\'', "", true, false, false, 0 },
    { "javascript", "process.env[%s] = %s;\n", "delete process.env[%s];\n", '"', "\"\\", false, false, true, 0 },
    { "typescript", "process.env[%s] = %s;\n", "delete process.env[%s];\n", '"', "\"\\", false, false, true, 0 },
    { "r", "invisible(do.call(Sys.setenv, setNames(list(%2$s), %1$s)))\n", "invisible(Sys.unsetenv(%s))\n", '"', "\"\\",
      false, false, false, 0 },
    { "java", "System.setProperty(%s, %s);\n", "System.clearProperty(%s);\n", '"', "\"\\", false, true, false, 1200 },
    { "python", "__import__('os').environ[%s] = %s\n", "__import__('os').environ.pop(%s, None)\n", '"', "\"\\", false,
      false, false, 0 },
};

const struct dialect *dialect_find(const char *language)
{
    for (size_t i = 0; i < COUNT_OF(dialects); i++)
        if (strcmp(dialects[i].language, language) == 0)
            return &dialects[i];
    return NULL;
}

/* A string literal of that language. In a shell everything is literal but the quote itself. */
static struct str literal(const struct dialect *d, struct str text, struct arena *arena)
{
    struct buf out = buf_make(arena, 4 * text.len + 3);

    buf_add_char(&out, d->quote);
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (d->is_shell && c == '\'')
            buf_add(&out, STR("'\\''"));
        else if (!d->is_shell && c == '\n')
            buf_add(&out, STR("\\n"));
        else if (!d->is_shell && c == '\r')
            buf_add(&out, STR("\\r"));
        else if (strchr(d->escaped, c) && c)
            buf_add(&out, str_of((char[]){ '\\', c }, 2));
        else
            buf_add_char(&out, c);
    }
    buf_add_char(&out, d->quote);
    return buf_str(&out);
}

static bool is_shell_name(struct str name)
{
    for (size_t i = 0; i < name.len; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", name.at[i]))
            return false;
    return name.len > 0 && !(name.at[0] >= '0' && name.at[0] <= '9');
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the rows above, and nothing else */
void dialect_add_set(struct buf *out, const struct dialect *d, struct str name, struct str value, struct arena *arena)
{
    if (d->is_shell && !is_shell_name(name))
        return; /* a shell has no such variables */
    struct str quoted_name = d->is_shell ? name : literal(d, name, arena), quoted = literal(d, value, arena);
    buf_add(out, arena_format(arena, d->set, arena_text(arena, quoted_name), arena_text(arena, quoted)));
}

void dialect_add_unset(struct buf *out, const struct dialect *d, struct str name, struct arena *arena)
{
    if (d->is_shell && !is_shell_name(name))
        return;
    struct str quoted_name = d->is_shell ? name : literal(d, name, arena);
    buf_add(out, arena_format(arena, d->unset, arena_text(arena, quoted_name)));
}
#pragma GCC diagnostic pop
