/*
 * authority.h - the certificates that this server makes for itself, so that TLS works without any set-up.
 *
 * Below tls/ in the data directory:
 *   authority.pem  the authority's key and certificate, the server's key and certificate; only root
 *   ca.pem         the authority's certificate, for browsers and other trust stores
 *   ca-bundle.pem  the same after the system's own, for clients that trust one file: what `cloister env` names
 *
 * The authority can only sign for the names that it was made for, and for loopback addresses (name constraints), and only
 * servers (extended key usage). Other names make another authority. The server's certificate is renewed long before it
 * ends; clients do not notice, because they trust the authority.
 *
 * Threads    Keeper's loop, or any one thread.
 */
#ifndef DAEMON_AUTHORITY_H
#define DAEMON_AUTHORITY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"

#define AUTHORITY_NAME "cloister.localhost" /* two labels: clients refuse a wildcard directly under localhost */

/* A certificate with its chain, and its key, in PEM. */
struct key_pair {
    char *chain, *key; /* on the heap */
};
void key_pair_done(struct key_pair *pair); /* wipes the key */
#define auto_pair __attribute__((cleanup(key_pair_done)))

/*
 * The server's certificate for AUTHORITY_NAME, for `name` if that is not empty, and for all names directly below them.
 * Made or renewed if need be; *out_is_new tells. Also writes the two files for clients.
 */
bool authority_certificate(int data_fd, const char *name, struct key_pair *out, bool *out_is_new, struct err *err)
    must_use;
/* Writes ca-bundle.pem again if the system's certificates have changed since. */
bool authority_refresh_bundle(int data_fd, struct err *err) must_use;
/* The certificates that the host trusts, to read; an empty file where it has none. */
int authority_open_roots(struct err *err) must_use;
/* The host name of a domain ("example.com:8443" → "example.com") if a certificate can be made for it; else empty. */
void authority_host(const char *domain, char *room, size_t size);

#endif
