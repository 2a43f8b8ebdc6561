#include "daemon/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

static bool load(struct config *config, struct err *err, const char *a, const char *b, const char *c, const char *d)
{
    char *argv[] = { (char *)a, (char *)b, (char *)c, (char *)d, NULL };
    int argc = 0;
    while (argc < 4 && argv[argc])
        argc++;
    return config_load(argc, argv, config, err);
}

static void the_command_line_wins_over_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/cloister-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "# comment\n\n memory = 256 \nlisten=127.0.0.1:1\ntoken-for-code = always\n") > 0);
    close(fd);
    struct config config;
    struct err err;
    assert_true(load(&config, &err, "--config", path, "--listen", "127.0.0.1:2"));
    assert_string_equal(config.listen, "127.0.0.1:2");
    assert_int_equal(config.memory_mb, 256);
    assert_string_equal(config.token_for_code, "always");
    assert_int_equal(config.cpus, 0); /* nobody has said: the template does */
    unlink(path);
}

static void a_list_adds_up_and_the_command_line_replaces_that_of_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/cloister-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "egress-allow = 10.0.0.0/8\negress-allow = 10.1.0.0/16,10.2.0.0/16\n") > 0);
    close(fd);
    struct config config;
    struct err err;
    assert_true(load(&config, &err, "--config", path, NULL, NULL));
    assert_string_equal(config.egress_allow, "10.0.0.0/8,10.1.0.0/16,10.2.0.0/16");
    assert_string_equal(config.internet, "on");
    char option[64];
    (void)snprintf(option, sizeof option, "--config=%s", path);
    assert_true(load(&config, &err, option, "--egress-allow=192.0.2.0/24", "--egress-allow", "192.0.2.1"));
    assert_string_equal(config.egress_allow, "192.0.2.0/24,192.0.2.1");
    assert_true(load(&config, &err, option, "--egress-allow=", NULL, NULL));
    assert_string_equal(config.egress_allow, "");
    unlink(path);
}

static void a_list_that_the_command_line_replaces_is_counted(void **state)
{
    (void)state;
    char path[] = "/tmp/cloister-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "dns = 192.0.2.1, 192.0.2.2\ndns = 192.0.2.3\negress-deny = 192.0.2.9\n") > 0);
    close(fd);
    struct config config;
    struct err err;
    char option[64];
    (void)snprintf(option, sizeof option, "--config=%s", path);
    assert_true(load(&config, &err, option, NULL, NULL, NULL));
    assert_int_equal(config.replaced_count, 0);
    assert_true(load(&config, &err, option, "--dns=192.0.2.4", "--dns=192.0.2.5", "--egress-deny=192.0.2.8"));
    assert_int_equal(config.replaced_count, 1);
    assert_string_equal(config.replaced[0].option, "dns");
    assert_int_equal(config.replaced[0].entries, 3);
    assert_string_equal(config.file, path);
    /* What the file does not have is not replaced. */
    assert_true(load(&config, &err, option, "--inside=a.internal:80=127.0.0.1:80", NULL, NULL));
    assert_int_equal(config.replaced_count, 0);
    unlink(path);
}

static void the_command_line_adds_to_what_the_file_denies(void **state)
{
    (void)state;
    char path[] = "/tmp/cloister-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "egress-deny = 203.0.113.0/24\negress-deny = 198.51.100.0/24\n") > 0);
    close(fd);
    struct config config;
    struct err err;
    char option[64];
    (void)snprintf(option, sizeof option, "--config=%s", path);
    assert_true(load(&config, &err, option, "--egress-deny=192.0.2.0/24", "--egress-deny", "192.0.2.1"));
    assert_string_equal(config.egress_deny, "203.0.113.0/24,198.51.100.0/24,192.0.2.0/24,192.0.2.1");
    assert_true(load(&config, &err, option, "--egress-deny=", NULL, NULL));
    assert_string_equal(config.egress_deny, "203.0.113.0/24,198.51.100.0/24");
    unlink(path);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    struct config config;
    struct err err;
    assert_false(load(&config, &err, "--memroy", "1", NULL, NULL));
    assert_non_null(strstr(err.message, "memroy"));
    /* Also where a value would have to follow, if it were one. */
    assert_false(load(&config, &err, "--memroy", NULL, NULL, NULL));
    assert_non_null(strstr(err.message, "no option --memroy; `cloister serve --help` lists them"));
    assert_false(load(&config, &err, "--memroy=1", NULL, NULL, NULL));
    assert_non_null(strstr(err.message, "no option --memroy;"));
    assert_false(load(&config, &err, "--memory", "lots", NULL, NULL));
    assert_non_null(strstr(err.message, "--memory must be a number from 128 to"));
    assert_false(load(&config, &err, "--memory=127", NULL, NULL, NULL));
    assert_false(load(&config, &err, "--memory", NULL, NULL, NULL));
    assert_string_equal(err.message, "--memory needs a value");
    assert_false(load(&config, &err, "--config", NULL, NULL, NULL));
    assert_string_equal(err.message, "--config needs a value");
    assert_false(load(&config, &err, "stray", NULL, NULL, NULL));
    assert_false(load(&config, &err, "--config", "/nonexistent/file", NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_command_line_wins_over_the_file),
        CASE(a_list_adds_up_and_the_command_line_replaces_that_of_the_file),
        CASE(a_list_that_the_command_line_replaces_is_counted),
        CASE(the_command_line_adds_to_what_the_file_denies),
        CASE(mistakes_are_named),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
