/*
 * json.h - JSON in, by jansson; JSON out, by a small streaming writer.
 *
 * Reading: parse whole, then take fields by name. A getter fails only on a wrong type (or a missing required field) and
 * says which field; `null` counts as absent. Outputs are untouched when the field is absent.
 */
#ifndef WIRE_JSON_H
#define WIRE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

/* ---- reading ---- */

static inline void json_done_at(json_t **json_at)
{
    json_decref(*json_at);
}
#define auto_json __attribute__((cleanup(json_done_at)))

/*
 * Any JSON value. Refuses invalid UTF-8, \u0000, trailing bytes, nesting past LIMIT_JSON_DEPTH, more than
 * LIMIT_JSON_VALUES values; duplicate keys: the last wins. NULL and err on failure; the caller's to release.
 */
json_t *json_parse(struct str text, struct err *err) must_use;
/* The same with another limit, for answers to us and results of code. A value may cost 300 bytes of memory. */
json_t *json_parse_large(struct str text, size_t values_max, struct err *err) must_use;
/* The same, but it must be an object. */
json_t *json_parse_object(struct str text, struct err *err) must_use;

enum json_need {
    JSON_OPTIONAL,
    JSON_REQUIRED,
};

/* Borrowed from the value. */
bool json_take_str(const json_t *object, const char *name, enum json_need need, struct str *out, struct err *err)
    must_use;
/* A whole number within [least, most]; 12.0 counts as whole, and so does the text "12" (proto3 JSON). */
bool json_take_int(const json_t *object, const char *name, enum json_need need, int64_t least, int64_t most,
                   int64_t *out, struct err *err) must_use;
bool json_take_bool(const json_t *object, const char *name, enum json_need need, bool *out, struct err *err) must_use;
/* NULL (and true) when absent. Borrowed. */
bool json_take_object(const json_t *object, const char *name, enum json_need need, const json_t **out, struct err *err)
    must_use;
bool json_take_array(const json_t *object, const char *name, enum json_need need, const json_t **out, struct err *err)
    must_use;
/* Is the field there and not null? */
bool json_has(const json_t *object, const char *name);

static inline struct str json_str(const json_t *string)
{
    return str_of(json_string_value(string), json_string_length(string));
}

/* ---- writing ---- */

/*
 * Writes commas and quotes itself, into a buf (check overflowed at the end). Strings are escaped; broken UTF-8 becomes
 * U+FFFD.
 */
enum { JSON_OUT_DEPTH = 16 };

struct json_out {
    struct buf *buf;
    unsigned depth;
    bool more[JSON_OUT_DEPTH];     /* the next value at this depth needs a comma */
    bool is_array[JSON_OUT_DEPTH]; /* ends with a square bracket */
};

struct json_out json_out_to(struct buf *buf);
/* In an object every value has a name; in an array and at the top it is NULL. */
void json_out_object(struct json_out *out, const char *name);
void json_out_array(struct json_out *out, const char *name);
void json_out_end(struct json_out *out); /* of the innermost object or array */
void json_out_str(struct json_out *out, const char *name, struct str value);
void json_out_int(struct json_out *out, const char *name, int64_t value);
void json_out_bool(struct json_out *out, const char *name, bool value);
void json_out_null(struct json_out *out, const char *name);
/* name is not a C string (a metadata key). */
void json_out_pair(struct json_out *out, struct str name, struct str value);
/* Text that is JSON already. */
void json_out_raw(struct json_out *out, const char *name, struct str json);

#endif
