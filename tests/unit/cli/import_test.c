/* `template import`: the bytes that it sends, and what it says. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/limits.h"
#include "cli/image_file.h"
#include "fake_server.h"
#include "test.h"
#include "wire/tar.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define HELLO_HASH "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" /* of "hello" */

static char home[64];
static struct arena arena;
static struct outcome outcome;

static const char *path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", home, name);
    return path;
}

static void put(const char *name, struct str text)
{
    auto_close int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct err err;

    assert_true(fd >= 0);
    assert_true(fd_write_all(fd, text, &err));
}

static void put_layout(void)
{
    assert_int_equal(mkdir(path_of("layout"), 0700), 0);
    assert_int_equal(mkdir(path_of("layout/blobs"), 0700), 0);
    assert_int_equal(mkdir(path_of("layout/blobs/sha256"), 0700), 0);
    put("layout/oci-layout", STR("{}"));
    put("layout/index.json", STR("{\"manifests\":[]}"));
    put("layout/blobs/sha256/" HEX_B, STR(""));
    put("layout/blobs/sha256/" HEX_A, str_of(memset(arena_alloc(&arena, 1000), 'x', 1000), 1000));
    put("layout/blobs/sha256/.umoci-1", STR("not a blob"));
    put("layout/notes.txt", STR("not part of it"));
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(home, sizeof home, "/tmp/cloister-import.XXXXXX");
    assert_non_null(mkdtemp(home));
    arena_init(&arena);
    put_layout();
    return 0;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", home);
    assert_int_equal(system(command), 0); /* NOLINT */
    arena_done(&arena);
    return 0;
}

/* All bytes, read in pieces of that size. */
static struct buf read_all(struct image_file *file, size_t piece)
{
    struct buf all = buf_make(&arena, 1 << 20);
    char room[4096];
    size_t len = 1;
    struct err err;

    while (len) {
        assert_true(image_file_read(file, room, MIN(piece, sizeof room), &len, &err));
        buf_add(&all, str_of(room, len));
    }
    assert_int_equal(all.len, file->size);
    return all;
}

static void a_file_is_sent_as_it_is(void **state)
{
    auto_image_file struct image_file file = { 0 };
    char hex[IMAGE_HASH_BYTES];
    struct err err;

    (void)state;
    put("hello.tar", STR("hello"));
    assert_true(image_file_open(&file, path_of("hello.tar"), &arena, &err));
    assert_true(image_file_hash(&file, hex, &err));
    assert_string_equal(hex, HELLO_HASH);
    struct buf all = read_all(&file, 2);
    CHECK_STR(buf_str(&all), STR("hello"));
    assert_true(image_file_hash(&file, hex, &err)); /* also after a read */
    assert_string_equal(hex, HELLO_HASH);
    assert_int_equal(truncate(path_of("hello.tar"), 3), 0);
    assert_false(image_file_hash(&file, hex, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
}

/* "name,size,first byte;" of each file in it. */
static void check_tar(struct str bytes, const char *want)
{
    struct buf got = buf_make(&arena, 4096);
    struct tar *tar = tar_new();
    enum tar_event event = TAR_DATA;
    const struct tar_entry *entry;
    struct str data;
    struct err err;

    while (event != TAR_MORE && event != TAR_END) {
        assert_true(tar_read(tar, &bytes, &event, &entry, &data, &err));
        if (event == TAR_ENTRY) {
            assert_int_equal(entry->type, TAR_FILE);
            buf_format(&got, "%.*s,%d;", STR_ARG(entry->name), (int)entry->size);
        }
    }
    assert_int_equal(event, TAR_END);
    assert_true(tar_finish(tar, &err));
    tar_free(tar);
    CHECK_STR(buf_str(&got), str_from(want));
}

static void a_layout_becomes_a_tar(void **state)
{
    auto_image_file struct image_file file = { 0 }, again = { 0 };
    char hex[IMAGE_HASH_BYTES], other[IMAGE_HASH_BYTES];
    struct err err;

    (void)state;
    assert_true(image_file_open(&file, path_of("layout"), &arena, &err));
    assert_int_equal(file.size, 512 + 512 + 512 + 512 + 512 + 1024 + 512 + 1024);
    struct buf whole = read_all(&file, 4096);
    check_tar(buf_str(&whole), "oci-layout,2;index.json,16;blobs/sha256/" HEX_A ",1000;blobs/sha256/" HEX_B ",0;");
    assert_true(image_file_hash(&file, hex, &err));
    /* The same, however it is read and whenever it was written. */
    for (size_t piece = 1; piece < 700; piece += 97) {
        file.at = 0;
        struct buf pieces = read_all(&file, piece);
        assert_true(str_eq(buf_str(&whole), buf_str(&pieces)));
    }
    put("layout/index.json", STR("{\"manifests\":[]}"));
    assert_true(image_file_open(&again, path_of("layout/"), &arena, &err));
    assert_true(image_file_hash(&again, other, &err));
    assert_string_equal(hex, other);
    put("layout/blobs/sha256/" HEX_B, STR("longer"));
    assert_false(image_file_hash(&again, other, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
}

static void check_refused(const char *name, enum err_kind kind, const char *text)
{
    auto_image_file struct image_file file = { .fd = -1, .part_fd = -1 };
    struct err err;

    assert_false(image_file_open(&file, path_of(name), &arena, &err));
    assert_int_equal(err.kind, kind);
    CHECK_HAS(err.message, text);
}

static void what_is_no_image_is_refused(void **state)
{
    (void)state;
    check_refused("nowhere", ERR_NOT_FOUND, "");
    put("empty", STR(""));
    check_refused("empty", ERR_INVALID, "is empty");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    check_refused("pipe", ERR_INVALID, "is neither a file nor a directory");
    put("large", STR("x"));
    assert_int_equal(truncate(path_of("large"), (off_t)LIMIT_UPLOAD_BYTES + 1), 0);
    check_refused("large", ERR_LIMIT, "the image has 5120 MB: an upload may have at most 5120");
    check_refused("layout/blobs", ERR_INVALID, "the directory is no OCI layout: it has no index.json");
    assert_int_equal(truncate(path_of("layout/blobs/sha256/" HEX_A), (off_t)LIMIT_UPLOAD_BYTES - 100), 0);
    check_refused("layout", ERR_LIMIT, "an upload may have at most");
    /* A link could lead to any file of whoever imports it. */
    assert_int_equal(unlink(path_of("layout/blobs/sha256/" HEX_A)), 0);
    assert_int_equal(symlink("/etc/passwd", path_of("layout/blobs/sha256/" HEX_A)), 0);
    check_refused("layout", ERR_INVALID, "in the layout is not a file");
}

static void a_file_gives_the_template_its_name(void **state)
{
    static const char *const rows[][2] = {
        { "python.tar", "python" },
        { "/x/Python 3.13.tar.gz", "python-3-13" },
        { "a_b-c.tar.zst", "a_b-c" },
        { "dir/layout/", "layout" },
        { "app.tgz", "app" },
        { "app.oci.tar", "app" },
        { ".tar", "tar" },
        { "--x--", "x" },
        { "/", NULL },
        { "...", NULL },
    };
    char room[32];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool has_name = image_file_name(rows[i][0], room, sizeof room);
        if (has_name != (rows[i][1] != NULL) || (has_name && strcmp(room, rows[i][1]) != 0))
            fail_msg("%s: %s", rows[i][0], has_name ? room : "none");
    }
    char small[4];
    assert_true(image_file_name("longer", small, sizeof small));
    assert_string_equal(small, "lon");
}

/* ---- the command ---- */

#define ANSWER(status, body) \
    STR_INIT("HTTP/1.1 " status "\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" body)
#define REGISTERED ANSWER("202 Accepted", "{\"templateID\":\"t1\",\"buildID\":\"b1\"}")
#define LINK(present)                                                                                       \
    ANSWER("201 Created", "{\"present\":" present ",\"url\":\"http://elsewhere.example:1/template-files/u/" \
                          "h?token=x\"}")

static void run_import(const struct fake_rule *rules, struct fake_server *server, const char *const *words)
{
    fake_server_start(server, rules);
    setenv("E2B_API_URL", server->url, 1);
    setenv("E2B_API_KEY", "e2b_aa", 1);
    run_cli(&outcome, words);
    unsetenv("E2B_API_URL");
    unsetenv("E2B_API_KEY");
}

static void an_import_uploads_builds_and_says_what_to_do_next(void **state)
{
    static const struct fake_rule rules[] = {
        { "POST /v3/templates ", REGISTERED },
        { "GET /templates/t1/files/" HELLO_HASH " ", LINK("false") },
        { "PUT /template-files/u/h?token=x ", ANSWER("200 OK", "") },
        { "POST /v2/templates/t1/builds/b1 ", ANSWER("202 Accepted", "") },
        { "GET /templates/t1/builds/b1/status?logsOffset=0 ",
          ANSWER("200 OK",
                 "{\"status\":\"ready\",\"logEntries\":[{\"message\":\"a \\u001b[2Jline\",\"level\":\"info\"},"
                 "{\"message\":\"detail\",\"level\":\"debug\"}]}") },
        { "GET /templates/t1/builds/b1/status?logsOffset=2 ",
          ANSWER("200 OK", "{\"status\":\"ready\",\"logEntries\":[]}") },
        { NULL, { NULL, 0 } },
    };
    struct fake_server server;

    (void)state;
    put("hello.tar", STR("hello"));
    run_import(rules, &server,
               (const char *const[]){ "template", "import", path_of("hello.tar"), "--name", "mine:v1", "--image", "x:1",
                                      "--cpu", "2", "--memory", "512", NULL });
    if (outcome.exit_code)
        fail_msg("%s", outcome.note);
    assert_string_equal(outcome.out, "mine:v1\n");
    CHECK_HAS(outcome.note, "(1 KiB) as the template 'mine:v1'\n");
    CHECK_HAS(outcome.note, "a ?[2Jline\n");
    assert_null(strstr(outcome.note, "detail"));
    CHECK_HAS(outcome.note, "cloister sandbox create mine:v1\n");
    assert_true(fake_server_heard(&server, "{\"name\":\"mine:v1\",\"cpuCount\":2,\"memoryMB\":512}"));
    /* The upload goes to the server that was asked, whatever host the link has, and has no key. */
    assert_true(fake_server_heard(&server, "Content-Length: 5\r\n\r\nhello"));
    assert_true(fake_server_heard(&server, "{\"fromArchive\":\"" HELLO_HASH "\",\"fromArchiveImage\":\"x:1\"}"));
    fake_server_stop(&server);
}

static void an_archive_that_is_there_is_not_sent_again(void **state)
{
    static const struct fake_rule rules[] = {
        { "POST /v3/templates ", REGISTERED },
        { "GET /templates/t1/files/", LINK("true") },
        { "POST /v2/templates/t1/builds/b1 ", ANSWER("202 Accepted", "") },
        { "GET /templates/t1/builds/b1/status?logsOffset=0 ",
          ANSWER("200 OK", "{\"status\":\"error\",\"logEntries\":[],\"reason\":{\"message\":\"this is no archive of an "
                           "image\"}}") },
        { NULL, { NULL, 0 } },
    };
    struct fake_server server;

    (void)state;
    put("hello.tar", STR("hello"));
    run_import(rules, &server, (const char *const[]){ "template", "import", path_of("hello.tar"), NULL });
    assert_int_equal(outcome.exit_code, 2);
    assert_string_equal(outcome.out, "");
    CHECK_HAS(outcome.note, "The server has the archive already.\n");
    CHECK_HAS(outcome.note, "cloister: this is no archive of an image\n");
    assert_true(fake_server_heard(&server, "{\"name\":\"hello\"}"));
    assert_false(fake_server_heard(&server, "PUT "));
    fake_server_stop(&server);
}

static void a_refused_upload_ends_the_import(void **state)
{
    static const struct fake_rule rules[] = {
        { "POST /v3/templates ", REGISTERED },
        { "GET /templates/t1/files/", LINK("false") },
        { "PUT ", ANSWER("507 Insufficient Storage", "{\"code\":507,\"message\":\"there is no room\"}") },
        { NULL, { NULL, 0 } },
    };
    struct fake_server server;

    (void)state;
    put("hello.tar", STR("hello"));
    run_import(rules, &server, (const char *const[]){ "template", "import", path_of("hello.tar"), NULL });
    assert_int_equal(outcome.exit_code, 9);
    CHECK_HAS(outcome.note, "cloister: there is no room\n");
    assert_false(fake_server_heard(&server, "POST /v2/"));
    fake_server_stop(&server);
}

int main(void)
{
#define IMPORT_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest cases[] = {
        IMPORT_CASE(a_file_is_sent_as_it_is),
        IMPORT_CASE(a_layout_becomes_a_tar),
        IMPORT_CASE(what_is_no_image_is_refused),
        IMPORT_CASE(a_file_gives_the_template_its_name),
        IMPORT_CASE(an_import_uploads_builds_and_says_what_to_do_next),
        IMPORT_CASE(an_archive_that_is_there_is_not_sent_again),
        IMPORT_CASE(a_refused_upload_ends_the_import),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
