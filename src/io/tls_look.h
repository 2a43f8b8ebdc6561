/*
 * tls_look.h - which certificate a server shows, for a command line that wants to know what clients see.
 *
 * Makes a connection, shakes hands and closes it. Waits; for one thread without a loop.
 */
#ifndef IO_TLS_LOOK_H
#define IO_TLS_LOOK_H

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "io/tls_key.h"

struct tls_seen {
    struct tls_chain_facts facts; /* has_name: is it for the name that was asked for? */
    bool is_trusted;              /* signed by one of the roots; says nothing about its name and its dates */
    char why_not[96];             /* OpenSSL's words, such as "self-signed certificate"; "" if it is trusted */
};

/* `address` as for dial_open(), `name` for SNI, `roots` in PEM. False: no handshake, and so no certificate. */
bool tls_look(struct str address, const char *name, struct str roots, int timeout_ms, struct tls_seen *out,
              struct err *err) must_use;

#endif
