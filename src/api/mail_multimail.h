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

/* "pending_send_approval", "unread"… */
struct str mm_status(const struct mail_message *message);
/* Narrows the filter to a status. False: no such status. */
bool mm_status_filter(struct str status, struct mail_filter *filter) must_use;
struct str mm_state_status(enum mail_state state);

/* An ISO time, or null for 0. */
void mm_time(struct json_out *json, const char *name, int64_t us);
void mm_email_id(struct json_out *json, const char *name, const char *id);
void mm_strings(struct json_out *json, const char *name, const struct str *texts, uint32_t count);
/* The fields of a row of a list; those that a single message has besides. */
void mm_summary(struct json_out *json, const struct mail_message *message);
void mm_email(struct json_out *json, const struct mail_message *message);
void mm_tags(struct json_out *json, const char *name, const struct mail_pair *tags, uint32_t count);

/* ---- fields of a request ---- */

/* The first of these names (up to four, the rest NULL) that is there. */
bool mm_take_any(const json_t *object, const char *const names[4], enum json_need need, struct str *out,
                 struct err *err) must_use;
/* One text or an array of texts. A text with commas is a list. Absent: count 0. */
bool mm_take_list(const json_t *object, const char *name, uint32_t most, struct arena *arena, const struct str **out,
                  uint32_t *out_count, struct err *err) must_use;
/* true, false, 1 or 0; *out stays as it is when absent. */
bool mm_take_flag(const json_t *object, const char *name, int *out, struct err *err) must_use;
/* A message that is sent: all fields of send, reply and edit. What is required is checked by the caller. */
bool mm_send_decode(const json_t *body, struct arena *arena, struct send_want *out, struct err *err) must_use;
/* The filter of a list, from the query. */
bool mm_filter_decode(const struct request *rq, uint32_t limit, struct mail_filter *out, struct err *err) must_use;

/* ---- handlers ---- */

/* mail_multimail_send.c */
handler_fn mm_send, mm_send_from, mm_send_by_address;
/* mail_multimail_read.c */
handler_fn mm_emails, mm_inbox;

#endif
