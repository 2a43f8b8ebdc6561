#include "guest/interpreter/line.h"

#include "base/clock.h"
#include "base/encode.h"
#include "wire/json.h"

/* ---- text ---- */

static void add_unit(struct buf *out, unsigned unit)
{
    static const char hex[] = "0123456789abcdef";
    char text[6] = { '\\', 'u', hex[unit >> 12], hex[unit >> 8 & 15], hex[unit >> 4 & 15], hex[unit & 15] };

    buf_add(out, str_of(text, sizeof text));
}

/* The length that the first byte of a character announces; 0 if no character begins with it. */
static size_t char_length(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* Adds the first character of text as escapes; returns its length. */
static size_t add_char(struct buf *out, struct str text)
{
    const unsigned char *at = (const unsigned char *)text.at;
    size_t len = char_length(at[0]);

    if (len < 2 || len > text.len || !utf8_valid(str_of(text.at, len))) {
        add_unit(out, 0xfffd);
        return 1;
    }
    unsigned code = at[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++)
        code = code << 6 | (at[i] & 0x3fu);
    if (code >= 0x10000) {
        add_unit(out, 0xd800 + ((code - 0x10000) >> 10));
        add_unit(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
    } else {
        add_unit(out, code);
    }
    return len;
}

static void add_quoted(struct buf *out, struct str text)
{
    buf_add_char(out, '"');
    for (size_t i = 0, plain; i < text.len;) {
        for (plain = i; plain < text.len; plain++) {
            unsigned char c = (unsigned char)text.at[plain];
            if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
                break;
        }
        buf_add(out, str_of(text.at + i, plain - i));
        i = plain;
        if (i == text.len)
            break;
        unsigned char c = (unsigned char)text.at[i];
        if (c >= 0x80) {
            i += add_char(out, str_of(text.at + i, text.len - i));
            continue;
        }
        if (c == '\n')
            buf_add(out, STR("\\n"));
        else if (c == '"' || c == '\\')
            buf_add(out, str_of((char[]){ '\\', (char)c }, 2));
        else
            add_unit(out, c);
        i++;
    }
    buf_add_char(out, '"');
}

static void add_field(struct buf *out, const char *name, struct str value)
{
    buf_format(out, ", \"%s\": ", name);
    add_quoted(out, value);
}

size_t line_whole_chars(struct str text)
{
    for (size_t back = 1; back <= 3 && back <= text.len; back++) {
        unsigned char c = (unsigned char)text.at[text.len - back];
        if ((c & 0xc0) == 0x80)
            continue;
        return char_length(c) > back ? text.len - back : text.len;
    }
    return text.len;
}

bool line_is_clean(struct str line)
{
    if (line.len < 2 || line.at[0] != '{' || line.at[line.len - 1] != '}')
        return false;
    for (size_t i = 0; i < line.len; i++)
        if (line.at[i] < 0x20 || line.at[i] > 0x7e)
            return false;
    return true;
}

/* ---- lines ---- */

void line_add_count(struct buf *out, long long execution_count)
{
    buf_format(out, "{\"type\": \"number_of_executions\", \"execution_count\": %lld}\n", execution_count);
}

void line_add_stream(struct buf *out, enum line_stream stream, struct str text, int64_t wall_us)
{
    char time[CLOCK_TEXT_BYTES];
    struct str stamp = str_from(clock_text(wall_us, time));

    buf_format(out, "{\"type\": \"%s\"", stream == LINE_STDOUT ? "stdout" : "stderr");
    add_field(out, "text", text);
    if (str_ends(stamp, STR("Z")))
        stamp.len--;
    buf_format(out, ", \"timestamp\": \"%.*s+00:00\"}\n", STR_ARG(stamp));
}

void line_add_error(struct buf *out, struct str name, struct str value, struct str traceback)
{
    buf_add(out, STR("{\"type\": \"error\""));
    add_field(out, "name", name);
    add_field(out, "value", value);
    add_field(out, "traceback", traceback);
    buf_add(out, STR("}\n"));
}

/* ---- results ---- */

static const struct {
    const char *field, *mime;
} known[] = {
    { "text", "text/plain" },        { "html", "text/html" },
    { "markdown", "text/markdown" }, { "svg", "image/svg+xml" },
    { "png", "image/png" },          { "jpeg", "image/jpeg" },
    { "pdf", "application/pdf" },    { "latex", "text/latex" },
    { "json", "application/json" },  { "javascript", "application/javascript" },
    { "data", "e2b/data" },          { "chart", "e2b/chart" },
};

static bool is_known(const char *mime)
{
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].mime, mime) == 0)
            return true;
    return false;
}

static void add_json(struct buf *out, const char *name, const json_t *value)
{
    buf_format(out, ", \"%s\": ", name);
    if (json_is_string(value)) {
        add_quoted(out, json_str(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENSURE_ASCII | JSON_ENCODE_ANY | JSON_COMPACT);
    buf_add(out, text ? str_from(text) : STR("null"));
    free(text);
}

static struct str without_quotes(struct str text)
{
    if (text.len > 1 && text.at[0] == text.at[text.len - 1] && (text.at[0] == '\'' || text.at[0] == '"'))
        return str_of(text.at + 1, text.len - 2);
    return text;
}

void line_add_result(struct buf *out, const json_t *bundle, bool is_main)
{
    auto_json json_t *extra = json_object();
    const char *mime;
    json_t *value;

    buf_add(out, STR("{\"type\": \"result\""));
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        value = json_object_get(bundle, known[i].mime);
        if (i == 0 && json_is_string(value))
            add_field(out, known[i].field, without_quotes(json_str(value)));
        else if (value && !json_is_null(value))
            add_json(out, known[i].field, value);
    }
    json_object_foreach((json_t *)bundle, mime, value) if (!is_known(mime) && !json_is_null(value))(void)
        json_object_set(extra, mime, value);
    add_json(out, "extra", extra);
    buf_format(out, ", \"is_main_result\": %s}\n", is_main ? "true" : "false");
}
