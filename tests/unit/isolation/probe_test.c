#include "isolation/native/probe.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void)
{
    const struct CMUnitTest cases[] = { CASE(every_row_says_something_and_every_miss_has_a_fix) };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
