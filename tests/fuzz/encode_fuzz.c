/*
 * Bytes as text and back: what decodes must encode to something that decodes to the same. Times and deadlines, too, which
 * come as text.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/limits.h"
#include "wire/connect.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void fuzz_base64(struct str text, struct arena *arena)
{
    unsigned char *bytes = arena_alloc(arena, text.len / 4 * 3 + 3);
    size_t len, again_len;

    if (!base64_decode(text, bytes, &len))
        return;
    check(len <= text.len / 4 * 3 + 3);
    char *encoded = arena_alloc(arena, base64_size(len) + 1);
    size_t encoded_len = base64_encode(str_of(bytes, len), encoded);
    check(encoded_len == base64_size(len));
    unsigned char *again = arena_alloc(arena, encoded_len / 4 * 3 + 3);
    check(base64_decode(str_of(encoded, encoded_len), again, &again_len));
    check(again_len == len && memcmp(again, bytes, len) == 0);
}

static void fuzz_hex(struct str text, struct arena *arena)
{
    unsigned char *bytes = arena_alloc(arena, text.len + 1);
    char *again = arena_alloc(arena, text.len + 1);
    size_t len;

    if (!hex_bytes(text, bytes, text.len + 1, &len))
        return;
    check(2 * len == text.len);
    check(str_eq_nocase(str_from(hex_text(str_of(bytes, len), again)), text));
}

static void fuzz_percent(struct str text, struct arena *arena)
{
    struct str decoded, again = STR("");
    struct buf encoded = buf_make(arena, 3 * text.len + 1);

    if (!percent_decode(arena, text, PERCENT_PLUS_IS_SPACE, &decoded))
        return;
    check(decoded.len <= text.len);
    percent_encode(&encoded, decoded);
    check(!encoded.overflowed && percent_decode(arena, buf_str(&encoded), PERCENT_PLUS_IS_PLUS, &again));
    check(str_eq(again, decoded));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str text = str_of(data, size);
    struct arena arena;
    struct err err;
    uint64_t timeout_ms = 0;
    int64_t at_us;

    arena_init(&arena);
    fuzz_base64(text, &arena);
    fuzz_hex(text, &arena);
    fuzz_percent(text, &arena);
    struct str repaired = utf8_repair(&arena, text);
    check(utf8_valid(repaired) && (!utf8_valid(text) || str_eq(repaired, text)));
    (void)!connect_timeout_parse(text, &timeout_ms, &err);
    (void)!clock_parse(text, &at_us);
    arena_done(&arena);
    return 0;
}
