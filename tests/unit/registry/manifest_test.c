#include "registry/manifest.h"

#include <stdio.h>

#include "base/buf.h"
#include "test.h"

#define A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C "sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
#define OCI_MANIFEST "application/vnd.oci.image.manifest.v1+json"

static struct arena arena;

static int make_arena(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int drop_arena(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static void the_kind_of_a_document_is_known_by_type_or_content(void **state)
{
    (void)state;
    assert_int_equal(document_kind(STR("application/vnd.oci.image.index.v1+json; charset=utf-8"), STR("")),
                     DOCUMENT_INDEX);
    assert_int_equal(document_kind(STR("application/vnd.docker.distribution.manifest.v2+json"), STR("")),
                     DOCUMENT_MANIFEST);
    assert_int_equal(document_kind(STR("application/vnd.docker.distribution.manifest.v1+prettyjws"), STR("")),
                     DOCUMENT_SCHEMA1);
    assert_int_equal(document_kind(STR("application/json"), STR("{\"manifests\":[]}")), DOCUMENT_INDEX);
    assert_int_equal(document_kind(STR("text/plain"), STR("{\"mediaType\":\"" OCI_MANIFEST "\"}")), DOCUMENT_MANIFEST);
    assert_int_equal(document_kind(STR(""), STR("{\"config\":{},\"layers\":[]}")), DOCUMENT_MANIFEST);
    assert_int_equal(document_kind(STR(""), STR("{\"fsLayers\":[],\"schemaVersion\":1}")), DOCUMENT_SCHEMA1);
    assert_int_equal(document_kind(STR("text/html"), STR("<html>")), DOCUMENT_UNKNOWN);
}

#define ENTRY(digest, platform, more) \
    "{\"mediaType\":\"" OCI_MANIFEST "\",\"digest\":\"" digest "\",\"size\":3,\"platform\":" platform more "}"

static void the_image_for_this_architecture_is_chosen(void **state)
{
    static const char index[] =
        "{\"manifests\":[" ENTRY(A, "{\"os\":\"unknown\",\"architecture\":\"unknown\"}", "") "," ENTRY(
            A, "{\"os\":\"linux\",\"architecture\":\"amd64\"}",
            ",\"annotations\":{\"vnd.docker.reference.type\":\"attestation-"
            "manifest\"}") "," ENTRY(A,
                                     "{\"os\":\"windows\",\"architecture\":"
                                     "\"amd64\"}",
                                     "") "," ENTRY(A,
                                                   "{\"os\":\"linux\","
                                                   "\"architecture\":\"amd64\","
                                                   "\"variant\":\"v3\"}",
                                                   "") "," ENTRY(B,
                                                                 "{\"os\":\"linux\","
                                                                 "\"architecture\":"
                                                                 "\"amd64\"}",
                                                                 "") "," ENTRY(C,
                                                                               "{\"o"
                                                                               "s\":"
                                                                               "\"li"
                                                                               "nux"
                                                                               "\","
                                                                               "\"ar"
                                                                               "chit"
                                                                               "ectu"
                                                                               "re\""
                                                                               ":\"a"
                                                                               "rm64"
                                                                               "\","
                                                                               "\"va"
                                                                               "rian"
                                                                               "t\":"
                                                                               "\"v8"
                                                                               "\"}",
                                                                               "") "]}";
    struct descriptor got;
    enum document kind;
    struct err err;

    (void)state;
    assert_true(index_choose(str_from(index), "amd64", STR(""), &arena, &got, &kind, &err));
    assert_memory_equal(got.hex, &B[7], 64);
    assert_int_equal(kind, DOCUMENT_MANIFEST);
    assert_true(index_choose(str_from(index), "arm64", STR(""), &arena, &got, &kind, &err));
    assert_memory_equal(got.hex, &C[7], 64);
    assert_false(index_choose(str_from(index), "riscv64", STR(""), &arena, &got, &kind, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
}

static void a_layout_names_its_images(void **state)
{
    static const char index[] =
        "{\"manifests\":[{\"digest\":\"" A "\",\"size\":1,\"annotations\":{\"org.opencontainers.image.ref.name\":"
        "\"one\"}},{\"digest\":\"" B "\",\"size\":1,\"annotations\":{\"org.opencontainers.image.ref.name\":"
        "\"docker.io/library/x:two\"}}]}";
    struct descriptor got;
    enum document kind;
    struct err err;

    (void)state;
    assert_true(index_choose(str_from(index), "amd64", STR("two"), &arena, &got, &kind, &err));
    assert_memory_equal(got.hex, &B[7], 64);
    assert_false(index_choose(str_from(index), "amd64", STR("three"), &arena, &got, &kind, &err));
    assert_false(index_choose(str_from(index), "amd64", STR("wo"), &arena, &got, &kind, &err));
    assert_true(index_check_names(str_from(index), STR("two"), &arena, &err));
    assert_false(index_check_names(str_from(index), STR("wo"), &arena, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_string_equal(err.message, "there is no image 'wo' in it; there is: one, docker.io/library/x:two");
    assert_false(index_check_names(str_from(index), STR(""), &arena, &err));
    assert_string_equal(err.message, "there are several images in it, say which: one, docker.io/library/x:two");
    /* Several architectures of one image, with one name or none. */
    static const char same[] = "{\"manifests\":[{\"annotations\":{\"org.opencontainers.image.ref.name\":\"v\"}},"
                               "{\"annotations\":{\"org.opencontainers.image.ref.name\":\"v\"}},{\"digest\":1},[]]}";
    assert_true(index_check_names(str_from(same), STR(""), &arena, &err));
    assert_true(index_check_names(STR("{\"manifests\":[{},{}]}"), STR(""), &arena, &err));
    assert_false(index_check_names(STR("{\"manifests\":[{},{}]}"), STR("x"), &arena, &err));
    assert_string_equal(err.message, "there is no image 'x' in it; there is: none has a name");
    assert_false(index_check_names(STR("[]"), STR(""), &arena, &err));
}

#define LAYER(type, digest, size) "{\"mediaType\":\"" type "\",\"digest\":\"" digest "\",\"size\":" size "}"
#define OCI_LAYER "application/vnd.oci.image.layer.v1.tar+zstd"
#define CONFIG "\"config\":" LAYER("application/vnd.oci.image.config.v1+json", A, "10")

static void manifests_are_read(void **state)
{
    static const char text[] = "{" CONFIG ",\"layers\":[" LAYER(
        OCI_LAYER, B,
        "5") ","
             "{\"mediaType\":\"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip\",\"digest\":\"" C
             "\",\"size\":7,\"urls\":[\"https://example.com/layer\"]}]}";
    struct manifest got;
    struct err err;

    (void)state;
    assert_true(oci_manifest_parse(str_from(text), &arena, &got, &err));
    assert_int_equal(got.layer_count, 2);
    assert_int_equal(got.size, 12);
    assert_int_equal(got.config.size, 10);
    assert_false(got.layers[0].is_foreign);
    assert_true(got.layers[1].is_foreign);
    CHECK_STR(got.layers[1].url, STR("https://example.com/layer"));
}

static void manifests_that_are_wrong_are_refused(void **state)
{
    static const char *const cases[] = {
        "",
        "[]",
        "{}",
        "{" CONFIG "}",
        "{" CONFIG ",\"layers\":[]}",
        "{" CONFIG ",\"layers\":[1]}",
        "{" CONFIG ",\"layers\":[{\"digest\":\"" B "\"}]}",
        "{" CONFIG ",\"layers\":[" LAYER(OCI_LAYER, B, "-1") "]}",
        "{" CONFIG ",\"layers\":[" LAYER(OCI_LAYER, B, "9223372036854775807") "]}",
        "{" CONFIG ",\"layers\":[" LAYER(OCI_LAYER, B, "20000000000") "," LAYER(OCI_LAYER, C, "20000000000") "]}",
        "{" CONFIG ",\"layers\":[" LAYER(OCI_LAYER, "sha512:00", "1") "]}",
        "{" CONFIG ",\"layers\":[" LAYER(OCI_LAYER, "sha256:../../../../etc/passwd", "1") "]}",
        "{" CONFIG ",\"layers\":[" LAYER("application/vnd.cncf.helm.chart.content.v1.tar+gzip", B, "1") "]}",
        "{\"config\":" LAYER("application/vnd.cncf.helm.config.v1+json", A, "10") ",\"layers\":[" LAYER(OCI_LAYER, B,
                                                                                                        "5") "]}",
        "{\"config\":" LAYER("", A, "99999999") ",\"layers\":[" LAYER(OCI_LAYER, B, "5") "]}",
    };
    struct manifest got;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (oci_manifest_parse(str_from(cases[i]), &arena, &got, &err))
            fail_msg("taken: %s", cases[i]);
}

static void an_image_has_at_most_127_layers(void **state)
{
    struct buf text = buf_make(&arena, 1 << 20);
    struct manifest got;
    struct err err;

    (void)state;
    buf_format(&text, "{%s,\"layers\":[", CONFIG);
    for (int i = 0; i < 127; i++)
        buf_format(&text, "%s%s", i ? "," : "", LAYER(OCI_LAYER, B, "5"));
    size_t len = text.len;
    buf_add(&text, STR("]}"));
    assert_true(oci_manifest_parse(buf_str(&text), &arena, &got, &err));
    text.len = len;
    buf_format(&text, ",%s]}", LAYER(OCI_LAYER, B, "5"));
    assert_false(oci_manifest_parse(buf_str(&text), &arena, &got, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
}

static void configurations_are_read(void **state)
{
    static const char text[] = "{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{\"Env\":[\"PATH=/bin:/x\","
                               "\"EMPTY=\",\"=x\",\"none\",5,\"A=b=c\"],\"User\":\"root\"},"
                               "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" A "\",\"" A "\"]}}";
    struct image_config got;
    struct err err;

    (void)state;
    assert_true(image_config_parse(str_from(text), "amd64", &arena, &got, &err));
    assert_int_equal(got.diff_count, 2);
    assert_int_equal(got.env_count, 2);
    CHECK_STR(got.envs[0], STR("PATH=/bin:/x"));
    CHECK_STR(got.envs[1], STR("A=b=c"));
    assert_false(image_config_parse(str_from(text), "arm64", &arena, &got, &err));
    assert_string_equal(err.message, "image architecture \"amd64\" does not match expected \"arm64\"");
    assert_false(
        image_config_parse(STR("{\"architecture\":\"amd64\",\"os\":\"windows\"}"), "amd64", &arena, &got, &err));
    assert_false(image_config_parse(STR("{\"architecture\":\"amd64\",\"rootfs\":{\"diff_ids\":[\"x\"]}}"), "amd64",
                                    &arena, &got, &err));
}

static void tokens_are_checked(void **state)
{
    struct str got, user, password;
    struct err err;

    (void)state;
    assert_true(token_parse(STR("{\"token\":\"abc.def\",\"access_token\":\"x\"}"), &arena, &got, &err));
    CHECK_STR(got, STR("abc.def"));
    assert_true(token_parse(STR("{\"access_token\":\"xyz\"}"), &arena, &got, &err));
    CHECK_STR(got, STR("xyz"));
    assert_false(token_parse(STR("{\"token\":\"a\\r\\nX-Header: b\"}"), &arena, &got, &err));
    assert_false(token_parse(STR("{\"token\":\"\"}"), &arena, &got, &err));
    assert_false(token_parse(STR("garbage"), &arena, &got, &err));
    assert_true(ecr_token_parse(STR("{\"authorizationData\":[{\"authorizationToken\":\"QVdTOnB3OjE=\"}]}"), &arena,
                                &user, &password, &err));
    CHECK_STR(user, STR("AWS"));
    CHECK_STR(password, STR("pw:1"));
    assert_false(ecr_token_parse(STR("{\"authorizationData\":[]}"), &arena, &user, &password, &err));
    assert_int_equal(registry_code_of(STR("{\"errors\":[{\"code\":\"NAME_UNKNOWN\"}]}")), CODE_NAME_UNKNOWN);
    assert_int_equal(registry_code_of(STR("{\"errors\":\"x\"}")), CODE_NONE);
    assert_int_equal(registry_code_of(STR("<html>")), CODE_NONE);
}

static void an_archives_image_is_chosen_by_its_name(void **state)
{
    static const char text[] = "[{\"Config\":\"a.json\",\"RepoTags\":[\"x:1\"],\"Layers\":[\"a/layer.tar\"]},"
                               "{\"Config\":\"b.json\",\"RepoTags\":null,\"Layers\":[\"b\",\"c\"]}]";
    struct saved_image got;
    struct err err;

    (void)state;
    assert_true(saved_image_choose(str_from(text), STR("x:1"), &arena, &got, &err));
    CHECK_STR(got.config, STR("a.json"));
    assert_int_equal(got.layer_count, 1);
    CHECK_STR(got.layers[0], STR("a/layer.tar"));
    assert_false(saved_image_choose(str_from(text), STR("y"), &arena, &got, &err));
    assert_false(saved_image_choose(str_from(text), STR(""), &arena, &got, &err)); /* which? */
    assert_false(saved_image_choose(STR("{}"), STR(""), &arena, &got, &err));
    assert_false(saved_image_choose(STR("[]"), STR(""), &arena, &got, &err));
    assert_string_equal(err.message, "there is no image in it");
}

static void an_archives_image_has_short_names_too(void **state)
{
    static const char text[] =
        "[{\"Config\":\"a\",\"RepoTags\":[\"docker.io/library/x:latest\",\"r.example/t/y:2\"],\"Layers\":[\"a\"]},"
        "{\"Config\":\"b\",\"RepoTags\":[\"y:2\"],\"Layers\":[\"b\"]}]";
    static const struct {
        struct str name;
        const char *config; /* NULL: there is none */
    } rows[] = {
        { STR_INIT("x"), "a" },
        { STR_INIT("x:latest"), "a" },
        { STR_INIT("library/x"), "a" },
        { STR_INIT("t/y:2"), "a" },
        { STR_INIT("y:2"), "b" }, /* the whole name first */
        { STR_INIT("docker.io/library/x"), "a" },
        { STR_INIT("y"), NULL },
        { STR_INIT(":2"), NULL },
        { STR_INIT("latest"), NULL },
        { STR_INIT("x:3"), NULL },
    };
    struct saved_image got;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool is_there = saved_image_choose(str_from(text), rows[i].name, &arena, &got, &err);
        if (is_there != (rows[i].config != NULL))
            fail_msg("%s", rows[i].name.at);
        if (is_there)
            CHECK_STR(got.config, str_from(rows[i].config));
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_kind_of_a_document_is_known_by_type_or_content),
        CASE(the_image_for_this_architecture_is_chosen),
        CASE(a_layout_names_its_images),
        CASE(manifests_are_read),
        CASE(manifests_that_are_wrong_are_refused),
        CASE(an_image_has_at_most_127_layers),
        CASE(configurations_are_read),
        CASE(tokens_are_checked),
        CASE(an_archives_image_is_chosen_by_its_name),
        CASE(an_archives_image_has_short_names_too),
    };

    return cmocka_run_group_tests(cases, make_arena, drop_arena);
}
