#include "registry/options.h"

#include "test.h"

static struct registry_options with_images(const char *images)
{
    return (struct registry_options){ .images = str_from(images) };
}

static void the_image_map_is_asked_in_its_order(void **state)
{
    const struct registry_options options = with_images(
        "python:3=oci:/srv/img:three, python=docker://reg.local:5000/py, *=docker://reg.local/all/,"
        "ghcr.io/*=docker://mirror.local/ghcr/,node:20=docker-archive:/srv/node.tar:node:20,debian=template:base,"
        "docker.io/oven/*=docker://oven.local/,e2bdev/code-interpreter=template:code-interpreter-v1,"
        "fixed*=docker://reg.local/one:v1");
    static const struct {
        const char *image;
        enum source_kind kind;
        const char *host, *path, *tag, *file, *name;
    } cases[] = {
        { "python:3", SOURCE_LAYOUT, "", "", "", "/srv/img", "three" },
        { "docker.io/library/python:3", SOURCE_LAYOUT, "", "", "", "/srv/img", "three" },
        { "python:3.12", SOURCE_REGISTRY, "reg.local:5000", "py", "3.12", "", "" },
        { "ubuntu:22.04", SOURCE_REGISTRY, "reg.local", "all/ubuntu", "22.04", "", "" },
        { "quay.io:443/a/b", SOURCE_REGISTRY, "reg.local", "all/quay.io/a/b", "latest", "", "" },
        { "ghcr.io/a/b:c", SOURCE_REGISTRY, "mirror.local", "ghcr/a/b", "c", "", "" },
        { "node:20", SOURCE_ARCHIVE, "", "", "", "/srv/node.tar", "node:20" },
        { "debian:stable", SOURCE_TEMPLATE, "", "", "", "", "base" },
        { "oven/bun:1", SOURCE_REGISTRY, "oven.local", "bun", "1", "", "" },
        { "e2bdev/base", SOURCE_TEMPLATE, "", "", "", "", "base" },
        { "e2bdev/base:latest", SOURCE_TEMPLATE, "", "", "", "", "base" },
        { "e2bdev/code-interpreter:latest", SOURCE_TEMPLATE, "", "", "", "", "code-interpreter-v1" },
        { "fixed/x:2", SOURCE_REGISTRY, "reg.local", "one", "v1", "", "" },
    };
    struct image_source got;
    struct err err;

    (void)state;
    assert_true(registry_options_check(&options, &err));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (!image_source_find(&options, str_from(cases[i].image), &got, &err))
            fail_msg("%s: %s", cases[i].image, err.message);
        if (got.kind != cases[i].kind || strcmp(got.reference.host, cases[i].host) != 0 ||
            strcmp(got.reference.path, cases[i].path) != 0 || strcmp(got.reference.tag, cases[i].tag) != 0 ||
            strcmp(got.path, cases[i].file) != 0 || strcmp(got.name, cases[i].name) != 0)
            fail_msg("%s: kind %d, %s %s %s, %s %s", cases[i].image, got.kind, got.reference.host, got.reference.path,
                     got.reference.tag, got.path, got.name);
    }
}

static void without_a_map_the_reference_is_itself(void **state)
{
    const struct registry_options none = { 0 };
    struct image_source got;
    struct err err;

    (void)state;
    assert_true(image_source_find(&none, STR("python:3"), &got, &err));
    assert_int_equal(got.kind, SOURCE_REGISTRY);
    assert_string_equal(got.reference.host, "docker.io");
    assert_true(image_source_find(&none, STR("e2bdev/base"), &got, &err));
    assert_int_equal(got.kind, SOURCE_TEMPLATE);
    const struct registry_options own = with_images("e2bdev/base=docker://reg.local/base:1");
    assert_true(image_source_find(&own, STR("e2bdev/base"), &got, &err));
    assert_string_equal(got.reference.host, "reg.local");
    assert_false(image_source_find(&none, STR("Not A Reference"), &got, &err));
}

static void wrong_entries_are_named(void **state)
{
    static const struct {
        struct registry_options options;
        const char *option;
    } cases[] = {
        { { .images = STR_INIT("python") }, "--image" },
        { { .images = STR_INIT("python=nowhere") }, "--image" },
        { { .images = STR_INIT("python=oci:relative/path") }, "--image" },
        { { .images = STR_INIT("python=docker://") }, "--image" },
        { { .images = STR_INIT("python=docker://host/") }, "--image" },
        { { .images = STR_INIT("PYTHON=template:base") }, "--image" },
        { { .images = STR_INIT("python=template:a b") }, "--image" },
        { { .mirrors = STR_INIT("docker.io") }, "--registry-mirror" },
        { { .mirrors = STR_INIT("docker.io=mirror.local") }, "--registry-mirror" },
        { { .mirrors = STR_INIT("docker.io=https://user@mirror.local") }, "--registry-mirror" },
        { { .mirrors = STR_INIT("docker.io=https://mirror.local/a//b") }, "--registry-mirror" },
        { { .mirrors = STR_INIT("docker.io=https://mirror.local/a?b") }, "--registry-mirror" },
        { { .insecure = STR_INIT("host:0") }, "--registry-insecure" },
        { { .insecure = STR_INIT("http://host") }, "--registry-insecure" },
        { { .allow = STR_INIT("ho st") }, "--registry-allow" },
    };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (registry_options_check(&cases[i].options, &err))
            fail_msg("case %zu is taken", i);
        if (!strstr(err.message, cases[i].option))
            fail_msg("case %zu: %s", i, err.message);
    }
}

static void only_hosts_that_are_named_have_a_standing(void **state)
{
    const struct registry_options options = { .mirrors =
                                                  STR("docker.io=http://mirror.local:81,quay.io=https://m.local/x"),
                                              .insecure = STR("plain.local,10.0.0.1:5000,[fd00::1]:5000"),
                                              .allow = STR("allowed.local:8443"),
                                              .images = STR("x=docker://map.local:5001/y") };
    static const struct {
        const char *host;
        uint16_t port;
        enum registry_standing standing;
    } cases[] = {
        { "mirror.local", 81, REGISTRY_INSECURE }, { "mirror.local", 80, REGISTRY_STRANGER },
        { "m.local", 443, REGISTRY_NAMED },        { "m.local", 80, REGISTRY_STRANGER },
        { "plain.local", 80, REGISTRY_INSECURE },  { "PLAIN.local", 443, REGISTRY_INSECURE },
        { "plain.local", 22, REGISTRY_STRANGER },  { "10.0.0.1", 5000, REGISTRY_INSECURE },
        { "10.0.0.1", 5001, REGISTRY_STRANGER },   { "fd00::1", 5000, REGISTRY_INSECURE },
        { "allowed.local", 8443, REGISTRY_NAMED }, { "allowed.local", 443, REGISTRY_STRANGER },
        { "map.local", 5001, REGISTRY_NAMED },     { "127.0.0.1", 80, REGISTRY_STRANGER },
        { "docker.io", 443, REGISTRY_STRANGER },   { "xplain.local", 80, REGISTRY_STRANGER },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (registry_standing(&options, str_from(cases[i].host), cases[i].port) != cases[i].standing)
            fail_msg("%s:%u", cases[i].host, cases[i].port);
}

static void mirrors_are_asked_before_the_registry(void **state)
{
    const struct registry_options options = { .mirrors = STR("docker.io=http://one:81/,quay.io=https://q,"
                                                             "docker.io=https://two/hub/x"),
                                              .insecure = STR("plain.local:5000") };
    struct endpoint list[LIMIT_REGISTRY_MIRRORS + 1];
    struct reference reference;
    struct err err;

    (void)state;
    assert_true(reference_parse(STR("python"), &reference, &err));
    assert_int_equal(endpoints_find(&options, &reference, list), 3);
    assert_string_equal(list[0].origin, "http://one:81");
    assert_string_equal(list[0].prefix, "");
    assert_true(list[0].is_mirror);
    assert_string_equal(list[1].origin, "https://two");
    assert_string_equal(list[1].prefix, "hub/x/");
    assert_string_equal(list[2].origin, "https://registry-1.docker.io");
    assert_false(list[2].is_mirror);
    assert_true(reference_parse(STR("plain.local:5000/a"), &reference, &err));
    assert_int_equal(endpoints_find(&options, &reference, list), 1);
    assert_string_equal(list[0].origin, "http://plain.local:5000");
    assert_true(reference_parse(STR("plain.local:5001/a"), &reference, &err));
    assert_int_equal(endpoints_find(&options, &reference, list), 1);
    assert_string_equal(list[0].origin, "https://plain.local:5001");
}

static void the_paths_of_local_sources_are_listed(void **state)
{
    const struct registry_options options =
        with_images("a=oci:/one:x,b=template:base,c=docker-archive:/two.tar,d=docker://h/d");
    char path[PATH_MAX];

    (void)state;
    assert_true(image_source_path(&options, 0, path));
    assert_string_equal(path, "/one");
    assert_true(image_source_path(&options, 1, path));
    assert_string_equal(path, "/two.tar");
    assert_false(image_source_path(&options, 2, path));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_image_map_is_asked_in_its_order),
        CASE(without_a_map_the_reference_is_itself),
        CASE(wrong_entries_are_named),
        CASE(only_hosts_that_are_named_have_a_standing),
        CASE(mirrors_are_asked_before_the_registry),
        CASE(the_paths_of_local_sources_are_listed),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
