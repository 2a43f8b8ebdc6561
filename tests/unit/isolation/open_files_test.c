#include "isolation/native/open_files.h"

#include "test.h"

static void descriptors_in_a_sockets_queue_are_read(void **state)
{
    (void)state;
    assert_int_equal(open_files_in_flight(STR("pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t77\nscm_fds: 253\n")), 253);
    assert_int_equal(open_files_in_flight(STR("pos:\t0\nscm_fds:\t12\n")), 12);
    assert_int_equal(open_files_in_flight(STR("pos:\t0\nflags:\t02\n")), 0);
    assert_int_equal(open_files_in_flight(STR("scm_fds: many\n")), 0);
    assert_int_equal(open_files_in_flight(STR("")), 0);
}

static void a_line_of_the_list_of_unix_sockets_has_an_inode(void **state)
{
    (void)state;
    CHECK_STR(open_files_inode(STR("0000000000000000: 00000003 00000000 00000000 0001 03 20345 /run/x y")),
              STR("20345"));
    CHECK_STR(open_files_inode(STR("0000000000000000: 00000002 00000000 00010000 0001 01    77")), STR("77"));
    CHECK_STR(open_files_inode(STR("0000000000000000: 00000002 00000000 00010000 0001 01     0 @x")), STR(""));
    CHECK_STR(open_files_inode(STR("Num       RefCount Protocol Flags    Type St Inode Path")), STR(""));
    CHECK_STR(open_files_inode(STR("")), STR(""));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(descriptors_in_a_sockets_queue_are_read),
        CASE(a_line_of_the_list_of_unix_sockets_has_an_inode),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
