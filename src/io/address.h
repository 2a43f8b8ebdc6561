/*
 * address.h - parse "127.0.0.1:7070" or "[::1]:7070": an address and a port, no host names.
 *
 * A resolver for names would block, and guestd, which is static, cannot load one.
 */
#ifndef IO_ADDRESS_H
#define IO_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/str.h"

bool address_parse(struct str text, struct sockaddr_storage *out_address, socklen_t *out_len, struct err *err) must_use;

#endif
