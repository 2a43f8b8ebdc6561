/*
 * A scanner over the word, and a function for each thing that can begin: a quote, a reference, an escape. The part after the
 * operator of ${X:-word} is a word itself, so these call one another; NESTED_MOST bounds it.
 */
#include "wire/shell_word.h"

#include <string.h>

#include "base/limits.h"

enum {
    NESTED_MOST = 32,     /* ${A:-${B:-…}} */
    PATTERN_BYTES = 1024, /* value and pattern of ${A#pattern}: trying all ends of it takes their product */
};

/* ---- variables ---- */

const struct str *shell_vars_get(const struct shell_vars *vars, struct str name)
{
    for (size_t i = 0; i < vars->count; i++)
        if (str_eq(vars->at[i].name, name))
            return &vars->at[i].value;
    return NULL;
}

void shell_vars_forget(struct shell_vars *vars, struct str name)
{
    for (size_t i = 0; i < vars->count; i++)
        if (str_eq(vars->at[i].name, name)) {
            vars->at[i] = vars->at[--vars->count];
            return;
        }
}

bool shell_vars_set(struct shell_vars *vars, struct str name, struct str value, struct err *err)
{
    if (value.len > LIMIT_DOCKERFILE_VALUE_BYTES)
        return err_set(err, ERR_LIMIT, "a variable has more than %d bytes", LIMIT_DOCKERFILE_VALUE_BYTES);
    for (size_t i = 0; i < vars->count; i++)
        if (str_eq(vars->at[i].name, name)) {
            vars->at[i].value = value;
            return true;
        }
    if (vars->count == LIMIT_DOCKERFILE_VARS)
        return err_set(err, ERR_LIMIT, "more than %d variables", LIMIT_DOCKERFILE_VARS);
    if (vars->count == vars->room) {
        size_t room = vars->room ? vars->room * 2 : 16;
        struct shell_var *more = ARENA_ARRAY(vars->arena, struct shell_var, room);
        if (vars->count)
            memcpy(more, vars->at, vars->count * sizeof *more);
        vars->at = more;
        vars->room = room;
    }
    vars->at[vars->count++] = (struct shell_var){ name, value };
    return true;
}

/* ---- the scanner ---- */

/* Words of the outermost level, if they are wanted. */
struct words {
    struct arena *arena;
    struct buf text; /* of the word that has begun */
    bool in_word;
    struct str *at;
    size_t count, room;
};

struct scan {
    const struct shell_rules *rules;
    struct arena *arena;
    struct str in;
    size_t at;
    bool keeps_escapes;
    unsigned depth;
    struct err *err;
};

static int peek(const struct scan *scan)
{
    return scan->at < scan->in.len ? (unsigned char)scan->in.at[scan->at] : -1;
}

static int next(struct scan *scan)
{
    int c = peek(scan);

    scan->at += c >= 0;
    return c;
}

/* On the heap: of the many that a long line has, only the result stays. */
static struct buf piece_make(void)
{
    return buf_make(NULL, LIMIT_DOCKERFILE_BYTES);
}

static void words_end(struct words *words)
{
    if (!words->in_word)
        return;
    if (words->count == words->room) {
        size_t room = words->room ? words->room * 2 : 16;
        struct str *more = ARENA_ARRAY(words->arena, struct str, room);
        if (words->count)
            memcpy(more, words->at, words->count * sizeof *more);
        words->at = more;
        words->room = room;
    }
    words->at[words->count++] = arena_copy(words->arena, buf_str(&words->text));
    buf_clear(&words->text);
    words->in_word = false;
}

static void words_add_raw(struct words *words, struct str text)
{
    if (!words)
        return;
    buf_add(&words->text, text);
    words->in_word = true;
}

static void words_add(struct words *words, struct str text)
{
    for (size_t i = 0; words && i < text.len; i++) {
        if (char_is_blank(text.at[i]))
            words_end(words);
        else
            words_add_raw(words, str_of(text.at + i, 1));
    }
}

/* ---- ${X#pattern}, ${X%pattern} ---- */

/* `*` and `?`; a backslash before one of these, or before itself, takes its meaning. */
static bool is_match(struct str pattern, struct str text)
{
    size_t p = 0, t = 0, star_p = SIZE_MAX, star_t = 0;

    while (t < text.len || p < pattern.len) {
        if (p < pattern.len && pattern.at[p] == '*') {
            star_p = p++;
            star_t = t;
            continue;
        }
        bool is_escaped = p + 1 < pattern.len && pattern.at[p] == '\\';
        if (p < pattern.len && t < text.len &&
            (is_escaped ? pattern.at[p + 1] == text.at[t] : pattern.at[p] == '?' || pattern.at[p] == text.at[t])) {
            p += is_escaped ? 2 : 1;
            t++;
            continue;
        }
        if (star_p == SIZE_MAX || star_t >= text.len)
            return false;
        p = star_p + 1;
        t = ++star_t;
    }
    return true;
}

/* What is left of the value without its shortest, or longest, beginning or end that matches. */
static bool trim(struct scan *scan, char op, struct str word, struct str value, struct str *out)
{
    bool is_long = word.len && word.at[0] == op;
    struct str pattern = is_long ? str_of(word.at + 1, word.len - 1) : word;

    if (pattern.len > PATTERN_BYTES || value.len > PATTERN_BYTES)
        return err_set(scan->err, ERR_LIMIT, "a pattern or value in ${…%c…} has more than %d bytes", op, PATTERN_BYTES);
    for (size_t i = 0; i <= value.len; i++) {
        size_t len = is_long ? value.len - i : i;
        struct str cut = op == '#' ? str_of(value.at, len) : str_of(value.at + value.len - len, len);
        if (is_match(pattern, cut)) {
            *out = op == '#' ? str_of(value.at + len, value.len - len) : str_of(value.at, value.len - len);
            return true;
        }
    }
    *out = value;
    return true;
}

/* ---- references ---- */

static bool scan_until(struct scan *scan, int stop, bool keeps_escapes, struct buf *out, struct words *words);

/* Letters, digits and `_`; digits alone, or one of the special characters, are a name too. */
static struct str scan_name(struct scan *scan)
{
    size_t from = scan->at;
    int c = peek(scan);

    if (c > 0 && char_is_digit((char)c)) {
        while (peek(scan) > 0 && char_is_digit((char)peek(scan)))
            scan->at++;
    } else if (c > 0 && strchr("@*#?-$!", c)) {
        scan->at++;
    } else {
        while ((c = peek(scan)) > 0 && (char_is_alnum((char)c) || c == '_' || c >= 0x80))
            scan->at++;
    }
    return str_of(scan->in.at + from, scan->at - from);
}

static bool look_up(struct scan *scan, struct str name, const struct str **out)
{
    *out = shell_vars_get(scan->rules->vars, name);
    if (!*out)
        return err_set(scan->err, ERR_INVALID, "the variable %.40s is not set by an ARG or ENV above",
                       arena_text(scan->arena, name));
    return true;
}

static bool missing_brace(struct scan *scan)
{
    return err_set(scan->err, ERR_INVALID, "a ${ has no }");
}

/* ${X/pattern/text}: only as text, for a shell that expands it later. */
static bool scan_replace(struct scan *scan, struct str name, struct buf *out)
{
    auto_buf struct buf pattern = piece_make();
    auto_buf struct buf text = piece_make();
    bool is_all = peek(scan) == '/';

    scan->at += is_all;
    if (!scan_until(scan, '/', true, &pattern, NULL) || !scan_until(scan, '}', true, &text, NULL))
        return false;
    if (scan->rules->vars)
        return err_set(scan->err, ERR_INVALID, "${%.40s/…} cannot be used here", arena_text(scan->arena, name));
    buf_format(out, "${%.*s%s", STR_ARG(name), is_all ? "//" : "/");
    buf_add(out, buf_str(&pattern));
    buf_add_char(out, '/');
    buf_add(out, buf_str(&text));
    buf_add_char(out, '}');
    return true;
}

/* After `${X` and its operator. */
static bool scan_operator(struct scan *scan, struct str name, char op, bool has_colon, struct buf *out)
{
    auto_buf struct buf word = piece_make();
    const struct str *value = NULL;
    bool is_pattern = op == '#' || op == '%';

    if (!op || !strchr("+-?#%", op) || (has_colon && is_pattern))
        return err_set(scan->err, ERR_INVALID, "unsupported modifier (%s%c) in substitution", has_colon ? ":" : "", op);
    if (!scan_until(scan, '}', is_pattern, &word, NULL))
        return false;
    if (!scan->rules->vars) {
        buf_format(out, "${%.*s%s%c", STR_ARG(name), has_colon ? ":" : "", op);
        buf_add(out, buf_str(&word));
        buf_add_char(out, '}');
        return true;
    }
    value = shell_vars_get(scan->rules->vars, name);
    bool is_unset = !value || (has_colon && !value->len);
    if (op == '-') {
        buf_add(out, is_unset ? buf_str(&word) : *value);
    } else if (op == '+') {
        buf_add(out, is_unset ? STR("") : buf_str(&word));
    } else if (op == '?') {
        if (is_unset)
            return err_set(scan->err, ERR_INVALID, "%.40s: %.80s", arena_text(scan->arena, name),
                           word.len ? arena_text(scan->arena, buf_str(&word)) : "must be set");
        buf_add(out, *value);
    } else {
        struct str rest;
        if (!look_up(scan, name, &value) || !trim(scan, op, buf_str(&word), *value, &rest))
            return false;
        buf_add(out, rest);
    }
    return true;
}

static bool scan_dollar(struct scan *scan, struct buf *out)
{
    const struct str *value;

    scan->at++;
    if (peek(scan) != '{') {
        struct str name = scan_name(scan);
        if (!name.len || !scan->rules->vars) {
            buf_add_char(out, '$');
            buf_add(out, name);
            return true;
        }
        if (!look_up(scan, name, &value))
            return false;
        buf_add(out, *value);
        return true;
    }
    scan->at++;
    int c = peek(scan);
    if (c < 0)
        return missing_brace(scan);
    if (c == '{' || c == '}' || c == ':')
        return err_set(scan->err, ERR_INVALID, "bad substitution: ${%c", c);
    struct str name = scan_name(scan);
    c = next(scan);
    if (c < 0)
        return missing_brace(scan);
    if (c == '}') {
        if (!scan->rules->vars) {
            buf_add(out, STR("${"));
            buf_add(out, name);
            buf_add_char(out, '}');
            return true;
        }
        if (!look_up(scan, name, &value))
            return false;
        buf_add(out, *value);
        return true;
    }
    if (c == '/')
        return scan_replace(scan, name, out);
    bool has_colon = c == ':';
    if (has_colon && (c = next(scan)) < 0)
        return missing_brace(scan);
    return scan_operator(scan, name, (char)c, has_colon, out);
}

/* ---- quotes ---- */

static bool scan_single(struct scan *scan, struct buf *out)
{
    int c;

    scan->at++;
    if (scan->rules->keeps_quotes)
        buf_add_char(out, '\'');
    while ((c = next(scan)) != '\'') {
        if (c < 0)
            return err_set(scan->err, ERR_INVALID, "a single quote is not closed");
        buf_add_char(out, (char)c);
    }
    if (scan->rules->keeps_quotes)
        buf_add_char(out, '\'');
    return true;
}

/* An escape counts only before `"`, `$` and itself. */
static bool scan_double(struct scan *scan, struct buf *out)
{
    scan->at++;
    if (scan->rules->keeps_quotes)
        buf_add_char(out, '"');
    for (;;) {
        int c = peek(scan);
        if (c < 0)
            return err_set(scan->err, ERR_INVALID, "a double quote is not closed");
        if (c == '$') {
            if (!scan_dollar(scan, out))
                return false;
            continue;
        }
        scan->at++;
        if (c == '"')
            break;
        if (c == scan->rules->escape) {
            if (scan->keeps_escapes)
                buf_add_char(out, (char)c);
            int after = peek(scan);
            if (after < 0)
                continue;
            if (after == '"' || after == '$' || after == scan->rules->escape)
                c = next(scan);
        }
        buf_add_char(out, (char)c);
    }
    if (scan->rules->keeps_quotes)
        buf_add_char(out, '"');
    return true;
}

/* White space between `<<` and the word after it does not part them. */
static void scan_here(struct scan *scan, struct buf *out)
{
    buf_add_char(out, (char)next(scan));
    if (peek(scan) != '<')
        return;
    buf_add_char(out, (char)next(scan));
    while (peek(scan) == '\t' || peek(scan) == '\r' || peek(scan) == ' ')
        buf_add_char(out, (char)next(scan));
}

/* ---- words ---- */

static bool scan_special(struct scan *scan, int c, struct buf *out, struct words *words)
{
    auto_buf struct buf piece = piece_make();
    bool fine = true;

    if (c == '$')
        fine = scan_dollar(scan, &piece);
    else if (c == '\'')
        fine = scan_single(scan, &piece);
    else if (c == '"')
        fine = scan_double(scan, &piece);
    else
        scan_here(scan, &piece);
    if (!fine)
        return false;
    if (piece.overflowed)
        return err_set(scan->err, ERR_LIMIT, "a word has more than %d bytes", LIMIT_DOCKERFILE_BYTES);
    buf_add(out, buf_str(&piece));
    if (c == '$')
        words_add(words, buf_str(&piece));
    else
        words_add_raw(words, buf_str(&piece));
    return true;
}

/* Up to the character `stop`, which is used up; -1: to the end. */
static bool scan_pieces(struct scan *scan, int stop, struct buf *out, struct words *words)
{
    for (;;) {
        int c = peek(scan);
        if (c < 0 && stop < 0)
            return true;
        if (c < 0)
            return stop == '/' ? err_set(scan->err, ERR_INVALID, "a ${…/ has no second /") : missing_brace(scan);
        if (c == stop) {
            scan->at++;
            return true;
        }
        if (c == '$' || c == '\'' || c == '"' || c == '<') {
            if (!scan_special(scan, c, out, words))
                return false;
            continue;
        }
        scan->at++;
        char byte = (char)c;
        if (c == scan->rules->escape) {
            if (scan->keeps_escapes) {
                words_add_raw(words, str_of(&byte, 1));
                buf_add_char(out, byte);
            }
            if ((c = next(scan)) < 0)
                continue;
            byte = (char)c;
            words_add_raw(words, str_of(&byte, 1));
        } else {
            words_add(words, str_of(&byte, 1));
        }
        buf_add_char(out, byte);
    }
}

static bool scan_until(struct scan *scan, int stop, bool keeps_escapes, struct buf *out, struct words *words)
{
    bool before = scan->keeps_escapes;

    if (scan->depth == NESTED_MOST)
        return err_set(scan->err, ERR_LIMIT, "${…} nests more than %d deep", NESTED_MOST);
    scan->depth++;
    scan->keeps_escapes = keeps_escapes;
    bool fine = scan_pieces(scan, stop, out, words);
    scan->keeps_escapes = before;
    scan->depth--;
    if (fine && out->overflowed)
        return err_set(scan->err, ERR_LIMIT, "a word has more than %d bytes", LIMIT_DOCKERFILE_BYTES);
    return fine;
}

bool shell_word(const struct shell_rules *rules, struct arena *arena, struct str word, struct str *out, struct err *err)
{
    struct scan scan = { .rules = rules, .arena = arena, .in = word, .err = err };
    auto_buf struct buf text = piece_make();

    if (!scan_until(&scan, -1, rules->keeps_escapes, &text, NULL))
        return false;
    *out = arena_copy(arena, buf_str(&text));
    return true;
}

bool shell_words(const struct shell_rules *rules, struct arena *arena, struct str line, const struct str **out,
                 size_t *out_count, struct err *err)
{
    struct scan scan = { .rules = rules, .arena = arena, .in = line, .err = err };
    auto_buf struct buf text = piece_make();
    struct words words = { .arena = arena, .text = piece_make() };

    bool fine = scan_until(&scan, -1, rules->keeps_escapes, &text, &words);
    words_end(&words);
    buf_done(&words.text);
    if (!fine)
        return false;
    *out = words.at;
    *out_count = words.count;
    return true;
}

/* ---- quoting ---- */

static bool is_plain(struct str word)
{
    for (size_t i = 0; i < word.len; i++)
        if (!char_is_alnum(word.at[i]) && !(word.at[i] && strchr("@%+=:,./_-", word.at[i])))
            return false;
    return word.len > 0;
}

void shell_quote(struct buf *out, struct str word)
{
    if (is_plain(word)) {
        buf_add(out, word);
        return;
    }
    buf_add_char(out, '\'');
    for (size_t i = 0; i < word.len; i++) {
        if (word.at[i] == '\'')
            buf_add(out, STR("'\"'\"'"));
        else
            buf_add_char(out, word.at[i]);
    }
    buf_add_char(out, '\'');
}
