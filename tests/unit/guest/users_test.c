#include "guest/users.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "test.h"

static char etc[64];
static struct arena arena;

static void put(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(etc, sizeof etc, "/tmp/users_test.XXXXXX");
    arena_init(&arena);
    return mkdtemp(etc) ? 0 : -1;
}

static int tear_down(void **state)
{
    char path[128];
    (void)state;
    arena_done(&arena);
    (void)snprintf(path, sizeof path, "%s/passwd", etc);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/group", etc);
    (void)unlink(path);
    return rmdir(etc);
}

#define PASSWD                            \
    "root:x:0:0:root:/root:/bin/bash\n# " \
    "comment\nbroken:x:1\nneg:x:-1:0::/:\nuser:x:1000:1001:,,,:/home/user:/bin/bash\nnohome:x:7:8:::\n"

static void a_user_is_found_with_home_and_groups(void **state)
{
    (void)state;
    struct user user;
    gid_t groups[8];
    put("passwd", PASSWD);
    put("group", "root:x:0:\nsudo:x:27:other,user\nuser:x:1001:user\ndocker:x:99:user");
    struct users *users = users_new(etc);
    assert_true(users_find(users, &arena, STR("user"), &user));
    assert_int_equal(user.uid, 1000);
    assert_int_equal(user.gid, 1001);
    CHECK_STR(user.home, STR("/home/user"));
    assert_int_equal(users_groups(users, &user, groups, 8), 3);
    assert_int_equal(groups[0], 1001);
    assert_int_equal(groups[1], 27);
    assert_int_equal(groups[2], 99);
    assert_int_equal(users_groups(users, &user, groups, 2), 2);
    users_free(users);
}

static void lines_that_make_no_sense_are_skipped(void **state)
{
    (void)state;
    struct user user;
    put("passwd", PASSWD);
    struct users *users = users_new(etc);
    assert_false(users_find(users, &arena, STR("broken"), &user));
    assert_false(users_find(users, &arena, STR("neg"), &user));
    assert_false(users_find(users, &arena, STR(""), &user));
    assert_true(users_find(users, &arena, STR("nohome"), &user));
    CHECK_STR(user.home, STR("/"));
    users_free(users);
}

static void a_changed_file_is_read_again(void **state)
{
    (void)state;
    struct user user;
    put("passwd", PASSWD);
    struct users *users = users_new(etc);
    assert_false(users_find(users, &arena, STR("late"), &user));
    put("passwd", PASSWD "late:x:5:5::/late:\n");
    assert_true(users_find(users, &arena, STR("late"), &user));
    users_free(users);
}

static void numbers_stand_for_names_that_are_not_there(void **state)
{
    (void)state;
    put("passwd", PASSWD);
    struct users *users = users_new(etc);
    CHECK_STR(users_uid_name(users, &arena, 1000), STR("user"));
    CHECK_STR(users_uid_name(users, &arena, 4242), STR("4242"));
    CHECK_STR(users_gid_name(users, &arena, 31337), STR("31337"));
    users_free(users);
}

static void the_first_line_names_an_id(void **state)
{
    (void)state;
    put("passwd", "one:x:9:9::/:\ntwo:x:8:8::/:\nthree:x:9:9::/:\n");
    struct users *users = users_new(etc);
    CHECK_STR(users_uid_name(users, &arena, 9), STR("one"));
    CHECK_STR(users_uid_name(users, &arena, 8), STR("two"));
    users_free(users);
}

static void names_are_of_one_reading_until_somebody_is_looked_for(void **state)
{
    (void)state;
    struct user user;
    put("passwd", PASSWD);
    struct users *users = users_new(etc);
    CHECK_STR(users_uid_name(users, &arena, 1000), STR("user"));
    put("passwd", "renamed:x:1000:1000::/:\n");
    CHECK_STR(users_uid_name(users, &arena, 1000), STR("user"));
    assert_true(users_find(users, &arena, STR("renamed"), &user));
    CHECK_STR(users_uid_name(users, &arena, 1000), STR("renamed"));
    users_free(users);
}

static void a_file_that_is_too_large_counts_as_empty(void **state)
{
    (void)state;
    struct user user;
    char path[128];
    put("passwd", PASSWD);
    (void)snprintf(path, sizeof path, "%s/passwd", etc);
    struct users *users = users_new(etc);
    assert_true(users_find(users, &arena, STR("root"), &user));
    assert_int_equal(truncate(path, LIMIT_USERS_BYTES + 1), 0);
    assert_false(users_find(users, &arena, STR("root"), &user));
    CHECK_STR(users_uid_name(users, &arena, 0), STR("0"));
    users_free(users);
}

static void a_fifo_in_place_of_the_file_holds_nobody_up(void **state)
{
    (void)state;
    struct user user;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/passwd", etc);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0644), 0);
    struct users *users = users_new(etc);
    assert_false(users_find(users, &arena, STR("root"), &user));
    users_free(users);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_user_is_found_with_home_and_groups),
        CASE(lines_that_make_no_sense_are_skipped),
        CASE(a_changed_file_is_read_again),
        CASE(numbers_stand_for_names_that_are_not_there),
        CASE(the_first_line_names_an_id),
        CASE(names_are_of_one_reading_until_somebody_is_looked_for),
        CASE(a_file_that_is_too_large_counts_as_empty),
        CASE(a_fifo_in_place_of_the_file_holds_nobody_up),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
