#include "image/templates.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "temp_data.h"

static struct template a_template(const char *id, const char *name)
{
    struct template template = {
        .layer_count = 2, .cpu_millis = 2000, .memory_bytes = 1 << 30, .created_us = 1767607200120394
    };

    (void)snprintf(template.id, sizeof template.id, "%s", id);
    (void)snprintf(template.name, sizeof template.name, "%s", name);
    memset(template.layers[0], 'a', 64);
    memset(template.layers[1], 'b', 64);
    memset(template.recipe, '0', 64);
    return template;
}

#define ID_ONE "aaaaaaaaaaaaaaaaaaa1"
#define ID_TWO "aaaaaaaaaaaaaaaaaaa2"

static void a_template_comes_back_from_its_file(void **state)
{
    (void)state;
    struct template saved = a_template(ID_ONE, "base"), loaded;
    struct err err;

    assert_true(template_save(data_fd, &saved, &err));
    assert_true(template_load(data_fd, ID_ONE, &loaded, &err));
    assert_memory_equal(&loaded, &saved, sizeof saved);
    assert_true(template_find(data_fd, "base", &loaded, &err));
    assert_string_equal(loaded.id, ID_ONE);
    assert_false(template_find(data_fd, "other", &loaded, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_false(template_load(data_fd, "../tmp/xxxxxxxxxxxxx", &loaded, &err));
    assert_int_equal(err.kind, ERR_INVALID);
}

static void all_are_listed_by_id_and_a_bad_file_is_left_out(void **state)
{
    (void)state;
    struct template one = a_template(ID_ONE, "zebra"), two = a_template(ID_TWO, "apple");
    auto_templates struct templates all = { 0 }, fewer = { 0 };
    struct err err;

    assert_true(template_save(data_fd, &two, &err));
    assert_true(template_save(data_fd, &one, &err));
    assert_true(templates_read(data_fd, &all, &err));
    assert_int_equal(all.count, 2);
    assert_int_equal(all.bad_count, 0);
    assert_string_equal(all.list[0].name, "zebra");
    assert_string_equal(all.list[1].name, "apple");
    assert_true(fd_replace_file(data_fd, "templates/" ID_ONE, STR("garbage\n"), 0600, &err));
    assert_true(templates_read(data_fd, &fewer, &err));
    assert_int_equal(fewer.count, 1);
    assert_string_equal(fewer.list[0].name, "apple");
    assert_int_equal(fewer.bad_count, 1);
    assert_non_null(strstr(err_text(&fewer.bad), ID_ONE));
    assert_int_equal(unlinkat(data_fd, "templates/" ID_ONE, 0), 0);
}

static void a_teams_template_keeps_its_owner_and_is_nobody_elses(void **state)
{
    (void)state;
    struct template saved = a_template(ID_ONE, "web"), loaded;
    struct err err;

    (void)snprintf(saved.owner, sizeof saved.owner, "7b0a4d2c-9f1e-4c3b-8a67-000000000000");
    assert_true(template_save(data_fd, &saved, &err));
    assert_true(template_load(data_fd, ID_ONE, &loaded, &err));
    assert_memory_equal(&loaded, &saved, sizeof saved);
    assert_false(template_find(data_fd, "web", &loaded, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    (void)snprintf(saved.owner, sizeof saved.owner, "Robert; DROP");
    assert_false(template_save(data_fd, &saved, &err));
    assert_int_equal(unlinkat(data_fd, "templates/" ID_ONE, 0), 0);
}

static void a_size_is_whole_cpus_and_mebibytes_within_reason(void **state)
{
    (void)state;
    struct template template = a_template(ID_ONE, "base");
    struct err err;

    template.cpu_millis = 1500;
    template.memory_bytes = (2ull << 30) + 1;
    assert_true(template_check(&template, &err));
    assert_int_equal(template_cpus(&template), 2);
    assert_int_equal(template_memory_mb(&template), 2048);
    template.memory_bytes = (uint64_t)TEMPLATE_MEMORY_MB_MAX << 20;
    template.cpu_millis = TEMPLATE_CPUS_MAX * 1000;
    assert_true(template_check(&template, &err));
    template.cpu_millis++;
    assert_false(template_check(&template, &err));
    assert_non_null(strstr(err.message, "more than 256 CPUs"));
    template.cpu_millis--;
    template.memory_bytes += 1 << 20;
    assert_false(template_check(&template, &err));
}

static void a_file_that_is_wrong_is_refused(void **state)
{
    (void)state;
    struct template template = a_template(ID_ONE, "base"), parsed;
    auto_buf struct buf text = buf_make(NULL, TEMPLATE_FILE_BYTES);
    struct err err;

    template_print(&text, &template);
    assert_true(template_parse(buf_str(&text), &parsed, &err));
    for (size_t len = 0; len + 1 < text.len; len++)
        assert_false(template_parse(str_of(text.data, len), &parsed, &err));
    buf_add(&text, STR("name other\n")); /* twice */
    assert_false(template_parse(buf_str(&text), &parsed, &err));
    assert_false(template_parse(STR("cloister-template 1\nsurprise 1\n"), &parsed, &err));
    assert_false(template_parse(STR(""), &parsed, &err));
}

static void templates_cross_in_a_message(void **state)
{
    (void)state;
    struct template sent[2] = { a_template(ID_ONE, "base"), a_template(ID_TWO, "other") };
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    uint32_t count = 0;
    struct err err;

    templates_pack(&out, sent, 2);
    struct unpack in = unpack_from(buf_str(&out));
    auto_free struct template *got = templates_unpack(&in, &count);
    assert_true(unpack_done(&in, &err));
    assert_int_equal(count, 2);
    assert_memory_equal(got, sent, sizeof sent);
    /* A field out of range makes the whole malformed. */
    sent[1].layers[0][0] = '/';
    auto_buf struct buf bad = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    templates_pack(&bad, sent, 2);
    in = unpack_from(buf_str(&bad));
    assert_null(templates_unpack(&in, &count));
    assert_false(unpack_done(&in, &err));
}

static void a_full_page_fits_a_message(void **state)
{
    (void)state;
    struct template *list = mem_new(LIMIT_TEMPLATES_PAGE * sizeof *list);
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES - 16);

    for (int i = 0; i < LIMIT_TEMPLATES_PAGE; i++) {
        list[i] = a_template(ID_ONE, "base");
        memset(list[i].name, 'n', sizeof list[i].name - 1);
        memset(list[i].owner, 'a', sizeof list[i].owner - 1);
        list[i].layer_count = LIMIT_LAYERS;
        for (int layer = 0; layer < LIMIT_LAYERS; layer++)
            memset(list[i].layers[layer], 'c', 64);
    }
    templates_pack(&out, list, LIMIT_TEMPLATES_PAGE);
    assert_false(out.overflowed);
    free(list);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_template_comes_back_from_its_file),
        CASE(all_are_listed_by_id_and_a_bad_file_is_left_out),
        CASE(a_teams_template_keeps_its_owner_and_is_nobody_elses),
        CASE(a_size_is_whole_cpus_and_mebibytes_within_reason),
        CASE(a_file_that_is_wrong_is_refused),
        CASE(templates_cross_in_a_message),
        CASE(a_full_page_fits_a_message),
    };
    return cmocka_run_group_tests(cases, temp_data_set_up, temp_data_tear_down);
}
