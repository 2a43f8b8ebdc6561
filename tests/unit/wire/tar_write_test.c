/* What is written is read again, by wire/tar.h. */
#include "wire/tar_write.h"

#include "base/limits.h"
#include "test.h"

static void same(const struct tar_entry *want, struct str content)
{
    auto_buf struct buf archive = buf_make(NULL, 1 << 20);
    struct tar *tar = tar_new();
    const struct tar_entry *entry = NULL;
    enum tar_event event;
    struct str in, data;
    struct err err;

    tar_write_entry(&archive, want);
    buf_add(&archive, content);
    tar_write_padding(&archive, content.len);
    tar_write_end(&archive);
    assert_int_equal(archive.len % 512, 0);
    in = buf_str(&archive);
    assert_true(tar_read(tar, &in, &event, &entry, &data, &err));
    assert_int_equal(event, TAR_ENTRY);
    assert_int_equal(entry->type, want->type);
    CHECK_STR(entry->name, want->name);
    CHECK_STR(entry->link, want->link);
    assert_int_equal(entry->size, want->size);
    assert_int_equal(entry->mode, want->mode);
    assert_int_equal(entry->mtime_s, want->mtime_s);
    if (content.len) {
        assert_true(tar_read(tar, &in, &event, &entry, &data, &err));
        assert_int_equal(event, TAR_DATA);
        CHECK_STR(data, content);
    }
    do
        assert_true(tar_read(tar, &in, &event, &entry, &data, &err));
    while (event != TAR_END && event != TAR_MORE);
    assert_true(tar_finish(tar, &err));
    tar_free(tar);
}

static void entries_are_read_as_they_were_written(void **state)
{
    char name[1200];

    (void)state;
    same(&(struct tar_entry){ .name = STR("a/b"), .link = STR(""), .size = 5, .mode = 04755, .mtime_s = 1234567890 },
         STR("hello"));
    same(&(struct tar_entry){ .type = TAR_DIRECTORY, .name = STR("d/"), .link = STR(""), .mode = 0700 }, STR(""));
    same(&(struct tar_entry){ .type = TAR_SYMLINK, .name = STR("l"), .link = STR("../x"), .mode = 0777 }, STR(""));
    for (size_t len = 95; len < 105; len++) {
        memset(name, 'n', sizeof name);
        same(&(struct tar_entry){ .name = str_of(name, len), .link = STR(""), .mode = 0644 }, STR(""));
        same(&(struct tar_entry){ .type = TAR_SYMLINK, .name = STR("l"), .link = str_of(name, len) }, STR(""));
    }
    /* The length of a pax record counts its own digits. */
    for (size_t len = 85; len < sizeof name; len++)
        same(&(struct tar_entry){ .name = str_of(name, len), .link = str_of(name, len), .type = TAR_SYMLINK }, STR(""));
}

static void padding_ends_a_block(void **state)
{
    static const uint64_t sizes[] = { 0, 1, 511, 512, 513, 1024 }, want[] = { 0, 511, 1, 0, 511, 0 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        auto_buf struct buf out = buf_make(NULL, 4096);
        tar_write_padding(&out, sizes[i]);
        assert_int_equal(out.len, want[i]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(entries_are_read_as_they_were_written),
        CASE(padding_ends_a_block),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
