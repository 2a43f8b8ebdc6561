#include "guest/files.h"

#include "guest/entry.h"
#include "test.h"

static void ranges_are_read_strictly_and_clamped(void **state)
{
    (void)state;
    static const struct {
        struct str header;
        uint64_t size;
        enum files_range want;
        uint64_t from, len;
    } rows[] = {
        { STR_INIT("bytes=0-0"), 10, FILES_PART, 0, 1 },
        { STR_INIT("bytes=2-5"), 10, FILES_PART, 2, 4 },
        { STR_INIT("bytes=2-"), 10, FILES_PART, 2, 8 },
        { STR_INIT("bytes=2-99"), 10, FILES_PART, 2, 8 },
        { STR_INIT("bytes=-3"), 10, FILES_PART, 7, 3 },
        { STR_INIT("bytes=-99"), 10, FILES_PART, 0, 10 },
        { STR_INIT("bytes=10-"), 10, FILES_NOT_THERE, 0, 0 },
        { STR_INIT("bytes=-0"), 10, FILES_NOT_THERE, 0, 0 },
        { STR_INIT("bytes=5-2"), 10, FILES_WHOLE, 0, 0 },
        { STR_INIT("bytes=1-2,4-5"), 10, FILES_WHOLE, 0, 0 },
        { STR_INIT("bytes=x-"), 10, FILES_WHOLE, 0, 0 },
        { STR_INIT("items=0-1"), 10, FILES_WHOLE, 0, 0 },
        { STR_INIT("bytes=18446744073709551616-"), 10, FILES_WHOLE, 0, 0 },
        { STR_INIT("bytes=0-18446744073709551615"), 10, FILES_PART, 0, 10 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t from = 0, len = 0;
        assert_int_equal(files_range_parse(rows[i].header, rows[i].size, &from, &len), rows[i].want);
        assert_int_equal(from, rows[i].from);
        assert_int_equal(len, rows[i].len);
    }
}

static void identity_is_fine_unless_it_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *accept;
        bool identity, gzip;
    } rows[] = {
        { NULL, true, false },
        { "gzip, deflate", true, true },
        { "gzip", true, true },
        { "identity", true, false },
        { "gzip;q=1.0, identity;q=0", false, true },
        { "*;q=0", false, false },
        { "gzip, *;q=0", false, true },
        { "identity, *;q=0.000", true, false },
        { "*", true, true },
        { "", true, false },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str accept = str_from(rows[i].accept);
        const struct str *header = rows[i].accept ? &accept : NULL;
        assert_int_equal(files_accepts(header, STR("identity")), rows[i].identity);
        assert_int_equal(files_accepts(header, STR("gzip")), rows[i].gzip);
    }
}

static void permissions_read_as_go_prints_them(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        const char *want;
    } rows[] = {
        { S_IFREG | 0644, "-rw-r--r--" },   { S_IFDIR | 0755, "drwxr-xr-x" },  { S_IFDIR | 01777, "dtrwxrwxrwx" },
        { S_IFLNK | 0777, "Lrwxrwxrwx" },   { S_IFREG | 04755, "urwxr-xr-x" }, { S_IFCHR | 0666, "Dcrw-rw-rw-" },
        { S_IFBLK | 0660, "Drw-rw----" },   { S_IFIFO | 0600, "prw-------" },  { S_IFSOCK | 0700, "Srwx------" },
        { S_IFREG | 06711, "ugrwx--x--x" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char room[ENTRY_PERMISSIONS_BYTES];
        assert_string_equal(entry_permissions(rows[i].mode, room), rows[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(ranges_are_read_strictly_and_clamped),
        CASE(identity_is_fine_unless_it_is_refused),
        CASE(permissions_read_as_go_prints_them),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
