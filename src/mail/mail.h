/*
 * mail.h - inboxes as front sees them: each lives in a process of its own, and these calls ask it.
 *
 * An inbox is a directory with one SQLite file. Only the inbox's own worker process (role "inbox") opens it: keeper starts
 * the worker on demand with the inbox's own uid, and it can open nothing but this directory. Front keeps a connection to
 * the workers in use. The composer (role "composer") makes and reads MIME in a child that lives for one message.
 *
 * Keys. A message's content is encrypted with a key of its own, which is sealed to the inbox's public key; the inbox's
 * private key is stored only wrapped under the credentials that may read (struct mail_reader). A held message's key is
 * also sealed to the tenant's approver key. A message that waits to leave has its key sealed to the server's own key:
 * without that a scheduled message could not leave while nobody asks for it.
 *
 * Ownership  Results live in the arena that is passed in.
 * Threads    Workers: every call waits for another process. Calls for one inbox take turns; others do not wait for them.
 * Failure    ERR_UNAVAILABLE: the worker died or did not answer; the next call starts a new one. ERR_INTERNAL: the file is
 *            damaged; only this inbox is affected. ERR_FULL: the disk is full. Each change is one durable transaction
 *            together with its audit entry.
 */
#ifndef MAIL_MAIL_H
#define MAIL_MAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/secret.h"
#include "base/str.h"
#include "mail/gate.h"
#include "mail/seal.h"
#include "policy/mail_rules.h"

enum {
    MAIL_INBOX_ID_BYTES = 26 + 1, /* a ULID in Crockford's base32, upper case */
    MAIL_HANDLE_BYTES = 10 + 1,   /* the last ten characters of an inbox id; unique on a server */
    MAIL_MESSAGE_ID_BYTES =
        26 + 10 + 1, /* a ULID, then the handle of its inbox: sorts by time, and leads to its inbox */
    MAIL_KEY_ID_BYTES = 26 + 1,
    MAIL_HASH_TEXT_BYTES = 64 + 1,
};

/* ---- ids (mail_id.c) ---- */

/* A new ULID; each is greater than the one before in this process, also when the clock goes back. */
void mail_ulid(char out[MAIL_INBOX_ID_BYTES]);
/* The next ones are greater than this one too, which an earlier process has made; nothing for what is no ULID. */
void mail_ulid_follow(struct str id);
/* A new message, thread or link id of this inbox. */
void mail_message_id(const char *inbox_id, char out[MAIL_MESSAGE_ID_BYTES]);
/* Is `last` later than `id` by so much that the clock has gone back? */
bool mail_message_id_behind(struct str id, struct str last);
/* A new one that is greater than `last`, of the same inbox. The ids that follow do not depend on it. */
void mail_message_id_after(const char *inbox_id, struct str last, char out[MAIL_MESSAGE_ID_BYTES]);
bool mail_inbox_id_valid(struct str id);
/* The handle at the end of a message id. False: not such an id. */
bool mail_message_id_handle(struct str id, char out_handle[MAIL_HANDLE_BYTES]) must_use;

/* ---- front's side ---- */

struct mail;

struct mail_config {
    /* A connected SOCK_STREAM socket to a new worker of this inbox. `make`: the directory is made. Waits for keeper. */
    bool (*open_inbox)(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err);
    /* The same, to a new child of the composer. */
    bool (*open_composer)(void *context, int *out_fd, struct err *err);
    /* The same, to a new child of webhooks; NULL: there are no webhooks. */
    bool (*open_hook)(void *context, int *out_fd, struct err *err);
    /* Removes the inbox's directory. ERR_CONFLICT: it is not empty. Waits for keeper. */
    bool (*remove_inbox)(void *context, const char *inbox_id, struct err *err);
    /* A message that waited to leave is held: its time has come in a gated mode, or the mode went down. May be NULL. */
    void (*held)(void *context, const char *inbox_id, const char *message_id);
    void *context;
    struct seal_key server_public, server_private; /* for what waits to leave */
    struct seal_key server_secret; /* encrypts and hashes what the server must be able to read: addresses, webhooks */
};
struct mail *mail_new(const struct mail_config *config) must_use;
/* No call may be under way. */
void mail_free(struct mail *mail);
/* Workers that have had nothing to do for LIMIT_INBOX_IDLE_MS end. Never waits; call it now and then. */
void mail_close_idle(struct mail *mail);

/* Who reads: a credential of the inbox, by which the worker unwraps the inbox's private key. */
struct mail_reader {
    const char *key_id;  /* whose wrap to use */
    struct seal_key kek; /* seal_derive(credential, "inbox") */
    struct str grant;    /* the actor of a grant: each use is a row of the audit. Empty: the inbox's own credential */
};

/* ---- composing (compose.c in the composer; compose_client.c here) ---- */

struct mail_attachment {
    struct str name, content_type, content; /* content: empty in lists */
    uint64_t size;
    char sha256[MAIL_HASH_TEXT_BYTES];
};

struct mail_draft {
    struct str from_address, from_name; /* fixed by the credential */
    const struct str *to, *cc, *bcc;    /* "a@b.example" or "Name <a@b.example>" */
    uint32_t to_count, cc_count, bcc_count;
    struct str reply_to;
    struct str subject;
    struct str markdown; /* either this, or text and/or html */
    struct str text, html;
    struct str signature;               /* appended to the text; may be empty */
    struct str in_reply_to, references; /* Message-IDs; may be empty */
    struct str message_id;              /* "<…@domain>", ours */
    int64_t date_us;
    const struct mail_attachment *attachments;
    uint32_t attachment_count;
    struct str identity; /* value of the X-AI-Generated header; never the caller's */
};

/* What the scan has found; shown to the approver. */
struct mail_warning {
    struct str code;   /* "secret", "canary", "new_recipient", "lookalike", "raw_html", "injection", … */
    struct str detail; /* a sentence */
    bool blocks;       /* the message must not leave at all */
};

/* A message in parts: what composing makes, and what reading MIME gives. */
struct mail_content {
    struct str mime; /* final bytes; no Bcc */
    struct str from, reply_to, subject, message_id, in_reply_to, references;
    struct str *to, *cc, *bcc; /* as shown; bcc only for the sender */
    uint32_t to_count, cc_count, bcc_count;
    struct str *recipients; /* bare addresses of the envelope, each once, lower-case domain */
    uint32_t recipient_count;
    struct str sender; /* bare address of the envelope */
    int64_t date_us;
    struct str text, html; /* sanitised; what a reader sees */
    struct str preview;    /* 200 characters of text on one line */
    struct mail_attachment *attachments;
    uint32_t attachment_count;
    struct mail_warning *warnings;
    uint32_t warning_count;
    /*
     * Outbound only: the beginning of the message that this one answers. It is kept for the approver, who cannot read the
     * inbox; it never leaves, and the hash does not cover it.
     */
    struct str answered_from, answered_text;
    int64_t answered_us;
    /* Inbound only. */
    uint32_t injection_percent; /* 0..100 */
    struct str *flags;
    uint32_t flag_count;
};

/*
 * Composes in a child of the composer, in a place of this inbox's. ERR_INVALID names the field: a header with CR or LF, a bad
 * address… ERR_LIMIT with *out_retry_s: too many messages of this inbox wait to be composed.
 */
bool mail_compose(struct mail *mail, const char *inbox_id, const struct mail_draft *draft, struct arena *arena,
                  struct mail_content *out, uint32_t *out_retry_s, struct err *err) must_use;
/*
 * Reads MIME (also hostile), with the injection score. It has no envelope: `recipients` is empty, `sender` is From's. In a
 * place of this inbox's, which is the one that the message comes from.
 */
bool mail_parse(struct mail *mail, const char *inbox_id, struct str mime, struct arena *arena, struct mail_content *out,
                struct err *err) must_use;
/* SHA-256 of envelope and MIME: what an approval binds. */
void mail_content_hash(const struct mail_content *content, unsigned char out[GATE_HASH_BYTES]);

/* ---- life of an inbox (inbox_life.c) ---- */

struct mail_inbox_new {
    const char *inbox_id;
    const struct mail_reader *readers; /* the credentials that may read: the inbox's key, its account's */
    uint32_t reader_count;
    struct str actor;  /* for the audit */
    bool is_temporary; /* of a sandbox: mail_inbox_unmake() may remove it although it was used */
};
/* Makes the directory, the file and the inbox's key pair. */
bool mail_inbox_make(struct mail *mail, const struct mail_inbox_new *want, struct seal_key *out_public, struct err *err)
    must_use;
/* One more credential may read; `with` is one that may already. */
bool mail_reader_add(struct mail *mail, const char *inbox_id, const struct mail_reader *with,
                     const struct mail_reader *added, struct str actor, struct err *err) must_use;
/* Its wrap is removed: the credential reads nothing any more. */
bool mail_reader_remove(struct mail *mail, const char *inbox_id, const char *key_id, struct str actor, struct err *err)
    must_use;
/* Overwrites and removes the file; the audit stays. */
bool mail_inbox_shred(struct mail *mail, const char *inbox_id, struct str actor, struct err *err) must_use;
/*
 * Removes file and directory of an inbox that was made and never used; of a temporary one, also if it was used, as long as
 * nothing has left it or is about to, and no person has decided about its messages: its audit says so, and stays. After a
 * failure in between it can be called again. ERR_CONFLICT: it stays. Whether anybody knows it is the caller's business.
 */
bool mail_inbox_unmake(struct mail *mail, const char *inbox_id, struct err *err) must_use;

/* Limits of one inbox; 0: none. pending_most: all that waits, held or scheduled. */
struct mail_limits {
    uint32_t sends_per_minute, sends_per_day, pending_most;
    uint64_t storage_bytes;
};

/* ---- sending (inbox_send.c) ---- */

struct mail_accept {
    const char *inbox_id;
    struct str composer; /* as the approver's id: "key:ID", "sandbox:ID"; an approver must be somebody else */
    const struct mail_content *content;
    enum mail_mode mode;
    int64_t send_at_us;
    bool schedule_first;
    int64_t hold_us;            /* how long it may be held */
    struct str idempotency_key; /* may be empty */
    struct str dedup;           /* what is compared for 60 s; empty: do not compare */
    const struct seal_key *inbox_public, *approver_public;
    const struct mail_limits *limits;
    const char *answers_id; /* message that it replies to; NULL: none */
    struct str thread_id;   /* to join; may be empty */
    bool want_link;         /* if it is held: also a link for its approver, good for as long as it is held */
    int64_t now_us;
};

struct mail_accepted {
    char id[MAIL_MESSAGE_ID_BYTES], thread_id[MAIL_MESSAGE_ID_BYTES];
    enum mail_state state;
    bool is_repeat; /* the idempotency key was used: nothing was done */
    char sha256[MAIL_HASH_TEXT_BYTES];
    int64_t hold_until_us; /* MAIL_HELD */
    struct secret link;    /* wipe it; empty: none was asked for, or the message is not held */
};

/*
 * Stores a message and lets the gate judge it. ERR_LIMIT with *out_retry_after_s (rate, pending depth, storage) before
 * anything is stored; ERR_CONFLICT: the same content was sent less than 60 s ago. ERR_DENIED: the mode is read_only.
 */
bool mail_accept(struct mail *mail, const struct mail_accept *want, struct arena *arena, struct mail_accepted *out,
                 uint32_t *out_retry_after_s, struct err *err) must_use;

/* Who may see the content of held mail: the tenant's approver key. */
struct mail_approver {
    struct seal_key public_key, private_key;
    struct str id; /* for the audit: key id, "operator", "link" */
    uint32_t scopes;
};

struct mail_message; /* below */

/* Held messages, in and out, oldest first, without bodies; with the rest of the content (approver) or without (NULL). */
bool mail_pending(struct mail *mail, const char *inbox_id, const struct mail_approver *approver, struct arena *arena,
                  struct mail_message **out, size_t *out_count, struct err *err) must_use;

/* One of them, whole. ERR_NOT_FOUND: there is none, or it is not held any more. */
bool mail_held_get(struct mail *mail, const char *inbox_id, struct str message_id, const struct mail_approver *approver,
                   struct arena *arena, struct mail_message *out, struct err *err) must_use;

struct mail_decision {
    const char *inbox_id, *message_id;
    bool approve;
    struct str reason;
    struct str sha256;                    /* what the approver saw, in hex; empty: what is stored */
    const struct mail_approver *approver; /* unseals the content; it is sealed to the server if it has to wait */
    enum mail_mode mode;                  /* of the inbox, now */
    uint32_t undo_s;
    int64_t now_us;
};
/* ERR_CONFLICT: decided already, expired, or another hash. ERR_DENIED: composer or no oversight. Also for inbound. */
bool mail_decide(struct mail *mail, const struct mail_decision *decision, struct arena *arena, struct mail_message *out,
                 struct err *err) must_use;
/* `actor` as in mail_accept.composer, with its scopes. Cancelled already: no error, and nothing changes. */
bool mail_cancel(struct mail *mail, const char *inbox_id, const char *message_id, struct str actor, uint32_t scopes,
                 struct arena *arena, struct mail_message *out, struct err *err) must_use;
/* The same, but only what this actor has composed: all else is ERR_NOT_FOUND. */
bool mail_cancel_own(struct mail *mail, const char *inbox_id, const char *message_id, struct str actor, uint32_t scopes,
                     struct arena *arena, struct mail_message *out, struct err *err) must_use;
/*
 * Of a scheduled message: `content` NULL: another time for the same bytes; ERR_CONFLICT if it is approved, because the
 * approver saw its time. Else new content, judged as a new message: an approval is void. New content counts as a send for
 * the limits. ERR_CONFLICT: it is not scheduled.
 */
bool mail_reschedule(struct mail *mail, const struct mail_accept *want, const char *message_id, struct arena *arena,
                     struct mail_message *out, struct err *err) must_use;
/* The mode went down: what is not approved and has not left is held (or rejected, for read_only). */
bool mail_pull_back(struct mail *mail, const char *inbox_id, enum mail_mode mode,
                    const struct seal_key *approver_public, struct str actor, uint32_t *out_count, struct err *err)
    must_use;

/* The inbox has ended: what is held or scheduled without an approval is rejected. What was approved leaves. */
bool mail_withdraw(struct mail *mail, const char *inbox_id, const struct seal_key *approver_public, struct str actor,
                   uint32_t *out_count, struct err *err) must_use;

/* ---- leaving (inbox_leave.c; the dispatcher is in actions/mail_dispatch.c) ---- */

/* The single-use permission to send. The dispatcher checks it against the bytes. */
struct mail_release {
    char id[MAIL_MESSAGE_ID_BYTES]; /* of the release: recipients count it once */
    char inbox_id[MAIL_INBOX_ID_BYTES], message_id[MAIL_MESSAGE_ID_BYTES];
    unsigned char hash[GATE_HASH_BYTES];
    enum mail_mode mode;
    bool is_approved; /* by a person; false: the mode or the allowlist did not ask for one */
    struct str approver;
    unsigned char approval_mac[32]; /* mail_approval_mac() at the time of the decision; zero without approval */
    int64_t at_us;
    bool is_repeat; /* found in MAIL_SENDING after a restart */
};
/*
 * Takes one message that may leave now: MAIL_QUEUED → MAIL_SENDING, with a new release; or one that an earlier front has
 * left in MAIL_SENDING, with the release that it has. ERR_NOT_FOUND: none. The server's key opens the content, and its hash
 * is the release's. ERR_INTERNAL with a message id in *out: the stored content is not what was accepted or cannot be opened;
 * the message has failed, and the next call takes the next one. ERR_INTERNAL without: the inbox's file is damaged.
 */
bool mail_claim(struct mail *mail, const char *inbox_id, enum mail_mode mode, const struct seal_key *approver_public,
                int64_t now_us, struct arena *arena, struct mail_release *out, struct mail_content *out_content,
                struct err *err) must_use;
/* Does the approval come from mail_decide() on this server, for these bytes? True also for a release without one. */
bool mail_approval_valid(const struct mail *mail, const struct mail_release *release);
enum mail_outcome { MAIL_DELIVERED, MAIL_WAITS, MAIL_REFUSED }; /* of one recipient; WAITS: in the outgoing queue */
struct mail_settled {
    struct str recipient;
    enum mail_outcome outcome;
    struct str detail;
};
/*
 * What became of recipients of a release. When all have an outcome the message is sent (some have it), deferred (some wait)
 * or failed; until then it stays in MAIL_SENDING. May be repeated; what was delivered or refused before stays so, and
 * out_stands[count], which may be NULL, says what stands now.
 */
bool mail_settle(struct mail *mail, const struct mail_release *release, const struct mail_settled *recipients,
                 uint32_t count, enum mail_outcome *out_stands, struct err *err) must_use;
/* Timers: due schedules, ended undo windows, expired holds; and messages found in MAIL_SENDING by a new worker. */
struct mail_tick {
    uint32_t pending, queued, uncertain; /* after the tick */
    int64_t next_us;                     /* when to tick again; 0: nothing waits */
    uint64_t bytes;                      /* of the inbox's file */
};
bool mail_tick(struct mail *mail, const char *inbox_id, enum mail_mode mode, const struct seal_key *approver_public,
               int64_t now_us, struct mail_tick *out, struct err *err) must_use;

/* ---- arriving and reading (inbox_read.c) ---- */

enum mail_direction { MAIL_INBOUND, MAIL_OUTBOUND };
enum mail_in_status {
    MAIL_IN_HELD, /* pending_inbound_approval: the agent sees id and status only */
    MAIL_IN_UNREAD,
    MAIL_IN_READ,
    MAIL_IN_ARCHIVED,
    MAIL_IN_FLAGGED,     /* spam_flagged */
    MAIL_IN_QUARANTINED, /* spam_quarantined */
    MAIL_IN_REJECTED,    /* invisible to the agent */
    MAIL_IN_DELETED,
};

struct mail_pair {
    struct str key, value;
};

struct mail_message {
    char id[MAIL_MESSAGE_ID_BYTES], thread_id[MAIL_MESSAGE_ID_BYTES], inbox_id[MAIL_INBOX_ID_BYTES];
    enum mail_direction direction;
    enum mail_state state;         /* outbound */
    enum mail_in_status in_status; /* inbound */
    int64_t created_us, received_us, send_at_us, decided_us, delivered_us, hold_until_us;
    struct str decided_by, reason, composer;
    char sha256[MAIL_HASH_TEXT_BYTES];
    struct str label;            /* "spam", "not_spam" or empty */
    bool has_content;            /* false: held inbound, or no right to read: `content` is empty */
    struct mail_content content; /* mime, html and attachments' content only where asked for */
    struct mail_pair *tags;
    uint32_t tag_count;
};

struct mail_arrival {
    const char *inbox_id;
    const struct seal_key *inbox_public, *approver_public;
    const struct mail_content *content;
    struct str once; /* release id: a second arrival with it changes nothing and is no error */
    enum mail_mode mode;
    uint64_t storage_bytes;
    int64_t now_us;
};
/* The score of the scan from which on a message is flagged, and from which on lists do not show it. */
enum { MAIL_FLAG_PERCENT = 70, MAIL_QUARANTINE_PERCENT = 90 };
/* Delivers: held in gated_all, else by its score. ERR_LIMIT: the inbox is full. *out_new is false for a repeat. */
bool mail_deliver(struct mail *mail, const struct mail_arrival *arrival, struct arena *arena, struct mail_message *out,
                  bool *out_new, struct err *err) must_use;

struct mail_filter {
    bool inbound, outbound;
    int in_status;                                        /* -1: any visible; else enum mail_in_status */
    int state;                                            /* -1: any; else enum mail_state, of outbound */
    uint32_t states;                                      /* the same as bits, for several; 0: any */
    struct str from_exact, from_part, subject_part, text; /* text: subject, from and preview, for search */
    int64_t after_us, before_us;                          /* received (held ones: approved), inclusive; 0: any */
    int has_attachments;                                  /* -1: any, 0, 1 */
    struct str since_id;                                  /* greater than */
    struct str before_id;                                 /* cursor: less than */
    uint32_t offset, limit;                               /* limit 0: LIMIT_MAIL_PAGE */
    bool include_spam;
};
struct mail_page {
    struct mail_message *rows;
    size_t count;
    bool more;
    char cursor[MAIL_MESSAGE_ID_BYTES]; /* with `more`: before_id of the next page. Rows may be none: a filter looks at
                                           LIMIT_MAIL_SCAN_ROWS messages in one call */
};
/* Newest first, without bodies. The reader's right to read is the wrap of its key: ERR_DENIED without one. */
bool mail_list(struct mail *mail, const char *inbox_id, const struct mail_reader *reader,
               const struct mail_filter *filter, struct arena *arena, struct mail_page *out, struct err *err) must_use;
enum mail_want { MAIL_WANT_TEXT = 1, MAIL_WANT_MIME = 2, MAIL_WANT_ATTACHMENTS = 4, MAIL_WANT_MARK_READ = 8 };
/* ERR_NOT_FOUND: also what is rejected or deleted. MARK_READ does nothing for a grant. */
bool mail_read(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str message_id,
               unsigned want, struct arena *arena, struct mail_message *out, struct err *err) must_use;
/*
 * What the agent does with a message that it can see: read, unread, archived, flagged, quarantined, deleted (then its
 * content is gone). ERR_CONFLICT: it is held. label: "spam", "not_spam", or empty: as it is.
 */
bool mail_set_status(struct mail *mail, const char *inbox_id, struct str message_id, enum mail_in_status status,
                     struct str label, struct str actor, struct err *err) must_use;

struct mail_thread {
    char id[MAIL_MESSAGE_ID_BYTES];
    struct str subject;
    uint32_t message_count;
    int64_t created_us, last_us;
    bool has_unanswered_inbound;
    struct str *participants;
    uint32_t participant_count;
    struct mail_message *messages; /* oldest first, without bodies; only mail_thread_get() */
    uint32_t shown_count;          /* of messages: the newest LIMIT_MAIL_THREAD_ROWS */
};
/* By latest activity. cursor: id of the last thread of the page before, or empty. */
bool mail_thread_list(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str cursor,
                      uint32_t limit, struct arena *arena, struct mail_thread **out, size_t *out_count, bool *out_more,
                      struct err *err) must_use;
bool mail_thread_get(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str thread_id,
                     struct arena *arena, struct mail_thread *out, struct err *err) must_use;

/* Merges; a pair with an empty value removes; count 0: only reads. *out: all tags afterwards. Sealed like content. */
bool mail_tags_set(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str message_id,
                   const struct mail_pair *tags, uint32_t count, struct arena *arena, struct mail_pair **out,
                   uint32_t *out_count, struct err *err) must_use;

struct mail_contact {
    char id[MAIL_MESSAGE_ID_BYTES];
    struct str name, email;
    struct str *tags;
    uint32_t tag_count;
    int64_t created_us;
};
/* An address that is there already: name and tags are replaced, the id stays. */
bool mail_contact_add(struct mail *mail, const char *inbox_id, const struct mail_reader *reader,
                      const struct mail_contact *contact, struct arena *arena, struct mail_contact *out,
                      struct err *err) must_use;
/* query: part of name or address, or a tag; empty: all. */
bool mail_contact_list(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str query,
                       struct arena *arena, struct mail_contact **out, size_t *out_count, struct err *err) must_use;
bool mail_contact_remove(struct mail *mail, const char *inbox_id, struct str id, struct err *err) must_use;

/* ---- settings of an inbox that its worker keeps (inbox_settings.c) ---- */

/* Kept under the server's key: the dispatcher has to match without the agent's credential. */
struct mail_allow {
    char id[MAIL_MESSAGE_ID_BYTES];
    struct str pattern;
    struct str proof; /* that front has added it: mail/ checks it */
    int64_t created_us;
};
/* An entry that is there already is answered, and nothing changes. */
bool mail_allow_add(struct mail *mail, const char *inbox_id, struct str pattern, struct str actor, struct arena *arena,
                    struct mail_allow *out, struct err *err) must_use;
bool mail_allow_remove(struct mail *mail, const char *inbox_id, struct str id, struct str actor, struct err *err)
    must_use;
bool mail_allow_list(struct mail *mail, const char *inbox_id, struct arena *arena, struct mail_allow **out,
                     size_t *out_count, struct err *err) must_use;

/* Also under the server's key. */
struct mail_webhook {
    char id[MAIL_MESSAGE_ID_BYTES];
    struct str url, secret; /* secret: "whsec_…" */
    struct str *events;     /* as the subscriber has spelt them */
    uint32_t event_count;
    bool is_lobster; /* which signature and shape */
    bool is_enabled;
    uint32_t failures; /* in a row */
    int64_t created_us;
};
bool mail_webhook_add(struct mail *mail, const char *inbox_id, const struct mail_webhook *webhook, struct str actor,
                      struct arena *arena, struct mail_webhook *out, struct err *err) must_use;
bool mail_webhook_list(struct mail *mail, const char *inbox_id, struct arena *arena, struct mail_webhook **out,
                       size_t *out_count, struct err *err) must_use;
bool mail_webhook_remove(struct mail *mail, const char *inbox_id, struct str id, struct str actor, struct err *err)
    must_use;
/*
 * enable: -1: as it is. failed: -1: as it is, 0: an answer of 2xx, 1: another. Disabled after ten failures in a row;
 * enabling forgets them.
 */
bool mail_webhook_note(struct mail *mail, const char *inbox_id, struct str id, int enable, int failed, struct err *err)
    must_use;

/* One request to a webhook: POST of `body`. */
struct mail_hook {
    struct str url;
    const struct mail_pair *headers; /* Content-Type, the signature… */
    uint32_t header_count;
    struct str body;
    bool only_check; /* looks up the name and judges its addresses, and sends nothing: the status is 0 */
};
/*
 * Waits at most LIMIT_HOOK_MS for the server's answer, whatever its status; to check, LIMIT_HOOK_CHECK_MS. owner: for whom;
 * one has one call and one check at a time. ERR_INVALID: the URL, which must be https. ERR_DENIED: it leads to an address
 * that is not public. ERR_TIMEOUT, ERR_UNAVAILABLE: no answer. ERR_LIMIT: too many calls of this owner wait.
 */
bool mail_hook_call(struct mail *mail, struct str owner, const struct mail_hook *hook, uint32_t *out_status,
                    struct err *err) must_use;

/* ---- links: a token that opens one message without another credential (inbox_links.c) ---- */

enum mail_link_kind { MAIL_LINK_APPROVE, MAIL_LINK_ATTACHMENT };
struct mail_link {
    enum mail_link_kind kind;
    char message_id[MAIL_MESSAGE_ID_BYTES];
    uint32_t attachment;
    int64_t expires_us;
    bool is_spent;
};
/*
 * A token is 36 characters like a message id, which lead to its inbox, and a secret. Links of MAIL_LINK_APPROVE end when
 * their message is decided or leaves MAIL_HELD in another way; those of MAIL_LINK_ATTACHMENT are good until they expire.
 */
bool mail_link_handle(struct str token, char out_handle[MAIL_HANDLE_BYTES]) must_use;
/* By somebody who can open the content: an approver (MAIL_LINK_APPROVE) or a reader. See also mail_accept.want_link. */
bool mail_link_make(struct mail *mail, const char *inbox_id, const struct mail_link *want,
                    const struct mail_approver *approver, const struct mail_reader *reader, int64_t now_us,
                    struct secret *out_token, struct err *err) must_use;
/* What it shows. ERR_NOT_FOUND: unknown, expired or spent. Changes nothing. */
bool mail_link_open(struct mail *mail, struct str token, const char *inbox_id, unsigned want, int64_t now_us,
                    struct arena *arena, struct mail_link *out_link, struct mail_message *out, struct err *err)
    must_use;
/* Decides by a link, and spends it: as mail_decide(). `approver` in the decision has no keys, but id and scopes. */
bool mail_link_decide(struct mail *mail, struct str token, const struct mail_decision *decision, struct arena *arena,
                      struct mail_message *out, struct err *err) must_use;

/* ---- audit (audit.c): append-only, each row has the hash of the row before ---- */

struct mail_audit {
    uint64_t number;
    struct str action, resource, actor, detail; /* detail: JSON without content: hashes only */
    int64_t at_us;
    char hash[MAIL_HASH_TEXT_BYTES], prev_hash[MAIL_HASH_TEXT_BYTES];
};
/* What happened outside the worker: mode, keys, grants and their use, failed authentication. */
bool mail_audit_add(struct mail *mail, const char *inbox_id, struct str action, struct str resource, struct str actor,
                    struct str detail, struct err *err) must_use;
/* Newest first, before this number (0: from the end). */
bool mail_audit_list(struct mail *mail, const char *inbox_id, uint64_t before, uint32_t limit, struct arena *arena,
                     struct mail_audit **out, size_t *out_count, struct err *err) must_use;
/* Recomputes the chain. False with ERR_INTERNAL: the number of the first row that does not fit. */
bool mail_audit_verify(struct mail *mail, const char *inbox_id, uint64_t *out_rows, struct err *err) must_use;

struct mail_usage {
    uint64_t sent, received, held, approved, rejected, storage_bytes;
    uint32_t pending, messages, sent_today;
};
/* sent to rejected: in whole days (UTC) from from_us to to_us. The rest: now. */
bool mail_usage(struct mail *mail, const char *inbox_id, int64_t from_us, int64_t to_us, struct mail_usage *out,
                struct err *err) must_use;

#endif
