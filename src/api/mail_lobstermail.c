/*
 * LobsterMail's dialect: errors are {"error":code,"message":…,"requestId":…}, names are camelCase.
 */
#include "api/mail_dialect.h"
#include "base/random.h"

/* The codes that LobsterMail's clients know; for others they show the message. */
static struct str code_of(unsigned status)
{
    switch (status) {
    case 400:
        return STR("invalid_request");
    case 401:
        return STR("authentication_error");
    case 403:
        return STR("insufficient_tier");
    case 404:
        return STR("not_found");
    case 409:
        return STR("conflict");
    case 429:
        return STR("rate_limited");
    case 501:
        return STR("not_implemented");
    default:
        return STR("server_error");
    }
}

static void problem(struct request *rq, const struct mail_problem *what)
{
    struct json_out json = reply_json(rq, what->status);
    char id[17];

    random_id(id, 16);
    json_out_object(&json, NULL);
    json_out_str(&json, "error", code_of(what->status));
    json_out_str(&json, "message", what->message);
    json_out_str(&json, "requestId", str_from(id));
    json_out_end(&json);
}

static const struct http_route routes[] = {
    MAIL_NO_ROUTE(POST, "/v1/signup", MAIL_PUBLIC, "Signing up is not available in this version of Cloister"),
};

const struct mail_dialect mail_lobstermail = { "LobsterMail", routes, COUNT_OF(routes), problem };
