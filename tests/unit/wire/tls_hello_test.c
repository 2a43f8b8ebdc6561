#include "wire/tls_hello.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/limits.h"
#include "test.h"

/* Hellos as programs of Debian 12 send them. */
/* openssl 3.0, s_client -servername www.example.com */
static const char openssl_hex[] =
    "160301013c0100013803035d792f5761fe9277b72bce59dbed403328e2c128ed38c2f8d6687d48a82fd63c209cee73b1bffe"
    "341a3f7d921c2879c67cf14726b862e083015f17f87f4912d26f003e130213031301c02cc030009fcca9cca8ccaac02bc02f"
    "009ec024c028006bc023c0270067c00ac0140039c009c0130033009d009c003d003c0035002f00ff010000b1000000140012"
    "00000f7777772e6578616d706c652e636f6d000b000403000102000a00160014001d0017001e001900180100010101020103"
    "0104002300000016000000170000000d002a0028040305030603080708080809080a080b0804080508060401050106010303"
    "03010302040205020602002b0009080304030303020301002d00020101003300260024001d00202111ba4702832f9c362472"
    "e5e03b8ee2356a86b5f0c2794a9e13e52a9f235161";
/* the same with -tls1_2 */
static const char openssl_tls12_hex[] =
    "16030100cf010000cb0303909e2a9af367641f05fdb27fd760cfbca6cf5b4b7d8da4cfc8b24246bcd43771000038c02cc030"
    "009fcca9cca8ccaac02bc02f009ec024c028006bc023c0270067c00ac0140039c009c0130033009d009c003d003c0035002f"
    "00ff0100006a00000014001200000f7777772e6578616d706c652e636f6d000b000403000102000a000c000a001d0017001e"
    "00190018002300000016000000170000000d002a0028040305030603080708080809080a080b080408050806040105010601"
    "030303010302040205020602";
/* the same with -noservername */
static const char openssl_noname_hex[] =
    "1603010124010001200303b8e34302607b3d694e5b982ce0b577d29916b99a5d411189b13665c6f54aa10f204ec92998411f"
    "3d070052e77ee5267f2da19d1332d78e4d145460682b57c4090f003e130213031301c02cc030009fcca9cca8ccaac02bc02f"
    "009ec024c028006bc023c0270067c00ac0140039c009c0130033009d009c003d003c0035002f00ff01000099000b00040300"
    "0102000a00160014001d0017001e0019001801000101010201030104002300000016000000170000000d002a002804030503"
    "0603080708080809080a080b080408050806040105010601030303010302040205020602002b000908030403030302030100"
    "2d00020101003300260024001d00208d80f9933f634d4d78389a7f39d81e1de325eab090d17d301d554b6ac7d84c22";
/* curl 7.88 with OpenSSL: offers h2 and http/1.1 */
static const char curl_hex[] =
    "1603010200010001fc03032b2165a9d00149007adb0e1cfb5ef58801dfae945296310cf55b4e25d9ca31f320a9f6dc81a057"
    "1a2471fc568575535e5e4d66b47d4189c0f7fd9aeea3c1b80d4e003e130213031301c02cc030009fcca9cca8ccaac02bc02f"
    "009ec024c028006bc023c0270067c00ac0140039c009c0130033009d009c003d003c0035002f00ff01000175000000140012"
    "00000f7777772e6578616d706c652e636f6d000b000403000102000a00160014001d0017001e001900180100010101020103"
    "01040010000e000c02683208687474702f312e31001600000017000000310000000d002a0028040305030603080708080809"
    "080a080b080408050806040105010601030303010302040205020602002b0009080304030303020301002d00020101003300"
    "260024001d00207f4abee398cf8ca18762540798bdf448834f9a69690b822ba4f7c2893e943432001500ae00000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000";
/* Python 3.11, whose program offers h2 only */
static const char python_hex[] =
    "1603010200010001fc03036d892281eee0e178374f19a5f87f9fda88ccf35d26afda6cdcd12e8b6eb5a0882062ec6a24366b"
    "209f2d14b177e3bd9bfc462521ebb735c036c0ced0b4f34516c80024130213031301c02cc030c02bc02fcca9cca8c024c028"
    "c023c027009f009e006b006700ff0100018f00000014001200000f7777772e6578616d706c652e636f6d000b000403000102"
    "000a00160014001d0017001e0019001801000101010201030104002300000010000500030268320016000000170000000d00"
    "2a0028040305030603080708080809080a080b080408050806040105010601030303010302040205020602002b0005040304"
    "0303002d00020101003300260024001d002067f47dfaa274ef49f231a58c5491daaa7b44e6104eafcd2e3ddf92a8d9284225"
    "001500d500000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000";

static struct err err;

static struct str bytes_of(const char *hex, unsigned char *room, size_t room_size)
{
    size_t len;

    assert_true(hex_bytes(str_from(hex), room, room_size, &len));
    return str_of(room, len);
}

static void real_hellos_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *hex, *name;
        bool offers_http1;
    } rows[] = {
        { openssl_hex, "www.example.com", true }, { openssl_tls12_hex, "www.example.com", true },
        { openssl_noname_hex, "", true },         { curl_hex, "www.example.com", true },
        { python_hex, "www.example.com", false },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        unsigned char room[2048];
        struct str whole = bytes_of(rows[i].hex, room, sizeof room);
        struct tls_hello hello;
        /* From the first byte on: more, more, …, done; what follows does not matter. */
        for (size_t len = 0; len < whole.len; len++) {
            assert_int_equal(tls_hello_parse(str_of(whole.at, len), &hello, &err), TLS_HELLO_MORE);
            assert_in_range(hello.more, 1, whole.len - len);
        }
        assert_int_equal(tls_hello_parse(whole, &hello, &err), TLS_HELLO_DONE);
        assert_string_equal(hello.name, rows[i].name);
        assert_int_equal(hello.offers_http1, rows[i].offers_http1);
        room[whole.len] = 'x';
        assert_int_equal(tls_hello_parse(str_of(room, whole.len + 1), &hello, &err), TLS_HELLO_DONE);
    }
}

static void add_record(struct buf *out, struct str bytes)
{
    buf_add(out, STR("\x16\3\1"));
    buf_add_char(out, (char)(bytes.len >> 8));
    buf_add_char(out, (char)bytes.len);
    buf_add(out, bytes);
}

static void a_hello_split_over_records_is_read(void **state)
{
    (void)state;
    unsigned char room[2048];
    struct str whole = bytes_of(curl_hex, room, sizeof room);

    for (size_t piece = 1; piece < whole.len; piece += piece < 8 ? 1 : 61) {
        auto_buf struct buf split = buf_make(NULL, 65536);
        struct tls_hello hello;
        for (size_t at = 5; at < whole.len; at += piece)
            add_record(&split, str_of(whole.at + at, MIN(piece, whole.len - at)));
        for (size_t len = 0; len < split.len; len++)
            assert_int_equal(tls_hello_parse(str_of(split.data, len), &hello, &err), TLS_HELLO_MORE);
        assert_int_equal(tls_hello_parse(buf_str(&split), &hello, &err), TLS_HELLO_DONE);
        assert_string_equal(hello.name, "www.example.com");
    }
}

/* A hello in one record, with these extensions. */
static enum tls_hello_parse parse_with(struct str extensions, struct tls_hello *out)
{
    auto_buf struct buf message = buf_make(NULL, 65536), record = buf_make(NULL, 65536);
    size_t size = 2 + 32 + 1 + 4 + 2 + 2 + extensions.len;

    buf_add(&message, STR("\1\0"));
    buf_add_char(&message, (char)(size >> 8));
    buf_add_char(&message, (char)size);
    buf_add(&message, STR("\3\3"
                          "0123456789abcdef0123456789abcdef"
                          "\0"
                          "\0\2\x13\1"
                          "\1\0"));
    buf_add_char(&message, (char)(extensions.len >> 8));
    buf_add_char(&message, (char)extensions.len);
    buf_add(&message, extensions);
    add_record(&record, buf_str(&message));
    return tls_hello_parse(buf_str(&record), out, &err);
}

#define NAME_A           \
    "\0\0\0\6\0\4\0\0\1" \
    "a"

static void extensions_are_read_strictly(void **state)
{
    (void)state;
    static const struct {
        struct str extensions;
        const char *name; /* NULL: bad */
    } rows[] = {
        { STR_INIT(""), "" },
        { STR_INIT(NAME_A), "a" },
        { STR_INIT("\x12\x34\0\2xx" NAME_A "\x12\x35\0\0"), "a" },
        { STR_INIT("\0\0\0\x0e\0\x0c\0\0\x09"
                   "192.0.2.1"),
          "192.0.2.1" },                          /* who calls it a name finds out */
        { STR_INIT(NAME_A NAME_A), NULL },        /* twice */
        { STR_INIT("\0\0\0\0"), NULL },           /* empty */
        { STR_INIT("\0\0\0\2\0\0"), NULL },       /* an empty list */
        { STR_INIT("\0\0\0\5\0\3\0\0\0"), NULL }, /* an empty name */
        { STR_INIT("\0\0\0\6\0\4\1\0\1"
                   "a"),
          NULL }, /* of another type */
        { STR_INIT("\0\0\0\x0a\0\x08\0\0\1"
                   "a"
                   "\0\0\1"
                   "b"),
          NULL }, /* two names */
        { STR_INIT("\0\0\0\7\0\5\0\0\2"
                   "a\0"),
          NULL }, /* a zero byte */
        { STR_INIT("\0\0\0\7\0\5\0\0\2"
                   "a "),
          NULL },
        { STR_INIT("\0\0\0\7\0\5\0\0\2"
                   "a\xff"),
          NULL },
        { STR_INIT("\0\0\0\6\0\4\0\0\2"
                   "a"),
          NULL }, /* longer than its list */
        { STR_INIT("\0\0\0\6\0\5\0\0\1"
                   "a"),
          NULL }, /* a list longer than its extension */
        { STR_INIT("\0\0\0\7\0\4\0\0\1"
                   "ab"),
          NULL }, /* bytes behind the list */
        { STR_INIT("\0\0\xff\xff\0\4\0\0\1"
                   "a"),
          NULL },
        { STR_INIT("\x12\x34\0"), NULL },
        { STR_INIT("\x12\x34\0\1"), NULL },
        { STR_INIT("\0\x10\0\5\0\3\2h2"), "" },
        { STR_INIT("\0\x10\0\5\0\3\3h2"), NULL },
        { STR_INIT("\0\x10\0\5\0\3\2h2"
                   "\0\x10\0\5\0\3\2h2"),
          NULL },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tls_hello hello;
        enum tls_hello_parse got = parse_with(rows[i].extensions, &hello);
        if (got != (rows[i].name ? TLS_HELLO_DONE : TLS_HELLO_BAD))
            fail_msg("row %zu: %d", i, got);
        if (rows[i].name)
            assert_string_equal(hello.name, rows[i].name);
    }
}

static void long_names_have_a_limit(void **state)
{
    (void)state;
    for (unsigned size = 254; size <= 257; size++) {
        auto_buf struct buf e = buf_make(NULL, 1024);
        struct tls_hello hello;
        const unsigned sizes[] = { 0, size + 5, size + 3, size };
        for (unsigned i = 0; i < 4; i++) {
            if (i == 3)
                buf_add_char(&e, '\0'); /* the type of the name */
            buf_add_char(&e, (char)(sizes[i] >> 8));
            buf_add_char(&e, (char)sizes[i]);
        }
        for (unsigned i = 0; i < size; i++)
            buf_add_char(&e, 'a');
        assert_int_equal(parse_with(buf_str(&e), &hello), size <= 255 ? TLS_HELLO_DONE : TLS_HELLO_BAD);
        if (size <= 255)
            assert_int_equal(strlen(hello.name), size);
    }
}

static void protocols_are_noticed_and_an_encrypted_hello_has_its_outer_name(void **state)
{
    (void)state;
    struct tls_hello hello;

    assert_int_equal(parse_with(STR("\xfe\x0d\0\3abc" NAME_A), &hello), TLS_HELLO_DONE);
    assert_string_equal(hello.name, "a");
    assert_int_equal(parse_with(STR("\0\x10\0\x0e\0\x0c\2h2\x08http/1.1"), &hello), TLS_HELLO_DONE);
    assert_true(hello.offers_http1);
    assert_int_equal(parse_with(STR("\0\x10\0\x0e\0\x0c\2h2\x08http/1.0"), &hello), TLS_HELLO_DONE);
    assert_false(hello.offers_http1);
}

static void what_is_not_tls_is_told_apart_at_the_first_bytes(void **state)
{
    (void)state;
    struct tls_hello hello;

    assert_int_equal(tls_hello_parse(STR(""), &hello, &err), TLS_HELLO_MORE);
    assert_int_equal(tls_hello_parse(STR("\x16"), &hello, &err), TLS_HELLO_MORE);
    assert_int_equal(tls_hello_parse(STR("G"), &hello, &err), TLS_HELLO_NONE);
    assert_int_equal(tls_hello_parse(STR("SSH-2.0-x\r\n"), &hello, &err), TLS_HELLO_NONE);
    assert_int_equal(tls_hello_parse(STR("\x80\x2e\1\3\1"), &hello, &err), TLS_HELLO_NONE); /* SSL 2 */
    assert_int_equal(tls_hello_parse(STR("\x16\2"), &hello, &err), TLS_HELLO_NONE);
    assert_int_equal(tls_hello_parse(STR("\x15\3\1\0\2\2\x28"), &hello, &err), TLS_HELLO_NONE); /* an alert */
}

static void absurd_claims_are_refused_at_once(void **state)
{
    (void)state;
    struct tls_hello hello;

    /* a message of 16 MiB, a record above 16 KiB, an empty record, another message, another record in between */
    assert_int_equal(tls_hello_parse(STR("\x16\3\1\x40\0\1\xff\xff\xff"), &hello, &err), TLS_HELLO_BAD);
    assert_int_equal(tls_hello_parse(STR("\x16\3\1\xff\xff"), &hello, &err), TLS_HELLO_BAD);
    assert_int_equal(tls_hello_parse(STR("\x16\3\1\0\0"), &hello, &err), TLS_HELLO_BAD);
    assert_int_equal(tls_hello_parse(STR("\x16\3\1\0\4\2\0\0\1"), &hello, &err), TLS_HELLO_BAD);
    assert_int_equal(tls_hello_parse(STR("\x16\3\1\0\5\1\0\0\x50"
                                         "a"
                                         "\x17\3\1\0\1"),
                                     &hello, &err),
                     TLS_HELLO_BAD);
}

static void a_hello_that_never_ends_is_given_up(void **state)
{
    (void)state;
    auto_buf struct buf drip = buf_make(NULL, 1 << 20);
    struct tls_hello hello;
    enum tls_hello_parse got = TLS_HELLO_MORE;

    add_record(&drip, STR("\1\0\x3f\0")); /* 16,128 bytes, one in each record */
    while (drip.len < (64 << 10) && got == TLS_HELLO_MORE) {
        add_record(&drip, STR("x"));
        got = tls_hello_parse(buf_str(&drip), &hello, &err);
    }
    assert_int_equal(got, TLS_HELLO_BAD);
    assert_true(drip.len <= LIMIT_TLS_HELLO_RECORD_BYTES + 6);
}

static void any_byte_may_be_wrong(void **state)
{
    (void)state;
    unsigned char room[2048];
    struct str whole = bytes_of(curl_hex, room, sizeof room);
    struct tls_hello hello;

    for (size_t at = 0; at < whole.len; at++) {
        unsigned char was = room[at];
        for (unsigned value = 0; value < 256; value++) {
            room[at] = (unsigned char)value;
            (void)!tls_hello_parse(whole, &hello, &err);
        }
        room[at] = was;
    }
    /* An exact copy on the heap for each length: the sanitizer sees a read past the end. */
    for (size_t len = 1; len < whole.len; len++) {
        char *copy = malloc(len);
        memcpy(copy, room, len);
        assert_int_equal(tls_hello_parse(str_of(copy, len), &hello, &err), TLS_HELLO_MORE);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(real_hellos_are_read),
        CASE(a_hello_split_over_records_is_read),
        CASE(extensions_are_read_strictly),
        CASE(long_names_have_a_limit),
        CASE(protocols_are_noticed_and_an_encrypted_hello_has_its_outer_name),
        CASE(what_is_not_tls_is_told_apart_at_the_first_bytes),
        CASE(absurd_claims_are_refused_at_once),
        CASE(a_hello_that_never_ends_is_given_up),
        CASE(any_byte_may_be_wrong),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
