/*
 * However a message is cut into pieces, it reads the same; what was read writes and reads back as the same; and no
 * message is framed in two ways.
 */
#include <stdio.h>
#include <stdlib.h>

#include "wire/http1.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

#define MUST(condition)                                                           \
    do {                                                                          \
        if (!(condition)) {                                                       \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                              \
        }                                                                         \
    } while (0)

enum kind { REQUEST, RESPONSE, RESPONSE_TO_HEAD };

static enum http_parse parse(struct str in, enum kind kind, struct http_head *head, size_t *used, struct err *err)
{
    return kind == REQUEST ? http_parse_request(in, head, used, err)
                           : http_parse_response(in, kind == RESPONSE_TO_HEAD, head, used, err);
}

static bool is_inside(struct str s, struct str whole)
{
    return s.len == 0 || (s.at >= whole.at && s.at + s.len <= whole.at + whole.len);
}

static void check_head(const struct http_head *head, enum kind kind, struct str bytes)
{
    const struct str *length = http_header(head, STR("content-length"));
    const struct str *coding = http_header(head, STR("transfer-encoding"));

    MUST(head->header_count <= LIMIT_HEADERS);
    MUST(head->minor <= 1);
    for (size_t i = 0; i < head->header_count; i++) {
        MUST(is_inside(head->headers[i].name, bytes) && head->headers[i].name.len > 0);
        MUST(is_inside(head->headers[i].value, bytes));
        for (size_t j = 0; j < head->headers[i].value.len; j++)
            MUST(!memchr("\r\n", head->headers[i].value.at[j], 3)); /* the zero, too */
    }
    MUST(!(length && coding)); /* refused before anything else is asked */
    switch (head->framing) {
    case HTTP_LENGTH:
        MUST(length && !coding);
        break;
    case HTTP_CHUNKED:
        MUST(coding && !length && head->minor == 1);
        break;
    case HTTP_NO_BODY:
        MUST(kind != REQUEST || (!length && !coding));
        break;
    case HTTP_UNTIL_CLOSE:
        MUST(kind == RESPONSE && !head->keep_alive);
        break;
    }
    if (kind == REQUEST) {
        MUST(head->path.at[0] == '/' || head->method == HTTP_OPTIONS);
        MUST(head->target.len <= LIMIT_TARGET_BYTES);
        MUST(is_inside(head->path, bytes) && is_inside(head->query, bytes));
    } else {
        MUST(head->status >= 100 && head->status <= 999);
    }
}

static bool heads_agree(const struct http_head *a, const struct http_head *b)
{
    if (a->header_count != b->header_count || a->framing != b->framing || a->length != b->length ||
        a->keep_alive != b->keep_alive || a->upgrade != b->upgrade || a->expect_continue != b->expect_continue ||
        a->status != b->status || a->method != b->method || !str_eq(a->target, b->target))
        return false;
    for (size_t i = 0; i < a->header_count; i++)
        if (!str_eq(a->headers[i].name, b->headers[i].name) || !str_eq(a->headers[i].value, b->headers[i].value))
            return false;
    return true;
}

/* What was understood, written by us, is understood in the same way. */
static void check_rewrite(const struct http_head *head, enum kind kind)
{
    static struct http_head again;
    auto_buf struct buf out = buf_make(NULL, 4 * LIMIT_HEAD_BYTES);
    size_t used;
    struct err err;

    if (head->minor == 0)
        return; /* we write 1.1 only */
    if (kind == REQUEST)
        http_write_request_line(&out, head->method_text, head->target);
    else
        http_write_status_line(&out, head->status);
    for (size_t i = 0; i < head->header_count; i++)
        http_write_header(&out, head->headers[i].name, head->headers[i].value);
    http_write_head_end(&out);
    MUST(!out.overflowed);
    if (out.len > LIMIT_HEAD_BYTES)
        return; /* ": " where there was ":" */
    MUST(parse(buf_str(&out), kind, &again, &used, &err) == HTTP_DONE);
    MUST(used == out.len);
    MUST(heads_agree(head, &again));
}

static void check_kind(struct str in, enum kind kind)
{
    static struct http_head head, early;
    size_t used = 0, early_used = 0;
    struct err err;
    enum http_parse whole = parse(in, kind, &head, &used, &err);

    /* Every prefix says "more" until one says what the whole says; byte by byte while that is cheap. */
    size_t step = in.len > 2048 ? in.len / 64 : 1;
    for (size_t len = 0; len <= in.len; len = len == in.len ? len + 1 : MIN(len + step, in.len)) {
        enum http_parse got = parse(str_of(in.at, len), kind, &early, &early_used, &err);
        if (got == HTTP_MORE)
            continue;
        MUST(got == whole);
        if (got == HTTP_DONE)
            MUST(used == early_used && len >= used && heads_agree(&head, &early));
        break;
    }
    if (whole == HTTP_BAD)
        MUST(err.message[0] && (kind != REQUEST || (head.status >= 400 && head.status <= 505)));
    if (whole != HTTP_DONE)
        return;
    MUST(used <= in.len && used <= LIMIT_HEAD_BYTES);
    check_head(&head, kind, str_of(in.at, used));
    check_rewrite(&head, kind);
}

/* The body, read in pieces of `step` bytes; `used` is how much of `in` it took. */
static enum http_parse unchunk(struct str in, size_t step, struct buf *body, size_t *out_used)
{
    struct http_chunks chunks = { 0 };
    enum http_parse got = HTTP_MORE;
    struct err err;

    *out_used = 0;
    while (*out_used < in.len && got == HTTP_MORE) {
        struct str part = str_of(in.at + *out_used, MIN(step, in.len - *out_used)), piece;
        while (part.len && got == HTTP_MORE) {
            const char *before = part.at;
            got = http_chunks_next(&chunks, &part, &piece, &err);
            MUST(part.at > before || got != HTTP_MORE);
            *out_used += (size_t)(part.at - before);
            if (got != HTTP_BAD)
                buf_add(body, piece);
        }
    }
    return got;
}

static void check_chunks(struct str in)
{
    auto_buf struct buf whole = buf_make(NULL, in.len + 1), parts = buf_make(NULL, in.len + 1),
                        again = buf_make(NULL, in.len + 1), written = buf_make(NULL, in.len + 100);
    size_t used, parts_used;
    enum http_parse got = unchunk(in, in.len ? in.len : 1, &whole, &used);

    for (size_t step = 1; step <= 7; step += 3) {
        buf_clear(&parts);
        MUST(unchunk(in, step, &parts, &parts_used) == got);
        MUST(str_eq(buf_str(&whole), buf_str(&parts)) && used == parts_used);
    }
    if (got != HTTP_DONE)
        return;
    char line[HTTP_CHUNK_LINE_BYTES];
    if (whole.len) {
        buf_add(&written, str_of(line, http_chunk_line(whole.len, line)));
        buf_add(&written, buf_str(&whole));
        buf_add(&written, STR("\r\n"));
    }
    buf_add(&written, HTTP_LAST_CHUNK);
    MUST(unchunk(buf_str(&written), written.len, &again, &used) == HTTP_DONE && used == written.len);
    MUST(str_eq(buf_str(&whole), buf_str(&again)));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str in = str_of(data, size);

    check_kind(in, REQUEST);
    check_kind(in, RESPONSE);
    check_kind(in, RESPONSE_TO_HEAD);
    check_chunks(in);
    return 0;
}
