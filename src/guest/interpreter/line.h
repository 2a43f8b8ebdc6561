/*
 * line.h - the lines of an answer to /execute: one JSON object each, pure ASCII, ended by a newline.
 *
 * Pure ASCII, because SDKs break on anything else: one decodes every network chunk by itself, another splits lines at
 * U+2028. Bytes that are not UTF-8 become U+FFFD.
 */
#ifndef GUEST_INTERPRETER_LINE_H
#define GUEST_INTERPRETER_LINE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/str.h"

#define LINE_KEEPALIVE STR("{\"type\": \"keepalive\"}\n")
#define LINE_END STR("{\"type\": \"end_of_execution\"}\n")

enum line_stream {
    LINE_STDOUT,
    LINE_STDERR,
};

void line_add_count(struct buf *out, long long execution_count);
void line_add_stream(struct buf *out, enum line_stream stream, struct str text, int64_t wall_us);
void line_add_error(struct buf *out, struct str name, struct str value, struct str traceback);
/*
 * A bundle of MIME type → value, as in Jupyter: known types under the API's short names, all others in `extra`. A
 * quoted text loses its quotes: clients expect the value of a string.
 */
void line_add_result(struct buf *out, const json_t *bundle, bool is_main);

/* The length of the whole characters in the text. Behind them is the beginning of one whose rest has not come yet. */
size_t line_whole_chars(struct str text);
/* Is it one JSON object in printable ASCII? Then it is one line. */
bool line_is_clean(struct str line);

#endif
