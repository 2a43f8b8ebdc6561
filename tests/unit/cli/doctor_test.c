#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "test.h"

static const struct doctor_row rows[] = {
    { DOCTOR_OK, "kernel", "6.1.0", "never shown" },
    { DOCTOR_WARN, "disk", "ext4 without a journal", "keep the data directory on another disk" },
    { DOCTOR_FAIL, "user namespaces", "\"off\"", "sysctl user.max_user_namespaces=15000" },
};

static char *print(size_t count, bool json, int *out_code)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    *out_code = cli_doctor_print(out, rows, count, "/var/lib/cloister", json);
    fclose(out);
    return text;
}

static void doctor_shows_what_it_found_and_how_to_fix_it(void **state)
{
    int code;
    char *text = print(3, false, &code);

    (void)state;
    assert_string_equal(text, "ok    kernel           6.1.0\n"
                              "warn  disk             ext4 without a journal\n"
                              "                       → keep the data directory on another disk\n"
                              "FAIL  user namespaces  \"off\"\n"
                              "                       → sysctl user.max_user_namespaces=15000\n"
                              "\n"
                              "Sandboxes cannot run here yet: 1 of 3 checks failed.\n");
    assert_int_equal(code, 8);
    free(text);
}

static void doctor_is_content_with_warnings(void **state)
{
    int code;
    char *text = print(2, false, &code);

    (void)state;
    assert_int_equal(code, 0);
    assert_non_null(strstr(text, "Sandboxes can run here; 1 of 2 checks could be better.\n"));
    free(text);
    text = print(1, false, &code);
    assert_non_null(strstr(text, "\nSandboxes can run here.\n"));
    free(text);
}

static void doctor_speaks_json(void **state)
{
    int code;
    char *text = print(3, true, &code);

    (void)state;
    assert_string_equal(text, "{\"ok\":false,\"checks\":["
                              "{\"check\":\"kernel\",\"verdict\":\"ok\",\"found\":\"6.1.0\"},"
                              "{\"check\":\"disk\",\"verdict\":\"warn\",\"found\":\"ext4 without a journal\","
                              "\"fix\":\"keep the data directory on another disk\"},"
                              "{\"check\":\"user namespaces\",\"verdict\":\"fail\",\"found\":\"\\\"off\\\"\","
                              "\"fix\":\"sysctl user.max_user_namespaces=15000\"}]}\n");
    assert_int_equal(code, 8);
    free(text);
}

static void a_check_that_was_skipped_is_not_fine(void **state)
{
    static const struct doctor_row some[] = {
        { DOCTOR_OK, "kernel", "6.1.0", NULL },
        { DOCTOR_SKIP, "overlay", "needs root to find out", NULL },
        { DOCTOR_FAIL, "disk", "full", "empty it" },
    };
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    (void)state;
    assert_int_equal(cli_doctor_print(out, some, 2, "/srv/my data", false), cli_exit_code(ERR_DENIED));
    fflush(out);
    assert_non_null(strstr(text, "skip  overlay  needs root to find out\n"));
    assert_non_null(
        strstr(text, "It is not known whether sandboxes can run here: 1 of 2 checks need root and were skipped."));
    assert_non_null(strstr(text, " doctor --data '/srv/my data'\n"));
    assert_null(strstr(text, "Sandboxes can run here"));
    rewind(out);
    assert_int_equal(cli_doctor_print(out, some, 2, "/srv/my data", true), cli_exit_code(ERR_DENIED));
    fflush(out);
    assert_non_null(strstr(text, "{\"ok\":false,"));
    assert_non_null(strstr(text, "\"verdict\":\"skip\""));
    /* A failure is certain, whatever else there is. */
    rewind(out);
    assert_int_equal(cli_doctor_print(out, some, 3, "/srv/my data", false), cli_exit_code(ERR_UNAVAILABLE));
    fclose(out);
    assert_non_null(strstr(text, "Sandboxes cannot run here yet: 1 of 3 checks failed.\n"));
    assert_non_null(strstr(text, "\n1 of 3 checks need root and were skipped. To run them all: "));
    free(text);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(doctor_shows_what_it_found_and_how_to_fix_it),
        CASE(doctor_is_content_with_warnings),
        CASE(doctor_speaks_json),
        CASE(a_check_that_was_skipped_is_not_fine),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
