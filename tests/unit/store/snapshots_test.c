#include "base/limits.h"
#include "temp_store.h"

static const struct snapshot_caps plenty = {
    .of_team = 100, .of_all = 100, .bytes = 1 << 30, .bytes_of_team = 1 << 29
};
static const struct str layers[] = { STR_INIT("aaaa"), STR_INIT("bbbb") };

static struct snapshot_row row(const char *kept_id, const char *name, const char *tag, int64_t created_us)
{
    return (struct snapshot_row){ .kept_id = str_from(kept_id),
                                  .name = str_from(name),
                                  .tag = str_from(tag),
                                  .team_id = STR("team"),
                                  .sandbox_id = STR("isource"),
                                  .source_template_id = STR("tbase"),
                                  .cpu_count = 2,
                                  .memory_mb = 1024,
                                  .disk_mb = 5120,
                                  .guestd_version = STR("0.6.13"),
                                  .created_us = created_us,
                                  .layer_count = 2,
                                  .layers = layers,
                                  .has_memory = true,
                                  .layer_bytes = 1000,
                                  .image_bytes = 2000 };
}

/* Its template's id. */
static struct str add(struct temp_store *t, struct snapshot_row wanted)
{
    struct snapshot_row made;

    MUST(store_snapshot_add(t->store, &wanted, &plenty, &t->arena, &made, &err));
    return made.template_id;
}

static struct snapshot_row get(struct temp_store *t, struct str ref, const char *tag)
{
    struct snapshot_row found;

    MUST(store_snapshot_get(t->store, STR("team"), ref, str_from(tag), &t->arena, &found, &err));
    return found;
}

static size_t list(struct temp_store *t, struct snapshot_filter filter, struct snapshot_row **out)
{
    size_t count;

    filter.team_id = filter.team_id.len ? filter.team_id : STR("team");
    filter.limit = filter.limit ? filter.limit : 100;
    MUST(store_snapshot_list(t->store, &filter, &t->arena, out, &count, &err));
    return count;
}

static size_t removed(struct temp_store *t, struct str **out)
{
    size_t count;

    MUST(store_snapshot_removed(t->store, &t->arena, out, &count, &err));
    return count;
}

static void base_sandbox_on(struct temp_store *t, struct str template_id)
{
    struct sandbox_row sandbox = { .id = STR("imade"),
                                   .team_id = STR("team"),
                                   .template_id = template_id,
                                   .guestd_version = STR("0.6.13"),
                                   .metadata = STR("{}") };

    MUST(store_sandbox_add(t->store, &sandbox, &err));
}

static void a_snapshot_is_found_as_it_was_written(void **state)
{
    struct temp_store *t = *state;
    struct str id = add(t, row("k1", "", "", 5));

    assert_int_equal(id.len, 20);
    temp_store_reopen(t);
    struct snapshot_row found = get(t, id, "");
    CHECK_STR(found.template_id, id);
    CHECK_STR(found.kept_id, STR("k1"));
    CHECK_STR(found.name, STR(""));
    CHECK_STR(found.tag, STR("default"));
    CHECK_STR(found.sandbox_id, STR("isource"));
    CHECK_STR(found.source_template_id, STR("tbase"));
    CHECK_STR(found.guestd_version, STR("0.6.13"));
    assert_int_equal(found.cpu_count, 2);
    assert_int_equal(found.memory_mb, 1024);
    assert_int_equal(found.disk_mb, 5120);
    assert_int_equal(found.created_us, 5);
    assert_int_equal(found.layer_count, 2);
    CHECK_STR(found.layers[0], STR("aaaa"));
    CHECK_STR(found.layers[1], STR("bbbb"));
    assert_true(found.has_memory);
    assert_int_equal(found.layer_bytes, 1000);
    assert_int_equal(found.image_bytes, 2000);
}

static void builds_of_one_name_are_one_template_with_tags(void **state)
{
    struct temp_store *t = *state;
    struct snapshot_row found;
    struct str first = add(t, row("k1", "snap", "", 1));

    CHECK_STR(add(t, row("k2", "snap", "v2", 2)), first);
    assert_false(str_eq(add(t, row("k3", "other", "", 3)), first));
    assert_false(str_eq(add(t, row("k4", "", "", 4)), add(t, row("k5", "", "", 5))));
    CHECK_STR(get(t, STR("snap"), "").kept_id, STR("k1"));
    CHECK_STR(get(t, STR("snap"), "default").kept_id, STR("k1"));
    CHECK_STR(get(t, STR("snap"), "v2").kept_id, STR("k2"));
    CHECK_STR(get(t, first, "v2").kept_id, STR("k2"));
    MUST_FAIL(store_snapshot_get(t->store, STR("team"), STR("snap"), STR("v3"), &t->arena, &found, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(store_snapshot_get(t->store, STR("other"), first, STR(""), &t->arena, &found, &err), ERR_NOT_FOUND);
    /* Another team may use the same name, for a template of its own. */
    struct snapshot_row theirs = row("k6", "snap", "", 6);
    theirs.team_id = STR("other");
    assert_false(str_eq(add(t, theirs), first));
    CHECK_STR(get(t, STR("snap"), "").kept_id, STR("k1"));
}

static void a_new_build_of_a_tag_replaces_the_one_before(void **state)
{
    struct temp_store *t = *state;
    struct snapshot_row *rows;
    struct str *ids;
    struct str first = add(t, row("k1", "snap", "", 1));

    CHECK_STR(add(t, row("k2", "snap", "", 2)), first);
    CHECK_STR(get(t, STR("snap"), "").kept_id, STR("k2"));
    assert_int_equal(list(t, (struct snapshot_filter){ 0 }, &rows), 1);
    assert_int_equal(removed(t, &ids), 1);
    CHECK_STR(ids[0], STR("k1"));
    MUST(store_snapshot_forget(t->store, STR("k2"), &err)); /* not a removed one: nothing happens */
    MUST(store_snapshot_forget(t->store, STR("k1"), &err));
    assert_int_equal(removed(t, &ids), 0);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM snapshots"), 1);
}

static void a_name_that_looks_like_an_id_counts_first(void **state)
{
    struct temp_store *t = *state;
    struct str id = add(t, row("k1", "", "", 1));
    struct snapshot_row named = row("k2", "", "", 2);

    named.name = id;
    (void)add(t, named);
    CHECK_STR(get(t, id, "").kept_id, STR("k2"));
    MUST(store_snapshot_remove(t->store, STR("team"), id, &err));
    CHECK_STR(get(t, id, "").kept_id, STR("k1"));
}

static void lists_are_newest_first_in_pages_and_filtered(void **state)
{
    struct temp_store *t = *state;
    struct snapshot_row *rows;

    (void)add(t, row("k1", "a", "", 1));
    (void)add(t, row("k2", "a", "v2", 2));
    (void)add(t, row("k3", "b", "", 2)); /* at the same time */
    struct snapshot_row other = row("k4", "", "", 3);
    other.sandbox_id = STR("iother");
    struct str unnamed = add(t, other);

    assert_int_equal(list(t, (struct snapshot_filter){ 0 }, &rows), 4);
    CHECK_STR(rows[0].kept_id, STR("k4"));
    CHECK_STR(rows[1].kept_id, STR("k2"));
    CHECK_STR(rows[2].kept_id, STR("k3"));
    CHECK_STR(rows[3].kept_id, STR("k1"));
    assert_int_equal(list(t, (struct snapshot_filter){ .limit = 2 }, &rows), 2);
    assert_int_equal(
        list(t, (struct snapshot_filter){ .before_us = rows[1].created_us, .before_id = rows[1].kept_id }, &rows), 2);
    CHECK_STR(rows[0].kept_id, STR("k3"));
    CHECK_STR(rows[1].kept_id, STR("k1"));
    assert_int_equal(list(t, (struct snapshot_filter){ .sandbox_id = STR("iother") }, &rows), 1);
    assert_int_equal(list(t, (struct snapshot_filter){ .name = STR("a") }, &rows), 2);
    assert_int_equal(list(t, (struct snapshot_filter){ .name = STR("a"), .tag = STR("v2") }, &rows), 1);
    assert_int_equal(list(t, (struct snapshot_filter){ .name = STR("a"), .tag = STR("default") }, &rows), 1);
    assert_int_equal(list(t, (struct snapshot_filter){ .name = unnamed }, &rows), 1);
    assert_int_equal(list(t, (struct snapshot_filter){ .name = STR("none") }, &rows), 0);
    assert_int_equal(list(t, (struct snapshot_filter){ .team_id = STR("other") }, &rows), 0);
}

static void a_removed_snapshot_is_found_no_more_until_the_driver_has_dropped_it(void **state)
{
    struct temp_store *t = *state;
    struct snapshot_row found, *rows;
    struct str *ids;

    (void)add(t, row("k1", "snap", "", 1));
    (void)add(t, row("k2", "snap", "v2", 2));
    (void)add(t, row("k3", "", "", 3));
    MUST_FAIL(store_snapshot_remove(t->store, STR("other"), STR("snap"), &err), ERR_NOT_FOUND);
    MUST(store_snapshot_remove(t->store, STR("team"), STR("snap"), &err));
    MUST_FAIL(store_snapshot_remove(t->store, STR("team"), STR("snap"), &err), ERR_NOT_FOUND);
    MUST_FAIL(store_snapshot_get(t->store, STR("team"), STR("snap"), STR(""), &t->arena, &found, &err), ERR_NOT_FOUND);
    assert_int_equal(list(t, (struct snapshot_filter){ 0 }, &rows), 1);
    temp_store_reopen(t); /* it ended before the driver was asked */
    assert_int_equal(removed(t, &ids), 2);
    CHECK_STR(ids[0], STR("k1"));
    CHECK_STR(ids[1], STR("k2"));
    /* The name is free, for a template of its own. */
    (void)add(t, row("k4", "snap", "", 4));
    CHECK_STR(get(t, STR("snap"), "").kept_id, STR("k4"));
    assert_int_equal(removed(t, &ids), 2);
}

static void one_that_a_sandbox_is_based_on_stays(void **state)
{
    struct temp_store *t = *state;
    struct err why;
    struct str id = add(t, row("k1", "snap", "", 1));

    base_sandbox_on(t, id);
    assert_false(store_snapshot_remove(t->store, STR("team"), STR("snap"), &why));
    assert_int_equal(why.kind, ERR_CONFLICT);
    assert_non_null(strstr(why.message, "1 running or paused sandbox was made from it (imade); kill it first"));
    CHECK_STR(get(t, id, "").kept_id, STR("k1"));
    MUST(store_sandbox_remove(t->store, STR("imade"), NULL, &err));
    MUST(store_snapshot_remove(t->store, STR("team"), STR("snap"), &err));
}

static void there_are_so_many_and_no_more(void **state)
{
    struct temp_store *t = *state;
    struct snapshot_caps caps = plenty;
    struct snapshot_row third = row("k3", "", "", 3), made;
    struct err why;

    (void)add(t, row("k1", "", "", 1));
    (void)add(t, row("k2", "", "", 2));
    caps.of_team = 2;
    assert_false(store_snapshot_add(t->store, &third, &caps, &t->arena, &made, &why));
    assert_int_equal(why.kind, ERR_LIMIT);
    assert_non_null(strstr(why.message, "this team has 2 snapshots"));
    assert_non_null(strstr(why.message, "delete some"));
    MUST_FAIL(store_snapshot_room(t->store, STR("team"), &caps, &err), ERR_LIMIT);
    MUST(store_snapshot_room(t->store, STR("other"), &caps, &err));
    caps = plenty;
    caps.of_all = 2;
    MUST_FAIL(store_snapshot_room(t->store, STR("other"), &caps, &err), ERR_LIMIT);
    caps = plenty;
    caps.bytes = 8999;
    MUST(store_snapshot_room(t->store, STR("team"), &caps, &err));
    MUST_FAIL(store_snapshot_add(t->store, &third, &caps, &t->arena, &made, &err), ERR_LIMIT);
    caps = plenty;
    caps.bytes_of_team = 8999;
    MUST(store_snapshot_room(t->store, STR("team"), &caps, &err));
    assert_false(store_snapshot_add(t->store, &third, &caps, &t->arena, &made, &why));
    assert_int_equal(why.kind, ERR_LIMIT);
    assert_non_null(strstr(why.message, "the team's snapshots"));
    caps.bytes_of_team = 6000;
    MUST_FAIL(store_snapshot_room(t->store, STR("team"), &caps, &err), ERR_LIMIT);
    MUST(store_snapshot_room(t->store, STR("other"), &caps, &err));
    caps = plenty;
    caps.bytes = 9000;
    MUST(store_snapshot_add(t->store, &third, &caps, &t->arena, &made, &err));
    MUST_FAIL(store_snapshot_room(t->store, STR("team"), &caps, &err), ERR_LIMIT);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM snapshots"), 3);
}

static void more_layers_than_a_sandbox_can_have_are_refused(void **state)
{
    struct temp_store *t = *state;
    struct str many[LIMIT_LAYERS + 1];
    struct snapshot_row wanted = row("k1", "", "", 1), made;
    char digits[65];

    memset(digits, 'a', 64);
    digits[64] = 0;
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = str_from(digits);
    wanted.layers = many;
    wanted.layer_count = COUNT_OF(many);
    MUST_FAIL(store_snapshot_add(t->store, &wanted, &plenty, &t->arena, &made, &err), ERR_INTERNAL);
    wanted.layer_count = LIMIT_LAYERS;
    wanted.default_user = STR("worker");
    wanted.default_workdir = STR("/app");
    MUST(store_snapshot_add(t->store, &wanted, &plenty, &t->arena, &made, &err));
    struct snapshot_row found = get(t, made.template_id, "");
    assert_int_equal(found.layer_count, LIMIT_LAYERS);
    CHECK_STR(found.layers[LIMIT_LAYERS - 1], str_from(digits));
    CHECK_STR(found.default_user, STR("worker"));
    CHECK_STR(found.default_workdir, STR("/app"));
}

static void each_node_has_its_own(void **state)
{
    struct temp_store *t = *state;
    struct snapshot_row *rows;
    struct str *ids;

    (void)add(t, row("k1", "snap", "", 1));
    (void)add(t, row("k2", "snap", "", 1));
    t->node_id = "node2";
    temp_store_reopen(t);
    assert_int_equal(list(t, (struct snapshot_filter){ 0 }, &rows), 0);
    assert_int_equal(removed(t, &ids), 0);
    MUST_FAIL(store_snapshot_remove(t->store, STR("team"), STR("snap"), &err), ERR_NOT_FOUND);
}

static void a_team_with_snapshots_stays(void **state)
{
    struct temp_store *t = *state;
    struct team_row team;
    struct err why;

    MUST(store_team_add(t->store, STR("crew"), &t->arena, &team, &err));
    struct snapshot_row theirs = row("k1", "snap", "", 1);
    theirs.team_id = team.id;
    (void)add(t, theirs);
    assert_false(store_team_remove(t->store, team.id, &why));
    assert_int_equal(why.kind, ERR_CONFLICT);
    assert_non_null(strstr(why.message, "snapshot(s): delete them first"));
    MUST(store_snapshot_remove(t->store, team.id, STR("snap"), &err));
    MUST(store_team_remove(t->store, team.id, &err));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, temp_store_set_up, temp_store_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_snapshot_is_found_as_it_was_written),
        TEST(builds_of_one_name_are_one_template_with_tags),
        TEST(a_new_build_of_a_tag_replaces_the_one_before),
        TEST(a_name_that_looks_like_an_id_counts_first),
        TEST(lists_are_newest_first_in_pages_and_filtered),
        TEST(a_removed_snapshot_is_found_no_more_until_the_driver_has_dropped_it),
        TEST(one_that_a_sandbox_is_based_on_stays),
        TEST(there_are_so_many_and_no_more),
        TEST(more_layers_than_a_sandbox_can_have_are_refused),
        TEST(each_node_has_its_own),
        TEST(a_team_with_snapshots_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
