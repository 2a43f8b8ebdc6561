#include "wire/tar.h"

#include <inttypes.h>

#include "base/limits.h"
#include "tar_maker.h"
#include "test.h"

/* Everything that comes out of an archive, cut into pieces of one size. */
static const char *told(struct str archive, size_t piece)
{
    static char text[8192];
    struct buf out = buf_make(NULL, sizeof text);
    struct tar *tar = tar_new();
    struct err err = { 0 };
    bool fine = true;

    for (size_t at = 0; fine && at < archive.len; at += piece) {
        struct str in = str_of(archive.at + at, MIN(piece, archive.len - at)), data;
        const struct tar_entry *entry;
        enum tar_event event;
        while ((fine = tar_read(tar, &in, &event, &entry, &data, &err)) && event != TAR_MORE) {
            if (event == TAR_DATA) {
                buf_add(&out, data);
            } else if (event == TAR_END) {
                buf_add(&out, STR("."));
            } else {
                buf_format(&out, "<%d %.*s", entry->type, STR_ARG(entry->name));
                if (entry->link.len)
                    buf_format(&out, " -> %.*s", STR_ARG(entry->link));
                buf_format(&out, " %" PRIu64 " %o %u:%u %" PRId64, entry->size, entry->mode, entry->uid, entry->gid,
                           entry->mtime_s);
                if (entry->mtime_ns)
                    buf_format(&out, ".%09u", entry->mtime_ns);
                if (entry->major || entry->minor)
                    buf_format(&out, " dev %u,%u", entry->major, entry->minor);
                for (uint32_t i = 0; i < entry->xattr_count; i++)
                    buf_format(&out, " %.*s=%.*s", STR_ARG(entry->xattrs[i].name), STR_ARG(entry->xattrs[i].value));
                buf_add(&out, STR(">"));
            }
        }
    }
    if (!fine || !tar_finish(tar, &err))
        buf_format(&out, "! %s", err.message);
    buf_add_char(&out, '\0');
    assert_false(out.overflowed);
    memcpy(text, out.data, out.len);
    buf_done(&out);
    tar_free(tar);
    return text;
}

#define TOLD(archive, want)                                                   \
    do {                                                                      \
        const size_t pieces_[] = { 1, 7, 511, 512, 513, 1 << 20 };            \
        for (size_t i_ = 0; i_ < COUNT_OF(pieces_); i_++)                     \
            assert_string_equal(told(buf_str(archive), pieces_[i_]), (want)); \
    } while (0)

static void entries_are_the_same_however_the_archive_is_cut(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20);

    MADE(&tar, .type = '5', .name = "./etc/", .mode = 0755, .mtime = 5);
    MADE(&tar, .type = '0', .name = "etc/a", .mode = 04755, .uid = 7, .gid = 8, .mtime = 9, .data = STR("hello"));
    MADE(&tar, .type = '\0', .name = "old/", .mode = 0700);
    MADE(&tar, .type = '2', .name = "/link", .link = "../../x", .mode = 0777);
    MADE(&tar, .type = '1', .name = "hard", .link = "etc/a", .data = STR(""));
    MADE(&tar, .type = '3', .name = "null", .mode = 0666, .major = 1, .minor = 3);
    MADE(&tar, .type = '6', .name = "fifo");
    MADE(&tar, .type = '0', .name = "empty");
    MADE(&tar, .type = 'Z', .name = "odd", .data = STR("is skipped"));
    MADE(&tar, .type = '0', .name = "last", .data = STR("!"));
    made_end(&tar);
    buf_add(&tar, STR("what follows is padding"));
    TOLD(&tar, "<5 ./etc/ 0 755 0:0 5><0 etc/a 5 4755 7:8 9>hello<5 old/ 0 700 0:0 0><2 /link -> ../../x 0 777 0:0 0>"
               "<1 hard -> etc/a 0 0 0:0 0><3 null 0 666 0:0 0 dev 1,3><6 fifo 0 0 0:0 0><0 empty 0 0 0:0 0>"
               "<7 odd 0 0 0:0 0><0 last 1 0 0:0 0>!.");
}

static void an_archive_may_end_without_empty_blocks(void **state)
{
    (void)state;
    static const char zeros[512];
    auto_buf struct buf tar = buf_make(NULL, 1 << 20);

    TOLD(&tar, "");
    MADE(&tar, .type = '0', .name = "a", .data = STR("b"));
    TOLD(&tar, "<0 a 1 0 0:0 0>b");
    buf_add(&tar, str_of(zeros, sizeof zeros));
    TOLD(&tar, "<0 a 1 0 0:0 0>b");
    MADE(&tar, .type = '0', .name = "hidden");
    TOLD(&tar,
         "<0 a 1 0 0:0 0>b! the archive is damaged before byte 2048: an empty block is followed by another that is "
         "not");
}

static void one_that_is_cut_anywhere_else_is_told(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20);

    made_pax(&tar, "path", STR("long"));
    MADE(&tar, .type = '0', .name = "a", .data = STR("b"));
    for (size_t len = 1; len < tar.len; len++)
        assert_non_null(strstr(told(str_of(tar.data, len), 512), "! the archive is cut short at byte "));
}

static void pax_records_hold_for_the_next_entry_alone(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20), records = buf_make(NULL, 1 << 16);

    made_record(&records, "path", STR("a/very/long=name"));
    made_record(&records, "linkpath", STR("target"));
    made_record(&records, "uid", STR("3000000"));
    made_record(&records, "gid", STR("4294967294"));
    made_record(&records, "mtime", STR("1700000000.123456789123"));
    made_record(&records, "size", STR("3"));
    made_record(&records, "comment", STR("ignored"));
    made_record(&records, "SCHILY.xattr.user.a", STR("one"));
    made_record(&records, "SCHILY.xattr.user.b", STR("two\nlines"));
    made_record(&records, "SCHILY.xattr.user.none", STR(""));
    MADE(&tar, .type = 'x', .name = "pax", .data = buf_str(&records));
    size_t at = tar.len;
    MADE(&tar, .type = '0', .name = "short", .data = STR("abc"));
    memset(tar.data + at + 124, '0', 11); /* the header says 0 */
    made_sum(tar.data + at);
    MADE(&tar, .type = '0', .name = "plain", .mtime = 1);
    TOLD(&tar,
         "<0 a/very/long=name -> target 3 0 3000000:4294967294 1700000000.123456789 user.a=one user.b=two\nlines>abc"
         "<0 plain 0 0 0:0 1>");
}

static void times_may_be_before_1970(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20);

    made_pax(&tar, "mtime", STR("-1.25"));
    MADE(&tar, .type = '0', .name = "a");
    made_pax(&tar, "mtime", STR("-7"));
    MADE(&tar, .type = '0', .name = "b");
    size_t at = tar.len;
    MADE(&tar, .type = '0', .name = "c");
    memset(tar.data + at + 136, 0xff, 12);
    made_sum(tar.data + at);
    TOLD(&tar, "<0 a 0 0 0:0 -2.750000000><0 b 0 0 0:0 -7><0 c 0 0 0:0 -1>");
}

static void gnu_names_and_numbers_are_read(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20);
    char name[400];

    memset(name, 'n', sizeof name);
    MADE(&tar, .type = 'L', .name = "././@LongLink", .data = str_of(name, sizeof name));
    MADE(&tar, .type = 'K', .name = "././@LongLink", .data = STR("to\0"));
    size_t at = tar.len;
    MADE(&tar, .type = '2', .name = "cut");
    memcpy(tar.data + at + 257, "ustar  ", 8);
    memcpy(tar.data + at + 345, "no prefix", 9);
    memcpy(tar.data + at + 108, "\x80\0\0\0\0\x2d\xc6\xc0", 8); /* 3000000 */
    made_sum(tar.data + at);
    at = tar.len;
    MADE(&tar, .type = '0', .name = "name");
    memcpy(tar.data + at + 345, "in/a/prefix", 11);
    made_sum(tar.data + at);
    char want[1000];
    (void)snprintf(want, sizeof want, "<2 %.400s -> to 0 0 3000000:0 0><0 in/a/prefix/name 0 0 0:0 0>", name);
    TOLD(&tar, want);
}

static void global_headers_give_owner_and_time(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20), records = buf_make(NULL, 1 << 16);

    made_record(&records, "uid", STR("5"));
    made_record(&records, "mtime", STR("7"));
    made_record(&records, "path", STR("everything"));
    made_record(&records, "comment", STR("a commit"));
    MADE(&tar, .type = 'g', .name = "pax_global_header", .data = buf_str(&records));
    MADE(&tar, .type = '0', .name = "a");
    made_pax(&tar, "uid", STR("6"));
    MADE(&tar, .type = '0', .name = "b");
    TOLD(&tar, "<0 a 0 0 5:0 7><0 b 0 0 6:0 7>");
}

static void damage_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        struct str value;
        const char *want;
    } wrong[] = {
        { "size", STR_INIT("x"), "a size is no number" },
        { "size", STR_INIT("9223372036854775808"), "a size is no number" },
        { "size", STR_INIT("9223372036854775807"), "an entry is larger than any file" },
        { "uid", STR_INIT("-1"), "an owner is no number" },
        { "uid", STR_INIT("4294967295"), "an owner is no number" },
        { "mtime", STR_INIT("soon"), "a time is no number" },
        { "mtime", STR_INIT("1.5x"), "a time is no number" },
        { "path", STR_INIT("a\0b"), "a name has a zero byte in it" },
        { "SCHILY.xattr.", STR_INIT("v"), "an extended attribute's name must have 1 to 255 bytes" },
        { "GNU.sparse.major", STR_INIT("1"), "sparse files" },
    };

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        auto_buf struct buf tar = buf_make(NULL, 1 << 20);
        made_pax(&tar, wrong[i].key, wrong[i].value);
        MADE(&tar, .type = '0', .name = "a");
        assert_non_null(strstr(told(buf_str(&tar), 100), wrong[i].want));
    }
}

static void records_that_lie_about_their_length_are_refused(void **state)
{
    (void)state;
    static const struct str wrong[] = {
        STR_INIT("x"),        STR_INIT("5 a=b"),       STR_INIT("7 a=b\n"),  STR_INIT("0 a=b\n"),
        STR_INIT("2 \n"),     STR_INIT("5 =b\n"),      STR_INIT("5 ab\n"),   STR_INIT("99999999999999999999 a=b\n"),
        STR_INIT("-6 a=b\n"), STR_INIT("6 a=b\n6 a="), STR_INIT(" 6 a=b\n"), STR_INIT("18446744073709551615 a=b\n"),
    };

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        auto_buf struct buf tar = buf_make(NULL, 1 << 20);
        MADE(&tar, .type = 'x', .name = "pax", .data = wrong[i]);
        MADE(&tar, .type = '0', .name = "a");
        assert_non_null(strstr(told(buf_str(&tar), 100), "! the archive is damaged before byte "));
    }
}

static void headers_are_checked(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 1 << 20);

    MADE(&tar, .type = '0', .name = "a");
    tar.data[0] = 'b';
    assert_non_null(strstr(told(buf_str(&tar), 100), "wrong checksum"));
    memcpy(tar.data + 124, "\xff\xff\xff\xff", 4); /* a size below 0 */
    made_sum(tar.data);
    assert_non_null(strstr(told(buf_str(&tar), 100), "a size is no number"));
    memcpy(tar.data + 124, "\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12); /* one above all */
    made_sum(tar.data);
    assert_non_null(strstr(told(buf_str(&tar), 100), "a size is no number"));
    memcpy(tar.data + 124, "00000000000", 12);
    memcpy(tar.data + 108, "12345x7", 8);
    made_sum(tar.data);
    assert_non_null(strstr(told(buf_str(&tar), 100), "an owner is no number"));
    buf_clear(&tar);
    MADE(&tar, .type = '0', .name = "");
    assert_non_null(strstr(told(buf_str(&tar), 100), "an entry has no name"));
    buf_clear(&tar);
    MADE(&tar, .type = 'S', .name = "sparse");
    assert_non_null(strstr(told(buf_str(&tar), 100), "sparse files"));
    buf_clear(&tar);
    made_pax(&tar, "path", STR("a"));
    made_end(&tar);
    assert_non_null(strstr(told(buf_str(&tar), 100), "about an entry that does not follow"));
}

static void what_comes_before_an_entry_is_bounded(void **state)
{
    (void)state;
    auto_buf struct buf tar = buf_make(NULL, 64 << 20);
    auto_buf struct buf big = buf_make(NULL, 2 << 20);

    for (size_t i = 0; i < LIMIT_TAR_HEADER_BYTES - 4096; i++)
        buf_add_char(&big, 'v');
    made_pax(&tar, "path", str_of(big.data, LIMIT_TAR_NAME_BYTES + 1));
    assert_non_null(strstr(told(buf_str(&tar), 4096), "a name is longer than 4096 bytes"));
    buf_clear(&tar);
    MADE(&tar, .type = 'L', .name = "x", .data = str_of(big.data, LIMIT_TAR_NAME_BYTES + 1));
    assert_non_null(strstr(told(buf_str(&tar), 4096), "a name is longer than 4096 bytes"));
    buf_clear(&tar);
    for (int i = 0; i < 8; i++) /* each is small enough by itself */
        made_pax(&tar, "SCHILY.xattr.user.a", buf_str(&big));
    assert_non_null(strstr(told(buf_str(&tar), 4096), "too many headers are about one entry"));
    buf_clear(&tar);
    for (int i = 0; i <= LIMIT_TAR_XATTRS; i++)
        made_pax(&tar, "SCHILY.xattr.user.a", STR("v"));
    assert_non_null(strstr(told(buf_str(&tar), 4096), "more than 64 extended attributes"));
    buf_clear(&tar);
    for (size_t i = 0; i < 8192; i++)
        buf_add_char(&big, 'v');
    made_pax(&tar, "comment", buf_str(&big));
    assert_non_null(strstr(told(buf_str(&tar), 4096), "at most 1048576 are read"));
}

static void a_broken_archive_stays_broken(void **state)
{
    (void)state;
    struct tar *tar = tar_new();
    const struct tar_entry *entry;
    enum tar_event event;
    char junk[1024];
    struct str in = str_of(junk, sizeof junk), data;
    struct err err;

    memset(junk, 'j', sizeof junk);
    assert_false(tar_read(tar, &in, &event, &entry, &data, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    in = str_of(junk, sizeof junk);
    assert_false(tar_read(tar, &in, &event, &entry, &data, &err));
    assert_false(tar_finish(tar, &err));
    tar_free(tar);
    tar_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(entries_are_the_same_however_the_archive_is_cut),
        CASE(an_archive_may_end_without_empty_blocks),
        CASE(one_that_is_cut_anywhere_else_is_told),
        CASE(pax_records_hold_for_the_next_entry_alone),
        CASE(times_may_be_before_1970),
        CASE(gnu_names_and_numbers_are_read),
        CASE(global_headers_give_owner_and_time),
        CASE(damage_is_told),
        CASE(records_that_lie_about_their_length_are_refused),
        CASE(headers_are_checked),
        CASE(what_comes_before_an_entry_is_bounded),
        CASE(a_broken_archive_stays_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
