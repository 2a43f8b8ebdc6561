/*
 * import.c - `cloister template import`: a template from an image in a file.
 *
 * How it works: the archive is uploaded as an SDK uploads files for COPY, by its hash, and only if the server does not have it.
 * Then a build is started that begins with it and has no steps. From there on it is a build like any other; its log is printed
 * until it has ended, and an interrupt cancels it. The key's team owns the template.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/image_file.h"
#include "cli/interrupt.h"
#include "cli/text.h"
#include "cli/upload.h"

enum {
    LOOK_MS = 300,   /* between looks at the build */
    TRIES_MOST = 10, /* looks that fail, one after the other */
    NAME_BYTES = 129,
    CPUS_MOST = 32,
};

struct import {
    struct cli *cli;
    struct client client;
    struct image_file file;
    const char *name;
    char hash[IMAGE_HASH_BYTES];
    struct str template_id, build_id;
    uint64_t line_count; /* of the log, that were printed */
};

/* ---- before the build ---- */

static bool post(struct import *import, struct str target, const struct buf *body, struct client_answer *out,
                 struct err *err)
{
    if (body->overflowed)
        return err_set(err, ERR_LIMIT, "the request is too long");
    return client_call(&import->client, "POST", target, buf_str(body), out, err);
}

static bool take_size(struct cli *cli, struct json_out *json, struct err *err)
{
    uint64_t value;

    if (cli->cpu) {
        if (!args_number("cpu", cli->cpu, 1, CPUS_MOST, &value, err))
            return false;
        json_out_int(json, "cpuCount", (int64_t)value);
    }
    if (cli->memory) {
        if (!args_number("memory", cli->memory, 128, INT32_MAX, &value, err))
            return false;
        json_out_int(json, "memoryMB", (int64_t)value);
    }
    return true;
}

static bool register_build(struct import *import, struct err *err)
{
    struct cli *cli = import->cli;
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct client_answer answer = { 0 };
    struct str template_id, build_id;

    json_out_object(&json, NULL);
    json_out_str(&json, "name", str_from(import->name));
    if (!take_size(cli, &json, err))
        return false;
    json_out_end(&json);
    if (!post(import, STR("/v3/templates"), &body, &answer, err))
        return false;
    auto_json json_t *made = answer.json;
    if (!json_take_str(made, "templateID", JSON_REQUIRED, &template_id, err) ||
        !json_take_str(made, "buildID", JSON_REQUIRED, &build_id, err))
        return client_misread(err);
    import->template_id = arena_copy(&cli->arena, template_id);
    import->build_id = arena_copy(&cli->arena, build_id);
    return true;
}

static bool read_file(void *context, char *room, size_t size, size_t *out_len, struct err *err)
{
    return image_file_read(context, room, size, out_len, err);
}

static bool send_file(struct import *import, struct err *err)
{
    struct cli *cli = import->cli;
    struct client_answer answer = { 0 };
    bool is_there = false;
    struct str target =
                   arena_format(&cli->arena, "/templates/%.*s/files/%s", STR_ARG(import->template_id), import->hash),
               url;

    if (!client_call(&import->client, "GET", target, STR(""), &answer, err))
        return false;
    auto_json json_t *link = answer.json;
    if (!json_take_bool(link, "present", JSON_REQUIRED, &is_there, err) ||
        !json_take_str(link, "url", JSON_REQUIRED, &url, err))
        return client_misread(err);
    if (is_there) {
        fprintf(cli->note, "The server has the archive already.\n");
        return true;
    }
    const struct upload_source source = { .size = import->file.size, .read = read_file, .context = &import->file };
    return upload_send(&import->client, url, &source, err);
}

static bool start_build(struct import *import, struct err *err)
{
    struct cli *cli = import->cli;
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct client_answer answer = { 0 };

    json_out_object(&json, NULL);
    json_out_str(&json, "fromArchive", str_from(import->hash));
    if (cli->image)
        json_out_str(&json, "fromArchiveImage", str_from(cli->image));
    json_out_end(&json);
    interrupt_watch();
    bool ok = post(import,
                   arena_format(&cli->arena, "/v2/templates/%.*s/builds/%.*s", STR_ARG(import->template_id),
                                STR_ARG(import->build_id)),
                   &body, &answer, err);
    json_decref(answer.json);
    return ok;
}

/* ---- while it runs ---- */

/* What a build prints comes from whatever is in the image, and must not control the terminal. */
static void print_line(FILE *out, struct str line)
{
    for (size_t i = 0; i < line.len; i++)
        fputc((unsigned char)line.at[i] < ' ' || line.at[i] == 127 ? (line.at[i] == '\t' ? '\t' : '?') : line.at[i],
              out);
    fputc('\n', out);
}

static bool print_log(struct import *import, const json_t *status, struct err *err)
{
    const json_t *lines = NULL, *line;
    size_t i;

    if (!json_take_array(status, "logEntries", JSON_REQUIRED, &lines, err))
        return client_misread(err);
    json_array_foreach(lines, i, line)
    {
        struct str text = STR(""), level = STR("");
        if (!json_take_str(line, "message", JSON_OPTIONAL, &text, err) ||
            !json_take_str(line, "level", JSON_OPTIONAL, &level, err))
            return client_misread(err);
        if (!str_eq(level, STR("debug")))
            print_line(import->cli->note, text);
    }
    import->line_count += json_array_size(lines);
    return true;
}

static bool failed(struct import *import, const json_t *status, struct err *err)
{
    const json_t *reason = NULL;
    struct str text = STR("");

    if (!json_take_object(status, "reason", JSON_OPTIONAL, &reason, err) ||
        (reason && !json_take_str(reason, "message", JSON_OPTIONAL, &text, err)))
        return client_misread(err);
    return client_refused(import->cli, ERR_INVALID, text.len ? text : STR("the build has failed"), err);
}

/* Each answer is read in an arena of its own: a build may take an hour. */
static bool fetch_status(struct import *import, json_t **out, struct err *err)
{
    struct cli *cli = import->cli;
    struct client_answer answer = { 0 };
    struct arena before = cli->arena;

    arena_init(&cli->arena);
    bool ok = client_call(&import->client, "GET",
                          arena_format(&cli->arena, "/templates/%.*s/builds/%.*s/status?logsOffset=%llu",
                                       STR_ARG(import->template_id), STR_ARG(import->build_id),
                                       (unsigned long long)import->line_count),
                          STR(""), &answer, err);
    cli->refusal = STR("");
    arena_done(&cli->arena);
    cli->arena = before;
    *out = answer.json;
    return ok;
}

/* One look. *out_over: it is ready. */
static bool look(struct import *import, bool *out_over, struct err *err)
{
    json_t *answer = NULL;
    struct str state;

    if (!fetch_status(import, &answer, err))
        return false;
    auto_json json_t *status = answer;
    size_t lines = json_array_size(json_object_get(status, "logEntries"));
    if (!json_take_str(status, "status", JSON_REQUIRED, &state, err))
        return client_misread(err);
    if (!print_log(import, status, err))
        return false;
    if (lines) /* there may be more: an end counts only after the last line */
        return true;
    if (str_eq(state, STR("error")))
        return failed(import, status, err);
    *out_over = str_eq(state, STR("ready"));
    return true;
}

static bool cancel(struct import *import, struct err *err)
{
    struct cli *cli = import->cli;
    struct client_answer answer = { 0 };

    cli->exit_code = EXIT_BY_SIGNAL + interrupt_signal();
    if (!client_call(&import->client, "DELETE",
                     arena_format(&cli->arena, "/templates/%.*s/builds/%.*s", STR_ARG(import->template_id),
                                  STR_ARG(import->build_id)),
                     STR(""), &answer, err))
        return err_wrap(err, "cancel the build");
    json_decref(answer.json);
    return err_set(err, ERR_CONFLICT, "interrupted; the build is cancelled");
}

static bool watch(struct import *import, struct err *err)
{
    bool is_over = false;

    for (unsigned tries = 0; !is_over;) {
        uint64_t before = import->line_count;
        if (interrupt_signal())
            return cancel(import, err);
        if (look(import, &is_over, err))
            tries = 0;
        else if (err->kind != ERR_UNAVAILABLE || ++tries == TRIES_MOST)
            return false;
        if (!is_over && import->line_count == before && !interrupt_signal())
            (void)usleep(LOOK_MS * 1000);
    }
    return true;
}

/* ---- the command ---- */

static bool choose_name(struct import *import, struct err *err)
{
    struct cli *cli = import->cli;
    char room[NAME_BYTES];

    import->name = cli->name;
    if (import->name)
        return true;
    if (!image_file_name(cli->words[0], room, sizeof room))
        return err_set(err, ERR_INVALID, "'%.60s' makes no name of a template: give one by --name", cli->words[0]);
    import->name = arena_text(&cli->arena, str_from(room));
    return true;
}

static bool print_end(struct import *import)
{
    struct cli *cli = import->cli;

    if (cli->json) {
        auto_json json_t *made = json_object();
        json_object_set_new(made, "name", json_string(import->name));
        json_object_set_new(made, "templateID", json_stringn(import->template_id.at, import->template_id.len));
        json_object_set_new(made, "buildID", json_stringn(import->build_id.at, import->build_id.len));
        return client_print(cli, made);
    }
    fprintf(cli->out, "%s\n", import->name);
    fprintf(cli->note, "To make a sandbox from it: %s sandbox create %s%s\n", cli_program(), import->name,
            cli_same_server(cli));
    return true;
}

static bool run(struct import *import, struct err *err)
{
    struct cli *cli = import->cli;
    struct str size = text_bytes(&cli->arena, import->file.size);

    fprintf(cli->note, "Importing %s (%.*s) as the template '%s'\n", cli->words[0], STR_ARG(size), import->name);
    /* Before the hash, which takes time if the file is large: names and sizes may be wrong, or the key. */
    return register_build(import, err) && image_file_hash(&import->file, import->hash, err) && send_file(import, err) &&
           start_build(import, err) && watch(import, err) && print_end(import);
}

bool template_import_run(struct cli *cli, struct err *err)
{
    struct import import = { .cli = cli };

    if (!choose_name(&import, err) || !image_file_open(&import.file, cli->words[0], &cli->arena, err))
        return false;
    bool ok = client_open(&import.client, cli, CLIENT_AS_CALLER, err) && run(&import, err);
    client_close(&import.client);
    image_file_close(&import.file);
    return ok || err_wrap(err, "import %.60s", cli->words[0]);
}
