/* The files of a COPY, on a real directory; tests/e2e compares the hashes with those of E2B's SDK. */
#include "cli/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "test.h"
#include "wire/tar.h"
#include "wire/unzip.h"

struct fixture {
    char dir[64];
    struct arena arena;
};

static void put(const struct fixture *f, const char *name, const char *content)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", f->dir, name);
    for (char *slash = path + strlen(f->dir) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
    if (!content)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), strlen(content));
    assert_int_equal(fchmod(fd, 0644), 0);
    (void)close(fd);
}

static void put_link(const struct fixture *f, const char *name, const char *to)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", f->dir, name);
    assert_int_equal(symlink(to, path), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/cloister-context-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    arena_init(&f->arena);
    put(f, "a.txt", "a\n");
    put(f, "b.md", "b");
    put(f, "dir/x.py", "1");
    put(f, "dir/.hidden", "2");
    put(f, "dir/sub/y.py", "3");
    put(f, "dir/sub/z.o", "4");
    put(f, "dir.d/w", "5");
    put_link(f, "dir/up", "../a.txt");
    put_link(f, "linked", "dir");
    put_link(f, "away", "/etc");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    arena_done(&f->arena);
    free(f);
    return 0;
}

/* The paths, parted by spaces; or "!" and the message. */
static const char *found(struct fixture *f, const char *source)
{
    auto_context struct context context = { .fd = -1 };
    struct buf out = buf_make(&f->arena, 4096);
    struct context_files files;
    struct err err;

    if (!context_open(&context, &f->arena, f->dir, &err) || !context_find(&context, str_from(source), &files, &err)) {
        return arena_format(&f->arena, "!%s", err.message).at;
    }
    for (size_t i = 0; i < files.count; i++)
        buf_format(&out, "%s%.*s", i ? " " : "", STR_ARG(files.at[i].path));
    buf_add_char(&out, '\0');
    return out.data;
}

static void a_source_is_a_path_or_a_pattern(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *source, *paths;
    } cases[] = {
        { "a.txt", "a.txt" },
        { "./a.txt", "a.txt" },
        { "dir", "dir dir/.hidden dir/sub dir/sub/y.py dir/sub/z.o dir/up dir/x.py" },
        { "dir/", "dir dir/.hidden dir/sub dir/sub/y.py dir/sub/z.o dir/up dir/x.py" },
        { "dir/*", "dir/.hidden dir/sub dir/sub/y.py dir/sub/z.o dir/up dir/x.py" },
        { "dir/sub/../x.py", "dir/x.py" },
        { "*.txt", "a.txt" },
        { "[ab].*", "a.txt b.md" },
        { "?.md", "b.md" },
        { "**/*.py", "dir/sub/y.py dir/x.py" },
        { "dir/**/y.py", "dir/sub/y.py" },
        { "linked", "linked" },
        { "linked/x.py", "linked/x.py" },
        { "d*", "dir dir.d dir.d/w dir/.hidden dir/sub dir/sub/y.py dir/sub/z.o dir/up dir/x.py" },
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_string_equal(found(f, cases[i].source), cases[i].paths);
    assert_true(strncmp(found(f, "."), ". a.txt away b.md dir dir.d dir.d/w dir/.hidden ", 47) == 0);
}

static void nothing_found_is_an_error(void **state)
{
    struct fixture *f = *state;
    static const char *const none[] = { "c.txt", "*.c", "a.txt/x", "a.txt/", "dir/nosuch/y", "away/passwd", "away/*" };

    for (size_t i = 0; i < COUNT_OF(none); i++)
        if (strncmp(found(f, none[i]), "!there is no ", 13) != 0)
            fail_msg("%s: %s", none[i], found(f, none[i]));
}

static void dockerignore_leaves_files_out(void **state)
{
    struct fixture *f = *state;

    put(f, ".dockerignore", "dir/sub\n!dir/sub/y.py\n**/.hidden\n*.md\n");
    assert_string_equal(found(f, "dir"), "dir dir/sub/y.py dir/up dir/x.py");
    assert_string_equal(found(f, "*.*"), ".dockerignore a.txt dir.d dir.d/w");
    assert_true(strncmp(found(f, "b.md"), "!there is no b.md", 17) == 0);
    put(f, ".dockerignore", "a\n[\n");
    assert_string_equal(found(f, "dir"), "!.dockerignore: line 2: '[' is not a pattern");
}

static void the_hash_is_that_of_the_sdk(void **state)
{
    struct fixture *f = *state;
    auto_context struct context context = { .fd = -1 };
    struct context_files files;
    char hash[CONTEXT_HASH_TEXT], other[CONTEXT_HASH_TEXT];
    struct err err;

    assert_true(context_open(&context, &f->arena, f->dir, &err));
    assert_true(context_find(&context, STR("a.txt"), &files, &err));
    assert_true(context_hash(&context, STR("a.txt"), STR("/app/"), &files, hash, &err));
    /* A vector that all of E2B's SDKs agree on. */
    assert_string_equal(hash, "c99ff56260ad2115f47aa3c4204e44cd66c6582cd5b03a11297b7507aa4d5aa6");
    assert_true(context_hash(&context, STR("a.txt"), STR("/b/"), &files, other, &err));
    assert_string_not_equal(hash, other);
    /* What was found is not what is there any more. */
    put(f, "a.txt", "longer\n");
    assert_false(context_hash(&context, STR("a.txt"), STR("/app/"), &files, other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_true(context_find(&context, STR("a.txt"), &files, &err));
    assert_true(context_hash(&context, STR("a.txt"), STR("/app/"), &files, other, &err));
    assert_string_not_equal(hash, other);
}

/* The entries of a compressed archive. */
static const char *unpacked(struct fixture *f, int fd, uint64_t size)
{
    struct buf out = buf_make(&f->arena, 1 << 20);
    struct unzip *unzip = unzip_new(1 << 20);
    struct tar *tar = tar_new();
    char *packed = NULL;
    static char room[1 << 16];
    size_t len, have = 1;
    struct err err;

    assert_true(fd_read_all(fd, 1 << 20, &packed, &len, &err));
    fd_close(&fd);
    assert_int_equal(len, size);
    struct str in = str_of(packed, len);
    while (in.len || have) {
        assert_true(unzip_read(unzip, &in, room, sizeof room, &have, &err));
        struct str bytes = str_of(room, have), data;
        const struct tar_entry *entry;
        enum tar_event event;
        for (;;) {
            assert_true(tar_read(tar, &bytes, &event, &entry, &data, &err));
            if (event == TAR_MORE || event == TAR_END)
                break;
            if (event == TAR_DATA)
                buf_format(&out, "=%.*s", STR_ARG(data));
            else
                buf_format(&out, "%s%.*s%s%.*s", out.len ? " " : "", STR_ARG(entry->name), entry->link.len ? "->" : "",
                           STR_ARG(entry->link));
        }
    }
    assert_true(unzip_finish(unzip, &err));
    assert_true(tar_finish(tar, &err));
    free(packed);
    unzip_free(unzip);
    tar_free(tar);
    buf_add_char(&out, '\0');
    return out.data;
}

static void the_archive_has_the_files(void **state)
{
    struct fixture *f = *state;
    auto_context struct context context = { .fd = -1 };
    struct context_files files;
    uint64_t size;
    struct err err;
    int fd = -1;

    assert_true(context_open(&context, &f->arena, f->dir, &err));
    assert_true(context_find(&context, STR("dir"), &files, &err));
    assert_int_equal(files.bytes, 4);
    assert_true(context_pack(&context, &files, &fd, &size, &err));
    assert_string_equal(unpacked(f, fd, size),
                        "dir/ dir/.hidden=2 dir/sub/ dir/sub/y.py=3 dir/sub/z.o=4 dir/up->../a.txt dir/x.py=1");
    put(f, "dir/x.py", "");
    assert_false(context_pack(&context, &files, &fd, &size, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
}

static void what_cannot_be_packed_is_counted(void **state)
{
    struct fixture *f = *state;
    auto_context struct context context = { .fd = -1 };
    struct context_files files;
    char path[128];
    struct err err;

    (void)snprintf(path, sizeof path, "%s/dir.d/pipe", f->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(context_open(&context, &f->arena, f->dir, &err));
    assert_true(context_find(&context, STR("dir.d"), &files, &err));
    assert_int_equal(files.count, 2);
    assert_int_equal(files.left_out, 1);
    assert_false(context_find(&context, STR("dir.d/pipe"), &files, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(a_source_is_a_path_or_a_pattern, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_found_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(dockerignore_leaves_files_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_hash_is_that_of_the_sdk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_archive_has_the_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_packed_is_counted, set_up, tear_down),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
