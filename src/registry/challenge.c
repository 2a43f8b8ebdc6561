#include "registry/challenge.h"

#include "base/buf.h"
#include "base/limits.h"

static bool skip_spaces(struct str *s)
{
    size_t before = s->len;

    while (s->len && (s->at[0] == ' ' || s->at[0] == '\t'))
        *s = str_of(s->at + 1, s->len - 1);
    return s->len != before;
}

static struct str take_token(struct str *s)
{
    size_t len = 0;

    while (len < s->len && (char_is_token(s->at[len]) || s->at[len] == '/'))
        len++;
    struct str token = str_of(s->at, len);
    *s = str_of(s->at + len, s->len - len);
    return token;
}

/* The quote has been skipped. */
static bool take_quoted(struct arena *arena, struct str *s, struct str *out)
{
    struct buf text = buf_make(arena, LIMIT_REGISTRY_HEADER_BYTES);

    while (s->len && s->at[0] != '"') {
        if (s->at[0] == '\\' && s->len > 1)
            *s = str_of(s->at + 1, s->len - 1);
        buf_add_char(&text, s->at[0]);
        *s = str_of(s->at + 1, s->len - 1);
    }
    *out = buf_str(&text);
    return !text.overflowed && str_skip(s, STR("\""));
}

static void keep(struct challenge *challenge, struct str name, struct str value)
{
    struct str *field = str_eq_nocase(name, STR("realm"))     ? &challenge->realm
                        : str_eq_nocase(name, STR("service")) ? &challenge->service
                        : str_eq_nocase(name, STR("scope"))   ? &challenge->scope
                                                              : NULL;

    if (field && field->len == 0)
        *field = value;
}

static int scheme_of(struct str name)
{
    return str_eq_nocase(name, STR("basic"))    ? CHALLENGE_BASIC
           : str_eq_nocase(name, STR("bearer")) ? CHALLENGE_BEARER
                                                : CHALLENGE_OTHER;
}

bool challenges_parse(struct arena *arena, struct str header, struct challenge out[CHALLENGES_MOST], uint32_t *at)
{
    struct challenge *current = NULL;
    struct str rest = header;

    if (header.len > LIMIT_REGISTRY_HEADER_BYTES)
        return false;
    for (;;) {
        while (skip_spaces(&rest) || str_skip(&rest, STR(",")))
            ;
        if (rest.len == 0)
            return true;
        struct str name = take_token(&rest), value;
        if (name.len == 0)
            return false;
        (void)skip_spaces(&rest);
        if (current && str_skip(&rest, STR("="))) {
            (void)skip_spaces(&rest);
            if (rest.len == 0 || rest.at[0] == '=' || rest.at[0] == ',') {
                while (str_skip(&rest, STR("="))) /* the end of a token68, which no scheme of ours has */
                    ;
                continue;
            }
            if (!str_skip(&rest, STR("\"")))
                value = arena_copy(arena, take_token(&rest));
            else if (!take_quoted(arena, &rest, &value))
                return false;
            keep(current, name, value);
        } else {
            if (*at == CHALLENGES_MOST)
                return false;
            current = &out[(*at)++];
            *current = (struct challenge){ .scheme = scheme_of(name) };
        }
    }
}
