#include "base/encode.h"
#include "base/limits.h"
#include "built.h"

#define FROM_IMAGE "{\"fromImage\":\"debian:stable\"}"
#define NO_BUILD "00000000-0000-0000-0000-000000000000"

static const char *ref_path(struct built *b, const char *before, const char *ref, const char *after)
{
    struct buf path = buf_make(&b->served.rig.arena, 1024);

    buf_add(&path, str_from(before));
    percent_encode(&path, str_from(ref));
    buf_add(&path, str_from(after));
    return arena_text(&b->served.rig.arena, buf_str(&path));
}

static const json_t *row_of(struct served *s, const char *template_id)
{
    size_t i;
    json_t *row;

    json_array_foreach(s->last, i, row) if (strcmp(json_string_value(json_object_get(row, "templateID")),
                                                   template_id) == 0) return row;
    return NULL;
}

static const char *row_text(const json_t *row, const char *name)
{
    return json_string_value(json_object_get(row, name));
}

static struct http_answer create_from(struct built *b, const char *ref)
{
    return CALL(&b->served, "POST", "/v2/sandboxes", built_path(b, "{\"templateID\":\"%s\"}", ref));
}

static struct http_answer assign(struct built *b, const char *target, const char *tags)
{
    return CALL(&b->served, "POST", "/templates/tags", built_path(b, "{\"target\":\"%s\",\"tags\":%s}", target, tags));
}

/* ---- create ---- */

static void a_sandbox_is_made_from_a_build(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_make(b, "{\"name\":\"web\",\"cpuCount\":1,\"memoryMB\":512}");

    assert_int_equal(create_from(b, "web").status, 201);
    assert_string_equal(got_text(s, "templateID"), ids.template_id);
    assert_string_equal(got_text(s, "alias"), "web");
    assert_int_equal(s->rig.fake.last_plan.layer_count, 1);
    assert_memory_equal(s->rig.fake.last_plan.layers[0], "fedcba98", 8);
    const char *forms[] = { "WEB:default", "default/web", ids.template_id, built_path(b, "web:%s", ids.build_id) };
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        assert_int_equal(create_from(b, forms[i]).status, 201);
    struct http_answer answer = create_from(b, "web:v2");
    check_error(s, &answer, 404, "tag 'v2' does not exist for template 'web'");
    CALL(s, "GET", "/templates", NULL);
    const json_t *row = row_of(s, ids.template_id);
    assert_int_equal(json_integer_value(json_object_get(row, "spawnCount")), 5);
    assert_true(json_is_string(json_object_get(row, "lastSpawnedAt")));
    /* A name with tags only, and one that is not built yet. */
    built_make(b, "{\"name\":\"tagged:v1\"}");
    answer = create_from(b, "tagged");
    check_error(s, &answer, 404, "tag 'default' does not exist for template 'tagged'");
    assert_int_equal(create_from(b, "tagged:v1").status, 201);
    CALL(s, "GET", "/v2/sandboxes?template=tagged", NULL);
    /* While a new build is made, and when it has failed, the tag means the one before. */
    struct built_ids next = built_register(b, "{\"name\":\"web\"}");
    assert_int_equal(built_start(b, next, FROM_IMAGE).status, 202);
    assert_int_equal(create_from(b, "web").status, 201);
    built_fail(b, next, "no", "1");
    assert_int_equal(create_from(b, "web").status, 201);
}

/* ---- lists ---- */

static void a_list_has_the_operators_templates_and_the_teams_own(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids waiting = built_register(b, "{\"name\":\"fresh\",\"memoryMB\":256}"),
                     ready = built_make(b, "{\"name\":\"web\"}");
    static const char *const required[] = { "templateID", "buildID",    "cpuCount",    "memoryMB",
                                            "diskSizeMB", "public",     "aliases",     "names",
                                            "createdAt",  "updatedAt",  "createdBy",   "lastSpawnedAt",
                                            "spawnCount", "buildCount", "envdVersion", "buildStatus" };

    assert_int_equal(CALL(s, "GET", "/templates", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 3);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < COUNT_OF(required); k++)
            assert_non_null(json_object_get(json_array_get(s->last, i), required[k]));
    /* Oldest first. */
    assert_string_equal(row_text(json_array_get(s->last, 0), "templateID"), "tbase");
    const json_t *row = row_of(s, waiting.template_id);
    assert_string_equal(row_text(row, "buildID"), NO_BUILD);
    assert_string_equal(row_text(row, "buildStatus"), "waiting");
    assert_string_equal(row_text(row, "envdVersion"), "");
    assert_int_equal(json_integer_value(json_object_get(row, "memoryMB")), 256);
    assert_int_equal(json_integer_value(json_object_get(row, "diskSizeMB")), 0);
    assert_true(json_is_null(json_object_get(row, "lastSpawnedAt")));
    row = row_of(s, ready.template_id);
    assert_string_equal(row_text(row, "buildID"), ready.build_id);
    assert_string_equal(row_text(row, "buildStatus"), "ready");
    assert_string_equal(row_text(row, "envdVersion"), "0.6.13");
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "names"), 0)), "default/web");
    assert_int_equal(json_integer_value(json_object_get(row, "buildCount")), 1);
    CALL(s, "GET", "/default-templates", NULL);
    assert_int_equal(json_array_size(s->last), 1);
    assert_string_equal(row_text(json_array_get(s->last, 0), "templateID"), "tbase");
    built_as(b, built_stranger(b, "other"), "GET", "/templates", NULL);
    assert_int_equal(json_array_size(s->last), 1);
}

static void pages_are_newest_first_and_complete(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *token = "";
    char seen[1024] = "";
    int pages = 0;

    for (int i = 0; i < 5; i++)
        built_register(b, built_path(b, "{\"name\":\"n%d\"}", i));
    do {
        struct http_answer answer =
            CALL(s, "GET", built_path(b, "/v2/templates?limit=2%s%s", *token ? "&nextToken=" : "", token), NULL);
        assert_int_equal(answer.status, 200);
        assert_true(json_array_size(s->last) == 2);
        for (size_t i = 0; i < json_array_size(s->last); i++) {
            strcat(seen, json_string_value(json_array_get(json_object_get(json_array_get(s->last, i), "aliases"), 0)));
            strcat(seen, " ");
        }
        token = answer_header(s, &answer, "X-Next-Token");
        pages++;
    } while (token);
    assert_int_equal(pages, 3);
    assert_string_equal(seen, "n4 n3 n2 n1 n0 base ");
    static const char *const bad[] = { "limit=0", "limit=101", "limit=x", "nextToken=x", "nextToken=%zz" };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer = CALL(s, "GET", built_path(b, "/v2/templates?%s", bad[i]), NULL);
        check_error(s, &answer, 400, NULL);
    }
    struct http_answer answer = CALL(s, "GET", "/v2/templates?teamID=other", NULL);
    check_error(s, &answer, 400, "teamID");
}

static void a_template_is_described_with_its_builds(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids first = built_make(b, "{\"name\":\"web\"}"), second = built_register(b, "{\"name\":\"web:v2\"}");
    const char *stranger = built_stranger(b, "other");

    struct http_answer answer = CALL(s, "GET", built_path(b, "/templates/%s?limit=1", first.template_id), NULL);
    assert_int_equal(answer.status, 200);
    assert_string_equal(got_text(s, "templateID"), first.template_id);
    assert_int_equal(got_int(s, "spawnCount"), 0);
    const json_t *build = json_array_get(json_object_get(s->last, "builds"), 0);
    assert_string_equal(row_text(build, "buildID"), second.build_id);
    assert_string_equal(row_text(build, "status"), "waiting");
    assert_null(json_object_get(build, "finishedAt"));
    answer =
        CALL(s, "GET", built_path(b, "/templates/web?limit=1&nextToken=%s", answer_header(s, &answer, "X-Next-Token")),
             NULL);
    assert_null(answer_header(s, &answer, "X-Next-Token"));
    build = json_array_get(json_object_get(s->last, "builds"), 0);
    assert_string_equal(row_text(build, "buildID"), first.build_id);
    assert_string_equal(row_text(build, "status"), "ready");
    assert_non_null(json_object_get(build, "finishedAt"));
    assert_int_equal(json_integer_value(json_object_get(build, "diskSizeMB")), 5120);
    assert_int_equal(CALL(s, "GET", "/templates/tbase", NULL).status, 200);
    answer = CALL(s, "GET", "/templates/nope", NULL);
    check_error(s, &answer, 404, NULL);
    answer = built_as(b, stranger, "GET", built_path(b, "/templates/%s", first.template_id), NULL);
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "GET", "/templates/web", NULL);
    check_error(s, &answer, 404, NULL);
}

/* ---- names ---- */

static void exists_tells_what_a_name_means(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_make(b, "{\"name\":\"web\",\"tags\":[\"default\",\"v1\"]}");
    const char *stranger = built_stranger(b, "other");
    const char *there[] = { "web", "WEB", "default/web", "web:v1", "web:default", ids.template_id };
    static const struct {
        const char *ref;
        unsigned status;
    } missing[] = { { "nope", 404 }, { "web:v2", 404 }, { "other/web", 400 }, { "a b", 400 }, { "web:", 400 } };

    for (size_t i = 0; i < COUNT_OF(there); i++) {
        struct http_answer answer = CALL(s, "GET", ref_path(b, "/templates/aliases/", there[i], ""), NULL);
        assert_int_equal(answer.status, 200);
        assert_string_equal(got_text(s, "templateID"), ids.template_id);
        assert_true(json_is_false(json_object_get(s->last, "public")));
    }
    for (size_t i = 0; i < COUNT_OF(missing); i++) {
        struct http_answer answer = CALL(s, "GET", ref_path(b, "/templates/aliases/", missing[i].ref, ""), NULL);
        check_error(s, &answer, missing[i].status, NULL);
    }
    struct http_answer answer = built_as(b, stranger, "GET", "/templates/aliases/web", NULL);
    check_error(s, &answer, 404, NULL);
    answer = built_as(b, stranger, "GET", ref_path(b, "/templates/aliases/", ids.template_id, ""), NULL);
    check_error(s, &answer, 403, NULL);
    /* One that is registered exists; its tag does not yet. */
    built_register(b, "{\"name\":\"fresh\"}");
    assert_int_equal(CALL(s, "GET", "/templates/aliases/fresh", NULL).status, 200);
    answer = CALL(s, "GET", "/templates/aliases/fresh%3Adefault", NULL);
    check_error(s, &answer, 404, "does not exist for template");
}

static struct http_answer as_admin(struct served *s, const char *method, const char *target, const char *body)
{
    const struct http_field field = { STR("X-Admin-Token"), STR("admin-secret") };

    return served_call_bare(s, method, target, body, &field, 1);
}

static void a_public_template_is_for_others_and_its_owners(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_make(b, "{\"name\":\"web\"}");
    const char *stranger = built_stranger(b, "other");
    const char *patch = built_path(b, "/v2/templates/%s", ids.template_id);

    struct http_answer answer = built_as(b, stranger, "POST", "/v2/sandboxes", "{\"templateID\":\"default/web\"}");
    check_error(s, &answer, 404, NULL);
    answer = built_as(b, stranger, "POST", "/v2/sandboxes", built_path(b, "{\"templateID\":\"%s\"}", ids.template_id));
    check_error(s, &answer, 403, "another team");

    answer = CALL(s, "PATCH", patch, "{\"public\":true}");
    assert_int_equal(answer.status, 200);
    assert_string_equal(json_string_value(json_array_get(json_object_get(s->last, "names"), 0)), "default/web");
    assert_int_equal(built_as(b, stranger, "POST", "/v2/sandboxes", "{\"templateID\":\"default/web\"}").status, 201);
    assert_int_equal(
        built_as(b, stranger, "POST", "/v2/sandboxes", built_path(b, "{\"templateID\":\"%s\"}", ids.template_id))
            .status,
        201);
    answer = built_as(b, stranger, "POST", "/v2/sandboxes", "{\"templateID\":\"web\"}");
    check_error(s, &answer, 404, NULL);
    assert_int_equal(built_as(b, stranger, "GET", ref_path(b, "/templates/aliases/", ids.template_id, ""), NULL).status,
                     200);
    assert_true(json_is_true(json_object_get(s->last, "public")));
    assert_int_equal(CALL(s, "PATCH", "/v2/templates/web", "{}").status, 200); /* by name; no change */
    CALL(s, "GET", "/templates/aliases/web", NULL);
    assert_true(json_is_true(json_object_get(s->last, "public")));

    /* Only its owner changes it. */
    answer = built_as(b, stranger, "PATCH", patch, "{\"public\":false}");
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "DELETE", built_path(b, "/templates/%s", ids.template_id), NULL);
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "DELETE", "/templates/default%2Fweb", NULL);
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "GET", built_path(b, "/templates/%s/tags", ids.template_id), NULL);
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "POST", "/templates/tags",
                      built_path(b, "{\"target\":\"%s\",\"tags\":[\"x\"]}", ids.template_id));
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "POST", "/templates/tags", "{\"target\":\"default/web\",\"tags\":[\"x\"]}");
    check_error(s, &answer, 400, "namespace");

    /* The older call gives the name to all, if an administrator makes it. */
    const char *old_patch = built_path(b, "/templates/%s", ids.template_id);
    answer = CALL(s, "PATCH", old_patch, "{\"public\":true}");
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.len, 4);
    assert_memory_equal(answer.body.at, "null", 4);
    answer = built_as(b, stranger, "POST", "/v2/sandboxes", "{\"templateID\":\"web\"}");
    check_error(s, &answer, 404, NULL);
    answer = as_admin(s, "PATCH", old_patch, "{\"public\":true}");
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.len, 4);
    assert_int_equal(built_as(b, stranger, "POST", "/v2/sandboxes", "{\"templateID\":\"web\"}").status, 201);
    built_as(b, stranger, "POST", "/v3/templates", "{\"name\":\"web\"}");
    const char *theirs = built_path(b, "%s", got_text(s, "templateID"));
    answer = built_as(b, stranger, "PATCH", built_path(b, "/templates/%s", theirs), "{\"public\":true}");
    assert_int_equal(answer.status, 200); /* as other/web */
    const char *stranger_again = built_stranger(b, "third");
    built_as(b, stranger_again, "GET", "/templates/aliases/web", NULL);
    assert_string_equal(got_text(s, "templateID"), ids.template_id);
    /* Private again. */
    CALL(s, "PATCH", patch, "{\"public\":false}");
    answer = built_as(b, stranger, "POST", "/v2/sandboxes", "{\"templateID\":\"default/web\"}");
    check_error(s, &answer, 404, NULL);
    answer = built_as(b, stranger, "PATCH", built_path(b, "/templates/%s", theirs), "{\"public\":true}");
    assert_int_equal(answer.status, 200);

    built_make(b, "{\"name\":\"base\"}");
    answer = as_admin(s, "PATCH", "/templates/base", "{\"public\":true}");
    check_error(s, &answer, 409, "operator");
    answer = CALL(s, "PATCH", "/v2/templates/tbase", "{\"public\":true}");
    check_error(s, &answer, 403, "operator");
    answer = CALL(s, "PATCH", "/v2/templates/nope", "{\"public\":true}");
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "PATCH", patch, "{\"public\":\"yes\"}");
    check_error(s, &answer, 400, "public");
}

/* ---- delete ---- */

static void a_template_is_deleted_with_its_builds(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids ids = built_make(b, "{\"name\":\"web\"}"), running = built_register(b, "{\"name\":\"web:next\"}");

    assert_int_equal(built_start(b, running, FROM_IMAGE).status, 202);
    create_from(b, "web");
    const char *sandbox = built_path(b, "%s", got_text(s, "sandboxID"));
    struct http_answer answer = CALL(s, "DELETE", "/templates/web", NULL);
    check_error(s, &answer, 400, "1 running or paused sandbox was made from it");
    assert_int_equal(b->cancels, 0);
    CALL(s, "DELETE", built_path(b, "/sandboxes/%s", sandbox), NULL);
    answer = CALL(s, "DELETE", "/templates/default%2Fweb%3Aany", NULL); /* a tag is ignored */
    assert_int_equal(answer.status, 204);
    assert_int_equal(b->cancels, 1);
    assert_string_equal(b->cancelled, running.build_id);
    answer = CALL(s, "DELETE", "/templates/web", NULL);
    check_error(s, &answer, 404, NULL);
    answer = create_from(b, "web");
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "GET", built_path(b, "/templates/%s", ids.template_id), NULL);
    check_error(s, &answer, 404, NULL);
    /* The name is free, the id is not. */
    struct built_ids again = built_register(b, "{\"name\":\"web\"}");
    assert_string_not_equal(again.template_id, ids.template_id);
    /* One that was never built; its build may begin at this moment. */
    assert_int_equal(CALL(s, "DELETE", built_path(b, "/templates/%s", again.template_id), NULL).status, 204);
    assert_int_equal(b->cancels, 2);
    assert_string_equal(b->cancelled, again.build_id);
}

static void a_team_goes_with_its_templates(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const struct http_field admin = { STR("X-Admin-Token"), STR("admin-secret") };
    const char *stranger = built_stranger(b, "other");
    struct team_row team;

    MUST(store_team_by_slug(s->rig.disk.store, STR("other"), &s->rig.arena, &team, &err));
    built_as(b, stranger, "POST", "/v3/templates", "{\"name\":\"web\"}");
    const char *path = built_path(b, "/admin/teams/%.*s?force=true", STR_ARG(team.id));
    struct http_answer answer = served_call_bare(s, "DELETE", path, NULL, &admin, 1);
    assert_int_equal(answer.status, 200);
    assert_int_equal(got_int(s, "deletedTemplateCount"), 1);
}

/* ---- tags ---- */

static void tags_are_given_moved_and_removed(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    struct built_ids first = built_make(b, "{\"name\":\"web\"}"), second = built_make(b, "{\"name\":\"web:v2\"}");

    struct http_answer answer = assign(b, "web", "[\"prod\",\"Stable\",\"prod\"]");
    assert_int_equal(answer.status, 201);
    assert_string_equal(got_text(s, "buildID"), first.build_id);
    assert_int_equal(json_array_size(json_object_get(s->last, "tags")), 2);
    answer = assign(b, "default/web:v2", "[\"prod\"]");
    assert_string_equal(got_text(s, "buildID"), second.build_id);
    answer = assign(b, built_path(b, "web:%s", second.build_id), "[\"default\"]");
    assert_int_equal(answer.status, 201);

    assert_int_equal(CALL(s, "GET", "/templates/web/tags", NULL).status, 200);
    static const char *const names[] = { "default", "prod", "stable", "v2" };
    assert_int_equal(json_array_size(s->last), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(s->last, i);
        assert_string_equal(row_text(row, "tag"), names[i]);
        assert_string_equal(row_text(row, "buildID"), i == 2 ? first.build_id : second.build_id);
        assert_true(json_is_string(json_object_get(row, "createdAt")));
    }
    CALL(s, "GET", built_path(b, "/templates/%s/tags/count", first.template_id), NULL);
    assert_int_equal(got_int(s, "total"), 4);
    CALL(s, "GET", "/templates/web/tags/exists?tag=%20PROD", NULL);
    assert_true(json_is_true(json_object_get(s->last, "exists")));
    assert_string_equal(got_text(s, "normalizedTag"), "prod");
    CALL(s, "GET", "/templates/web/tags/exists?tag=never", NULL);
    assert_true(json_is_false(json_object_get(s->last, "exists")));

    CALL(s, "GET", "/templates/web/tags/prod/assignments?limit=1", NULL);
    const json_t *item = json_array_get(json_object_get(s->last, "data"), 0);
    assert_string_equal(row_text(item, "buildId"), second.build_id);
    assert_int_equal(strlen(row_text(item, "assignmentId")), 36);
    const char *cursor = built_path(b, "%s", got_text(s, "nextCursor"));
    CALL(s, "GET", built_path(b, "/templates/web/tags/prod/assignments?cursor=%s", cursor), NULL);
    item = json_array_get(json_object_get(s->last, "data"), 0);
    assert_string_equal(row_text(item, "buildId"), first.build_id);
    assert_true(json_is_null(json_object_get(s->last, "nextCursor")));

    CALL(s, "GET", "/templates/web/tags/groups?sort=name_asc&tagsLimit=2&assignmentLimit=1", NULL);
    const json_t *groups = json_object_get(s->last, "tags");
    assert_int_equal(json_array_size(groups), 2);
    assert_string_equal(row_text(json_array_get(groups, 1), "tag"), "prod");
    assert_true(json_is_true(json_object_get(json_array_get(groups, 1), "hasMore")));
    cursor = built_path(b, "%s", got_text(s, "nextCursor"));
    CALL(s, "GET", built_path(b, "/templates/web/tags/groups?sort=name_asc&tagsCursor=%s", cursor), NULL);
    groups = json_object_get(s->last, "tags");
    assert_int_equal(json_array_size(groups), 2);
    assert_string_equal(row_text(json_array_get(groups, 1), "tag"), "v2");
    CALL(s, "GET", "/templates/web/tags/groups?search=TAB", NULL);
    assert_int_equal(json_array_size(json_object_get(s->last, "tags")), 1);
    CALL(s, "GET", "/templates/web/tags/groups", NULL); /* the newest assignment first */
    assert_string_equal(row_text(json_array_get(json_object_get(s->last, "tags"), 0), "tag"), "default");

    answer = CALL(s, "DELETE", "/templates/tags", "{\"name\":\"web\",\"tags\":[\"prod\",\"never\"]}");
    assert_int_equal(answer.status, 204);
    answer = create_from(b, "web:prod");
    check_error(s, &answer, 404, "tag 'prod' does not exist");
    assert_int_equal(create_from(b, "web:stable").status, 201);
}

static void bad_tags_are_refused(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *stranger = built_stranger(b, "other");
    struct built_ids ids = built_make(b, "{\"name\":\"web\"}");
    static const struct {
        const char *target, *tags;
        unsigned status;
    } bad[] = {
        { "web", "[]", 400 },
        { "web", "[\":invalid-tag\"]", 400 },
        { "web", "[\"web:\"]", 400 },
        { "web", "[\"a b\"]", 400 },
        { "web", "[\"00000000-0000-4000-8000-000000000000\"]", 400 },
        { "web", "[1]", 400 },
        { "web", "null", 400 },
        { "web:", "[\"x\"]", 400 },
        { ":x", "[\"x\"]", 400 },
        { "", "[\"x\"]", 400 },
        { "other/web", "[\"x\"]", 400 },
        { "nope", "[\"x\"]", 404 },
        { "web:v9", "[\"x\"]", 404 },
        { "web:00000000-0000-4000-8000-000000000000", "[\"x\"]", 404 },
        { "base", "[\"x\"]", 403 },
    };
    static const struct {
        const char *body;
        unsigned status;
    } bad_removals[] = {
        { "{\"name\":\"web\",\"tags\":[]}", 400 },
        { "{\"name\":\"web\"}", 400 },
        { "{\"tags\":[\"x\"]}", 400 },
        { "{\"name\":\"web\",\"tags\":[\"default\"]}", 400 },
        { "{\"name\":\"web:v1\",\"tags\":[\"x\"]}", 400 },
        { "{\"name\":\"other/web\",\"tags\":[\"x\"]}", 400 },
        { "{\"name\":\"nope\",\"tags\":[\"x\"]}", 404 },
        { "{\"name\":\"base\",\"tags\":[\"x\"]}", 403 },
    };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct http_answer answer = assign(b, bad[i].target, bad[i].tags);
        check_error(s, &answer, bad[i].status, NULL);
    }
    for (size_t i = 0; i < COUNT_OF(bad_removals); i++) {
        struct http_answer answer = CALL(s, "DELETE", "/templates/tags", bad_removals[i].body);
        check_error(s, &answer, bad_removals[i].status, NULL);
    }
    struct http_answer answer = built_as(b, stranger, "POST", "/templates/tags",
                                         built_path(b, "{\"target\":\"%s\",\"tags\":[\"x\"]}", ids.template_id));
    check_error(s, &answer, 403, NULL);
    answer = built_as(b, stranger, "GET", "/templates/web/tags", NULL);
    check_error(s, &answer, 404, NULL);
    answer = CALL(s, "GET", "/templates/web/tags/exists", NULL);
    check_error(s, &answer, 400, "tag");
    answer = CALL(s, "GET", "/templates/web/tags/groups?sort=up", NULL);
    check_error(s, &answer, 400, "sort");
    answer = CALL(s, "GET", "/templates/web/tags/groups?tagsLimit=0", NULL);
    check_error(s, &answer, 400, "tagsLimit");
    answer = CALL(s, "GET", "/templates/web/tags/x/assignments?cursor=x", NULL);
    check_error(s, &answer, 400, "cursor");
    answer = CALL(s, "GET", "/templates/nope/tags/count", NULL);
    check_error(s, &answer, 404, NULL);
    /* Only a ready build can have tags. */
    struct built_ids waiting = built_register(b, "{\"name\":\"fresh\"}");
    answer = assign(b, built_path(b, "fresh:%s", waiting.build_id), "[\"x\"]");
    check_error(s, &answer, 404, NULL);
}

static void snapshots_are_templates_with_tags_of_their_own(void **state)
{
    struct built *b = *state;
    struct served *s = &b->served;
    const char *sandbox = served_create(s, "{\"templateID\":\"base\"}");

    CALL(s, "POST", served_path(s, "/sandboxes/", sandbox, "/snapshots"), "{\"name\":\"snap:v2\"}");
    assert_int_equal(CALL(s, "GET", "/templates/snap/tags", NULL).status, 200);
    assert_int_equal(json_array_size(s->last), 1);
    assert_string_equal(row_text(json_array_get(s->last, 0), "tag"), "v2");
    assert_int_equal(strlen(row_text(json_array_get(s->last, 0), "buildID")), 36);
    assert_int_equal(CALL(s, "GET", "/templates/aliases/snap", NULL).status, 200);
    assert_int_equal(CALL(s, "GET", "/templates/aliases/snap%3Av2", NULL).status, 200);
    struct http_answer answer = CALL(s, "GET", "/templates/aliases/snap%3Av3", NULL);
    check_error(s, &answer, 404, NULL);
    answer = assign(b, "snap:v2", "[\"x\"]");
    check_error(s, &answer, 400, "is a snapshot");
    CALL(s, "GET", "/templates", NULL);
    assert_int_equal(json_array_size(s->last), 1);
}

#define BUILT(name) cmocka_unit_test_setup_teardown(name, built_set_up, built_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BUILT(a_sandbox_is_made_from_a_build),
        BUILT(a_list_has_the_operators_templates_and_the_teams_own),
        BUILT(pages_are_newest_first_and_complete),
        BUILT(a_template_is_described_with_its_builds),
        BUILT(exists_tells_what_a_name_means),
        BUILT(a_public_template_is_for_others_and_its_owners),
        BUILT(a_template_is_deleted_with_its_builds),
        BUILT(a_team_goes_with_its_templates),
        BUILT(tags_are_given_moved_and_removed),
        BUILT(bad_tags_are_refused),
        BUILT(snapshots_are_templates_with_tags_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
