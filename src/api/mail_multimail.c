/*
 * MultiMail's dialect: its routes, and errors as {"error":"<text>"}.
 *
 * The first matching row wins, so fixed segments come before captured ones. The short forms at the beginning are those
 * of published scripts and of older clients; each is the same call as one of the long forms below.
 */
#include "api/mail_multimail.h"

static void problem(struct request *rq, const struct mail_problem *what)
{
    struct json_out json = reply_json(rq, what->status);

    json_out_object(&json, NULL);
    json_out_str(&json, "error", what->message);
    json_out_end(&json);
}

enum { READ = MAIL_SCOPE_READ, SEND = MAIL_SCOPE_SEND };

static const struct http_route routes[] = {
    MAIL_ROUTE(POST, "/v1/send", mm_send, SEND | MAIL_LARGE, "Send a message from the mailbox that the body names"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/inbox", mm_inbox, READ, "List received messages, newest first"),

    MAIL_ROUTE(POST, "/v1/mailboxes/{id}/send", mm_send_from, SEND | MAIL_LARGE, "Send a message"),
    MAIL_ROUTE(GET, "/v1/mailboxes/{id}/emails", mm_emails, READ, "List messages, filtered and in pages"),
};

const struct mail_dialect mail_multimail = { "MultiMail", routes, COUNT_OF(routes), problem };
