/*
 * template_build.c - `cloister template build DIR`: builds a template from a Dockerfile, as an ordinary client of the API.
 *
 * Theory of operation. Everything that can be wrong on this side comes first: the Dockerfile is read, and the files of each
 * COPY are found and hashed. Then the build is registered; for each hash the server says whether it has the files, and those
 * that it has not are packed and uploaded. The build starts with the steps, and its log is read until it has ended. An
 * interrupt cancels it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/context.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "cli/upload.h"
#include "wire/dockerfile.h"

enum {
    POLL_MS = 250,
    QUEUED_MS = 3000,  /* without a line of the log: it waits for its turn */
    LINES_MOST = 100,  /* of one answer: the API's limit */
    NAME_MOST = 128,   /* the API's limit */
    SHOWN_BYTES = 200, /* of a line that has failed */
    ATTEMPTS = 40,     /* that may fail in a row while the log is read: the server may be starting anew */
};

/* The files of a COPY. */
struct copy {
    bool is_set;
    struct context_files files;
    char hash[CONTEXT_HASH_TEXT];
};

struct build {
    struct cli *cli;
    struct client *client;
    const char *path; /* of the Dockerfile, as it is shown */
    const char *dir;  /* of the files */
    struct str text;  /* the Dockerfile */
    struct dockerfile file;
    struct context *context;
    struct copy *copies; /* one for each step; most are not set */
    struct str start_cmd, ready_cmd;
    const char *name;
    struct str template_id, build_id, result; /* result: the name that sandboxes are made with */
};

/* ---- the Dockerfile ---- */

static bool is_there(const char *path, mode_t type)
{
    struct stat st;

    return stat(path, &st) == 0 && (st.st_mode & S_IFMT) == type;
}

/* A directory with a Dockerfile, or a Dockerfile. */
static bool find_file(struct build *build, struct err *err)
{
    static const char *const names[] = { "e2b.Dockerfile", "Dockerfile" }; /* E2B's command line has this order */
    struct cli *cli = build->cli;
    struct arena *arena = &cli->arena;
    const char *word = cli->words[0], *name, *makes;

    if (is_there(word, S_IFREG)) {
        const char *slash = strrchr(word, '/');
        build->path = word;
        build->dir = !slash ? "." : slash == word ? "/" : arena_text(arena, str_of(word, (size_t)(slash - word)));
        return true;
    }
    if (!is_there(word, S_IFDIR)) {
        struct buf recipes = buf_make(arena, 200);
        for (size_t i = 0; cli->facts && cli->facts->recipe_at(i, &name, &makes); i++)
            buf_format(&recipes, "%s%s", i ? " or " : "", name);
        buf_add_char(&recipes, '\0');
        return err_set(err, ERR_NOT_FOUND, "there is no directory or Dockerfile %.60s%s%s", word,
                       recipes.len > 1 ? "; as root of the server also: " : "", recipes.data);
    }
    build->dir = word;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *path = strcmp(word, ".") == 0 ? names[i] : arena_format(arena, "%s/%s", word, names[i]).at;
        if (is_there(path, S_IFREG)) {
            build->path = path;
            return true;
        }
    }
    return err_set(err, ERR_NOT_FOUND, "there is no Dockerfile in %.100s", word);
}

/* "Dockerfile, line 3: …": the message has the line. */
static bool wrong_file(const struct build *build, struct err *err)
{
    return client_refused(build->cli, err->kind, arena_format(&build->cli->arena, "%s, %s", build->path, err->message),
                          err);
}

static bool read_args(struct cli *cli, struct dockerfile_arg **out, struct err *err)
{
    struct dockerfile_arg *args = ARENA_ARRAY(&cli->arena, struct dockerfile_arg, cli->build_args.count + 1);

    for (size_t i = 0; i < cli->build_args.count; i++) {
        struct str value = str_from(cli->build_args.at[i]), name;
        const char *inherited;
        bool has_value = str_has_char(value, '=');
        (void)str_cut(&value, '=', &name);
        if (!name.len)
            return err_set(err, ERR_INVALID, "--build-arg needs NAME=VALUE, not '%.60s'", cli->build_args.at[i]);
        /* As Docker: NAME alone takes it from the environment. */
        if (!has_value && !(inherited = getenv(cli->build_args.at[i])))
            return err_set(err, ERR_INVALID, "--build-arg %.40s has no value, and the environment has none either",
                           cli->build_args.at[i]);
        args[i] = (struct dockerfile_arg){ .name = name, .value = has_value ? value : str_from(inherited) };
        if (!utf8_valid(args[i].value))
            return err_set(err, ERR_INVALID, "--build-arg %.40s is not text in UTF-8", arena_text(&cli->arena, name));
    }
    *out = args;
    return true;
}

static bool read_file(struct build *build, struct err *err)
{
    struct cli *cli = build->cli;
    auto_free char *text = NULL;
    struct dockerfile_arg *args;
    size_t len;

    if (!find_file(build, err) || !read_args(cli, &args, err))
        return false;
    if (!fd_read_file(AT_FDCWD, build->path, LIMIT_DOCKERFILE_BYTES, &text, &len, err))
        return err_wrap(err, "read %.100s", build->path);
    build->text = arena_copy(&cli->arena, str_of(text, len));
    if (!dockerfile_parse(&cli->arena, build->text, args, cli->build_args.count, &build->file, err))
        return wrong_file(build, err);
    for (size_t i = 0; i < build->file.note_count; i++)
        fprintf(cli->note, "%s, line %u: %.*s\n", build->path, build->file.notes[i].line,
                STR_ARG(build->file.notes[i].text));
    for (size_t i = 0; i < cli->build_args.count; i++)
        if (!args[i].is_used)
            fprintf(cli->note, "--build-arg %.*s is not used: %s has no ARG %.*s\n", STR_ARG(args[i].name), build->path,
                    STR_ARG(args[i].name));
    build->start_cmd = cli->start ? str_from(cli->start) : build->file.start_cmd;
    /* What E2B's SDKs wait for if a Dockerfile has a CMD. */
    build->ready_cmd = cli->ready ? str_from(cli->ready) : build->start_cmd.len ? STR("sleep 20") : STR("");
    if (build->start_cmd.len && !cli->ready)
        fprintf(cli->note,
                "The build will wait 20 seconds for the start command. --ready CMD checks it instead, as in\n"
                "  --ready 'curl -sf http://localhost:8000/'\n");
    return true;
}

/* That of the directory, in the letters that a name may have. */
static bool choose_name(struct build *build, struct err *err)
{
    struct cli *cli = build->cli;
    char full[PATH_MAX];

    build->name = cli->name;
    if (build->name)
        return true;
    if (!realpath(build->dir, full))
        return err_sys(err, "find the directory %.100s", build->dir);
    char *name = arena_text(&cli->arena, str_from(strrchr(full, '/') + 1));
    for (char *c = name; *c; c++)
        *c = char_is_alnum(*c) || *c == '_' ? char_lower(*c) : '-';
    build->name = name;
    if (name[strspn(name, "-")] == '\0' || strlen(name) > NAME_MOST)
        return err_set(err, ERR_INVALID,
                       "the directory has no name that a template could have; choose one: --name NAME");
    return true;
}

static bool find_copies(struct build *build, struct err *err)
{
    size_t left_out = 0;

    build->copies = ARENA_ARRAY(&build->cli->arena, struct copy, build->file.step_count);
    for (size_t i = 0; i < build->file.step_count; i++) {
        const struct dockerfile_step *step = &build->file.steps[i];
        struct copy *copy = &build->copies[i];
        if (!str_eq(step->type, STR("COPY")))
            continue;
        if (!context_find(build->context, step->args[0], &copy->files, err) ||
            !context_hash(build->context, step->args[0], step->args[1], &copy->files, copy->hash, err)) {
            const char *why = err->sys ? err_text(err) : err->message;
            return client_refused(build->cli, err->kind,
                                  arena_format(&build->cli->arena, "%s, line %u: %s", build->path, step->line, why),
                                  err);
        }
        copy->is_set = true;
        left_out += copy->files.left_out;
    }
    if (left_out)
        fprintf(build->cli->note, "Left out: %zu sockets, pipes or devices.\n", left_out);
    return true;
}

/* ---- the server ---- */

static bool numbers_add(struct cli *cli, struct json_out *json, struct err *err)
{
    uint64_t number;

    if (cli->cpu) {
        if (!args_number("cpu", cli->cpu, 1, 32, &number, err))
            return false;
        json_out_int(json, "cpuCount", (int64_t)number);
    }
    if (cli->memory) {
        if (!args_number("memory", cli->memory, 128, 1 << 20, &number, err))
            return false;
        json_out_int(json, "memoryMB", (int64_t)number);
    }
    return true;
}

static bool take_registered(struct build *build, const json_t *made, struct err *err)
{
    struct arena *arena = &build->cli->arena;
    const json_t *aliases = NULL, *tags = NULL;

    if (!json_take_str(made, "templateID", JSON_REQUIRED, &build->template_id, err) ||
        !json_take_str(made, "buildID", JSON_REQUIRED, &build->build_id, err) ||
        !json_take_array(made, "aliases", JSON_OPTIONAL, &aliases, err) ||
        !json_take_array(made, "tags", JSON_OPTIONAL, &tags, err))
        return client_misread(err);
    build->template_id = arena_copy(arena, build->template_id);
    build->build_id = arena_copy(arena, build->build_id);
    const json_t *alias = json_array_get(aliases, 0), *tag = json_array_get(tags, 0);
    struct str name = json_is_string(alias) ? json_str(alias) : build->template_id;
    build->result = json_is_string(tag) && !str_eq(json_str(tag), STR("default"))
                        ? arena_format(arena, "%.*s:%.*s", STR_ARG(name), STR_ARG(json_str(tag)))
                        : arena_copy(arena, name);
    return true;
}

static bool register_build(struct build *build, struct err *err)
{
    struct buf body = buf_make(&build->cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct client_answer answer = { 0 };

    json_out_object(&json, NULL);
    json_out_str(&json, "name", str_from(build->name));
    if (!numbers_add(build->cli, &json, err))
        return false;
    json_out_end(&json);
    if (!client_call(build->client, "POST", STR("/v3/templates"), buf_str(&body), &answer, err))
        return err_wrap(err, "register the build");
    auto_json json_t *made = answer.json;
    return take_registered(build, made, err);
}

/* ---- files ---- */

struct packed {
    int fd;
    uint64_t size, sent;
};

static bool read_packed(void *context, char *room, size_t size, size_t *out_len, struct err *err)
{
    struct packed *packed = context;
    ssize_t n = pread(packed->fd, room, (size_t)MIN((uint64_t)size, packed->size - packed->sent), (off_t)packed->sent);

    if (n <= 0)
        return n < 0 ? err_sys(err, "read the archive") : err_set(err, ERR_INTERNAL, "the archive was cut off");
    packed->sent += (uint64_t)n;
    *out_len = (size_t)n;
    return true;
}

static bool send_copy(struct build *build, const struct dockerfile_step *step, const struct copy *copy, struct str url,
                      struct err *err)
{
    struct cli *cli = build->cli;
    auto_close int fd = -1;
    struct packed packed = { 0 };
    size_t count = 0;

    for (size_t i = 0; i < copy->files.count; i++)
        count += !S_ISDIR(copy->files.at[i].mode);
    bool is_terminal = isatty(fileno(cli->note));
    if (is_terminal)
        fprintf(cli->note, "\r\033[Kpacking %.*s", STR_ARG(step->args[0]));
    fflush(cli->note);
    bool fine = context_pack(build->context, &copy->files, &fd, &packed.size, err);
    if (is_terminal)
        fputs("\r\033[K", cli->note);
    if (!fine)
        return false;
    packed.fd = fd;
    const struct upload_source source = { .size = packed.size, .read = read_packed, .context = &packed };
    if (!upload_send(build->client, url, &source, err))
        return false;
    fprintf(cli->note, "Uploaded %.*s: %zu %s, %s\n", STR_ARG(step->args[0]), count, count == 1 ? "file" : "files",
            text_bytes(&cli->arena, packed.size).at);
    return true;
}

static bool is_before(const struct build *build, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (build->copies[i].is_set && strcmp(build->copies[i].hash, build->copies[index].hash) == 0)
            return true;
    return false;
}

static bool send_files(struct build *build, struct err *err)
{
    struct str url = STR(""), target;

    for (size_t i = 0; i < build->file.step_count; i++) {
        const struct copy *copy = &build->copies[i];
        struct client_answer answer = { 0 };
        bool is_present = false;
        if (!copy->is_set || is_before(build, i))
            continue;
        if (!client_target(build->cli, STR("/templates/"), build->template_id,
                           arena_format(&build->cli->arena, "/files/%s", copy->hash), &target, err) ||
            !client_call(build->client, "GET", target, STR(""), &answer, err))
            return err_wrap(err, "ask for the files of line %u", build->file.steps[i].line);
        auto_json json_t *link = answer.json;
        if (!json_take_bool(link, "present", JSON_REQUIRED, &is_present, err) ||
            !json_take_str(link, "url", JSON_OPTIONAL, &url, err))
            return client_misread(err);
        if (!is_present && !send_copy(build, &build->file.steps[i], copy, arena_copy(&build->cli->arena, url), err))
            return err_wrap(err, "files of line %u", build->file.steps[i].line);
    }
    return true;
}

/* ---- the build ---- */

static bool start_build(struct build *build, struct err *err)
{
    struct buf body = buf_make(&build->cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct client_answer answer = { 0 };
    struct str target;

    json_out_object(&json, NULL);
    json_out_str(&json, "fromImage", build->file.from);
    json_out_bool(&json, "force", build->cli->no_cache);
    if (build->start_cmd.len)
        json_out_str(&json, "startCmd", build->start_cmd);
    if (build->ready_cmd.len)
        json_out_str(&json, "readyCmd", build->ready_cmd);
    json_out_array(&json, "steps");
    for (size_t i = 0; i < build->file.step_count; i++) {
        const struct dockerfile_step *step = &build->file.steps[i];
        json_out_object(&json, NULL);
        json_out_str(&json, "type", step->type);
        json_out_array(&json, "args");
        for (uint32_t k = 0; k < step->arg_count; k++)
            json_out_str(&json, NULL, step->args[k]);
        json_out_end(&json);
        json_out_bool(&json, "force", false);
        if (build->copies[i].is_set)
            json_out_str(&json, "filesHash", str_from(build->copies[i].hash));
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
    if (body.overflowed)
        return err_set(err, ERR_LIMIT, "the steps of %.60s are longer than %d KiB", build->path,
                       LIMIT_CALL_BODY_BYTES / 1024);
    if (!client_target(build->cli, STR("/v2/templates/"), build->template_id,
                       arena_format(&build->cli->arena, "/builds/%.*s", STR_ARG(build->build_id)), &target, err) ||
        !client_call(build->client, "POST", target, buf_str(&body), &answer, err))
        return err_wrap(err, "start the build");
    json_decref(answer.json);
    return true;
}

static bool cancel_build(struct build *build, struct progress *progress, struct err *err)
{
    struct client_answer answer = { 0 };
    struct str target;
    int number = interrupt_signal();

    progress_end(progress, clock_wall_us(), PROGRESS_STOPPED);
    build->cli->exit_code = EXIT_BY_SIGNAL + number;
    if (!client_target(build->cli, STR("/templates/"), build->template_id,
                       arena_format(&build->cli->arena, "/builds/%.*s", STR_ARG(build->build_id)), &target, err) ||
        !client_call(build->client, "DELETE", target, STR(""), &answer, err))
        return err_wrap(err, "cancel the build");
    json_decref(answer.json);
    return err_set(err, ERR_CONFLICT,
                   "interrupted; the build is cancelled, and the steps that were done stay in the cache");
}

/* The part of the Dockerfile that a step comes from. */
static void show_source(struct build *build, uint32_t number)
{
    struct str rest = build->text, line = STR("");

    for (uint32_t i = 0; i < number && str_cut(&rest, '\n', &line); i++)
        ;
    if (str_ends(line, STR("\r")))
        line.len--;
    if (!number)
        return;
    char *text = arena_text(&build->cli->arena, str_of(line.at, MIN(line.len, (size_t)SHOWN_BYTES)));
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t')
            *c = '?'; /* not for the terminal */
    fprintf(build->cli->note, "%s:%u: %s%s\n", build->path, number, text, line.len > SHOWN_BYTES ? "…" : "");
}

static bool has_failed(struct build *build, struct progress *progress, const json_t *status, int64_t at_us,
                       struct err *err)
{
    const json_t *reason = NULL;
    struct str message = STR("the build has failed"), step = STR("");

    if (!json_take_object(status, "reason", JSON_OPTIONAL, &reason, err) ||
        (reason && (!json_take_str(reason, "message", JSON_OPTIONAL, &message, err) ||
                    !json_take_str(reason, "step", JSON_OPTIONAL, &step, err))))
        return client_misread(err);
    progress_end(progress, at_us, PROGRESS_FAILED);
    uint32_t line = progress_line_of(progress, step);
    show_source(build, line);
    struct str whole =
        line ? arena_format(&build->cli->arena, "%s, line %u: %.*s", build->path, line, STR_ARG(message)) : message;
    return client_refused(build->cli, step.len ? ERR_INVALID : ERR_UNAVAILABLE, whole, err);
}

/* Adds the lines of an answer to the picture; *out_at is the time of the last one. */
static bool take_lines(struct progress *progress, const json_t *status, size_t *out_count, int64_t *out_at,
                       struct err *err)
{
    const json_t *lines = NULL, *line;
    size_t i;

    if (!json_take_array(status, "logEntries", JSON_REQUIRED, &lines, err))
        return false;
    json_array_foreach(lines, i, line)
    {
        struct str message = STR(""), step = STR(""), when = STR("");
        if (!json_take_str(line, "message", JSON_REQUIRED, &message, err) ||
            !json_take_str(line, "step", JSON_OPTIONAL, &step, err) ||
            !json_take_str(line, "timestamp", JSON_OPTIONAL, &when, err))
            return false;
        (void)!clock_parse(when, out_at); /* else that of the line before */
        progress_take(progress, *out_at, step, message);
    }
    *out_count = json_array_size(lines);
    return true;
}

static void wait_a_moment(void)
{
    struct timespec moment = { .tv_nsec = POLL_MS * 1000000L };

    if (!interrupt_signal())
        (void)nanosleep(&moment, NULL);
}

/* Each answer is read in an arena of its own: a build may take an hour. */
static bool fetch_status(struct build *build, size_t offset, json_t **out, struct err *err)
{
    struct client_answer answer = { 0 };
    struct cli *cli = build->cli;
    struct str target;
    struct arena before = cli->arena;

    arena_init(&cli->arena);
    bool fine = client_target(cli, STR("/templates/"), build->template_id,
                              arena_format(&cli->arena, "/builds/%.*s/status?limit=%d&logsOffset=%zu&level=info",
                                           STR_ARG(build->build_id), LINES_MOST, offset),
                              &target, err) &&
                client_call(build->client, "GET", target, STR(""), &answer, err);
    cli->refusal = STR("");
    arena_done(&cli->arena);
    cli->arena = before;
    *out = answer.json;
    return fine;
}

/* Until the build has ended and all its lines were read. */
static bool watch_build(struct build *build, struct progress *progress, struct err *err)
{
    size_t offset = 0, count = 0;
    int64_t at_us = clock_wall_us();
    uint64_t silent_until_ms = clock_mono_ms() + QUEUED_MS;
    int failures = 0;

    for (;;) {
        json_t *answer = NULL;
        if (interrupt_signal())
            return cancel_build(build, progress, err);
        if (!fetch_status(build, offset, &answer, err)) {
            if (err->kind != ERR_UNAVAILABLE || ++failures == ATTEMPTS)
                return false;
            wait_a_moment();
            continue;
        }
        failures = 0;
        auto_json json_t *status = answer;
        struct str state;
        if (!json_take_str(status, "status", JSON_REQUIRED, &state, err) ||
            !take_lines(progress, status, &count, &at_us, err))
            return client_misread(err);
        offset += count;
        if (!offset && clock_mono_ms() > silent_until_ms) {
            fprintf(build->cli->note, "The server has not begun yet: it may have other builds to do first.\n");
            silent_until_ms = UINT64_MAX;
        }
        if (count == LINES_MOST)
            continue;
        if (str_eq(state, STR("error")) && !count)
            return has_failed(build, progress, status, at_us, err);
        if (str_eq(state, STR("ready")) && !count) {
            progress_end(progress, at_us, PROGRESS_DONE);
            return true;
        }
        if (count && !str_eq(state, STR("building")))
            continue; /* the rest of the lines, if there is one */
        progress_tick(progress, clock_wall_us());
        wait_a_moment();
    }
}

/* What the steps have written, all together; false: the server does not say. */
static bool fetch_size(struct build *build, uint64_t *out)
{
    struct client_answer answer = { 0 };
    const json_t *layers = NULL, *layer;
    uint64_t sum = 0;
    struct str target;
    struct err err;
    size_t i;

    bool fine = client_target(build->cli, STR("/templates/"), build->result, STR("/inspect"), &target, &err) &&
                client_call(build->client, "GET", target, STR(""), &answer, &err);
    auto_json json_t *template = answer.json;
    build->cli->refusal = STR("");
    if (!fine || !json_take_array(template, "layers", JSON_REQUIRED, &layers, &err))
        return false;
    json_array_foreach(layers, i, layer)
    {
        const json_t *bytes = json_object_get(layer, "bytes"), *origin = json_object_get(layer, "origin");
        if (json_is_string(origin) && str_eq(json_str(origin), STR("step")) && json_is_integer(bytes) &&
            json_integer_value(bytes) > 0)
            sum += (uint64_t)json_integer_value(bytes);
    }
    *out = sum;
    return true;
}

static bool show_built(struct build *build, uint64_t took_ms)
{
    struct cli *cli = build->cli;
    uint64_t size = 0;
    bool has_size = fetch_size(build, &size);

    if (cli->json) {
        struct buf text = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
        struct json_out json = json_out_to(&text);
        json_out_object(&json, NULL);
        json_out_str(&json, "name", build->result);
        json_out_str(&json, "templateID", build->template_id);
        json_out_str(&json, "buildID", build->build_id);
        json_out_int(&json, "tookMs", (int64_t)took_ms);
        if (has_size)
            json_out_int(&json, "stepBytes", (int64_t)size);
        json_out_end(&json);
        fprintf(cli->out, "%.*s\n", STR_ARG(buf_str(&text)));
        return true;
    }
    fprintf(cli->note, "Built in %llu.%llu s: ", (unsigned long long)(took_ms / 1000),
            (unsigned long long)(took_ms % 1000 / 100));
    if (has_size)
        fprintf(cli->note, "%s written by its steps, ", text_bytes(&cli->arena, size).at);
    fprintf(cli->note, "template %.*s, build %.*s\n", STR_ARG(build->template_id), STR_ARG(build->build_id));
    fprintf(cli->out, "%.*s\n", STR_ARG(build->result));
    fprintf(cli->note, "To make a sandbox from it: %s sandbox create %.*s%s\n", cli_program(), STR_ARG(build->result),
            cli_same_server(cli));
    return true;
}

static bool build_there(struct build *build, struct err *err)
{
    uint64_t from_ms = clock_mono_ms();
    struct progress progress;

    if (!register_build(build, err) || !send_files(build, err))
        return false;
    interrupt_watch();
    if (!start_build(build, err))
        return false;
    progress_init(&progress, &build->cli->arena, build->cli->note, &build->file, build->start_cmd);
    bool fine = watch_build(build, &progress, err);
    progress_done(&progress);
    return fine && show_built(build, clock_mono_ms() - from_ms);
}

bool template_build_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    auto_context struct context context = { .fd = -1 };
    struct build build = { .cli = cli, .client = &client, .context = &context };

    return read_file(&build, err) && choose_name(&build, err) && context_open(&context, &cli->arena, build.dir, err) &&
           find_copies(&build, err) && client_open(&client, cli, CLIENT_AS_CALLER, err) && build_there(&build, err);
}
