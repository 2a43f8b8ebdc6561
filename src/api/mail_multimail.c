/*
 * MultiMail's dialect: its routes, and errors as {"error":"<text>"}.
 *
 * The first matching row wins, so fixed segments come before captured ones. The short forms at the beginning are those
 * of published scripts and of older clients; each is the same call as one of the long forms below.
 */
#include "api/mail_multimail.h"
#include "api/mail_page.h"

enum { RATE_S = 60 }; /* a wait that is longer is for a quota */

/*
 * Clients tell three kinds of 429 apart: the warm-up of a new address has fields of its own (we have no warm-up), a used-up
 * quota has the word "quota" in its text, and everything else is a rate. A limit that waiting does not help against, such
 * as a subject that is too long, is a 400.
 */
static void problem(struct request *rq, const struct mail_problem *what)
{
    bool is_hopeless = what->kind == ERR_LIMIT && !what->retry_after_s;
    bool is_quota = what->status == 429 && what->retry_after_s > RATE_S;
    struct json_out json = reply_json(rq, is_hopeless ? 400 : what->status);

    json_out_object(&json, NULL);
    json_out_str(&json, "error",
                 is_quota ? arena_format(rq->arena, "quota: %.*s", STR_ARG(what->message)) : what->message);
    json_out_end(&json);
}

enum {
    READ = MAIL_SCOPE_READ,
    SEND = MAIL_SCOPE_SEND,
    ADMIN = MAIL_SCOPE_ADMIN,
    OVERSIGHT = MAIL_SCOPE_OVERSIGHT,
    OVERSIGHT_READ = MAIL_SCOPE_OVERSIGHT_READ,
    PUBLIC = MAIL_PUBLIC,
    LARGE = MAIL_LARGE,
};

#define NO_ACCOUNTS "The operator of this server makes inboxes and keys: cloister mail inbox create"
#define NO_BILLING "This server is self-hosted and has no plans to pay for"
#define NO_DOMAINS "The operator of this server sets the domain of its addresses; others cannot be added"
#define NO_SUPPRESSION "This version of Cloister does not send to the outside and has no suppression list"
#define NO_SESSIONS "The operator of this server decides with cloister mail, not with sessions"

static const struct http_route routes[] = {
    /* short forms */
    MAIL_ROUTE(POST, "/v1/send", mm_send, SEND | LARGE, "Send a message from the mailbox that the body names"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/inbox", mm_inbox, READ, "List received messages, newest first"),
    MAIL_ROUTE(POST, "/v1/emails/send", mm_send, SEND | LARGE, "Send a message from the mailbox that the body names"),
    MAIL_ROUTE(GET, "/v1/emails/inbox", mm_inbox_by_address, READ,
               "List received messages of the mailbox in the query"),
    MAIL_ROUTE(GET, "/v1/emails/pending", mm_pending, OVERSIGHT | OVERSIGHT_READ,
               "List messages that wait for approval"),
    MAIL_ROUTE(GET, "/v1/emails/thread/{thread}", mm_thread_by_id, READ, "Show a thread"),
    MAIL_ROUTE(GET, "/v1/emails/{email}", mm_read_by_id, READ, "Read a message"),
    MAIL_ROUTE(POST, "/v1/emails/{email}/reply", mm_reply, SEND | LARGE, "Reply to a message"),
    MAIL_ROUTE(POST, "/v1/emails/{email}/decide", mm_decide_by_id, OVERSIGHT, "Approve or reject a message"),
    MAIL_ROUTE(POST, "/v1/emails/{email}/tag", mm_tag_by_id, SEND, "Add tags to a message"),

    /* mailboxes and mail */
    MAIL_ROUTE(GET, "/v1/mailboxes", mm_mailboxes, READ, "List mailboxes"),
    MAIL_ROUTE(POST, "/v1/mailboxes", mm_mailbox_create, ADMIN, "Make a mailbox, with a code of the operator"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}", mm_mailbox, READ, "Describe a mailbox"),
    MAIL_ROUTE(PATCH, "/v1/mailboxes/{id}", mm_mailbox_update, ADMIN | SEND,
               "Change a mailbox; a key with send may only lower its mode"),
    MAIL_ROUTE(PATCH, "/v1/mailboxes/{id}/configure", mm_mailbox_update, ADMIN | SEND, "The same"),
    MAIL_ROUTE(DELETE, "/v1/mailboxes/{id}", mm_mailbox_delete, ADMIN,
               "Delete a mailbox; its address is not used again"),
    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/send", mm_send_from, SEND | LARGE, "Send a message"),
    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/reply/{email}", mm_reply_from, SEND | LARGE, "Reply to a message"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/emails", mm_emails, READ, "List messages, filtered and in pages"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/emails/{email}", mm_read, READ, "Read a message, and mark it as read"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/emails/{email}/attachments/{name}", mm_attachment, READ, "Fetch an attachment"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/emails/{email}/attachments/{name}/url", mm_attachment_url, READ,
               "Make a link to an attachment that works for an hour without a key"),
    MAIL_ROUTE(GET, "/v1/files/{token}", mm_file, PUBLIC, "Fetch an attachment by its link"),
    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/emails/{email}/cancel", mm_cancel, SEND, "Cancel a message that has not left"),
    MAIL_ROUTE(PATCH, "/v1/mailboxes/{id}/emails/{email}/schedule", mm_schedule, SEND | LARGE,
               "Change a scheduled message"),
    MAIL_ROUTE(PUT, "/v1/mailboxes/{id}/emails/{email}/tags", mm_tags_set, SEND, "Add or change tags of a message"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/emails/{email}/tags", mm_tags_get, READ, "Show a message's tags"),
    MAIL_ROUTE(DELETE, "/v1/mailboxes/{id}/emails/{email}/tags/{key}", mm_tag_delete, SEND, "Remove a tag"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/threads", mm_threads, READ, "List threads, the latest first"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/threads/{thread}", mm_thread, READ, "Show a thread"),
    MAIL_ROUTE(GET, "/v1/emails", mm_spam, READ, "List messages of all mailboxes of the key, also spam"),
    MAIL_ROUTE(POST, "/v1/emails/{email}/report-spam", mm_report_spam, SEND, "Mark a message as spam"),
    MAIL_ROUTE(POST, "/v1/emails/{email}/not-spam", mm_not_spam, SEND, "Mark a message as no spam"),

    /* oversight and trust */
    MAIL_ROUTE(GET, "/v1/oversight/pending", mm_pending, OVERSIGHT | OVERSIGHT_READ,
               "List messages that wait for approval, with content and content_sha256"),
    MAIL_ROUTE(GET, "/v1/oversight/pending/{email}/attachments/{index}", mm_pending_attachment,
               OVERSIGHT | OVERSIGHT_READ, "Fetch an attachment of a message that waits, by its number from 0"),
    MAIL_ROUTE(POST, "/v1/oversight/decide", mm_decide, OVERSIGHT, "Approve or reject a message"),
    MAIL_ROUTE(GET, "/v1/approve/{token}", mail_page_show, PUBLIC, "The page that shows a held message, by its link"),
    MAIL_ROUTE(GET, "/v1/approve/{token}/attachments/{index}", mail_page_attachment, PUBLIC, "An attachment of it"),
    MAIL_ROUTE(POST, "/v1/approve/{token}", mail_page_decide, PUBLIC, "Its form: approves or rejects"),
    MAIL_ROUTE(GET, "/approve/{token}", mail_page_show, PUBLIC, "The page that shows a held message, by its link"),
    MAIL_ROUTE(GET, "/approve/{token}/attachments/{index}", mail_page_attachment, PUBLIC, "An attachment of it"),
    MAIL_ROUTE(POST, "/approve/{token}", mail_page_decide, PUBLIC, "Its form: approves or rejects"),
    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/request-upgrade", mm_request_upgrade, SEND,
               "Ask the operator for a code for a freer mode"),
    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/upgrade", mm_upgrade, SEND, "Use that code"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/allowlist", mm_allow_list, READ, "List recipients that need no approval"),
    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/allowlist", mm_allow_add, ADMIN | SEND,
               "Add one, with a code of the operator"),
    MAIL_ROUTE(DELETE, "/v1/mailboxes/{id}/allowlist/{entry}", mm_allow_remove, ADMIN | SEND,
               "Remove one, with a code of the operator"),
    MAIL_ROUTE(GET, "/v1/api-keys", mm_keys, ADMIN, "List keys"),
    MAIL_ROUTE(POST, "/v1/api-keys", mm_key_create, ADMIN, "Make a key, with a code of the operator; shown once"),
    MAIL_ROUTE(PATCH, "/v1/api-keys/{key}", mm_key_update, ADMIN, "Change a key's name or scopes"),
    MAIL_ROUTE(DELETE, "/v1/api-keys/{key}", mm_key_revoke, ADMIN, "Revoke a key"),
    MAIL_NO_ROUTE(POST, "/v1/operator/start-session", ADMIN, NO_SESSIONS),
    MAIL_NO_ROUTE(POST, "/v1/operator/verify-session", ADMIN, NO_SESSIONS),
    MAIL_NO_ROUTE(POST, "/v1/operator/end-session", ADMIN, NO_SESSIONS),
    MAIL_NO_ROUTE(GET, "/v1/operator/session", ADMIN, NO_SESSIONS),
    MAIL_ROUTE(GET, "/v1/audit-log", mm_audit, ADMIN,
               "What was done, newest first; each row has the hash of the one before"),

    /* account and the rest */
    MAIL_NO_ROUTE(POST, "/v1/account/challenge", PUBLIC, NO_ACCOUNTS),
    MAIL_NO_ROUTE(POST, "/v1/account/resend-confirmation", PUBLIC, NO_ACCOUNTS),
    MAIL_NO_ROUTE(POST, "/v1/account", PUBLIC, NO_ACCOUNTS),
    MAIL_NO_ROUTE(POST, "/v1/confirm", PUBLIC, NO_ACCOUNTS),
    MAIL_NO_ROUTE(GET, "/v1/slug-check/{slug}", PUBLIC, NO_ACCOUNTS),
    MAIL_ROUTE(GET, "/v1/account", mm_account, READ, "Describe the account of the key"),
    MAIL_ROUTE(PATCH, "/v1/account", mm_account_update, ADMIN,
               "Change where copies of monitored mail go, with a code of the operator"),
    MAIL_NO_ROUTE(DELETE, "/v1/account", ADMIN, NO_ACCOUNTS),
    MAIL_ROUTE(GET, "/v1/usage", mm_usage, READ, "How many messages were sent and received"),
    MAIL_ROUTE(POST, "/v1/contacts", mm_contact_add, SEND, "Add a contact"),
    MAIL_ROUTE(GET, "/v1/contacts", mm_contacts, READ, "List or search contacts"),
    MAIL_ROUTE(DELETE, "/v1/contacts/{contact}", mm_contact_delete, ADMIN | SEND, "Delete a contact"),
    MAIL_NO_ROUTE(GET, "/v1/suppression", ADMIN, NO_SUPPRESSION),
    MAIL_NO_ROUTE(DELETE, "/v1/suppression/{address}", ADMIN, NO_SUPPRESSION),
    MAIL_ROUTE(POST, "/v1/webhooks", mm_webhook_add, ADMIN, "Add a webhook, with a code of the operator"),
    MAIL_ROUTE(GET, "/v1/webhooks", mm_webhooks, ADMIN, "List webhooks"),
    MAIL_ROUTE(GET, "/v1/webhooks/{webhook}", mm_webhook, ADMIN, "Describe a webhook"),
    MAIL_ROUTE(DELETE, "/v1/webhooks/{webhook}", mm_webhook_remove, ADMIN, "Remove a webhook"),
    MAIL_NO_ROUTE(GET, "/v1/webhook-deliveries", ADMIN, "Deliveries of webhooks are in the server's log only"),
    MAIL_ROUTE(GET, "/v1/domains", mm_domains, ADMIN, "The domain of this server's addresses"),
    MAIL_NO_ROUTE(POST, "/v1/domains", ADMIN, NO_DOMAINS),
    MAIL_ROUTE(GET, "/v1/domains/{domain}", mm_domain, ADMIN, "The same domain, by its id"),
    MAIL_NO_ROUTE(DELETE, "/v1/domains/{domain}", ADMIN, NO_DOMAINS),
    MAIL_NO_ROUTE(POST, "/v1/domains/{domain}/verify", ADMIN, NO_DOMAINS),
    MAIL_NO_ROUTE(POST, "/v1/billing/{what}", ADMIN, NO_BILLING),
    MAIL_NO_ROUTE(GET, "/v1/billing/{what}", PUBLIC, NO_BILLING),
    MAIL_NO_ROUTE(GET, "/v1/export", ADMIN, "An export of everything is not available: list and read the messages"),
    MAIL_NO_ROUTE(GET, "/v1/unsubscribe/{token}", PUBLIC, NO_SUPPRESSION),
    MAIL_NO_ROUTE(POST, "/v1/unsubscribe/{token}", PUBLIC, NO_SUPPRESSION),
    MAIL_NO_ROUTE(POST, "/v1/feedback", PUBLIC, "This server is self-hosted: ask its operator"),
    MAIL_NO_ROUTE(POST, "/v1/support", PUBLIC, "This server is self-hosted: ask its operator"),
    MAIL_NO_ROUTE(GET, "/v1/proof-status", PUBLIC, "The proofs of the gate are in Cloister's source, tests/model"),
    MAIL_ROUTE(GET, "/v1/openapi.json", mm_openapi, PUBLIC, "This table as an OpenAPI document"),
    MAIL_ROUTE(GET, "/health", mm_health, PUBLIC, "Is the server there? From inside a sandbox"),
};

const struct mail_dialect mail_multimail = { "MultiMail", routes, COUNT_OF(routes), problem };

/* ---- the table as a document ---- */

void mm_openapi(struct request *rq)
{
    struct json_out json = reply_json(rq, 200);

    json_out_object(&json, NULL);
    json_out_str(&json, "openapi", STR("3.0.3"));
    json_out_object(&json, "info");
    json_out_str(&json, "title", STR("Mail of a Cloister server, MultiMail's dialect"));
    json_out_str(&json, "version", STR(CLOISTER_VERSION));
    json_out_end(&json);
    json_out_object(&json, "paths");
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        bool is_first = true;
        for (size_t k = 0; k < i; k++)
            is_first = is_first && !str_eq(str_from(routes[k].pattern), str_from(routes[i].pattern));
        if (!is_first)
            continue;
        json_out_object(&json, routes[i].pattern);
        for (size_t k = i; k < COUNT_OF(routes); k++) {
            struct str method = arena_copy(rq->arena, str_from(http_method_name[routes[k].method]));
            if (!str_eq(str_from(routes[k].pattern), str_from(routes[i].pattern)) || (routes[k].flags & MAIL_ABSENT))
                continue;
            text_lower((char *)method.at, method.len);
            json_out_object(&json, method.at);
            json_out_str(&json, "summary", str_from(routes[k].help));
            json_out_end(&json);
        }
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}
