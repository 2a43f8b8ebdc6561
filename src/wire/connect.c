/*
 * The reader gathers one envelope at a time in `partial`: first the header, then as many bytes as it announces. The
 * envelope stays there, as the payload that was handed out, until the next call clears it.
 */
#include "wire/connect.h"

#include <assert.h>

#include "base/pack.h"
#include "wire/json.h"

static const struct {
    struct str name;
    unsigned status;
} codes[CONNECT_CODE_COUNT] = {
    [CONNECT_OK] = { STR_INIT("ok"), 200 },
    [CONNECT_CANCELED] = { STR_INIT("canceled"), 499 },
    [CONNECT_UNKNOWN] = { STR_INIT("unknown"), 500 },
    [CONNECT_INVALID_ARGUMENT] = { STR_INIT("invalid_argument"), 400 },
    [CONNECT_DEADLINE_EXCEEDED] = { STR_INIT("deadline_exceeded"), 504 },
    [CONNECT_NOT_FOUND] = { STR_INIT("not_found"), 404 },
    [CONNECT_ALREADY_EXISTS] = { STR_INIT("already_exists"), 409 },
    [CONNECT_PERMISSION_DENIED] = { STR_INIT("permission_denied"), 403 },
    [CONNECT_RESOURCE_EXHAUSTED] = { STR_INIT("resource_exhausted"), 429 },
    [CONNECT_FAILED_PRECONDITION] = { STR_INIT("failed_precondition"), 400 },
    [CONNECT_ABORTED] = { STR_INIT("aborted"), 409 },
    [CONNECT_OUT_OF_RANGE] = { STR_INIT("out_of_range"), 400 },
    [CONNECT_UNIMPLEMENTED] = { STR_INIT("unimplemented"), 501 },
    [CONNECT_INTERNAL] = { STR_INIT("internal"), 500 },
    [CONNECT_UNAVAILABLE] = { STR_INIT("unavailable"), 503 },
    [CONNECT_DATA_LOSS] = { STR_INIT("data_loss"), 500 },
    [CONNECT_UNAUTHENTICATED] = { STR_INIT("unauthenticated"), 401 },
};

struct str connect_code_name(enum connect_code code)
{
    return codes[code].name;
}

unsigned connect_code_status(enum connect_code code)
{
    return codes[code].status;
}

bool connect_code_parse(struct str name, enum connect_code *out_code)
{
    for (enum connect_code code = CONNECT_CANCELED; code < CONNECT_CODE_COUNT; code++) {
        if (str_eq(name, codes[code].name)) {
            *out_code = code;
            return true;
        }
    }
    return false;
}

/* ---- writing ---- */

void connect_write(struct buf *out, unsigned flags, struct str payload)
{
    size_t at = connect_begin(out);

    buf_add(out, payload);
    connect_end(out, at, flags);
}

size_t connect_begin(struct buf *out)
{
    size_t at = out->len;

    pack_u8(out, 0);
    pack_u32(out, 0);
    return at;
}

void connect_end(struct buf *out, size_t begun_at, unsigned flags)
{
    if (out->overflowed)
        return;
    assert(out->len >= begun_at + CONNECT_HEADER_BYTES);
    size_t length = out->len - begun_at - CONNECT_HEADER_BYTES;
    assert(length <= UINT32_MAX);
    char *header = out->data + begun_at;
    header[0] = (char)flags;
    for (size_t i = 0; i < 4; i++)
        header[1 + i] = (char)(length >> (8 * (3 - i)));
}

static void add_error(struct json_out *out, enum connect_code code, struct str message)
{
    json_out_str(out, "code", connect_code_name(code));
    if (message.len)
        json_out_str(out, "message", message);
}

void connect_write_end(struct buf *out, enum connect_code code, struct str message)
{
    size_t at = connect_begin(out);
    struct json_out json = json_out_to(out);

    json_out_object(&json, NULL);
    if (code != CONNECT_OK) {
        json_out_object(&json, "error");
        add_error(&json, code, message);
        json_out_end(&json);
    }
    json_out_end(&json);
    connect_end(out, at, CONNECT_END_STREAM);
}

void connect_write_error(struct buf *out, enum connect_code code, struct str message)
{
    struct json_out json = json_out_to(out);

    json_out_object(&json, NULL);
    add_error(&json, code, message);
    json_out_end(&json);
}

/* ---- reading ---- */

void connect_reader_init(struct connect_reader *reader)
{
    *reader = (struct connect_reader){ .partial = buf_make(NULL, LIMIT_RPC_BYTES + CONNECT_HEADER_BYTES) };
}

void connect_reader_done(struct connect_reader *reader)
{
    buf_done(&reader->partial);
}

/* Move up to `want` bytes in all into partial. */
static bool gather(struct connect_reader *reader, struct str *in, size_t want)
{
    size_t take = MIN(want - reader->partial.len, in->len);

    buf_add(&reader->partial, str_of(in->at, take));
    in->at += take;
    in->len -= take;
    return reader->partial.len == want;
}

static bool read_header(const char *bytes, unsigned *out_flags, uint32_t *out_length, struct err *err)
{
    struct unpack header = unpack_from(str_of(bytes, CONNECT_HEADER_BYTES));
    unsigned flags = unpack_u8(&header);
    uint32_t length = unpack_u32(&header);

    if (flags & CONNECT_COMPRESSED)
        return err_set(err, ERR_INVALID, "compressed envelopes are not supported");
    if (flags & ~(unsigned)CONNECT_END_STREAM)
        return err_set(err, ERR_INVALID, "unknown envelope flags 0x%02x", flags);
    if (length > LIMIT_RPC_BYTES)
        return err_set(err, ERR_LIMIT, "message of %u bytes is larger than %d", length, LIMIT_RPC_BYTES);
    *out_flags = flags;
    *out_length = length;
    return true;
}

enum connect_read connect_reader_next(struct connect_reader *reader, struct str *in, unsigned *out_flags,
                                      struct str *out_payload, struct err *err)
{
    uint32_t length;

    if (reader->failed) {
        (void)err_set(err, ERR_INVALID, "the stream is already broken");
        return CONNECT_BAD;
    }
    /* The payload of the last call is valid until this one. */
    if (reader->partial.len >= CONNECT_HEADER_BYTES) {
        unsigned flags;
        if (read_header(reader->partial.data, &flags, &length, err) &&
            reader->partial.len == (size_t)length + CONNECT_HEADER_BYTES)
            buf_clear(&reader->partial);
    }
    if (reader->partial.len < CONNECT_HEADER_BYTES && !gather(reader, in, CONNECT_HEADER_BYTES))
        return CONNECT_MORE;
    if (!read_header(reader->partial.data, out_flags, &length, err)) {
        reader->failed = true;
        return CONNECT_BAD;
    }
    if (!gather(reader, in, (size_t)length + CONNECT_HEADER_BYTES))
        return CONNECT_MORE;
    *out_payload = str_of(reader->partial.data + CONNECT_HEADER_BYTES, length);
    return CONNECT_ENVELOPE;
}

bool connect_reader_is_whole(const struct connect_reader *reader)
{
    unsigned flags;
    uint32_t length;
    struct err ignored;

    if (reader->failed || reader->partial.len == 0)
        return !reader->failed;
    return reader->partial.len >= CONNECT_HEADER_BYTES &&
           read_header(reader->partial.data, &flags, &length, &ignored) &&
           reader->partial.len == (size_t)length + CONNECT_HEADER_BYTES;
}

/* ---- headers ---- */

bool connect_timeout_parse(struct str text, uint64_t *out_ms, struct err *err)
{
    struct str whole, fraction = text;
    uint64_t ms = 0, ignored;

    if (!text.len) {
        *out_ms = 0;
        return true;
    }
    (void)str_cut(&fraction, '.', &whole);
    bool has_fraction = whole.len != text.len;
    if (!whole.len || whole.len > 10 || !str_to_u64(whole, UINT64_MAX, &ms) ||
        (has_fraction && (fraction.len > 18 || !str_to_u64(fraction, UINT64_MAX, &ignored))))
        return err_set(err, ERR_INVALID, "protocol error: invalid timeout: \"%.*s\"", (int)MIN(text.len, 40), text.at);
    *out_ms = ms;
    return true;
}
