/*
 * mail.c - `cloister mail`: inboxes, keys, held messages and decisions, for the operator.
 *
 * All commands use the admin token of the data directory. It opens what is held, and nothing else of an inbox.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/mail_text.h"
#include "cli/text.h"

/* ---- calls ---- */

/* *out_json is the caller's to release; never NULL. */
static bool call(struct cli *cli, const char *method, struct str target, struct str body, json_t **out_json,
                 struct err *err)
{
    auto_client struct client client = { 0 };
    struct client_answer answer = { 0 };

    if (!client_open(&client, cli, CLIENT_AS_ADMIN, err) || !client_call(&client, method, target, body, &answer, err))
        return false;
    *out_json = answer.json;
    return answer.json || client_misread(err);
}

/* "/mail/inboxes/" + id + after. */
static bool target_of(struct cli *cli, const char *before, const char *id, const char *after, struct str *out,
                      struct err *err)
{
    return client_target(cli, str_from(before), str_from(id), str_from(after), out, err);
}

static struct buf body_room(struct cli *cli)
{
    return buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
}

/* A text of strangers, on one line; "" if the field is not there. */
static struct str shown(struct cli *cli, const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_string(value) ? mail_text_line(&cli->arena, json_str(value)) : STR("");
}

static struct str shown_list(struct cli *cli, const json_t *object, const char *name)
{
    const json_t *list = json_object_get(object, name), *item;
    struct buf out = buf_make(&cli->arena, LIMIT_CALL_BODY_BYTES);
    size_t i;

    json_array_foreach(list, i, item)
    {
        struct str text = mail_text_line(&cli->arena, json_is_string(item) ? json_str(item) : STR("?"));
        buf_format(&out, "%s%.*s", i ? ", " : "", STR_ARG(text));
    }
    return buf_str(&out);
}

static bool print_rows(struct cli *cli, const char *path, const char *name, const char *const *heads,
                       client_row_fn *row, const char *empty, struct err *err)
{
    auto_json json_t *answer = NULL;
    const json_t *list;

    if (!call(cli, "GET", str_from(path), STR(""), &answer, err))
        return false;
    if (cli->json)
        return client_print(cli, answer);
    if (!json_take_array(answer, name, JSON_REQUIRED, &list, err))
        return client_misread(err);
    return client_print_list(cli, list, heads, row, empty, err);
}

static bool say_done(struct cli *cli, const json_t *answer, const char *what)
{
    if (cli->json)
        return client_print(cli, answer);
    fprintf(cli->note, "%s\n", what);
    return true;
}

/* ---- asking ---- */

static bool has_input(void)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };

    return poll(&in, 1, 0) == 1 && (in.revents & POLLIN);
}

/* Without a terminal there is nobody to ask: the command itself is the decision, unless the input has another answer. */
static bool confirm(struct cli *cli, const char *question)
{
    char line[16] = "";

    if (cli->yes)
        return true;
    if (!isatty(STDIN_FILENO))
        return !has_input() || !fgets(line, sizeof line, stdin) || (line[0] != 'n' && line[0] != 'N');
    fprintf(cli->note, "%s [y/N] ", question);
    fflush(cli->note);
    return fgets(line, sizeof line, stdin) && (line[0] == 'y' || line[0] == 'Y');
}

/* ---- inboxes ---- */

bool mail_inbox_create_run(struct cli *cli, struct err *err)
{
    auto_json json_t *inbox = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);
    struct str id, address, key;

    json_out_object(&json, NULL);
    json_out_str(&json, "name", str_from(cli->words[0]));
    if (cli->tenant)
        json_out_str(&json, "tenant", str_from(cli->tenant));
    json_out_end(&json);
    if (!call(cli, "POST", STR("/mail/inboxes"), buf_str(&body), &inbox, err))
        return false;
    if (cli->json)
        return client_print(cli, inbox);
    if (!json_take_str(inbox, "id", JSON_REQUIRED, &id, err) ||
        !json_take_str(inbox, "address", JSON_REQUIRED, &address, err) ||
        !json_take_str(inbox, "key", JSON_REQUIRED, &key, err))
        return client_misread(err);
    fprintf(cli->out, "id       %.*s\naddress  %.*s\nkey      %.*s\n", STR_ARG(id), STR_ARG(address), STR_ARG(key));
    if (json_is_true(json_object_get(inbox, "made_tenant")))
        fprintf(cli->note, "Made tenant %s, which was not there before: its approvers are its own.\n", cli->tenant);
    fprintf(cli->note, "Store the key now: it is not shown again, and without it nobody can read this inbox.\n");
    return true;
}

static bool inbox_row(struct cli *cli, struct table *table, const json_t *inbox, struct err *err)
{
    struct str created = STR("");

    if (!json_take_str(inbox, "created_at", JSON_OPTIONAL, &created, err))
        return false;
    table_row(table,
              (const struct str[]){ shown(cli, inbox, "id"), shown(cli, inbox, "address"), shown(cli, inbox, "tenant"),
                                    shown(cli, inbox, "mode"), text_ago(&cli->arena, created) });
    return true;
}

bool mail_inbox_list_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "ID", "ADDRESS", "TENANT", "MODE", "CREATED", NULL };

    return print_rows(cli, "/mail/inboxes", "inboxes", heads, inbox_row, "There are no inboxes.", err);
}

bool mail_inbox_delete_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL;
    struct str target;

    if (!confirm(cli, "Delete the inbox with all its messages?"))
        return err_set(err, ERR_CONFLICT, "nothing was deleted");
    return target_of(cli, "/mail/inboxes/", cli->words[0], "", &target, err) &&
           call(cli, "DELETE", target, STR(""), &answer, err) &&
           say_done(cli, answer, "The inbox is deleted. Its file is overwritten in seven days; its audit stays.");
}

bool mail_mode_run(struct cli *cli, struct err *err)
{
    auto_json json_t *inbox = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);
    struct str target, mode;

    if (!target_of(cli, "/mail/inboxes/", cli->words[0], cli->word_count > 1 ? "/mode" : "", &target, err))
        return false;
    if (cli->word_count > 1) {
        json_out_object(&json, NULL);
        json_out_str(&json, "mode", str_from(cli->words[1]));
        json_out_end(&json);
    }
    if (!call(cli, cli->word_count > 1 ? "PUT" : "GET", target, buf_str(&body), &inbox, err))
        return false;
    if (cli->json)
        return client_print(cli, inbox);
    if (!json_take_str(inbox, "mode", JSON_REQUIRED, &mode, err))
        return client_misread(err);
    fprintf(cli->out, "%.*s\n", STR_ARG(mode));
    return true;
}

/* ---- allowlist ---- */

static bool allow_row(struct cli *cli, struct table *table, const json_t *entry, struct err *err)
{
    struct str created = STR("");

    if (!json_take_str(entry, "created_at", JSON_OPTIONAL, &created, err))
        return false;
    table_row(table, (const struct str[]){ shown(cli, entry, "id"), shown(cli, entry, "pattern"),
                                           text_ago(&cli->arena, created) });
    return true;
}

bool mail_allow_list_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "ID", "PATTERN", "ADDED", NULL };
    struct str target;

    return target_of(cli, "/mail/inboxes/", cli->words[0], "/allow", &target, err) &&
           print_rows(cli, arena_text(&cli->arena, target), "entries", heads, allow_row, "The allowlist is empty.",
                      err);
}

bool mail_allow_add_run(struct cli *cli, struct err *err)
{
    auto_json json_t *entry = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);
    struct str target;

    json_out_object(&json, NULL);
    json_out_str(&json, "pattern", str_from(cli->words[1]));
    json_out_end(&json);
    return target_of(cli, "/mail/inboxes/", cli->words[0], "/allow", &target, err) &&
           call(cli, "POST", target, buf_str(&body), &entry, err) &&
           say_done(cli, entry, "Added. Messages whose recipients are all on the list leave without approval.");
}

bool mail_allow_remove_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL;
    struct str of_inbox, target;

    return target_of(cli, "/mail/inboxes/", cli->words[0], "/allow/", &of_inbox, err) &&
           client_target(cli, of_inbox, str_from(cli->words[1]), STR(""), &target, err) &&
           call(cli, "DELETE", target, STR(""), &answer, err) && say_done(cli, answer, "Removed.");
}

/* ---- keys and codes ---- */

/* "list,read" as an array. */
static void write_words(struct json_out *json, const char *name, const char *text)
{
    struct str list = str_from(text), word;

    json_out_array(json, name);
    while (list.len && str_cut(&list, ',', &word))
        json_out_str(json, NULL, str_trim(word));
    json_out_end(json);
}

bool mail_key_create_run(struct cli *cli, struct err *err)
{
    auto_json json_t *key = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);
    struct str id, text;

    if (cli->scopes && strcmp(cli->scopes, "oversight") != 0 && strcmp(cli->scopes, "oversight_read") != 0 &&
        strcmp(cli->scopes, "oversight,oversight_read") != 0)
        return err_set(
            err, ERR_INVALID,
            "--scopes is oversight or oversight_read: keys that read or send are made with their inbox, or by "
            "a key of it");
    json_out_object(&json, NULL);
    json_out_str(&json, "name", str_from(cli->words[0]));
    write_words(&json, "scopes", cli->scopes ? cli->scopes : "oversight");
    if (cli->tenant)
        json_out_str(&json, "tenant", str_from(cli->tenant));
    json_out_end(&json);
    if (!call(cli, "POST", STR("/mail/keys"), buf_str(&body), &key, err))
        return false;
    if (cli->json)
        return client_print(cli, key);
    if (!json_take_str(key, "id", JSON_REQUIRED, &id, err) || !json_take_str(key, "key", JSON_REQUIRED, &text, err))
        return client_misread(err);
    fprintf(cli->out, "%.*s\n", STR_ARG(text));
    fprintf(cli->note, "Store it now: it is not shown again. To revoke it: %s mail key revoke %.*s%s\n",
            cli_program_as_root(), STR_ARG(id), cli_same_server(cli));
    return true;
}

static bool key_row(struct cli *cli, struct table *table, const json_t *key, struct err *err)
{
    struct str used = STR("");

    if (!json_take_str(key, "last_used_at", JSON_OPTIONAL, &used, err))
        return false;
    table_row(table, (const struct str[]){ shown(cli, key, "id"), shown(cli, key, "name"), shown(cli, key, "prefix"),
                                           shown_list(cli, key, "scopes"), shown(cli, key, "tenant"),
                                           shown(cli, key, "inbox"), text_ago(&cli->arena, used) });
    return true;
}

bool mail_key_list_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "ID", "NAME", "KEY", "SCOPES", "TENANT", "INBOX", "LAST USED", NULL };

    return print_rows(cli, "/mail/keys", "keys", heads, key_row, "There are no keys.", err);
}

bool mail_key_revoke_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL;
    struct str target;

    return target_of(cli, "/mail/keys/", cli->words[0], "", &target, err) &&
           call(cli, "DELETE", target, STR(""), &answer, err) && say_done(cli, answer, "The key is revoked.");
}

static bool code_row(struct cli *cli, struct table *table, const json_t *code, struct err *err)
{
    struct str created = STR("");

    if (!json_take_str(code, "created_at", JSON_OPTIONAL, &created, err))
        return false;
    table_row(table,
              (const struct str[]){ shown(cli, code, "code"), shown(cli, code, "what"), shown(cli, code, "inbox"),
                                    shown(cli, code, "tenant"), text_ago(&cli->arena, created) });
    return true;
}

bool mail_codes_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "CODE", "FOR", "INBOX", "TENANT", "ASKED", NULL };

    return print_rows(cli, "/mail/codes", "codes", heads, code_row, "No agent has asked for a code.", err);
}

/* ---- held messages ---- */

static bool pending_row(struct cli *cli, struct table *table, const json_t *held, struct err *err)
{
    struct str since = STR("");

    if (!json_take_str(held, "received_at", JSON_OPTIONAL, &since, err))
        return false;
    bool inbound = str_eq(shown(cli, held, "direction"), STR("inbound"));
    if (json_is_true(json_object_get(held, "truncated"))) {
        table_row(table, (const struct str[]){ shown(cli, held, "id"), inbound ? STR("in") : STR("out"),
                                               inbound ? STR("") : shown(cli, held, "mailbox_address"),
                                               inbound ? shown(cli, held, "mailbox_address") : STR(""),
                                               STR("(too long for this list: see `mail show`)"),
                                               text_ago(&cli->arena, since) });
        return true;
    }
    table_row(table,
              (const struct str[]){ shown(cli, held, "id"), inbound ? STR("in") : STR("out"), shown(cli, held, "from"),
                                    shown_list(cli, held, inbound ? "to" : "recipients"), shown(cli, held, "subject"),
                                    text_ago(&cli->arena, since) });
    return true;
}

bool mail_pending_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "ID", "WAY", "FROM", "TO", "SUBJECT", "SINCE", NULL };
    auto_json json_t *all = json_array();
    struct str target = STR("/mail/pending"), cursor = STR("");

    for (int page = 0; page < LIMIT_MAIL_PENDING_PAGES && (page == 0 || cursor.len); page++) {
        auto_json json_t *answer = NULL;
        if ((page > 0 && !client_target(cli, STR("/mail/pending?cursor="), cursor, STR(""), &target, err)) ||
            !call(cli, "GET", target, STR(""), &answer, err))
            return false;
        cursor = STR("");
        if (!json_take_str(answer, "cursor", JSON_OPTIONAL, &cursor, err))
            return client_misread(err);
        if (json_array_extend(all, json_object_get(answer, "pending")) != 0) {
            (void)err_set(err, ERR_INVALID, "'pending' must be an array");
            return client_misread(err);
        }
        cursor = arena_copy(&cli->arena, cursor);
    }
    if (cli->json) {
        auto_json json_t *whole = json_object();
        (void)json_object_set(whole, "pending", all);
        (void)json_object_set_new(whole, "more", json_boolean(cursor.len > 0));
        (void)json_object_set_new(whole, "cursor", cursor.len ? json_stringn(cursor.at, cursor.len) : json_null());
        return client_print(cli, whole);
    }
    if (!client_print_list(cli, all, heads, pending_row, "Nothing waits for a decision.", err))
        return false;
    if (cursor.len)
        fprintf(cli->note, "More messages wait. Decide about some of these, then list again.\n");
    return true;
}

static void print_field(struct cli *cli, const char *name, struct str value)
{
    if (value.len)
        fprintf(cli->out, "%-10s %.*s\n", name, STR_ARG(value));
}

static void print_attachments(struct cli *cli, const json_t *held)
{
    const json_t *list = json_object_get(held, "attachments"), *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const json_t *size = json_object_get(item, "size");
        fprintf(cli->out, "%-10s %.*s, %.*s, %lld bytes, sha256 %.*s\n", "attached", STR_ARG(shown(cli, item, "name")),
                STR_ARG(shown(cli, item, "content_type")), (long long)json_integer_value(size),
                STR_ARG(shown(cli, item, "sha256")));
    }
}

static void print_warnings(struct cli *cli, const json_t *held)
{
    const json_t *list = json_object_get(held, "warnings"), *item;
    size_t i;

    json_array_foreach(list, i, item) fprintf(cli->out, "%-10s %.*s (%.*s)\n", "WARNING",
                                              STR_ARG(shown(cli, item, "detail")), STR_ARG(shown(cli, item, "code")));
}

/* HTML that the agent has written may say something else than the text. HTML from Markdown says the same. */
static bool has_own_html(const json_t *held)
{
    const json_t *list = json_object_get(held, "warnings"), *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const char *code = json_string_value(json_object_get(item, "code"));
        if (code && strcmp(code, "raw_html") == 0)
            return json_is_string(json_object_get(held, "html"));
    }
    return false;
}

/* Exactly what leaves: every recipient of the envelope, copies too. */
static void print_held(struct cli *cli, const json_t *held)
{
    const json_t *text = json_object_get(held, "markdown"), *answers = json_object_get(held, "answers");

    print_field(cli, "id", shown(cli, held, "id"));
    print_field(cli, "inbox", shown(cli, held, "mailbox_address"));
    print_field(cli, "tenant", shown(cli, held, "tenant"));
    print_field(cli, "from", shown(cli, held, "from"));
    print_field(cli, "to", shown_list(cli, held, "to"));
    print_field(cli, "cc", shown_list(cli, held, "cc"));
    print_field(cli, "bcc", shown_list(cli, held, "bcc"));
    print_field(cli, "reply to", shown(cli, held, "reply_to"));
    print_field(cli, "goes to", shown_list(cli, held, "recipients"));
    print_field(cli, "subject", shown(cli, held, "subject"));
    print_field(cli, "send at", shown(cli, held, "send_at"));
    print_field(cli, "expires", shown(cli, held, "expires_at"));
    print_field(cli, "sha256", shown(cli, held, "content_sha256"));
    print_attachments(cli, held);
    print_warnings(cli, held);
    fputc('\n', cli->out);
    if (json_is_string(text))
        mail_text_print(cli->out, &cli->arena, json_str(text));
    if (has_own_html(held)) {
        fprintf(cli->out, "\nIts HTML part, which most programs show instead of the text:\n");
        mail_text_print(cli->out, &cli->arena, json_str(json_object_get(held, "html")));
    }
    if (!json_is_object(answers))
        return;
    const json_t *answered = json_object_get(answers, "markdown");
    fprintf(cli->out, "\nIt answers a message from %.*s: %.*s\n", STR_ARG(shown(cli, answers, "from")),
            STR_ARG(shown(cli, answers, "subject")));
    if (json_is_string(answered))
        mail_text_print(cli->out, &cli->arena, json_str(answered));
}

static bool get_held(struct cli *cli, json_t **out, struct err *err)
{
    struct str target;

    if (target_of(cli, "/mail/messages/", cli->words[0], "", &target, err) &&
        call(cli, "GET", target, STR(""), out, err))
        return true;
    if (err->kind != ERR_NOT_FOUND)
        return false;
    return err_set(err, ERR_NOT_FOUND,
                   "no held message has this id: it was decided, has expired, or never was; `%s mail pending%.40s` "
                   "lists them",
                   cli_program_as_root(), cli_same_server(cli));
}

bool mail_show_run(struct cli *cli, struct err *err)
{
    auto_json json_t *held = NULL, *link = NULL;
    struct str target, url = STR("");

    if (!get_held(cli, &held, err) || !target_of(cli, "/mail/messages/", cli->words[0], "/link", &target, err))
        return false;
    /* The message is shown also when there is no link: it can be decided here. */
    bool has_link = call(cli, "POST", target, STR("{}"), &link, err);
    if (has_link && !json_take_str(link, "url", JSON_REQUIRED, &url, err))
        return client_misread(err);
    if (!has_link)
        fprintf(cli->note, "There is no link to a page that decides about it: %s\n", err_text(err));
    if (cli->json) {
        (void)json_object_set(held, "approval", has_link ? link : json_null());
        return client_print(cli, held);
    }
    print_held(cli, held);
    if (has_link)
        fprintf(cli->out, "\nTo decide on a page, with this link, which works once: %.*s\n",
                STR_ARG(mail_text_line(&cli->arena, url)));
    fprintf(cli->out, "Or here: %s mail approve %s%s\n", cli_program_as_root(), cli->words[0], cli_same_server(cli));
    return true;
}

static const char *what_became(struct cli *cli, bool approve, struct str status, struct str became)
{
    if (!approve)
        return "Rejected: it does not leave.";
    if (str_eq(became, STR("sent")))
        return "Approved and delivered.";
    if (str_eq(became, STR("send_failed")))
        return "Approved, but not delivered: this server has no such inbox, or it is full. See `mail audit`.";
    if (str_eq(became, STR("scheduled")))
        return "Approved: it leaves at its time.";
    if (str_eq(became, STR("queued")))
        return "Approved: it waits in the outgoing queue. This version delivers to inboxes of this server only.";
    struct str text = mail_text_line(&cli->arena, became.len ? became : status);
    return arena_text(&cli->arena, arena_format(&cli->arena, "Approved: %.*s.", STR_ARG(text)));
}

/* The hash of what was shown goes along, so that no other content is approved. */
static bool decide(struct cli *cli, bool approve, struct err *err)
{
    auto_json json_t *held = NULL, *answer = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);
    struct str target, status = STR(""), became = STR("");

    bool is_held = get_held(cli, &held, err);
    if (!is_held && err->kind != ERR_NOT_FOUND)
        return false;
    if (is_held && !cli->json) {
        print_held(cli, held);
        fputc('\n', cli->out);
        fflush(cli->out);
    }
    if (is_held && !confirm(cli, approve ? "Let exactly this leave?" : "Reject it?"))
        return err_set(err, ERR_CONFLICT, "nothing was decided");
    json_out_object(&json, NULL);
    json_out_str(&json, "action", approve ? STR("approve") : STR("reject"));
    /* If nothing was shown, nothing can be approved: the server says what became of the message. */
    json_out_str(&json, "content_sha256",
                 !is_held      ? STR("0000000000000000000000000000000000000000000000000000000000000000")
                 : cli->sha256 ? str_from(cli->sha256)
                               : json_str(json_object_get(held, "content_sha256")));
    if (cli->reason)
        json_out_str(&json, "reason", str_from(cli->reason));
    json_out_end(&json);
    if (!target_of(cli, "/mail/messages/", cli->words[0], "/decide", &target, err) ||
        !call(cli, "POST", target, buf_str(&body), &answer, err))
        return false;
    if (cli->json)
        return client_print(cli, answer);
    if (!json_take_str(answer, "status", JSON_OPTIONAL, &status, err) ||
        !json_take_str(answer, "email_status", JSON_OPTIONAL, &became, err))
        return client_misread(err);
    fprintf(cli->note, "%s\n", what_became(cli, approve, status, became));
    return true;
}

bool mail_approve_run(struct cli *cli, struct err *err)
{
    return decide(cli, true, err);
}

bool mail_reject_run(struct cli *cli, struct err *err)
{
    return decide(cli, false, err);
}

bool mail_oversight_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);

    json_out_object(&json, NULL);
    json_out_str(&json, "address", strcmp(cli->words[0], "none") == 0 ? STR("") : str_from(cli->words[0]));
    if (cli->tenant)
        json_out_str(&json, "tenant", str_from(cli->tenant));
    json_out_end(&json);
    return call(cli, "PUT", STR("/mail/oversight"), buf_str(&body), &answer, err) &&
           say_done(cli, answer,
                    strcmp(cli->words[0], "none") == 0 ? "No copies are made from now on."
                                                       : "Copies of what monitored inboxes send go there from now on.");
}

/* ---- grants ---- */

bool mail_grant_create_run(struct cli *cli, struct err *err)
{
    auto_json json_t *grant = NULL;
    struct buf body = body_room(cli);
    struct json_out json = json_out_to(&body);
    uint64_t expires_s;

    if (!cli->to || !cli->inbox || !cli->verbs || !cli->expires || !cli->reason)
        return err_set(err, ERR_INVALID, "mail grant create needs --to, --inbox, --verbs, --expires and --reason");
    if (!str_to_u64(str_from(cli->expires), INT32_MAX, &expires_s) || expires_s == 0)
        return err_set(err, ERR_INVALID, "--expires needs a number of seconds, not '%.40s'", cli->expires);
    json_out_object(&json, NULL);
    json_out_str(&json, "to", str_from(cli->to));
    json_out_str(&json, "inbox", str_from(cli->inbox));
    write_words(&json, "verbs", cli->verbs);
    json_out_int(&json, "expires_s", (int64_t)expires_s);
    json_out_str(&json, "reason", str_from(cli->reason));
    json_out_end(&json);
    if (!call(cli, "POST", STR("/mail/grants"), buf_str(&body), &grant, err))
        return false;
    if (cli->json)
        return client_print(cli, grant);
    fprintf(cli->out, "%.*s\n", STR_ARG(shown(cli, grant, "id")));
    fprintf(cli->note, "It takes effect when the inbox's own key is next used: only that can open the inbox.\n");
    return true;
}

static bool grant_row(struct cli *cli, struct table *table, const json_t *grant, struct err *err)
{
    bool effective = false;
    struct str created = STR(""), revoked = STR("");

    if (!json_take_bool(grant, "effective", JSON_OPTIONAL, &effective, err) ||
        !json_take_str(grant, "created_at", JSON_OPTIONAL, &created, err) ||
        !json_take_str(grant, "revoked_at", JSON_OPTIONAL, &revoked, err))
        return false;
    table_row(table, (const struct str[]){ shown(cli, grant, "id"), shown(cli, grant, "to"), shown(cli, grant, "inbox"),
                                           shown_list(cli, grant, "verbs"),
                                           revoked.len ? STR("revoked")
                                           : effective ? STR("in effect")
                                                       : STR("waiting"),
                                           text_ago(&cli->arena, created), shown(cli, grant, "reason") });
    return true;
}

bool mail_grant_list_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "ID", "TO", "INBOX", "VERBS", "STATE", "CREATED", "REASON", NULL };

    return print_rows(cli, "/mail/grants", "grants", heads, grant_row, "There are no grants.", err);
}

bool mail_grant_revoke_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL;
    struct str target;

    return target_of(cli, "/mail/grants/", cli->words[0], "", &target, err) &&
           call(cli, "DELETE", target, STR(""), &answer, err) && say_done(cli, answer, "The grant is revoked.");
}

/* ---- audit ---- */

static bool audit_row(struct cli *cli, struct table *table, const json_t *entry, struct err *err)
{
    struct str at = STR(""), hash = shown(cli, entry, "hash");

    if (!json_take_str(entry, "created_at", JSON_OPTIONAL, &at, err))
        return false;
    hash.len = hash.len > 12 ? 12 : hash.len;
    table_row(table, (const struct str[]){ mail_text_line(&cli->arena, at), shown(cli, entry, "action"),
                                           shown(cli, entry, "resource_id"), shown(cli, entry, "actor_key_id"), hash });
    return true;
}

bool mail_audit_run(struct cli *cli, struct err *err)
{
    static const char *const heads[] = { "TIME", "ACTION", "WHAT", "BY", "HASH", NULL };
    struct str target;

    return target_of(cli, "/mail/inboxes/", cli->words[0], "/audit?limit=100", &target, err) &&
           print_rows(cli, arena_text(&cli->arena, target), "entries", heads, audit_row, "The audit is empty.", err);
}

/* Prints each chain; fails if one of them does not fit. */
static bool print_verified(struct cli *cli, const json_t *list, struct err *err)
{
    const json_t *item;
    size_t i, broken = 0;

    json_array_foreach(list, i, item)
    {
        bool ok = json_is_true(json_object_get(item, "ok"));
        broken += !ok;
        if (!cli->json)
            fprintf(cli->out, "%.*s  %s, %lld rows%s%.*s\n", STR_ARG(shown(cli, item, "inbox")),
                    ok ? "whole" : "BROKEN", (long long)json_integer_value(json_object_get(item, "rows")),
                    ok ? "" : ": ", STR_ARG(shown(cli, item, "error")));
    }
    return broken == 0 || err_set(err, ERR_CONFLICT, "the audit of %zu inboxes was changed or is damaged", broken);
}

bool mail_audit_verify_run(struct cli *cli, struct err *err)
{
    auto_json json_t *answer = NULL, *one = NULL;
    struct str target = STR("/mail/audit/verify");
    const json_t *list;

    if (cli->word_count && !target_of(cli, "/mail/inboxes/", cli->words[0], "/audit/verify", &target, err))
        return false;
    if (!call(cli, "GET", target, STR(""), &answer, err))
        return false;
    if (cli->json)
        (void)client_print(cli, answer);
    one = cli->word_count ? json_pack("[O]", answer) : NULL;
    list = one ? one : json_object_get(answer, "inboxes");
    return json_is_array(list) ? print_verified(cli, list, err) : client_misread(err);
}
