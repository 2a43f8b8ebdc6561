#include "daemon/catalog.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "daemon/data_dir.h"
#include "image/templates.h"
#include "isolation/native/manifest.h"
#include "isolation/native/state.h"
#include "test.h"

enum { SWEEP_MS = 20 };

struct rig {
    char dir[40];
    int data_fd;
    struct loop *loop;
    struct timer stop;
};

static int set_up(void **state)
{
    struct rig *rig = NEW(struct rig);
    struct err err;

    (void)snprintf(rig->dir, sizeof rig->dir, "/tmp/cloister-catalog.XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    rig->data_fd = data_dir_open(rig->dir, &err);
    assert_true(rig->data_fd >= 0);
    rig->loop = loop_new();
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;
    char command[80];

    loop_free(rig->loop);
    fd_close(&rig->data_fd);
    (void)snprintf(command, sizeof command, "rm -rf %s", rig->dir);
    free(rig);
    return system(command);
}

/* Template `letter…` whose layers are letters too. */
static void save(struct rig *rig, int number, const char *layers, int64_t created_us)
{
    struct template template = { .cpu_millis = 1000, .memory_bytes = 1 << 30, .created_us = created_us };
    struct err err;

    (void)snprintf(template.id, sizeof template.id, "t%019d", number);
    (void)snprintf(template.name, sizeof template.name, "name%d", number);
    memset(template.recipe, '0', LAYER_HEX_BYTES - 1);
    for (; *layers; layers++)
        memset(template.layers[template.layer_count++], *layers, LAYER_HEX_BYTES - 1);
    if (!template_save(rig->data_fd, &template, &err))
        fail_msg("%s", err_text(&err));
}

static const char *layer_path(char letter)
{
    static char path[LAYER_HEX_BYTES + 8] = "layers/";

    memset(path + 7, letter, LAYER_HEX_BYTES - 1);
    return path;
}

static void make_layers(struct rig *rig, const char *letters)
{
    for (; *letters; letters++)
        assert_int_equal(mkdirat(rig->data_fd, layer_path(*letters), 0755), 0);
}

static void check_layers(struct rig *rig, const char *want)
{
    char got[8] = "";

    for (char letter = 'a'; letter <= 'f'; letter++)
        if (faccessat(rig->data_fd, layer_path(letter), F_OK, 0) == 0)
            strncat(got, &letter, 1);
    assert_string_equal(got, want);
}

/* `layer` 0: a record of an older version, which names none. */
static void hold_sandbox(struct rig *rig, const char *id, char layer)
{
    auto_buf struct buf text = buf_make(NULL, 4096);
    struct state record = { .boot_id = "x", .layer_count = layer ? 1 : 0 };
    char path[64];
    struct err err;

    memset(record.layers[0], layer, LAYER_HEX_BYTES - 1);
    state_print(&text, &record);
    (void)snprintf(path, sizeof path, "sandboxes/%s", id);
    assert_int_equal(mkdirat(rig->data_fd, path, 0700), 0);
    strcat(path, "/state");
    assert_true(fd_replace_file(rig->data_fd, path, buf_str(&text), 0600, &err));
}

static struct catalog *new_catalog(struct rig *rig)
{
    return catalog_new(&(struct catalog_config){ .loop = rig->loop, .data_fd = rig->data_fd, .sweep_ms = SWEEP_MS });
}

static void on_stop(struct timer *timer)
{
    loop_stop_soon(container_of(timer, struct rig, stop)->loop);
}

static void run_past_a_sweep(struct rig *rig)
{
    timer_set(&rig->stop, rig->loop, SWEEP_MS + 10, on_stop); /* timers run in the order of their times */
    loop_run(rig->loop);
}

/* How many templates the page has; *out_all_read as it says. */
static uint32_t page(struct catalog *catalog, const char *after, bool *out_all_read, struct template **out)
{
    auto_buf struct buf payload = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    uint32_t count = 0;
    struct err err;

    if (!catalog_page(catalog, after, &payload, &err))
        fail_msg("%s", err_text(&err));
    struct unpack in = unpack_from(buf_str(&payload));
    *out_all_read = unpack_u8(&in);
    *out = templates_unpack(&in, &count);
    assert_true(unpack_done(&in, &err));
    return count;
}

static void tell(struct catalog *catalog, uint32_t want_count, bool want_all_read)
{
    auto_free struct template *list = NULL;
    bool all_read;

    assert_int_equal(page(catalog, "", &all_read, &list), want_count);
    assert_int_equal(all_read, want_all_read);
}

static void more_templates_than_a_page_holds_are_told_in_order(void **state)
{
    struct rig *rig = *state;
    enum { ALL = 2 * LIMIT_TEMPLATES_PAGE + 3 };
    char after[LIMIT_ID_BYTES] = "", want[LIMIT_ID_BYTES];
    unsigned total = 0, pages = 0;
    uint32_t count;
    bool all_read;

    for (int i = ALL - 1; i >= 0; i--)
        save(rig, i, "a", 1);
    struct catalog *catalog = new_catalog(rig);
    do {
        auto_free struct template *list = NULL;
        count = page(catalog, after, &all_read, &list);
        assert_true(all_read);
        for (uint32_t i = 0; i < count; i++) {
            (void)snprintf(want, sizeof want, "t%019u", total++);
            assert_string_equal(list[i].id, want);
            memcpy(after, list[i].id, sizeof after);
        }
        pages++;
    } while (count == LIMIT_TEMPLATES_PAGE);
    assert_int_equal(total, ALL);
    assert_int_equal(pages, 3);
    catalog_free(catalog);
}

static void a_bad_file_is_left_out_and_stops_the_removal_of_layers(void **state)
{
    struct rig *rig = *state;
    struct err err;

    make_layers(rig, "ab");
    save(rig, 1, "a", 1);
    assert_true(fd_replace_file(rig->data_fd, "templates/tbadbadbadbadbadbadb", STR("layer b\n"), 0600, &err));
    struct catalog *catalog = new_catalog(rig);
    check_layers(rig, "ab");
    tell(catalog, 1, false);
    assert_int_equal(unlinkat(rig->data_fd, "templates/tbadbadbadbadbadbadb", 0), 0);
    tell(catalog, 1, true);
    catalog_free(catalog);
    catalog_free(new_catalog(rig));
    check_layers(rig, "a");
}

static void the_start_removes_what_no_template_and_no_sandbox_uses(void **state)
{
    struct rig *rig = *state;

    make_layers(rig, "abcd");
    save(rig, 1, "ab", 1);
    hold_sandbox(rig, "ione", 'c');
    catalog_free(new_catalog(rig));
    check_layers(rig, "abc");
    assert_int_equal(unlinkat(rig->data_fd, "sandboxes/ione/state", 0), 0); /* never started */
    catalog_free(new_catalog(rig));
    check_layers(rig, "ab");
}

static void a_sandbox_whose_layers_are_not_known_keeps_all_of_them(void **state)
{
    struct rig *rig = *state;

    make_layers(rig, "ab");
    save(rig, 1, "a", 1);
    hold_sandbox(rig, "iold", 0);
    catalog_free(new_catalog(rig));
    check_layers(rig, "ab");
}

static void a_replaced_layer_goes_once_front_was_told_and_creates_are_over(void **state)
{
    struct rig *rig = *state;

    make_layers(rig, "ab");
    save(rig, 1, "a", 1);
    save(rig, 2, "b", 1);
    struct catalog *catalog = new_catalog(rig);
    tell(catalog, 2, true);
    run_past_a_sweep(rig);
    check_layers(rig, "ab");

    make_layers(rig, "c");
    save(rig, 1, "c", 2); /* front does not know yet: it still starts sandboxes from a */
    run_past_a_sweep(rig);
    check_layers(rig, "abc");
    tell(catalog, 2, true);
    check_layers(rig, "abc");
    run_past_a_sweep(rig);
    check_layers(rig, "bc");

    assert_int_equal(unlinkat(rig->data_fd, "templates/t0000000000000000002", 0), 0);
    tell(catalog, 1, true);
    run_past_a_sweep(rig);
    check_layers(rig, "c");
    catalog_free(catalog);
}

static void a_layer_that_only_a_sandbox_uses_goes_after_it(void **state)
{
    struct rig *rig = *state;

    make_layers(rig, "ab");
    save(rig, 1, "b", 1);
    hold_sandbox(rig, "ione", 'a');
    struct catalog *catalog = new_catalog(rig);
    run_past_a_sweep(rig);
    check_layers(rig, "ab");
    assert_int_equal(renameat(rig->data_fd, "sandboxes/ione", rig->data_fd, "trash/x"), 0);
    run_past_a_sweep(rig);
    check_layers(rig, "b");
    catalog_free(catalog);
}

static void a_layer_that_only_a_snapshot_uses_goes_after_it(void **state)
{
    struct rig *rig = *state;
    struct manifest manifest = { .layer_count = 1 };
    struct err err;

    make_layers(rig, "ab");
    save(rig, 1, "b", 1);
    memset(manifest.layers[0], 'a', LAYER_HEX_BYTES - 1);
    assert_int_equal(mkdirat(rig->data_fd, "snapshots", 0700), 0);
    assert_int_equal(mkdirat(rig->data_fd, "snapshots/one", 0700), 0);
    auto_close int fd = openat(rig->data_fd, "snapshots/one", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(manifest_write(fd, &manifest, &err));
    struct catalog *catalog = new_catalog(rig);
    run_past_a_sweep(rig);
    check_layers(rig, "ab");
    assert_int_equal(renameat(rig->data_fd, "snapshots/one", rig->data_fd, "trash/x"), 0);
    catalog_sweep_soon(catalog);
    run_past_a_sweep(rig);
    check_layers(rig, "b");
    catalog_free(catalog);
}

/* Its newest layer has no template yet. */
static void nothing_is_removed_while_a_template_is_built(void **state)
{
    struct rig *rig = *state;
    int lock_fd = -1;
    struct err err;

    assert_true(layers_prepare(rig->data_fd, &lock_fd, &err));
    make_layers(rig, "a");
    struct catalog *catalog = new_catalog(rig);
    run_past_a_sweep(rig);
    check_layers(rig, "a");
    fd_close(&lock_fd);
    run_past_a_sweep(rig); /* it was built for nothing */
    check_layers(rig, "");
    catalog_free(catalog);
}

#define RIG_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        RIG_CASE(more_templates_than_a_page_holds_are_told_in_order),
        RIG_CASE(a_bad_file_is_left_out_and_stops_the_removal_of_layers),
        RIG_CASE(the_start_removes_what_no_template_and_no_sandbox_uses),
        RIG_CASE(a_sandbox_whose_layers_are_not_known_keeps_all_of_them),
        RIG_CASE(a_replaced_layer_goes_once_front_was_told_and_creates_are_over),
        RIG_CASE(a_layer_that_only_a_sandbox_uses_goes_after_it),
        RIG_CASE(a_layer_that_only_a_snapshot_uses_goes_after_it),
        RIG_CASE(nothing_is_removed_while_a_template_is_built),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
