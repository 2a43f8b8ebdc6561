/* What templates are made of and take on disk: who is told what. */
#include "api/routes.h"
#include "built.h"

#define LAYER "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210" /* of built_finish() */
#define ADMIN_TOKEN                                         \
    (const struct http_field)                               \
    {                                                       \
        STR_INIT("X-Admin-Token"), STR_INIT("admin-secret") \
    }

static void keep_layer(struct built *b)
{
    static const struct str layers[] = { STR_INIT(LAYER) };
    struct store *store = b->served.rig.disk.store;
    struct cached_step row = { .team_id = store_team_default(store),
                               .key = STR("k"),
                               .kept_id = layers[0],
                               .layer_count = 1,
                               .layers = layers,
                               .bytes = 4096,
                               .layer_bytes = 4096,
                               .text = STR("RUN login --token tops3cret") };

    MUST(store_step_put(store, &row, &err));
}

static const json_t *at(const json_t *json, const char *name, size_t i)
{
    return json_array_get(json_object_get(json, name), i);
}

static bool is_text(const json_t *json, const char *name, const char *want)
{
    const char *text = json_string_value(json_object_get(json, name));

    return text && strcmp(text, want) == 0;
}

static void a_template_is_described_to_its_owner(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;

    keep_layer(b);
    struct built_ids ids = built_make(b, "{\"name\":\"mine:v1\"}");
    struct built_ids second = built_register(b, "{\"name\":\"mine:v2\"}");
    assert_int_equal(built_start(b, second, "{\"fromImage\":\"debian:stable\"}").status, 202);
    built_fail(b, second, "exit status 1", "3");
    assert_int_equal(CALL(s, "GET", "/templates/mine%3Av1/inspect", NULL).status, 200);
    assert_string_equal(got_text(s, "templateID"), ids.template_id);
    assert_string_equal(got_text(s, "buildID"), ids.build_id);
    assert_true(is_text(at(s->last, "tags", 0), "tag", "v1"));
    const json_t *layer = at(s->last, "layers", 0), *last = json_object_get(s->last, "lastBuild");
    assert_true(is_text(layer, "step", "RUN login --token tops3cret") && is_text(layer, "origin", "step"));
    assert_int_equal(json_integer_value(json_object_get(layer, "bytes")), 4096);
    assert_true(json_is_false(json_object_get(layer, "shared")));
    assert_true(is_text(last, "status", "error") && is_text(last, "reason", "exit status 1"));
    (void)built_make(b, "{\"name\":\"another\"}");
    assert_int_equal(CALL(s, "GET", "/templates/mine%3Av1/inspect", NULL).status, 200);
    assert_true(json_is_true(json_object_get(at(s->last, "layers", 0), "shared")));
    /* Without a ready build of `default`, what there is. */
    assert_int_equal(CALL(s, "GET", "/templates/mine/inspect", NULL).status, 200);
    assert_true(json_is_false(json_object_get(s->last, "ready")));
    assert_int_equal(json_array_size(json_object_get(s->last, "layers")), 0);
    assert_int_equal(CALL(s, "GET", "/templates/mine%3Av3/inspect", NULL).status, 404);
    assert_int_equal(CALL(s, "GET", "/templates/base/inspect", NULL).status, 200);
    assert_true(is_text(at(s->last, "layers", 0), "origin", "operator"));
    assert_int_equal(json_object_size(json_object_get(s->last, "lastBuild")), 0);
}

static void another_team_gets_nothing_of_a_private_template_and_no_texts_of_a_public_one(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;

    keep_layer(b);
    struct built_ids ids = built_make(b, "{\"name\":\"mine\"}");
    const char *key = built_stranger(b, "others");
    assert_int_equal(built_as(b, key, "GET", "/templates/default%2Fmine/inspect", NULL).status, 404);
    assert_int_equal(built_as(b, key, "GET", built_path(b, "/templates/%s/inspect", ids.template_id), NULL).status,
                     403);
    assert_int_equal(built_as(b, key, "GET", "/templates/" LAYER "/inspect", NULL).status, 404);
    assert_int_equal(built_as(b, key, "GET", "/template-disk", NULL).status, 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "templates")), 0);
    assert_int_equal(got_int(s, "totalBytes"), 0);
    assert_int_equal(CALL(s, "PATCH", "/v2/templates/mine", "{\"public\":true}").status, 200);
    struct http_answer answer = built_as(b, key, "GET", "/templates/default%2Fmine/inspect", NULL);
    assert_int_equal(answer.status, 200);
    assert_true(is_text(at(s->last, "layers", 0), "origin", "other"));
    assert_int_equal(json_integer_value(json_object_get(at(s->last, "layers", 0), "bytes")), 4096);
    assert_null(strstr(arena_text(&s->rig.arena, answer.body), "tops3cret"));
    assert_null(json_object_get(s->last, "lastBuild"));
    assert_null(json_object_get(s->last, "startCmd"));
    /* Nor what it is based on, and what GET …/tags refuses. */
    const char *text = arena_text(&s->rig.arena, answer.body);
    assert_true(json_is_true(json_object_get(s->last, "ready")));
    assert_null(strstr(text, LAYER));
    assert_null(strstr(text, ids.build_id));
    assert_null(json_object_get(at(s->last, "layers", 0), "shared"));
    assert_int_equal(json_array_size(json_object_get(s->last, "tags")), 0);
    assert_int_equal(built_as(b, key, "GET", "/templates/base/inspect", NULL).status, 200);
    assert_non_null(json_object_get(at(s->last, "layers", 0), "id"));
}

static void disk_is_told_by_team_and_all_of_it_to_the_operator(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;

    keep_layer(b);
    (void)built_make(b, "{\"name\":\"mine\"}");
    assert_int_equal(CALL(s, "GET", "/template-disk", NULL).status, 200);
    assert_int_equal(got_int(s, "totalBytes"), 4096);
    assert_null(json_object_get(s->last, "downloadBytes"));
    const json_t *row = at(s->last, "templates", 0);
    assert_true(is_text(row, "name", "default/mine"));
    assert_int_equal(json_integer_value(json_object_get(row, "ownBytes")), 4096);
    assert_string_equal(json_string_value(at(row, "tags", 0)), "default");
    struct http_answer answer = CALL(s, "GET", "/admin/template-disk", NULL);
    check_error(s, &answer, 401, "admin token");
    assert_int_equal(CALL_WITH(s, "GET", "/admin/template-disk", NULL, ADMIN_TOKEN).status, 200);
    assert_int_equal(got_int(s, "downloadBytes"), 1 << 20);
    assert_int_equal(got_int(s, "totalBytes"), (1 << 20) + 4096);
    assert_false(b->removed_downloads);
}

static void a_team_prunes_its_own_and_the_operator_everything(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;

    assert_int_equal(CALL(s, "POST", "/template-prune", "{\"dryRun\":true}").status, 200);
    assert_true(b->was_dry);
    assert_string_equal(b->pruned_team, arena_text(&s->rig.arena, store_team_default(s->rig.disk.store)));
    assert_int_equal(got_int(s, "steps"), 3);
    assert_int_equal(got_int(s, "freedBytes"), 4096);
    assert_null(json_object_get(s->last, "downloads"));
    assert_int_equal(CALL(s, "POST", "/template-prune", NULL).status, 200);
    assert_false(b->was_dry || b->removed_downloads);
    assert_int_equal(CALL(s, "POST", "/template-prune", "{\"dryRun\":1}").status, 400);
    struct http_answer answer = CALL(s, "POST", "/admin/template-prune", NULL);
    check_error(s, &answer, 401, "admin token");
    assert_int_equal(b->prunes, 2);
    assert_int_equal(CALL_WITH(s, "POST", "/admin/template-prune", "{\"dryRun\":true}", ADMIN_TOKEN).status, 200);
    assert_false(b->removed_downloads);
    assert_int_equal(CALL_WITH(s, "POST", "/admin/template-prune", NULL, ADMIN_TOKEN).status, 200);
    assert_true(b->removed_downloads);
    assert_string_equal(b->pruned_team, "");
    assert_int_equal(got_int(s, "freedBytes"), (1 << 20) + 4096);
}

static void what_reads_much_waits_for_its_keys_turn(void **state)
{
    size_t count, found = 0;
    const struct http_route *routes = api_routes(&count);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        if (!strstr(routes[i].pattern, "/template-disk") && !strstr(routes[i].pattern, "/template-prune") &&
            !strstr(routes[i].pattern, "/inspect"))
            continue;
        assert_true(routes[i].flags & PAUSES);
        found++;
    }
    assert_int_equal(found, 5);
}

#define BUILT_CASE(name) cmocka_unit_test_setup_teardown(name, built_set_up, built_tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        BUILT_CASE(a_template_is_described_to_its_owner),
        BUILT_CASE(another_team_gets_nothing_of_a_private_template_and_no_texts_of_a_public_one),
        BUILT_CASE(disk_is_told_by_team_and_all_of_it_to_the_operator),
        BUILT_CASE(a_team_prunes_its_own_and_the_operator_everything),
        cmocka_unit_test(what_reads_much_waits_for_its_keys_turn),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
