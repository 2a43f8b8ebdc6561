/*
 * A pattern is a list of tokens. It is matched by all ways at once: for each character of the path, the set of tokens that
 * could be next. So a pattern with many stars takes no longer than one without.
 */
#include "wire/ignore.h"

#include <stdint.h>
#include <string.h>

#include "base/limits.h"

enum token_kind {
    TOKEN_CHAR,
    TOKEN_ONE,   /* ?: any but a slash */
    TOKEN_CLASS, /* […] */
    TOKEN_STAR,  /* any number of those that are not slashes */
    TOKEN_REST,  /* a ** at the end: anything */
    TOKEN_DEEP,  /* a ** before something: nothing, or any directories… */
    TOKEN_DOWN,  /* …which this one takes, up to a slash */
    TOKEN_ANY,   /* "**x": anything, also a part of a name */
};

struct token {
    uint8_t kind;
    char c;
    struct str set; /* of a class, without brackets */
};

struct pattern {
    bool is_exception; /* ! */
    struct str text;   /* cleaned */
    uint32_t count;
    struct token *tokens;
};

struct ignore {
    uint32_t count;
    struct pattern *patterns;
};

/* ---- reading ---- */

/* As a path without "." and "..", and without the slash that it begins with. */
static struct str clean(struct arena *arena, struct str text)
{
    char *room = arena_alloc(arena, text.len + 2);
    struct str rest = text, part;
    size_t len = 0, ups = 0;
    bool is_absolute = str_starts(text, STR("/"));

    while (str_cut(&rest, '/', &part)) {
        if (!part.len || str_eq(part, STR(".")))
            continue;
        if (str_eq(part, STR(".."))) {
            if (len > ups) {
                while (len > ups && room[len - 1] != '/')
                    len--;
                len -= len > ups;
                continue;
            }
            if (is_absolute)
                continue;
        }
        if (len)
            room[len++] = '/';
        memcpy(room + len, part.at, part.len);
        len += part.len;
        if (str_eq(part, STR("..")))
            ups = len;
    }
    if (!len)
        room[len++] = '.';
    return str_of(room, len);
}

/* One character of a class, or the one after an escape. */
static bool class_char(struct str set, size_t *at, char *out)
{
    if (*at < set.len && set.at[*at] == '\\')
        ++*at;
    if (*at >= set.len)
        return false;
    *out = set.at[(*at)++];
    return true;
}

static bool in_class(struct str set, char c)
{
    bool is_not = str_skip(&set, STR("^")), is_in = false;
    char low, high;

    for (size_t at = 0; class_char(set, &at, &low);) {
        high = low;
        if (at < set.len && set.at[at] == '-') {
            at++;
            if (!class_char(set, &at, &high))
                break;
        }
        is_in = is_in || ((unsigned char)c >= (unsigned char)low && (unsigned char)c <= (unsigned char)high);
    }
    return is_in != is_not;
}

/* The class that begins at `at`, after its bracket; SIZE_MAX: it is none. Returns the place of the other bracket. */
static size_t class_end(struct str text, size_t at)
{
    size_t from = at + (at < text.len && text.at[at] == '^');

    for (size_t i = from; i < text.len; i++) {
        if (text.at[i] == ']')
            return i > from ? i : SIZE_MAX;
        if (text.at[i] == '-' && (i == from || i + 1 == text.len || text.at[i + 1] == ']'))
            return SIZE_MAX;
        if (text.at[i] == '\\' && ++i == text.len)
            return SIZE_MAX;
    }
    return SIZE_MAX;
}

static bool is_literal(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (strchr("*?[]\\", text.at[i]))
            return false;
    return true;
}

static bool tokens_make(struct arena *arena, struct str text, struct pattern *out)
{
    struct token *tokens = ARENA_ARRAY(arena, struct token, text.len + 1);
    uint32_t count = 0;

    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (c == '*' && i + 1 < text.len && text.at[i + 1] == '*') {
            struct str rest = str_of(text.at + i + 2, text.len - i - 2);
            bool is_first = i == 0;
            i++;
            if (is_first && rest.len && rest.at[0] != '/' && is_literal(rest)) {
                tokens[count++].kind = TOKEN_ANY;
                continue;
            }
            i += rest.len && rest.at[0] == '/';
            if (i + 1 == text.len) {
                tokens[count++].kind = TOKEN_REST;
            } else {
                tokens[count++].kind = TOKEN_DEEP;
                tokens[count++].kind = TOKEN_DOWN;
            }
        } else if (c == '*') {
            tokens[count++].kind = TOKEN_STAR;
        } else if (c == '?') {
            tokens[count++].kind = TOKEN_ONE;
        } else if (c == '[') {
            size_t end = class_end(text, i + 1);
            if (end == SIZE_MAX)
                return false;
            tokens[count++] = (struct token){ TOKEN_CLASS, 0, str_of(text.at + i + 1, end - i - 1) };
            i = end;
        } else {
            if (c == '\\' && ++i == text.len)
                return false;
            tokens[count++] = (struct token){ TOKEN_CHAR, text.at[i], STR("") };
        }
    }
    out->tokens = tokens;
    out->count = count;
    return true;
}

static struct str trim_line(struct str s)
{
    while (s.len && strchr(" \t\r\v\f", s.at[s.len - 1]))
        s.len--;
    while (s.len && strchr(" \t\r\v\f", s.at[0]))
        s = str_of(s.at + 1, s.len - 1);
    return s;
}

static bool take_line(struct arena *arena, struct ignore *ignore, struct str line, struct err *err)
{
    struct str text = trim_line(line);

    if (str_starts(line, STR("#")) || !text.len)
        return true;
    if (ignore->count == LIMIT_IGNORE_PATTERNS)
        return err_set(err, ERR_LIMIT, "more than %d patterns", LIMIT_IGNORE_PATTERNS);
    if (text.len > LIMIT_IGNORE_PATTERN_BYTES)
        return err_set(err, ERR_LIMIT, "a pattern of more than %d bytes", LIMIT_IGNORE_PATTERN_BYTES);
    struct pattern *pattern = &ignore->patterns[ignore->count];
    pattern->is_exception = str_skip(&text, STR("!"));
    text = trim_line(text);
    if (!text.len)
        return err_set(err, ERR_INVALID, "a ! without a pattern");
    pattern->text = clean(arena, text);
    if (!tokens_make(arena, pattern->text, pattern))
        return err_set(err, ERR_INVALID, "'%.60s' is not a pattern", arena_text(arena, text));
    ignore->count++;
    return true;
}

bool ignore_parse(struct arena *arena, struct str text, const struct ignore **out, struct err *err)
{
    struct ignore *ignore = ARENA_NEW(arena, struct ignore);
    struct str rest = text, line;
    unsigned number = 0;

    if (text.len > LIMIT_IGNORE_BYTES)
        return err_set(err, ERR_LIMIT, "more than %d bytes", LIMIT_IGNORE_BYTES);
    if (str_has_char(text, '\0'))
        return err_set(err, ERR_INVALID, "it has zero bytes");
    ignore->patterns = ARENA_ARRAY(arena, struct pattern, LIMIT_IGNORE_PATTERNS);
    (void)str_skip(&rest, STR("\xef\xbb\xbf"));
    while (str_cut(&rest, '\n', &line)) {
        number++;
        if (!take_line(arena, ignore, line, err)) {
            struct err why = *err;
            return err_set(err, why.kind, "line %u: %.140s", number, why.message);
        }
    }
    *out = ignore;
    return true;
}

/* ---- matching ---- */

/* The token may be next; so may be those after it that match nothing. */
static void reach(const struct pattern *pattern, bool *set, uint32_t at)
{
    for (; !set[at]; at++) {
        set[at] = true;
        if (at == pattern->count)
            return;
        switch (pattern->tokens[at].kind) {
        case TOKEN_STAR:
        case TOKEN_REST:
        case TOKEN_ANY:
            break;
        case TOKEN_DEEP: /* with its TOKEN_DOWN, or without it */
            set[at + 1] = true;
            at++;
            break;
        default:
            return;
        }
    }
}

static bool takes(const struct token *token, char c)
{
    switch (token->kind) {
    case TOKEN_CHAR:
        return token->c == c;
    case TOKEN_ONE:
        return c != '/';
    case TOKEN_CLASS:
        return in_class(token->set, c);
    default:
        return false;
    }
}

static bool pattern_matches(const struct pattern *pattern, struct str path)
{
    bool sets[2][LIMIT_IGNORE_PATTERN_BYTES + 3] = { { false } };
    bool *now = sets[0], *then = sets[1];

    reach(pattern, now, 0);
    for (size_t i = 0; i < path.len; i++) {
        char c = path.at[i];
        bool is_any = false;
        memset(then, 0, pattern->count + 1);
        for (uint32_t t = 0; t < pattern->count; t++) {
            const struct token *token = &pattern->tokens[t];
            if (!now[t])
                continue;
            if (token->kind == TOKEN_DOWN) {
                then[t] = true;
                if (c == '/')
                    reach(pattern, then, t + 1);
            } else if (token->kind == TOKEN_REST || token->kind == TOKEN_ANY ||
                       (token->kind == TOKEN_STAR && c != '/')) {
                reach(pattern, then, t);
            } else if (takes(token, c)) {
                reach(pattern, then, t + 1);
            }
        }
        for (uint32_t t = 0; t <= pattern->count; t++)
            is_any = is_any || then[t];
        if (!is_any)
            return false;
        bool *swap = now;
        now = then;
        then = swap;
    }
    return now[pattern->count];
}

bool ignore_matches(const struct ignore *ignore, struct str path)
{
    bool above[LIMIT_IGNORE_PATTERNS] = { false }; /* which patterns match a directory above */
    bool is_out = false;

    for (size_t end = 0; end < path.len;) {
        const char *slash = memchr(path.at + end + 1, '/', path.len - end - 1);
        end = slash ? (size_t)(slash - path.at) : path.len;
        is_out = false;
        for (uint32_t i = 0; i < ignore->count; i++) {
            const struct pattern *pattern = &ignore->patterns[i];
            /* A pattern cannot leave out what is out, and an exception cannot bring back what is in. */
            if (!above[i] && pattern->is_exception == is_out)
                above[i] = pattern_matches(pattern, str_of(path.at, end));
            else if (!above[i])
                continue;
            if (above[i])
                is_out = !pattern->is_exception;
        }
    }
    return is_out;
}

static bool may_match_below(const struct pattern *pattern, struct str dir)
{
    struct str rest = pattern->text, part, above = dir, name;

    while (str_cut(&above, '/', &name)) {
        if (!str_cut(&rest, '/', &part))
            return false;
        if (memmem(part.at, part.len, "**", 2))
            return true;
        if (is_literal(part) && !str_eq(part, name))
            return false;
    }
    return rest.len > 0;
}

bool ignore_may_return(const struct ignore *ignore, struct str dir)
{
    for (uint32_t i = 0; i < ignore->count; i++)
        if (ignore->patterns[i].is_exception && may_match_below(&ignore->patterns[i], dir))
            return true;
    return false;
}
