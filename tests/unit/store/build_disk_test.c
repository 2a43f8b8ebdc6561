#include "base/clock.h"
#include "base/limits.h"
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

static void prune_does_not_tell_who_else_has_an_image(void **state)
{
    struct temp_store *t = *state;
    struct str other = add_team(t, "other");
    const struct cache_prune dry = { .team_id = other, .dry_run = true };
    struct str *unused;
    size_t count;

    MUST(store_build_keep(t->store, STR("image"), &err));
    put_step(t, other, "d", theirs, 3, 7);
    struct cache_pruned alone = prune(t, dry);
    assert_int_equal(alone.count, 1);
    put_step(t, team(t), "a", one, 3, 100);
    struct cache_pruned both = prune(t, dry);
    assert_int_equal(both.count, alone.count);
    assert_int_equal(both.bytes, alone.bytes);
    /* When the last one is gone, it can go as well. */
    (void)prune(t, (struct cache_prune){ .team_id = team(t) });
    (void)prune(t, (struct cache_prune){ .team_id = other });
    MUST(store_build_forget(t->store, STR("aaaa"), &err));
    MUST(store_build_forget(t->store, STR("dddd"), &err));
    MUST(store_builds_unused(t->store, 0, &t->arena, &unused, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(unused[0], STR("image"));
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
    temp_store_by_hand(
        t, "DROP TABLE newest_tags; DROP TABLE build_layers; DROP INDEX builds_from_template; DROP "
           "INDEX snapshots_of_source;"
           "DROP INDEX template_layers_by_layer; ALTER TABLE builds DROP COLUMN from_template;"
           "ALTER TABLE build_kept DROP COLUMN layer_bytes; ALTER TABLE build_kept DROP COLUMN step;" UNDO_AFTER_19
           "DELETE FROM schema_version WHERE version > 17;");
    temp_store_reopen(t);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM build_layers"), 3);
    MUST(store_build_disk(t->store, team(t), &t->arena, &disk, &err));
    assert_int_equal(disk.templates[0].own_bytes, 11);
}

/* ---- how much is read ---- */

static unsigned work; /* of the database, in hundreds of its instructions */

static int count_work(void *unused)
{
    (void)unused;
    work++;
    return 0;
}

static int watch_work(sqlite3 *db, char **out_message, const struct sqlite3_api_routines *api)
{
    (void)out_message;
    (void)api;
    sqlite3_progress_handler(db, 100, count_work, NULL);
    return SQLITE_OK;
}

/* The template has so many tags, each assigned so often, as a store of an older version has them. */
static void put_history(struct temp_store *t, int tags, int each)
{
    const char *script = arena_text(
        &t->arena,
        arena_format(
            &t->arena,
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
            "INSERT INTO build_tags SELECT 'row' || i, b.template_id, 'x' || (i %% %d), b.id, i FROM n, builds b;"
            "DROP TABLE newest_tags; DROP INDEX build_layers_by_layer;" UNDO_AFTER_19
            "DELETE FROM schema_version WHERE version > 18;",
            tags * each - 1, tags));

    temp_store_by_hand(t, script);
    temp_store_reopen(t);
}

static void a_long_history_of_tags_is_not_read(void **state)
{
    struct temp_store *t = *state;
    enum { TAGS = 998 }; /* and the two of make() */
    struct tag_filter filter = { .newest_only = true, .limit = LIMIT_TAGS };
    struct build_disk disk;
    struct tag_row *tags;
    size_t count;

    filter.template_id = make(t, team(t), "first", one, 4, STR(""));
    assert_int_equal(sqlite3_auto_extension((void (*)(void))watch_work), SQLITE_OK);
    put_history(t, TAGS, LIMIT_TAG_HISTORY);
    sqlite3_reset_auto_extension();
    assert_true(work > 1000); /* it is counted */
    work = 0;
    MUST(store_build_disk(t->store, team(t), &t->arena, &disk, &err));
    assert_int_equal(disk.templates[0].tag_count, TAGS + 2);
    CHECK_STR(disk.templates[0].tags[2], STR("x0"));
    assert_in_range(work, 0, 100);
    work = 0;
    MUST(store_tag_list(t->store, &filter, &t->arena, &tags, &count, &err));
    assert_int_equal(count, TAGS + 2);
    assert_int_equal(tags[2].assigned_us, TAGS * (LIMIT_TAG_HISTORY - 1));
    assert_in_range(work, 0, 500);
}

static void templates_of_several_pages_are_added_up(void **state)
{
    struct temp_store *t = *state;
    enum { TEMPLATES = 45, DEPTH = 60 };
    struct str layers[DEPTH + 1];
    struct build_disk disk;
    char name[32];

    for (int i = 0; i < DEPTH; i++)
        layers[i] = arena_format(&t->arena, "common%02d", i);
    for (int i = 0; i < TEMPLATES; i++) {
        (void)snprintf(name, sizeof name, "t%02d", i);
        layers[DEPTH] = arena_format(&t->arena, "own%02d", i);
        for (uint32_t k = 1; k <= DEPTH + 1; k++)
            if (!i || k > DEPTH)
                put_step(t, team(t), arena_text(&t->arena, layers[k - 1]), layers, k, k > DEPTH ? 7 : 2);
        (void)make(t, team(t), name, layers, DEPTH + 1, STR(""));
        (void)make(t, team(t), name, layers, DEPTH + 1, STR("")); /* another build of it */
    }
    /* The second time as the operator: it is the same. */
    for (int i = 0; i < 2; i++) {
        MUST(store_build_disk(t->store, i ? STR("") : team(t), &t->arena, &disk, &err));
        assert_int_equal(disk.count, TEMPLATES);
        assert_int_equal(disk.template_bytes, DEPTH * 2 + TEMPLATES * 7);
        for (size_t k = 0; k < TEMPLATES; k++) {
            CHECK_STR(disk.templates[k].alias, arena_format(&t->arena, "t%02zu", k));
            assert_int_equal(disk.templates[k].own_bytes, 7);
            assert_int_equal(disk.templates[k].shared_bytes, DEPTH * 2);
            assert_int_equal(disk.templates[k].build_count, 2);
            assert_int_equal(disk.templates[k].tag_count, 2);
        }
    }
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, temp_store_set_up, temp_store_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(layers_are_described_to_those_who_may_know),
        STORE_TEST(uses_are_those_of_the_team),
        STORE_TEST(what_templates_take_is_added_up),
        STORE_TEST(prune_takes_what_nobody_is_on),
        STORE_TEST(prune_does_not_tell_who_else_has_an_image),
        STORE_TEST(ten_thousand_steps_are_not_slow),
        STORE_TEST(a_long_history_of_tags_is_not_read),
        STORE_TEST(templates_of_several_pages_are_added_up),
        STORE_TEST(layers_of_an_older_store_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
