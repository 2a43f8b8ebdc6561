#include "isolation/native/state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "test.h"

static void a_record_comes_back_as_it_was(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    struct state sent = { .boot_id = "7b0a4d2c-9f1e-4c3b-8a67-000000000000",
                          .slot = 17,
                          .pid = 4242,
                          .start_time = UINT64_MAX,
                          .dying = true,
                          .held = HELD_PARKED,
                          .network = NETWORK_BOTH,
                          .owner = 2013267048,
                          .layer_count = 2 };
    struct state got;
    struct err err;

    memset(sent.layers[0], 'a', LAYER_ID_BYTES - 1);
    memset(sent.layers[1], 'b', LAYER_ID_BYTES - 1);

    state_print(&out, &sent);
    assert_true(state_parse(buf_str(&out), &got, &err));
    assert_string_equal(got.boot_id, sent.boot_id);
    assert_int_equal(got.slot, sent.slot);
    assert_int_equal(got.pid, sent.pid);
    assert_int_equal(got.start_time, sent.start_time);
    assert_true(got.dying);
    assert_int_equal(got.held, HELD_PARKED);
    assert_int_equal(got.network, NETWORK_BOTH);
    assert_int_equal(got.owner, sent.owner);
    assert_int_equal(got.layer_count, 2);
    assert_memory_equal(got.layers, sent.layers, sizeof sent.layers);
}

static void a_record_of_an_older_version_has_no_zygote_and_no_network(void **state)
{
    (void)state;
    struct state got;
    struct err err;

    assert_true(state_parse(STR("cloister-sandbox 1\nboot x\nslot 17\npid 4242\nstart 5\ndying 0\n"), &got, &err));
    assert_int_equal(got.slot, 17);
    assert_int_equal(got.owner, 0);
    assert_int_equal(got.layer_count, 0);
    assert_true(state_parse(STR("cloister-sandbox 2\nboot x\nslot 17\npid 4242\nstart 5\ndying 0\nowner 7\nlayers 0\n"),
                            &got, &err));
    assert_int_equal(got.owner, 7);
    assert_int_equal(got.network, NETWORK_NONE);
    assert_true(state_parse(STR("cloister-sandbox 3\nboot x\nslot 17\npid 4242\nstart 5\ndying 0\nnetwork 1\n"
                                "owner 7\nlayers 0\n"),
                            &got, &err));
    assert_int_equal(got.held, HELD_RUNNING);
    assert_false(state_parse(STR("cloister-sandbox 4\nboot x\nslot 17\npid 4242\nstart 5\ndying 0\nheld 4\n"
                                 "network 1\nowner 7\nlayers 0\n"),
                             &got, &err));
    assert_false(state_parse(STR("cloister-sandbox 3\nboot x\nslot 17\npid 4242\nstart 5\ndying 0\nnetwork 3\n"
                                 "owner 7\nlayers 0\n"),
                             &got, &err));
}

static void a_completed_record_covers_the_one_before(void **state)
{
    (void)state;
    auto_buf struct buf first = buf_make(NULL, 1000), second = buf_make(NULL, 1000);

    state_print(&first, &(struct state){ .boot_id = "x" });
    state_print(&second, &(struct state){ .boot_id = "7b0a4d2c-9f1e-4c3b-8a67-000000000000",
                                          .slot = UINT32_MAX,
                                          .pid = INT32_MAX,
                                          .start_time = UINT64_MAX });
    assert_int_equal(first.len, second.len);
}

static void note_layer(void *context, const char *layer)
{
    strcat(context, layer);
    strcat(context, " ");
}

static void the_layers_stay_when_the_record_is_completed(void **state)
{
    (void)state;
    char dir[] = "/tmp/cloister-state.XXXXXX", noted[200] = "", want[200];
    struct state record = { .boot_id = "x" };
    struct err err;

    assert_non_null(mkdtemp(dir));
    auto_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int fd = openat(dir_fd, "state", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(state_write(fd, &record, &err));
    assert_false(state_read_layers(dir_fd, note_layer, noted, &err)); /* as an older version left it */
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    record.layer_count = 2;
    memset(record.layers[0], 'a', LAYER_ID_BYTES - 1);
    memset(record.layers[1], 'b', LAYER_ID_BYTES - 1);
    assert_true(state_write(fd, &record, &err));
    record.pid = 12;
    record.dying = true;
    assert_true(state_write(fd, &record, &err));
    record.held = HELD_PARKED;
    assert_true(state_replace(dir_fd, &record, &err));
    assert_true(state_read_layers(dir_fd, note_layer, noted, &err));
    snprintf(want, sizeof want, "%s %s ", record.layers[0], record.layers[1]);
    assert_string_equal(noted, want);
    unlinkat(dir_fd, "state", 0);
    rmdir(dir);
}

static void a_sandbox_is_claimed_by_one_until_all_copies_are_closed(void **state)
{
    (void)state;
    char dir[] = "/tmp/cloister-state.XXXXXX";
    int first_fd = -1, second_fd = -1;
    struct err err;

    assert_non_null(mkdtemp(dir));
    auto_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(state_claim(dir_fd, &first_fd, &err));
    assert_false(state_claim(dir_fd, &second_fd, &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    int copy_fd = dup(first_fd);
    fd_close(&first_fd);
    assert_false(state_claim(dir_fd, &second_fd, &err));
    fd_close(&copy_fd);
    assert_true(state_claim(dir_fd, &second_fd, &err));
    fd_close(&second_fd);
    rmdir(dir);
}

static void a_torn_record_is_refused(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1000);
    struct state got;
    struct err err;

    state_print(&out, &(struct state){ .boot_id = "x", .pid = 12 });
    for (size_t len = 0; len < out.len - 1; len++) /* the last line end may be missing */
        if (state_parse(str_of(out.data, len), &got, &err))
            assert_true(len > out.len - 30); /* in the last number a cut cannot be seen */
    assert_false(state_parse(STR("cloister-sandbox 2\nboot x\nslot 17\npid 4242\nstart 5\ndying 0\n"), &got, &err));
    assert_false(state_parse(STR(""), &got, &err));
}

static void the_start_time_is_found_behind_any_name(void **state)
{
    (void)state;
    uint64_t ticks = 0;

    assert_true(
        state_start_time(STR("7 (a) b) (c) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3\n"), &ticks));
    assert_true(ticks == 98765);
    assert_false(state_start_time(STR("7 (a) S 1 2 3"), &ticks));
    assert_false(state_start_time(STR(""), &ticks));
    assert_false(state_start_time(STR(")"), &ticks));
}

static void our_own_start_time_can_be_read(void **state)
{
    (void)state;
    uint64_t ticks = 0;
    char boot_id[BOOT_ID_BYTES];
    struct err err;

    assert_true(state_process_start_time(getpid(), &ticks, &err));
    assert_true(ticks > 0);
    assert_true(state_boot_id(boot_id, &err));
    assert_int_equal(strlen(boot_id), 36);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_record_comes_back_as_it_was),
        CASE(a_record_of_an_older_version_has_no_zygote_and_no_network),
        CASE(a_completed_record_covers_the_one_before),
        CASE(the_layers_stay_when_the_record_is_completed),
        CASE(a_sandbox_is_claimed_by_one_until_all_copies_are_closed),
        CASE(a_torn_record_is_refused),
        CASE(the_start_time_is_found_behind_any_name),
        CASE(our_own_start_time_can_be_read),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
