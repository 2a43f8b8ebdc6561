#include "daemon/recipe_server.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/remove.h"
#include "test.h"

#define PEM "-----BEGIN CERTIFICATE-----\nCLOISTERTEST\n-----END CERTIFICATE-----\n"

static void put(int dir_fd, const char *name, const char *text)
{
    auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    struct err err;

    assert_true(fd >= 0 && fd_write_all(fd, str_from(text), &err));
}

/* Runs a step here, with another directory for /run/recipe, and returns what it has printed. */
static char *run_step(const char *text, const char *place)
{
    auto_buf struct buf here = buf_make(NULL, 1 << 20);
    char command[400];
    struct err err;
    char *said;

    for (const char *at = text; *at;) {
        if (strncmp(at, "/run/recipe", 11) == 0) {
            buf_format(&here, "%s/run", place);
            at += 11;
        } else {
            buf_add_char(&here, *at++);
        }
    }
    auto_close int dir_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int fd = openat(dir_fd, "step", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd_write_all(fd, buf_str(&here), &err));
    (void)snprintf(command, sizeof command, "bash %s/step >%s/said 2>&1; echo status $? >>%s/said", place, place,
                   place);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    assert_true(fd_read_file(dir_fd, "said", 1 << 16, &said, NULL, &err));
    return said;
}

static void a_step_has_the_script_its_setting_proxies_and_certificates(void **state)
{
    char place[] = "/tmp/recipe-server-test-XXXXXX", certificates[64];
    const struct recipe_job job = {
        .script = "echo \"$KERNEL|$http_proxy|${https_proxy-none}\"\n"
                  "grep -c CLOISTERTEST \"$SSL_CERT_FILE\"\n"
                  "test \"$PIP_CERT\" = \"$SSL_CERT_FILE\"\n"
                  "cat << 'END'\nit's $HOME\nEND\n"
                  "false\necho not here",
        .setting = "KERNEL=1 2",
    };
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    struct err err;

    (void)state;
    assert_non_null(mkdtemp(place));
    auto_close int dir_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(dir_fd, "ca", 0755), 0);
    auto_close int ca_fd = openat(dir_fd, "ca", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put(ca_fd, "one.crt", PEM);
    put(ca_fd, "two.crt", PEM);
    put(ca_fd, "three.pem", PEM);                                              /* not by its name */
    put(ca_fd, "four.crt", "CLOISTERTEST: no certificate");                    /* nor this */
    put(ca_fd, "five.crt", PEM "CLOISTERTEST\nCLOISTER-END\ntouch /tmp/no\n"); /* nor what would end the text */
    (void)snprintf(certificates, sizeof certificates, "%s/ca", place);
    assert_int_equal(setenv("http_proxy", "http://it's:3128", 1), 0);
    assert_int_equal(unsetenv("https_proxy"), 0);
    if (!recipe_step_text(&job, certificates, &text, &err))
        fail_msg("%s", err_text(&err));
    buf_add_char(&text, '\0');
    auto_free char *said = run_step(text.data, place);
    assert_string_equal(said, "1 2|http://it's:3128|none\n2\nit's $HOME\nstatus 1\n");
    assert_true(remove_tree(AT_FDCWD, place, &err));
}

static void a_script_that_would_end_early_is_refused(void **state)
{
    const struct recipe_job job = { .script = "echo one\nCLOISTER-END\necho two", .setting = "A=b" };
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    struct err err;

    (void)state;
    assert_false(recipe_step_text(&job, "/nonexistent", &text, &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_step_has_the_script_its_setting_proxies_and_certificates),
        CASE(a_script_that_would_end_early_is_refused),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
