/*
 * socks5.h - the client's side of SOCKS5 (RFC 1928), with user name and password (RFC 1929): CONNECT and nothing else.
 *
 * What comes back from the proxy is foreign: replies are read strictly, a byte more or less is noticed, and nothing of
 * them is used but the code. Credentials are written to the proxy and appear in no error.
 *
 * Pure: no I/O, no clock.
 */
#ifndef WIRE_SOCKS5_H
#define WIRE_SOCKS5_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

/* Must outlive the machine. Texts have at most 255 bytes. */
struct socks5_want {
    struct str username, password; /* empty user name: none are offered */
    struct str name;               /* where to go: a host name, which the proxy resolves; empty: */
    uint8_t address[16];           /* …an address, IPv4 in the first four */
    bool is_v4;
    uint16_t port;
};

struct socks5 {
    const struct socks5_want *want;
    int state; /* private */
};

enum socks5_step {
    SOCKS5_MORE, /* wait for more from the proxy */
    SOCKS5_DONE, /* connected: from here on, all bytes are the destination's */
    SOCKS5_BAD,  /* err says why: ERR_INVALID for nonsense, ERR_DENIED and ERR_UNAVAILABLE for a "no" */
};

/* `out` gets the first bytes for the proxy. */
void socks5_begin(struct socks5 *socks, const struct socks5_want *want, struct buf *out);
/* Consumes from *in what belongs to the handshake, and adds to `out` what the proxy must get next. */
enum socks5_step socks5_next(struct socks5 *socks, struct str *in, struct buf *out, struct err *err) must_use;

#endif
