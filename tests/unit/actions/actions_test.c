#include "actions/actions.h"

#include <stdlib.h>

#include "../sandbox/rig.h"
#include "actions/build.h"

struct fixture {
    struct rig rig;
    struct actions actions;
    struct secret admin_hash;
    struct caller caller, stranger, admin;
    unsigned refreshes;
    bool refresh_brings; /* a template named "late" */
};

static const struct str layer[] = { STR_INIT("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef") };

static void put_template(struct fixture *f, const char *id, struct str team_id, const char *alias)
{
    struct str aliases[] = { str_from(alias) };
    struct template_row row = { .id = str_from(id),
                                .team_id = team_id,
                                .cpu_count = 2,
                                .memory_mb = 512,
                                .disk_mb = 1024,
                                .guestd_version = STR(GUESTD_API_VERSION),
                                .created_us = 1,
                                .layer_count = 1,
                                .layers = layer,
                                .alias_count = 1,
                                .aliases = aliases };

    MUST(store_template_put(f->rig.disk.store, &row, &err));
}

static bool refresh(void *context, struct err *err)
{
    struct fixture *f = context;

    f->refreshes++;
    if (f->refresh_brings)
        put_template(f, "tlate", STR(""), "late");
    return f->refresh_brings || err_set(err, ERR_UNAVAILABLE, "keeper is away");
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    rig_make(&f->rig);
    rig_start(&f->rig);
    char hash[STORE_HASH_BYTES];
    store_secret_hash(STR("very secret"), hash);
    if (!secret_set(&f->admin_hash, str_from(hash)))
        return -1;
    f->actions = (struct actions){ .store = f->rig.disk.store,
                                   .sandboxes = f->rig.all,
                                   .admin_hash = &f->admin_hash,
                                   .refresh_templates = refresh,
                                   .context = f };
    struct str team = store_team_default(f->rig.disk.store);
    memcpy(f->caller.team_id, team.at, team.len);
    memcpy(f->admin.team_id, team.at, team.len);
    f->admin.is_admin = true;
    strcpy(f->stranger.team_id, "stranger");
    put_template(f, "tbase", STR(""), "base");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    rig_drop(&f->rig);
    free(f);
    return 0;
}

/* ---- callers ---- */

static void a_caller_is_known_by_key_or_by_admin_token(void **state)
{
    struct fixture *f = *state;
    struct secret text = { 0 };
    struct caller caller;
    struct key_row key;

    MUST(action_key_create(&f->actions, &f->admin, STR(" k "), &f->rig.arena, &key, &text, &err));
    CHECK_STR(key.name, STR("k"));
    assert_false(action_caller_known(&f->actions, secret_reveal(&text), &caller));
    MUST(action_caller_by_key(&f->actions, secret_reveal(&text), &caller, &err));
    assert_string_equal(caller.team_id, f->caller.team_id);
    assert_false(caller.is_admin);
    assert_true(action_caller_known(&f->actions, secret_reveal(&text), &caller));
    action_caller_seen(&f->actions, &caller);
    MUST_FAIL(action_caller_by_key(&f->actions, STR("e2b_00"), &caller, &err), ERR_DENIED);

    MUST(action_caller_by_admin_token(&f->actions, STR("very secret"), STR(""), &caller, &err));
    assert_true(caller.is_admin);
    assert_string_equal(caller.team_id, f->caller.team_id);
    MUST(action_caller_by_admin_token(&f->actions, STR("very secret"), str_from(f->caller.team_id), &caller, &err));
    MUST_FAIL(action_caller_by_admin_token(&f->actions, STR("very secret"), STR("no team"), &caller, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(action_caller_by_admin_token(&f->actions, STR("wrong"), STR(""), &caller, &err), ERR_DENIED);
    /* What front holds opens nothing. */
    MUST_FAIL(action_caller_by_admin_token(&f->actions, secret_reveal(&f->admin_hash), STR(""), &caller, &err),
              ERR_DENIED);
    MUST_FAIL(action_caller_by_admin_token(&f->actions, STR(""), STR(""), &caller, &err), ERR_DENIED);
    secret_wipe(&f->admin_hash);
    MUST_FAIL(action_caller_by_admin_token(&f->actions, STR(""), STR(""), &caller, &err), ERR_DENIED);
    f->actions.admin_hash = NULL;
    MUST_FAIL(action_caller_by_admin_token(&f->actions, STR(""), STR(""), &caller, &err), ERR_DENIED);
}

static void keys_are_for_administrators(void **state)
{
    struct fixture *f = *state;
    struct secret text = { 0 };
    struct key_row key, *keys;
    struct team_row *teams;
    size_t count;

    MUST_FAIL(action_key_create(&f->actions, &f->caller, STR("k"), &f->rig.arena, &key, &text, &err), ERR_DENIED);
    MUST_FAIL(action_key_list(&f->actions, &f->caller, &f->rig.arena, &keys, &count, &err), ERR_DENIED);
    MUST_FAIL(action_key_rename(&f->actions, &f->caller, STR("x"), STR("k"), &f->rig.arena, &key, &err), ERR_DENIED);
    MUST_FAIL(action_key_revoke(&f->actions, &f->caller, STR("x"), &err), ERR_DENIED);
    MUST_FAIL(action_team_list(&f->actions, &f->caller, &f->rig.arena, &teams, &count, &err), ERR_DENIED);
    MUST(action_team_list(&f->actions, &f->admin, &f->rig.arena, &teams, &count, &err));
    assert_int_equal(count, 1);
    MUST_FAIL(action_key_list_all(&f->actions, &f->caller, &f->rig.arena, &keys, &count, &err), ERR_DENIED);
}

static void teams_are_for_administrators_and_have_names_like_namespaces(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {
        "",    "Research", "a b",
        "-a",  "_a",       "a/b",
        "a:b", "ä",        "0123456789012345678901234567890123456789012345678901234567890123"
    };
    struct team_end end;
    struct team_row team;

    MUST_FAIL(action_team_create(&f->actions, &f->caller, STR("a"), &f->rig.arena, &team, &err), ERR_DENIED);
    MUST_FAIL(action_team_delete(&f->actions, &f->caller, str_from(f->caller.team_id), true, &f->rig.arena, &end, &err),
              ERR_DENIED);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        MUST_FAIL(action_team_create(&f->actions, &f->admin, str_from(bad[i]), &f->rig.arena, &team, &err),
                  ERR_INVALID);
    MUST(action_team_create(&f->actions, &f->admin, STR("4-research_x"), &f->rig.arena, &team, &err));
    MUST(action_team_delete(&f->actions, &f->admin, team.id, false, &f->rig.arena, &end, &err));
    assert_int_equal(end.revoked + end.killed, 0);
    MUST_FAIL(action_team_delete(&f->actions, &f->admin, team.id, false, &f->rig.arena, &end, &err), ERR_NOT_FOUND);
    MUST_FAIL(action_team_delete(&f->actions, &f->admin, str_from(f->admin.team_id), true, &f->rig.arena, &end, &err),
              ERR_CONFLICT);
}

/* Its key was good when the request came in, and its sandbox is made after the team went. */
static void a_create_that_its_team_does_not_outlive_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct sandbox_request request = { .template_ref = STR("base"), .timeout_s = 1000 };
    struct sandbox_info info;

    MUST_FAIL(action_sandbox_create(&f->actions, &f->stranger, &request, &f->rig.arena, &info, &err), ERR_DENIED);
    rig_wait_empty(&f->rig);
    assert_int_equal(rig_rows(&f->rig), 0);
}

static void a_keys_name_is_printable_and_short(void **state)
{
    struct fixture *f = *state;
    struct secret text = { 0 };
    struct key_row key;
    char long_name[LIMIT_NAME_BYTES];
    memset(long_name, 'a', sizeof long_name);
    const struct str bad[] = { STR(""), STR("  "), STR("a\nb"), STR("\xff"), str_of(long_name, sizeof long_name) };

    for (size_t i = 0; i < COUNT_OF(bad); i++)
        MUST_FAIL(action_key_create(&f->actions, &f->admin, bad[i], &f->rig.arena, &key, &text, &err), ERR_INVALID);
}

/* ---- templates ---- */

static void check_resolves(struct fixture *f, const char *ref, const char *want_id)
{
    struct template_row row;

    MUST(action_template_resolve(&f->actions, &f->caller, str_from(ref), &f->rig.arena, &row, &err));
    CHECK_STR(row.id, str_from(want_id));
}

static void references_resolve_as_the_order_says(void **state)
{
    struct fixture *f = *state;
    struct str team = str_from(f->caller.team_id);

    check_resolves(f, "base", "tbase");
    check_resolves(f, "  BASE ", "tbase");
    check_resolves(f, "base:default", "tbase");
    check_resolves(f, "tbase", "tbase");
    put_template(f, "tmine", team, "base"); /* one's own wins */
    check_resolves(f, "base", "tmine");
    check_resolves(f, "default/base", "tmine");
    check_resolves(f, "tbase", "tbase");
}

static void a_malformed_template_reference_is_invalid(void **state)
{
    struct fixture *f = *state;
    struct template_row row;
    static const struct str bad[] = { STR_INIT(""),        STR_INIT(" "),     STR_INIT("a b"),
                                      STR_INIT("a/b/c"),   STR_INIT("/base"), STR_INIT("base:"),
                                      STR_INIT("../base"), STR_INIT("bäse"),  STR_INIT("ba\0se") };

    for (size_t i = 0; i < COUNT_OF(bad); i++)
        MUST_FAIL(action_template_resolve(&f->actions, &f->caller, bad[i], &f->rig.arena, &row, &err), ERR_INVALID);
    assert_int_equal(f->refreshes, 0);
}

static void a_missing_template_is_named_together_with_what_there_is(void **state)
{
    struct fixture *f = *state;
    struct template_row row;
    struct err err;
    static const char *const missing[] = { "nope", "base:v2", "other/base", "default/base" };

    for (size_t i = 0; i < COUNT_OF(missing); i++) {
        assert_false(action_template_resolve(&f->actions, &f->caller, str_from(missing[i]), &f->rig.arena, &row, &err));
        assert_int_equal(err.kind, ERR_NOT_FOUND);
        assert_non_null(strstr(err.message, missing[i]));
        assert_non_null(strstr(err.message, "there is base"));
        assert_non_null(strstr(err.message, "cloister template list"));
    }
    put_template(f, "tother", STR(""), "other");
    assert_false(action_template_resolve(&f->actions, &f->caller, STR("nope"), &f->rig.arena, &row, &err));
    assert_non_null(strstr(err.message, "there are "));
}

static void a_missing_template_that_can_be_built_is_named_with_the_command(void **state)
{
    struct fixture *f = *state;
    struct template_row row;
    struct err err;

    assert_false(
        action_template_resolve(&f->actions, &f->caller, STR("code-interpreter-v1"), &f->rig.arena, &row, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_string_equal(err.message, "template 'code-interpreter-v1' is not built yet. `make up` builds it once, "
                                     "in minutes. By hand: sudo cloister template build code-interpreter [--data DIR]");
}

static void a_miss_asks_for_new_templates_once(void **state)
{
    struct fixture *f = *state;
    struct template_row row;

    MUST_FAIL(action_template_resolve(&f->actions, &f->caller, STR("late"), &f->rig.arena, &row, &err), ERR_NOT_FOUND);
    assert_int_equal(f->refreshes, 1);
    f->refresh_brings = true;
    check_resolves(f, "late", "tlate");
    check_resolves(f, "late", "tlate");
    assert_int_equal(f->refreshes, 2);
}

static void another_teams_template_cannot_be_used(void **state)
{
    struct fixture *f = *state;
    struct template_entry *entries;
    struct template_row row;
    size_t count;

    put_template(f, "tmine", str_from(f->caller.team_id), "mine");
    MUST_FAIL(action_template_resolve(&f->actions, &f->stranger, STR("mine"), &f->rig.arena, &row, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(action_template_resolve(&f->actions, &f->stranger, STR("tmine"), &f->rig.arena, &row, &err),
              ERR_NOT_FOUND);
    MUST(action_template_resolve(&f->actions, &f->caller, STR("mine"), &f->rig.arena, &row, &err));
    MUST(action_template_entries(&f->actions, &f->stranger, &f->rig.arena, &entries, &count, &err));
    assert_int_equal(count, 1);
}

/* ---- sandboxes ---- */

static struct sandbox_info create(struct fixture *f, const struct pair *metadata, uint32_t count)
{
    struct sandbox_request request = {
        .template_ref = STR("base"), .timeout_s = 1000, .metadata = metadata, .metadata_count = count
    };
    struct sandbox_info info = { 0 };

    MUST(action_sandbox_create(&f->actions, &f->caller, &request, &f->rig.arena, &info, &err));
    return info;
}

static void create_takes_its_shape_from_the_template(void **state)
{
    struct fixture *f = *state;
    struct sandbox_info info = create(f, NULL, 0);

    CHECK_STR(info.template_id, STR("tbase"));
    CHECK_STR(info.alias, STR("base"));
    assert_int_equal(info.memory_mb, 512);
    CHECK_STR(info.guestd_version, STR(GUESTD_API_VERSION));
    struct sandbox_request unknown = { .template_ref = STR("nope"), .timeout_s = 10 };
    MUST_FAIL(action_sandbox_create(&f->actions, &f->caller, &unknown, &f->rig.arena, &info, &err), ERR_NOT_FOUND);
    assert_int_equal(f->rig.fake.starts, 1);
}

static void what_cannot_be_brought_back_is_tried_once(void **state)
{
    struct fixture *f = *state;
    struct sandbox_info info = create(f, NULL, 0), got;
    bool resumed;

    MUST(action_sandbox_pause(&f->actions, &f->caller, info.id, &(struct pause_want){ .memory = false }, &err));
    unsigned starts = f->rig.fake.starts;
    f->rig.fake.start = FAKE_START_IS_REFUSED;
    MUST_FAIL(action_sandbox_resume(&f->actions, &f->caller, info.id, &(struct resume_want){ .timeout_s = 5 },
                                    &f->rig.arena, &got, &resumed, &err),
              ERR_CONFLICT);
    assert_int_equal(f->rig.fake.starts, starts + 1);
    f->rig.fake.start = FAKE_STARTS;
    MUST(action_sandbox_resume(&f->actions, &f->caller, info.id, &(struct resume_want){ .timeout_s = 5 }, &f->rig.arena,
                               &got, &resumed, &err));
    assert_true(resumed);
    MUST(action_sandbox_kill(&f->actions, &f->caller, info.id, &err));
}

static void connect_refuses_more_than_the_longest_life_and_never_shortens(void **state)
{
    struct fixture *f = *state;
    struct sandbox_info info = create(f, NULL, 0), got;
    bool resumed = true;

    MUST(action_sandbox_resume(&f->actions, &f->caller, info.id, &(struct resume_want){ .timeout_s = 5 }, &f->rig.arena,
                               &got, &resumed, &err));
    assert_false(resumed);
    assert_int_equal(got.deadline_us, info.deadline_us);
    MUST_FAIL(action_sandbox_resume(&f->actions, &f->caller, info.id,
                                    &(struct resume_want){ .timeout_s = LIMIT_TIMEOUT_S + 1 }, &f->rig.arena, &got,
                                    &resumed, &err),
              ERR_INVALID);
    MUST(action_sandbox_refresh(&f->actions, &f->caller, info.id, 15, &f->rig.arena, &err));
    MUST(action_sandbox_set_timeout(&f->actions, &f->caller, info.id, LIMIT_TIMEOUT_S + 1, &f->rig.arena, &err));
    MUST(action_sandbox_get(&f->actions, &f->caller, info.id, &f->rig.arena, &got, &err));
    assert_int_equal(got.deadline_us, info.started_us + INT64_C(1000000) * LIMIT_TIMEOUT_S);
    MUST(action_sandbox_kill(&f->actions, &f->caller, info.id, &err));
}

static struct sandbox_page list(struct fixture *f, struct sandbox_filter filter)
{
    struct sandbox_page page = { 0 };

    filter.running = true;
    MUST(action_sandbox_list(&f->actions, &f->caller, &filter, &f->rig.arena, &page, &err));
    return page;
}

static void a_list_is_filtered_ordered_and_cut_into_pages(void **state)
{
    struct fixture *f = *state;
    struct pair odd[] = { { STR("kind"), STR("odd") }, { STR("a"), STR("b") } },
                even[] = { { STR("kind"), STR("even") } };
    struct sandbox_info made[5];

    for (size_t i = 0; i < 5; i++)
        made[i] = i % 2 ? create(f, odd, 2) : create(f, even, 1);

    struct sandbox_page page = list(f, (struct sandbox_filter){ 0 });
    assert_int_equal(page.count, 5);
    assert_false(page.more);
    CHECK_STR(page.rows[0].id, made[4].id);
    CHECK_STR(page.rows[4].id, made[0].id);
    page = list(f, (struct sandbox_filter){ .oldest_first = true });
    CHECK_STR(page.rows[0].id, made[0].id);

    page = list(f, (struct sandbox_filter){ .metadata = odd, .metadata_count = 2 });
    assert_int_equal(page.count, 2);
    assert_int_equal(page.running_total, 2);
    struct pair absent = { STR("kind"), STR("od") };
    assert_int_equal(list(f, (struct sandbox_filter){ .metadata = &absent, .metadata_count = 1 }).count, 0);

    for (int oldest = 0; oldest < 2; oldest++) {
        struct sandbox_mark mark;
        struct sandbox_filter filter = { .limit = 2, .oldest_first = oldest };
        size_t seen = 0;
        do {
            page = list(f, filter);
            assert_int_equal(page.running_total, 5);
            for (size_t i = 0; i < page.count; i++, seen++)
                CHECK_STR(page.rows[i].id, made[oldest ? seen : 4 - seen].id);
            mark = (struct sandbox_mark){ page.rows[page.count - 1].started_us, page.rows[page.count - 1].id };
            filter.after = &mark;
        } while (page.more);
        assert_int_equal(seen, 5);
    }

    assert_int_equal(list(f, (struct sandbox_filter){ .started_after_us = made[3].started_us }).count, 2);
    assert_int_equal(list(f, (struct sandbox_filter){ .started_after_us = made[4].started_us + 1 }).count, 0);
    assert_int_equal(list(f, (struct sandbox_filter){ .template_ref = STR("base") }).count, 5);
    assert_int_equal(list(f, (struct sandbox_filter){ .template_ref = STR("tbase") }).count, 5);
    assert_int_equal(list(f, (struct sandbox_filter){ .template_ref = STR("nope") }).count, 0);
    struct sandbox_filter paused = { .paused = true };
    MUST(action_sandbox_list(&f->actions, &f->caller, &paused, &f->rig.arena, &page, &err));
    assert_int_equal(page.count, 0);
    MUST(action_sandbox_list(&f->actions, &f->stranger, &(struct sandbox_filter){ .running = true }, &f->rig.arena,
                             &page, &err));
    assert_int_equal(page.count, 0);
}

/* ---- repeats ---- */

static void a_repeat_tells_what_the_first_one_made(void **state)
{
    struct fixture *f = *state;
    struct sandbox_info info = create(f, NULL, 0), done;
    enum repeat_verdict verdict;

    MUST(action_repeat_begin(&f->actions, &f->caller, STR("k-1"), STR("v2"), STR("{}"), &f->rig.arena, &verdict, &done,
                             &err));
    assert_int_equal(verdict, REPEAT_FIRST);
    action_repeat_settle(&f->actions, &f->caller, STR("k-1"), &info);
    MUST(action_repeat_begin(&f->actions, &f->caller, STR("k-1"), STR("v2"), STR("{}"), &f->rig.arena, &verdict, &done,
                             &err));
    assert_int_equal(verdict, REPEAT_DONE);
    CHECK_STR(done.id, info.id);
    CHECK_STR(done.access_token, info.access_token);
    CHECK_STR(done.template_id, info.template_id);
    /* Another team's key of the same name is another key; another route is another request. */
    MUST(action_repeat_begin(&f->actions, &f->stranger, STR("k-1"), STR("v2"), STR("{}"), &f->rig.arena, &verdict,
                             &done, &err));
    assert_int_equal(verdict, REPEAT_FIRST);
    MUST(action_repeat_begin(&f->actions, &f->caller, STR("k-1"), STR("v1"), STR("{}"), &f->rig.arena, &verdict, &done,
                             &err));
    assert_int_equal(verdict, REPEAT_OTHER);
    MUST_FAIL(action_repeat_begin(&f->actions, &f->caller, STR("K"), STR("v2"), STR("{}"), &f->rig.arena, &verdict,
                                  &done, &err),
              ERR_INVALID);
}

#define ACTION_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest cases[] = {
        ACTION_CASE(a_caller_is_known_by_key_or_by_admin_token),
        ACTION_CASE(keys_are_for_administrators),
        ACTION_CASE(a_create_that_its_team_does_not_outlive_leaves_nothing),
        ACTION_CASE(teams_are_for_administrators_and_have_names_like_namespaces),
        ACTION_CASE(a_keys_name_is_printable_and_short),
        ACTION_CASE(references_resolve_as_the_order_says),
        ACTION_CASE(a_malformed_template_reference_is_invalid),
        ACTION_CASE(a_missing_template_is_named_together_with_what_there_is),
        ACTION_CASE(a_missing_template_that_can_be_built_is_named_with_the_command),
        ACTION_CASE(a_miss_asks_for_new_templates_once),
        ACTION_CASE(another_teams_template_cannot_be_used),
        ACTION_CASE(create_takes_its_shape_from_the_template),
        ACTION_CASE(what_cannot_be_brought_back_is_tried_once),
        ACTION_CASE(connect_refuses_more_than_the_longest_life_and_never_shortens),
        ACTION_CASE(a_list_is_filtered_ordered_and_cut_into_pages),
        ACTION_CASE(a_repeat_tells_what_the_first_one_made),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
