/* What is kept of a search for a template, and when it does not count any more. */
#include "temp_store.h"

static const struct str layers[] = { STR_INIT("layer1"), STR_INIT("layer2") };
static const struct str aliases[] = { STR_INIT("base") };

static struct template_row template_row(uint32_t layer_count)
{
    return (struct template_row){ .id = STR("tbase"),
                                  .cpu_count = 2,
                                  .memory_mb = 512,
                                  .guestd_version = STR("1"),
                                  .layer_count = layer_count,
                                  .layers = layers,
                                  .alias_count = 1,
                                  .aliases = aliases };
}

static bool is_found(struct temp_store *t, struct str team, struct template_row *out)
{
    return store_found_get(t->store, team, STR("base"), &t->arena, out);
}

static void keep(struct temp_store *t)
{
    struct template_row row = template_row(2);

    store_found_keep(t->store, store_version(t->store), STR("team1"), STR("base"), &row);
}

static int make(void **state)
{
    static struct temp_store t;
    struct template_row row = template_row(2);

    temp_store_make(&t);
    MUST(store_template_put(t.store, &row, &err));
    *state = &t;
    return 0;
}

static int drop(void **state)
{
    temp_store_drop(*state);
    return 0;
}

static void a_found_template_is_found_again_by_the_same_team(void **state)
{
    struct temp_store *t = *state;
    struct template_row row;

    assert_false(is_found(t, STR("team1"), &row));
    keep(t);
    keep(t);
    assert_true(is_found(t, STR("team1"), &row));
    assert_string_equal(arena_text(&t->arena, row.id), "tbase");
    assert_int_equal(row.layer_count, 2);
    assert_true(str_eq(row.layers[1], layers[1]));
    assert_true(str_eq(row.aliases[0], aliases[0]));
    assert_false(is_found(t, STR("team2"), &row));
}

static void sandboxes_do_not_change_what_was_found(void **state)
{
    struct temp_store *t = *state;
    struct template_row row;
    const struct sandbox_row sandbox = {
        .id = STR("sb1"), .team_id = store_team_default(t->store), .template_id = STR("tbase"), .metadata = STR("{}")
    };
    const struct event_row event = { .type = STR("sandbox.lifecycle.created"),
                                     .sandbox_id = STR("sb1"),
                                     .team_id = STR("team1"),
                                     .template_id = STR("tbase"),
                                     .data = STR("{}") };

    keep(t);
    MUST(store_sandbox_add_running(t->store, &sandbox, &event, &err));
    assert_true(is_found(t, STR("team1"), &row));
    MUST(store_sandbox_remove(t->store, STR("sb1"), &event, &err));
    assert_true(is_found(t, STR("team1"), &row));
}

static void a_template_that_is_put_or_removed_is_searched_again(void **state)
{
    struct temp_store *t = *state;
    struct template_row row, other = template_row(1);

    keep(t);
    MUST(store_template_put(t->store, &other, &err));
    assert_false(is_found(t, STR("team1"), &row));
    keep(t);
    MUST(store_template_remove(t->store, STR("tbase"), &err));
    assert_false(is_found(t, STR("team1"), &row));
}

static void a_search_that_overlaps_a_change_is_not_given_out(void **state)
{
    struct temp_store *t = *state;
    struct template_row row, old = template_row(2), other = template_row(1);
    uint64_t before = store_version(t->store);

    MUST(store_template_put(t->store, &other, &err));
    store_found_keep(t->store, before, STR("team1"), STR("base"), &old);
    assert_false(is_found(t, STR("team1"), &row));
    keep(t); /* of the new version */
    store_found_keep(t->store, before, STR("team1"), STR("base"), &other);
    assert_true(is_found(t, STR("team1"), &row));
    assert_int_equal(row.layer_count, 2);
}

static void more_names_than_fit_are_forgotten(void **state)
{
    struct temp_store *t = *state;
    struct template_row row = template_row(2);
    char name[300];

    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "base%d", i);
        store_found_keep(t->store, store_version(t->store), STR("team1"), str_from(name), &row);
        assert_true(store_found_get(t->store, STR("team1"), str_from(name), &t->arena, &row));
    }
    assert_false(store_found_get(t->store, STR("team1"), STR("base0"), &t->arena, &row));
    memset(name, 'a', sizeof name);
    store_found_keep(t->store, store_version(t->store), STR("team1"), str_of(name, sizeof name), &row);
    assert_false(store_found_get(t->store, STR("team1"), str_of(name, sizeof name), &t->arena, &row));
}

static void a_team_that_is_removed_is_not_there(void **state)
{
    struct temp_store *t = *state;
    struct team_row team;

    MUST_FAIL(store_team_is_there(t->store, STR("none"), &err), ERR_NOT_FOUND);
    MUST(store_team_add(t->store, STR("research"), &t->arena, &team, &err));
    for (int i = 0; i < 2; i++)
        MUST(store_team_is_there(t->store, team.id, &err));
    MUST(store_team_remove(t->store, team.id, &err));
    MUST_FAIL(store_team_is_there(t->store, team.id, &err), ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(a_found_template_is_found_again_by_the_same_team, make, drop),
        cmocka_unit_test_setup_teardown(sandboxes_do_not_change_what_was_found, make, drop),
        cmocka_unit_test_setup_teardown(a_template_that_is_put_or_removed_is_searched_again, make, drop),
        cmocka_unit_test_setup_teardown(a_search_that_overlaps_a_change_is_not_given_out, make, drop),
        cmocka_unit_test_setup_teardown(more_names_than_fit_are_forgotten, make, drop),
        cmocka_unit_test_setup_teardown(a_team_that_is_removed_is_not_there, make, drop),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
