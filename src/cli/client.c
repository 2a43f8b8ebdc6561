#include "cli/client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "http/http.h"
#include "io/address.h"

/* ---- where ---- */

bool client_parse_url(struct str url, char out_address[CLIENT_ADDRESS_BYTES], struct err *err)
{
    struct str rest = url;
    struct sockaddr_storage address;
    socklen_t len;
    char text[CLIENT_ADDRESS_BYTES];

    if (str_skip_nocase(&rest, STR("https://")))
        return err_set(err, ERR_INVALID, "this command supports http only, not '%.*s'", (int)MIN(url.len, 60u), url.at);
    if (!str_skip_nocase(&rest, STR("http://")))
        return err_set(err, ERR_INVALID, "a URL must begin with http://, not '%.*s'", (int)MIN(url.len, 60u), url.at);
    while (str_ends(rest, STR("/")))
        rest.len--;
    struct str host = rest;
    bool is_local = str_skip_nocase(&host, STR("localhost")) && (host.len == 0 || host.at[0] == ':');
    /* A colon after the last bracket begins a port. */
    struct str tail = is_local ? host : rest;
    size_t bracket = tail.len;
    while (bracket > 0 && tail.at[bracket - 1] != ']')
        bracket--;
    bool has_port = str_has_char(str_of(tail.at + bracket, tail.len - bracket), ':');
    int size =
        snprintf(text, sizeof text, "%s%.*s%s", is_local ? "127.0.0.1" : "", STR_ARG(tail), has_port ? "" : ":80");
    if (size < 0 || (size_t)size >= sizeof text || !address_parse(str_from(text), &address, &len, err))
        return err_set(err, ERR_INVALID, "'%.*s' is not http://ADDRESS:PORT with a literal address or localhost",
                       (int)MIN(url.len, 60u), url.at);
    memcpy(out_address, text, sizeof text);
    return true;
}

/* The first line of DIR/name, on the heap. Callers turn a failure into advice, which depends on the file. */
static char *read_line(const char *data, const char *name, struct err *err)
{
    auto_close int dir_fd = open(data, O_PATH | O_DIRECTORY | O_CLOEXEC);
    char *text = NULL;
    size_t len;

    if (dir_fd < 0) {
        (void)err_sys(err, "open %s", data);
        return NULL;
    }
    if (!fd_read_file(dir_fd, name, 4096, &text, &len, err))
        return NULL;
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static bool is_default(const char *data)
{
    return strcmp(data, CLI_DATA_DEFAULT) == 0;
}

struct str client_listen_again(struct cli *cli)
{
    struct err ignored;
    auto_free char *line = read_line(cli_data(cli), "server", &ignored);

    return line && strcmp(line, CLI_LISTEN_DEFAULT) != 0 ? arena_format(&cli->arena, " --listen %.60s", line) : STR("");
}

bool client_server_address(const char *data, char out_address[CLIENT_ADDRESS_BYTES], struct err *err)
{
    auto_free char *line = read_line(data, "server", err);
    static const struct {
        struct str wildcard, reachable;
    } wildcards[] = {
        { STR_INIT("0.0.0.0:"), STR_INIT("127.0.0.1:") },
        { STR_INIT("[::]:"), STR_INIT("[::1]:") },
    };

    if (!line) {
        if (err->kind == ERR_DENIED)
            return err_set(err, ERR_DENIED, "%.60s/server is not readable for you; try with sudo", data);
        if (err->kind == ERR_NOT_FOUND)
            return err_set(err, ERR_NOT_FOUND, "no server has run in %.40s yet; `%s serve%s%.40s` starts one", data,
                           cli_program_as_root(), is_default(data) ? "" : " --data ", is_default(data) ? "" : data);
        return err_wrap(err, "find the server");
    }
    struct str address = str_from(line);
    struct str start = STR("");
    for (size_t i = 0; i < COUNT_OF(wildcards); i++)
        if (str_skip(&address, wildcards[i].wildcard))
            start = wildcards[i].reachable;
    int size = snprintf(out_address, CLIENT_ADDRESS_BYTES, "%.*s%.*s", STR_ARG(start), STR_ARG(address));
    if (size <= 0 || size >= CLIENT_ADDRESS_BYTES)
        return err_set(err, ERR_INTERNAL, "%.60s/server does not contain an address", data);
    return true;
}

bool client_server_domain(const char *data, char *out_domain, size_t domain_size, char *out_tls, size_t tls_size)
{
    char path[PATH_MAX];
    auto_free char *text = NULL;
    size_t len;
    struct err err;
    auto_close int dir_fd = open(data, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (dir_fd < 0 || !fd_read_file(dir_fd, "server", 4096, &text, &len, &err) ||
        faccessat(dir_fd, "tls/ca-bundle.pem", R_OK, 0) < 0 || !realpath(data, path))
        return false;
    struct str rest = str_of(text, len), address, domain;
    if (!str_cut(&rest, '\n', &address) || !str_cut(&rest, '\n', &domain) || domain.len == 0 ||
        domain.len >= domain_size || strlen(path) + sizeof "/tls" > tls_size)
        return false;
    (void)snprintf(out_domain, domain_size, "%.*s", STR_ARG(domain));
    (void)snprintf(out_tls, tls_size, "%s/tls", path);
    return true;
}

bool client_server_has_mail(const char *data)
{
    auto_close int dir_fd = open(data, O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    if (dir_fd < 0 || !fd_read_file(dir_fd, "server", 4096, &text, &len, &err))
        return true; /* none has said that it has not */
    struct str rest = str_of(text, len), line;
    for (int i = 0; i < 3; i++)
        if (!str_cut(&rest, '\n', &line))
            return true;
    return !str_eq(line, STR("mail off"));
}

bool client_read_secret(const char *data, const char *name, struct secret *out, struct err *err)
{
    char *line = read_line(data, name, err);

    if (!line) {
        if (err->kind == ERR_DENIED)
            return err_set(err, ERR_DENIED, "only root can read %.60s/%s; try with sudo", data, name);
        if (err->kind == ERR_NOT_FOUND)
            return err_set(err, ERR_NOT_FOUND, "there is no %.40s/%s yet; `%s serve%s%.40s` makes it", data, name,
                           cli_program_as_root(), is_default(data) ? "" : " --data ", is_default(data) ? "" : data);
        return err_wrap(err, "read %s", name);
    }
    bool fits = secret_set(out, str_from(line));
    explicit_bzero(line, strlen(line));
    free(line);
    if (!fits || out->len == 0)
        return err_set(err, ERR_INTERNAL, "%.60s/%s is damaged", data, name);
    return true;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

static const char *own_key(const struct cli *cli, enum client_as as)
{
    return cli->data || as == CLIENT_AS_ADMIN ? NULL : environment("E2B_API_KEY");
}

bool client_is_operator(const struct cli *cli)
{
    return !own_key(cli, CLIENT_AS_CALLER);
}

const char *client_url(const struct cli *cli, enum client_as as)
{
    return cli->url ? cli->url : own_key(cli, as) ? environment("E2B_API_URL") : NULL;
}

bool client_is_elsewhere(struct cli *cli)
{
    const char *url = client_url(cli, CLIENT_AS_CALLER);
    char asked[CLIENT_ADDRESS_BYTES], usual[CLIENT_ADDRESS_BYTES];
    struct err ignored;

    return url && !(client_parse_url(str_from(url), asked, &ignored) &&
                    client_server_address(cli_data(cli), usual, &ignored) && strcmp(asked, usual) == 0);
}

/* A user who has set E2B_API_URL expects that we use it, and must not change another server by mistake. */
static bool check_ignored_url(const struct client *client, enum client_as as, struct err *err)
{
    const char *wanted = environment("E2B_API_URL");
    char address[CLIENT_ADDRESS_BYTES];
    struct err ignored;

    if (!wanted || (client_parse_url(str_from(wanted), address, &ignored) && strcmp(address, client->address) == 0))
        return true;
    if (as == CLIENT_AS_CALLER)
        return err_set(err, ERR_INVALID,
                       "E2B_API_URL is set and E2B_API_KEY is not: set the key of that server, or say --data DIR, or "
                       "unset E2B_API_URL for that of %.30s",
                       cli_data(client->cli));
    return err_set(
        err, ERR_INVALID,
        "E2B_API_URL names another server than %s, which is that of %.30s; say which with --data DIR, or unset "
        "E2B_API_URL",
        client->address, cli_data(client->cli));
}

bool client_open(struct client *client, struct cli *cli, enum client_as as, struct err *err)
{
    const char *key = own_key(cli, as), *url = client_url(cli, as);

    *client = (struct client){ .cli = cli, .is_by_url = url != NULL, .timeout_ms = CLIENT_CALL_MS };
    if (url ? !client_parse_url(str_from(url), client->address, err)
            : !client_server_address(cli_data(cli), client->address, err))
        return false;
    client->credential_name = as == CLIENT_AS_ADMIN ? STR("X-Admin-Token") : STR("X-API-Key");
    if (key) {
        client->credential_from = "the key in E2B_API_KEY";
        return secret_set(&client->credential, str_from(key)) ||
               err_set(err, ERR_INVALID, "E2B_API_KEY is too long to be a key");
    }
    client->credential_from =
        arena_format(&cli->arena, "the %s of %s", as == CLIENT_AS_ADMIN ? "admin token" : "API key", cli_data(cli)).at;
    return (url || cli->data || check_ignored_url(client, as, err)) &&
           client_read_secret(cli_data(cli), as == CLIENT_AS_ADMIN ? "admin-token" : "api-key", &client->credential,
                              err);
}

void client_close(struct client *client)
{
    secret_wipe(&client->credential);
}

/* ---- calls ---- */

enum err_kind client_kind_of(unsigned status)
{
    switch (status) {
    case 401:
    case 403:
        return ERR_DENIED;
    case 404:
    case 410:
        return ERR_NOT_FOUND;
    case 409:
        return ERR_CONFLICT;
    case 413:
    case 429:
        return ERR_LIMIT;
    case 507:
        return ERR_FULL;
    case 408:
    case 504:
        return ERR_TIMEOUT;
    case 502:
    case 503:
        return ERR_UNAVAILABLE;
    default:
        return status >= 400 && status < 500 ? ERR_INVALID : ERR_INTERNAL;
    }
}

bool client_refused(struct cli *cli, enum err_kind kind, struct str message, struct err *err)
{
    cli->refusal = arena_copy(&cli->arena, message);
    return err_set(err, kind, "%.*s", (int)MIN(message.len, sizeof err->message), message.len ? message.at : "");
}

bool client_error(struct cli *cli, unsigned status, struct str body, struct err *err)
{
    struct err ignored;
    struct str message = STR("");
    auto_json json_t *json = json_parse_object(body, &ignored);

    /* A proxy in between may answer in HTML. Then the status is all there is. */
    if (!json || !json_take_str(json, "message", JSON_OPTIONAL, &message, &ignored) || message.len == 0)
        return err_set(err, client_kind_of(status), "the server answered %u %s", status, http_reason(status));
    return client_refused(cli, client_kind_of(status), message, err);
}

/* We call only routes of our own version, so the server is of another one. */
static bool is_no_route(const struct err *err)
{
    return err->kind == ERR_NOT_FOUND && strncmp(err->message, "no route ", 9) == 0;
}

bool client_misread(struct err *err)
{
    struct err why = *err;

    return err_set(err, ERR_UNAVAILABLE,
                   "the server runs another version of Cloister (%.60s in its answer); restart it with this one",
                   why.message);
}

bool client_call(struct client *client, const char *method, struct str target, struct str body,
                 struct client_answer *out, struct err *err)
{
    struct arena *arena = &client->cli->arena;
    struct http_answer answer;
    const struct http_field fields[] = {
        { client->credential_name, secret_reveal(&client->credential) },
        { STR("User-Agent"), STR("cloister-cli/" CLOISTER_VERSION) },
        { STR("Content-Type"), STR("application/json") },
    };

    if (!http_fetch(arena, str_from(client->address), str_from(method), target, fields,
                    body.len ? COUNT_OF(fields) : COUNT_OF(fields) - 1, body, client->timeout_ms, &answer, err)) {
        if (err->sys == ECONNREFUSED && client->is_by_url)
            return err_set(err, ERR_UNAVAILABLE,
                           "no server answers at %s, which %s names: start it, or %s for another one", client->address,
                           client->cli->url ? "--url" : "E2B_API_URL",
                           client->cli->url ? "leave --url out" : "unset E2B_API_URL and E2B_API_KEY");
        if (err->sys == ECONNREFUSED)
            return err_set(err, ERR_UNAVAILABLE, "no server answers at %s; `%s serve%.60s%.*s` starts one",
                           client->address, cli_program_as_root(), cli_same_server(client->cli),
                           STR_ARG(client_listen_again(client->cli)));
        return err_wrap(err, "%s at %s", method, client->address);
    }
    if (answer.status == 401)
        return err_set(err, ERR_DENIED, "the server at %s refuses %.60s%s", client->address, client->credential_from,
                       client->is_by_url ? "" : "; --data DIR names another directory, with its server");
    if (answer.status < 200 || answer.status > 299) {
        (void)client_error(client->cli, answer.status, answer.body, err);
        if (is_no_route(err))
            return err_set(err, ERR_UNAVAILABLE,
                           "the server runs another version of Cloister, without %s %.*s; restart it with this one",
                           method, (int)MIN(target.len, (size_t)50), target.at);
        return false;
    }

    json_t *json = NULL;
    if (answer.body.len && !(json = json_parse_large(answer.body, LIMIT_JSON_LARGE_VALUES, err)))
        return err_wrap(err, "answer to %s %.*s", method, STR_ARG(target));
    const struct str *token = http_header(&answer.head, STR("X-Next-Token"));
    *out = (struct client_answer){ answer.status, json, token ? arena_copy(arena, *token) : STR("") };
    return true;
}

bool client_get(struct cli *cli, enum client_as as, struct str target, json_t **out_json, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };

    if (!client_open(&client, cli, as, err) || !client_call(&client, "GET", target, STR(""), &answer, err))
        return false;
    *out_json = answer.json;
    return true;
}

json_t *client_get_pages(struct client *client, struct str first, struct err *err)
{
    auto_json json_t *all = json_array();
    struct str token = STR("");

    do {
        struct buf target = buf_make(&client->cli->arena, LIMIT_TARGET_BYTES);
        struct client_answer answer = { 0 };
        buf_add(&target, first);
        if (token.len) {
            buf_add(&target, STR("&nextToken="));
            percent_encode(&target, token);
        }
        if (!client_call(client, "GET", buf_str(&target), STR(""), &answer, err))
            return NULL;
        auto_json json_t *page = answer.json;
        if (json_array_extend(all, page) != 0) {
            (void)err_set(err, ERR_INTERNAL, "the server's list is not a list");
            return NULL;
        }
        /* A server that repeats a token would make this loop endless. */
        if (str_eq(token, answer.next_token))
            break;
        token = answer.next_token;
    } while (token.len && json_array_size(all) < 10 * LIMIT_SANDBOXES);
    return take_ptr(&all);
}

bool client_target(struct cli *cli, struct str before, struct str id, struct str after, struct str *out,
                   struct err *err)
{
    struct buf target = buf_make(&cli->arena, LIMIT_TARGET_BYTES);

    buf_add(&target, before);
    percent_encode(&target, id);
    buf_add(&target, after);
    if (target.overflowed)
        return err_set(err, ERR_LIMIT, "the id %.40s… is too long", arena_text(&cli->arena, id));
    *out = buf_str(&target);
    return true;
}

bool client_print(struct cli *cli, const json_t *json)
{
    json_dumpf(json, cli->out, JSON_INDENT(2) | JSON_ENCODE_ANY);
    fputc('\n', cli->out);
    return true;
}

bool client_print_list(struct cli *cli, const json_t *list, const char *const *heads, client_row_fn *row,
                       const char *empty, struct err *err)
{
    struct table table;

    if (cli->json)
        return client_print(cli, list);
    table_init(&table, &cli->arena, heads);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!row(cli, &table, json_array_get(list, i), err))
            return client_misread(err);
    table_print(&table, cli->out, cli->is_colored, empty);
    return true;
}
