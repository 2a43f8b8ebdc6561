/*
 * Instructions become steps in their order. Docker begins as root in /, and sandboxes as `user` in their home: steps before and
 * after those of the file say so. `vars` has the values of ARG and ENV as far as they are known here: one that depends on a
 * variable of the image is not, and a FROM or COPY that needs it is an error.
 */
#include "wire/dockerfile.h"

#include <string.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/limits.h"
#include "wire/dockerfile_lines.h"
#include "wire/shell_word.h"

enum { NESTED_MOST = 32 }; /* ${A:-${B:-…}} in a heredoc */

/* CMD or ENTRYPOINT. */
struct start {
    bool is_set, is_exec;
    uint32_t line;
    size_t arg_count;
    const struct str *args;
};

struct convert {
    struct arena *arena;
    struct shell_rules keep, expand; /* references stay; references are replaced */
    struct shell_vars vars;
    struct dockerfile_arg *args;
    size_t arg_count;
    struct dockerfile out;
    size_t step_room, note_room;
    bool has_from, has_user, has_workdir;
    struct start cmd, entrypoint;
    const struct instruction *at;
    struct err *err;
};

/* ---- steps and notes ---- */

static bool add_step(struct convert *c, struct str type, struct str shown, const struct str *args, size_t count)
{
    struct dockerfile *out = &c->out;

    if (out->step_count == LIMIT_BUILD_STEPS)
        return err_set(c->err, ERR_LIMIT, "a build has %d steps at most", LIMIT_BUILD_STEPS);
    if (out->step_count == c->step_room) {
        c->step_room = c->step_room ? c->step_room * 2 : 16;
        struct dockerfile_step *more = ARENA_ARRAY(c->arena, struct dockerfile_step, c->step_room);
        if (out->step_count)
            memcpy(more, out->steps, out->step_count * sizeof *more);
        out->steps = more;
    }
    struct str *copy = ARENA_ARRAY(c->arena, struct str, count);
    memcpy(copy, args, count * sizeof *copy);
    out->steps[out->step_count++] =
        (struct dockerfile_step){ type, c->at ? c->at->line : 0, shown, (uint32_t)count, copy };
    return true;
}

static bool add_simple(struct convert *c, struct str type, struct str value)
{
    struct str shown = c->at ? c->at->whole : arena_format(c->arena, "%.*s %.*s", STR_ARG(type), STR_ARG(value));

    return add_step(c, type, shown, &value, 1);
}

static void add_note(struct convert *c, struct str text)
{
    struct dockerfile *out = &c->out;

    if (out->note_count == c->note_room) {
        c->note_room = c->note_room ? c->note_room * 2 : 8;
        struct dockerfile_note *more = ARENA_ARRAY(c->arena, struct dockerfile_note, c->note_room);
        if (out->note_count)
            memcpy(more, out->notes, out->note_count * sizeof *more);
        out->notes = more;
    }
    out->notes[out->note_count++] = (struct dockerfile_note){ c->at->line, text };
}

/* ---- flags ---- */

enum {
    TAKES_VALUE = 1, /* --chown=x; else it is true or false */
    IS_IGNORED = 2,
};
struct flag {
    struct str name;
    unsigned kind;
};
enum { FLAG_CHOWN, FLAG_CHMOD, FLAG_FROM };
static const struct flag copy_flags[] = {
    [FLAG_CHOWN] = { STR_INIT("chown"), TAKES_VALUE },
    [FLAG_CHMOD] = { STR_INIT("chmod"), TAKES_VALUE },
    [FLAG_FROM] = { STR_INIT("from"), TAKES_VALUE },
    { STR_INIT("link"), IS_IGNORED },
    { STR_INIT("exclude"), TAKES_VALUE | IS_IGNORED },
    { STR_INIT("parents"), IS_IGNORED },
    { STR_INIT("keep-git-dir"), IS_IGNORED },
    { STR_INIT("checksum"), TAKES_VALUE | IS_IGNORED },
    { STR_INIT("unpack"), IS_IGNORED },
};
static const struct flag run_flags[] = {
    { STR_INIT("mount"), TAKES_VALUE | IS_IGNORED },
    { STR_INIT("network"), TAKES_VALUE | IS_IGNORED },
    { STR_INIT("security"), TAKES_VALUE | IS_IGNORED },
    { STR_INIT("device"), TAKES_VALUE | IS_IGNORED },
};
static const struct flag from_flags[] = { { STR_INIT("platform"), TAKES_VALUE | IS_IGNORED } };

/* values[i] is that of flags[i]; its `at` is NULL if it is not given. */
static bool take_flag(struct convert *c, struct str text, const struct flag *flags, size_t count, struct str *values)
{
    struct str value = text, name;
    bool has_value = str_has_char(text, '=');

    (void)str_skip(&value, STR("--"));
    (void)str_cut(&value, '=', &name);
    for (size_t i = 0; i < count; i++) {
        if (!str_eq(name, flags[i].name))
            continue;
        if (flags[i].kind & TAKES_VALUE ? !has_value
                                        : has_value && !str_eq(value, STR("true")) && !str_eq(value, STR("false")))
            return err_set(c->err, ERR_INVALID, "--%s needs a value%s", name.len ? flags[i].name.at : "",
                           flags[i].kind & TAKES_VALUE ? "" : ": true or false");
        if (flags[i].kind & IS_IGNORED) {
            add_note(c, arena_format(c->arena, "--%.*s is ignored", STR_ARG(name)));
            return true;
        }
        if (values[i].at)
            return err_set(c->err, ERR_INVALID, "--%s is given twice", flags[i].name.at);
        values[i] = value;
        return true;
    }
    return err_set(c->err, ERR_INVALID, "%s has no flag --%.40s", arena_text(c->arena, c->at->name),
                   arena_text(c->arena, name));
}

static bool take_flags(struct convert *c, const struct flag *flags, size_t count, struct str *values)
{
    for (size_t i = 0; i < c->at->flag_count; i++)
        if (!take_flag(c, c->at->flags[i], flags, count, values))
            return false;
    return true;
}

/* ---- FROM ---- */

static bool convert_from(struct convert *c)
{
    const struct instruction *at = c->at;
    struct str none[COUNT_OF(from_flags)] = { { 0 } };

    if (c->has_from)
        return err_set(c->err, ERR_INVALID,
                       "a second FROM (the first is in line %u): builds with several stages are not supported",
                       c->out.from_line);
    if (!take_flags(c, from_flags, COUNT_OF(from_flags), none))
        return false;
    if (at->arg_count != 1 && !(at->arg_count == 3 && str_eq_nocase(at->args[1], STR("as"))))
        return err_set(c->err, ERR_INVALID, "FROM needs an image: FROM IMAGE, or FROM IMAGE AS NAME");
    if (!shell_word(&c->expand, c->arena, at->args[0], &c->out.from, c->err))
        return false;
    if (!c->out.from.len)
        return err_set(c->err, ERR_INVALID, "the image of FROM is empty");
    c->out.from_line = at->line;
    c->has_from = true;
    return true;
}

/* ---- RUN ---- */

static struct str join_quoted(struct convert *c, const struct str *words, size_t count)
{
    auto_buf struct buf text = buf_make(NULL, LIMIT_CALL_BODY_BYTES);

    for (size_t i = 0; i < count; i++) {
        if (i)
            buf_add_char(&text, ' ');
        shell_quote(&text, words[i]);
    }
    return arena_copy(c->arena, buf_str(&text));
}

/* A line that its content does not have, to end it with. */
static struct str terminator(struct convert *c, struct str name, struct str content)
{
    struct buf text = buf_make(c->arena, LIMIT_DOCKERFILE_BYTES + 64);

    buf_add(&text, STR("E2B_HEREDOC_"));
    for (size_t i = 0; i < name.len; i++) {
        if (char_is_alnum(name.at[i]) || ((unsigned char)name.at[i] & 0xc0) != 0x80)
            buf_add_char(&text, char_is_alnum(name.at[i]) ? name.at[i] : '_');
    }
    while (content.len && memmem(content.at, content.len, text.data, text.len))
        buf_add_char(&text, '_');
    return buf_str(&text);
}

static void add_lines(struct buf *out, struct str content)
{
    buf_add(out, content);
    if (content.len && content.at[content.len - 1] != '\n')
        buf_add_char(out, '\n');
}

static struct str content_of(struct convert *c, const struct heredoc *doc)
{
    return doc->is_chomped ? heredoc_chomped(c->arena, doc->content) : doc->content;
}

/* The heredoc is the script, or it is a part of a command, which the shell then reads as it is. */
static struct str run_heredocs(struct convert *c)
{
    const struct instruction *at = c->at;
    struct heredoc only;

    if (at->heredoc_count != 1 || !heredoc_parse(c->arena, at->args[0], &only)) {
        struct buf text = buf_make(c->arena, LIMIT_CALL_BODY_BYTES);
        buf_add(&text, at->args[0]);
        for (size_t i = 0; i < at->heredoc_count; i++) {
            buf_add_char(&text, '\n');
            buf_add(&text, at->heredocs[i].content);
            buf_add(&text, at->heredocs[i].name);
        }
        return buf_str(&text);
    }
    struct str content = content_of(c, &at->heredocs[0]), name = at->heredocs[0].name;
    if (!str_starts(content, STR("#!")))
        return content;
    struct buf script = buf_make(c->arena, LIMIT_DOCKERFILE_BYTES * 2),
               text = buf_make(c->arena, LIMIT_CALL_BODY_BYTES * 2);
    shell_quote(&script, arena_format(c->arena, "/tmp/%.*s", STR_ARG(name)));
    struct str end = terminator(c, name, content), path = buf_str(&script);
    buf_format(&text, "cat <<'%.*s' >%.*s\n", STR_ARG(end), STR_ARG(path));
    add_lines(&text, content);
    buf_format(&text, "%.*s\nchmod +x %.*s && %.*s\nE2B_EXIT=$?; rm -f %.*s; exit $E2B_EXIT", STR_ARG(end),
               STR_ARG(path), STR_ARG(path), STR_ARG(path));
    return buf_str(&text);
}

static bool convert_run(struct convert *c)
{
    const struct instruction *at = c->at;
    struct str none[COUNT_OF(run_flags)] = { { 0 } };

    if (!take_flags(c, run_flags, COUNT_OF(run_flags), none))
        return false;
    if (!at->arg_count)
        return err_set(c->err, ERR_INVALID, "RUN needs a command");
    return add_simple(c, STR("RUN"),
                      at->is_exec         ? join_quoted(c, at->args, at->arg_count)
                      : at->heredoc_count ? run_heredocs(c)
                                          : at->args[0]);
}

/* ---- a heredoc of COPY ---- */

/*
 * Its text for a shell that expands it, by Docker's rules: $X and ${X…} are replaced, a backslash takes the meaning of the
 * next character, and everything else is literal, also $(…) and backticks.
 */
struct body {
    struct str in;
    size_t at;
    unsigned depth;
    struct err *err;
};

static bool body_scan(struct body *body, int stop, bool keeps_escapes, struct buf *out);

static int body_next(struct body *body)
{
    return body->at < body->in.len ? (unsigned char)body->in.at[body->at++] : -1;
}

static void body_name(struct body *body, struct buf *out)
{
    size_t from = body->at;

    if (from < body->in.len && char_is_digit(body->in.at[from])) {
        while (body->at < body->in.len && char_is_digit(body->in.at[body->at]))
            body->at++;
    } else if (from < body->in.len && strchr("@*#?-$!", body->in.at[from])) {
        body->at++;
    } else {
        while (body->at < body->in.len && (char_is_alnum(body->in.at[body->at]) || body->in.at[body->at] == '_' ||
                                           (unsigned char)body->in.at[body->at] >= 0x80))
            body->at++;
    }
    buf_add(out, str_of(body->in.at + from, body->at - from));
}

static bool body_missing(struct body *body)
{
    return err_set(body->err, ERR_INVALID, "a ${ in the heredoc has no }");
}

static bool body_variable(struct body *body, struct buf *out)
{
    if (body->at == body->in.len || body->in.at[body->at] != '{') {
        size_t from = body->at;
        auto_buf struct buf name = buf_make(NULL, LIMIT_DOCKERFILE_BYTES);
        body_name(body, &name);
        buf_add(out, body->at == from ? STR("\\$") : STR("$"));
        buf_add(out, buf_str(&name));
        return true;
    }
    body->at++;
    if (body->at == body->in.len)
        return body_missing(body);
    if (strchr("{}:", body->in.at[body->at]))
        return err_set(body->err, ERR_INVALID, "bad substitution in the heredoc: ${%c", body->in.at[body->at]);
    buf_add(out, STR("${"));
    body_name(body, out);
    int op = body_next(body);
    if (op < 0)
        return body_missing(body);
    buf_add_char(out, (char)op);
    if (op == '}')
        return true;
    if (op == '/') {
        if (body->at < body->in.len && body->in.at[body->at] == '/')
            buf_add_char(out, (char)body_next(body));
        if (!body_scan(body, '/', true, out))
            return false;
        buf_add_char(out, '/');
        if (!body_scan(body, '}', true, out))
            return false;
        buf_add_char(out, '}');
        return true;
    }
    bool has_colon = op == ':';
    if (has_colon) {
        if ((op = body_next(body)) < 0)
            return body_missing(body);
        buf_add_char(out, (char)op);
    }
    bool is_pattern = op == '#' || op == '%';
    if (!strchr("+-?#%", op) || (has_colon && is_pattern))
        return err_set(body->err, ERR_INVALID, "unsupported modifier in a ${…} of the heredoc");
    if (!body_scan(body, '}', is_pattern, out))
        return false;
    buf_add_char(out, '}');
    return true;
}

static bool body_scan(struct body *body, int stop, bool keeps_escapes, struct buf *out)
{
    int c;

    if (++body->depth > NESTED_MOST)
        return err_set(body->err, ERR_LIMIT, "${…} nests more than %d deep", NESTED_MOST);
    while ((c = body_next(body)) >= 0) {
        if (c == stop)
            break;
        if (c == '$') {
            if (!body_variable(body, out))
                return false;
        } else if (c == '`') {
            buf_add(out, STR("\\`"));
        } else if (c != '\\') {
            buf_add_char(out, (char)c);
        } else if ((c = body_next(body)) >= 0) {
            if (keeps_escapes || c == '\\' || c == '`' || c == '$' || c == stop)
                buf_add_char(out, '\\');
            buf_add_char(out, (char)c);
        }
    }
    body->depth--;
    return c >= 0 || stop < 0 || body_missing(body);
}

/* A file with this content, by a command: there is nothing to upload. */
static bool copy_heredoc(struct convert *c, const struct heredoc *doc, struct str dest, struct str owner,
                         struct str mode)
{
    struct str content = content_of(c, doc);
    auto_buf struct buf expanded = buf_make(NULL, LIMIT_DOCKERFILE_BYTES * 2),
                        text = buf_make(NULL, LIMIT_CALL_BODY_BYTES * 2);

    if (doc->is_expanded) {
        if (!body_scan(&(struct body){ .in = content, .err = c->err }, -1, false, &expanded))
            return false;
        content = buf_str(&expanded);
    }
    struct str end = terminator(c, doc->name, content);
    buf_add(&text, STR("E2B_HEREDOC_DEST="));
    if (str_ends(dest, STR("/"))) {
        shell_quote(&text, arena_format(c->arena, "%.*s%.*s", STR_ARG(dest), STR_ARG(doc->name)));
        buf_add_char(&text, '\n');
    } else {
        shell_quote(&text, dest);
        buf_add(&text, STR("\nif [ -d \"$E2B_HEREDOC_DEST\" ]; then E2B_HEREDOC_DEST=\"$E2B_HEREDOC_DEST\"/"));
        shell_quote(&text, doc->name);
        buf_add(&text, STR("; fi\n"));
    }
    const char *quote = doc->is_expanded ? "" : "'";
    buf_format(&text, "mkdir -p \"$(dirname \"$E2B_HEREDOC_DEST\")\" && cat <<%s%.*s%s >\"$E2B_HEREDOC_DEST\"\n", quote,
               STR_ARG(end), quote);
    add_lines(&text, content);
    buf_add(&text, end);
    if (owner.len) {
        buf_add(&text, STR("\nchown "));
        shell_quote(&text, owner);
        buf_add(&text, STR(" \"$E2B_HEREDOC_DEST\""));
    }
    if (mode.len) {
        struct str digits = mode;
        while (digits.len > 1 && str_skip(&digits, STR("0")))
            ;
        buf_format(&text, "\nchmod %.*s \"$E2B_HEREDOC_DEST\"", STR_ARG(digits));
    }
    if (text.overflowed || expanded.overflowed)
        return err_set(c->err, ERR_LIMIT, "the heredoc is too long");
    return add_step(c, STR("RUN"), c->at->whole,
                    (const struct str[]){ arena_copy(c->arena, buf_str(&text)), STR("root") }, 2);
}

/* ---- COPY and ADD ---- */

static bool is_url(struct str s)
{
    size_t i = 0;

    while (i < s.len && (char_is_alnum(s.at[i]) || strchr("+.-", s.at[i])))
        i++;
    return i && char_is_letter(s.at[0]) && str_starts(str_of(s.at + i, s.len - i), STR("://"));
}

/* Neither absolute nor, at its end, above the directory. */
static bool check_source(struct convert *c, struct str source)
{
    struct str rest = source, part;
    int depth = 0;

    if (!source.len)
        return err_set(c->err, ERR_INVALID, "%s has an empty source", arena_text(c->arena, c->at->name));
    bool is_outside = source.at[0] == '/';
    while (!is_outside && str_cut(&rest, '/', &part)) {
        if (str_eq(part, STR("..")))
            depth--;
        else if (part.len && !str_eq(part, STR(".")))
            depth++;
        is_outside = depth < 0;
    }
    return !is_outside ||
           err_set(c->err, ERR_INVALID, "%.60s is outside the directory of the build; sources are relative to it",
                   arena_text(c->arena, source));
}

static bool take_mode(struct convert *c, struct str text, struct str *out)
{
    struct str mode;

    if (!shell_word(&c->expand, c->arena, text, &mode, c->err))
        return false;
    bool is_octal = mode.len == 3 || mode.len == 4;
    for (size_t i = 0; i < mode.len; i++)
        is_octal = is_octal && mode.at[i] >= '0' && mode.at[i] <= '7';
    if (!is_octal)
        return err_set(c->err, ERR_INVALID, "--chmod=%.40s is not an octal mode such as 0755",
                       arena_text(c->arena, mode));
    *out = arena_format(c->arena, "%s%.*s", mode.len == 3 ? "0" : "", STR_ARG(mode));
    return true;
}

static bool copy_source(struct convert *c, struct str raw, struct str dest, struct str owner, struct str mode)
{
    const struct instruction *at = c->at;
    struct heredoc mark;
    struct str source;

    if (!at->is_exec && heredoc_parse(c->arena, raw, &mark)) {
        for (size_t i = at->heredoc_count; i-- > 0;)
            if (str_eq(at->heredocs[i].name, mark.name))
                return copy_heredoc(c, &at->heredocs[i], dest, owner, mode);
        return err_set(c->err, ERR_INVALID, "the heredoc %.40s has no content", arena_text(c->arena, mark.name));
    }
    if (!shell_word(&c->expand, c->arena, raw, &source, c->err))
        return false;
    if (str_eq(at->name, STR("ADD")) && is_url(source))
        return err_set(c->err, ERR_INVALID, "ADD of a URL is not supported; use RUN curl -o FILE URL");
    if (!check_source(c, source))
        return false;
    struct str shown = at->arg_count == 2 ? at->whole
                                          : arena_format(c->arena, "%.*s %.*s %.*s", STR_ARG(at->name), STR_ARG(source),
                                                         STR_ARG(dest));
    return add_step(c, STR("COPY"), shown, (const struct str[]){ source, dest, owner, mode }, 4);
}

static bool convert_copy(struct convert *c)
{
    const struct instruction *at = c->at;
    struct str values[COUNT_OF(copy_flags)] = { { 0 } }, dest, owner = STR(""), mode = STR("");
    struct heredoc mark;

    if (!take_flags(c, copy_flags, COUNT_OF(copy_flags), values))
        return false;
    if (values[FLAG_FROM].at)
        return err_set(
            c->err, ERR_INVALID,
            "--from is not supported: a build has one stage, and files come from the directory of the build");
    if (at->arg_count < 2)
        return err_set(c->err, ERR_INVALID, "%s needs a source and a destination", arena_text(c->arena, at->name));
    if (values[FLAG_CHOWN].at && !shell_word(&c->keep, c->arena, values[FLAG_CHOWN], &owner, c->err))
        return false;
    if (values[FLAG_CHMOD].at && !take_mode(c, values[FLAG_CHMOD], &mode))
        return false;
    struct str last = at->args[at->arg_count - 1];
    if (!at->is_exec && heredoc_parse(c->arena, last, &mark))
        return err_set(c->err, ERR_INVALID, "a heredoc cannot be the destination");
    if (!shell_word(&c->keep, c->arena, last, &dest, c->err))
        return false;
    for (size_t i = 0; i + 1 < at->arg_count; i++)
        if (!copy_source(c, at->args[i], dest, owner, mode))
            return false;
    return true;
}

/* ---- ENV and ARG ---- */

/* Pairs for one step; a name that is there already gets the new value. */
struct pairs {
    struct str *at;
    size_t count; /* of names and values together */
};

static void pairs_set(struct pairs *pairs, struct str name, struct str value)
{
    for (size_t i = 0; i < pairs->count; i += 2)
        if (str_eq(pairs->at[i], name)) {
            pairs->at[i + 1] = value;
            return;
        }
    pairs->at[pairs->count++] = name;
    pairs->at[pairs->count++] = value;
}

/* A value that cannot be known here, because it has a variable of the image for instance, is not known. */
static bool note_value(struct convert *c, struct str name, struct str raw)
{
    struct err ignored;
    struct str value;

    if (shell_word(&c->expand, c->arena, raw, &value, &ignored) && value.len <= LIMIT_DOCKERFILE_VALUE_BYTES)
        return shell_vars_set(&c->vars, name, value, c->err);
    shell_vars_forget(&c->vars, name);
    return true;
}

static bool check_count(struct convert *c, size_t count)
{
    return count <= LIMIT_DOCKERFILE_VARS || err_set(c->err, ERR_LIMIT, "%s has more than %d variables",
                                                     arena_text(c->arena, c->at->name), LIMIT_DOCKERFILE_VARS);
}

static bool convert_env(struct convert *c)
{
    const struct instruction *at = c->at;
    struct str name, value;

    if (!take_flags(c, NULL, 0, NULL) || !check_count(c, at->arg_count / 2))
        return false;
    if (!at->arg_count)
        return err_set(c->err, ERR_INVALID, "ENV needs a name and a value");
    struct pairs pairs = { ARENA_ARRAY(c->arena, struct str, at->arg_count), 0 };
    for (size_t i = 0; i < at->arg_count; i += 2) {
        if (!shell_word(&c->keep, c->arena, at->args[i], &name, c->err) ||
            !shell_word(&c->keep, c->arena, at->args[i + 1], &value, c->err))
            return false;
        if (!name.len)
            return err_set(c->err, ERR_INVALID, "ENV has a variable without a name");
        pairs_set(&pairs, name, value);
        if (!note_value(c, name, at->args[i + 1]))
            return false;
    }
    return add_step(c, STR("ENV"), at->whole, pairs.at, pairs.count);
}

static struct dockerfile_arg *given(struct convert *c, struct str name)
{
    for (size_t i = c->arg_count; i-- > 0;) /* the last one counts */
        if (str_eq(c->args[i].name, name))
            return &c->args[i];
    return NULL;
}

/* One variable of ARG. Without a value it keeps the one that it has: `ARG V` after FROM takes that of an ARG before it. */
static bool convert_one_arg(struct convert *c, struct str word, struct pairs *pairs)
{
    struct str raw = word, name, value = STR("");
    bool has_value = str_has_char(word, '=');

    (void)str_cut(&raw, '=', &name);
    if (!shell_word(&c->keep, c->arena, name, &name, c->err))
        return false;
    if (!name.len)
        return err_set(c->err, ERR_INVALID, "ARG has a variable without a name");
    struct dockerfile_arg *arg = given(c, name);
    if (arg) {
        arg->is_used = true;
        pairs_set(pairs, name, arg->value);
        return shell_vars_set(&c->vars, name, arg->value, c->err);
    }
    if (!has_value && shell_vars_get(&c->vars, name))
        return true;
    if (has_value && !shell_word(&c->keep, c->arena, raw, &value, c->err))
        return false;
    pairs_set(pairs, name, value);
    return has_value ? note_value(c, name, raw) : shell_vars_set(&c->vars, name, STR(""), c->err);
}

static bool convert_arg(struct convert *c)
{
    const struct instruction *at = c->at;

    if (!take_flags(c, NULL, 0, NULL) || !check_count(c, at->arg_count))
        return false;
    if (!at->arg_count)
        return err_set(c->err, ERR_INVALID, "ARG needs a name");
    struct pairs pairs = { ARENA_ARRAY(c->arena, struct str, at->arg_count * 2), 0 };
    for (size_t i = 0; i < at->arg_count; i++)
        if (!convert_one_arg(c, at->args[i], &pairs))
            return false;
    return !pairs.count || add_step(c, STR("ENV"), at->whole, pairs.at, pairs.count);
}

/* ---- USER, WORKDIR, CMD, ENTRYPOINT ---- */

static bool convert_single(struct convert *c, bool *has)
{
    const struct instruction *at = c->at;
    struct str value;

    if (!take_flags(c, NULL, 0, NULL))
        return false;
    if (at->arg_count != 1)
        return err_set(c->err, ERR_INVALID, "%s needs a value", arena_text(c->arena, at->name));
    *has = true;
    return shell_word(&c->keep, c->arena, at->args[0], &value, c->err) && add_simple(c, at->name, value);
}

static bool convert_user(struct convert *c)
{
    return convert_single(c, &c->has_user);
}

static bool convert_workdir(struct convert *c)
{
    return convert_single(c, &c->has_workdir);
}

static bool take_start(struct convert *c, struct start *out)
{
    *out = (struct start){ true, c->at->is_exec, c->at->line, c->at->arg_count, c->at->args };
    return take_flags(c, NULL, 0, NULL);
}

static bool convert_cmd(struct convert *c)
{
    return take_start(c, &c->cmd);
}

static bool convert_entrypoint(struct convert *c)
{
    return take_start(c, &c->entrypoint);
}

static struct str start_text(struct convert *c, const struct start *start)
{
    return start->is_exec ? join_quoted(c, start->args, start->arg_count) : start->arg_count ? start->args[0] : STR("");
}

/* Docker's rules: CMD has the arguments of an ENTRYPOINT in exec form; one in shell form takes none. */
static void set_start(struct convert *c)
{
    const struct start *entry = &c->entrypoint, *cmd = &c->cmd;
    struct str text = start_text(c, entry->is_set ? entry : cmd);

    if (entry->is_set && entry->is_exec && cmd->is_set && cmd->arg_count) {
        struct str more = cmd->is_exec
                              ? start_text(c, cmd)
                              : join_quoted(c, (const struct str[]){ STR("/bin/sh"), STR("-c"), cmd->args[0] }, 3);
        text = arena_format(c->arena, "%.*s%s%.*s", STR_ARG(text), text.len ? " " : "", STR_ARG(more));
    }
    struct str rest = text;
    while (rest.len && char_is_blank(rest.at[0]))
        rest = str_of(rest.at + 1, rest.len - 1);
    if (!rest.len)
        return;
    c->out.start_cmd = text;
    c->out.start_line = entry->is_set ? entry->line : cmd->line;
}

/* ---- all of it ---- */

static const struct {
    struct str name;
    bool (*convert)(struct convert *c);
    const char *note; /* instead: why it has no effect */
} meanings[] = {
    { STR_INIT("FROM"), convert_from, NULL },
    { STR_INIT("RUN"), convert_run, NULL },
    { STR_INIT("COPY"), convert_copy, NULL },
    { STR_INIT("ADD"), convert_copy, NULL },
    { STR_INIT("WORKDIR"), convert_workdir, NULL },
    { STR_INIT("USER"), convert_user, NULL },
    { STR_INIT("ENV"), convert_env, NULL },
    { STR_INIT("ARG"), convert_arg, NULL },
    { STR_INIT("CMD"), convert_cmd, NULL },
    { STR_INIT("ENTRYPOINT"), convert_entrypoint, NULL },
    { STR_INIT("EXPOSE"), NULL, "EXPOSE is not needed: every port of a sandbox can be reached" },
    { STR_INIT("VOLUME"), NULL, "VOLUME is ignored: a sandbox has one disk" },
    { STR_INIT("LABEL"), NULL, "LABEL is ignored" },
    { STR_INIT("MAINTAINER"), NULL, "MAINTAINER is ignored" },
    { STR_INIT("HEALTHCHECK"), NULL, "HEALTHCHECK is ignored; --ready CMD says when the start command is ready" },
    { STR_INIT("SHELL"), NULL, "SHELL is ignored: RUN uses bash" },
    { STR_INIT("STOPSIGNAL"), NULL, "STOPSIGNAL is ignored" },
    { STR_INIT("ONBUILD"), NULL, "ONBUILD is ignored" },
};

static bool convert_one(struct convert *c, const struct instruction *at)
{
    c->at = at;
    for (size_t i = 0; i < COUNT_OF(meanings); i++) {
        if (!str_eq(at->name, meanings[i].name))
            continue;
        if (!c->has_from && !str_eq(at->name, STR("FROM")) && !str_eq(at->name, STR("ARG")))
            return err_set(c->err, ERR_INVALID, "%s before FROM: a Dockerfile begins with FROM IMAGE",
                           meanings[i].name.at);
        if (meanings[i].convert)
            return meanings[i].convert(c);
        add_note(c, str_from(meanings[i].note));
        return true;
    }
    return err_set(c->err, ERR_INVALID, "unknown instruction: %.40s", arena_text(c->arena, at->name));
}

static bool convert_all(struct convert *c, struct str text)
{
    struct dockerfile_lines lines;
    struct instruction at;
    bool is_there;

    dockerfile_lines_init(&lines, c->arena, text);
    for (;;) {
        if (!dockerfile_lines_next(&lines, &at, &is_there, c->err))
            return false;
        if (!is_there)
            break;
        c->keep.escape = c->expand.escape = lines.escape;
        if (!convert_one(c, &at))
            return dockerfile_at_line(c->err, at.line);
    }
    c->at = NULL;
    return c->has_from || err_set(c->err, ERR_INVALID, "there is no FROM: a Dockerfile begins with FROM IMAGE");
}

bool dockerfile_parse(struct arena *arena, struct str text, struct dockerfile_arg *args, size_t arg_count,
                      struct dockerfile *out, struct err *err)
{
    struct convert c = { .arena = arena,
                         .vars = { .arena = arena },
                         .args = args,
                         .arg_count = arg_count,
                         .out = { .from = STR(""), .start_cmd = STR("") },
                         .err = err };

    c.expand.vars = &c.vars;
    if (text.len > LIMIT_DOCKERFILE_BYTES)
        return err_set(err, ERR_LIMIT, "it has more than %d bytes", LIMIT_DOCKERFILE_BYTES);
    if (!utf8_valid(text) || str_has_char(text, '\0'))
        return err_set(err, ERR_INVALID, "it is not text in UTF-8");
    if (!add_simple(&c, STR("USER"), STR("root")) || !add_simple(&c, STR("WORKDIR"), STR("/")) ||
        !convert_all(&c, text))
        return false;
    set_start(&c);
    if ((!c.has_user && !add_simple(&c, STR("USER"), STR("user"))) ||
        (!c.has_workdir && !add_simple(&c, STR("WORKDIR"), STR("/home/user"))))
        return false;
    *out = c.out;
    return true;
}
