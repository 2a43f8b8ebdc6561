#include "wire/websocket.h"

#include "test.h"

static struct err err;

/* One frame of a client, with the mask 1 2 3 4. */
static void frame(struct buf *out, unsigned first, struct str text)
{
    static const unsigned char mask[4] = { 1, 2, 3, 4 };

    buf_add_char(out, (char)first);
    if (text.len < 126) {
        buf_add_char(out, (char)(0x80 | text.len));
    } else if (text.len < 65536) {
        buf_add_char(out, (char)(0x80 | 126));
        buf_add_char(out, (char)(text.len >> 8));
        buf_add_char(out, (char)text.len);
    } else {
        buf_add_char(out, (char)(0x80 | 127));
        for (int shift = 56; shift >= 0; shift -= 8)
            buf_add_char(out, (char)((uint64_t)text.len >> shift));
    }
    buf_add(out, str_of(mask, 4));
    for (size_t i = 0; i < text.len; i++)
        buf_add_char(out, (char)(text.at[i] ^ mask[i % 4]));
}

enum { LAST = 0x80, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

/* Feeds it in pieces and writes down what came. "1:hello 9: bad 1002" */
static const char *read_all(struct str in, size_t piece)
{
    static char told[8192];
    struct buf out = buf_make(NULL, sizeof told - 1);
    enum websocket_step step = WEBSOCKET_MORE;
    struct websocket_message message;
    struct str rest = str_of(in.at, 0);
    struct websocket ws;
    unsigned status = 0;
    size_t given = 0;

    websocket_init(&ws);
    while (step != WEBSOCKET_BAD && given < in.len) {
        size_t more = MIN(piece, in.len - given);
        given += more;
        rest.len += more;
        while ((step = websocket_next(&ws, &rest, &message, &status, &err)) == WEBSOCKET_DONE) {
            buf_format(&out, "%d:", message.kind);
            if (message.kind == WEBSOCKET_CLOSE)
                buf_format(&out, "%u,", message.status);
            buf_format(&out, "%.*s ", (int)MIN(message.text.len, (size_t)40), message.text.at);
        }
    }
    if (step == WEBSOCKET_BAD)
        buf_format(&out, "bad %u", status);
    websocket_done(&ws);
    memcpy(told, out.data ? out.data : "", out.len);
    told[out.len] = '\0';
    buf_done(&out);
    return told;
}

#define READS(in, text)                                                  \
    do {                                                                 \
        for (size_t piece = 1; piece < 40; piece += 3)                   \
            assert_string_equal(read_all(buf_str(in), piece), text);     \
        assert_string_equal(read_all(buf_str(in), (in)->len + 1), text); \
    } while (0)

/* RFC 6455, section 1.3 */
static void the_handshake_has_the_published_answer(void **state)
{
    char accept[WEBSOCKET_ACCEPT_BYTES];

    (void)state;
    assert_true(websocket_accept(STR("dGhlIHNhbXBsZSBub25jZQ=="), accept));
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_false(websocket_accept(STR(""), accept));
    assert_false(websocket_accept(STR("dGhlIHNhbXBsZSBub25j"), accept));     /* 15 bytes */
    assert_false(websocket_accept(STR("dGhlIHNhbXBsZSBub25jZWVl"), accept)); /* 18 */
    assert_false(websocket_accept(STR("dGhlIHNhbXBsZSBub25jZ?=="), accept));
}

static void messages_come_whole_and_in_pieces(void **state)
{
    auto_buf struct buf in = buf_make(NULL, 1 << 20);

    (void)state;
    frame(&in, LAST | TEXT, STR("hello"));
    frame(&in, LAST | TEXT, STR(""));
    frame(&in, TEXT, STR("one "));
    frame(&in, LAST | PING, STR("p")); /* between pieces */
    frame(&in, 0, STR("two "));
    frame(&in, 0, STR(""));
    frame(&in, LAST, STR("three"));
    frame(&in, LAST | BINARY, STR("\xff\xfe"));
    frame(&in, LAST | PONG, STR(""));
    frame(&in, LAST | CLOSE,
          STR("\x03\xe8"
              "bye"));
    READS(&in, "1:hello 1: 9:p 1:one two three 2:\xff\xfe 10: 8:1000,bye ");
    buf_clear(&in);
    frame(&in, LAST | CLOSE, STR(""));
    READS(&in, "8:1005, ");
    /* A character may be cut between pieces. */
    buf_clear(&in);
    frame(&in, TEXT, STR("\xc3"));
    frame(&in, LAST, STR("\xa4"));
    READS(&in, "1:\xc3\xa4 ");
}

static void long_messages_are_read_up_to_the_limit(void **state)
{
    auto_buf struct buf in = buf_make(NULL, 1 << 20), text = buf_make(NULL, 1 << 20);

    (void)state;
    for (size_t i = 0; i < LIMIT_WEBSOCKET_BYTES; i++)
        buf_add_char(&text, 'x');
    frame(&in, LAST | TEXT, buf_str(&text));
    assert_string_equal(read_all(buf_str(&in), in.len), "1:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ");
    buf_add_char(&text, 'x');
    buf_clear(&in);
    frame(&in, LAST | TEXT, buf_str(&text));
    assert_string_equal(read_all(buf_str(&in), 4), "bad 1009"); /* as soon as the length is there */
    buf_clear(&in);
    frame(&in, TEXT, str_of(text.data, LIMIT_WEBSOCKET_BYTES));
    frame(&in, 0, STR(""));
    frame(&in, LAST, STR("x"));
    assert_string_equal(read_all(buf_str(&in), in.len), "bad 1009");
    /* The length of 64 bits. */
    buf_clear(&in);
    buf_add(&in, STR("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff"));
    assert_string_equal(read_all(buf_str(&in), in.len), "bad 1009");
}

static void what_breaks_the_rules_is_refused(void **state)
{
    static const struct {
        struct str bytes;
        const char *text;
    } wrong[] = {
        { STR_INIT("\x81\x01x"), "bad 1002" },        /* no mask */
        { STR_INIT("\xc1\x80\1\2\3\4"), "bad 1002" }, /* reserved bits */
        { STR_INIT("\x91\x80\1\2\3\4"), "bad 1002" }, /* the same */
        { STR_INIT("\x83\x80\1\2\3\4"), "bad 1002" }, /* unknown kinds */
        { STR_INIT("\x8b\x80\1\2\3\4"), "bad 1002" },
        { STR_INIT("\x09\x80\1\2\3\4"), "bad 1002" },         /* a ping in pieces */
        { STR_INIT("\x89\xfe\0\x7e"), "bad 1002" },           /* a ping of 126 bytes */
        { STR_INIT("\x80\x80\1\2\3\4"), "bad 1002" },         /* a piece of nothing */
        { STR_INIT("\x01\x80\1\2\3\4\x81\x80"), "bad 1002" }, /* a message in a message */
        { STR_INIT("\x81\xfe\0\x7d"), "bad 1002" },           /* lengths in a longer form */
        { STR_INIT("\x81\xff\0\0\0\0\0\0\xff\xff"), "bad 1002" },
        { STR_INIT("\x81\xff\x80\0\0\0\0\0\0\0"), "bad 1002" },
        { STR_INIT("\x88\x81\0\0\0\0\x03"), "bad 1002" },     /* half a status */
        { STR_INIT("\x88\x82\0\0\0\0\x03\xed"), "bad 1002" }, /* 1005 */
        { STR_INIT("\x88\x82\0\0\0\0\x03\xee"), "bad 1002" }, /* 1006 */
        { STR_INIT("\x88\x82\0\0\0\0\x03\xe7"), "bad 1002" }, /* 999 */
        { STR_INIT("\x88\x82\0\0\0\0\x07\xd0"), "bad 1002" }, /* 2000 */
        { STR_INIT("\x88\x82\0\0\0\0\x13\x88"), "bad 1002" }, /* 5000 */
        { STR_INIT("\x88\x83\0\0\0\0\x03\xe8\xff"), "bad 1007" },
        { STR_INIT("\x81\x81\0\0\0\0\xff"), "bad 1007" }, /* no UTF-8 */
        { STR_INIT("\x81\x82\0\0\0\0\xc0\x80"), "bad 1007" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        for (size_t piece = 1; piece <= wrong[i].bytes.len; piece++) {
            const char *got = read_all(wrong[i].bytes, piece);
            if (strcmp(got, wrong[i].text))
                fail_msg("case %zu: '%s'", i, got);
        }
}

static void half_a_frame_waits(void **state)
{
    auto_buf struct buf in = buf_make(NULL, 1024);

    (void)state;
    frame(&in, LAST | TEXT, STR("hello"));
    for (size_t len = 0; len < in.len; len++)
        assert_string_equal(read_all(str_of(in.data, len), len + 1), "");
}

static void frames_are_written_in_their_shortest_form(void **state)
{
    static const struct {
        size_t len;
        struct str head;
    } sizes[] = {
        { 0, STR_INIT("\x81\0") },
        { 125, STR_INIT("\x81\x7d") },
        { 126, STR_INIT("\x81\x7e\0\x7e") },
        { 65535, STR_INIT("\x81\x7e\xff\xff") },
        { 65536, STR_INIT("\x81\x7f\0\0\0\0\0\1\0\0") },
    };
    static char text[65536];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        auto_buf struct buf out = buf_make(NULL, 1 << 20);
        websocket_write(&out, WEBSOCKET_TEXT, str_of(text, sizes[i].len));
        assert_int_equal(out.len, sizes[i].head.len + sizes[i].len);
        assert_memory_equal(out.data, sizes[i].head.at, sizes[i].head.len);
    }
    auto_buf struct buf out = buf_make(NULL, 1024);
    websocket_write_close(&out, WEBSOCKET_TRY_LATER, STR("slow"));
    assert_true(str_eq(buf_str(&out), STR("\x88\x06\x03\xf5slow")));
    buf_clear(&out);
    websocket_write_close(&out, WEBSOCKET_NO_STATUS, STR("x"));
    assert_true(str_eq(buf_str(&out), STR("\x88\0")));
    /* A reason that is too long is cut between characters. */
    buf_clear(&out);
    char reason[201] = "";
    for (size_t i = 0; i < 200; i += 2)
        memcpy(reason + i, "\xc3\xa4", 2);
    websocket_write_close(&out, WEBSOCKET_NORMAL, str_from(reason));
    assert_int_equal(out.len, 2 + 2 + 122);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_handshake_has_the_published_answer),
        cmocka_unit_test(messages_come_whole_and_in_pieces),
        cmocka_unit_test(long_messages_are_read_up_to_the_limit),
        cmocka_unit_test(what_breaks_the_rules_is_refused),
        cmocka_unit_test(half_a_frame_waits),
        cmocka_unit_test(frames_are_written_in_their_shortest_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
