#include "guest/trust.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "test.h"

static char etc[64];

static const struct guestlink_authority first = { STR_INIT("-----FIRST-----\n"), 0x0badcafe };
static const struct guestlink_authority second = { STR_INIT("-----SECOND-----\n"), 0x12345678 };
static const struct guestlink_authority none = { 0 };

static int make_etc(void **state)
{
    (void)state;
    (void)snprintf(etc, sizeof etc, "/tmp/trust_test.XXXXXX");
    return mkdtemp(etc) ? 0 : -1;
}

static const char *path_of(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    return path;
}

static int remove_etc(void **state)
{
    (void)state;
    static const char *const names[] = { "ssl/certs/ca-certificates.crt",
                                         "ssl/certs/cloister-authority.pem",
                                         "ssl/certs/0badcafe.0",
                                         "ssl/certs/12345678.0",
                                         "ssl/certs/.cloister-authority",
                                         "ssl/certs",
                                         "ssl",
                                         "pki/tls/certs/ca-bundle.crt",
                                         "pki/tls/certs",
                                         "pki/tls",
                                         "pki" };

    for (size_t i = 0; i < COUNT_OF(names); i++)
        (void)remove(path_of(names[i]));
    return rmdir(etc); /* fails if something else is left */
}

static void make_dir(const char *name)
{
    assert_int_equal(mkdir(path_of(name), 0755), 0);
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* NULL: not there. */
static void check(const char *name, const char *want)
{
    auto_free char *text = NULL;
    size_t len;
    struct err err;
    bool is_there = fd_read_file(AT_FDCWD, path_of(name), 1 << 20, &text, &len, &err);

    if (is_there != (want != NULL))
        fail_msg("%s is %sthere", name, is_there ? "" : "not ");
    if (want)
        assert_string_equal(text, want);
}

#define BLOCK(text) "# Cloister: this sandbox's header rules need the following certificate\n" text "# Cloister: end\n"

static void an_authority_is_added_replaced_and_taken_out(void **state)
{
    (void)state;
    make_dir("ssl");
    make_dir("ssl/certs");
    put("ssl/certs/ca-certificates.crt", "roots\n");
    trust_tell(etc, &none);
    check("ssl/certs/ca-certificates.crt", "roots\n");
    for (int i = 0; i < 2; i++) { /* the same again changes nothing */
        trust_tell(etc, &first);
        check("ssl/certs/ca-certificates.crt", "roots\n" BLOCK("-----FIRST-----\n"));
        check("ssl/certs/cloister-authority.pem", "-----FIRST-----\n");
        check("ssl/certs/0badcafe.0", "-----FIRST-----\n");
    }
    trust_tell(etc, &second);
    check("ssl/certs/ca-certificates.crt", "roots\n" BLOCK("-----SECOND-----\n"));
    check("ssl/certs/0badcafe.0", NULL);
    check("ssl/certs/12345678.0", "-----SECOND-----\n");
    trust_tell(etc, &none);
    check("ssl/certs/ca-certificates.crt", "roots\n");
    check("ssl/certs/12345678.0", NULL);
    check("ssl/certs/cloister-authority.pem", NULL);
}

static void what_the_guest_added_behind_it_stays(void **state)
{
    (void)state;
    make_dir("ssl");
    make_dir("ssl/certs");
    put("ssl/certs/ca-certificates.crt", "roots\n" BLOCK("-----OLD-----\n") "more");
    trust_tell(etc, &first);
    check("ssl/certs/ca-certificates.crt", "roots\nmore\n" BLOCK("-----FIRST-----\n"));
}

static void without_a_bundle_there_is_one_with_the_authority(void **state)
{
    (void)state;
    trust_tell(etc, &first);
    check("ssl/certs/ca-certificates.crt", BLOCK("-----FIRST-----\n"));
}

static void another_systems_bundle_is_used(void **state)
{
    (void)state;
    make_dir("pki");
    make_dir("pki/tls");
    make_dir("pki/tls/certs");
    put("pki/tls/certs/ca-bundle.crt", "fedora\n");
    trust_tell(etc, &first);
    check("pki/tls/certs/ca-bundle.crt", "fedora\n" BLOCK("-----FIRST-----\n"));
    trust_tell(etc, &second);
    check("ssl/certs/ca-certificates.crt", "fedora\n" BLOCK("-----SECOND-----\n"));
}

static void a_fifo_or_a_foreign_link_does_no_harm(void **state)
{
    (void)state;
    make_dir("ssl");
    make_dir("ssl/certs");
    assert_int_equal(mkfifo(path_of("ssl/certs/ca-certificates.crt"), 0600), 0);
    assert_int_equal(symlink("../../victim", path_of("ssl/certs/.cloister-authority")), 0);
    put("victim", "alive");
    put("ssl/certs/cloister-authority.pem", "x");
    trust_tell(etc, &none); /* a FIFO would be waited for */
    check("victim", "alive");
    (void)remove(path_of("victim"));
}

static void a_block_without_its_end_is_cut(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 4096);

    trust_bundle(STR("a\n# Cloister: this sandbox's header rules need the following certificate\nb\n"), STR(""), &out);
    CHECK_STR(buf_str(&out), STR("a\n"));
}

#define ETC_CASE(function) cmocka_unit_test_setup_teardown(function, make_etc, remove_etc)

int main(void)
{
    const struct CMUnitTest cases[] = {
        ETC_CASE(an_authority_is_added_replaced_and_taken_out),
        ETC_CASE(what_the_guest_added_behind_it_stays),
        ETC_CASE(without_a_bundle_there_is_one_with_the_authority),
        ETC_CASE(another_systems_bundle_is_used),
        ETC_CASE(a_fifo_or_a_foreign_link_does_no_harm),
        CASE(a_block_without_its_end_is_cut),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
