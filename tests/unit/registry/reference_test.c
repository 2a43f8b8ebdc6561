#include "registry/reference.h"

#include "test.h"

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void references_are_taken_apart(void **state)
{
    static const struct {
        const char *text, *host, *path, *tag, *hex;
    } cases[] = {
        { "python", "docker.io", "library/python", "latest", "" },
        { "python:3.13-slim", "docker.io", "library/python", "3.13-slim", "" },
        { "oven/bun:latest", "docker.io", "oven/bun", "latest", "" },
        { "docker.io/python", "docker.io", "library/python", "latest", "" },
        { "index.docker.io/a/b:c", "docker.io", "a/b", "c", "" },
        { "localhost/x", "localhost", "x", "latest", "" },
        { "localhost:5000/a/b/c:1", "localhost:5000", "a/b/c", "1", "" },
        { "GHCR.io/owner/name", "ghcr.io", "owner/name", "latest", "" },
        { "[2001:db8::1]:5000/a", "[2001:db8::1]:5000", "a", "latest", "" },
        { "a.b/c__d/e--f.g_h:T_-.1", "a.b", "c__d/e--f.g_h", "T_-.1", "" },
        { "python@sha256:" HEX, "docker.io", "library/python", "", HEX },
        { "r.io/p:3@sha256:" HEX, "r.io", "p", "3", HEX },
        { "123456789012.dkr.ecr.us-east-1.amazonaws.com/app:1", "123456789012.dkr.ecr.us-east-1.amazonaws.com", "app",
          "1", "" },
    };
    struct reference got;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (!reference_parse(str_from(cases[i].text), &got, &err))
            fail_msg("%s: %s", cases[i].text, err.message);
        assert_string_equal(got.host, cases[i].host);
        assert_string_equal(got.path, cases[i].path);
        assert_string_equal(got.tag, cases[i].tag);
        assert_string_equal(got.hex, cases[i].hex);
    }
}

static void what_is_no_reference_is_refused(void **state)
{
    static const char *const cases[] = {
        "",
        "UPPER",
        "a//b",
        "/a",
        "a/",
        "a:",
        "a:.b",
        "a:b:c",
        "a b",
        "a_-b",
        "a..b",
        "-a",
        "a-",
        "a___b",
        "../../etc",
        "a@sha256:abc",
        "a@md5:0123",
        "a@",
        "host.io/",
        "host.io:99999/a",
        "host.io:/a",
        "http://host.io/a",
        "user:pw@host.io/a",
        "[::1/a",
        "[::1]x/a",
        "a?b",
        "a#b",
        "a\nb",
        "host.io/a%2fb",
        "a:" HEX HEX "x",
    };
    char long_name[300];
    struct reference got;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (reference_parse(str_from(cases[i]), &got, &err))
            fail_msg("'%s' is %s / %s : %s", cases[i], got.host, got.path, got.tag);
    memset(long_name, 'a', sizeof long_name);
    assert_false(reference_parse(str_of(long_name, 256), &got, &err));
    assert_true(reference_parse(str_of(long_name, 240), &got, &err));
    assert_false(reference_parse(str_of("a\0b", 3), &got, &err));
}

static void names_are_shown_as_people_write_them(void **state)
{
    static const char *const cases[][2] = {
        { "docker.io/library/python:3", "python" },
        { "oven/bun", "oven/bun" },
        { "ghcr.io/a/b", "ghcr.io/a/b" },
        { "library/x/y", "library/x/y" },
    };
    struct reference got;
    struct err err;
    char room[600];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_true(reference_parse(str_from(cases[i][0]), &got, &err));
        reference_short_name(&got, room, sizeof room);
        assert_string_equal(room, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(references_are_taken_apart),
        CASE(what_is_no_reference_is_refused),
        CASE(names_are_shown_as_people_write_them),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
