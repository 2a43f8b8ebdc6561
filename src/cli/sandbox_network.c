/*
 * sandbox_network.c - create a sandbox with its network rules, show one, and replace its rules while it runs.
 */
#include "base/limits.h"
#include "base/mem.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/text.h"

/* ---- the request ---- */

static void words_write(struct json_out *json, const char *name, const struct cli_list *list)
{
    if (!list->count)
        return;
    json_out_array(json, name);
    for (size_t i = 0; i < list->count; i++)
        json_out_str(json, NULL, str_from(list->at[i]));
    json_out_end(json);
}

static bool internet_check(const struct cli *cli, struct err *err)
{
    return !(cli->internet && cli->no_internet) ||
           err_set(err, ERR_INVALID, "--internet and --no-internet contradict each other: give one of them, or none");
}

/* Neither: what the server was started with. */
static void internet_write(struct json_out *json, const struct cli *cli)
{
    if (cli->internet || cli->no_internet)
        json_out_bool(json, "allow_internet_access", cli->internet);
}

static void rules_write(struct json_out *json, const struct cli *cli)
{
    words_write(json, "allowOut", &cli->allow_out);
    words_write(json, "denyOut", &cli->deny_out);
}

bool sandbox_create_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    uint64_t timeout_s = 0;
    struct str id;

    if (!internet_check(cli, err))
        return false;
    if (cli->timeout && !args_number("timeout", cli->timeout, 1, LIMIT_TIMEOUT_S, &timeout_s, err))
        return false;
    json_out_object(&json, NULL);
    json_out_str(&json, "templateID", cli->word_count ? str_from(cli->words[0]) : STR("base"));
    if (timeout_s)
        json_out_int(&json, "timeout", (int64_t)timeout_s);
    internet_write(&json, cli);
    json_out_object(&json, "network");
    rules_write(&json, cli);
    json_out_end(&json);
    json_out_end(&json);
    if (!client_open(&client, cli, CLIENT_AS_CALLER, err) ||
        !client_call(&client, "POST", STR("/v2/sandboxes"), buf_str(&body), &answer, err))
        return err_wrap(err, "create a sandbox");
    auto_json json_t *made = answer.json;
    if (cli->json)
        return client_print(cli, made);
    if (!json_take_str(made, "sandboxID", JSON_REQUIRED, &id, err))
        return client_misread(err);
    fprintf(cli->out, "%.*s\n", STR_ARG(id));
    return true;
}

/* ---- showing ---- */

static json_t *fetch_one(struct client *client, struct str id, struct err *err)
{
    struct client_answer answer = { 0 };
    struct str target;

    if (!client_target(client->cli, STR("/sandboxes/"), id, STR(""), &target, err) ||
        !client_call(client, "GET", target, STR(""), &answer, err))
        return NULL;
    return answer.json;
}

/* "a, b, c", or `none`. An object gives its names. */
static struct str joined(struct cli *cli, const json_t *list, const char *none)
{
    struct buf text = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    const json_t *entry;
    const char *name;
    json_t *value;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        buf_add(&text, STR(", "));
        if (json_is_integer(entry))
            buf_add(&text, arena_format(&cli->arena, "%lld", (long long)json_integer_value(entry)));
        else
            buf_add(&text, json_str(entry));
    }
    if (json_is_object(list))
        json_object_foreach((json_t *)list, name, value)
        {
            buf_add(&text, STR(", "));
            buf_add(&text, str_from(name));
        }
    struct str all = buf_str(&text);
    return str_skip(&all, STR(", ")) ? all : str_from(none);
}

static void fact(struct table *table, const char *name, struct str value)
{
    table_row(table, (const struct str[]){ str_from(name), value });
}

static void network_facts(struct cli *cli, struct table *table, const json_t *sandbox)
{
    const json_t *network = json_object_get(sandbox, "network");
    const json_t *proxy = json_object_get(network, "egressProxy");
    const json_t *rules = json_object_get(network, "rules");

    fact(table, "internet access",
         json_is_true(json_object_get(sandbox, "allowInternetAccess")) ? STR("on") : STR("off"));
    fact(table, "allowed out", joined(cli, json_object_get(network, "allowOut"), "-"));
    fact(table, "denied out", joined(cli, json_object_get(network, "denyOut"), "-"));
    if (json_has(network, "dnsServers"))
        fact(table, "DNS servers", joined(cli, json_object_get(network, "dnsServers"), "none"));
    if (rules)
        fact(table, "headers set for", joined(cli, rules, "-"));
    if (proxy)
        fact(table, "egress proxy", json_str(json_object_get(proxy, "address")));
}

static struct str text_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_string(value) ? json_str(value) : STR("-");
}

static void sandbox_facts(struct cli *cli, struct table *table, const json_t *sandbox)
{
    const json_t *network = json_object_get(sandbox, "network");
    long long cpus = json_integer_value(json_object_get(sandbox, "cpuCount"));

    fact(table, "sandbox", text_of(sandbox, "sandboxID"));
    fact(table, "template", text_of(sandbox, "alias"));
    fact(table, "state", text_of(sandbox, "state"));
    if (json_has(sandbox, "pauseMode"))
        fact(table, "kept",
             str_eq(text_of(sandbox, "pauseMode"), STR("full")) ? STR("files and processes") : STR("files"));
    fact(table, "started", text_ago(&cli->arena, text_of(sandbox, "startedAt")));
    bool is_paused = str_eq(text_of(sandbox, "state"), STR("paused"));
    if (is_paused) /* it has no deadline, and the API says there when it was paused */
        fact(table, "paused at", text_of(sandbox, "endAt"));
    fact(table, "ends at", is_paused ? STR("-") : text_of(sandbox, "endAt"));
    fact(table, "CPUs", arena_format(&cli->arena, "%lld", cpus));
    fact(table, "memory", text_mib(&cli->arena, json_integer_value(json_object_get(sandbox, "memoryMB"))));
    network_facts(cli, table, sandbox);
    fact(table, "ports are",
         json_is_false(json_object_get(network, "allowPublicTraffic")) ? STR("private: they need the traffic token")
                                                                       : STR("public"));
    if (json_has(network, "httpsPorts"))
        fact(table, "ports with TLS", joined(cli, json_object_get(network, "httpsPorts"), "-"));
    if (json_has(network, "maskRequestHost"))
        fact(table, "Host header", text_of(network, "maskRequestHost"));
}

static bool show(struct cli *cli, struct client *client, void (*facts)(struct cli *, struct table *, const json_t *),
                 struct err *err)
{
    static const char *const heads[] = { "WHAT", "VALUE", NULL };
    struct table table;
    auto_json json_t *sandbox = fetch_one(client, str_from(cli->words[0]), err);

    if (!sandbox)
        return err_wrap(err, "sandbox %.40s", cli->words[0]);
    if (!json_is_object(sandbox))
        return err_set(err, ERR_INTERNAL, "the server's answer is not an object");
    if (cli->json)
        return client_print(cli, sandbox);
    table_init(&table, &cli->arena, heads);
    facts(cli, &table, sandbox);
    table_print(&table, cli->out, cli->is_colored, "");
    return true;
}

bool sandbox_info_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };

    return client_open(&client, cli, CLIENT_AS_CALLER, err) && show(cli, &client, sandbox_facts, err);
}

/* ---- replacing ---- */

static bool replace_rules(struct cli *cli, struct client *client, struct err *err)
{
    struct client_answer answer = { 0 };
    struct buf body = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    struct json_out json = json_out_to(&body);
    struct str target;

    json_out_object(&json, NULL);
    internet_write(&json, cli);
    rules_write(&json, cli);
    json_out_end(&json);
    if (!client_target(cli, STR("/sandboxes/"), str_from(cli->words[0]), STR("/network"), &target, err) ||
        !client_call(client, "PUT", target, buf_str(&body), &answer, err))
        return err_wrap(err, "network of sandbox %.40s", cli->words[0]);
    json_decref(answer.json);
    return true;
}

bool sandbox_network_run(struct cli *cli, struct err *err)
{
    auto_client struct client client = { 0 };
    bool has_rules = cli->internet || cli->no_internet || cli->allow_out.count || cli->deny_out.count;

    if (!internet_check(cli, err))
        return false;
    if (cli->reset && has_rules)
        return err_set(err, ERR_INVALID, "--reset removes all rules: it cannot be combined with new ones");
    return client_open(&client, cli, CLIENT_AS_CALLER, err) &&
           (!(has_rules || cli->reset) || replace_rules(cli, &client, err)) && show(cli, &client, network_facts, err);
}
