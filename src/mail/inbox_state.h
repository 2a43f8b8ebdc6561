/*
 * inbox_state.h - an outgoing message's row as the gate sees it, and how a change of state gets into the file.
 *
 * Worker only. Everything here runs inside a transaction that the operation has begun. outgoing_step() is the one place
 * where a state is written: it asks gate_step(), stores the whole result only if the stored state is still the one that it
 * was loaded with, gives and takes the keys that belong to the new state, and adds the row to the audit.
 */
#ifndef MAIL_INBOX_STATE_H
#define MAIL_INBOX_STATE_H

#include "mail/inside.h"

_Static_assert(MAIL_INBOUND == 0 && MAIL_OUTBOUND == 1, "numbers in queries, and in indexes of the schema");

struct outgoing {
    char id[MAIL_MESSAGE_ID_BYTES];
    struct gate_message gate;
    struct str composer, decided_by, approval_mac;
};
/* ERR_NOT_FOUND: there is none, or it came from outside. */
bool outgoing_load(struct inbox *inbox, struct str id, struct arena *arena, struct outgoing *out, struct err *err)
    must_use;
/* Any message as front gets it, without content. ERR_NOT_FOUND. */
bool inbox_message_load(struct inbox *inbox, struct str id, struct arena *arena, struct mail_message *out,
                        struct err *err) must_use;

struct outgoing_change {
    enum gate_event event;
    struct gate_input input; /* all_allowlisted is filled in here */
    struct str actor;
    struct str detail;     /* more members for the audit's JSON: ,"name":"value"; may be empty */
    struct str for_server; /* the content key, sealed: stored if the new state needs one and none is there yet */
    struct str for_approver;
};
/* *out_changed: false if there was nothing to do. */
bool outgoing_step(struct inbox *inbox, struct outgoing *message, const struct outgoing_change *change,
                   struct arena *arena, bool *out_changed, struct err *err) must_use;
/* What would follow? Changes nothing. */
bool outgoing_try(struct inbox *inbox, const struct outgoing *message, const struct outgoing_change *change,
                  struct gate_message *out, struct err *err) must_use;

/* While a message is in one of these, the server's key opens it. */
bool mail_state_waits(enum mail_state state);

bool inbox_sealed_get(struct inbox *inbox, struct str message_id, const char *holder, struct arena *arena,
                      struct str *out_sealed, struct err *err) must_use;
bool inbox_sealed_put(struct inbox *inbox, const char *message_id, const char *holder, struct str sealed,
                      struct err *err) must_use;
bool inbox_sealed_remove(struct inbox *inbox, const char *message_id, const char *holder, struct err *err) must_use;

bool mail_message_held(const struct mail_message *message);
/* "key:01…" and "01…" are the same party. */
bool mail_same_party(struct str a, struct str b);

/* ---- links (inbox_links.c) ---- */

struct link_row {
    struct str token_hash, wrapped;
    enum mail_link_kind kind;
    struct str message_id;
    uint32_t attachment;
    int64_t expires_us;
    bool is_spent;
};
bool link_put(struct inbox *inbox, const struct link_row *row, struct err *err) must_use;
/* ERR_NOT_FOUND. Copies into the arena. */
bool link_load(struct inbox *inbox, struct str token_hash, struct arena *arena, struct link_row *out, struct err *err)
    must_use;
/* The message is not held any more: its links open nothing. */
bool links_spend(struct inbox *inbox, const char *message_id, struct err *err) must_use;

/* ---- front ---- */

/* Ids come from clients. ERR_NOT_FOUND: it is no id, so there is no such message. */
bool mail_id_check(struct str message_id, struct err *err) must_use;

/*
 * mail_call(), and once more if the worker died: for operations that find out that they have been done. It may have died
 * after it had committed and before it answered.
 */
bool mail_call_again(struct mail *mail, const char *inbox_id, uint16_t op, const struct buf *request,
                     struct arena *arena, struct unpack *out_reply, struct err *err) must_use;

/* A new token for a link, what the file has of it, and the content key under it. */
void mail_link_new(const struct mail *mail, const char *inbox_id, const struct seal_key *content_key,
                   struct secret *out_token, char out_hash[65], unsigned char out_wrapped[SEAL_WRAPPED_KEY_BYTES]);

/* A held message as the worker gives it: sealed. */
struct held {
    struct mail_message message;
    struct str sealed; /* content key for the approvers; empty: none */
    struct str cipher; /* the body */
};
/* The sealed key is the approvers'. ERR_NOT_FOUND: no such message; it need not be held. */
bool held_get(struct mail *mail, const char *inbox_id, struct str message_id, struct arena *arena, struct held *out,
              struct err *err) must_use;
void held_unpack(struct unpack *in, const char *inbox_id, struct arena *arena, struct held *out);
/* Opens the body and compares its hash with the row's: the message gets its content. ERR_INTERNAL: damaged. */
bool held_open(struct held *held, const struct seal_key *content_key, struct arena *arena, struct err *err) must_use;
/* content_key NULL: it cannot be opened, so it can only be rejected. token_hash: of the link, else empty. */
bool held_decide(struct mail *mail, const struct mail_decision *decision, struct held *held,
                 const struct seal_key *content_key, struct str token_hash, struct arena *arena,
                 struct mail_message *out, struct err *err) must_use;
/* In the worker: message and cipher for held_unpack(); the caller has packed the key. */
bool held_pack(struct inbox *inbox, struct str message_id, struct str sealed, struct arena *arena, struct buf *out,
               struct err *err) must_use;

#endif
