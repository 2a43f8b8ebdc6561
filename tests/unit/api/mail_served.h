/*
 * mail_served.h - mail's API on a loopback port, over actions that only write down how they were called.
 *
 * Each fake action adds a line to `said`: its name and the arguments that matter. It then fails with `fail`, if that is
 * set, or answers with fixed values: an inbox, a message, a key.
 */
#ifndef TESTS_API_MAIL_SERVED_H
#define TESTS_API_MAIL_SERVED_H

#include <stdio.h>

#include "../sandbox/rig.h"
#include "api/mail_dialect.h"
#include "wire/json.h"

#define FAKE_INBOX "01JMXK9F2A0000000000000001"
#define FAKE_MESSAGE "01JMXK9F2B00000000000000020000000001"
#define FAKE_THREAD "01JMXK9F2C00000000000000030000000001"
#define FAKE_CURSOR "01JMXK9F2000000000000000010000000001" /* a page may end at a message that it does not show */
#define FAKE_SHA "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

/* The keys that the fake knows. */
#define KEY_FULL "mm_live_full" /* read, send, admin */
#define KEY_READ "mm_live_read"
#define KEY_SEND "mm_live_send"
#define KEY_EYES "mm_live_eyes"     /* oversight */
#define KEY_BROKEN "mm_live_broken" /* the store fails */
#define KEY_LOBSTER "lm_sk_live_account"
#define ADMIN "admin-secret"

struct mail_fake {
    char said[4096];
    struct err fail; /* kind ERR_NONE: succeed */
    uint32_t retry_s;
    bool asks_for_code;
    enum mail_state state;          /* of the message */
    enum mail_direction direction;  /* of the message */
    enum mail_in_status in_status;  /* of the message */
    bool is_repeat, has_no_content; /* of the message */
    struct str file_type;           /* of an attachment; empty: text/plain */
    bool no_key_is_valid;           /* all were revoked */
    bool page_has_more, page_is_empty, list_has_no_text;
    const struct held_message *page; /* what an approval link shows; NULL: the message */
    pthread_mutex_t gate;            /* a handler of action_mail_list() waits for it: for slow calls */
    _Atomic unsigned lists_at_work;
};
extern struct mail_fake fake;

struct mail_served {
    struct rig rig;
    struct actions actions;
    struct mail_setup setup;
    struct mail_api *api;
    struct http_server *server;
    const char *sandbox_id; /* requests come from inside this one; NULL: from outside */
    uint32_t requests_per_s;
    char address[32];
    json_t *last; /* the answer's JSON, ours */
    struct http_answer answer;
};

int mail_served_set_up(void **state);
int mail_served_tear_down(void **state);

/* One request; key may be NULL. Returns the status; `last` has the JSON. Clears what the fake has written down before. */
unsigned mail_ask(struct mail_served *s, const char *method, const char *target, const char *key, const char *body);
unsigned mail_ask_with(struct mail_served *s, const char *method, const char *target, const char *body,
                       const struct http_field *fields, size_t count);
/* A text of the last answer: "status", or "0.id" of the list `in`. Fails if it is none. */
const char *mail_text(struct mail_served *s, const char *name);
const char *mail_header(struct mail_served *s, const char *name); /* NULL if absent */

#endif
