/*
 * api.c - the checks of a request at guestd's public port, in this order: CORS preflight, is guestd set up, access
 * token, user, route. Each gives upstream's answer, because SDKs depend on it.
 */
#include "guest/api.h"

#include "base/encode.h"
#include "base/limits.h"
#include "guest/answer.h"
#include "guest/copy.h"
#include "guest/files.h"
#include "guest/filesystem.h"
#include "guest/interpreter/interpreter.h"
#include "guest/link.h"
#include "guest/metrics.h"
#include "guest/process_rpc.h"
#include "guest/rpc.h"
#include "guest/trust.h"
#include "guest/watch.h"
#include "wire/json.h"

/* ---- users ---- */

bool api_default_user(struct guest *guest, struct arena *arena, struct user *out, struct err *err)
{
    return users_find(guest->users, arena, guest->default_user, out) ||
           err_set(err, ERR_DENIED, "invalid default user: '%.*s'", STR_ARG(guest->default_user));
}

/* "Basic dXNlcjo=": the name in front of the colon. False if there is no such header. */
static bool basic_user(struct http_exchange *ex, struct str *out_name)
{
    const struct str *header = http_header(&ex->head, STR("authorization"));
    struct str text, rest;
    size_t len;

    if (!header)
        return false;
    text = *header;
    if (!str_skip_nocase(&text, STR("basic ")))
        return false;
    text = str_trim(text);
    unsigned char *room = arena_alloc(&ex->arena, text.len / 4 * 3 + 3);
    if (!base64_decode(text, room, &len))
        return false;
    rest = str_of(room, len);
    return str_has_char(rest, ':') && str_cut(&rest, ':', out_name);
}

bool api_user(struct guest *guest, struct http_exchange *ex, struct user *out, struct err *err)
{
    struct str name;

    if (!basic_user(ex, &name))
        return api_default_user(guest, &ex->arena, out, err);
    return users_find(guest->users, &ex->arena, name, out) ||
           err_set(err, ERR_DENIED, "invalid username: '%.*s'", (int)MIN(name.len, 100), name.at);
}

/* ---- plain routes ---- */

static void health(struct guest *guest, struct http_exchange *ex)
{
    struct http_field fresh = { STR("Cache-Control"), STR("no-store") };

    (void)guest;
    answer(ex, 204, &fresh, 1, STR(""));
}

static void answer_json(struct http_exchange *ex, struct str json)
{
    struct http_field type = { STR("Content-Type"), STR("application/json") };

    answer(ex, 200, &type, 1, json);
}

/* For a code interpreter that runs as a separate program: its interpreters get the same variables. */
static void envs(struct guest *guest, struct http_exchange *ex)
{
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
    struct json_out out = json_out_to(&body);

    json_out_object(&out, NULL);
    for (size_t i = 0; i < guest->env_count; i++)
        json_out_pair(&out, guest->envs[i].name, guest->envs[i].value);
    json_out_end(&out);
    answer_json(ex, buf_str(&body));
}

static void metrics(struct guest *guest, struct http_exchange *ex)
{
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);

    (void)guest;
    metrics_write(&body);
    answer_json(ex, buf_str(&body));
}

/* ---- routes ---- */

typedef void serve_fn(struct guest *guest, struct http_exchange *ex);

enum {
    NO_TOKEN = 1, /* open to all, or with an authorisation of its own */
    EARLY = 2,    /* also before the host has set us up */
    IS_RPC = 4,   /* the handler is a struct rpc_method, otherwise a serve_fn */
};

static const struct http_route routes[] = {
    { HTTP_GET, "/health", (void *)health, NO_TOKEN | EARLY, "Is guestd there?" },
    { HTTP_GET, "/files", (void *)files_download, NO_TOKEN, "Download a file" },
    { HTTP_POST, "/files", (void *)files_upload, NO_TOKEN, "Upload files" },
    { HTTP_POST, "/cloister/copy", (void *)copy_serve, 0, "Files of a COPY step, as an archive" },
    { HTTP_GET, "/metrics", (void *)metrics, 0, "CPU, memory and disk in use" },
    { HTTP_GET, "/envs", (void *)envs, 0, "The sandbox's global variables" },
    { HTTP_POST, "/process.Process/List", (void *)&process_list, IS_RPC, "What runs" },
    { HTTP_POST, "/process.Process/Start", (void *)&process_start, IS_RPC, "Run a command or a terminal" },
    { HTTP_POST, "/process.Process/Connect", (void *)&process_connect, IS_RPC, "Watch what runs" },
    { HTTP_POST, "/process.Process/Update", (void *)&process_update, IS_RPC, "Resize a terminal" },
    { HTTP_POST, "/process.Process/SendInput", (void *)&process_send_input, IS_RPC, "Write to stdin or a terminal" },
    { HTTP_POST, "/process.Process/StreamInput", (void *)&process_stream_input, IS_RPC, "The same, as a stream" },
    { HTTP_POST, "/process.Process/CloseStdin", (void *)&process_close_stdin, IS_RPC, "End of input" },
    { HTTP_POST, "/process.Process/SendSignal", (void *)&process_send_signal, IS_RPC, "Terminate or kill" },
    { HTTP_POST, "/filesystem.Filesystem/Stat", (void *)&filesystem_stat, IS_RPC, "One entry" },
    { HTTP_POST, "/filesystem.Filesystem/ListDir", (void *)&filesystem_list_dir, IS_RPC, "Entries of a directory" },
    { HTTP_POST, "/filesystem.Filesystem/MakeDir", (void *)&filesystem_make_dir, IS_RPC, "Make a directory" },
    { HTTP_POST, "/filesystem.Filesystem/Move", (void *)&filesystem_move, IS_RPC, "Rename" },
    { HTTP_POST, "/filesystem.Filesystem/Remove", (void *)&filesystem_remove, IS_RPC, "Remove, with all below" },
    { HTTP_POST, "/filesystem.Filesystem/WatchDir", (void *)&filesystem_watch_dir, IS_RPC, "Changes as a stream" },
    { HTTP_POST, "/filesystem.Filesystem/CreateWatcher", (void *)&filesystem_create_watcher, IS_RPC, "Gather changes" },
    { HTTP_POST, "/filesystem.Filesystem/GetWatcherEvents", (void *)&filesystem_get_watcher_events, IS_RPC,
      "Fetch gathered changes" },
    { HTTP_POST, "/filesystem.Filesystem/RemoveWatcher", (void *)&filesystem_remove_watcher, IS_RPC, "Stop gathering" },
};

bool api_has_token(const struct guest *guest, const struct http_exchange *ex)
{
    const struct str *token = http_header(&ex->head, STR("x-access-token"));

    return guest->token.len == 0 || secret_eq(&guest->token, token ? *token : STR(""));
}

/* An unknown user gets an error in Connect's format on every route. RPCs check the user themselves. */
static bool user_is_known(struct guest *guest, struct http_exchange *ex)
{
    struct user user;
    struct str name;
    struct err err;

    if (!basic_user(ex, &name) || api_user(guest, ex, &user, &err))
        return true;
    struct http_field type = { STR("Content-Type"), STR("application/json") };
    struct buf body = buf_make(&ex->arena, LIMIT_API_BODY_BYTES);
    connect_write_error(&body, CONNECT_UNAUTHENTICATED, str_from(err.message));
    answer(ex, 401, &type, 1, buf_str(&body));
    return false;
}

void guest_serve(struct http_exchange *ex, void *context)
{
    struct guest *guest = context;
    struct http_match match;
    struct err err;

    if (answer_preflight(ex))
        return;
    /* Effects of earlier requests must be seen before this one: see watch.h. */
    watchers_look(guest->watchers);
    if (!http_route(routes, COUNT_OF(routes), &ex->head, &ex->arena, &match, &err)) {
        answer_error(ex, 400, "%s", err.message);
        return;
    }
    unsigned flags = match.route ? match.route->flags : 0;
    if (!guest->is_set_up && !(flags & EARLY)) {
        answer_error(ex, 503, "the sandbox is not set up yet");
        return;
    }
    if (!(flags & NO_TOKEN) && !api_has_token(guest, ex)) {
        answer_error(ex, 401,
                     "unauthorized access, please provide a valid access token or method signing if supported");
        return;
    }
    if (!(flags & NO_TOKEN))
        http_trust(ex); /* connections from inside the sandbox cannot push out the host's */
    if (!(flags & IS_RPC) && !user_is_known(guest, ex))
        return;
    if (!(flags & EARLY))
        link_tell_network(guest);
    if (!match.route)
        answer_no_route(ex, &match, answer_error);
    else if (flags & IS_RPC)
        rpc_begin(guest, ex, match.route->handler);
    else
        ((serve_fn *)match.route->handler)(guest, ex);
}

/* ---- set-up by the host ---- */

static void add_env(struct guest *guest, struct str name, struct str value)
{
    struct guestlink_env *env = &guest->envs[guest->env_count++];

    env->name = arena_copy(&guest->setup_arena, name);
    env->value = arena_copy(&guest->setup_arena, value);
}

void guest_set_up(struct guest *guest, const struct guestlink_setup *setup)
{
    bool is_copy = guest->is_set_up && !str_eq(guest->sandbox_id, setup->sandbox_id);

    arena_done(&guest->setup_arena);
    guest->sandbox_id = arena_copy(&guest->setup_arena, setup->sandbox_id);
    secret_wipe(&guest->token);
    (void)!secret_set(&guest->token, setup->access_token); /* the decoder has checked that it fits */
    guest->open_code = setup->open_code;
    guest->default_user = arena_copy(&guest->setup_arena, setup->default_user.len ? setup->default_user : STR("root"));
    guest->default_workdir = arena_copy(&guest->setup_arena, setup->default_workdir);
    guest->envs = ARENA_ARRAY(&guest->setup_arena, struct guestlink_env, setup->env_count + 3 + TRUST_ENVS);
    guest->env_count = 0;
    /* The caller's variables override these. */
    for (size_t i = 0; setup->network.authority.pem.len && i < TRUST_ENVS; i++)
        add_env(guest, trust_envs[i].name, trust_envs[i].value);
    guest->caller_envs = guest->envs + guest->env_count;
    guest->caller_env_count = setup->env_count;
    for (uint32_t i = 0; i < setup->env_count; i++)
        add_env(guest, setup->envs[i].name, setup->envs[i].value);
    /* Last, so that the caller's variables cannot override them. */
    add_env(guest, STR("E2B_SANDBOX"), STR("true"));
    if (setup->sandbox_id.len)
        add_env(guest, STR("E2B_SANDBOX_ID"), setup->sandbox_id);
    if (setup->template_id.len)
        add_env(guest, STR("E2B_TEMPLATE_ID"), setup->template_id);
    guest->network = setup->network;
    guest->network.inside = arena_copy(&guest->setup_arena, setup->network.inside);
    guest->network.authority.pem = arena_copy(&guest->setup_arena, setup->network.authority.pem);
    guest->owes_network = true;
    guest->is_set_up = true;
    if (is_copy)
        interpreter_copied(guest->interpreter);
}
