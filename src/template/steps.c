/*
 * The steps of a recipe. Each has a key (cache.c); one that is not in the cache runs in a sandbox on the layers so far, which
 * is sealed if the step may have written something. docs/templates.md says what each step does.
 */
#include <stdio.h>
#include <string.h>

#include "template/inside.h"

#define DEFAULT_USER "user"

enum {
    FILES_MS = 10 * 60 * 1000, /* COPY */
    SMALL_MS = 5 * 60 * 1000,  /* USER and WORKDIR */
    SAID_BYTES = 2 * LIMIT_PATH_BYTES,
};

static const char *const type_name[] = {
    [STEP_COPY] = "COPY", [STEP_RUN] = "RUN", [STEP_USER] = "USER", [STEP_WORKDIR] = "WORKDIR", [STEP_ENV] = "ENV",
};

static struct str arg(const struct build_step *step, uint32_t index)
{
    return index < step->arg_count ? step->args[index] : STR("");
}

static struct str user_of(const struct build *build)
{
    return build->chain.user.len ? build->chain.user : STR("root");
}

/* Seals the workplace if the step has changed something, and has the cache keep the chain. */
static bool finish_step(struct build *build, struct workplace *place, bool is_changed)
{
    struct kept kept;

    if (!is_changed) {
        workplace_close(place);
        return cache_keep(build, NULL);
    }
    if (workplace_seal(place, &kept))
        return cache_keep(build, &kept);
    cache_leave(build, build->chain.key);
    return false;
}

/* Prints nothing to the log unless it fails. */
static bool run_script(struct workplace *place, struct str script, struct chain *envs, const char *what,
                       struct buf *captured)
{
    struct build *build = place->build;
    struct run_result result;

    if (!workplace_run(place, &(struct command){ .text = script, .envs = envs, .most_ms = SMALL_MS }, captured,
                       &result))
        return false;
    if (result.state == RUN_EXITED && result.exit_code == 0 && !captured->overflowed)
        return true;
    struct str said = trim_all(buf_str(captured));
    return build_fail(build, "failed to %s: %s%s%.*s", what, result.text, said.len ? ": " : "",
                      (int)MIN(said.len, (size_t)400), said.len ? said.at : "");
}

/* ---- RUN ---- */

static bool step_run(struct build *build, struct workplace *place, const struct build_step *step)
{
    struct str command = arg(step, 0), user;
    struct run_result result;

    if (!command.len)
        return build_fail(build, "RUN needs a command");
    if (!workplace_expand(place, arg(step, 1), &user) || (!place->id.len && !workplace_open(place, build)) ||
        !workplace_run(place,
                       &(struct command){ .user = user.len ? user : user_of(build),
                                          .workdir = build->chain.workdir,
                                          .envs = &build->chain,
                                          .text = command },
                       NULL, &result))
        return false;
    if (result.state == RUN_EXITED && result.exit_code == 0)
        return true;
    const char *how = result.state == RUN_REFUSED ? "command failed: " : "";
    return build_fail(build, "failed to run command '%.*s': %s%s", (int)MIN(command.len, (size_t)1000), command.at, how,
                      result.text);
}

/* ---- USER ---- */

/*
 * $WHO: a name, a number, or either with ":group", which is ignored. $SUDO: y: it may become root without a password. Says
 * the user's name, and `same` if there was nothing to do.
 */
static const char user_script[] =
    "exec 2>&1\n"
    "who=${WHO%%:*}; state=same\n"
    "case $who in\n"
    "  '') echo 'USER needs a name'; exit 1 ;;\n"
    "  *[!0-9]*) ;;\n"
    "  *) name=$(awk -F: -v id=\"$who\" '$3 == id { print $1; exit }' /etc/passwd 2>/dev/null)\n"
    "     if [ -z \"$name\" ]; then echo \"no user has the id $who\"; exit 1; fi\n"
    "     who=$name ;;\n"
    "esac\n"
    "if ! id -u \"$who\" >/dev/null 2>&1; then\n"
    "  if command -v useradd >/dev/null 2>&1; then\n"
    "    useradd --create-home --shell /bin/bash \"$who\" || exit 1\n"
    "  else\n"
    "    adduser -D -s /bin/bash \"$who\" || exit 1\n"
    "  fi\n"
    "  state=made\n"
    "fi\n"
    "if [ \"$SUDO\" = y ] && [ ! -e \"/etc/sudoers.d/$who\" ] && [ -d /etc/sudoers.d ]; then\n"
    "  printf '%s ALL=(ALL:ALL) NOPASSWD: ALL\\n' \"$who\" >\"/etc/sudoers.d/$who\" && chmod 0440 "
    "\"/etc/sudoers.d/$who\" || exit 1\n"
    "  state=made\n"
    "fi\n"
    "echo \"$who $state\"\n";

static bool set_user(struct build *build, struct workplace *place, struct str who, bool has_sudo, bool *out_changed)
{
    struct buf said = buf_make(&build->arena, SAID_BYTES);
    struct chain envs = { 0 };
    struct str name, rest, line;

    envs_own(&envs, &build->arena, 2);
    envs_set(&envs, &build->arena, STR("WHO"), who);
    envs_set(&envs, &build->arena, STR("SUDO"), has_sudo ? STR("y") : STR(""));
    if ((!place->id.len && !workplace_open(place, build)) ||
        !run_script(place, str_from(user_script), &envs, "set the user", &said))
        return false;
    rest = trim_all(buf_str(&said));
    line = STR("");
    while (str_cut(&rest, '\n', &line)) /* the last one */
        ;
    if (!str_cut(&line, ' ', &name) || !name.len)
        return build_fail(build, "failed to set the user: the sandbox's answer is not understood");
    *out_changed = !str_eq(trim_all(line), STR("same"));
    build->chain.user = arena_copy(&build->arena, name);
    return true;
}

static bool step_user(struct build *build, struct workplace *place, const struct build_step *step, bool *out_changed)
{
    struct str who;

    return workplace_expand(place, arg(step, 0), &who) &&
           set_user(build, place, trim_all(who), str_eq_nocase(arg(step, 1), STR("true")), out_changed);
}

bool run_default_user(struct build *build)
{
    struct workplace place = { .build = build };
    bool is_hit, is_changed = true;
    char key[KEY_BYTES];

    key_of(key, (struct str[]){ str_from(build->chain.key), STR("DEFAULT USER"), STR(DEFAULT_USER) }, 3);
    if (!cache_begin(build, key, &is_hit))
        return false;
    build_say(build, BUILD_INFO, "%s[base] DEFAULT USER " DEFAULT_USER " [%s]", is_hit ? "CACHED " : "", key);
    if (is_hit)
        return true;
    build->text = STR("USER " DEFAULT_USER);
    struct chain before = build->chain;
    memcpy(build->chain.key, key, sizeof key);
    if (set_user(build, &place, STR(DEFAULT_USER), true, &is_changed))
        return finish_step(build, &place, is_changed);
    workplace_close(&place);
    build->chain = before;
    cache_leave(build, key);
    return false;
}

/* ---- WORKDIR ---- */

/* Makes $DIR; what is new is $WHO's. Says the path, with links followed, and `same` if it was there. */
static const char workdir_script[] =
    "exec 2>&1\n"
    "top=; at=$DIR; state=same\n"
    "while [ ! -e \"$at\" ] && [ ! -L \"$at\" ]; do top=$at; at=$(dirname \"$at\"); done\n"
    "mkdir -p \"$DIR\" || exit 1\n"
    "if [ -n \"$top\" ]; then chown -R \"$WHO:\" \"$top\" || exit 1; state=made; fi\n"
    "cd \"$DIR\" || exit 1\n"
    "printf '%s\\n%s' \"$state\" \"$(pwd)\"\n";

static bool step_workdir(struct build *build, struct workplace *place, const struct build_step *step, bool *out_changed)
{
    struct buf said = buf_make(&build->arena, SAID_BYTES);
    struct chain envs = { 0 };
    struct str dir, state, path;

    if (!workplace_expand(place, arg(step, 0), &dir))
        return false;
    if (!dir.len)
        return build_fail(build, "WORKDIR needs a path");
    if (dir.at[0] != '/')
        dir = arena_format(&build->arena, "%.*s/%.*s", STR_ARG(build->chain.workdir), STR_ARG(dir));
    envs_own(&envs, &build->arena, 2);
    envs_set(&envs, &build->arena, STR("DIR"), dir);
    envs_set(&envs, &build->arena, STR("WHO"), user_of(build));
    if ((!place->id.len && !workplace_open(place, build)) ||
        !run_script(place, str_from(workdir_script), &envs, "set the working directory", &said))
        return false;
    path = buf_str(&said);
    if (!str_cut(&path, '\n', &state) || !path.len || path.at[0] != '/')
        return build_fail(build, "failed to set the working directory: the sandbox's answer is not understood");
    *out_changed = !str_eq(state, STR("same"));
    build->chain.workdir = path;
    return true;
}

/* ---- ENV ---- */

static bool step_env(struct build *build, struct workplace *place, const struct build_step *step)
{
    size_t bytes = 0; /* also of those that a later pair sets again: the build's arena has them */

    if (step->arg_count < 2 || step->arg_count % 2)
        return build_fail(build, "ENV needs names and values, in pairs");
    if (step->arg_count / 2 > LIMIT_ENV_PAIRS)
        return build_fail(build, "ENV sets more than %d variables", LIMIT_ENV_PAIRS);
    envs_own(&build->chain, &build->arena, step->arg_count / 2);
    for (uint32_t i = 0; i < step->arg_count; i += 2) {
        struct str value;
        if (!step->args[i].len || str_has_char(step->args[i], '=') || str_has_char(step->args[i], '\0'))
            return build_fail(build, "'%.*s' cannot be the name of a variable",
                              (int)MIN(step->args[i].len, (size_t)100), step->args[i].at);
        if (!workplace_expand(place, step->args[i + 1], &value))
            return false;
        bytes += step->args[i].len + value.len;
        if (bytes > LIMIT_ENV_BYTES)
            return build_fail(build, "ENV sets more than %d bytes", LIMIT_ENV_BYTES);
        if (!build_env(build, step->args[i], value))
            return false;
    }
    return true;
}

/* ---- COPY ---- */

static bool is_cancelled(void *context)
{
    struct build *build = context;

    log_tick(build);
    return !build_goes_on(build);
}

static bool step_copy(struct build *build, struct workplace *place, const struct build_step *step)
{
    const struct builder_config *config = &build->builder->config;
    struct str source, dest, owner, mode;
    uint64_t size = 0;
    struct err err;

    if (!arg(step, 0).len || !arg(step, 1).len)
        return build_fail(build, "COPY needs a source and a destination");
    if (!step->files_hash.len)
        return build_fail(build, "COPY needs the hash of its files: the client has sent none");
    if (!workplace_expand(place, arg(step, 0), &source) || !workplace_expand(place, arg(step, 1), &dest) ||
        !workplace_expand(place, arg(step, 2), &owner) || !workplace_expand(place, arg(step, 3), &mode) ||
        (!place->id.len && !workplace_open(place, build)))
        return false;
    auto_close int fd = -1;
    if (!config->uploads || !upload_open(config->uploads, build->want.team_id, step->files_hash, &fd, &size, &err))
        return build_fail(build, "failed to copy '%.*s': its files were not uploaded",
                          (int)MIN(source.len, (size_t)300), source.at);
    struct archive_want want = { .sandbox_id = place->id,
                                 .fd = fd,
                                 .size = size,
                                 .source = source,
                                 .dest = dest,
                                 .owner = owner,
                                 .mode = mode,
                                 .user = user_of(build),
                                 .workdir = build->chain.workdir,
                                 .until_ms = build->until_ms,
                                 .cancelled = is_cancelled,
                                 .context = build };
    if (sandbox_put_archive(config->sandboxes, &want, &err))
        return true;
    return build_goes_on(build) &&
           build_fail(build, "failed to copy '%.*s' to '%.*s': %s", (int)MIN(source.len, (size_t)300), source.at,
                      (int)MIN(dest.len, (size_t)300), dest.at, err.message);
}

/* ---- all of them ---- */

static bool run_step(struct build *build, struct workplace *place, const struct build_step *step, bool *out_changed)
{
    *out_changed = true;
    switch (step->type) {
    case STEP_RUN:
        return step_run(build, place, step);
    case STEP_USER:
        return step_user(build, place, step, out_changed);
    case STEP_WORKDIR:
        return step_workdir(build, place, step, out_changed);
    case STEP_COPY:
        return step_copy(build, place, step);
    case STEP_ENV:
        *out_changed = false;
        return step_env(build, place, step);
    case STEP_UNKNOWN:
        break;
    }
    return build_fail(build, "the instruction %.*s is not implemented", (int)MIN(step->type_text.len, (size_t)60),
                      step->type_text.at);
}

static void step_key(const struct build *build, const struct build_step *step, char out[KEY_BYTES])
{
    struct arena arena;

    arena_init(&arena);
    struct str *parts = ARENA_ARRAY(&arena, struct str, step->arg_count + 3);
    size_t count = 0;
    parts[count++] = str_from(build->chain.key);
    parts[count++] = step->type == STEP_UNKNOWN ? step->type_text : str_from(type_name[step->type]);
    parts[count++] = step->files_hash;
    for (uint32_t i = 0; i < step->arg_count; i++)
        parts[count++] = step->args[i];
    key_of(out, parts, count);
    arena_done(&arena);
}

static struct str step_text(const struct build_step *step, struct arena *arena)
{
    struct buf line = buf_make(arena, LIMIT_BUILD_LINE_BYTES);

    buf_add(&line, str_of(step->type_text.at, MIN(step->type_text.len, (size_t)60)));
    for (uint32_t i = 0; i < step->arg_count; i++)
        if (line.len + step->args[i].len < LIMIT_BUILD_LINE_BYTES - 140) {
            buf_add_char(&line, ' ');
            buf_add(&line, step->args[i]);
        }
    return buf_str(&line);
}

static bool one_step(struct build *build, const struct build_step *step)
{
    struct workplace place = { .build = build };
    bool is_hit, is_changed = true;
    char key[KEY_BYTES];

    build->is_forced |= step->force;
    step_key(build, step, key);
    if (!cache_begin(build, key, &is_hit))
        return false;
    build->text = step_text(step, &build->arena);
    build_say(build, BUILD_INFO, "%s[%s] %.*s [%s]", is_hit ? "CACHED " : "", build->prefix, STR_ARG(build->text), key);
    if (is_hit)
        return true;
    struct chain before = build->chain;
    if (run_step(build, &place, step, &is_changed)) {
        memcpy(build->chain.key, key, sizeof key);
        return finish_step(build, &place, is_changed);
    }
    workplace_close(&place);
    build->chain = before;
    cache_leave(build, key);
    return false;
}

bool run_steps(struct build *build)
{
    for (uint32_t i = 0; i < build->want.step_count; i++) {
        (void)snprintf(build->step, sizeof build->step, "%u", i + 1);
        (void)snprintf(build->prefix, sizeof build->prefix, "builder %u/%u", i + 1, build->want.step_count);
        if (!build_goes_on(build) || !one_step(build, &build->want.steps[i]))
            return false;
    }
    return true;
}
