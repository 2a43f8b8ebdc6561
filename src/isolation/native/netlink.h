/*
 * netlink.h - netlink messages: written once, sent to the kernel many times.
 *
 * A batch is a row of messages. Attributes go into the message that was begun last; a nest is an attribute made of
 * attributes. Overflow is remembered by the buffer and reported by netlink_send().
 *
 * Ownership  A batch owns its bytes until netlink_done().
 */
#ifndef ISOLATION_NATIVE_NETLINK_H
#define ISOLATION_NATIVE_NETLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"

struct netlink {
    int protocol; /* NETLINK_ROUTE, NETLINK_NETFILTER */
    struct buf bytes;
    uint32_t count; /* of messages; each has its place as sequence number, from 1 */
    size_t message; /* where the last one begins */
};

void netlink_init(struct netlink *batch, int protocol);
void netlink_done(struct netlink *batch);

/* `head` is what the type of message begins with, such as struct ifaddrmsg. NLM_F_REQUEST is added to the flags. */
void netlink_message(struct netlink *batch, uint16_t type, uint16_t flags, const void *head, size_t len);
void netlink_attr(struct netlink *batch, uint16_t type, const void *data, size_t len);
void netlink_text(struct netlink *batch, uint16_t type, const char *text);
void netlink_u32(struct netlink *batch, uint16_t type, uint32_t value);
void netlink_be32(struct netlink *batch, uint16_t type, uint32_t value);
/*
 * The kernel answers this message also when all is well; those that it refuses it answers anyway. Asked for once a batch:
 * an answer costs a microsecond or two.
 */
void netlink_ask_answer(struct netlink *batch);
/* The attributes from here to netlink_nest_end() are inside. Returns what that needs. */
size_t netlink_nest(struct netlink *batch, uint16_t type) must_use;
void netlink_nest_end(struct netlink *batch, size_t nest);

/*
 * To the network namespace that we are in; all of it at once. When the kernel refuses a message, err has its errno, and
 * the kernel's own words where it says any.
 */
bool netlink_send(const struct netlink *batch, struct err *err) must_use;

#endif
