/*
 * message.h - what our processes say to each other, and how an error travels.
 *
 * A message is a type and packed fields. The receiver decodes the whole, checks every field as if a stranger had sent
 * it, and then acts. One that does not decode ends whoever sent it (channel.h).
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

/* Requests are answered with a reply of the same type: its payload, or an error. Events are not answered. */
enum message_type {
    MESSAGE_READY = 1, /* event from front, empty: it accepts connections from now on */
    MESSAGE_START,     /* request to keeper: a plan; the reply has no payload and guestd's private door as descriptor */
    MESSAGE_STOP, /* request to keeper: a sandbox id, patience in ms; killed, the reply says if it is gone by now */
    MESSAGE_LIST, /* request to keeper, empty; the reply is the ids of all sandboxes it holds */
    MESSAGE_LINK, /* request to keeper: a sandbox id; the reply carries guestd's private door once more */
    MESSAGE_DIAL, /* request to keeper: a sandbox id and a port; the reply carries a TCP socket inside it, on its way there */
    MESSAGE_TEMPLATES, /* request to keeper, empty; the reply is image/templates.h's list */
    MESSAGE_STATS,     /* request to keeper: sandbox ids; the reply is what they use, isolation/stats.h */
    MESSAGE_EXITED,    /* event from keeper: a sandbox id and a cause; it is gone, whoever ended it */
    MESSAGE_TYPE_END,
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
    uint32_t id; /* of the request, also in its reply; 0 with an event and with nothing else */
};

enum { MESSAGE_HEAD_BYTES = 1 + 2 + 4 };
void message_pack_head(struct buf *out, const struct message_head *head);
/* Leaves the payload in in->rest. */
void message_unpack_head(struct unpack *in, struct message_head *out_head);

/* A struct err as it is, trail included: the asker's log shows where it went wrong on the other side. */
void message_pack_err(struct buf *out, const struct err *err);
void message_unpack_err(struct unpack *in, struct err *out_err);

/* [a-z0-9]+, as every sandbox id is; anything else makes the message malformed. */
void message_pack_id(struct buf *out, const char *id);
void message_unpack_id(struct unpack *in, char out_id[LIMIT_ID_BYTES]);

#endif
