#include "isolation/native/criu_log.h"

#include "test.h"

static struct err explain(const char *log)
{
    struct err err = { 0 };

    criu_log_explain(str_from(log), &err);
    return err;
}

static void what_cannot_be_kept_is_said_with_what_works_instead(void **state)
{
    (void)state;
    static const struct {
        const char *log, *reason;
    } rows[] = {
        { "Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 99 (Operation not permitted)\n"
          "Error (criu/seize.c:335): zombie 99 (comm ) found while seizing\n",
          "a process is being debugged" },
        { "Error (criu/tty.c:2281): tty: ctty inheritance detected sid/pgrp 7, no PTY peer\n", "sudo -s" },
        { "Error (criu/files-reg.c:1031): Can't dump ghost file /x of 9 size, increase limit\n", "large deleted file" },
        { "Error (criu/fsnotify.c:284): fsnotify: \tCan't dump that handle\n", "watches files" },
        { "Error (criu/util.c:123): xvstrcat: Can't allocate 3725 bytes\n", "too many names below /home and /tmp" },
        { "Error (criu/sk-inet.c:167): inet: Can't dump corked dgram socket 3\n", "unfinished UDP packet" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct err err = explain(rows[i].log);
        assert_int_equal(err.kind, ERR_INVALID);
        assert_non_null(strstr(err.message, rows[i].reason));
        assert_non_null(strstr(err.message, "mode='filesystem'"));
    }
}

static void noise_is_no_reason(void **state)
{
    (void)state;
    struct err err = explain("Error (criu/tun.c:85): tun: Unable to create tun: No such file or directory\n"
                             "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: EPERM\n"
                             "Error (criu/x.c:1): something new\n"
                             "Error (criu/cr-dump.c:1975): Dumping FAILED.\n");
    assert_int_equal(err.kind, ERR_INTERNAL);
    assert_non_null(strstr(err.trail, "something new"));
    assert_null(strstr(err.message, "something new")); /* a guest may have written that */
    assert_non_null(strstr(err.message, "mode='filesystem'"));
}

static void a_full_disk_is_the_disk(void **state)
{
    (void)state;
    struct err err = explain("Error (criu/image.c:9): Can't write pages: No space left on device\n");
    assert_int_equal(err.kind, ERR_FULL);
}

static void what_guests_name_is_printed_plainly(void **state)
{
    (void)state;
    struct err err = explain("Error (criu/x.c:1): bad file \x1b[31m\x01\n");
    for (const char *at = err.trail; *at; at++)
        assert_true(*at >= ' ' && *at <= '~');
    err = explain("");
    assert_int_equal(err.kind, ERR_INTERNAL);
    /* The text of a warning or of anything else is no error. */
    err = explain("a file of a guest's: ctty inheritance\n");
    assert_int_equal(err.kind, ERR_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_kept_is_said_with_what_works_instead),
        cmocka_unit_test(noise_is_no_reason),
        cmocka_unit_test(a_full_disk_is_the_disk),
        cmocka_unit_test(what_guests_name_is_printed_plainly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
