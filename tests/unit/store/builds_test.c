#include <time.h>

#include "base/clock.h"
#include "base/limits.h"
#include "temp_store.h"

struct made {
    struct built_template template;
    struct build_row build;
};

static int64_t later_us; /* how far the clock `later` is ahead */

static uint64_t later_mono_us(void)
{
    return 1;
}

static int64_t later_wall_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + later_us;
}

static const struct clock_source later = { later_mono_us, later_wall_us };

static struct str team(struct temp_store *t)
{
    return store_team_default(t->store);
}

#define REGISTER(t, alias_text, ...)                                         \
    registered(t, str_from(alias_text), (const struct str[]){ __VA_ARGS__ }, \
               (uint32_t)(sizeof((const struct str[]){ __VA_ARGS__ }) / sizeof(struct str)))

static struct build_registration wanted(struct temp_store *t, struct str alias, const struct str *tags, uint32_t count)
{
    return (struct build_registration){ .team_id = team(t),
                                        .alias = alias,
                                        .tag_count = count,
                                        .tags = tags,
                                        .cpu_count = 2,
                                        .memory_mb = 1024,
                                        .guestd_version = STR("0.6.13") };
}

static struct made registered(struct temp_store *t, struct str alias, const struct str *tags, uint32_t count)
{
    struct build_registration want = wanted(t, alias, tags, count);
    struct made made;

    MUST(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err));
    return made;
}

static const struct str layers[] = { STR_INIT("aaaa"), STR_INIT("bbbb") };

static struct build_row outcome(struct str id)
{
    return (struct build_row){ .id = id,
                               .state = BUILD_READY,
                               .disk_mb = 5120,
                               .guestd_version = STR("0.6.14"),
                               .layer_count = 2,
                               .layers = layers,
                               .context = { STR("user"), STR("/app"), STR("{\"A\":\"1\"}") },
                               .start_cmd = STR("serve"),
                               .ready_cmd = STR("sleep 1"),
                               .start_context = { STR("root"), STR("/srv"), STR("{}") } };
}

static void finish(struct temp_store *t, struct str id)
{
    struct build_row row = outcome(id);

    MUST(store_build_begin(t->store, id, &err));
    MUST(store_build_finish(t->store, &row, &err));
}

static void fail_build(struct temp_store *t, struct str id)
{
    struct build_row row = { .id = id, .state = BUILD_ERROR, .reason = STR("exit status 1"), .reason_step = STR("2") };

    MUST(store_build_begin(t->store, id, &err));
    MUST(store_build_finish(t->store, &row, &err));
}

static struct build_row get(struct temp_store *t, struct str id)
{
    struct build_row row;

    MUST(store_build_get(t->store, id, &t->arena, &row, &err));
    return row;
}

static struct str tagged(struct temp_store *t, struct str template_id, const char *tag)
{
    struct build_row row;
    struct err err;

    return store_build_by_tag(t->store, template_id, str_from(tag), &t->arena, &row, &err) ? row.id : STR("");
}

static void a_build_is_registered_begun_and_finished(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"), STR("v1"));

    assert_int_equal(made.template.id.len, 20);
    assert_int_equal(made.build.id.len, 36);
    assert_int_equal(made.build.state, BUILD_WAITING);
    assert_int_equal(made.template.alias_count, 1);
    CHECK_STR(made.template.aliases[0], STR("web"));
    CHECK_STR(made.template.team_slug, STR("default"));
    assert_int_equal(made.template.build_count, 1);
    assert_false(made.template.is_public);
    assert_int_equal(made.template.default_build_id.len, 0);
    CHECK_STR(made.template.newest.id, made.build.id);
    assert_int_equal(made.build.tag_count, 2);
    CHECK_STR(made.build.tags[1], STR("v1"));

    MUST(store_build_begin(t->store, made.build.id, &err));
    assert_int_equal(get(t, made.build.id).state, BUILD_BUILDING);
    MUST_FAIL(store_build_begin(t->store, made.build.id, &err), ERR_CONFLICT);
    CHECK_STR(tagged(t, made.template.id, ""), STR(""));

    struct build_row row = outcome(made.build.id);
    MUST(store_build_finish(t->store, &row, &err));
    MUST_FAIL(store_build_finish(t->store, &row, &err), ERR_CONFLICT);
    temp_store_reopen(t);
    row = get(t, made.build.id);
    assert_int_equal(row.state, BUILD_READY);
    assert_int_equal(row.layer_count, 2);
    CHECK_STR(row.layers[1], STR("bbbb"));
    CHECK_STR(row.context.user, STR("user"));
    CHECK_STR(row.context.workdir, STR("/app"));
    CHECK_STR(row.context.envs, STR("{\"A\":\"1\"}"));
    CHECK_STR(row.start_cmd, STR("serve"));
    CHECK_STR(row.ready_cmd, STR("sleep 1"));
    CHECK_STR(row.start_context.user, STR("root"));
    CHECK_STR(row.start_context.workdir, STR("/srv"));
    CHECK_STR(row.guestd_version, STR("0.6.14"));
    assert_int_equal(row.disk_mb, 5120);
    assert_true(row.finished_us >= row.created_us);
    CHECK_STR(tagged(t, made.template.id, ""), made.build.id);
    CHECK_STR(tagged(t, made.template.id, "v1"), made.build.id);
    CHECK_STR(tagged(t, made.template.id, "v2"), STR(""));
    char *id = arena_text(&t->arena, made.build.id);
    CHECK_STR(tagged(t, made.template.id, id), made.build.id);

    struct built_template found;
    MUST(store_built_by_alias(t->store, team(t), STR("web"), &t->arena, &found, &err));
    CHECK_STR(found.default_build_id, made.build.id);
    MUST_FAIL(store_built_by_alias(t->store, STR(""), STR("web"), &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_build_get(t->store, STR("nope"), &t->arena, &row, &err), ERR_NOT_FOUND);
}

static void a_name_is_one_template_with_many_builds(void **state)
{
    struct temp_store *t = *state;
    struct made first = REGISTER(t, "web", STR("default")), second, other;
    struct build_row *builds;
    size_t count;

    finish(t, first.build.id);
    second = REGISTER(t, "web", STR("default"));
    other = REGISTER(t, "api", STR("default"));
    CHECK_STR(second.template.id, first.template.id);
    assert_int_equal(second.template.build_count, 2);
    assert_false(str_eq(other.template.id, first.template.id));
    /* The tag serves the build before while the new one is made, and if it fails. */
    CHECK_STR(tagged(t, first.template.id, ""), first.build.id);
    fail_build(t, second.build.id);
    CHECK_STR(get(t, second.build.id).reason, STR("exit status 1"));
    CHECK_STR(get(t, second.build.id).reason_step, STR("2"));
    CHECK_STR(tagged(t, first.template.id, ""), first.build.id);
    struct built_template found;
    MUST(store_built_get(t->store, first.template.id, &t->arena, &found, &err));
    CHECK_STR(found.default_build_id, first.build.id);
    CHECK_STR(found.newest.id, second.build.id);
    assert_int_equal(found.newest.state, BUILD_ERROR);

    MUST(store_build_list(t->store, first.template.id, 0, STR(""), 10, &t->arena, &builds, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(builds[0].id, second.build.id);
    MUST(store_build_list(t->store, first.template.id, builds[0].created_us, builds[0].id, 10, &t->arena, &builds,
                          &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(builds[0].id, first.build.id);
    struct built_template *list;
    MUST(store_built_list(t->store, team(t), &t->arena, &list, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(list[0].id, first.template.id);
    MUST(store_built_list(t->store, STR("another"), &t->arena, &list, &count, &err));
    assert_int_equal(count, 0);
}

static void a_waiting_build_is_superseded_by_one_with_the_same_tag(void **state)
{
    struct temp_store *t = *state;
    struct made first = REGISTER(t, "web", STR("a"), STR("b")), other = REGISTER(t, "web", STR("c"));
    struct made third = REGISTER(t, "web", STR("b"));

    assert_int_equal(get(t, first.build.id).state, BUILD_ERROR);
    assert_non_null(strstr(arena_text(&t->arena, get(t, first.build.id).reason), "superseded by a newer one"));
    assert_int_equal(get(t, other.build.id).state, BUILD_WAITING);
    MUST_FAIL(store_build_begin(t->store, first.build.id, &err), ERR_CONFLICT);
    /* One that runs is the builder's to cancel. */
    struct str *ids, tags[] = { STR("b"), STR("x") };
    size_t count;
    MUST(store_build_begin(t->store, third.build.id, &err));
    REGISTER(t, "web", STR("b"));
    assert_int_equal(get(t, third.build.id).state, BUILD_BUILDING);
    MUST(store_builds_running(t->store, first.template.id, tags, 2, &t->arena, &ids, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(ids[0], third.build.id);
    MUST(store_builds_running(t->store, first.template.id, tags + 1, 1, &t->arena, &ids, &count, &err));
    assert_int_equal(count, 0);
    MUST(store_builds_running_of_team(t->store, team(t), &t->arena, &ids, &count, &err));
    assert_int_equal(count, 1);
}

static void builds_that_were_cut_off_or_never_started_are_errors(void **state)
{
    struct temp_store *t = *state;
    struct made running = REGISTER(t, "web", STR("a")), waiting = REGISTER(t, "web", STR("b"));

    MUST(store_build_begin(t->store, running.build.id, &err));
    t->node_id = "node2";
    temp_store_reopen(t);
    MUST(store_builds_cut_off(t->store, "the server was restarted", &err));
    t->node_id = "node1";
    temp_store_reopen(t);
    assert_int_equal(get(t, running.build.id).state, BUILD_BUILDING); /* another node's business */
    MUST(store_builds_cut_off(t->store, "the server was restarted", &err));
    assert_int_equal(get(t, running.build.id).state, BUILD_ERROR);
    CHECK_STR(get(t, running.build.id).reason, STR("the server was restarted"));
    assert_int_equal(get(t, waiting.build.id).state, BUILD_WAITING);
    MUST(store_builds_expire(t->store, waiting.build.created_us, &err));
    assert_int_equal(get(t, waiting.build.id).state, BUILD_WAITING);
    MUST(store_builds_expire(t->store, waiting.build.created_us + 1, &err));
    assert_int_equal(get(t, waiting.build.id).state, BUILD_ERROR);
}

static void another_node_sees_none_of_it(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    struct built_template found, *list;
    struct build_row row;
    size_t count;

    finish(t, made.build.id);
    t->node_id = "node2";
    temp_store_reopen(t);
    MUST_FAIL(store_built_get(t->store, made.template.id, &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_built_by_alias(t->store, team(t), STR("web"), &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_build_get(t->store, made.build.id, &t->arena, &row, &err), ERR_NOT_FOUND);
    MUST(store_built_list(t->store, team(t), &t->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    CHECK_STR(tagged(t, made.template.id, ""), STR(""));
    struct made other = REGISTER(t, "web", STR("default"));
    assert_false(str_eq(other.template.id, made.template.id));
}

static void an_alias_is_no_id_of_a_template(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    struct build_registration want = wanted(t, made.template.id, &STR("default"), 1);

    MUST_FAIL(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err), ERR_CONFLICT);
    MUST(store_built_remove(t->store, made.template.id, &err));
    MUST_FAIL(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err), ERR_CONFLICT);
    struct str alias = STR("base");
    struct template_row of_keeper = {
        .id = STR("tbase"), .guestd_version = STR("1"), .alias_count = 1, .aliases = &alias
    };
    MUST(store_template_put(t->store, &of_keeper, &err));
    want.alias = STR("tbase");
    MUST_FAIL(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err), ERR_CONFLICT);
    want.team_id = STR("no such team");
    want.alias = STR("fine");
    MUST_FAIL(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err), ERR_CONFLICT);
}

static void a_removed_template_leaves_its_name_and_nothing_else(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default")), running = REGISTER(t, "web", STR("next"));
    struct sandbox_row sandbox = { .id = STR("imade"),
                                   .team_id = team(t),
                                   .template_id = made.template.id,
                                   .guestd_version = STR("0.6.13"),
                                   .metadata = STR("{}") };
    struct built_template found;
    struct build_row row;

    finish(t, made.build.id);
    MUST(store_build_begin(t->store, running.build.id, &err));
    MUST(store_sandbox_add(t->store, &sandbox, &err));
    MUST_FAIL(store_built_remove(t->store, made.template.id, &err), ERR_CONFLICT);
    MUST_FAIL(store_team_remove(t->store, team(t), &err), ERR_CONFLICT);
    MUST(store_sandbox_remove(t->store, STR("imade"), NULL, &err));
    /* One in which a step of its build runs is no reason to stay, nor one of another team. */
    sandbox.team_id = running.build.id;
    MUST(store_sandbox_add(t->store, &sandbox, &err));
    sandbox.id = STR("iother");
    sandbox.team_id = STR("other");
    MUST(store_sandbox_add(t->store, &sandbox, &err));
    MUST(store_built_publish(t->store, made.template.id, true, true, &err));
    MUST(store_built_remove(t->store, made.template.id, &err));
    MUST_FAIL(store_built_remove(t->store, made.template.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_built_get(t->store, made.template.id, &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_built_by_alias(t->store, STR(""), STR("web"), &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_build_get(t->store, made.build.id, &t->arena, &row, &err), ERR_NOT_FOUND);
    row = outcome(running.build.id);
    MUST_FAIL(store_build_finish(t->store, &row, &err), ERR_NOT_FOUND);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM builds"), 0);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM build_tags"), 0);
    struct made again = REGISTER(t, "web", STR("default"));
    assert_false(str_eq(again.template.id, made.template.id));
    MUST(store_built_spawned(t->store, made.template.id, &err)); /* fine when it is gone */
}

static void a_public_name_has_one_owner(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    struct built_template found;
    struct team_row other;

    MUST(store_team_add(t->store, STR("other"), &t->arena, &other, &err));
    struct build_registration want = wanted(t, STR("web"), &STR("default"), 1);
    want.team_id = other.id;
    struct made theirs;
    MUST(store_build_register(t->store, &want, &t->arena, &theirs.template, &theirs.build, &err));
    CHECK_STR(theirs.template.team_slug, STR("other"));

    MUST(store_built_publish(t->store, made.template.id, true, false, &err));
    MUST_FAIL(store_built_by_alias(t->store, STR(""), STR("web"), &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST(store_built_publish(t->store, made.template.id, true, true, &err));
    MUST(store_built_publish(t->store, made.template.id, true, true, &err)); /* again */
    MUST(store_built_by_alias(t->store, STR(""), STR("web"), &t->arena, &found, &err));
    CHECK_STR(found.id, made.template.id);
    assert_true(found.is_public);
    assert_int_equal(found.alias_count, 1);
    MUST_FAIL(store_built_publish(t->store, theirs.template.id, true, true, &err), ERR_CONFLICT);
    MUST(store_built_get(t->store, theirs.template.id, &t->arena, &found, &err));
    assert_false(found.is_public); /* nothing of it was done */
    MUST(store_built_publish(t->store, made.template.id, false, false, &err));
    MUST_FAIL(store_built_by_alias(t->store, STR(""), STR("web"), &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST(store_built_publish(t->store, theirs.template.id, true, true, &err));
    MUST_FAIL(store_built_publish(t->store, STR("nope"), true, true, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_team_remove(t->store, other.id, &err), ERR_CONFLICT);
    MUST(store_built_remove(t->store, theirs.template.id, &err));
    MUST(store_team_remove(t->store, other.id, &err));
}

static void spawns_are_counted(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    struct built_template found;

    assert_int_equal(made.template.spawned_us, 0);
    MUST(store_built_spawned(t->store, made.template.id, &err));
    MUST(store_built_spawned(t->store, made.template.id, &err));
    MUST(store_built_get(t->store, made.template.id, &t->arena, &found, &err));
    assert_int_equal(found.spawn_count, 2);
    assert_true(found.spawned_us > 0);
}

/* ---- tags ---- */

static size_t list_tags(struct temp_store *t, struct tag_filter filter, struct tag_row **out)
{
    size_t count;

    filter.limit = filter.limit ? filter.limit : 100;
    MUST(store_tag_list(t->store, &filter, &t->arena, out, &count, &err));
    return count;
}

static void the_newest_assignment_with_a_ready_build_counts(void **state)
{
    struct temp_store *t = *state;
    struct made first = REGISTER(t, "web", STR("default")), second;
    struct str id = first.template.id, tags[] = { STR("prod"), STR("default") };
    struct tag_row *list;

    MUST_FAIL(store_tag_assign(t->store, id, first.build.id, tags, 1, &err), ERR_NOT_FOUND); /* it is not ready */
    finish(t, first.build.id);
    second = REGISTER(t, "web", STR("v2"));
    assert_int_equal(list_tags(t, (struct tag_filter){ .template_id = id }, &list), 1);
    finish(t, second.build.id);
    MUST(store_tag_assign(t->store, id, first.build.id, tags, 1, &err));
    CHECK_STR(tagged(t, id, "prod"), first.build.id);
    MUST(store_tag_assign(t->store, id, second.build.id, tags, 2, &err));
    CHECK_STR(tagged(t, id, "prod"), second.build.id);
    CHECK_STR(tagged(t, id, ""), second.build.id);
    MUST(store_tag_assign(t->store, id, first.build.id, tags, 1, &err));
    CHECK_STR(tagged(t, id, "prod"), first.build.id);

    assert_int_equal(list_tags(t, (struct tag_filter){ .template_id = id, .newest_only = true }, &list), 3);
    CHECK_STR(list[0].tag, STR("default"));
    CHECK_STR(list[0].build_id, second.build.id);
    CHECK_STR(list[1].tag, STR("prod"));
    CHECK_STR(list[1].build_id, first.build.id);
    CHECK_STR(list[2].tag, STR("v2"));
    assert_int_equal(list[1].id.len, 36);
    assert_true(list[1].build_finished_us >= list[1].build_created_us);
    assert_int_equal(list_tags(t, (struct tag_filter){ .template_id = id, .tag = STR("prod") }, &list), 3);
    CHECK_STR(list[0].build_id, first.build.id);
    CHECK_STR(list[1].build_id, second.build.id);
    assert_int_equal(
        list_tags(
            t,
            (struct tag_filter){ .template_id = id, .tag = STR("prod"), .before_us = list[0].assigned_us, .limit = 1 },
            &list),
        1);
    CHECK_STR(list[0].build_id, second.build.id);

    struct str gone[] = { STR("prod"), STR("never") };
    MUST(store_tag_remove(t->store, id, gone, 2, &err));
    CHECK_STR(tagged(t, id, "prod"), STR(""));
    assert_int_equal(list_tags(t, (struct tag_filter){ .template_id = id, .newest_only = true }, &list), 2);
    /* Which of two builds is ready first is no matter. */
    struct made third = REGISTER(t, "web", STR("late"));
    MUST(store_build_begin(t->store, third.build.id, &err));
    struct made fourth = REGISTER(t, "web", STR("late"));
    finish(t, fourth.build.id);
    struct build_row slow = outcome(third.build.id);
    MUST(store_build_finish(t->store, &slow, &err));
    CHECK_STR(tagged(t, id, "late"), fourth.build.id);
    assert_int_equal(
        list_tags(t, (struct tag_filter){ .template_id = id, .tag = STR("late"), .newest_only = true }, &list), 1);
    CHECK_STR(list[0].build_id, fourth.build.id);
    CHECK_STR(tagged(t, id, ""), second.build.id);
    /* A build of another template is not to be had by its id. */
    struct made other = REGISTER(t, "api", STR("default"));
    finish(t, other.build.id);
    CHECK_STR(tagged(t, id, arena_text(&t->arena, other.build.id)), STR(""));
    MUST_FAIL(store_tag_assign(t->store, id, other.build.id, tags, 1, &err), ERR_NOT_FOUND);
}

static void tags_and_their_history_are_limited(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    struct str tag = STR("again");
    struct tag_row *list;

    finish(t, made.build.id);
    for (int i = 0; i < LIMIT_TAG_HISTORY + 5; i++)
        MUST(store_tag_assign(t->store, made.template.id, made.build.id, &tag, 1, &err));
    assert_int_equal(
        list_tags(t, (struct tag_filter){ .template_id = made.template.id, .tag = tag, .limit = 10000 }, &list),
        LIMIT_TAG_HISTORY);
    struct str *many = ARENA_ARRAY(&t->arena, struct str, LIMIT_TAGS);
    for (int i = 0; i < LIMIT_TAGS; i++)
        many[i] = arena_format(&t->arena, "t%d", i);
    MUST_FAIL(store_tag_assign(t->store, made.template.id, made.build.id, many, LIMIT_TAGS, &err), ERR_LIMIT);
    MUST(store_tag_assign(t->store, made.template.id, made.build.id, many, LIMIT_TAGS - 2, &err));
    CHECK_STR(tagged(t, made.template.id, "t999"), STR(""));
}

static void old_builds_go_unless_a_tag_means_them(void **state)
{
    struct temp_store *t = *state;
    struct made first = REGISTER(t, "web", STR("keep")), last = { 0 };

    finish(t, first.build.id);
    for (int i = 0; i < LIMIT_BUILDS_KEPT + 3; i++) {
        last = REGISTER(t, "web", STR("default"));
        finish(t, last.build.id);
    }
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM builds"), LIMIT_BUILDS_KEPT);
    CHECK_STR(tagged(t, first.template.id, "keep"), first.build.id);
    CHECK_STR(tagged(t, first.template.id, ""), last.build.id);
    assert_int_equal(last.template.build_count, LIMIT_BUILDS_KEPT + 4);
}

static void builds_of_a_team_are_limited(void **state)
{
    struct temp_store *t = *state;
    struct build_registration want = wanted(t, STR("one-more"), &STR("default"), 1);
    struct made made, first = { 0 };

    for (int i = 0; i < LIMIT_BUILDS_TEAM; i++) {
        made = registered(t, arena_format(&t->arena, "n%d", i), &STR("default"), 1);
        MUST(store_build_begin(t->store, made.build.id, &err));
        first = i ? first : made;
    }
    MUST_FAIL(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err), ERR_LIMIT);
    struct built_template found;
    MUST_FAIL(store_built_by_alias(t->store, team(t), STR("one-more"), &t->arena, &found, &err), ERR_NOT_FOUND);
    struct build_row row = outcome(first.build.id);
    MUST(store_build_finish(t->store, &row, &err));
    MUST(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err));
    /* Waiting ones have a limit of their own. */
    for (int i = 1; i < LIMIT_BUILDS_WAITING; i++)
        registered(t, arena_format(&t->arena, "w%d", i), &STR("default"), 1);
    want.alias = STR("two-more");
    MUST_FAIL(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err), ERR_LIMIT);
    later_us = (LIMIT_BUILD_WAITING_S + 1) * INT64_C(1000000);
    clock_use(&later);
    MUST(store_build_register(t->store, &want, &t->arena, &made.template, &made.build, &err));
    clock_use(NULL);
}

/* ---- logs ---- */

static size_t read_log(struct temp_store *t, struct build_log_filter filter, struct build_line **out)
{
    size_t count;

    filter.limit = filter.limit ? filter.limit : 100;
    MUST(store_build_log_read(t->store, &filter, &t->arena, out, &count, &err));
    return count;
}

static void lines_are_kept_in_order_with_times_that_never_go_back(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    struct str id = made.build.id;
    const struct build_line lines[] = {
        { 1000, BUILD_INFO, STR_INIT("base"), STR_INIT("one") },
        { 900, BUILD_DEBUG, STR_INIT("base"), STR_INIT("two") },
        { 2000, BUILD_LEVEL_ERROR, STR_INIT("1"), STR_INIT("three") },
    };
    const struct build_line more = { 500, BUILD_WARN, STR_INIT(""), STR_INIT("four") };
    struct build_line *got;

    MUST(store_build_log(t->store, id, lines, 3, &err));
    MUST(store_build_log(t->store, id, &more, 1, &err));
    assert_int_equal(read_log(t, (struct build_log_filter){ .build_id = id }, &got), 4);
    assert_int_equal(got[1].at_us, 1000);
    assert_int_equal(got[3].at_us, 2000);
    CHECK_STR(got[2].step, STR("1"));
    assert_int_equal(got[2].level, BUILD_LEVEL_ERROR);
    assert_int_equal(read_log(t, (struct build_log_filter){ .build_id = id, .offset = 3 }, &got), 1);
    CHECK_STR(got[0].text, STR("four"));
    assert_int_equal(read_log(t, (struct build_log_filter){ .build_id = id, .offset = 4 }, &got), 0);
    /* The offset counts lines of the level. */
    assert_int_equal(
        read_log(t, (struct build_log_filter){ .build_id = id, .least = BUILD_INFO, .offset = 1, .limit = 1 }, &got),
        1);
    CHECK_STR(got[0].text, STR("three"));
    assert_int_equal(read_log(t, (struct build_log_filter){ .build_id = id, .newest_first = true, .limit = 2 }, &got),
                     2);
    CHECK_STR(got[0].text, STR("four"));
    assert_int_equal(read_log(t, (struct build_log_filter){ .build_id = id, .from_us = 1500 }, &got), 2);
    assert_int_equal(
        read_log(t, (struct build_log_filter){ .build_id = id, .newest_first = true, .to_us = 1500 }, &got), 2);
    CHECK_STR(got[0].text, STR("two"));
    MUST_FAIL(store_build_log(t->store, STR("nope"), &more, 1, &err), ERR_NOT_FOUND);
}

static void a_log_is_cut_and_says_so(void **state)
{
    struct temp_store *t = *state;
    struct made made = REGISTER(t, "web", STR("default"));
    char *text = arena_alloc(&t->arena, LIMIT_BUILD_LINE_BYTES + 10);
    struct build_line line = { .at_us = 1, .text = str_of(text, LIMIT_BUILD_LINE_BYTES + 10) }, *got;

    memset(text, 'x', LIMIT_BUILD_LINE_BYTES + 10);
    memcpy(text + LIMIT_BUILD_LINE_BYTES - 1, "ä", strlen("ä"));
    for (int i = 0; i < LIMIT_BUILD_LOG_BYTES / LIMIT_BUILD_LINE_BYTES + 20; i++)
        MUST(store_build_log(t->store, made.build.id, &line, 1, &err));
    size_t count = read_log(t, (struct build_log_filter){ .build_id = made.build.id, .limit = 1000000 }, &got);
    assert_int_equal(got[0].text.len, LIMIT_BUILD_LINE_BYTES - 1);
    assert_true(count <= LIMIT_BUILD_LOG_BYTES / LIMIT_BUILD_LINE_BYTES + 2);
    assert_non_null(strstr(arena_text(&t->arena, got[count - 1].text), "too long"));
    assert_null(strstr(arena_text(&t->arena, got[count - 2].text), "too long"));
}

/* ---- the cache ---- */

static struct cached_step step(struct temp_store *t, const char *key, const char *kept_id, const struct str *of,
                               uint32_t count)
{
    return (struct cached_step){ .team_id = team(t),
                                 .key = str_from(key),
                                 .kept_id = str_from(kept_id),
                                 .layer_count = count,
                                 .layers = of,
                                 .context = { STR("user"), STR("/w"), STR("{}") },
                                 .bytes = 77 };
}

static size_t unused(struct temp_store *t, int64_t before_us, struct str **out)
{
    size_t count;

    MUST(store_builds_unused(t->store, before_us, &t->arena, out, &count, &err));
    return count;
}

static void a_step_is_found_by_team_and_key(void **state)
{
    struct temp_store *t = *state;
    struct cached_step row = step(t, "k1", "bbbb", layers, 2), found;
    bool is_known;

    MUST_FAIL(store_step_find(t->store, team(t), STR("k1"), &t->arena, &found, &err), ERR_NOT_FOUND);
    MUST(store_step_put(t->store, &row, &err));
    MUST(store_step_find(t->store, team(t), STR("k1"), &t->arena, &found, &err));
    CHECK_STR(found.kept_id, STR("bbbb"));
    assert_int_equal(found.layer_count, 2);
    CHECK_STR(found.layers[1], STR("bbbb"));
    CHECK_STR(found.context.workdir, STR("/w"));
    assert_int_equal(found.bytes, 77);
    MUST_FAIL(store_step_find(t->store, STR("another"), STR("k1"), &t->arena, &found, &err), ERR_NOT_FOUND);
    /* Recovery asks what it may remove. */
    MUST(store_snapshot_is_known(t->store, STR("bbbb"), &is_known, &err));
    assert_true(is_known);
    MUST(store_snapshot_is_known(t->store, STR("cccc"), &is_known, &err));
    assert_false(is_known);
    t->node_id = "node2";
    temp_store_reopen(t);
    MUST_FAIL(store_step_find(t->store, team(t), STR("k1"), &t->arena, &found, &err), ERR_NOT_FOUND);
}

static void what_no_row_refers_to_can_go(void **state)
{
    struct temp_store *t = *state;
    const struct str three[] = { STR("aaaa"), STR("bbbb"), STR("cccc") }, other[] = { STR("aaaa"), STR("dddd") };
    struct made made = REGISTER(t, "web", STR("default"));
    struct cached_step row = step(t, "k1", "aaaa", three, 1), found;
    struct str *ids;

    MUST(store_step_put(t->store, &row, &err));
    row = step(t, "k2", "bbbb", three, 2);
    MUST(store_step_put(t->store, &row, &err));
    row = step(t, "k3", "cccc", three, 3);
    MUST(store_step_put(t->store, &row, &err));
    row = step(t, "k4", "", three, 3); /* a step without a layer */
    MUST(store_step_put(t->store, &row, &err));
    assert_int_equal(unused(t, 0, &ids), 0);
    /* A forced rebuild replaces the row. */
    row = step(t, "k3", "dddd", other, 2);
    MUST(store_step_put(t->store, &row, &err));
    assert_int_equal(unused(t, 0, &ids), 0); /* k4 is still on cccc */
    row = step(t, "k4", "", other, 2);
    MUST(store_step_put(t->store, &row, &err));
    assert_int_equal(unused(t, 0, &ids), 1);
    CHECK_STR(ids[0], STR("cccc"));
    MUST(store_build_forget(t->store, ids[0], &err));
    assert_int_equal(unused(t, 0, &ids), 0);

    finish(t, made.build.id); /* on aaaa and bbbb */
    struct build_row with_image = outcome(REGISTER(t, "img", STR("default")).build.id);
    with_image.image = STR("eeee");
    MUST(store_build_begin(t->store, with_image.id, &err));
    MUST(store_build_finish(t->store, &with_image, &err));
    assert_int_equal(unused(t, INT64_MAX, &ids), 1);
    CHECK_STR(ids[0], STR("dddd"));
    MUST_FAIL(store_step_find(t->store, team(t), STR("k1"), &t->arena, &found, &err), ERR_NOT_FOUND);
    /* A sandbox still runs on it when the templates are removed. */
    struct sandbox_row sandbox = { .id = STR("imade"),
                                   .team_id = team(t),
                                   .template_id = STR("other"),
                                   .guestd_version = STR("0.6.13"),
                                   .metadata = STR("{}"),
                                   .layer_count = 2,
                                   .layers = layers };
    MUST(store_sandbox_add(t->store, &sandbox, &err));
    MUST(store_built_remove(t->store, made.template.id, &err));
    MUST(store_built_remove(t->store, get(t, with_image.id).template_id, &err));
    assert_int_equal(unused(t, INT64_MAX, &ids), 2);
    CHECK_STR(ids[0], STR("dddd"));
    CHECK_STR(ids[1], STR("eeee"));
    MUST(store_sandbox_remove(t->store, STR("imade"), NULL, &err));
    assert_int_equal(unused(t, INT64_MAX, &ids), 4);
}

static void what_a_build_was_given_goes_when_no_step_came_of_it(void **state)
{
    struct temp_store *t = *state;
    const struct str of[] = { STR("aaaa"), STR("bbbb"), STR("cccc") };
    struct cached_step row = step(t, "k1", "cccc", of, 3);
    struct str *ids;
    bool is_known;

    for (int i = 0; i < 2; i++) {
        MUST(store_build_keep(t->store, STR("aaaa"), &err));
        MUST(store_build_keep(t->store, STR("bbbb"), &err));
    }
    MUST(store_snapshot_is_known(t->store, STR("aaaa"), &is_known, &err));
    assert_true(is_known);
    assert_int_equal(unused(t, 0, &ids), 2);
    CHECK_STR(ids[0], STR("aaaa"));
    CHECK_STR(ids[1], STR("bbbb"));
    MUST(store_step_put(t->store, &row, &err));
    assert_int_equal(unused(t, 0, &ids), 0);
    assert_int_equal(unused(t, INT64_MAX, &ids), 3);
    MUST(store_build_forget(t->store, STR("aaaa"), &err));
    assert_int_equal(unused(t, 0, &ids), 2);
}

static void old_steps_make_room(void **state)
{
    struct temp_store *t = *state;
    const struct str one[] = { STR("base"), STR("aaaa"), STR("bbbb") }, two[] = { STR("base"), STR("cccc") },
                     three[] = { STR("base"), STR("dddd") };
    struct cached_step rows[] = { step(t, "k1", "aaaa", one, 2),   step(t, "k2", "bbbb", one, 3),
                                  step(t, "k3", "", one, 3),       step(t, "k4", "cccc", two, 2),
                                  step(t, "k5", "dddd", three, 2), step(t, "k6", "eeee", two, 2) };
    struct build_row built = outcome(REGISTER(t, "web", STR("default")).build.id);
    struct cached_step found;
    uint64_t of_team, of_all;
    struct str *ids;
    size_t count;
    bool is_kept;

    rows[5].team_id = STR("another");
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        MUST(store_step_put(t->store, &rows[i], &err));
    MUST(store_step_put(t->store, &rows[0], &err)); /* the same again is not counted again */
    built.layers = two;
    built.image = STR("ffff");
    built.image_bytes = 1000;
    MUST(store_build_begin(t->store, built.id, &err));
    MUST(store_build_finish(t->store, &built, &err));
    MUST(store_build_bytes(t->store, team(t), &of_team, &of_all, &err));
    assert_int_equal(of_team, 4 * 77 + 1000);
    assert_int_equal(of_all, 5 * 77 + 1000);
    MUST(store_build_keeps(t->store, STR("bbbb"), &is_kept, &err));
    assert_true(is_kept);
    MUST(store_build_keeps(t->store, STR("base"), &is_kept, &err));
    assert_false(is_kept);
    /* Nothing goes that was used since. */
    MUST(store_steps_evict(t->store, team(t), 1, 1, &t->arena, &ids, &count, &err));
    assert_int_equal(count, 0);
    /* Those that were used last stay: k1 and k5. bbbb needs k2 and k3 to go; the build is on cccc. */
    for (size_t i = 0; i < 2; i++)
        MUST(store_step_find(t->store, team(t), rows[4 * i].key, &t->arena, &found, &err));
    MUST(store_steps_evict(t->store, team(t), INT64_MAX, 77, &t->arena, &ids, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(ids[0], STR("bbbb"));
    MUST(store_build_forget(t->store, ids[0], &err));
    MUST(store_build_bytes(t->store, team(t), &of_team, &of_all, &err));
    assert_int_equal(of_team, 3 * 77 + 1000);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool is_gone = i == 1 || i == 2;
        struct err err;
        assert_int_equal(store_step_find(t->store, rows[i].team_id, rows[i].key, &t->arena, &found, &err), !is_gone);
    }
    /* However much is wanted. */
    MUST(store_steps_evict(t->store, team(t), INT64_MAX, UINT64_MAX, &t->arena, &ids, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(ids[0], STR("aaaa"));
    CHECK_STR(ids[1], STR("dddd"));
    MUST(store_step_find(t->store, team(t), rows[3].key, &t->arena, &found, &err));
    MUST(store_step_find(t->store, rows[5].team_id, rows[5].key, &t->arena, &found, &err));
}

static void links_to_upload_are_signed(void **state)
{
    struct temp_store *t = *state;
    char one[STORE_TOKEN_BYTES], two[STORE_TOKEN_BYTES];

    store_upload_token(t->store, STR("team"), STR("aa"), STR("100"), one);
    store_upload_token(t->store, STR("team"), STR("aa"), STR("100"), two);
    assert_string_equal(one, two);
    store_upload_token(t->store, STR("team"), STR("aa"), STR("101"), two);
    assert_string_not_equal(one, two);
    store_upload_token(t->store, STR("team"), STR("ab"), STR("100"), two);
    assert_string_not_equal(one, two);
    store_upload_token(t->store, STR("tea"), STR("maa"), STR("100"), two);
    assert_string_not_equal(one, two);
    store_access_token(t->store, STR("upload:team:aa:100:"), two); /* which is no sandbox id */
    assert_string_equal(one, two);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, temp_store_set_up, temp_store_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(a_build_is_registered_begun_and_finished),
        STORE_TEST(a_name_is_one_template_with_many_builds),
        STORE_TEST(a_waiting_build_is_superseded_by_one_with_the_same_tag),
        STORE_TEST(builds_that_were_cut_off_or_never_started_are_errors),
        STORE_TEST(another_node_sees_none_of_it),
        STORE_TEST(an_alias_is_no_id_of_a_template),
        STORE_TEST(a_removed_template_leaves_its_name_and_nothing_else),
        STORE_TEST(a_public_name_has_one_owner),
        STORE_TEST(spawns_are_counted),
        STORE_TEST(the_newest_assignment_with_a_ready_build_counts),
        STORE_TEST(tags_and_their_history_are_limited),
        STORE_TEST(old_builds_go_unless_a_tag_means_them),
        STORE_TEST(builds_of_a_team_are_limited),
        STORE_TEST(lines_are_kept_in_order_with_times_that_never_go_back),
        STORE_TEST(a_log_is_cut_and_says_so),
        STORE_TEST(a_step_is_found_by_team_and_key),
        STORE_TEST(what_no_row_refers_to_can_go),
        STORE_TEST(what_a_build_was_given_goes_when_no_step_came_of_it),
        STORE_TEST(old_steps_make_room),
        STORE_TEST(links_to_upload_are_signed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
