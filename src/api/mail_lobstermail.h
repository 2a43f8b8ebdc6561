/*
 * mail_lobstermail.h - LobsterMail's names and shapes, for the files of its dialect.
 *
 * Its client reads JSON from every answer, also from that of a DELETE, and dereferences fields that are null: every field
 * of a shape is always there. A message of a list has "body":null, which makes the client fetch the text when it is asked
 * for it. Ids have a prefix that says what they are of; requests may leave it out.
 */
#ifndef API_MAIL_LOBSTERMAIL_H
#define API_MAIL_LOBSTERMAIL_H

#include "api/mail_dialect.h"

#define LM_ACCOUNT STR("acct_")
#define LM_INBOX STR("ibx_")
#define LM_EMAIL STR("eml_")
#define LM_THREAD STR("thd_")
#define LM_WEBHOOK STR("wh_")

/* ---- values (mail_lobstermail_json.c) ---- */

/* With its prefix; null for "". */
void lm_id(struct json_out *json, const char *name, struct str prefix, const char *id);
void lm_time(struct json_out *json, const char *name, int64_t us); /* null for 0 */
struct str lm_state_status(enum mail_state state);
/* The fields of an inbox. token: its own key, shown once; empty: not shown. */
void lm_inbox_fields(struct json_out *json, const struct inbox_info *inbox, struct str token);
enum lm_body { LM_NO_BODY, LM_BODY };
/* A whole message, in an object of this name. */
void lm_email(struct json_out *json, const char *name, const struct mail_message *message, enum lm_body body);
void lm_webhook_fields(struct json_out *json, const struct mail_webhook *webhook);
/* {"id":…,"deleted":true} */
void lm_answer_deleted(struct request *rq, struct str prefix, struct str id);

/* A path's parameter without this prefix. */
struct str lm_param(const struct request *rq, size_t at, struct str prefix);
/* A time in the query: RFC 3339, a date, or milliseconds since 1970. */
bool lm_query_time(const struct request *rq, const char *name, int64_t *out, struct err *err) must_use;
/* The filter of a list, of a poll or of a search, from the query; checks the query. */
enum lm_list { LM_LIST, LM_POLL, LM_SEARCH };
bool lm_filter_decode(const struct request *rq, enum lm_list kind, struct mail_filter *out, struct err *err) must_use;
/* The body of a send. */
bool lm_send_decode(const json_t *body, struct arena *arena, struct send_want *out, struct err *err) must_use;

/* ---- handlers ---- */

/* mail_lobstermail_inbox.c */
handler_fn lm_signup, lm_account, lm_inbox_create, lm_inboxes, lm_inbox, lm_inbox_update, lm_inbox_delete,
    lm_webhook_add, lm_webhooks, lm_webhook_update, lm_webhook_delete;
/* mail_lobstermail_read.c */
handler_fn lm_emails, lm_email_get, lm_search, lm_attachment, lm_threads, lm_thread, lm_extraction, lm_file;
/* mail_lobstermail_poll.c */
handler_fn lm_poll;
/* mail_lobstermail_send.c */
handler_fn lm_send;
/* mail_lobstermail_socket.c */
handler_fn lm_socket;

#endif
