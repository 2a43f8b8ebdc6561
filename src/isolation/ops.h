/*
 * ops.h - the operations of a driver that cross from front to keeper, each described once, in ops.c.
 *
 * A row says which message asks for the operation, which fields the request and the reply have, and which call of
 * keeper's driver carries it out. remote.c and serve.c work by these rows and know no operation by name. A new operation
 * is a message type (privsep/message.h), a call in driver.h, and a section in ops.c.
 */
#ifndef ISOLATION_OPS_H
#define ISOLATION_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "isolation/driver.h"
#include "privsep/channel.h"
#include "privsep/message.h"

/* The fields that a request may have. They travel in this order. */
enum {
    ASK_PLAN = BIT(0),
    ASK_ID = BIT(1),
    ASK_PATIENCE = BIT(2),
    ASK_PORT = BIT(3),
    ASK_LISTEN = BIT(4),
    ASK_WHICH = BIT(5),
    ASK_AFTER = BIT(6),
    ASK_PAUSE = BIT(7),
    ASK_UNPACK = BIT(8),
};
struct op_ask {
    struct plan plan;
    char id[LIMIT_ID_BYTES]; /* with ASK_AFTER: the list continues after this one; empty: from its start */
    uint32_t patience_ms;
    uint16_t port;
    struct listen_at listen;
    struct held which[LIMIT_STATS];
    uint32_t which_count;
    struct {
        enum pause_call call;
        char id
            [LAYER_ID_BYTES]; /* a sandbox's; with PAUSE_DROP and PAUSE_LIST a snapshot's, with PAUSE_MEASURE either */
        bool memory;          /* with PAUSE_PARK and PAUSE_SNAPSHOT alone */
    } pause;
    struct unpack_want unpack;
    uint64_t ticket; /* with ASK_UNPACK: keeper's event MESSAGE_UNPACK has it too, and the socket for the archive */
};

/* And a reply. */
enum {
    ANSWER_FD = BIT(0),
    ANSWER_GONE = BIT(1),
    ANSWER_HELD = BIT(2),
    ANSWER_STATS = BIT(3),
    ANSWER_NETWORK = BIT(4),
    ANSWER_KEPT = BIT(5),
};
struct op_answer {
    int fd; /* -1: none */
    bool gone, has_network;
    struct held *held; /* on the heap; a page of LIMIT_HELD_PAGE of a list that is sorted by id */
    bool more;         /* after that page */
    struct kept kept;  /* of PAUSE_SNAPSHOT, _COPY, _LIST and _MEASURE; else all zero */
    struct stats stats[LIMIT_STATS];
    uint32_t count; /* of held or stats */
};
#define OP_ANSWER_NONE ((struct op_answer){ .fd = -1 })
void op_answer_done(struct op_answer *answer); /* closes and frees what is left in it */
#define auto_op_answer __attribute__((cleanup(op_answer_done)))

/* An operation under way whose answer comes later. done() is called once, and takes what it keeps out of the answer. */
struct op_call {
    void (*done)(struct op_call *call, struct op_answer *answer, const struct err *err);
    void (*offer)(struct op_call *call, int socket_fd); /* before that, see driver_offer_fn */
};

struct op {
    unsigned ask, answer; /* ASK_…, ANSWER_… */
    /* Carries the operation out on keeper's driver: at once, or with call->done() before or after it returns. */
    bool (*now)(struct driver *driver, const struct op_ask *ask, struct op_answer *out, struct err *err);
    void (*later)(struct driver *driver, const struct op_ask *ask, struct op_call *call);
};
/* How long front waits for the answer before keeper counts as stuck. */
uint32_t op_patience_ms(const struct op *op, const struct op_ask *ask) must_use;
/* NULL: the message asks for no operation of a driver. */
const struct op *op_of(enum message_type type) must_use;

/* What is unpacked has the right form and is within the limits. The caller ends with unpack_done(). */
void op_pack_ask(const struct op *op, struct buf *out, const struct op_ask *ask);
void op_unpack_ask(const struct op *op, struct unpack *in, struct op_ask *out);
void op_pack_answer(const struct op *op, struct buf *out, const struct op_answer *answer);
/*
 * A list and what a pause has kept are checked against the request; `asked` may be NULL for other answers. Leaves fd
 * alone: a descriptor travels beside the payload.
 */
void op_unpack_answer(const struct op *op, struct unpack *in, const struct op_ask *asked, struct op_answer *out);

/* The calls of front's driver: each fills in a request and sends it with one of the two functions below (remote.c). */
extern const struct driver_ops op_remote_calls;

/* On a worker: waits for the answer. */
bool remote_call(struct driver *driver, enum message_type type, const struct op_ask *ask, struct op_answer *out,
                 struct err *err) must_use;
/* Before a call with ASK_UNPACK: the descriptor that keeper will ask for, by this ticket. It must stay open until… */
uint64_t remote_offer(struct driver *driver, int fd) must_use;
void remote_withdraw(struct driver *driver, uint64_t ticket); /* …this, after the call */
/* On the loop: the function that fits the operation is called with the answer, later. */
struct op_then {
    driver_socket_fn *socket;
    driver_stopped_fn *stopped;
    void *context;
};
void remote_request(struct driver *driver, enum message_type type, const struct op_ask *ask,
                    const struct op_then *then);
void remote_free(struct driver *driver);

#endif
