/*
 * LobsterMail's dialect: its routes, and errors as {"error":code,"message":…,"requestId":…}. Names are camelCase.
 */
#include "api/mail_lobstermail.h"
#include "base/random.h"

/* The codes that LobsterMail's clients know; for others they show the message. */
static struct str code_of(unsigned status)
{
    switch (status) {
    case 400:
    case 413:
    case 415:
        return STR("invalid_request");
    case 401:
        return STR("authentication_error");
    case 403:
        return STR("insufficient_tier");
    case 404:
        return STR("not_found");
    case 405:
        return STR("method_not_allowed");
    case 409:
        return STR("conflict");
    case 426:
        return STR("upgrade_required");
    case 429:
        return STR("rate_limited");
    case 501:
        return STR("not_implemented");
    default:
        return STR("server_error");
    }
}

static bool is_at(const struct request *rq, handler_fn *handler)
{
    return rq->match.route && rq->match.route->handler == (void *)handler;
}

/*
 * A limit that waiting does not help against, such as a subject that is too long, is a 400; that of inboxes is a 429, as
 * for the service. Clients that look for a free address go on to the next one after address_collision only.
 */
static void problem(struct request *rq, const struct mail_problem *what)
{
    bool is_create = is_at(rq, lm_inbox_create);
    bool is_hopeless = what->kind == ERR_LIMIT && !what->retry_after_s && !is_create;
    unsigned status = is_hopeless ? 400 : what->status;
    struct json_out json = reply_json(rq, status);
    char id[17];

    random_id(id, 16);
    json_out_object(&json, NULL);
    json_out_str(&json, "error", is_create && what->kind == ERR_CONFLICT ? STR("address_collision") : code_of(status));
    json_out_str(&json, "message", what->message);
    json_out_str(&json, "requestId", arena_format(rq->arena, "req_%s", id));
    json_out_end(&json);
}

enum {
    READ = MAIL_SCOPE_READ,
    SEND = MAIL_SCOPE_SEND,
    ADMIN = MAIL_SCOPE_ADMIN,
    ANY_KEY = MAIL_ANY_KEY,
    PUBLIC = MAIL_PUBLIC,
    NO_PAGES = MAIL_NO_PAGES,
    LARGE = MAIL_LARGE,
};

#define NO_EXTRACTION "This server has no model that extracts data from messages: read the text of the message"
#define NO_DOMAINS "The operator of this server sets the domain of its addresses; others cannot be added"
#define NO_BILLING "This server is self-hosted and has no plans to pay for"
#define NO_VERIFYING "Accounts of this server need no verification: they can send, within the limits of GET /v1/account"
#define NO_GUIDES "This server has no guides of the service: its own documentation is docs/mail.md in Cloister's source"

static const struct http_route routes[] = {
    MAIL_ROUTE(POST, "/v1/signup", lm_signup, PUBLIC | NO_PAGES, "Make an account; its token is shown once"),
    MAIL_ROUTE(GET, "/v1/account", lm_account, ANY_KEY, "Describe the account: limits and use"),

    MAIL_ROUTE(POST, "/v1/inboxes", lm_inbox_create, ADMIN, "Make an inbox; its own token is shown once"),
    MAIL_ROUTE(GET, "/v1/inboxes", lm_inboxes, ANY_KEY, "List inboxes"),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}", lm_inbox, ANY_KEY, "Describe an inbox"),
    MAIL_ROUTE(PATCH, "/v1/inboxes/{id}", lm_inbox_update, ADMIN, "Change an inbox's display name"),
    MAIL_ROUTE(DELETE, "/v1/inboxes/{id}", lm_inbox_delete, ADMIN, "Delete an inbox; its address is not used again"),

    MAIL_ROUTE(GET, "/v1/inboxes/{id}/emails", lm_emails, READ, "List messages, newest first"),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}/emails/poll", lm_poll, READ,
               "Wait for a message for up to 25 seconds; 204 if none comes"),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}/emails/{email}", lm_email_get, READ, "Read a message, and mark it as read"),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}/emails/{email}/attachments/{index}", lm_attachment, READ,
               "Make a link to an attachment that works for an hour without a key"),
    MAIL_NO_ROUTE(POST, "/v1/inboxes/{id}/emails/{email}/extract", READ, NO_EXTRACTION),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}/emails/{email}/extraction", lm_extraction, READ,
               "There is never an extraction: 404"),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}/threads", lm_threads, READ, "List threads, the latest first"),
    MAIL_ROUTE(GET, "/v1/inboxes/{id}/threads/{thread}", lm_thread, READ, "Show a thread"),
    MAIL_ROUTE(POST, "/v1/emails/send", lm_send, SEND | LARGE, "Send a message from one of the account's inboxes"),
    MAIL_ROUTE(GET, "/v1/emails/search", lm_search, READ, "Search the messages of all inboxes of the account"),
    MAIL_ROUTE(GET, "/v1/ws", lm_socket, READ, "Events of inboxes by WebSocket; the key is ?token="),
    MAIL_ROUTE(GET, "/v1/files/{token}", lm_file, PUBLIC, "Fetch an attachment by its link"),

    MAIL_ROUTE(POST, "/v1/webhooks", lm_webhook_add, ADMIN, "Add a webhook; its secret is shown once"),
    MAIL_ROUTE(GET, "/v1/webhooks", lm_webhooks, ADMIN, "List webhooks"),
    MAIL_ROUTE(PATCH, "/v1/webhooks/{webhook}", lm_webhook_update, ADMIN,
               "Enable a webhook that was disabled after failures"),
    MAIL_ROUTE(DELETE, "/v1/webhooks/{webhook}", lm_webhook_delete, ADMIN, "Remove a webhook"),

    MAIL_NO_ROUTE(POST, "/v1/verify/{provider}", ANY_KEY, NO_VERIFYING),
    MAIL_NO_ROUTE(POST, "/v1/billing/{what}", ANY_KEY, NO_BILLING),
    MAIL_NO_ROUTE(POST, "/v1/domains", ANY_KEY, NO_DOMAINS),
    MAIL_NO_ROUTE(GET, "/v1/domains", ANY_KEY, NO_DOMAINS),
    MAIL_NO_ROUTE(GET, "/v1/domains/{domain}", ANY_KEY, NO_DOMAINS),
    MAIL_NO_ROUTE(DELETE, "/v1/domains/{domain}", ANY_KEY, NO_DOMAINS),
    MAIL_NO_ROUTE(GET, "/v1/domains/{domain}/status", ANY_KEY, NO_DOMAINS),
    MAIL_NO_ROUTE(POST, "/v1/domains/{domain}/verify", ANY_KEY, NO_DOMAINS),
    MAIL_NO_ROUTE(GET, "/v1/docs/{what}", PUBLIC, NO_GUIDES),
    MAIL_NO_ROUTE(GET, "/v1/docs/guides/{slug}", PUBLIC, NO_GUIDES),
};

const struct mail_dialect mail_lobstermail = { "LobsterMail", routes, COUNT_OF(routes), problem };
