/*
 * As BuildKit reads a Dockerfile. A line that ends with the escape character goes on in the next one; comments and empty
 * lines between them are left out. The first word names the instruction, words with `--` after it are flags, and the table
 * `forms` says how the rest is to be read. A heredoc takes the lines that follow.
 */
#include "wire/dockerfile_lines.h"

#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "wire/json.h"
#include "wire/shell_word.h"

enum form {
    FORM_IGNORED,
    FORM_TEXT,
    FORM_SPLIT, /* by white space alone */
    FORM_WORDS, /* with quotes */
    FORM_WORDS_OR_EXEC,
    FORM_TEXT_OR_EXEC,
    FORM_PAIRS, /* name=value…, or: name value */
};

static const struct {
    struct str name;
    enum form form;
    bool has_heredocs;
} forms[] = {
    { STR_INIT("ADD"), FORM_WORDS_OR_EXEC, true },        { STR_INIT("ARG"), FORM_WORDS, false },
    { STR_INIT("CMD"), FORM_TEXT_OR_EXEC, false },        { STR_INIT("COPY"), FORM_WORDS_OR_EXEC, true },
    { STR_INIT("ENTRYPOINT"), FORM_TEXT_OR_EXEC, false }, { STR_INIT("ENV"), FORM_PAIRS, false },
    { STR_INIT("EXPOSE"), FORM_IGNORED, false },          { STR_INIT("FROM"), FORM_SPLIT, false },
    { STR_INIT("HEALTHCHECK"), FORM_IGNORED, false },     { STR_INIT("LABEL"), FORM_IGNORED, false },
    { STR_INIT("MAINTAINER"), FORM_IGNORED, false },      { STR_INIT("ONBUILD"), FORM_IGNORED, false },
    { STR_INIT("RUN"), FORM_TEXT_OR_EXEC, true },         { STR_INIT("SHELL"), FORM_IGNORED, false },
    { STR_INIT("STOPSIGNAL"), FORM_IGNORED, false },      { STR_INIT("USER"), FORM_TEXT, false },
    { STR_INIT("VOLUME"), FORM_IGNORED, false },          { STR_INIT("WORKDIR"), FORM_TEXT, false },
};

bool dockerfile_at_line(struct err *err, uint32_t line)
{
    struct err why = *err;

    return err_set(err, why.kind, "line %u: %.140s", line, why.message);
}

void dockerfile_lines_init(struct dockerfile_lines *lines, struct arena *arena, struct str text)
{
    (void)str_skip(&text, STR("\xef\xbb\xbf")); /* what Windows begins a file with */
    *lines = (struct dockerfile_lines){ .arena = arena, .rest = text, .escape = '\\' };
}

/* ---- text ---- */

static struct str skip_blanks(struct str s)
{
    while (s.len && char_is_blank(s.at[0]))
        s = str_of(s.at + 1, s.len - 1);
    return s;
}

static struct str trim_blanks(struct str s)
{
    while (s.len && char_is_blank(s.at[s.len - 1]))
        s.len--;
    return skip_blanks(s);
}

static bool is_comment(struct str line)
{
    return str_starts(skip_blanks(line), STR("#"));
}

/* A growing list of words. */
struct list {
    struct arena *arena;
    struct str *at;
    size_t count, room;
};

static void list_add(struct list *list, struct str word)
{
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 8;
        struct str *more = ARENA_ARRAY(list->arena, struct str, room);
        if (list->count)
            memcpy(more, list->at, list->count * sizeof *more);
        list->at = more;
        list->room = room;
    }
    list->at[list->count++] = word;
}

/* ---- lines ---- */

/* With its end. False: there is none. */
static bool raw_line(struct dockerfile_lines *lines, struct str *out)
{
    if (!lines->rest.len)
        return false;
    const char *end = memchr(lines->rest.at, '\n', lines->rest.len);
    size_t len = end ? (size_t)(end - lines->rest.at) + 1 : lines->rest.len;
    *out = str_of(lines->rest.at, len);
    lines->rest = str_of(lines->rest.at + len, lines->rest.len - len);
    lines->line++;
    return true;
}

static struct str without_end(struct str line)
{
    while (line.len && (line.at[line.len - 1] == '\n' || line.at[line.len - 1] == '\r'))
        line.len--;
    return line;
}

/* `# escape=X` and its like, which only count before anything else. */
static bool take_directive(struct dockerfile_lines *lines, struct str line, struct err *err)
{
    static const struct str names[] = { STR_INIT("syntax"), STR_INIT("escape"), STR_INIT("check") };
    struct str rest = line, name;

    if (lines->is_past_directives)
        return true;
    lines->is_past_directives = true;
    if (!str_skip(&rest, STR("#")))
        return true;
    struct str value = rest;
    if (!str_cut(&value, '=', &name) || name.len == rest.len)
        return true;
    name = trim_blanks(name);
    value = trim_blanks(value);
    for (size_t i = 0; i < COUNT_OF(names) && value.len; i++) {
        if (!str_eq_nocase(name, names[i]))
            continue;
        if (lines->directives & BIT(i))
            return err_set(err, ERR_INVALID, "only one %s parser directive can be used", names[i].at);
        lines->directives |= BIT(i);
        lines->is_past_directives = false;
        if (i == 1) {
            if (!str_eq(value, STR("\\")) && !str_eq(value, STR("`")))
                return err_set(err, ERR_INVALID, "the escape character must be \\ or `");
            lines->escape = value.at[0];
        }
    }
    return true;
}

/* Without the escape character that it ends with; false: it does not. Two of these are none. */
static bool cut_continuation(char escape, struct str *line)
{
    struct str s = *line;

    while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
        s.len--;
    if (!s.len || s.at[s.len - 1] != escape || (s.len > 1 && s.at[s.len - 2] == escape))
        return false;
    s.len--;
    *line = s;
    return true;
}

/* The next line that is not empty, with those that continue it. */
static bool whole_line(struct dockerfile_lines *lines, struct str *out, uint32_t *out_line, bool *out_found,
                       struct err *err)
{
    struct str raw, line;
    bool goes_on;

    *out_found = false;
    do {
        if (!raw_line(lines, &raw))
            return true;
        line = skip_blanks(without_end(raw));
        if (!take_directive(lines, line, err))
            return dockerfile_at_line(err, lines->line);
        if (is_comment(line))
            line = STR("");
        goes_on = cut_continuation(lines->escape, &line);
    } while (!line.len && !goes_on);
    *out_line = lines->line;
    auto_buf struct buf whole = buf_make(NULL, LIMIT_DOCKERFILE_BYTES);
    buf_add(&whole, line);
    while (goes_on && raw_line(lines, &raw)) {
        line = without_end(raw);
        if (is_comment(line) || !skip_blanks(line).len)
            continue;
        goes_on = cut_continuation(lines->escape, &line);
        buf_add(&whole, line);
    }
    *out = arena_copy(lines->arena, trim_blanks(buf_str(&whole)));
    *out_found = out->len > 0;
    return *out_found || !goes_on ||
           err_set(err, ERR_INVALID, "line %u: nothing follows the escape character", *out_line);
}

/* ---- words ---- */

/* The words of a line, with their quotes and escapes. */
static void split_words(struct str rest, char escape, struct list *out)
{
    size_t at = 0;

    for (;;) {
        while (at < rest.len && char_is_blank(rest.at[at]))
            at++;
        if (at == rest.len)
            return;
        size_t from = at;
        char quote = 0;
        bool is_cut = false; /* the escape character at the very end is left out */
        while (at < rest.len && (quote || !char_is_blank(rest.at[at]))) {
            char c = rest.at[at];
            if (c == escape && quote != '\'') {
                is_cut = at + 1 == rest.len;
                at += is_cut ? 1 : 2;
                continue;
            }
            if (!quote && (c == '\'' || c == '"'))
                quote = c;
            else if (quote == c)
                quote = 0;
            at++;
        }
        size_t len = at - from - is_cut;
        if (len)
            list_add(out, str_of(rest.at + from, len));
    }
}

/* The same where quotes mean nothing. */
static void split_blanks(struct str rest, struct list *out)
{
    while ((rest = skip_blanks(rest)).len) {
        size_t len = 0;
        while (len < rest.len && !char_is_blank(rest.at[len]))
            len++;
        list_add(out, str_of(rest.at, len));
        rest = str_of(rest.at + len, rest.len - len);
    }
}

/* Words that begin with `--`, without quotes; *rest moves past them, and past a `--` alone, which ends them. */
static void split_flags(struct arena *arena, struct str *rest, char escape, struct list *out)
{
    for (;;) {
        struct str s = skip_blanks(*rest);
        *rest = s;
        if (!str_starts(s, STR("--")))
            return;
        auto_buf struct buf word = buf_make(NULL, LIMIT_DOCKERFILE_BYTES);
        size_t at = 0;
        char quote = 0;
        for (; at < s.len && (quote || !char_is_blank(s.at[at])); at++) {
            char c = s.at[at];
            if (c == escape && at + 1 == s.len)
                continue;
            if (c == escape)
                buf_add_char(&word, s.at[++at]);
            else if (quote ? c == quote : c == '\'' || c == '"')
                quote = quote ? 0 : c;
            else
                buf_add_char(&word, c);
        }
        *rest = str_of(s.at + at, s.len - at);
        if (str_eq(buf_str(&word), STR("--")))
            return;
        list_add(out, arena_copy(arena, buf_str(&word)));
    }
}

/* True: it is an array, and *out has its words. ERR_INVALID: not of strings. */
static bool parse_exec(struct arena *arena, struct str rest, struct list *out, bool *out_is_exec, struct err *err)
{
    struct err ignored;
    const json_t *item;
    size_t i;

    *out_is_exec = false;
    if (!str_starts(rest, STR("[")))
        return true;
    auto_json json_t *array = json_parse(rest, &ignored);
    if (!json_is_array(array))
        return true;
    json_array_foreach(array, i, item)
    {
        if (!json_is_string(item))
            return err_set(err, ERR_INVALID, "only strings are supported in JSON arrays");
        list_add(out, arena_copy(arena, json_str(item)));
    }
    *out_is_exec = true;
    return true;
}

static bool parse_pairs(struct str rest, char escape, struct list *out, struct err *err)
{
    struct list words = { .arena = out->arena };

    split_words(rest, escape, &words);
    if (!words.count)
        return true;
    if (!str_has_char(words.at[0], '=')) {
        size_t at = 0;
        while (at < rest.len && !char_is_blank(rest.at[at]))
            at++;
        if (at == rest.len)
            return err_set(err, ERR_INVALID, "ENV must have two arguments: a name and a value");
        list_add(out, str_of(rest.at, at));
        list_add(out, skip_blanks(str_of(rest.at + at, rest.len - at)));
        return true;
    }
    for (size_t i = 0; i < words.count; i++) {
        struct str name, value = words.at[i];
        if (!str_has_char(value, '='))
            return err_set(err, ERR_INVALID, "'%.40s' has no =; it must be name=value", arena_text(out->arena, value));
        (void)str_cut(&value, '=', &name);
        list_add(out, name);
        list_add(out, value);
    }
    return true;
}

static bool parse_args(struct dockerfile_lines *lines, enum form form, struct str rest, struct instruction *out,
                       struct err *err)
{
    struct list args = { .arena = lines->arena };

    if ((form == FORM_TEXT_OR_EXEC || form == FORM_WORDS_OR_EXEC) &&
        !parse_exec(lines->arena, rest, &args, &out->is_exec, err))
        return false;
    if (!out->is_exec && form != FORM_IGNORED) {
        if (form == FORM_WORDS || form == FORM_WORDS_OR_EXEC) {
            split_words(rest, lines->escape, &args);
        } else if (form == FORM_SPLIT) {
            split_blanks(rest, &args);
        } else if (form == FORM_PAIRS) {
            if (!parse_pairs(rest, lines->escape, &args, err))
                return false;
        } else if (rest.len) {
            list_add(&args, rest);
        }
    }
    out->args = args.at;
    out->arg_count = args.count;
    return true;
}

/* ---- heredocs ---- */

static size_t count_quotes(struct str s)
{
    size_t count = 0;

    for (size_t i = 0; i < s.len; i++)
        count += s.at[i] == '\'' || s.at[i] == '"';
    return count;
}

bool heredoc_parse(struct arena *arena, struct str word, struct heredoc *out)
{
    const struct str *plain, *raw;
    size_t plain_count, raw_count;
    struct err ignored;

    while (word.len && char_is_digit(word.at[0])) /* the descriptor */
        word = str_of(word.at + 1, word.len - 1);
    if (!str_skip(&word, STR("<<")))
        return false;
    bool is_chomped = str_skip(&word, STR("-"));
    word = skip_blanks(word);
    if (!word.len || str_has_char(word, '<'))
        return false;
    /* Read with and without quotes: if there are fewer in the one, a part of the name is quoted. */
    if (!shell_words(&(struct shell_rules){ .escape = '\\' }, arena, word, &plain, &plain_count, &ignored) ||
        !shell_words(&(struct shell_rules){ .escape = '\\', .keeps_quotes = true }, arena, word, &raw, &raw_count,
                     &ignored) ||
        plain_count != 1 || raw_count != 1)
        return false;
    *out = (struct heredoc){ .name = plain[0],
                             .content = STR(""),
                             .is_chomped = is_chomped,
                             .is_expanded = count_quotes(plain[0]) == count_quotes(raw[0]) };
    return true;
}

struct str heredoc_chomped(struct arena *arena, struct str content)
{
    char *room = arena_alloc(arena, content.len + 1);
    size_t len = 0;
    bool at_start = true;

    for (size_t i = 0; i < content.len; i++) {
        if (at_start && content.at[i] == '\t')
            continue;
        at_start = content.at[i] == '\n';
        room[len++] = content.at[i];
    }
    return str_of(room, len);
}

static bool read_heredoc(struct dockerfile_lines *lines, struct heredoc *doc)
{
    const char *from = lines->rest.at;
    struct str raw;

    while (raw_line(lines, &raw)) {
        struct str line = without_end(raw);
        while (doc->is_chomped && str_skip(&line, STR("\t")))
            ;
        if (str_eq(line, doc->name)) {
            doc->content = str_of(from, (size_t)(raw.at - from));
            return true;
        }
    }
    return false;
}

static bool take_heredocs(struct dockerfile_lines *lines, struct instruction *out, struct err *err)
{
    struct shell_rules rules = { .escape = '\\', .keeps_quotes = true, .keeps_escapes = true };
    const struct str *words;
    size_t count, found = 0;
    struct err ignored;

    if (!memmem(out->whole.at, out->whole.len, "<<", 2) ||
        !shell_words(&rules, lines->arena, out->whole, &words, &count, &ignored))
        return true;
    struct heredoc *docs = ARENA_ARRAY(lines->arena, struct heredoc, count + 1);
    for (size_t i = 0; i < count; i++) {
        if (!heredoc_parse(lines->arena, words[i], &docs[found]))
            continue;
        if (!read_heredoc(lines, &docs[found]))
            return err_set(err, ERR_INVALID, "the heredoc has no end: a line with %.40s alone",
                           arena_text(lines->arena, docs[found].name));
        found++;
    }
    out->heredocs = docs;
    out->heredoc_count = found;
    return true;
}

/* ---- instructions ---- */

static bool read_instruction(struct dockerfile_lines *lines, struct instruction *out, struct err *err)
{
    struct list flags = { .arena = lines->arena };
    struct str rest = out->whole;
    size_t len = 0;

    while (len < rest.len && !char_is_blank(rest.at[len]))
        len++;
    char *name = arena_text(lines->arena, str_of(rest.at, len));
    for (size_t i = 0; i < len; i++)
        if (char_is_letter(name[i]))
            name[i] = (char)(char_lower(name[i]) - 'a' + 'A');
    out->name = str_of(name, len);
    rest = str_of(rest.at + len, rest.len - len);
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        if (!str_eq(out->name, forms[i].name))
            continue;
        if (forms[i].form != FORM_IGNORED)
            split_flags(lines->arena, &rest, lines->escape, &flags);
        out->flags = flags.at;
        out->flag_count = flags.count;
        return parse_args(lines, forms[i].form, trim_blanks(rest), out, err) &&
               (!forms[i].has_heredocs || out->is_exec || take_heredocs(lines, out, err));
    }
    return err_set(err, ERR_INVALID, "unknown instruction: %.40s",
                   arena_text(lines->arena, str_of(out->whole.at, MIN(len, (size_t)40))));
}

bool dockerfile_lines_next(struct dockerfile_lines *lines, struct instruction *out, bool *out_found, struct err *err)
{
    *out = (struct instruction){ 0 };
    if (!whole_line(lines, &out->whole, &out->line, out_found, err))
        return false;
    return !*out_found || read_instruction(lines, out, err) || dockerfile_at_line(err, out->line);
}
