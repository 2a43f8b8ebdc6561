/*
 * inside.h - mail/ as its own files see it.
 *
 *   office.c          front: connections to workers and to the composer, mail_call()
 *   inbox.c           worker: opens the file, reads requests, finds the operation
 *   inbox_*.c         both halves of each call: the function of mail.h that packs and asks (front), and the operation that
 *                     unpacks, acts and packs the reply (worker). They are together so that one page shows one call.
 *   inbox_message.c   a message's row, its sealed content, struct mail_message as bytes
 *   content_pack.c    struct mail_content and struct mail_draft as bytes
 *   compose_client.c  front: composing and reading by a child of the composer
 *   address.c, budget.c, compose.c, html.c, parse.c, scan_*.c, text.c: in the composer's child
 *
 * Private keys: a worker gets the reader's key (struct mail_reader) of its own inbox, and nothing else that opens anything.
 * What an approver's key or the server's key opens is opened in front: the worker sends the sealed key and the cipher.
 */
#ifndef MAIL_INSIDE_H
#define MAIL_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/pack.h"
#include "mail/content_pack.h"
#include "mail/mail.h"
#include "store/sql.h"

/* ---- front's half (office.c) ---- */

/*
 * Sends the operation and the packed request to the inbox's worker and waits. out_reply borrows from the arena. An error
 * that the worker has packed becomes err.
 */
bool mail_call(struct mail *mail, const char *inbox_id, uint16_t op, const struct buf *request, struct arena *arena,
               struct unpack *out_reply, struct err *err) must_use;
/* The same, and the inbox is made: its directory must not exist. */
bool mail_call_new(struct mail *mail, const char *inbox_id, uint16_t op, const struct buf *request, struct arena *arena,
                   struct unpack *out_reply, struct err *err) must_use;
/*
 * One frame to a new child of the composer, and its answer. The inbox has a part of the composer's places; when too many of
 * its requests wait for one: ERR_LIMIT with *out_retry_s, which is 0 otherwise.
 */
bool mail_composer_call(struct mail *mail, const char *inbox_id, struct str request, struct arena *arena,
                        struct unpack *out_reply, uint32_t *out_retry_s, struct err *err) must_use;
const struct mail_config *mail_config_of(const struct mail *mail);
/* A buf for a request, in the arena, with the cap of a frame. */
struct buf mail_request(struct arena *arena);
/* The inbox's own key from the server's secret: the same as `server_key` in the worker. */
void mail_inbox_server_key(const struct mail *mail, const char *inbox_id, struct seal_key *out);

/* ---- the worker's half (inbox.c) ---- */

struct inbox {
    struct sql *sql;
    char id[MAIL_INBOX_ID_BYTES];
    struct seal_key public_key;
    struct seal_key index_key;  /* for *_hash columns; made with the inbox, kept in its file */
    struct seal_key server_key; /* from the greeting: front can derive it, the file does not have it */
    bool is_new;                /* the file has no tables yet: only the operation that makes the inbox may run */
    bool is_shredded;           /* only the audit is left */
};

/* An operation: unpacks all of `in` (unpack_done()), acts, packs its reply. Numbers are in inbox_op. */
typedef bool inbox_run_fn(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                          struct err *err);
struct inbox_operation {
    uint16_t op;
    inbox_run_fn *run;
};
/* Each inbox_*.c has a table, ended by an empty row; inbox.c lists the tables. */
extern const struct inbox_operation inbox_life_operations[], inbox_send_operations[], inbox_leave_operations[],
    inbox_link_operations[], inbox_audit_operations[], inbox_read_operations[], inbox_thread_operations[],
    inbox_tag_operations[], inbox_settings_operations[];

enum inbox_op {
    INBOX_MAKE = 1,
    INBOX_READER_ADD,
    INBOX_READER_REMOVE,
    INBOX_SHRED,
    INBOX_UNMAKE,
    INBOX_SEND_FIRST = 100, /* vault's numbers */
    INBOX_LEAVE_FIRST = 150,
    INBOX_LINK_FIRST = 200,
    INBOX_AUDIT_FIRST = 300,
    INBOX_READ_FIRST = 400, /* shelf's numbers */
    INBOX_THREAD_FIRST = 500,
    INBOX_TAG_FIRST = 550,
    INBOX_SETTINGS_FIRST = 600,
};

/* Makes the tables, for INBOX_MAKE. */
bool inbox_make_tables(struct inbox *inbox, struct err *err) must_use;
bool inbox_meta_get(struct inbox *inbox, const char *name, struct seal_key *out, struct err *err) must_use;
bool inbox_meta_put(struct inbox *inbox, const char *name, const struct seal_key *value, struct err *err) must_use;

/* Removes the file, for INBOX_UNMAKE. A call after it would begin a new one. */
bool inbox_remove_file(struct inbox *inbox, struct err *err) must_use;
/* Was it shredded? Sets is_shredded. */
bool inbox_look_shredded(struct inbox *inbox, struct err *err) must_use;
/* The inbox's private key, by a reader's wrap. ERR_DENIED: this credential may not read. */
bool inbox_unlock(struct inbox *inbox, struct str key_id, const struct seal_key *kek, struct seal_key *out_private,
                  struct err *err) must_use;
void mail_reader_pack(struct buf *out, const struct mail_reader *reader);
void seal_key_pack(struct buf *out, const struct seal_key *key);
void seal_key_unpack(struct unpack *in, struct seal_key *out);

/* One more row in the chain; inside a transaction. */
bool audit_append(struct inbox *inbox, const char *action, struct str resource, struct str actor, struct str detail,
                  int64_t now_us, struct err *err) must_use;
/* Adds to today's counter (UTC); inside a transaction. Names: sent, received, held, approved, rejected. */
bool inbox_count(struct inbox *inbox, const char *name, int64_t by, int64_t now_us, struct err *err) must_use;

/* What the messages take, all together; the table's triggers keep it. */
bool inbox_storage(struct inbox *inbox, uint64_t *out_bytes, struct err *err) must_use;

/*
 * allowlist.pattern_hash: inbox_hash() of the entry in lower case. A recipient is covered if its address or "*@" and its
 * domain is there, as mail_allow_covers() has it.
 */
void inbox_allow_hash(const struct inbox *inbox, struct str pattern, char out[65]);

/* ---- threads (threading.c) ---- */

struct thread_hint {
    struct str thread_id; /* to join: ERR_NOT_FOUND if it is not there; empty: find one */
    struct str message_id, in_reply_to, references, subject;
    int64_t now_us;
};
/* Finds or makes the thread of a new message, and notes the message in it; inside a transaction. */
bool inbox_thread_join(struct inbox *inbox, const char *id, const struct thread_hint *hint,
                       char out_thread_id[MAIL_MESSAGE_ID_BYTES], struct err *err) must_use;

/* ---- ciphers of a message ---- */

/*
 * head_cipher: CONTENT_HEAD. body_cipher: CONTENT_ALL. Both and reason_cipher and tags_cipher are under the content key;
 * what is authenticated with them (seal_encrypt()'s `about`) is "ID:head", "ID:body", "ID:reason", "ID:tags".
 */
enum { MAIL_ABOUT_BYTES = MAIL_MESSAGE_ID_BYTES + 16 };
struct str mail_about(struct str message_id, const char *column, char room[MAIL_ABOUT_BYTES]);

/* For *_hash columns. `label` keeps uses apart. One of file and server's secret alone cannot test a guess. */
void inbox_hash(const struct inbox *inbox, const char *label, struct str text, char out[65]);

/* ---- messages (inbox_message.c) ---- */

/* One text for what is not there, for foreign ones, and for what the agent may not see. */
#define MAIL_NO_MESSAGE "there is no such message in this inbox"

/* Of `messages m`, in the order that inbox_message_row() reads them. Further columns follow from MESSAGE_COLUMN_COUNT on. */
#define MESSAGE_COLUMNS                                                                                               \
    "m.id, m.thread_id, m.direction, m.state, m.in_status, m.created_us, m.received_us, m.send_at_us, m.decided_us, " \
    "m.delivered_us, m.hold_until_us, m.decided_by, m.composer, m.hash, m.label"
enum { MESSAGE_COLUMN_COUNT = 15 };
/* All but content, reason and tags. Copies into the arena. */
void inbox_message_row(const struct inbox *inbox, const struct sql_rows *rows, struct arena *arena,
                       struct mail_message *out);
/* parts: enum content_part. inbox_id is not packed: front knows whom it has asked. */
void mail_message_pack(struct buf *out, const struct mail_message *message, unsigned parts);
/* Borrows. A value that a worker must not send makes `in` fail. */
void mail_message_unpack(struct unpack *in, const char *inbox_id, struct arena *arena, struct mail_message *out);

/* ASCII letters in either case. */
bool mail_has_part(struct str text, struct str part);
void mail_pairs_unpack(struct unpack *in, struct arena *arena, struct mail_pair **out, uint32_t *out_count);

struct mail_ciphers {
    struct str head, body;
    uint64_t size; /* for messages.size */
};
/* ERR_LIMIT: the message is too large. */
bool mail_content_seal(const struct seal_key *content_key, const char *message_id, const struct mail_content *content,
                       struct arena *arena, struct mail_ciphers *out, struct err *err) must_use;
/* column: "head" or "body". */
bool mail_content_open(const struct seal_key *content_key, const char *message_id, const char *column,
                       struct str cipher, struct arena *arena, struct mail_content *out, struct err *err) must_use;

/* The content key for a holder, replacing the one that was there; inside a transaction. */
bool inbox_key_put(struct inbox *inbox, const char *message_id, const char *holder, const struct seal_key *public_key,
                   const struct seal_key *content_key, struct err *err) must_use;

/*
 * A reader at work: begins with the request's reader, opens content keys, and ends. Keys that were sealed boxes are
 * stored as wraps at the end.
 */
struct inbox_reading {
    struct inbox *inbox;
    struct seal_key private_key;
    struct seal_key quick_key; /* derived from it: opens wraps */
    struct arena *arena;
    struct inbox_rewrap *rewraps;
};
/* Front: the reader goes first into a request. The call wipes the request, which has a key. */
void mail_reading_pack(struct buf *request, const struct mail_reader *reader);
bool mail_reading_call(struct mail *mail, const char *inbox_id, uint16_t op, struct buf *request, struct arena *arena,
                       struct unpack *out_reply, struct err *err) must_use;
struct mail_reading_who {
    struct str key_id, grant;
    struct seal_key kek;
};
void mail_reading_unpack(struct unpack *in, struct mail_reading_who *out);
/*
 * After unpack_done(). With a grant: `action` and `resource` go to the audit, durably, before anything is read. The key in
 * `who` is wiped.
 */
bool inbox_reading_begin(struct inbox *inbox, struct mail_reading_who *who, const char *action, struct str resource,
                         struct arena *arena, struct inbox_reading *out, struct err *err) must_use;
/* `sealed`: content_keys.sealed of holder 'inbox'. */
bool inbox_reading_key(struct inbox_reading *reading, const char *message_id, struct str sealed, struct seal_key *out,
                       struct err *err) must_use;
/* For inbox_reading_row(). A WHERE on m follows. */
#define SELECT_HEADS SELECT_WITH_("m.head_cipher ")
#define SELECT_BODIES SELECT_WITH_("m.body_cipher ")
#define SELECT_WITH_(cipher)                                                        \
    "SELECT " MESSAGE_COLUMNS ", k.sealed, m.reason_cipher, m.tags_cipher, " cipher \
    "FROM messages m LEFT JOIN content_keys k ON k.message_id = m.id AND k.holder = 'inbox' "
/* Visible to the agent with its content, in threads: not held, no spam. */
#define MESSAGE_IS_SHOWN "(m.direction = 1 OR m.in_status BETWEEN 1 AND 4)"
/* A row with content, reason and tags; of held mail only id, status and times. column: "head" or "body". */
bool inbox_reading_row(struct inbox_reading *reading, const struct sql_rows *rows, const char *column,
                       struct arena *arena, struct mail_message *out, struct err *err) must_use;
/* One message by its id (inbox_read.c). ERR_NOT_FOUND also for what the agent may not see. */
bool inbox_reading_one(struct inbox_reading *reading, struct str message_id, bool whole, struct arena *arena,
                       struct mail_message *out, struct err *err) must_use;
void inbox_reading_end(struct inbox_reading *reading);
#define auto_reading __attribute__((cleanup(inbox_reading_end)))

#endif
