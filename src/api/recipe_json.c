/*
 * The body that starts a build. A recipe that makes no sense fails its build and not the request, so this refuses only what
 * has the wrong type. Clients send members of their own (forceUpload, gzip…), which are skipped.
 */
#include "api/builds.h"

static const struct {
    struct str name;
    enum step_type type;
} step_types[] = {
    { STR_INIT("COPY"), STEP_COPY },       { STR_INIT("ADD"), STEP_COPY }, { STR_INIT("RUN"), STEP_RUN },
    { STR_INIT("USER"), STEP_USER },       { STR_INIT("ENV"), STEP_ENV },  { STR_INIT("ARG"), STEP_ENV },
    { STR_INIT("WORKDIR"), STEP_WORKDIR },
};

bool texts_decode(const json_t *object, const char *name, struct arena *arena, const struct str **out,
                  uint32_t *out_count, struct err *err)
{
    const json_t *array;

    *out_count = 0;
    if (!json_take_array(object, name, JSON_OPTIONAL, &array, err))
        return false;
    if (!array)
        return true;
    struct str *texts = ARENA_ARRAY(arena, struct str, json_array_size(array));
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_string(item))
            return err_set(err, ERR_INVALID, "'%s' must have only texts", name);
        texts[i] = json_str(item);
    }
    *out = texts;
    *out_count = (uint32_t)json_array_size(array);
    return true;
}

static bool step_decode(const json_t *json, struct arena *arena, struct build_step *out, struct err *err)
{
    struct build_step step = { .type = STEP_UNKNOWN };

    if (!json_is_object(json))
        return err_set(err, ERR_INVALID, "'steps' must have only objects");
    if (!json_take_str(json, "type", JSON_REQUIRED, &step.type_text, err) ||
        !texts_decode(json, "args", arena, &step.args, &step.arg_count, err) ||
        !json_take_bool(json, "force", JSON_OPTIONAL, &step.force, err) ||
        !json_take_str(json, "filesHash", JSON_OPTIONAL, &step.files_hash, err))
        return false;
    for (size_t i = 0; i < COUNT_OF(step_types); i++)
        if (str_eq_nocase(step.type_text, step_types[i].name))
            step.type = step_types[i].type;
    *out = step;
    return true;
}

static bool steps_decode(const json_t *body, struct arena *arena, struct build_recipe *out, struct err *err)
{
    const json_t *array;

    if (!json_take_array(body, "steps", JSON_OPTIONAL, &array, err))
        return false;
    size_t count = array ? json_array_size(array) : 0;
    if (count > LIMIT_BUILD_STEPS)
        return err_set(err, ERR_INVALID, "a recipe may have at most %d steps", LIMIT_BUILD_STEPS);
    struct build_step *steps = ARENA_ARRAY(arena, struct build_step, count);
    for (size_t i = 0; i < count; i++)
        if (!step_decode(json_array_get(array, i), arena, &steps[i], err))
            return false;
    out->steps = steps;
    out->step_count = (uint32_t)count;
    return true;
}

static bool login_decode(const json_t *body, struct registry_login *out, struct err *err)
{
    struct registry_login login = { .kind = LOGIN_NONE };
    const json_t *json;
    struct str type = STR("");

    if (!json_take_object(body, "fromImageRegistry", JSON_OPTIONAL, &json, err))
        return false;
    if (!json || json_object_size(json) == 0)
        return true;
    if (!json_take_str(json, "type", JSON_REQUIRED, &type, err))
        return false;
    if (str_eq(type, STR("registry"))) {
        login.kind = LOGIN_BASIC;
        if (!json_take_str(json, "username", JSON_REQUIRED, &login.user, err) ||
            !json_take_str(json, "password", JSON_REQUIRED, &login.password, err))
            return false;
    } else if (str_eq(type, STR("aws"))) {
        login.kind = LOGIN_AWS;
        if (!json_take_str(json, "awsAccessKeyId", JSON_REQUIRED, &login.key_id, err) ||
            !json_take_str(json, "awsSecretAccessKey", JSON_REQUIRED, &login.key, err) ||
            !json_take_str(json, "awsRegion", JSON_REQUIRED, &login.region, err))
            return false;
    } else if (str_eq(type, STR("gcp"))) {
        login.kind = LOGIN_GCP;
        if (!json_take_str(json, "serviceAccountJson", JSON_REQUIRED, &login.account, err))
            return false;
    } else {
        return err_set(err, ERR_INVALID, "'fromImageRegistry.type' must be registry, aws or gcp");
    }
    *out = login;
    return true;
}

bool recipe_decode(const json_t *body, struct arena *arena, struct build_recipe *out, struct err *err)
{
    struct build_recipe recipe = { 0 };

    if (!json_take_str(body, "fromImage", JSON_OPTIONAL, &recipe.from_image, err) ||
        !json_take_str(body, "fromTemplate", JSON_OPTIONAL, &recipe.from_template, err) ||
        !json_take_str(body, "fromArchive", JSON_OPTIONAL, &recipe.from_archive, err) ||
        !json_take_str(body, "fromArchiveImage", JSON_OPTIONAL, &recipe.archive_image, err) ||
        !json_take_bool(body, "force", JSON_OPTIONAL, &recipe.force, err) ||
        !json_take_str(body, "startCmd", JSON_OPTIONAL, &recipe.start_cmd, err) ||
        !json_take_str(body, "readyCmd", JSON_OPTIONAL, &recipe.ready_cmd, err) ||
        !steps_decode(body, arena, &recipe, err))
        return false;
    /* SDKs leave the credentials of an image there when a template takes its place. */
    if (!recipe.from_template.len && !login_decode(body, &recipe.login, err))
        return false;
    *out = recipe;
    return true;
}

/* "e2b-js-sdk/2.49.0 e2b-cli/2.19.0": is one of the SDKs older than 2.3? */
enum build_dialect dialect_of(struct str user_agent)
{
    struct str word, number;
    uint64_t major, minor;

    while (str_cut(&user_agent, ' ', &word)) {
        if (!str_skip(&word, STR("e2b-js-sdk/")) && !str_skip(&word, STR("e2b-python-sdk/")))
            continue;
        if (!str_cut(&word, '.', &number) || !str_to_u64(number, UINT32_MAX, &major) || !str_cut(&word, '.', &number) ||
            !str_to_u64(number, UINT32_MAX, &minor))
            continue;
        return major < 2 || (major == 2 && minor < 3) ? DIALECT_2_0 : DIALECT_2_1;
    }
    return DIALECT_2_1;
}
