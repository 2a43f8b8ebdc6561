/*
 * mail_multimail.h - MultiMail's names and shapes, for the files of its dialect.
 *
 * Field names come in several spellings: the service's clients of different ages read and send different ones. We emit
 * all of them and accept all of them. Unknown fields are ignored; a field of the wrong type is refused by name.
 */
#ifndef API_MAIL_MULTIMAIL_H
#define API_MAIL_MULTIMAIL_H

#include "api/mail_dialect.h"

#define MM_EMAIL_PREFIX STR("em_")

/* ---- values (mail_multimail_json.c) ---- */

struct str mm_state_status(enum mail_state state);
/* "pending_send_approval", "unread"… */
struct str mm_status(const struct mail_message *message);
/* Narrows the filter to a status. False: no such status. */
bool mm_status_filter(struct str status, struct mail_filter *filter) must_use;

/* An ISO time, or null for 0. */
void mm_time(struct json_out *json, const char *name, int64_t us);
/* A text, or null for "". */
void mm_text(struct json_out *json, const char *name, struct str text);
/* With its prefix; null for "". */
void mm_email_id(struct json_out *json, const char *name, const char *id);
void mm_strings(struct json_out *json, const char *name, const struct str *texts, uint32_t count);
/* The fields of a row of a list; those of a single message. */
void mm_summary(struct json_out *json, const struct mail_message *message);
void mm_email(struct json_out *json, const struct mail_message *message);
void mm_attachments(struct json_out *json, const struct mail_content *content);
void mm_tags(struct json_out *json, const char *name, const struct mail_pair *tags, uint32_t count);
/* A message that waits for approval, for those who may decide. */
void mm_held(struct json_out *json, const struct held_message *held);
/* The page that ?cursor names. False: the answer is an error, and is written. */
bool mm_pending_page(struct request *rq, struct str inbox, struct pending_page *out) must_use;
void mm_scopes(struct json_out *json, const char *name, uint32_t scopes);
/* {"status":…} and nothing else. */
void mm_answer_status(struct request *rq, unsigned status, struct str text);
/* 202: the operator has a code to give, and the same request with it goes through. */
void mm_answer_code_needed(struct request *rq);

/* ---- fields of a request (mail_multimail_fields.c) ---- */

/* One text or an array of texts. A text with commas is a list. Absent: outputs untouched. */
bool mm_take_list(const json_t *object, const char *name, uint32_t most, struct arena *arena, const struct str **out,
                  uint32_t *out_count, struct err *err) must_use;
/* true, false, 1 or 0; *out stays as it is when absent. */
bool mm_take_flag(const json_t *object, const char *name, int *out, struct err *err) must_use;
/* *out stays as it is when absent. */
bool mm_take_mode(const json_t *object, const char *name, int *out, struct err *err) must_use;
bool mm_take_scopes(const json_t *object, uint32_t *out, struct err *err) must_use;
/* A message that is sent: all fields of send, reply and edit. What is required is checked by the caller. */
bool mm_send_decode(const json_t *body, struct arena *arena, struct send_want *out, struct err *err) must_use;
/* The filter of a list, from the query. */
bool mm_filter_decode(const struct request *rq, uint32_t limit, struct mail_filter *out, struct err *err) must_use;
/* A time in the query: RFC 3339, a date, or milliseconds since 1970. */
bool mm_query_time(const struct request *rq, const char *name, int64_t *out, struct err *err) must_use;

/* ---- handlers ---- */

/* mail_multimail_send.c */
handler_fn mm_send, mm_send_from, mm_reply_from, mm_reply, mm_cancel, mm_schedule;
/* mail_multimail_read.c */
handler_fn mm_emails, mm_inbox, mm_inbox_by_address, mm_spam, mm_read, mm_read_by_id, mm_attachment, mm_attachment_url,
    mm_file, mm_thread, mm_threads, mm_thread_by_id, mm_tags_get, mm_tags_set, mm_tag_delete, mm_tag_by_id,
    mm_report_spam, mm_not_spam, mm_contacts, mm_contact_add, mm_contact_delete;
/* mail_multimail_mailbox.c */
handler_fn mm_mailboxes, mm_mailbox_create, mm_mailbox, mm_mailbox_update, mm_mailbox_delete, mm_request_upgrade,
    mm_upgrade, mm_allow_list, mm_allow_add, mm_allow_remove;
/* mail_multimail_oversight.c */
handler_fn mm_pending, mm_pending_attachment, mm_decide, mm_decide_by_id;
/* mail_multimail_account.c */
handler_fn mm_keys, mm_key_create, mm_key_update, mm_key_revoke, mm_webhooks, mm_webhook, mm_webhook_add,
    mm_webhook_remove, mm_account, mm_account_update, mm_usage, mm_audit, mm_audit_of_inbox, mm_domains, mm_domain,
    mm_health, mm_openapi;

#endif
