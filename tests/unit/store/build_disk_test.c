#include "base/clock.h"
#include "temp_store.h"

static struct str team(struct temp_store *t)
{
    return store_team_default(t->store);
}

static struct str add_team(struct temp_store *t, const char *slug)
{
    struct team_row row;

    MUST(store_team_add(t->store, str_from(slug), &t->arena, &row, &err));
    return row.id;
}

static void put_step(struct temp_store *t, struct str team_id, const char *key, const struct str *layers,
                     uint32_t count, uint64_t bytes)
{
    struct cached_step row = { .team_id = team_id,
                               .key = str_from(key),
                               .kept_id = layers[count - 1],
                               .layer_count = count,
                               .layers = layers,
                               .bytes = bytes,
                               .layer_bytes = bytes,
                               .text = arena_format(&t->arena, "RUN %s", key) };

    MUST(store_step_put(t->store, &row, &err));
}

/* A ready build; its template's id. */
static struct str make(struct temp_store *t, struct str team_id, const char *alias, const struct str *layers,
                       uint32_t count, struct str from)
{
    const struct str tags[] = { STR("default"), STR("v1") };
    struct build_registration want = { .team_id = team_id,
                                       .alias = str_from(alias),
                                       .tag_count = 2,
                                       .tags = tags,
                                       .cpu_count = 1,
                                       .memory_mb = 512,
                                       .guestd_version = STR("1") };
    struct built_template template;
    struct build_row row;

    MUST(store_build_register(t->store, &want, &t->arena, &template, &row, &err));
    MUST(store_build_begin(t->store, row.id, &err));
    row.state = BUILD_READY;
    row.layers = layers;
    row.layer_count = count;
    row.from_template = from;
    MUST(store_build_finish(t->store, &row, &err));
    return template.id;
}

/* `image` is a layer of an image that both teams have; aaaa… are steps of the first. */
static const struct str one[] = { STR_INIT("base"), STR_INIT("image"), STR_INIT("aaaa"), STR_INIT("bbbb") },
                        two[] = { STR_INIT("base"), STR_INIT("image"), STR_INIT("aaaa"), STR_INIT("cccc") },
                        theirs[] = { STR_INIT("base"), STR_INIT("image"), STR_INIT("dddd") },
                        loose[] = { STR_INIT("base"), STR_INIT("image"), STR_INIT("aaaa"), STR_INIT("eeee"),
                                    STR_INIT("ffff") };

static void put_all(struct temp_store *t, struct str other)
{
    MUST(store_build_keep(t->store, STR("image"), &err));
    MUST(store_build_measured(t->store, STR("image"), 1000, &err));
    MUST(store_build_measured(t->store, STR("image"), 5, &err)); /* it was measured */
    put_step(t, team(t), "a", one, 3, 100);
    put_step(t, team(t), "b", one, 4, 10);
    put_step(t, team(t), "c", two, 4, 20);
    put_step(t, team(t), "e", loose, 4, 3);
    put_step(t, team(t), "f", loose, 5, 4);
    put_step(t, other, "d", theirs, 3, 7);
}

static void layers_are_described_to_those_who_may_know(void **state)
{
    struct temp_store *t = *state;
    struct str other = add_team(t, "other");
    struct layer_row *rows;

    put_all(t, other);
    struct str first = make(t, team(t), "first", one, 4, STR(""));
    MUST(store_layer_list(t->store, team(t), first, one, 4, &t->arena, &rows, &err));
    assert_false(rows[0].is_known);
    assert_int_equal(rows[1].bytes, 1000);
    CHECK_STR(rows[1].step, STR(""));
    assert_int_equal(rows[0].origin, LAYER_OTHER);
    assert_int_equal(rows[1].origin, LAYER_IMAGE);
    assert_int_equal(rows[2].origin, LAYER_STEP);
    CHECK_STR(rows[2].step, STR("RUN a"));
    assert_int_equal(rows[3].bytes, 10);
    for (int i = 0; i < 4; i++)
        assert_false(rows[i].is_shared);
    /* That another team has the same image changes nothing. */
    (void)make(t, other, "theirs", theirs, 3, STR(""));
    MUST(store_layer_list(t->store, team(t), first, one, 4, &t->arena, &rows, &err));
    assert_false(rows[1].is_shared);
    (void)make(t, team(t), "second", two, 4, STR(""));
    MUST(store_layer_list(t->store, team(t), first, one, 4, &t->arena, &rows, &err));
    assert_true(rows[1].is_shared && rows[2].is_shared);
    assert_false(rows[3].is_shared);
    /* Another team gets sizes, if it may see the template at all, and no texts. */
    MUST(store_layer_list(t->store, other, first, one, 4, &t->arena, &rows, &err));
    assert_int_equal(rows[2].bytes, 100);
    CHECK_STR(rows[2].step, STR(""));
    assert_int_equal(rows[2].origin, LAYER_OTHER);
    assert_false(rows[2].is_shared);
    assert_true(rows[1].is_shared); /* with its own */
}

static void uses_are_those_of_the_team(void **state)
{
    struct temp_store *t = *state;
    struct str other = add_team(t, "other");
    struct template_uses uses;

    struct str first = make(t, team(t), "first", one, 4, STR(""));
    (void)make(t, team(t), "second", two, 4, first);
    (void)make(t, team(t), "second", two, 4, first); /* the same template */
    (void)make(t, other, "theirs", two, 4, first);
    struct sandbox_row sandbox = { .id = STR("imine"),
                                   .team_id = team(t),
                                   .template_id = first,
                                   .guestd_version = STR("1"),
                                   .metadata = STR("{}"),
                                   .layer_count = 4,
                                   .layers = one };
    MUST(store_sandbox_add(t->store, &sandbox, &err));
    MUST(store_template_uses(t->store, team(t), first, &uses, &err));
    assert_int_equal(uses.sandboxes, 1);
    assert_int_equal(uses.snapshots, 0);
    assert_int_equal(uses.templates, 1);
    MUST(store_template_uses(t->store, other, first, &uses, &err));
    assert_int_equal(uses.sandboxes, 0);
    assert_int_equal(uses.templates, 1);
}

static void what_templates_take_is_added_up(void **state)
{
    struct temp_store *t = *state;
    struct str other = add_team(t, "other");
    struct build_disk disk;

    put_all(t, other);
    struct str first = make(t, team(t), "first", one, 4, STR(""));
    (void)make(t, team(t), "second", two, 4, STR(""));
    (void)make(t, other, "theirs", theirs, 3, STR(""));
    MUST(store_build_disk(t->store, team(t), &t->arena, &disk, &err));
    assert_int_equal(disk.count, 2);
    CHECK_STR(disk.templates[0].id, first);
    CHECK_STR(disk.templates[0].alias, STR("first"));
    assert_int_equal(disk.templates[0].own_bytes, 10);
    assert_int_equal(disk.templates[0].shared_bytes, 1100);
    assert_int_equal(disk.templates[0].build_count, 1);
    assert_int_equal(disk.templates[0].tag_count, 2);
    CHECK_STR(disk.templates[0].tags[1], STR("v1"));
    assert_int_equal(disk.templates[1].own_bytes, 20);
    assert_int_equal(disk.template_bytes, 1130);
    assert_int_equal(disk.cache_bytes, 7);
    MUST(store_build_disk(t->store, other, &t->arena, &disk, &err));
    assert_int_equal(disk.count, 1);
    assert_int_equal(disk.templates[0].own_bytes, 1007);
    assert_int_equal(disk.templates[0].shared_bytes, 0);
    assert_int_equal(disk.cache_bytes, 0);
    /* The operator sees that they share it. */
    MUST(store_build_disk(t->store, STR(""), &t->arena, &disk, &err));
    assert_int_equal(disk.count, 3);
    assert_int_equal(disk.templates[2].own_bytes, 7);
    assert_int_equal(disk.templates[2].shared_bytes, 1000);
    assert_int_equal(disk.template_bytes, 1137);
    /* What is deleted is not counted any more. */
    MUST(store_built_remove(t->store, first, &err));
    MUST(store_build_disk(t->store, team(t), &t->arena, &disk, &err));
    assert_int_equal(disk.count, 1);
    assert_int_equal(disk.templates[0].own_bytes, 1120);
    assert_int_equal(disk.cache_bytes, 17);
}

static bool holds_eeee(void *context, struct str layer)
{
    (void)context;
    return str_eq(layer, STR("eeee"));
}

static struct cache_pruned prune(struct temp_store *t, struct cache_prune want)
{
    struct cache_pruned out;

    MUST(store_cache_prune(t->store, &want, &t->arena, &out, &err));
    return out;
}

static bool has_step(struct temp_store *t, struct str team_id, const char *key)
{
    struct cached_step row;
    struct err err;

    return store_step_find(t->store, team_id, str_from(key), &t->arena, &row, &err);
}

static void prune_takes_what_nobody_is_on(void **state)
{
    struct temp_store *t = *state;
    struct str other = add_team(t, "other");

    put_all(t, other);
    (void)make(t, team(t), "first", one, 4, STR(""));
    /* c, e and f, and the layers of each. */
    struct cache_pruned out = prune(t, (struct cache_prune){ .team_id = team(t), .dry_run = true });
    assert_int_equal(out.steps, 3);
    assert_int_equal(out.bytes, 27);
    assert_int_equal(out.count, 3);
    assert_true(has_step(t, team(t), "c"));
    /* What a build is on stays, with the steps that led there. */
    out = prune(t, (struct cache_prune){ .team_id = team(t), .is_held = holds_eeee });
    assert_int_equal(out.steps, 2);
    assert_int_equal(out.bytes, 24);
    assert_int_equal(out.count, 2);
    assert_false(has_step(t, team(t), "c") || has_step(t, team(t), "f"));
    assert_true(has_step(t, team(t), "e") && has_step(t, team(t), "a") && has_step(t, team(t), "b"));
    assert_true(has_step(t, other, "d"));
    for (size_t i = 0; i < out.count; i++)
        MUST(store_build_forget(t->store, out.kept_ids[i], &err));
    out = prune(t, (struct cache_prune){ .team_id = team(t), .is_held = holds_eeee });
    assert_int_equal(out.steps + out.count, 0);
    /* The image stays while a template, or a step of another team, is on it. */
    out = prune(t, (struct cache_prune){ .dry_run = true });
    assert_int_equal(out.steps, 2);
    assert_int_equal(out.bytes, 10);
    out = prune(t, (struct cache_prune){ .team_id = other });
    assert_int_equal(out.steps, 1);
    assert_int_equal(out.bytes, 7);
    assert_int_equal(out.count, 1);
    CHECK_STR(out.kept_ids[0], STR("dddd"));
}

static void ten_thousand_steps_are_not_slow(void **state)
{
    struct temp_store *t = *state;
    enum { TEMPLATES = 100, STEPS = 100, DEPTH = 20 };
    struct str *layers = ARENA_ARRAY(&t->arena, struct str, DEPTH + STEPS);
    struct layer_row *rows;
    struct build_disk disk;
    struct str last = STR("");
    char name[32];

    for (int i = 0; i < TEMPLATES; i++) {
        for (int k = 0; k < DEPTH + STEPS; k++)
            layers[k] = arena_format(&t->arena, "%064d", k < DEPTH / 2 ? k : 1000 * (i + 1) + k);
        for (int k = 0; k < STEPS; k++) {
            (void)snprintf(name, sizeof name, "%d-%d", i, k);
            put_step(t, team(t), name, layers, (uint32_t)(1 + k % DEPTH), 1);
        }
        (void)snprintf(name, sizeof name, "t%d", i);
        last = make(t, team(t), name, layers, DEPTH / 2 + 2, STR(""));
    }
    uint64_t since_ms = clock_mono_ms();
    MUST(store_layer_list(t->store, team(t), last, layers, DEPTH, &t->arena, &rows, &err));
    assert_true(rows[0].is_shared);
    assert_in_range(clock_mono_ms() - since_ms, 0, 200);
    since_ms = clock_mono_ms();
    MUST(store_build_disk(t->store, team(t), &t->arena, &disk, &err));
    assert_int_equal(disk.count, TEMPLATES);
    assert_in_range(clock_mono_ms() - since_ms, 0, 2000);
    since_ms = clock_mono_ms();
    struct cache_pruned out = prune(t, (struct cache_prune){ .team_id = team(t) });
    assert_true(out.steps > 0 && out.count > 0);
    assert_in_range(clock_mono_ms() - since_ms, 0, 5000);
}

static void layers_of_an_older_store_are_counted(void **state)
{
    struct temp_store *t = *state;
    const struct str layers[] = { STR("0000000000000000000000000000000000000000000000000000000000000001"),
                                  STR("0000000000000000000000000000000000000000000000000000000000000002"),
                                  STR("0000000000000000000000000000000000000000000000000000000000000003") };
    struct build_disk disk;

    put_step(t, team(t), "a", layers, 2, 5);
    put_step(t, team(t), "b", layers, 3, 6);
    (void)make(t, team(t), "mine", layers, 3, STR(""));
    store_close(t->store);
    t->store = NULL;
    temp_store_by_hand(t, "DROP TABLE build_layers; DROP INDEX builds_from_template; DROP INDEX snapshots_of_source;"
                          "DROP INDEX template_layers_by_layer; ALTER TABLE builds DROP COLUMN from_template;"
                          "ALTER TABLE build_kept DROP COLUMN layer_bytes; ALTER TABLE build_kept DROP COLUMN step;"
                          "DELETE FROM schema_version WHERE version > 17;");
    temp_store_reopen(t);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM build_layers"), 3);
    MUST(store_build_disk(t->store, team(t), &t->arena, &disk, &err));
    assert_int_equal(disk.templates[0].own_bytes, 11);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, temp_store_set_up, temp_store_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(layers_are_described_to_those_who_may_know),
        STORE_TEST(uses_are_those_of_the_team),
        STORE_TEST(what_templates_take_is_added_up),
        STORE_TEST(prune_takes_what_nobody_is_on),
        STORE_TEST(ten_thousand_steps_are_not_slow),
        STORE_TEST(layers_of_an_older_store_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
