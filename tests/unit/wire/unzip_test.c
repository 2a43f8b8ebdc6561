#include "wire/unzip.h"

#include <zlib.h>
#include <zstd.h>

#include "base/buf.h"
#include "test.h"

enum { PLENTY = 1 << 24 };

static void gzip(struct buf *out, struct str plain)
{
    z_stream z = { 0 };
    static char room[1 << 21];

    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)plain.at;
    z.avail_in = (uInt)plain.len;
    z.next_out = (Bytef *)room;
    z.avail_out = sizeof room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    buf_add(out, str_of(room, sizeof room - z.avail_out));
    assert_int_equal(deflateEnd(&z), Z_OK);
}

static void zstd(struct buf *out, struct str plain)
{
    static char room[1 << 21];
    size_t len = ZSTD_compress(room, sizeof room, plain.at, plain.len, 3);

    assert_false(ZSTD_isError(len));
    buf_add(out, str_of(room, len));
}

static bool undo(struct str packed, size_t piece, size_t room_size, uint64_t most, struct buf *out, struct err *err)
{
    struct unzip *unzip = unzip_new(most);
    static char room[1 << 16];
    bool fine = true;

    for (size_t at = 0; fine && at < packed.len; at += piece) {
        struct str in = str_of(packed.at + at, MIN(piece, packed.len - at));
        size_t len = 1;
        while (fine && (in.len || len)) {
            fine = unzip_read(unzip, &in, room, room_size, &len, err);
            if (fine)
                buf_add(out, str_of(room, len));
        }
    }
    fine = fine && unzip_finish(unzip, err);
    unzip_free(unzip);
    return fine;
}

static void gives(const struct buf *packed, struct str want)
{
    static const size_t pieces[] = { 1, 3, 4096, PLENTY }, rooms[] = { 1, 13, 1 << 16 };

    for (size_t i = 0; i < COUNT_OF(pieces) * COUNT_OF(rooms); i++) {
        auto_buf struct buf got = buf_make(NULL, PLENTY);
        struct err err;
        if (!undo(buf_str(packed), pieces[i / COUNT_OF(rooms)], rooms[i % COUNT_OF(rooms)], PLENTY, &got, &err))
            fail_msg("%s", err.message);
        assert_true(str_eq(buf_str(&got), want));
    }
}

static void fails(const struct buf *packed, enum err_kind kind, const char *want)
{
    for (size_t piece = 1; piece <= PLENTY; piece *= 64) {
        auto_buf struct buf got = buf_make(NULL, PLENTY);
        struct err err;
        assert_false(undo(buf_str(packed), piece, 100, 1 << 16, &got, &err));
        assert_int_equal(err.kind, kind);
        assert_non_null(strstr(err.message, want));
    }
}

static struct str text(void)
{
    static char room[100000];

    for (size_t i = 0; i < sizeof room; i++)
        room[i] = (char)(i * i >> 5);
    return str_of(room, sizeof room);
}

static void gzip_and_zstd_are_undone_and_other_bytes_are_passed_on(void **state)
{
    (void)state;
    auto_buf struct buf packed = buf_make(NULL, PLENTY);

    gives(&packed, STR(""));
    gzip(&packed, text());
    gives(&packed, text());
    buf_clear(&packed);
    zstd(&packed, text());
    gives(&packed, text());
    buf_clear(&packed);
    buf_add(&packed, text());
    gives(&packed, text());
    static const struct str plain[] = { STR_INIT("x"), STR_INIT("\x1f plain"), STR_INIT("\x28\xb5\x2f plain"),
                                        STR_INIT("\x51\x2a\x4d plain"), STR_INIT("Plain") };
    for (size_t i = 0; i < COUNT_OF(plain); i++) {
        buf_clear(&packed);
        buf_add(&packed, plain[i]);
        gives(&packed, plain[i]);
    }
}

static void several_members_are_one_stream(void **state)
{
    (void)state;
    static const struct str skipped = STR_INIT("\x5a\x2a\x4d\x18\x03\0\0\0abc");
    auto_buf struct buf packed = buf_make(NULL, PLENTY);

    gzip(&packed, STR("one, "));
    gzip(&packed, STR(""));
    gzip(&packed, STR("two"));
    gives(&packed, STR("one, two"));
    buf_add(&packed, STR("\0\0\0\0"));
    gives(&packed, STR("one, two"));
    buf_clear(&packed);
    buf_add(&packed, skipped);
    zstd(&packed, STR("one, "));
    buf_add(&packed, skipped);
    zstd(&packed, STR(""));
    zstd(&packed, STR("two"));
    buf_add(&packed, skipped);
    gives(&packed, STR("one, two"));
}

static void a_stream_that_is_cut_or_damaged_is_told(void **state)
{
    (void)state;
    auto_buf struct buf gz = buf_make(NULL, PLENTY), zs = buf_make(NULL, PLENTY);

    gzip(&gz, STR("some text"));
    zstd(&zs, STR("some text"));
    for (size_t len = 1; len < gz.len; len++)
        fails(&(struct buf){ .data = gz.data, .len = len }, ERR_INVALID, "cut short");
    for (size_t len = 1; len < zs.len; len++)
        fails(&(struct buf){ .data = zs.data, .len = len }, ERR_INVALID, "cut short");
    buf_add(&gz, STR("junk"));
    fails(&gz, ERR_INVALID, "follows the gzip stream");
    buf_add(&zs, STR("junk!"));
    fails(&zs, ERR_INVALID, "the zstd stream is damaged");
    gz.len -= 4;
    gz.data[gz.len - 6] ^= 1; /* its sum */
    fails(&gz, ERR_INVALID, "the gzip stream is damaged");
}

static void a_bomb_is_bounded(void **state)
{
    (void)state;
    static char zeros[1 << 20];
    auto_buf struct buf packed = buf_make(NULL, PLENTY);

    gzip(&packed, str_of(zeros, sizeof zeros));
    assert_true(packed.len < 2000);
    fails(&packed, ERR_LIMIT, "more than 65536 bytes");
    buf_clear(&packed);
    zstd(&packed, str_of(zeros, sizeof zeros));
    fails(&packed, ERR_LIMIT, "more than 65536 bytes");
    buf_clear(&packed);
    buf_add(&packed, str_of(zeros, sizeof zeros));
    fails(&packed, ERR_LIMIT, "more than 65536 bytes");
    /* A frame that asks for a window of 2 GiB. */
    buf_clear(&packed);
    buf_add(&packed, STR("\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"));
    fails(&packed, ERR_INVALID, "the zstd stream is damaged");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(gzip_and_zstd_are_undone_and_other_bytes_are_passed_on),
        CASE(several_members_are_one_stream),
        CASE(a_stream_that_is_cut_or_damaged_is_told),
        CASE(a_bomb_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
