#include "isolation/native/probe.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/attr.h"
#include "test.h"

static unsigned count_names(const char *path)
{
    DIR *dir = opendir(path);
    unsigned count = 0;

    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        (void)closedir(dir);
    return count;
}

static bool has_row(const struct probe_row *rows, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return true;
    return false;
}

static void every_row_says_something_and_every_miss_has_a_fix(void **state)
{
    (void)state;
    char place[] = "/tmp/cloister-probe-test.XXXXXX", data[64];
    struct probe_row rows[PROBE_ROWS_MAX];

    assert_non_null(mkdtemp(place));
    (void)snprintf(data, sizeof data, "%s/not/there", place);
    size_t count = native_probe(data, rows);
    assert_true(count > 5 && count <= PROBE_ROWS_MAX);
    for (size_t i = 0; i < count; i++) {
        print_message("%-18s %-5s %s%s%s\n", rows[i].name, probe_verdict_name[rows[i].verdict], rows[i].found,
                      rows[i].fix[0] ? "; fix: " : "", rows[i].fix);
        assert_true(rows[i].name && rows[i].found[0]);
        assert_int_equal(rows[i].verdict == PROBE_OK, rows[i].fix[0] == '\0');
    }
    assert_true(has_row(rows, count, "pause in memory") && has_row(rows, count, "pause, files only"));
    assert_int_equal(count_names(place), 0); /* it tried, and left nothing */
    assert_int_equal(rmdir(place), 0);
}

static void print_row(const struct probe_row *row)
{
    print_message("%-18s %-5s %s%s%s\n", row->name, probe_verdict_name[row->verdict], row->found,
                  row->fix[0] ? "; fix: " : "", row->fix);
    assert_true(row->found[0]);
    assert_int_equal(row->verdict == PROBE_OK, row->fix[0] == '\0');
}

static void a_machine_without_criu_has_no_fault(void **state)
{
    struct probe_row row;

    (void)state;
    native_probe_memory(NULL, &row);
    print_row(&row);
    assert_int_equal(row.verdict, PROBE_OK);
    assert_non_null(strstr(row.found, "--criu"));
    native_probe_memory("/nowhere/at/all", &row);
    print_row(&row);
    assert_int_equal(row.verdict, geteuid() == 0 ? PROBE_OK : PROBE_SKIP);
}

static void a_criu_that_does_not_run_is_told(void **state)
{
    char place[] = "/tmp/cloister-probe-test.XXXXXX", path[64];
    struct probe_row row;

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_non_null(mkdtemp(place));
    native_probe_memory(place, &row); /* an empty directory */
    print_row(&row);
    assert_int_equal(row.verdict, PROBE_WARN);
    (void)snprintf(path, sizeof path, "%s/usr", place);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/usr/sbin", place);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/usr/sbin/criu", place);
    FILE *program = fopen(path, "w");
    assert_non_null(program);
    (void)fputs("#!/bin/false\n", program);
    (void)fchmod(fileno(program), 0755);
    (void)fclose(program);
    native_probe_memory(place, &row);
    print_row(&row);
    assert_int_equal(row.verdict, PROBE_WARN);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/usr/sbin", place);
    assert_int_equal(rmdir(path), 0);
    (void)snprintf(path, sizeof path, "%s/usr", place);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(place), 0);
}

/* Where scripts/criu.sh has put one, it works: if not, sandboxes could not be written to disk either. */
static void a_criu_that_is_there_works(void **state)
{
    const char *tools = getenv("CLOISTER_CRIU") ? getenv("CLOISTER_CRIU") : "/var/cache/cloister/criu";
    struct probe_row row;

    (void)state;
    if (geteuid() != 0 || access(tools, F_OK) < 0) {
        print_message("skipped: there is no CRIU in %s, or no root\n", tools);
        skip();
    }
    native_probe_memory(tools, &row);
    print_row(&row);
    assert_int_equal(row.verdict, PROBE_OK);
    /* Also where systemd has made all mounts shared, as it does. */
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
            mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL) < 0)
            _exit(2);
        native_probe_memory(tools, &row);
        print_row(&row);
        _exit(row.verdict != PROBE_OK);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(every_row_says_something_and_every_miss_has_a_fix),
        CASE(a_machine_without_criu_has_no_fault),
        CASE(a_criu_that_does_not_run_is_told),
        CASE(a_criu_that_is_there_works),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
