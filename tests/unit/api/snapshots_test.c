#include "base/clock.h"
#include "base/encode.h"
#include "served.h"

#define BASE "{\"templateID\":\"base\"}"

static const char *take(struct served *s, const char *id, const char *body)
{
    struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", id, "/snapshots"), body);

    if (answer.status != 201)
        fail_msg("%u: %.*s", answer.status, STR_ARG(answer.body));
    return arena_text(&s->rig.arena, str_from(got_text(s, "snapshotID")));
}

static struct http_answer remove_ref(struct served *s, const char *ref)
{
    struct buf path = buf_make(&s->rig.arena, 1024);

    buf_add(&path, STR("/templates/"));
    percent_encode(&path, str_from(ref));
    return CALL(s, "DELETE", arena_text(&s->rig.arena, buf_str(&path)), NULL);
}

static const char *create_from(struct served *s, const char *ref)
{
    return served_create(s, arena_format(&s->rig.arena, "{\"templateID\":\"%s\"}", ref).at);
}

static size_t listed(struct served *s, const char *query)
{
    struct http_answer answer = CALL(s, "GET", served_path(s, "/snapshots", query, ""), NULL);

    if (answer.status != 200)
        fail_msg("%u: %.*s", answer.status, STR_ARG(answer.body));
    return json_array_size(s->last);
}

static const char *listed_id(struct served *s, size_t at)
{
    return json_string_value(json_object_get(json_array_get(s->last, at), "snapshotID"));
}

static void fail_drops(struct served *s, bool fail)
{
    pthread_mutex_lock(&s->rig.fake.lock);
    for (int memory = 0; memory < 2; memory++)
        s->rig.fake.pause_errs[PAUSE_DROP][memory] =
            fail ? (struct err){ .kind = ERR_UNAVAILABLE, .message = "keeper is away" } : (struct err){ 0 };
    pthread_mutex_unlock(&s->rig.fake.lock);
}

static void an_unnamed_one_has_the_id_of_its_template(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE), *id = take(s, source, "{}");

    assert_int_equal(json_array_size(json_object_get(s->last, "names")), 0);
    assert_int_equal(strlen(id), 20 + strlen(":default"));
    assert_string_equal(id + 20, ":default");
    assert_int_equal(listed(s, ""), 1);
    assert_string_equal(listed_id(s, 0), id);
    /* A sandbox made from it: its layers, its image, its size; and its template is the snapshot. */
    const char *made = create_from(s, id);
    assert_int_equal(s->rig.fake.last_plan.layer_count, 2);
    assert_int_equal(s->rig.fake.last_plan.from, PLAN_IMAGE);
    assert_string_equal(s->rig.fake.last_plan.image, s->rig.fake.last_plan.layers[1]);
    CALL(s, "GET", served_path(s, "/sandboxes/", made, ""), NULL);
    assert_memory_equal(got_text(s, "templateID"), id, 20);
    assert_int_equal(got_int(s, "memoryMB"), 1024);
    /* Without the tag, and in capitals. */
    char *bare = arena_text(&s->rig.arena, str_of(id, 20));
    create_from(s, bare);
    for (char *c = bare; *c; c++)
        *c = *c >= 'a' && *c <= 'z' ? (char)(*c - 32) : *c;
    create_from(s, bare);
    CALL(s, "GET", served_path(s, "/templates/aliases/", bare, ""), NULL);
    assert_memory_equal(got_text(s, "templateID"), id, 20);
    /* It has the tag that it was made with, and gets no other. */
    struct http_answer answer =
        CALL(s, "POST", "/templates/tags", served_path(s, "{\"target\":\"", id, "\",\"tags\":[\"stable\"]}"));
    check_error(s, &answer, 400, "is a snapshot: it cannot be published");
}

static void a_row_says_where_it_is_from_and_what_it_takes(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    take(s, source, "{\"memory\":false}");
    assert_string_equal(got_text(s, "sandboxID"), source);
    assert_int_equal(got_int(s, "diskBytes"), 1000);
    assert_int_equal(got_int(s, "memoryBytes"), 0);
    take(s, source, "{}");
    assert_int_equal(listed(s, ""), 2);
    const json_t *newest = json_array_get(s->last, 0);
    assert_string_equal(json_string_value(json_object_get(newest, "sandboxID")), source);
    assert_int_equal(json_integer_value(json_object_get(newest, "diskBytes")), 1000);
    assert_int_equal(json_integer_value(json_object_get(newest, "memoryBytes")), 2000);
    int64_t made_us;
    assert_true(clock_parse(json_str(json_object_get(newest, "createdAt")), &made_us));
    assert_true(made_us <= clock_wall_us() && made_us > clock_wall_us() - 60 * INT64_C(1000000));
}

static void what_its_memory_takes_is_measured_again_when_it_is_compressed(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    take(s, source, "{\"name\":\"full\"}");
    take(s, source, "{\"name\":\"files\",\"memory\":false}");
    assert_int_equal(listed(s, "?name=full"), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(s->last, 0), "memoryRawBytes")), 2000);
    sandboxes_measure_snapshots(s->rig.all);
    sandboxes_measure_snapshots(s->rig.all);
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_MEASURE], 1);
    assert_int_equal(listed(s, "?name=full"), 1);
    const json_t *row = json_array_get(s->last, 0);
    assert_int_equal(json_integer_value(json_object_get(row, "diskBytes")), 1000);
    assert_int_equal(json_integer_value(json_object_get(row, "memoryBytes")), 1000);
    assert_int_equal(json_integer_value(json_object_get(row, "memoryRawBytes")), 2000);
    /* What counts against the limit is what it takes now. */
    assert_int_equal(temp_store_ask(&s->rig.disk, "SELECT SUM(layer_bytes + image_bytes) FROM snapshots"), 3000);
    /* The same of a paused sandbox. */
    struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/pause"), "{\"memory\":false}");
    assert_int_equal(answer.status, 204);
    sandboxes_measure_paused(s->rig.all);
    CALL(s, "GET", served_path(s, "/sandboxes/", source, ""), NULL);
    assert_int_equal(got_int(s, "diskBytes"), 3000);
    assert_int_equal(got_int(s, "memoryRawBytes"), 2000);
}

static void one_of_files_only_starts_anew(void **state)
{
    struct served *s = *state;

    create_from(s, take(s, served_create(s, BASE), "{\"memory\":false}"));
    assert_int_equal(s->rig.fake.last_plan.layer_count, 2);
    assert_int_equal(s->rig.fake.last_plan.from, PLAN_NEW);
    assert_string_equal(s->rig.fake.last_plan.image, "");
}

static void names_have_a_namespace_and_tags(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE), *first = take(s, source, "{\"name\":\"Snap\"}");

    assert_string_equal(first, "default/snap:default");
    assert_int_equal(json_array_size(json_object_get(s->last, "names")), 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(s->last, "names"), 0)), "default/snap");
    assert_string_equal(take(s, source, "{\"name\":\"default/snap:v2\"}"), "default/snap:v2");
    create_from(s, "snap");
    CHECK_STR(str_from(got_text(s, "alias")), STR("snap"));
    create_from(s, "snap:default");
    create_from(s, "default/snap");
    create_from(s, "default/snap:v2");
    struct http_answer answer = CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"snap:v3\"}");
    check_error(s, &answer, 404, "snap:v3");
    answer = CALL(s, "POST", "/v2/sandboxes", "{\"templateID\":\"other/snap\"}");
    check_error(s, &answer, 404, NULL);
    assert_int_equal(listed(s, "?name=snap"), 2);
    assert_int_equal(listed(s, "?name=default%2Fsnap"), 2);
    assert_int_equal(listed(s, "?name=snap%3Adefault"), 1);
    assert_string_equal(listed_id(s, 0), first);
    assert_int_equal(listed(s, "?name=default%2Fsnap%3Av2"), 1);
    assert_int_equal(listed(s, "?name=other%2Fsnap"), 0);
    assert_int_equal(listed(s, "?name=none"), 0);
}

static void bad_names_are_refused_and_nothing_is_taken(void **state)
{
    static const char *const bodies[] = {
        "{\"name\":5}",
        "{\"name\":\"a b\"}",
        "{\"name\":\"a/b/c\"}",
        "{\"name\":\"/a\"}",
        "{\"name\":\"a:\"}",
        "{\"name\":\"other/a\"}",
        "{\"name\":\"a:123e4567-e89b-12d3-a456-426614174000\"}",
    };
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"), bodies[i]);
        check_error(s, &answer, 400, "'name'");
    }
    char long_name[LIMIT_NAME_BYTES + 1] = { 0 };
    memset(long_name, 'a', LIMIT_NAME_BYTES);
    struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"),
                                     arena_format(&s->rig.arena, "{\"name\":\"%s\"}", long_name).at);
    check_error(s, &answer, 400, "at most 127 characters");
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"), "{\"memory\":1}");
    check_error(s, &answer, 400, "'memory'");
    answer = CALL(s, "GET", "/snapshots?name=a%20b", NULL);
    check_error(s, &answer, 400, "'name'");
    answer = CALL(s, "GET", "/snapshots?sandboxID=A_B", NULL);
    check_error(s, &answer, 400, "Invalid sandbox ID");
    answer = CALL(s, "GET", "/snapshots?limit=0", NULL);
    check_error(s, &answer, 400, "'limit'");
    answer = CALL(s, "GET", "/snapshots?nextToken=%21", NULL);
    check_error(s, &answer, 400, "invalid next token");
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_SNAPSHOT], 0);
    assert_int_equal(listed(s, ""), 0);
}

static void a_name_of_a_template_for_all_stays_the_template(void **state)
{
    /* Built here, by its id, and what SDKs start by default and is not built yet. */
    static const char *const names[] = { "base", "Base", "default/base:v2", "tbase", "code-interpreter-v1" };
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"),
                                         arena_format(&s->rig.arena, "{\"name\":\"%s\"}", names[i]).at);
        check_error(s, &answer, 400, "is the name of a template; choose another name");
    }
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_SNAPSHOT], 0);
    take(s, source, "{\"name\":\"base2\"}");
}

static void lists_come_in_pages_newest_first(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE), *other = served_create(s, BASE);
    const char *ids[3], *token = NULL;

    for (size_t i = 0; i < COUNT_OF(ids); i++)
        ids[i] = take(s, i == 1 ? other : source, "{}");
    for (size_t page = 0; page < COUNT_OF(ids); page++) {
        struct str target =
            arena_format(&s->rig.arena, "/snapshots?limit=1%s%s", token ? "&nextToken=" : "", token ? token : "");
        struct http_answer answer = CALL(s, "GET", target.at, NULL);
        assert_int_equal(json_array_size(s->last), 1);
        assert_string_equal(listed_id(s, 0), ids[COUNT_OF(ids) - 1 - page]);
        token = answer_header(s, &answer, "X-Next-Token");
        assert_int_equal(token == NULL, page + 1 == COUNT_OF(ids));
    }
    assert_int_equal(listed(s, served_path(s, "?sandboxID=", other, "")), 1);
    assert_string_equal(listed_id(s, 0), ids[1]);
}

static void one_is_deleted_once_by_any_of_its_references(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE);
    const char *unnamed = take(s, source, "{}");
    const char *bare = arena_text(&s->rig.arena, str_of(take(s, source, "{}"), 20));

    take(s, source, "{\"name\":\"one\"}");
    take(s, source, "{\"name\":\"one:v2\"}");
    take(s, source, "{\"name\":\"two\"}");
    const char *refs[] = { unnamed, bare, "default/one:default", "two:whatever" };
    for (size_t i = 0; i < COUNT_OF(refs); i++) {
        struct http_answer answer = remove_ref(s, refs[i]);
        assert_int_equal(answer.status, 204);
        answer = remove_ref(s, refs[i]);
        check_error(s, &answer, 404, NULL);
    }
    assert_int_equal(listed(s, ""), 0);
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_DROP], 5);
    assert_int_equal(temp_store_ask(&s->rig.disk, "SELECT COUNT(*) FROM snapshots"), 0);
}

static void one_that_is_used_is_not_deleted(void **state)
{
    struct served *s = *state;
    const char *id = take(s, served_create(s, BASE), "{}"), *made = create_from(s, id);

    struct http_answer answer = remove_ref(s, id);
    check_error(s, &answer, 400, "1 running or paused sandbox was made from it");
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", made, "/pause"), NULL);
    assert_int_equal(answer.status, 204);
    answer = remove_ref(s, id);
    check_error(s, &answer, 400, "kill it first");
    answer = CALL(s, "DELETE", served_path(s, "/sandboxes/", made, ""), NULL);
    assert_int_equal(answer.status, 204);
    answer = remove_ref(s, id);
    assert_int_equal(answer.status, 204);
    answer = CALL(s, "POST", "/v2/sandboxes", arena_format(&s->rig.arena, "{\"templateID\":\"%s\"}", id).at);
    check_error(s, &answer, 404, NULL);
}

enum { DAY_S = 24 * 3600 };

/* As if nobody had used it, or the sandbox had been paused, for so many days. */
static void age(struct served *s, const char *name, int days)
{
    assert_int_equal(temp_store_ask(&s->rig.disk, arena_format(&s->rig.arena,
                                                               "UPDATE snapshots SET used_us = used_us - %d * 1000000 "
                                                               "WHERE name = '%s' RETURNING 1",
                                                               days * DAY_S, name)
                                                      .at),
                     1);
}

static void sweep(struct served *s, uint32_t snapshot_days, uint32_t paused_days)
{
    s->actions.retention.snapshot_days = snapshot_days;
    s->actions.retention.paused_days = paused_days;
    action_sweep_kept(&s->actions);
}

static size_t events_of(struct served *s, const char *id, const char *type)
{
    struct http_answer answer =
        CALL(s, "GET", arena_format(&s->rig.arena, "/events/sandboxes/%s?types=sandbox.%s", id, type).at, NULL);

    assert_int_equal(answer.status, 200);
    return json_array_size(s->last);
}

static void one_that_nobody_has_used_for_long_goes_if_the_operator_says_so(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    take(s, source, "{\"name\":\"old\"}");
    take(s, source, "{\"name\":\"young\"}");
    take(s, source, "{\"name\":\"busy\"}");
    take(s, source, "{\"name\":\"again\"}");
    take(s, source, "{\"name\":\"unknown\"}");
    const char *made = create_from(s, "busy");
    age(s, "old", 8);
    age(s, "young", 6);
    age(s, "busy", 8);
    age(s, "again", 8);
    assert_int_equal(
        temp_store_ask(&s->rig.disk, "UPDATE snapshots SET used_us = 0 WHERE name = 'unknown' RETURNING 1"), 1);
    /* A create from it counts. */
    struct http_answer answer = CALL(s, "DELETE", served_path(s, "/sandboxes/", create_from(s, "again"), ""), NULL);
    assert_int_equal(answer.status, 204);
    sweep(s, 0, 0);
    assert_int_equal(listed(s, ""), 5);
    sweep(s, 7, 0);
    assert_int_equal(listed(s, ""), 4);
    assert_int_equal(listed(s, "?name=old"), 0);
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_DROP], 1);
    assert_int_equal(events_of(s, source, "snapshot.deleted"), 1);
    const json_t *data = json_object_get(json_array_get(s->last, 0), "eventData");
    assert_string_equal(json_string_value(json_object_get(data, "snapshot_id")), "old:default");
    assert_string_equal(json_string_value(json_object_get(data, "delete_reason")), "retention");
    /* As long as a sandbox lives that was made from it, it is used: the days count from that one's end. */
    answer = CALL(s, "DELETE", served_path(s, "/sandboxes/", made, ""), NULL);
    assert_int_equal(answer.status, 204);
    sweep(s, 7, 0);
    assert_int_equal(listed(s, ""), 4);
    age(s, "busy", 8);
    sweep(s, 7, 0);
    assert_int_equal(listed(s, "?name=busy"), 0);
    assert_int_equal(listed(s, ""), 3);
    age(s, "unknown", 8);
    sweep(s, 7, 0);
    assert_int_equal(listed(s, ""), 2);
    assert_int_equal(events_of(s, source, "snapshot.deleted"), 3);
    /* Tags are builds of their own. */
    take(s, source, "{\"name\":\"young:v2\"}");
    assert_int_equal(temp_store_ask(&s->rig.disk, "UPDATE snapshots SET used_us = 1 WHERE tag = 'v2' RETURNING 1"), 1);
    sweep(s, 7, 0);
    assert_int_equal(listed(s, "?name=young"), 1);
    assert_string_equal(listed_id(s, 0), "default/young:default");
}

static void what_is_no_snapshot_of_the_team_stays(void **state)
{
    struct served *s = *state;

    struct http_answer answer = remove_ref(s, "base");
    check_error(s, &answer, 403, "the operator has built");
    answer = remove_ref(s, "tbase");
    check_error(s, &answer, 403, "not possible over the API yet");
    answer = remove_ref(s, "other/x:default");
    check_error(s, &answer, 403, "namespace");
    answer = remove_ref(s, "none");
    check_error(s, &answer, 404, "no snapshot 'none'");
    answer = remove_ref(s, "a b");
    check_error(s, &answer, 400, NULL);
    served_create(s, BASE);
}

static void a_new_build_of_a_tag_takes_the_place_of_the_old(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE), *id = take(s, source, "{\"name\":\"snap\"}");

    assert_string_equal(take(s, source, "{\"name\":\"snap\"}"), id);
    assert_int_equal(listed(s, ""), 1);
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_DROP], 1);
    create_from(s, id);
    assert_string_equal(s->rig.fake.last_plan.image + 62, "02");
}

static void what_the_driver_could_not_drop_is_dropped_later(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE), *id = take(s, source, "{}");

    fail_drops(s, true);
    struct http_answer answer = remove_ref(s, id);
    assert_int_equal(answer.status, 204);
    assert_int_equal(listed(s, ""), 0);
    assert_int_equal(temp_store_ask(&s->rig.disk, "SELECT COUNT(*) FROM snapshots"), 1);
    fail_drops(s, false);
    take(s, source, "{}");
    assert_int_equal(temp_store_ask(&s->rig.disk, "SELECT COUNT(*) FROM snapshots"), 1);
    assert_int_equal(listed(s, ""), 1);
}

static void there_are_limits_and_they_say_what_to_do(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    s->actions.snapshots.of_team = 2;
    take(s, source, "{}");
    const char *id = take(s, source, "{}");
    struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"), "{}");
    check_error(s, &answer, 429, "delete some");
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_SNAPSHOT], 2); /* none was taken in vain */
    answer = remove_ref(s, id);
    assert_int_equal(answer.status, 204);
    s->actions.snapshots.bytes = 10000; /* one has 3000, and a team half of it */
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"), "{}");
    check_error(s, &answer, 429, "MB");
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_DROP], 2); /* what could not be recorded does not stay */
    assert_int_equal(listed(s, ""), 1);
    s->actions.snapshots.bytes = 6000;
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/fork"), "{}");
    check_error(s, &answer, 429, "MB");
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_SNAPSHOT], 3);
    s->actions.snapshots.bytes = 12000;
    take(s, source, "{}");
}

static void a_snapshot_that_the_machine_cannot_take_says_why(void **state)
{
    struct served *s = *state;
    const char *source = served_create(s, BASE);

    pthread_mutex_lock(&s->rig.fake.lock);
    s->rig.fake.pause_errs[PAUSE_SNAPSHOT][true] = s->rig.fake.pause_errs[PAUSE_COPY][false] =
        (struct err){ .kind = ERR_INVALID, .message = "a process is being debugged" };
    pthread_mutex_unlock(&s->rig.fake.lock);
    struct http_answer answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"), "{}");
    check_error(s, &answer, 400, "a process is being debugged");
    pthread_mutex_lock(&s->rig.fake.lock);
    s->rig.fake.pause_errs[PAUSE_SNAPSHOT][true] = s->rig.fake.pause_errs[PAUSE_COPY][false] =
        (struct err){ .kind = ERR_UNAVAILABLE, .message = "this machine has no CRIU" };
    pthread_mutex_unlock(&s->rig.fake.lock);
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/snapshots"), "{}");
    check_error(s, &answer, 503, "no CRIU");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    answer = CALL(s, "POST", served_path(s, "/sandboxes/", source, "/fork"), "{}");
    check_error(s, &answer, 503, "no CRIU");
    assert_string_equal(answer_header(s, &answer, "Should-Retry"), "false");
    take(s, source, "{\"memory\":false}");
}

static void a_team_is_deleted_with_its_snapshots(void **state)
{
    struct served *s = *state;
    const struct http_field admin = { STR("X-Admin-Token"), STR("admin-secret") };

    struct http_answer answer = served_call_bare(s, "POST", "/admin/teams", "{\"name\":\"crew\"}", &admin, 1);
    assert_int_equal(answer.status, 201);
    char *team = arena_text(&s->rig.arena, str_from(got_text(s, "teamID")));
    const struct http_field as_admin[] = { admin, { STR("X-Team-ID"), str_from(team) } };
    answer = served_call_bare(s, "POST", "/v2/sandboxes", BASE, as_admin, 2);
    assert_int_equal(answer.status, 201);
    const char *id = arena_text(&s->rig.arena, str_from(got_text(s, "sandboxID")));
    answer = served_call_bare(s, "POST", served_path(s, "/sandboxes/", id, "/snapshots"), "{}", as_admin, 2);
    assert_int_equal(answer.status, 201);
    char *snapshot = arena_text(&s->rig.arena, str_from(got_text(s, "snapshotID")));
    /* Nobody else's. */
    assert_int_equal(listed(s, ""), 0);
    answer = remove_ref(s, snapshot);
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "POST", "/v2/sandboxes", arena_format(&s->rig.arena, "{\"templateID\":\"%s\"}", snapshot).at);
    check_error(s, &answer, 404, NULL);
    answer = served_call_bare(s, "DELETE", served_path(s, "/sandboxes/", id, ""), NULL, as_admin, 2);
    assert_int_equal(answer.status, 204);
    answer = served_call_bare(s, "DELETE", served_path(s, "/admin/teams/", team, ""), NULL, &admin, 1);
    check_error(s, &answer, 409, "snapshot(s): delete them first");
    answer = served_call_bare(s, "DELETE", served_path(s, "/admin/teams/", team, "?force=true"), NULL, &admin, 1);
    assert_int_equal(answer.status, 200);
    assert_int_equal(got_int(s, "deletedSnapshotCount"), 1);
    assert_int_equal(s->rig.fake.pause_calls[PAUSE_DROP], 1);
}

#define SERVED(name) cmocka_unit_test_setup_teardown(name, served_set_up, served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(an_unnamed_one_has_the_id_of_its_template),
        SERVED(a_row_says_where_it_is_from_and_what_it_takes),
        SERVED(what_its_memory_takes_is_measured_again_when_it_is_compressed),
        SERVED(one_of_files_only_starts_anew),
        SERVED(names_have_a_namespace_and_tags),
        SERVED(bad_names_are_refused_and_nothing_is_taken),
        SERVED(a_name_of_a_template_for_all_stays_the_template),
        SERVED(lists_come_in_pages_newest_first),
        SERVED(one_is_deleted_once_by_any_of_its_references),
        SERVED(one_that_is_used_is_not_deleted),
        SERVED(one_that_nobody_has_used_for_long_goes_if_the_operator_says_so),
        SERVED(what_is_no_snapshot_of_the_team_stays),
        SERVED(a_new_build_of_a_tag_takes_the_place_of_the_old),
        SERVED(what_the_driver_could_not_drop_is_dropped_later),
        SERVED(there_are_limits_and_they_say_what_to_do),
        SERVED(a_snapshot_that_the_machine_cannot_take_says_why),
        SERVED(a_team_is_deleted_with_its_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
