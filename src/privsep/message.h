/*
 * message.h - the messages between our processes, and how an error travels.
 *
 * A message is a type and packed fields. The receiver decodes all of it, checks every field as untrusted input, and then
 * acts. A message that does not decode breaks the channel (channel.h), and keeper kills the role that sent it.
 */
#ifndef PRIVSEP_MESSAGE_H
#define PRIVSEP_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/pack.h"

/*
 * Every message: its type, its name in the log, and what it carries. A request is answered with a reply of the same type:
 * its payload, or an error. An event is not answered. isolation/ops.c has the fields of the driver's requests.
 */
#define MESSAGE_TYPES(X)                                                                                               \
    X(READY, "ready")   /* event from front, empty: it accepts connections from now on */                              \
    X(PEER, "peer")     /* event from keeper: a role's number, and a new connection to that role as descriptor */      \
    X(START, "start")   /* request to keeper: start a sandbox; the reply has guestd's private connection */            \
    X(STOP, "stop")     /* request to keeper: kill a sandbox; the reply says whether it is gone yet */                 \
    X(LIST, "list")     /* request to keeper: the reply has the ids of all sandboxes that it holds */                  \
    X(LINK, "link")     /* request to keeper: the reply has guestd's private connection once more */                   \
    X(DIAL, "dial")     /* request to keeper: the reply has a TCP socket inside a sandbox, connecting to a port */     \
    X(LISTEN, "listen") /* request to keeper: the reply has a listening TCP socket inside a sandbox */                 \
    X(WARM, "warm")     /* request to keeper: give guestd a zygote that is warm; reply: empty */                       \
    X(TEMPLATES, "templates")     /* request to keeper: the id to continue after, or ""; the reply is one page */      \
    X(STATS, "stats")             /* request to keeper: what sandboxes use; the reply is isolation/stats.h's list */   \
    X(PAUSE, "pause")             /* request to keeper: one of driver.h's calls of a pause; reply: what was kept */    \
    X(EXITED, "exited")           /* event from keeper: a sandbox id and a cause; the sandbox is gone */               \
    X(OPTION, "option")           /* event from keeper: a sandbox id; level and name of a refused socket option */     \
    X(NETWORK, "network")         /* event from keeper to egress: a sandbox id, and its listening sockets */           \
    X(RESOLVERS, "resolvers")     /* event from keeper to egress: the text of a resolv.conf with the servers to ask */ \
    X(POLICY, "policy")           /* request from front to egress: a sandbox id and its net_policy; reply: empty */    \
    X(FLOWS, "flows")             /* event from egress to front: counters and refusals of sandboxes, egress/flows.h */ \
    X(SIGN, "sign")               /* request from front to signer: a key, an algorithm, a digest; reply: signature */  \
    X(CERTIFICATE, "certificate") /* event from keeper to signer and front: new keys, new certificates */              \
    X(INBOX, "inbox")             /* request to keeper: an inbox id, make it or not; reply: a socket to its worker */  \
    X(INBOXES, "inboxes")         /* request to keeper: an inbox id to continue after, or ""; reply: ids */            \
    X(UNMAKE, "unmake")           /* request to keeper: an inbox id, whose empty directory is removed; reply: empty */ \
    X(COMPOSE, "compose")         /* request from front to composer, empty; reply: a socket to a new child of it */    \
    X(HOOK, "hook")               /* request from front to webhooks, empty; reply: a socket to a new child of it */    \
    X(GUEST, "guest")   /* event from egress to front: a sandbox id; its connection to mail, as descriptor */          \
    X(UNPACK, "unpack") /* request to keeper: a layer of an image; event from keeper: where to pass its archive */     \
    X(PULL, "pull")     /* request from front to puller, empty; reply: a socket to a new child of it */

enum message_type {
#define MESSAGE_TYPE(type, name) MESSAGE_##type,
    MESSAGE_NONE,
    MESSAGE_TYPES(MESSAGE_TYPE) MESSAGE_TYPE_END,
#undef MESSAGE_TYPE
};
extern const char *const message_type_name[MESSAGE_TYPE_END];

/* Four shapes, told apart by the header so that a reply cannot be mistaken for a request. */
enum message_shape {
    MESSAGE_REQUEST = 1,
    MESSAGE_REPLY,
    MESSAGE_FAILURE, /* a reply whose payload is an error */
    MESSAGE_EVENT,
    MESSAGE_SHAPE_END,
};

struct message_head {
    enum message_shape shape;
    enum message_type type;
    uint32_t id; /* of a request, and of the reply to it; 0 for events only */
};

enum { MESSAGE_HEAD_BYTES = 1 + 2 + 4 };
void message_pack_head(struct buf *out, const struct message_head *head);
/* Leaves the payload in in->rest. */
void message_unpack_head(struct unpack *in, struct message_head *out_head);

/* A whole struct err, with its trail: the log of the process that asked shows what went wrong in the other one. */
void message_pack_err(struct buf *out, const struct err *err);
void message_unpack_err(struct unpack *in, struct err *out_err);

bool message_sandbox_id_valid(const char *id); /* [a-z0-9]+, of fewer than LIMIT_ID_BYTES */
/* A sandbox id; anything else makes the message malformed. */
void message_pack_id(struct buf *out, const char *id);
void message_unpack_id(struct unpack *in, char out_id[LIMIT_ID_BYTES]);

#endif
