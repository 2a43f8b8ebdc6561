#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "temp_store.h"

static struct sandbox_row sandbox_row(struct str id)
{
    return (struct sandbox_row){ .id = id,
                                 .team_id = STR("team"),
                                 .template_id = STR("tbase"),
                                 .alias = STR("base"),
                                 .guestd_version = STR("0.6.13"),
                                 .metadata = STR("{\"k\":\"v\"}"),
                                 .cpu_count = 2,
                                 .memory_mb = 1024,
                                 .disk_mb = 5120,
                                 .network = STR("bmV0"),
                                 .https_ports = STR("8443"),
                                 .open_code = true };
}

/* ---- opening ---- */

static void the_file_is_for_its_owner_alone(void **state)
{
    struct temp_store *t = *state;
    struct stat st;
    char wal[128];

    assert_int_equal(stat(t->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    snprintf(wal, sizeof wal, "%s-wal", t->path);
    assert_int_equal(stat(wal, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(t->path, 0644), 0);
    temp_store_reopen(t);
    assert_int_equal(stat(t->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void a_store_from_the_future_is_refused_with_advice(void **state)
{
    struct temp_store *t = *state;
    struct err err;

    store_close(t->store);
    t->store = NULL;
    temp_store_by_hand(t, "INSERT INTO schema_version VALUES (999, 0)");
    assert_null(store_open(t->path, STR("node1"), &err));
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_non_null(strstr(err.message, "newer Cloister (schema 999"));
    temp_store_by_hand(t, "DELETE FROM schema_version WHERE version = 999");
    temp_store_reopen(t);
}

/* A data directory that a release before this one has left, with a sandbox in it. */
#define DROP_BUILDS                                                                                           \
    "DROP TABLE newest_tags; DROP TABLE build_layers; DROP INDEX template_layers_by_layer;"                   \
    "DROP TABLE build_lines; DROP TABLE build_tags; DROP TABLE builds; DROP TABLE built_aliases; DROP TABLE " \
    "built_templates; DROP TABLE cached_steps; DROP TABLE build_kept;"

static void a_store_of_an_older_schema_is_brought_up_to_date(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row *rows;
    size_t count;

    store_close(t->store);
    t->store = NULL;
    temp_store_by_hand(
        t, "ALTER TABLE sandboxes DROP COLUMN node_id;"
           "ALTER TABLE sandboxes DROP COLUMN timeout_s; ALTER TABLE sandboxes DROP COLUMN auto_pause;"
           "ALTER TABLE sandboxes DROP COLUMN keep_memory; ALTER TABLE sandboxes DROP COLUMN auto_resume;"
           "ALTER TABLE sandboxes DROP COLUMN layers; ALTER TABLE sandboxes DROP COLUMN has_memory;"
           "ALTER TABLE sandboxes DROP COLUMN was_silent; ALTER TABLE sandboxes DROP COLUMN envs;"
           "ALTER TABLE templates DROP COLUMN node_id; ALTER TABLE repeats DROP COLUMN node_id; ALTER TABLE sandboxes "
           "DROP COLUMN open_code;"
           "ALTER TABLE sandboxes DROP COLUMN network; ALTER TABLE sandboxes DROP COLUMN https_ports;"
           "ALTER TABLE sandboxes ADD COLUMN internet SMALLINT NOT NULL DEFAULT 0;"
           "DROP TABLE mail_grants; DROP TABLE mail_codes; DROP TABLE mail_keys; DROP TABLE mail_inboxes;"
           "DROP TABLE mail_accounts; DROP TABLE mail_tenants; DROP TABLE mail_sandboxes; DROP TABLE mail_rates;"
           "DROP TABLE mail_gone_addresses;"
           "DROP TABLE snapshots;" DROP_BUILDS "DELETE FROM schema_version WHERE version > 3;"
           "INSERT INTO repeats (team_id, repeat_key, request_hash, state, sandbox_id, template_id, alias,"
           " guestd_version, created_us) VALUES ('team', 'k', 'h', 'running', '', '', '', '', 1);"
           "INSERT INTO sandboxes (id, team_id, template_id, alias, guestd_version, state, metadata, cpu_count,"
           " memory_mb, disk_mb, internet, started_us, deadline_us, revision, key_id, is_private, mask_host)"
           " VALUES ('iold', 'team', 'tbase', '', '0.6.13', 'running', '{}', 2, 512, 512, 0, 1, 2, 0, 'k', 1, 'm')");
    temp_store_reopen(t);
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(rows[0].id, STR("iold"));
    CHECK_STR(rows[0].mask_host, STR("m"));
    assert_true(rows[0].is_private);
    assert_false(rows[0].open_code);     /* as it was before there was a choice */
    CHECK_STR(rows[0].network, STR("")); /* it was made without a network */
    /* The server that brought it up to date has made the rows. */
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM sandboxes WHERE node_id = 'node1'"), 1);
    assert_int_equal(temp_store_ask(t, "SELECT COUNT(*) FROM repeats WHERE node_id = 'node1' AND state = 'lost'"), 1);
    t->node_id = "node2";
    temp_store_reopen(t);
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 0);
}

/* The release before sandboxes could be paused. */
static void a_store_from_before_pauses_gets_their_columns(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row *rows;
    size_t count;

    store_close(t->store);
    t->store = NULL;
    temp_store_by_hand(
        t, "ALTER TABLE sandboxes DROP COLUMN timeout_s; ALTER TABLE sandboxes DROP COLUMN auto_pause;"
           "ALTER TABLE sandboxes DROP COLUMN keep_memory; ALTER TABLE sandboxes DROP COLUMN auto_resume;"
           "ALTER TABLE sandboxes DROP COLUMN layers; ALTER TABLE sandboxes DROP COLUMN has_memory;"
           "ALTER TABLE sandboxes DROP COLUMN was_silent; ALTER TABLE sandboxes DROP COLUMN envs;"
           "ALTER TABLE sandboxes DROP COLUMN default_user; ALTER TABLE sandboxes DROP COLUMN default_workdir;"
           "DROP TABLE snapshots; DROP INDEX sandboxes_of_template;" DROP_BUILDS
           "ALTER TABLE mail_inboxes DROP COLUMN shred_tries;" UNDO_AFTER_19
           "DELETE FROM schema_version WHERE version > 9;"
           "INSERT INTO sandboxes (id, team_id, template_id, alias, guestd_version, state, metadata, cpu_count,"
           " memory_mb, disk_mb, started_us, deadline_us, revision, key_id, is_private, mask_host, open_code, node_id)"
           " VALUES ('iold', 'team', 'tbase', '', '0.6.13', 'running', '{}', 2, 512, 512, 1, 2, 7, 'k', 0, '', 0,"
           " 'node1')");
    temp_store_reopen(t);
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(rows[0].revision, 7);
    assert_int_equal(rows[0].timeout_s, 0);
    assert_int_equal(rows[0].layer_count, 0);
    assert_false(rows[0].auto_pause || rows[0].keep_memory || rows[0].auto_resume || rows[0].has_memory ||
                 rows[0].was_silent);
    CHECK_STR(rows[0].envs, STR(""));
    CHECK_STR(rows[0].default_user, STR("user"));
    MUST(store_sandbox_change(t->store, STR("iold"), &(struct sandbox_change){ .state = SANDBOX_ROW_PAUSED }, NULL,
                              &err));
}

static void what_is_no_database_is_refused_and_left_alone(void **state)
{
    struct temp_store *t = *state;
    char path[128], back[32] = { 0 };
    struct err err;

    snprintf(path, sizeof path, "%s/other", t->dir);
    int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "not a database, a diary", 23), 23);
    assert_null(store_open(path, STR("node1"), &err));
    assert_int_equal(err.kind, ERR_INTERNAL);
    assert_non_null(strstr(err.message, "damaged"));
    assert_int_equal(pread(fd, back, sizeof back, 0), 23);
    assert_string_equal(back, "not a database, a diary");
    close(fd);
    unlink(path);
}

static void a_missing_directory_and_a_link_are_refused(void **state)
{
    struct temp_store *t = *state;
    char path[128];
    struct err err;

    snprintf(path, sizeof path, "%s/none/db", t->dir);
    assert_null(store_open(path, STR("node1"), &err));
    assert_int_equal(err.sys, ENOENT);
    snprintf(path, sizeof path, "%s/link", t->dir);
    assert_int_equal(symlink(t->path, path), 0);
    assert_null(store_open(path, STR("node1"), &err));
    assert_int_equal(err.sys, ELOOP);
    unlink(path);
}

static void tokens_differ_by_sandbox_and_survive_a_restart(void **state)
{
    struct temp_store *t = *state;
    char one[STORE_TOKEN_BYTES], other[STORE_TOKEN_BYTES], again[STORE_TOKEN_BYTES];

    store_access_token(t->store, STR("ione"), one);
    store_access_token(t->store, STR("iother"), other);
    assert_int_equal(strlen(one), 64);
    assert_string_not_equal(one, other);
    temp_store_reopen(t);
    store_access_token(t->store, STR("ione"), again);
    assert_string_equal(one, again);
}

/* ---- teams and keys ---- */

static void there_is_one_default_team(void **state)
{
    struct temp_store *t = *state;
    struct team_row *teams, team;
    size_t count;

    char *id = arena_text(&t->arena, store_team_default(t->store));
    temp_store_reopen(t);
    CHECK_STR(store_team_default(t->store), str_from(id));
    MUST(store_team_list(t->store, &t->arena, &teams, &count, &err));
    assert_int_equal(count, 1);
    assert_true(teams[0].is_default);
    MUST(store_team_get(t->store, str_from(id), &t->arena, &team, &err));
    CHECK_STR(team.slug, STR("default"));
    MUST_FAIL(store_team_get(t->store, STR("nobody"), &t->arena, &team, &err), ERR_NOT_FOUND);
}

static void a_team_is_removed_when_nothing_of_it_is_left(void **state)
{
    struct temp_store *t = *state;
    struct team_row team, other, *teams;
    struct secret text = { 0 };
    struct key_row key, *keys;
    size_t count;

    MUST(store_team_add(t->store, STR("research"), &t->arena, &team, &err));
    CHECK_STR(team.slug, STR("research"));
    assert_false(team.is_default);
    assert_int_equal(team.key_count, 0);
    MUST_FAIL(store_team_add(t->store, STR("research"), &t->arena, &other, &err), ERR_CONFLICT);
    MUST_FAIL(store_team_add(t->store, STR("default"), &t->arena, &other, &err), ERR_CONFLICT);

    MUST(store_key_add(t->store, team.id, STR("k"), &t->arena, &key, &text, &err));
    CHECK_STR(key.team_slug, STR("research"));
    MUST(store_key_list(t->store, STR(""), &t->arena, &keys, &count, &err));
    assert_int_equal(count, 1);
    MUST(store_key_list(t->store, store_team_default(t->store), &t->arena, &keys, &count, &err));
    assert_int_equal(count, 0);
    MUST(store_team_get(t->store, team.id, &t->arena, &team, &err));
    assert_int_equal(team.key_count, 1);
    MUST_FAIL(store_team_remove(t->store, team.id, &err), ERR_CONFLICT);
    MUST(store_key_revoke(t->store, team.id, key.id, &err));

    struct sandbox_row row = sandbox_row(STR("ia"));
    row.team_id = team.id;
    MUST(store_sandbox_add(t->store, &row, &err));
    MUST_FAIL(store_team_remove(t->store, team.id, &err), ERR_CONFLICT);
    MUST(store_sandbox_remove(t->store, row.id, NULL, &err));

    struct template_row template = { .id = STR("tx"), .team_id = team.id, .guestd_version = STR("0.6.13") };
    MUST(store_template_put(t->store, &template, &err));
    MUST_FAIL(store_team_remove(t->store, team.id, &err), ERR_CONFLICT);
    MUST(store_template_remove(t->store, template.id, &err));

    MUST(store_team_remove(t->store, team.id, &err));
    MUST_FAIL(store_team_remove(t->store, team.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_team_remove(t->store, store_team_default(t->store), &err), ERR_NOT_FOUND);
    temp_store_reopen(t);
    MUST(store_team_list(t->store, &t->arena, &teams, &count, &err));
    assert_int_equal(count, 1);
    struct key_owner owner;
    MUST_FAIL(store_key_find(t->store, secret_reveal(&text), &owner, &err), ERR_DENIED);
}

static void a_key_is_found_by_its_text_until_it_is_revoked(void **state)
{
    struct temp_store *t = *state;
    struct str team = store_team_default(t->store);
    struct secret text = { 0 };
    struct key_owner owner;
    struct key_row row;

    MUST(store_key_add(t->store, team, STR("laptop"), &t->arena, &row, &text, &err));
    assert_int_equal(text.len, STORE_KEY_CHARS);
    struct str key = arena_copy(&t->arena, secret_reveal(&text));
    assert_true(str_starts(key, STR("e2b_")));
    CHECK_STR(row.mask_prefix, str_of(key.at + 4, 2));
    CHECK_STR(row.mask_suffix, str_of(key.at + 40, 4));

    assert_false(store_key_cached(t->store, key, &owner)); /* not asked for yet */
    MUST(store_key_find(t->store, key, &owner, &err));
    CHECK_STR(str_from(owner.key_id), row.id);
    CHECK_STR(str_from(owner.team_id), team);
    assert_true(store_key_cached(t->store, key, &owner));

    MUST_FAIL(store_key_revoke(t->store, STR("another team"), row.id, &err), ERR_NOT_FOUND);
    MUST(store_key_revoke(t->store, team, row.id, &err));
    assert_false(store_key_cached(t->store, key, &owner));
    MUST_FAIL(store_key_find(t->store, key, &owner, &err), ERR_DENIED);
    MUST_FAIL(store_key_revoke(t->store, team, row.id, &err), ERR_NOT_FOUND);
    temp_store_reopen(t);
    MUST_FAIL(store_key_find(t->store, key, &owner, &err), ERR_DENIED);
    MUST(store_key_ensure(t->store, store_team_default(t->store), STR("back?"), &text, &err));
    MUST_FAIL(store_key_find(t->store, key, &owner, &err), ERR_DENIED); /* revoked is revoked */
}

static void what_is_no_key_is_denied(void **state)
{
    struct temp_store *t = *state;
    struct key_owner owner;
    static const char *const texts[] = {
        "",
        "e2b_",
        "e2b_0",
        "e2b_zz",
        "E2B_00",
        "00112233",
        "e2b_00112233445566778899aabbccddeeff00112233",
        "e2b_00112233445566778899aabbccddeeff0011223 ",
    };

    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        MUST_FAIL(store_key_find(t->store, str_from(texts[i]), &owner, &err), ERR_DENIED);
        assert_false(store_key_cached(t->store, str_from(texts[i]), &owner));
    }
    char long_key[400] = "e2b_";
    memset(long_key + 4, 'a', sizeof long_key - 4);
    MUST_FAIL(store_key_find(t->store, str_of(long_key, sizeof long_key), &owner, &err), ERR_DENIED);
}

static void a_key_kept_elsewhere_is_added_once(void **state)
{
    struct temp_store *t = *state;
    struct str team = store_team_default(t->store);
    struct secret text = { 0 };
    struct key_owner owner;
    struct key_row *rows;
    size_t count;

    assert_true(secret_set(&text, STR("e2b_00112233445566778899aabbccddeeff00112233")));
    MUST(store_key_ensure(t->store, team, STR("first"), &text, &err));
    MUST(store_key_ensure(t->store, team, STR("first"), &text, &err));
    MUST(store_key_list(t->store, team, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    MUST(store_key_find(t->store, secret_reveal(&text), &owner, &err));
    /* The digits in another case are the same bytes. */
    MUST(store_key_find(t->store, STR("e2b_00112233445566778899AABBCCDDEEFF00112233"), &owner, &err));
    assert_true(secret_set(&text, STR("hello")));
    MUST_FAIL(store_key_ensure(t->store, team, STR("first"), &text, &err), ERR_INVALID);
}

static void keys_are_renamed_listed_and_their_use_is_noted(void **state)
{
    struct temp_store *t = *state;
    struct str team = store_team_default(t->store);
    struct secret text = { 0 };
    struct key_owner owner;
    struct key_row row, renamed, *rows;
    size_t count;

    MUST(store_key_add(t->store, team, STR("a"), &t->arena, &row, &text, &err));
    MUST(store_key_rename(t->store, team, row.id, STR("b"), &t->arena, &renamed, &err));
    CHECK_STR(renamed.name, STR("b"));
    MUST_FAIL(store_key_rename(t->store, team, STR("nope"), STR("b"), &t->arena, &renamed, &err), ERR_NOT_FOUND);
    assert_int_equal(renamed.last_used_us, 0);
    MUST(store_key_find(t->store, secret_reveal(&text), &owner, &err));
    MUST(store_key_touch(t->store, row.id, &err));
    MUST(store_key_list(t->store, team, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    int64_t used_us = rows[0].last_used_us;
    assert_true(used_us >= row.created_us);
    MUST(store_key_touch(t->store, row.id, &err)); /* so soon after, it is not worth a write */
    MUST(store_key_list(t->store, team, &t->arena, &rows, &count, &err));
    assert_int_equal(rows[0].last_used_us, used_us);
}

/* ---- templates ---- */

static struct template_row base_template(void)
{
    static const struct str layers[] = { STR_INIT("bottom"), STR_INIT("top") };
    static const struct str aliases[] = { STR_INIT("zebra"), STR_INIT("base") };

    return (struct template_row){ .id = STR("tbase"),
                                  .cpu_count = 2,
                                  .memory_mb = 1024,
                                  .disk_mb = 5120,
                                  .guestd_version = STR("0.6.13"),
                                  .created_us = 1,
                                  .layer_count = 2,
                                  .layers = layers,
                                  .alias_count = 2,
                                  .aliases = aliases };
}

static void a_template_keeps_its_layers_in_order_and_is_found_by_its_names(void **state)
{
    struct temp_store *t = *state;
    struct template_row put = base_template(), row;

    MUST(store_template_put(t->store, &put, &err));
    MUST(store_template_put(t->store, &put, &err));
    temp_store_reopen(t);
    MUST(store_template_by_alias(t->store, STR(""), STR("zebra"), &t->arena, &row, &err));
    CHECK_STR(row.id, STR("tbase"));
    assert_int_equal(row.layer_count, 2);
    CHECK_STR(row.layers[0], STR("bottom"));
    CHECK_STR(row.layers[1], STR("top"));
    assert_int_equal(row.alias_count, 2);
    CHECK_STR(row.aliases[0], STR("base"));
    MUST_FAIL(store_template_by_alias(t->store, store_team_default(t->store), STR("base"), &t->arena, &row, &err),
              ERR_NOT_FOUND);
    MUST(store_template_get(t->store, STR("tbase"), &t->arena, &row, &err));
    assert_int_equal(row.memory_mb, 1024);

    static const struct str fewer[] = { STR_INIT("only") };
    put.layers = fewer;
    put.layer_count = 1;
    put.alias_count = 1;
    put.memory_mb = 512;
    MUST(store_template_put(t->store, &put, &err));
    MUST(store_template_get(t->store, STR("tbase"), &t->arena, &row, &err));
    assert_int_equal(row.layer_count, 1);
    assert_int_equal(row.alias_count, 1);
    assert_int_equal(row.memory_mb, 512);
    MUST_FAIL(store_template_by_alias(t->store, STR(""), STR("base"), &t->arena, &row, &err), ERR_NOT_FOUND);
}

static void an_alias_moves_to_the_template_that_claims_it_last(void **state)
{
    struct temp_store *t = *state;
    struct template_row put = base_template(), row, *list;
    size_t count;

    MUST(store_template_put(t->store, &put, &err));
    put.id = STR("tnewer");
    put.created_us = 2;
    MUST(store_template_put(t->store, &put, &err));
    MUST(store_template_by_alias(t->store, STR(""), STR("base"), &t->arena, &row, &err));
    CHECK_STR(row.id, STR("tnewer"));
    MUST(store_template_list(t->store, store_team_default(t->store), &t->arena, &list, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(list[0].id, STR("tbase"));
    assert_int_equal(list[0].alias_count, 0);
    assert_int_equal(list[1].layer_count, 2);
    MUST(store_template_remove(t->store, STR("tnewer"), &err));
    MUST_FAIL(store_template_by_alias(t->store, STR(""), STR("base"), &t->arena, &row, &err), ERR_NOT_FOUND);
    MUST(store_template_remove(t->store, STR("tnewer"), &err));
}

static void templates_that_are_no_longer_there_go_from_their_own_node_only(void **state)
{
    struct temp_store *t = *state;
    struct template_row put = base_template(), row;
    static const struct str kept[] = { STR_INIT("tnew") };

    MUST(store_template_put(t->store, &put, &err));
    t->node_id = "node2";
    temp_store_reopen(t);
    put.id = STR("told");
    put.alias_count = 0;
    MUST(store_template_put(t->store, &put, &err));
    put.id = STR("tnew");
    MUST(store_template_put(t->store, &put, &err));
    MUST(store_template_keep(t->store, kept, 1, &err));
    MUST_FAIL(store_template_get(t->store, STR("told"), &t->arena, &row, &err), ERR_NOT_FOUND);
    MUST(store_template_get(t->store, STR("tnew"), &t->arena, &row, &err));
    MUST(store_template_get(t->store, STR("tbase"), &t->arena, &row, &err)); /* node1's */
    put.team_id = STR("nobody");
    MUST_FAIL(store_template_put(t->store, &put, &err), ERR_CONFLICT);
}

static void a_teams_own_template_is_listed_for_that_team_only(void **state)
{
    struct temp_store *t = *state;
    struct template_row put = base_template(), *list;
    size_t count;

    put.team_id = store_team_default(t->store);
    MUST(store_template_put(t->store, &put, &err));
    MUST(store_template_list(t->store, put.team_id, &t->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    MUST(store_template_list(t->store, STR("another"), &t->arena, &list, &count, &err));
    assert_int_equal(count, 0);
}

/* ---- sandboxes and events ---- */

static struct event_row event_row(struct str sandbox_id, struct str type)
{
    return (struct event_row){ .type = type,
                               .sandbox_id = sandbox_id,
                               .team_id = STR("team"),
                               .template_id = STR("tbase"),
                               .at_us = clock_wall_us(),
                               .data = STR("{}") };
}

static void a_sandbox_goes_from_starting_to_running_to_gone(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row row = sandbox_row(STR("ia")), *rows;
    struct event_row created = event_row(row.id, STR("created")), killed = event_row(row.id, STR("killed")), *events;
    size_t count;

    MUST(store_sandbox_add(t->store, &row, &err));
    MUST_FAIL(store_sandbox_add(t->store, &row, &err), ERR_CONFLICT);
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(rows[0].state, SANDBOX_ROW_STARTING);
    MUST(store_sandbox_ready(t->store, row.id, 100, 200, &created, &err));
    temp_store_reopen(t);
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(rows[0].state, SANDBOX_ROW_RUNNING);
    assert_int_equal(rows[0].started_us, 100);
    assert_int_equal(rows[0].deadline_us, 200);
    CHECK_STR(rows[0].metadata, row.metadata);
    CHECK_STR(rows[0].network, STR("bmV0"));
    CHECK_STR(rows[0].https_ports, STR("8443"));
    assert_true(rows[0].open_code);
    MUST(store_sandbox_remove(t->store, row.id, &killed, &err));
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 0);
    MUST(store_event_list(t->store, row.id, &t->arena, &events, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(events[1].type, STR("killed"));
    MUST_FAIL(store_sandbox_ready(t->store, row.id, 1, 2, &created, &err), ERR_INTERNAL);
    MUST(store_event_list(t->store, row.id, &t->arena, &events, &count, &err));
    assert_int_equal(count, 2); /* the event of what failed is not there either */
}

static void the_later_decision_about_a_deadline_stays_whichever_is_written_last(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row row = sandbox_row(STR("ia")), *rows;
    struct event_row event = event_row(row.id, STR("updated"));
    size_t count;

    MUST(store_sandbox_add(t->store, &row, &err));
    MUST(store_sandbox_deadline(t->store, row.id, 2000, 2, &event, &err));
    MUST(store_sandbox_deadline(t->store, row.id, 1000, 1, &event, &err));
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(rows[0].deadline_us, 2000);
}

static struct sandbox_row only_row(struct temp_store *t)
{
    struct sandbox_row *rows;
    size_t count;

    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    return rows[0];
}

static void change_to(struct temp_store *t, const struct sandbox_change *change)
{
    MUST(store_sandbox_change(t->store, STR("ia"), change, NULL, &err));
}

static void a_pause_and_a_resume_are_in_the_row(void **state)
{
    struct temp_store *t = *state;
    static const struct str layers[] = { STR_INIT("aa"), STR_INIT("bb") };
    struct sandbox_row row = sandbox_row(STR("ia"));
    struct event_row paused = event_row(row.id, STR("paused")), *events;
    size_t count;

    row.layer_count = COUNT_OF(layers);
    row.layers = layers;
    row.timeout_s = 300;
    row.auto_pause = row.auto_resume = true;
    MUST(store_sandbox_add(t->store, &row, &err));
    MUST(store_sandbox_deadline(t->store, row.id, 900, 5, NULL, &err));
    MUST(store_sandbox_change(t->store, row.id,
                              &(struct sandbox_change){ .state = SANDBOX_ROW_PAUSED,
                                                        .deadline_us = 700,
                                                        .revision = 6,
                                                        .has_memory = true,
                                                        .was_silent = true,
                                                        .envs = STR("{\"A\":\"1\"}") },
                              &paused, &err));
    temp_store_reopen(t);
    struct sandbox_row got = only_row(t);
    assert_int_equal(got.state, SANDBOX_ROW_PAUSED);
    assert_int_equal(got.deadline_us, 700); /* earlier than it was */
    assert_int_equal(got.revision, 6);
    assert_true(got.has_memory && got.was_silent && got.auto_pause && got.auto_resume && !got.keep_memory);
    assert_int_equal(got.timeout_s, 300);
    assert_int_equal(got.layer_count, 2);
    CHECK_STR(got.layers[0], STR("aa"));
    CHECK_STR(got.layers[1], STR("bb"));
    CHECK_STR(got.envs, STR("{\"A\":\"1\"}"));
    MUST(store_sandbox_deadline(t->store, row.id, 900, 5, NULL, &err)); /* it was on its way when the pause came */
    assert_int_equal(only_row(t).deadline_us, 700);
    change_to(t, &(struct sandbox_change){
                     .state = SANDBOX_ROW_RUNNING, .started_us = 800, .deadline_us = 1100, .revision = 7 });
    got = only_row(t);
    assert_int_equal(got.started_us, 800);
    assert_int_equal(got.deadline_us, 1100);
    assert_int_equal(got.layer_count, 2);
    MUST_FAIL(store_sandbox_change(t->store, STR("ib"), &(struct sandbox_change){ .state = SANDBOX_ROW_PAUSED },
                                   &paused, &err),
              ERR_NOT_FOUND);
    MUST(store_event_list(t->store, row.id, &t->arena, &events, &count, &err));
    assert_int_equal(count, 1); /* the event of what failed is not there */
}

static void only_a_pause_keeps_the_environment(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row row = sandbox_row(STR("ia"));
    static const enum sandbox_row_state pausing[] = { SANDBOX_ROW_PAUSING, SANDBOX_ROW_PAUSED };
    static const enum sandbox_row_state others[] = { SANDBOX_ROW_RUNNING, SANDBOX_ROW_SNAPSHOTTING };

    MUST(store_sandbox_add(t->store, &row, &err));
    for (size_t i = 0; i < COUNT_OF(pausing); i++)
        for (size_t j = 0; j < COUNT_OF(others); j++) {
            change_to(t, &(struct sandbox_change){ .state = pausing[i], .has_memory = true, .envs = STR("{}") });
            CHECK_STR(only_row(t).envs, STR("{}"));
            change_to(t, &(struct sandbox_change){ .state = SANDBOX_ROW_RESUMING }); /* a crash must not lose it */
            CHECK_STR(only_row(t).envs, STR("{}"));
            assert_true(only_row(t).has_memory);
            change_to(t, &(struct sandbox_change){ .state = others[j], .has_memory = true, .envs = STR("{}") });
            CHECK_STR(only_row(t).envs, STR(""));
            assert_false(only_row(t).has_memory);
        }
}

/* ---- repeats ---- */

static enum repeat_verdict ask(struct temp_store *t, const char *key, const char *body, struct repeat_outcome *out)
{
    enum repeat_verdict verdict;

    MUST(store_repeat_begin(t->store, STR("team"), str_from(key), STR("v2"), str_from(body), &t->arena, &verdict, out,
                            &err));
    return verdict;
}

static void a_repeat_is_first_then_running_then_done(void **state)
{
    struct temp_store *t = *state;
    struct repeat_outcome out;

    assert_int_equal(ask(t, "k", "{}", &out), REPEAT_FIRST);
    assert_int_equal(ask(t, "k", "{}", &out), REPEAT_RUNNING);
    assert_int_equal(ask(t, "k", "{ }", &out), REPEAT_OTHER);
    MUST(store_repeat_done(t->store, STR("team"), STR("k"),
                           &(struct repeat_outcome){ STR("ia"), STR("tbase"), STR("base"), STR("0.6.13") }, &err));
    temp_store_reopen(t);
    assert_int_equal(ask(t, "k", "{}", &out), REPEAT_DONE);
    CHECK_STR(out.sandbox_id, STR("ia"));
    CHECK_STR(out.guestd_version, STR("0.6.13"));
    assert_int_equal(ask(t, "k", "{ }", &out), REPEAT_OTHER);
    assert_int_equal(ask(t, "other", "{}", &out), REPEAT_FIRST);
    MUST(store_repeat_forget(t->store, STR("team"), STR("other"), &err));
    assert_int_equal(ask(t, "other", "{ }", &out), REPEAT_FIRST);
}

static void a_repeat_that_was_running_when_we_died_is_lost(void **state)
{
    struct temp_store *t = *state;
    struct repeat_outcome out;

    assert_int_equal(ask(t, "k", "{}", &out), REPEAT_FIRST);
    temp_store_reopen(t);
    assert_int_equal(ask(t, "k", "{}", &out), REPEAT_LOST);
}

static void old_repeats_and_events_are_swept(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row row = sandbox_row(STR("ia"));
    struct event_row event = event_row(row.id, STR("created")), *events;
    struct repeat_outcome out;
    size_t count;

    assert_int_equal(ask(t, "k", "{}", &out), REPEAT_FIRST);
    MUST(store_repeat_done(t->store, STR("team"), STR("k"),
                           &(struct repeat_outcome){ STR("ia"), STR("t"), STR(""), STR("") }, &err));
    MUST(store_sandbox_add(t->store, &row, &err));
    MUST(store_sandbox_ready(t->store, row.id, 1, 2, &event, &err));
    temp_store_by_hand(t, "UPDATE repeats SET created_us = 1; UPDATE events SET at_us = 1");
    temp_store_reopen(t); /* the first write after a start sweeps */
    assert_int_equal(ask(t, "k", "{ }", &out), REPEAT_FIRST);
    MUST(store_event_list(t->store, row.id, &t->arena, &events, &count, &err));
    assert_int_equal(count, 0);
}

/* ---- faults ---- */

/* Writes as fast as it can and says after each write that it returned; dies in the middle of one. */
static void write_until_killed(const char *path, int say_fd)
{
    struct err err;
    struct store *store = store_open(path, STR("node1"), &err);

    if (!store)
        _exit(1);
    for (int i = 0;; i++) {
        char id[32];
        snprintf(id, sizeof id, "i%d", i);
        struct sandbox_row row = sandbox_row(str_from(id));
        struct event_row event = event_row(row.id, STR("created"));
        if (!store_sandbox_add(store, &row, &err) || !store_sandbox_ready(store, row.id, 1, 2, &event, &err) ||
            write(say_fd, &i, sizeof i) != sizeof i)
            _exit(2);
    }
}

static void what_was_written_is_there_after_kill_9(void **state)
{
    struct temp_store *t = *state;
    int pipe_fds[2], last = -1, i;
    struct sandbox_row *rows;
    size_t count;

    store_close(t->store);
    t->store = NULL;
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0)
        write_until_killed(t->path, pipe_fds[1]);
    close(pipe_fds[1]);
    for (int seen = 0; seen < 200; seen++) {
        assert_int_equal(read(pipe_fds[0], &i, sizeof i), sizeof i);
        last = i;
    }
    kill(child, SIGKILL);
    while (read(pipe_fds[0], &i, sizeof i) == sizeof i)
        last = i;
    close(pipe_fds[0]);
    waitpid(child, NULL, 0);

    temp_store_reopen(t);
    MUST(store_sandbox_list(t->store, &t->arena, &rows, &count, &err));
    /* All that returned, and at most the one that was under way. */
    assert_in_range(count, last + 1, last + 2);
    for (size_t r = 0; r < count; r++) {
        struct event_row *events;
        size_t events_count;
        MUST(store_event_list(t->store, rows[r].id, &t->arena, &events, &events_count, &err));
        assert_int_equal(events_count, rows[r].state == SANDBOX_ROW_RUNNING ? 1 : 0);
    }
}

static void a_store_that_somebody_else_is_writing_to_says_so(void **state)
{
    struct temp_store *t = *state;
    struct sandbox_row row = sandbox_row(STR("ia"));
    sqlite3 *db;

    assert_int_equal(sqlite3_open(t->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    MUST_FAIL(store_sandbox_add(t->store, &row, &err), ERR_UNAVAILABLE);
    assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    MUST(store_sandbox_add(t->store, &row, &err));
}

struct adder {
    struct store *store;
    bool ok; /* an assertion is for the test's own thread */
};

static bool add_one(struct store *store, struct arena *arena, bool revoke)
{
    struct str team = store_team_default(store);
    struct secret text = { 0 };
    struct key_owner owner;
    struct key_row row;
    struct err err;

    return store_key_add(store, team, STR("k"), arena, &row, &text, &err) &&
           store_key_find(store, secret_reveal(&text), &owner, &err) &&
           (!revoke ||
            (store_key_revoke(store, team, row.id, &err) && !store_key_cached(store, secret_reveal(&text), &owner) &&
             !store_key_find(store, secret_reveal(&text), &owner, &err)));
}

static void *add_many(void *argument)
{
    struct adder *adder = argument;
    struct arena arena;

    arena_init(&arena);
    adder->ok = true;
    for (int i = 0; i < 20; i++)
        adder->ok = adder->ok && add_one(adder->store, &arena, i % 2);
    arena_done(&arena);
    return NULL;
}

static void several_threads_may_write_at_once(void **state)
{
    struct temp_store *t = *state;
    struct key_row *rows;
    struct adder adders[4];
    pthread_t threads[4];
    size_t count;

    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        adders[i] = (struct adder){ .store = t->store };
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, &adders[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        pthread_join(threads[i], NULL);
        assert_true(adders[i].ok);
    }
    MUST(store_key_list(t->store, store_team_default(t->store), &t->arena, &rows, &count, &err));
    assert_int_equal(count, 40);
}

/* SQLite's "somebody has this open": while it is held, nobody cuts the index of the log. */
static bool index_is_locked(const char *path)
{
    char name[128];
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 128, .l_len = 1 };

    snprintf(name, sizeof name, "%s-shm", path);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    bool ok = fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_RDLCK;
    close(fd);
    return ok;
}

/* The exit code of a program that opens the store, reads and closes it, until the pipe ends. */
static int read_again_and_again(const char *path, int until_fd)
{
    struct pollfd until = { .fd = until_fd, .events = POLLIN };
    char go;

    if (read(until_fd, &go, 1) != 1)
        return 2;
    if (!index_is_locked(path))
        return 3;
    for (int reads = 0; reads == 0 || poll(&until, 1, 0) == 0; reads++) {
        sqlite3 *db;
        if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK ||
            sqlite3_busy_timeout(db, 5000) != SQLITE_OK ||
            sqlite3_exec(db, "SELECT count(*) FROM events", NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_close(db) != SQLITE_OK)
            return 4;
    }
    return index_is_locked(path) ? 0 : 5;
}

static void other_programs_may_read_the_store_while_it_is_written(void **state)
{
    struct temp_store *t = *state;
    struct event_row event = { .type = event_type_name[EVENT_UPDATED],
                               .sandbox_id = STR("i1"),
                               .team_id = STR("team"),
                               .template_id = STR("tbase"),
                               .data = STR("{}") };
    int pipe_fds[2], status;

    /* Forked while the store is closed: SQLite in the child would take locks that it knows of for its own. */
    store_close(t->store);
    t->store = NULL;
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        close(pipe_fds[1]);
        _exit(read_again_and_again(t->path, pipe_fds[0]));
    }
    close(pipe_fds[0]);
    temp_store_reopen(t);
    assert_int_equal(write(pipe_fds[1], "g", 1), 1);
    for (int i = 0; i < 3000; i++) {
        event.at_us = clock_wall_us();
        MUST(store_sandbox_remove(t->store, STR("none"), &event, &err));
    }
    close(pipe_fds[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#define STORE_CASE(function) cmocka_unit_test_setup_teardown(function, temp_store_set_up, temp_store_tear_down)

static int64_t allocated(const char *path, const char *suffix)
{
    char name[128];
    struct stat st;

    snprintf(name, sizeof name, "%s%s", path, suffix);
    assert_int_equal(stat(name, &st), 0);
    return (int64_t)st.st_blocks * 512;
}

static int64_t free_pages(const struct temp_store *t)
{
    sqlite3 *db;
    sqlite3_stmt *statement;

    assert_int_equal(sqlite3_open(t->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA freelist_count", -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t count = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return count;
}

static void the_store_holds_room_for_a_full_disk_and_keeps_it(void **state)
{
    struct temp_store *t = *state;
    char words[1000];
    memset(words, 'x', sizeof words);
    struct event_row event = { .type = event_type_name[EVENT_UPDATED],
                               .sandbox_id = STR("i1"),
                               .team_id = STR("team"),
                               .template_id = STR("tbase"),
                               .data = str_of(words, sizeof words) };

    assert_true(allocated(t->path, "-wal") >= 15 << 20);
    assert_true(allocated(t->path, "") >= 2 << 20);
    assert_true(free_pages(t) * 4096 >= 1 << 20);
    /* Normal life uses the free pages up, and they are made again. */
    for (int i = 0; i < 3000; i++) {
        event.at_us = clock_wall_us();
        MUST(store_sandbox_remove(t->store, STR("none"), &event, &err));
    }
    assert_true(free_pages(t) * 4096 >= 512 << 10);
    assert_true(allocated(t->path, "-wal") < 18 << 20);
    store_close(t->store);
    t->store = NULL;
    assert_true(allocated(t->path, "-wal") >= 15 << 20);
    temp_store_reopen(t);
    MUST(store_sandbox_remove(t->store, STR("none"), &event, &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        STORE_CASE(the_file_is_for_its_owner_alone),
        STORE_CASE(the_store_holds_room_for_a_full_disk_and_keeps_it),
        STORE_CASE(a_store_from_the_future_is_refused_with_advice),
        STORE_CASE(a_store_of_an_older_schema_is_brought_up_to_date),
        STORE_CASE(a_store_from_before_pauses_gets_their_columns),
        STORE_CASE(a_pause_and_a_resume_are_in_the_row),
        STORE_CASE(only_a_pause_keeps_the_environment),
        STORE_CASE(what_is_no_database_is_refused_and_left_alone),
        STORE_CASE(a_missing_directory_and_a_link_are_refused),
        STORE_CASE(tokens_differ_by_sandbox_and_survive_a_restart),
        STORE_CASE(there_is_one_default_team),
        STORE_CASE(a_team_is_removed_when_nothing_of_it_is_left),
        STORE_CASE(a_key_is_found_by_its_text_until_it_is_revoked),
        STORE_CASE(what_is_no_key_is_denied),
        STORE_CASE(a_key_kept_elsewhere_is_added_once),
        STORE_CASE(keys_are_renamed_listed_and_their_use_is_noted),
        STORE_CASE(a_template_keeps_its_layers_in_order_and_is_found_by_its_names),
        STORE_CASE(an_alias_moves_to_the_template_that_claims_it_last),
        STORE_CASE(templates_that_are_no_longer_there_go_from_their_own_node_only),
        STORE_CASE(a_teams_own_template_is_listed_for_that_team_only),
        STORE_CASE(a_sandbox_goes_from_starting_to_running_to_gone),
        STORE_CASE(the_later_decision_about_a_deadline_stays_whichever_is_written_last),
        STORE_CASE(a_repeat_is_first_then_running_then_done),
        STORE_CASE(a_repeat_that_was_running_when_we_died_is_lost),
        STORE_CASE(old_repeats_and_events_are_swept),
        STORE_CASE(what_was_written_is_there_after_kill_9),
        STORE_CASE(a_store_that_somebody_else_is_writing_to_says_so),
        STORE_CASE(several_threads_may_write_at_once),
        STORE_CASE(other_programs_may_read_the_store_while_it_is_written),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
