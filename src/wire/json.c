#include "wire/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "base/encode.h"
#include "base/limits.h"

/* ---- reading ---- */

/*
 * Counts depth and values before jansson allocates anything. On its own it recurses 2,048 levels deep, which is too
 * much stack for guestd, and needs up to a hundred bytes of memory for a byte of text ("[{},{},…"). Up to the first
 * syntax error in the text, this loop and jansson agree on which parts are quoted.
 */
static bool check_shape(struct str text, size_t values_max, struct err *err)
{
    unsigned depth = 0;
    size_t values = 1;
    bool quoted = false;

    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            values++;
            if (++depth > LIMIT_JSON_DEPTH)
                return err_set(err, ERR_LIMIT, "JSON nested deeper than %d levels", LIMIT_JSON_DEPTH);
        } else if (c == ',') {
            values++;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
        if (values > values_max)
            return err_set(err, ERR_LIMIT, "JSON with more than %zu values", values_max);
    }
    return true;
}

json_t *json_parse_large(struct str text, size_t values_max, struct err *err)
{
    json_error_t why;

    if (!check_shape(text, values_max, err))
        return NULL;
    json_t *value = json_loadb(text.at ? text.at : "", text.len, JSON_DECODE_ANY, &why);
    if (!value && json_error_code(&why) == json_error_null_character) /* jansson's text names one of its own flags */
        (void)err_set(err, ERR_INVALID, "invalid JSON at byte %d: a zero byte (\\u0000) in a text", why.position);
    else if (!value)
        (void)err_set(err, ERR_INVALID, "invalid JSON at byte %d: %.100s", why.position, why.text);
    return value;
}

json_t *json_parse(struct str text, struct err *err)
{
    return json_parse_large(text, LIMIT_JSON_VALUES, err);
}

json_t *json_parse_object(struct str text, struct err *err)
{
    json_t *value = json_parse(text, err);

    if (value && !json_is_object(value)) {
        json_decref(value);
        (void)err_set(err, ERR_INVALID, "the JSON body must be an object");
        return NULL;
    }
    return value;
}

/* The field, or NULL when it is absent or null. */
static const json_t *field(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return value && !json_is_null(value) ? value : NULL;
}

bool json_has(const json_t *object, const char *name)
{
    return field(object, name) != NULL;
}

static bool missing(const char *name, enum json_need need, struct err *err)
{
    return need == JSON_OPTIONAL || err_set(err, ERR_INVALID, "'%s' is required", name);
}

bool json_take_str(const json_t *object, const char *name, enum json_need need, struct str *out, struct err *err)
{
    const json_t *value = field(object, name);

    if (!value)
        return missing(name, need, err);
    if (!json_is_string(value))
        return err_set(err, ERR_INVALID, "'%s' must be a string", name);
    *out = json_str(value);
    return true;
}

/* proto3 JSON writes 64-bit numbers as text, and some writers print whole numbers with a fraction or an exponent. */
static bool whole_number(const json_t *value, int64_t *out)
{
    double real;

    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    if (json_is_real(value)) {
        real = json_real_value(value);
    } else if (json_is_string(value)) {
        struct str text = json_str(value), digits = text;
        uint64_t size;
        bool negative = str_skip(&digits, STR("-"));
        if (!digits.len || digits.len > 20)
            return false;
        if (str_to_u64(digits, INT64_MAX, &size)) {
            *out = negative ? -(int64_t)size : (int64_t)size;
            return true;
        }
        /* Otherwise it must be a number in JSON's own grammar ("12.0", "1e3"). */
        auto_json json_t *again = json_loadb(text.at, text.len, JSON_DECODE_ANY, NULL);
        if (!json_is_real(again))
            return false;
        real = json_real_value(again);
    } else {
        return false;
    }
    /* 2^63 is a double, the largest int64_t is not: compare before casting. */
    if (!(real >= -0x1p63 && real < 0x1p63) || real != trunc(real))
        return false;
    *out = (int64_t)real;
    return true;
}

bool json_take_int(const json_t *object, const char *name, enum json_need need, int64_t least, int64_t most,
                   int64_t *out, struct err *err)
{
    const json_t *value = field(object, name);
    int64_t number;

    if (!value)
        return missing(name, need, err);
    if (!whole_number(value, &number))
        return err_set(err, ERR_INVALID, "'%s' must be a whole number", name);
    if (number < least || number > most)
        return err_set(err, ERR_INVALID, "'%s' must be between %" PRId64 " and %" PRId64, name, least, most);
    *out = number;
    return true;
}

bool json_take_bool(const json_t *object, const char *name, enum json_need need, bool *out, struct err *err)
{
    const json_t *value = field(object, name);

    if (!value)
        return missing(name, need, err);
    if (!json_is_boolean(value))
        return err_set(err, ERR_INVALID, "'%s' must be true or false", name);
    *out = json_is_true(value);
    return true;
}

bool json_take_object(const json_t *object, const char *name, enum json_need need, const json_t **out, struct err *err)
{
    const json_t *value = field(object, name);

    if (!value && need == JSON_REQUIRED)
        return missing(name, need, err);
    if (value && !json_is_object(value))
        return err_set(err, ERR_INVALID, "'%s' must be an object", name);
    *out = value;
    return true;
}

bool json_take_array(const json_t *object, const char *name, enum json_need need, const json_t **out, struct err *err)
{
    const json_t *value = field(object, name);

    if (!value && need == JSON_REQUIRED)
        return missing(name, need, err);
    if (value && !json_is_array(value))
        return err_set(err, ERR_INVALID, "'%s' must be an array", name);
    *out = value;
    return true;
}

/* ---- writing ---- */

struct json_out json_out_to(struct buf *buf)
{
    return (struct json_out){ .buf = buf };
}

static void add_quoted(struct buf *buf, struct str text)
{
    static const char short_form[0x20] = { ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't' };
    struct arena scratch;

    arena_init(&scratch);
    text = utf8_repair(&scratch, text);
    buf_add_char(buf, '"');
    size_t plain_from = 0;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.at[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_add(buf, str_of(text.at + plain_from, i - plain_from));
        plain_from = i + 1;
        if (c >= 0x20 || short_form[c]) {
            char escape[2] = { '\\', c >= 0x20 ? (char)c : short_form[c] };
            buf_add(buf, str_of(escape, sizeof escape));
        } else {
            buf_format(buf, "\\u%04x", c);
        }
    }
    buf_add(buf, str_of(text.at + plain_from, text.len - plain_from));
    buf_add_char(buf, '"');
    arena_done(&scratch);
}

/* Writes the comma and the name in front of a value. */
static void begin_value(struct json_out *out, const struct str *name)
{
    if (out->more[out->depth])
        buf_add_char(out->buf, ',');
    out->more[out->depth] = true;
    if (name) {
        add_quoted(out->buf, *name);
        buf_add_char(out->buf, ':');
    }
}

static void begin(struct json_out *out, const char *name)
{
    struct str text = str_from(name);

    begin_value(out, name ? &text : NULL);
}

static void open_level(struct json_out *out, const char *name, char bracket)
{
    begin(out, name);
    buf_add_char(out->buf, bracket);
    assert(out->depth + 1 < JSON_OUT_DEPTH);
    out->depth++;
    out->more[out->depth] = false;
    out->is_array[out->depth] = bracket == '[';
}

void json_out_object(struct json_out *out, const char *name)
{
    open_level(out, name, '{');
}

void json_out_array(struct json_out *out, const char *name)
{
    open_level(out, name, '[');
}

void json_out_end(struct json_out *out)
{
    assert(out->depth > 0);
    buf_add_char(out->buf, out->is_array[out->depth] ? ']' : '}');
    out->depth--;
}

void json_out_str(struct json_out *out, const char *name, struct str value)
{
    begin(out, name);
    add_quoted(out->buf, value);
}

void json_out_int(struct json_out *out, const char *name, int64_t value)
{
    begin(out, name);
    buf_format(out->buf, "%" PRId64, value);
}

void json_out_bool(struct json_out *out, const char *name, bool value)
{
    begin(out, name);
    buf_add(out->buf, value ? STR("true") : STR("false"));
}

void json_out_null(struct json_out *out, const char *name)
{
    begin(out, name);
    buf_add(out->buf, STR("null"));
}

void json_out_pair(struct json_out *out, struct str name, struct str value)
{
    begin_value(out, &name);
    add_quoted(out->buf, value);
}

void json_out_raw(struct json_out *out, const char *name, struct str json)
{
    begin(out, name);
    buf_add(out->buf, json);
}
