/*
 * handover.h - how keeper gives descriptors to a guestd that runs: guestlink, and the socket of the template's zygote.
 *
 * guestd is started with a listening unix socket (SOCK_SEQPACKET). Its name is a file in the sandbox's directory on the
 * host, which only root can open and which no sandbox can see: every peer is keeper. Keeper connects, sends one
 * message with one descriptor and closes; guestd never answers. So either descriptor can be given at any time, any
 * number of times, by any keeper. A guestd that comes back from a memory image gets another listening socket first: the one
 * that it was restored with is not in its network, so that it could not be written to disk a second time.
 *
 * A newer keeper talks to guestds of an older build: the struct stays as it is, and a new kind gets a new number.
 */
#ifndef WIRE_HANDOVER_H
#define WIRE_HANDOVER_H

#include <stdint.h>

enum handover_kind {
    HANDOVER_LINK = 1, /* guestd's end of a new guestlink (wire/guestlink.h); the one before is closed */
    HANDOVER_ZYGOTE =
        2, /* guestd's end of a socket to the zygote (wire/zygote.h); dropped if guestd has one that works */
    HANDOVER_LISTENER = 3, /* what guestd listens on from now on, instead of the socket that this came by */
};

struct handover {
    uint32_t kind;
};

#endif
