#include "built.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

static struct str kept(struct built *b, struct str text)
{
    return arena_copy(&b->served.rig.arena, text);
}

static bool fake_start(struct builder *builder, const struct build_want *want, struct err *err)
{
    struct built *b = (struct built *)builder;
    struct arena *arena = &b->served.rig.arena;

    if (b->refuse.kind != ERR_NONE) {
        *err = b->refuse;
        return false;
    }
    if (!store_build_begin(b->served.rig.disk.store, want->build_id, err))
        return false;
    b->starts++;
    b->want = *want;
    b->want.build_id = kept(b, want->build_id);
    b->want.from_image = kept(b, want->from_image);
    b->want.from_build = kept(b, want->from_build);
    b->want.from_text = kept(b, want->from_text);
    b->want.from_snapshot = kept(b, want->from_snapshot);
    b->want.from_tag = kept(b, want->from_tag);
    b->want.from_archive = kept(b, want->from_archive);
    b->want.archive_image = kept(b, want->archive_image);
    b->want.start_cmd = kept(b, want->start_cmd);
    b->want.ready_cmd = kept(b, want->ready_cmd);
    b->want.login.user = kept(b, want->login.user);
    b->want.login.password = kept(b, want->login.password);
    b->want.login.region = kept(b, want->login.region);
    b->want.login.account = kept(b, want->login.account);
    struct build_step *steps = ARENA_ARRAY(arena, struct build_step, want->step_count);
    for (uint32_t i = 0; i < want->step_count; i++) {
        struct str *args = ARENA_ARRAY(arena, struct str, want->steps[i].arg_count);
        steps[i] = want->steps[i];
        steps[i].type_text = kept(b, steps[i].type_text);
        steps[i].files_hash = kept(b, steps[i].files_hash);
        for (uint32_t k = 0; k < steps[i].arg_count; k++)
            args[k] = kept(b, want->steps[i].args[k]);
        steps[i].args = args;
    }
    b->want.steps = steps;
    return true;
}

static void fake_cancel(struct builder *builder, struct str build_id, const char *why)
{
    struct built *b = (struct built *)builder;

    b->cancels++;
    snprintf(b->cancelled, sizeof b->cancelled, "%.*s", STR_ARG(build_id));
    snprintf(b->why, sizeof b->why, "%s", why);
}

static bool fake_prune(struct builder *builder, struct str team_id, bool dry_run, struct pruned *out, struct err *err)
{
    struct built *b = (struct built *)builder;

    (void)err;
    b->prunes++;
    b->was_dry = dry_run;
    snprintf(b->pruned_team, sizeof b->pruned_team, "%.*s", STR_ARG(team_id));
    *out = (struct pruned){ .steps = 3, .layers = 2, .bytes = 4096 };
    return true;
}

static bool fake_stock(struct puller *puller, bool removes, struct download_total *out, struct err *err)
{
    (void)err;
    ((struct built *)puller)->removed_downloads |= removes;
    *out = (struct download_total){ .count = 5, .bytes = 1 << 20 };
    return true;
}

int built_set_up(void **state)
{
    struct built *b = calloc(1, sizeof *b);
    struct err err;

    served_make(&b->served);
    served_start(&b->served);
    snprintf(b->dir, sizeof b->dir, "/tmp/cloister-built.XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    b->served.actions.uploads = uploads_new(open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), NULL, &err);
    assert_non_null(b->served.actions.uploads);
    b->served.actions.builder = (struct builder *)b;
    b->served.actions.build_start = fake_start;
    b->served.actions.build_cancel = fake_cancel;
    b->served.actions.build_prune = fake_prune;
    b->served.actions.puller = (struct puller *)b;
    b->served.actions.pull_stock = fake_stock;
    *state = b;
    return 0;
}

int built_tear_down(void **state)
{
    struct built *b = *state;
    struct uploads *uploads = b->served.actions.uploads;
    char command[128];

    served_drop(&b->served);
    uploads_free(uploads);
    snprintf(command, sizeof command, "rm -r %s", b->dir);
    assert_int_equal(system(command), 0);
    free(b);
    return 0;
}

const char *built_path(struct built *b, const char *format, ...)
{
    char room[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(room, sizeof room, format, args);
    va_end(args);
    return arena_text(&b->served.rig.arena, str_from(room));
}

struct built_ids built_register(struct built *b, const char *body)
{
    struct served *s = &b->served;
    struct http_answer answer = CALL(s, "POST", "/v3/templates", body);

    if (answer.status != 202)
        fail_msg("%u: %.*s", answer.status, STR_ARG(answer.body));
    return (struct built_ids){ built_path(b, "%s", got_text(s, "templateID")),
                               built_path(b, "%s", got_text(s, "buildID")) };
}

struct http_answer built_start(struct built *b, struct built_ids ids, const char *body)
{
    return CALL(&b->served, "POST", built_path(b, "/v2/templates/%s/builds/%s", ids.template_id, ids.build_id), body);
}

void built_finish(struct built *b, struct built_ids ids)
{
    static const struct str layer[] = { STR_INIT("fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210") };
    struct build_row row = { .id = str_from(ids.build_id),
                             .state = BUILD_READY,
                             .disk_mb = 5120,
                             .guestd_version = STR("0.6.13"),
                             .layer_count = 1,
                             .layers = layer,
                             .context = { STR("user"), STR("/app"), STR("{}") } };

    MUST(store_build_finish(b->served.rig.disk.store, &row, &err));
}

void built_fail(struct built *b, struct built_ids ids, const char *reason, const char *step)
{
    struct build_row row = {
        .id = str_from(ids.build_id), .state = BUILD_ERROR, .reason = str_from(reason), .reason_step = str_from(step)
    };

    MUST(store_build_finish(b->served.rig.disk.store, &row, &err));
}

struct built_ids built_make(struct built *b, const char *body)
{
    struct built_ids ids = built_register(b, body);
    struct http_answer answer = built_start(b, ids, "{\"fromImage\":\"debian:stable\"}");

    if (answer.status != 202)
        fail_msg("%u: %.*s", answer.status, STR_ARG(answer.body));
    built_finish(b, ids);
    return ids;
}

const char *built_stranger(struct built *b, const char *slug)
{
    struct store *store = b->served.rig.disk.store;
    struct secret text = { 0 };
    struct team_row team;
    struct key_row key;

    MUST(store_team_add(store, str_from(slug), &b->served.rig.arena, &team, &err));
    MUST(store_key_add(store, team.id, STR("other"), &b->served.rig.arena, &key, &text, &err));
    return arena_text(&b->served.rig.arena, secret_reveal(&text));
}

struct http_answer built_as(struct built *b, const char *key, const char *method, const char *target, const char *body)
{
    const struct http_field field = { STR("X-API-Key"), str_from(key) };

    return served_call_bare(&b->served, method, target, body, &field, 1);
}
