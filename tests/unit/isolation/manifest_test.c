#include "isolation/native/manifest.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "test.h"

static struct manifest a_manifest(uint32_t layers)
{
    struct manifest manifest = { .layer_count = layers, .layer_bytes = 4096, .has_image = true, .image_bytes = 300000 };

    for (uint32_t i = 0; i < layers; i++)
        (void)snprintf(manifest.layers[i], sizeof manifest.layers[i], "%064x", i + 1);
    (void)snprintf(manifest.kernel, sizeof manifest.kernel, "6.18.44");
    (void)snprintf(manifest.cpu, sizeof manifest.cpu, "AuthenticAMD 25 97 2, avx2");
    (void)snprintf(manifest.guestd, sizeof manifest.guestd, "%064x", 7);
    (void)snprintf(manifest.criu, sizeof manifest.criu, "4.2.1");
    return manifest;
}

static void a_manifest_comes_back_as_it_was(void **state)
{
    (void)state;
    for (uint32_t layers = 1; layers <= LIMIT_LAYERS; layers += LIMIT_LAYERS - 1) {
        auto_buf struct buf out = buf_make(NULL, MANIFEST_BYTES);
        struct manifest sent = a_manifest(layers), got;
        struct err err;

        manifest_print(&out, &sent);
        assert_false(out.overflowed);
        assert_true(manifest_parse(buf_str(&out), &got, &err));
        assert_int_equal(got.layer_count, layers);
        assert_memory_equal(got.layers, sent.layers, sizeof sent.layers);
        assert_int_equal(got.layer_bytes, 4096);
        assert_true(got.has_image);
        assert_int_equal(got.image_bytes, 300000);
        assert_string_equal(got.kernel, sent.kernel);
        assert_string_equal(got.cpu, sent.cpu);
        assert_string_equal(got.guestd, sent.guestd);
        assert_string_equal(got.criu, sent.criu);
    }
}

static void a_torn_manifest_is_refused(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, MANIFEST_BYTES);
    struct manifest sent = a_manifest(2), got;
    struct err err;

    manifest_print(&out, &sent);
    for (size_t len = 0; len < out.len; len++)
        assert_false(manifest_parse(str_of(out.data, len), &got, &err));
    buf_add_char(&out, '\n');
    assert_false(manifest_parse(buf_str(&out), &got, &err));
}

static void one_of_a_newer_version_is_not_taken_for_damaged(void **state)
{
    (void)state;
    struct manifest got;
    struct err err;

    assert_false(manifest_parse(STR("cloister-snapshot 2\nanything"), &got, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    assert_false(manifest_parse(STR("cloister-snapshot x\n"), &got, &err));
    assert_int_equal(err.kind, ERR_INVALID);
}

static void names_that_are_no_layers_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "../../../../../../../../../../../../../../../../../../etc/passwd/////",
                                       "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", "" };
    struct manifest got;
    struct err err;

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        auto_buf struct buf out = buf_make(NULL, MANIFEST_BYTES);
        buf_format(&out,
                   "cloister-snapshot 1\nlayers 1\nlayer %s\nlayer-bytes 0\nimage 0\nimage-bytes 0\nkernel \ncpu \n",
                   bad[i]);
        buf_add(&out, STR("guestd \ncriu \nend\n"));
        assert_false(manifest_parse(buf_str(&out), &got, &err));
    }
}

static void note_layer(void *context, const char *layer)
{
    (void)layer;
    ++*(unsigned *)context;
}

static void the_layers_of_all_snapshots_are_in_use(void **state)
{
    (void)state;
    char dir[] = "/tmp/cloister-manifest.XXXXXX";
    struct manifest one = a_manifest(1), three = a_manifest(3);
    unsigned used = 0;
    struct err err;

    assert_non_null(mkdtemp(dir));
    auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(fd, "one", 0700), 0);
    assert_int_equal(mkdirat(fd, "three.new", 0700), 0);
    assert_int_equal(mkdirat(fd, "begun.new", 0700), 0); /* has no manifest yet */
    auto_close int one_fd = openat(fd, "one", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int three_fd = openat(fd, "three.new", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(manifest_write(one_fd, &one, &err));
    assert_true(manifest_write(three_fd, &three, &err));
    assert_true(manifests_used_layers(fd, note_layer, &used, &err));
    assert_int_equal(used, 4);
    /* One that was made for a fork is in use as well, as long as it is there. */
    assert_int_equal(mkdirat(fd, "copied", 0700), 0);
    auto_close int copied_fd = openat(fd, "copied", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(manifest_write_copy(copied_fd, &three, &err));
    assert_true(manifest_is_copy(fd, "copied"));
    assert_false(manifest_is_copy(fd, "one"));
    used = 0;
    assert_true(manifests_used_layers(fd, note_layer, &used, &err));
    assert_int_equal(used, 7);
    (void)unlinkat(copied_fd, "copy", 0);
    assert_int_equal(unlinkat(fd, "copied", AT_REMOVEDIR), 0);
    /* What one of them needs is not known: nothing may be removed. */
    assert_true(fd_replace_file(one_fd, "manifest", STR("cloister-snapshot 1\n"), 0600, &err));
    assert_false(manifests_used_layers(fd, note_layer, &used, &err));
    (void)unlinkat(one_fd, "manifest", 0);
    (void)unlinkat(three_fd, "manifest", 0);
    (void)unlinkat(fd, "one", AT_REMOVEDIR);
    (void)unlinkat(fd, "three.new", AT_REMOVEDIR);
    (void)unlinkat(fd, "begun.new", AT_REMOVEDIR);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_manifest_comes_back_as_it_was),
        CASE(a_torn_manifest_is_refused),
        CASE(one_of_a_newer_version_is_not_taken_for_damaged),
        CASE(names_that_are_no_layers_are_refused),
        CASE(the_layers_of_all_snapshots_are_in_use),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
