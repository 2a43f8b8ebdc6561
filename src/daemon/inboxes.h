/*
 * inboxes.h - in keeper: starts a worker process for an inbox when front asks for one (MESSAGE_INBOX).
 *
 * An inbox has the directory mail/<id>/ (mode 0700) and a user id of its own, which the directory's owner records. The
 * worker (`cloister role inbox`, inbox.c) runs as that user, gets the directory and one end of a socket pair, and front gets
 * the other end. The worker ends when front closes its end. Keeper makes directories and processes; it opens no file of an
 * inbox, and removes none: of an inbox that was not finished the worker removes its file, and keeper the empty directory.
 *
 * Threads    Keeper's loop.
 * Failure    A request that does not decode is malformed and ends its sender (inboxes_request() is false). One that decodes
 *            is answered: ERR_NOT_FOUND (no such inbox), ERR_LIMIT (too many workers), ERR_INTERNAL.
 */
#ifndef DAEMON_INBOXES_H
#define DAEMON_INBOXES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "mail/mail.h"
#include "privsep/channel.h"

/*
 * User ids of inboxes: between those of sandboxes and those of zygotes (isolation/native), and below the signed border.
 * Two servers on one machine may give the same id to two inboxes; Landlock keeps their workers apart.
 */
#define INBOX_UID_FIRST 0x75000000u
#define INBOX_UID_COUNT 0x03000000u

struct inboxes;

struct inboxes_config {
    struct loop *loop;
    int data_fd;           /* stays the caller's */
    const char *log_level; /* for role_run() */
    uint32_t workers_most; /* processes at once */
};

/* mail/ must be there (data_dir.h). Reads which user ids are taken. NULL on failure. */
struct inboxes *inboxes_new(const struct inboxes_config *config, struct err *err) must_use;
/* Kills the workers: a transaction under way is rolled back by the next one. NULL is fine. */
void inboxes_free(struct inboxes *inboxes);

/* For MESSAGE_INBOX, MESSAGE_INBOXES and MESSAGE_UNMAKE; the last is ERR_CONFLICT for a directory with something in it. */
bool inboxes_request(struct inboxes *inboxes, struct channel *channel, enum message_type type, uint32_t id,
                     struct str payload, struct err *err) must_use;

/* The payload of MESSAGE_INBOX: front's side. That of the others is an id, as text. */
void inboxes_pack(struct buf *out, const char *inbox_id, bool make);
/* Of the reply to MESSAGE_INBOXES, in ascending order; none: that was the last page. `out` has LIMIT_INBOXES_PAGE. */
bool inboxes_page_unpack(struct str payload, char (*out)[MAIL_INBOX_ID_BYTES], uint32_t *out_count, struct err *err)
    must_use;

/* How many workers run; for tests. */
uint32_t inboxes_running(const struct inboxes *inboxes);

#endif
