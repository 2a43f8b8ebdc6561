/*
 * A sandbox for a step. It is like any other, with the isolation, limits and network rules of the template's sandboxes, and
 * has a team of its own (the build's id), so that no list and no quota knows it. guestd runs the commands, as it does for
 * clients: users, directories and errors are the same in a build and later.
 *
 * The sandbox ends with the step, and with it everything that the step has left running.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "template/inside.h"

#define SYSTEM_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum {
    SPARE_S = 60,                     /* the sandbox's deadline comes after the build's */
    EXPANDED_BYTES = LIMIT_ENV_BYTES, /* one value, as large as all of them may be */
};

bool workplace_open(struct workplace *place, struct build *build)
{
    const struct builder_config *config = &build->builder->config;
    uint64_t now_ms = clock_mono_ms();
    uint64_t left_s = (build->until_ms > now_ms ? build->until_ms - now_ms : 0) / 1000 + SPARE_S;
    struct sandbox_want want = {
        .team_id = build->want.build_id,
        .paying_team_id = build->want.team_id,
        .template_id = build->want.template_id,
        .layer_count = build->chain.layer_count,
        .layers = build->chain.layers,
        .cpu_count = build->want.cpu_count,
        .memory_mb = build->want.memory_mb,
        .timeout_s = MIN(left_s, sandboxes_timeout_max_s(config->sandboxes)),
        .network = { .internet = config->internet },
        .is_private = true,
        .is_temporary = true,
    };
    struct sandbox_info info;
    struct err err;

    *place = (struct workplace){ .build = build };
    log_flush(build); /* what was said is seen while this takes its time */
    if (!build_goes_on(build))
        return false;
    if (!sandbox_create(config->sandboxes, &want, &build->arena, &info, &err))
        return base_is_there(build) && build_fail_err(build, &err);
    place->id = info.id;
    return true;
}

void workplace_close(struct workplace *place)
{
    struct build *build = place->build;
    struct sandboxes *sandboxes = build->builder->config.sandboxes;
    struct err err;

    if (!place->id.len)
        return;
    if (!sandbox_kill(sandboxes, build->want.build_id, place->id, "build", &err) && err.kind != ERR_NOT_FOUND)
        log_warn("build %.*s: sandbox %.*s is not ended yet: %s", STR_ARG(build->want.build_id), STR_ARG(place->id),
                 err_text(&err));
    sandbox_await_gone(sandboxes, place->id); /* the server does not stop before that */
    place->id = STR("");
}

bool workplace_seal(struct workplace *place, struct kept *out)
{
    struct build *build = place->build;
    struct str *layers;
    struct err err;

    log_flush(build);
    bool ok = build_goes_on(build) &&
              (sandbox_seal(build->builder->config.sandboxes, build->want.build_id, place->id, out, &err) ||
               build_fail_err(build, &err));
    if (!ok) {
        workplace_close(place);
        return false;
    }
    place->id = STR("");
    layers = ARENA_ARRAY(&build->arena, struct str, out->layer_count);
    for (uint32_t i = 0; i < out->layer_count; i++)
        layers[i] = arena_copy(&build->arena, str_from(out->layers[i]));
    build->chain.layers = layers;
    build->chain.layer_count = out->layer_count;
    auto_unlock pthread_mutex_t *held = lock_mutex(&build->builder->holds.lock);
    layers_hold(build, layers, out->layer_count); /* a build that makes the same anew replaces the row of this step */
    return true;
}

/* ---- commands ---- */

const struct pair *chain_envs(const struct chain *chain, struct arena *arena)
{
    struct pair *envs = ARENA_ARRAY(arena, struct pair, chain->env_count);

    for (uint32_t i = 0; i < chain->env_count; i++) {
        envs[i] = chain->envs[i];
        if (str_eq(envs[i].name, STR("PATH")))
            envs[i].value = arena_format(arena, "%.*s:" SYSTEM_PATH, STR_ARG(envs[i].value));
    }
    return envs;
}

/* 'it'\''s' */
static void add_quoted(struct buf *out, struct str text)
{
    buf_add_char(out, '\'');
    for (size_t i = 0; i < text.len; i++) {
        if (text.at[i] == '\'')
            buf_add(out, STR("'\\''"));
        else
            buf_add_char(out, text.at[i]);
    }
    buf_add_char(out, '\'');
}

/* Debian's /etc/profile sets PATH anew, so that of the recipe is set behind it. */
static struct str with_path(const struct chain *chain, const struct pair *envs, struct str text, struct arena *arena)
{
    for (uint32_t i = 0; chain && i < chain->env_count; i++) {
        if (!str_eq(envs[i].name, STR("PATH")))
            continue;
        struct buf out = buf_make(arena, LIMIT_RPC_BYTES);
        buf_add(&out, STR("export PATH="));
        add_quoted(&out, envs[i].value);
        buf_add_char(&out, '\n');
        buf_add(&out, text);
        return buf_str(&out);
    }
    return text;
}

struct listener {
    struct lines lines;
    struct buf *captured;
};

static void hear(void *context, enum run_stream stream, struct str bytes)
{
    struct listener *listener = context;

    if (stream == RUN_STDOUT && listener->captured)
        buf_add(listener->captured, bytes);
    else if (!listener->captured)
        lines_take(&listener->lines, stream, bytes);
}

bool workplace_run(struct workplace *place, const struct command *command, struct buf *captured, struct run_result *out)
{
    struct build *build = place->build;
    const struct chain *chain = command->envs;
    struct listener listener = { lines_of(build, build->prefix, command->is_quiet ? BUILD_DEBUG : BUILD_INFO),
                                 captured };
    uint64_t until_ms = command->most_ms ? clock_mono_ms() + command->most_ms : UINT64_MAX;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    const struct pair *envs = chain ? chain_envs(chain, &arena) : NULL;
    struct run_want want = { .sandbox_id = place->id,
                             .user = command->user.len ? command->user : STR("root"),
                             .workdir = command->workdir,
                             .env_count = chain ? chain->env_count : 0,
                             .envs = envs,
                             .shell = command->shell,
                             .command = with_path(chain, envs, command->text, &arena),
                             .output = hear,
                             .context = &listener };
    struct run *run = run_begin(build->builder->config.sandboxes, &want, &err);
    arena_done(&arena);
    bool ok = run || build_fail_err(build, &err);
    while (ok && run_result(run)->state == RUN_GOING) {
        runs_await(&run, 1, clock_mono_ms() + BUILD_LOOK_MS);
        log_tick(build);
        ok = build_goes_on(build) &&
             (clock_mono_ms() < until_ms || build_fail(build, "the command takes longer than %llu seconds",
                                                       (unsigned long long)(command->most_ms / 1000)));
    }
    if (run)
        *out = *run_result(run);
    run_free(run);
    lines_done(&listener.lines);
    return ok;
}

/* ---- variables in arguments ---- */

static bool is_name(struct str name)
{
    if (!name.len || char_is_digit(name.at[0]))
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (!char_is_alnum(name.at[i]) && name.at[i] != '_')
            return false;
    return true;
}

/* In double quotes, so that variables are replaced and nothing is run. */
static struct str expansion_script(const struct build *build, struct str text, struct arena *arena)
{
    const struct chain *chain = &build->chain;
    struct buf out = buf_make(arena, LIMIT_RPC_BYTES);

    for (uint32_t i = 0; i < chain->env_count; i++) {
        if (!is_name(chain->envs[i].name))
            continue;
        buf_add(&out, chain->envs[i].name);
        buf_add_char(&out, '=');
        add_quoted(&out, chain->envs[i].value);
        buf_add_char(&out, '\n');
    }
    buf_add(&out, STR("printf %s \""));
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (c == '\\' || c == '"' || c == '`' || (c == '$' && i + 1 < text.len && text.at[i + 1] == '('))
            buf_add_char(&out, '\\');
        buf_add_char(&out, c);
    }
    buf_add_char(&out, '"');
    return buf_str(&out);
}

bool workplace_expand(struct workplace *place, struct str text, struct str *out)
{
    struct build *build = place->build;
    struct run_result result;

    *out = text;
    if (!str_has_char(text, '$'))
        return true;
    if (!place->id.len && !workplace_open(place, build))
        return false;
    auto_buf struct buf captured = buf_make(NULL, EXPANDED_BYTES);
    struct arena scratch;
    arena_init(&scratch);
    bool ok =
        workplace_run(place, &(struct command){ .text = expansion_script(build, text, &scratch) }, &captured, &result);
    arena_done(&scratch);
    if (!ok)
        return false;
    if (result.state != RUN_EXITED || result.exit_code != 0)
        return build_fail(build, "failed to evaluate '%.*s': %s", (int)MIN(text.len, (size_t)200), text.at,
                          result.text);
    if (captured.overflowed)
        return build_fail(build, "'%.*s' is longer than %d bytes", (int)MIN(text.len, (size_t)200), text.at,
                          EXPANDED_BYTES);
    *out = arena_copy(&build->arena, buf_str(&captured));
    return true;
}
