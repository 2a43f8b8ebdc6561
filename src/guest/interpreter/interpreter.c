/*
 * How it works: decode the whole request, find or make its context, give the cell to it. A request that cannot be
 * decoded gets upstream's answer (422 with a `detail`), because SDKs show that.
 */
#include "guest/interpreter/interpreter.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/limits.h"
#include "base/mem.h"
#include "guest/answer.h"
#include "guest/api.h"
#include "guest/interpreter/context.h"
#include "guest/interpreter/jupyter.h"
#include "guest/interpreter/kernelspec.h"
#include "guest/interpreter/launch.h"
#include "guest/interpreter/limits.h"
#include "guest/interpreter/line.h"
#include "guest/interpreter/python.h"
#include "guest/link.h"
#include "wire/json.h"

enum { LANGUAGE_BYTES = 64 };

/* One context of the list. The default one of its language is used when a request names none. */
struct entry {
    struct interpreter *all;
    struct entry *next;
    struct context *context;
    bool is_default;
    struct kernelspec *spec; /* NULL: Python */
};

struct interpreter {
    struct guest *guest;
    struct http_server *server;
    struct python *python;
    struct entry *entries; /* in the order of creation */
    size_t count;
};

/* ---- answers ---- */

static void answer_text(struct http_exchange *ex, unsigned status, const char *format, ...) printf_like(3, 4);
static void answer_text(struct http_exchange *ex, unsigned status, const char *format, ...)
{
    struct http_field type = { STR("Content-Type"), STR("text/plain; charset=utf-8") };
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    answer(ex, status, &type, 1, str_from(text));
}

static void answer_json(struct http_exchange *ex, unsigned status, struct str json)
{
    struct http_field type = { STR("Content-Type"), STR("application/json") };

    answer(ex, status, &type, 1, json);
}

static void answer_unreadable(struct http_exchange *ex, const struct err *err)
{
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);

    json_out_object(&out, NULL);
    json_out_array(&out, "detail");
    json_out_object(&out, NULL);
    json_out_str(&out, "type", STR("value_error"));
    json_out_array(&out, "loc");
    json_out_str(&out, NULL, STR("body"));
    json_out_end(&out);
    json_out_str(&out, "msg", str_from(err->message));
    json_out_end(&out);
    json_out_end(&out);
    json_out_end(&out);
    answer_json(ex, 422, buf_str(&body));
}

/* The status follows from the error's kind. The body is text, as everywhere here. */
static void answer_err(struct http_exchange *ex, const char *doing, const struct err *err)
{
    static const unsigned status[ERR_KIND_COUNT] = {
        [ERR_INVALID] = 400,  [ERR_DENIED] = 403, [ERR_NOT_FOUND] = 404,
        [ERR_CONFLICT] = 409, [ERR_LIMIT] = 429,  [ERR_FULL] = 507,
    };

    answer_text(ex, status[err->kind] ? status[err->kind] : 500, "%s%s", doing, err->message);
}

static void add_context(struct json_out *out, const struct context *c)
{
    json_out_object(out, NULL);
    json_out_str(out, "id", str_from(context_id(c)));
    json_out_str(out, "language", str_from(context_language(c)));
    json_out_str(out, "cwd", str_from(context_cwd(c)));
    json_out_end(out);
}

/* ---- languages ---- */

/* "JS " becomes javascript, "" python. False if it is too long to be a language. */
static bool normalise_language(struct str given, char room[LANGUAGE_BYTES])
{
    given = str_trim(given);
    if (!given.len)
        given = STR("python");
    if (given.len >= LANGUAGE_BYTES)
        return false;
    for (size_t i = 0; i < given.len; i++)
        room[i] = char_lower(given.at[i]);
    room[given.len] = '\0';
    if (strcmp(room, "js") == 0)
        (void)snprintf(room, LANGUAGE_BYTES, "javascript");
    else if (strcmp(room, "ts") == 0)
        (void)snprintf(room, LANGUAGE_BYTES, "typescript");
    return true;
}

static bool err_no_language(struct interpreter *all, const struct user *user, const char *language, struct err *err)
{
    struct arena arena;
    char list[120];

    arena_init(&arena);
    kernelspec_list(user, &arena, list, sizeof list);
    arena_done(&arena);
    return err_set(err, ERR_NOT_FOUND, "the language '%.40s' is not installed in this template; there are: %s%s%s",
                   language, python_is_there(all->guest) ? "python" : "",
                   *list && python_is_there(all->guest) ? ", " : "", list);
}

/* The kernelspec that runs it; NULL is our own Python. False if there is none. */
static bool find_language(struct interpreter *all, const char *language, struct kernelspec **out, struct err *err)
{
    struct arena arena;
    struct user user;

    *out = NULL;
    arena_init(&arena);
    bool known = api_default_user(all->guest, &arena, &user, err);
    if (known && !(strcmp(language, "python") == 0 && python_is_there(all->guest))) {
        *out = kernelspec_find_new(&user, language);
        known = *out || err_no_language(all, &user, language, err);
    }
    arena_done(&arena);
    return known;
}

/* ---- contexts ---- */

static struct engine *start_engine(struct context *context, const struct engine_events *events, struct err *err)
{
    struct entry *entry = context_owner(context);
    struct guest *guest = entry->all->guest;
    struct arena arena;
    struct user user;
    struct engine *engine = NULL;

    arena_init(&arena);
    if (entry->spec) /* for Python, python_engine_new() knows whether a process starts */
        link_tell_network(guest);
    if (api_default_user(guest, &arena, &user, err)) {
        struct engine_want want = { .cwd = context_cwd(context),
                                    .env = launch_env(guest, &user, NULL, 0, &arena),
                                    .events = events,
                                    .owner = context };
        engine = entry->spec ? jupyter_engine_new(guest, &user, entry->spec, &want, err)
                             : python_engine_new(entry->all->python, &user, &want, err);
    }
    arena_done(&arena);
    return engine;
}

static void entry_free(struct entry *entry)
{
    kernelspec_free(entry->spec);
    free(entry);
}

static struct entry *add_entry(struct interpreter *all, const char *language, const char *cwd, struct err *err)
{
    struct kernelspec *spec;

    if (all->count >= LIMIT_CONTEXTS) {
        (void)err_set(err, ERR_LIMIT, "there are %d contexts already; remove one first", LIMIT_CONTEXTS);
        return NULL;
    }
    if (!find_language(all, language, &spec, err))
        return NULL;
    struct entry *entry = NEW(struct entry), **at = &all->entries;
    entry->all = all;
    entry->spec = spec;
    entry->context = context_new(all->guest->loop, language, cwd, start_engine, entry);
    while (*at)
        at = &(*at)->next;
    *at = entry;
    all->count++;
    return entry;
}

static void remove_entry(struct entry *entry)
{
    struct entry **at = &entry->all->entries;

    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    entry->all->count--;
    context_remove(entry->context);
    entry_free(entry);
}

static struct entry *entry_by_id(struct interpreter *all, struct str id)
{
    struct entry *entry = all->entries;

    while (entry && !str_eq(str_from(context_id(entry->context)), id))
        entry = entry->next;
    return entry;
}

static bool default_cwd(struct interpreter *all, char room[LIMIT_PATH_BYTES], struct err *err)
{
    struct arena arena;
    struct user user;
    struct str dir = all->guest->default_workdir;

    arena_init(&arena);
    bool fine = api_default_user(all->guest, &arena, &user, err) &&
                str_to_path(dir.len ? dir : user.home, room, LIMIT_PATH_BYTES, err);
    arena_done(&arena);
    return fine;
}

/* The default context of a language; made when first used, and again after it was removed. */
static struct entry *default_entry(struct interpreter *all, const char *language, struct err *err)
{
    char cwd[LIMIT_PATH_BYTES];

    for (struct entry *entry = all->entries; entry; entry = entry->next)
        if (entry->is_default && strcmp(context_language(entry->context), language) == 0)
            return entry;
    if (!default_cwd(all, cwd, err))
        return NULL;
    struct entry *made = add_entry(all, language, cwd, err);
    if (made)
        made->is_default = true;
    return made;
}

/* Clients expect these two contexts in a list from the start. Their interpreters start with their first cell. */
static const char *const defaults[] = { "python", "javascript" };

static void add_defaults(struct interpreter *all, size_t from, size_t to)
{
    struct err ignored; /* a template may lack the language */

    for (size_t i = from; i < to; i++)
        (void)!default_entry(all, defaults[i], &ignored);
}

/* ---- POST /execute ---- */

static void execute_gone(struct http_exchange *ex)
{
    cell_gone(ex->owner);
}

static void execute_drained(struct http_exchange *ex)
{
    cell_drained(ex->owner);
}

static const struct http_events execute_events = { .on_gone = execute_gone, .on_drained = execute_drained };

static bool decode_envs(struct arena *arena, const json_t *object, struct engine_code *out, struct err *err)
{
    struct guestlink_env *envs = ARENA_ARRAY(arena, struct guestlink_env, json_object_size(object) + 1);
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)object, name, value)
    {
        if (!*name || strchr(name, '=') || !json_is_string(value))
            return err_set(err, ERR_INVALID, "'env_vars' must map names without '=' to strings");
        envs[out->env_count++] =
            (struct guestlink_env){ arena_copy(arena, str_from(name)), arena_copy(arena, json_str(value)) };
    }
    out->envs = envs;
    return true;
}

struct execute_want {
    struct engine_code code;
    struct str context_id, language; /* at == NULL: not given */
};

static bool decode_execute(struct arena *arena, struct str body, struct execute_want *out, struct err *err)
{
    auto_json json_t *request = json_parse_object(body, err);
    const json_t *envs = NULL;

    if (!request || !json_take_str(request, "code", JSON_REQUIRED, &out->code.code, err) ||
        !json_take_str(request, "context_id", JSON_OPTIONAL, &out->context_id, err) ||
        !json_take_str(request, "language", JSON_OPTIONAL, &out->language, err) ||
        !json_take_object(request, "env_vars", JSON_OPTIONAL, &envs, err) || !decode_envs(arena, envs, &out->code, err))
        return false;
    out->code.code = arena_copy(arena, out->code.code);
    if (out->context_id.at)
        out->context_id = arena_copy(arena, out->context_id);
    if (out->language.at)
        out->language = arena_copy(arena, out->language);
    return true;
}

static struct entry *entry_for(struct interpreter *all, const struct execute_want *want, struct err *err)
{
    char language[LANGUAGE_BYTES];

    if (want->context_id.at && want->language.at) {
        (void)err_set(err, ERR_INVALID, "Only one of context_id or language can be provided");
        return NULL;
    }
    if (want->context_id.at) {
        struct entry *entry = entry_by_id(all, want->context_id);
        if (!entry)
            (void)err_set(err, ERR_NOT_FOUND, "Context %.*s not found", (int)MIN(want->context_id.len, 100),
                          want->context_id.at);
        return entry;
    }
    if (!normalise_language(want->language, language)) {
        (void)err_set(err, ERR_NOT_FOUND, "there is no language with such a long name");
        return NULL;
    }
    return default_entry(all, language, err);
}

static void execute_body(struct interpreter *all, struct http_exchange *ex, struct str body)
{
    struct execute_want want = { 0 };
    struct err err;

    if (!decode_execute(&ex->arena, body, &want, &err)) {
        answer_unreadable(ex, &err);
        return;
    }
    struct entry *entry = entry_for(all, &want, &err);
    if (!entry) {
        answer_err(ex, want.context_id.at ? "" : "Failed to create context: ", &err);
        return;
    }
    struct cell *cell = ARENA_NEW(&ex->arena, struct cell);
    cell->ex = ex;
    cell->code = want.code;
    ex->events = &execute_events;
    ex->owner = cell;
    /* Now, not when the context is free: an SDK waits for the head no longer than for any other request. */
    static const struct http_field fields[] = {
        { STR_INIT("Content-Type"), STR_INIT("application/x-ndjson") },
        { STR_INIT("Cache-Control"), STR_INIT("no-store") },
    };
    answer_start(ex, 200, fields, COUNT_OF(fields), HTTP_LENGTH_UNKNOWN);
    if (!context_run(entry->context, cell, &err)) {
        struct buf lines = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
        line_add_error(&lines, STR("TooManyExecutions"), str_from(err.message), STR(""));
        buf_add(&lines, LINE_END);
        http_write(ex, buf_str(&lines));
        http_end(ex);
    }
}

/*
 * A first cell comes before what it does not need: the spare gets ready for it while we look for JavaScript and write to /etc.
 * The spare gets the code when it has said that it is ready, and that we read on another turn of the loop.
 */
static void execute_code(struct http_exchange *ex, struct str body, const struct err *failed)
{
    struct interpreter *all = ex->owner;
    bool has_none = !all->entries;

    ex->owner = NULL;
    if (failed) {
        answer_text(ex, failed->kind == ERR_LIMIT ? 413 : 503, "%s", failed->message);
        return;
    }
    if (has_none)
        add_defaults(all, 0, 1);
    execute_body(all, ex, body);
    if (has_none)
        add_defaults(all, 1, COUNT_OF(defaults));
    link_tell_network(all->guest);
}

/* ---- POST /contexts ---- */

struct create {
    struct context_waiter waiter;
    struct interpreter *all;
    struct http_exchange *ex;
    char id[40];
};

static void created(struct context_waiter *waiter, const struct err *err)
{
    struct create *create = container_of(waiter, struct create, waiter);
    struct entry *entry = entry_by_id(create->all, str_from(create->id));
    struct http_exchange *ex = create->ex;

    if (err || !entry) {
        answer_text(ex, 500, "Failed to create context: %s", err ? err->message : "it was removed");
        return;
    }
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);
    add_context(&out, entry->context);
    answer_json(ex, 200, buf_str(&body));
}

/* Removes a context that could not start, or whose client has not waited for the answer. */
static void create_gone(struct http_exchange *ex)
{
    struct create *create = ex->owner;

    context_await_cancel(&create->waiter);
    if (ex->status == 200)
        return;
    struct entry *entry = entry_by_id(create->all, str_from(create->id));
    if (entry)
        remove_entry(entry);
}

static const struct http_events create_events = { .on_gone = create_gone };

/* With guestd's permissions. If only the user cannot enter the directory, the interpreter says so on stderr. */
static bool check_cwd(const char *cwd, struct err *err)
{
    struct stat about;

    if (cwd[0] != '/')
        return err_set(err, ERR_INVALID, "the working directory must be an absolute path");
    if (stat(cwd, &about) < 0)
        return err_set(err, ERR_INVALID, "the working directory '%.80s' cannot be used: %s", cwd, strerror(errno));
    return S_ISDIR(about.st_mode) || err_set(err, ERR_INVALID, "'%.80s' is not a directory", cwd);
}

static struct entry *make_context(struct interpreter *all, struct str body, struct err *err)
{
    auto_json json_t *request = json_parse_object(body, err);
    struct str language = STR(""), dir = STR("");
    char name[LANGUAGE_BYTES], cwd[LIMIT_PATH_BYTES];

    if (!request || !json_take_str(request, "language", JSON_OPTIONAL, &language, err) ||
        !json_take_str(request, "cwd", JSON_OPTIONAL, &dir, err)) {
        err->kind = ERR_NONE; /* cannot be decoded: 422 */
        return NULL;
    }
    if (!(dir.len ? str_to_path(dir, cwd, sizeof cwd, err) && check_cwd(cwd, err) : default_cwd(all, cwd, err)))
        return NULL;
    if (!normalise_language(language, name)) {
        (void)err_set(err, ERR_NOT_FOUND, "there is no language with such a long name");
        return NULL;
    }
    return add_entry(all, name, cwd, err);
}

static void create_context(struct http_exchange *ex, struct str body, const struct err *failed)
{
    struct interpreter *all = ex->owner;
    struct err err;

    ex->owner = NULL;
    if (failed) {
        answer_text(ex, failed->kind == ERR_LIMIT ? 413 : 503, "%s", failed->message);
        return;
    }
    struct entry *entry = make_context(all, body, &err);
    if (!entry && err.kind == ERR_NONE) {
        answer_unreadable(ex, &err);
    } else if (!entry) {
        answer_err(ex, "Failed to create context: ", &err);
    } else {
        struct create *create = ARENA_NEW(&ex->arena, struct create);
        create->waiter.done = created;
        create->all = all;
        create->ex = ex;
        (void)snprintf(create->id, sizeof create->id, "%s", context_id(entry->context));
        ex->events = &create_events;
        ex->owner = create;
        context_await(entry->context, &create->waiter);
    }
}

/* ---- the other routes ---- */

static void answer_health(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    (void)all;
    (void)match;
    answer_json(ex, 200, STR("\"OK\""));
}

static void list_contexts(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);

    (void)match;
    json_out_array(&out, NULL);
    for (struct entry *entry = all->entries; entry; entry = entry->next)
        add_context(&out, entry->context);
    json_out_end(&out);
    answer_json(ex, 200, buf_str(&body));
}

static struct entry *entry_of_path(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    struct entry *entry = entry_by_id(all, match->params[0]);

    if (!entry)
        answer_text(ex, 404, "Context %.*s not found", (int)MIN(match->params[0].len, 100), match->params[0].at);
    return entry;
}

static void restart_context(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    struct entry *entry = entry_of_path(all, ex, match);

    if (!entry)
        return;
    context_restart(entry->context);
    answer_json(ex, 200, STR("null"));
}

static void remove_context(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    struct entry *entry = entry_of_path(all, ex, match);

    if (!entry)
        return;
    remove_entry(entry);
    answer_json(ex, 200, STR("null"));
}

static void collect_execute(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    (void)match;
    ex->owner = all;
    http_collect(ex, LIMIT_API_BODY_BYTES, execute_code);
}

static void collect_create(struct interpreter *all, struct http_exchange *ex, const struct http_match *match)
{
    (void)match;
    ex->owner = all;
    http_collect(ex, LIMIT_API_BODY_BYTES, create_context);
}

typedef void serve_fn(struct interpreter *all, struct http_exchange *ex, const struct http_match *match);

enum {
    WANTS_TOKEN = 1,
    IS_CELL = 2, /* execute_code() adds the default contexts */
};

static const struct http_route routes[] = {
    { HTTP_GET, "/health", (void *)answer_health, 0, "Is the interpreter service there?" },
    { HTTP_POST, "/execute", (void *)collect_execute, WANTS_TOKEN | IS_CELL, "Run code" },
    { HTTP_POST, "/contexts", (void *)collect_create, 0, "Make a context" },
    { HTTP_GET, "/contexts", (void *)list_contexts, 0, "All contexts" },
    { HTTP_POST, "/contexts/{id}/restart", (void *)restart_context, 0, "A new interpreter for a context" },
    { HTTP_DELETE, "/contexts/{id}", (void *)remove_context, 0, "Remove a context" },
};

static void serve_request(struct http_exchange *ex, void *context)
{
    struct interpreter *all = context;
    struct http_match match;
    struct err err;

    if (answer_preflight(ex))
        return;
    if (!http_route(routes, COUNT_OF(routes), &ex->head, &ex->arena, &match, &err)) {
        answer_text(ex, 400, "%s", err.message);
    } else if (!all->guest->is_set_up) {
        answer_text(ex, 503, "the sandbox is not set up yet");
    } else if (!match.route) {
        answer_no_route(ex, &match, answer_text);
    } else if ((match.route->flags & WANTS_TOKEN) && !all->guest->open_code && !api_has_token(all->guest, ex)) {
        answer_text(ex, 401, "unauthorized access, please provide a valid access token");
    } else {
        if (!(match.route->flags & IS_CELL)) {
            link_tell_network(all->guest);
            if (!all->entries)
                add_defaults(all, 0, COUNT_OF(defaults));
        }
        ((serve_fn *)match.route->handler)(all, ex, &match);
    }
}

struct interpreter *interpreter_new(struct guest *guest, int listen_fd)
{
    struct interpreter *all = NEW(struct interpreter);
    struct http_server_config config = {
        .on_request = serve_request,
        .context = all,
        .collect_max = LIMIT_GUEST_COLLECT_BYTES,
        .connections_max = LIMIT_GUEST_CONNECTIONS,
    };

    all->guest = guest;
    all->python = python_new(guest);
    all->server = http_server_new(guest->loop, listen_fd, &config);
    return all;
}

void interpreter_free(struct interpreter *all)
{
    if (!all)
        return;
    http_server_free(all->server);
    for (struct entry *entry = all->entries, *next; entry; entry = next) {
        next = entry->next;
        remove_entry(entry);
    }
    python_free(all->python);
    free(all);
}

void interpreter_take_zygote(struct interpreter *all, int fd)
{
    python_take_zygote(all->python, fd);
}

void interpreter_warm(struct interpreter *all, void (*done)(struct guest *guest, const struct err *err))
{
    python_warm(all->python, done);
}

void interpreter_set_up(struct interpreter *all)
{
    struct arena arena;
    struct user user;
    struct err ignored;

    if (!all || !python_has_spare(all->python))
        return; /* without a look at the files of users */
    arena_init(&arena);
    bool has_user = api_default_user(all->guest, &arena, &user, &ignored); /* a request will say that there is none */
    python_set_up(all->python, has_user ? &user : NULL);
    arena_done(&arena);
}

void interpreter_prepare(struct interpreter *all)
{
    if (all)
        python_prepare(all->python);
}

bool interpreter_is_prepared(const struct interpreter *all)
{
    return !all || python_is_prepared(all->python);
}

void interpreter_give_up_spawns(struct interpreter *all)
{
    if (all)
        python_give_up_spawns(all->python);
}

void interpreter_resumed(struct interpreter *all)
{
    if (all)
        python_resumed(all->python);
}

void interpreter_copied(struct interpreter *all)
{
    if (all)
        python_copied(all->python);
}

void interpreter_reaped(struct interpreter *all, pid_t pid, int status)
{
    if (all)
        python_reaped(all->python, pid, status);
}
