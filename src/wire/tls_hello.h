/*
 * tls_hello.h - which server a TLS client wants: the name in its ClientHello, read without taking part in TLS.
 *
 * The hello may come in any number of pieces and be split over several records. The caller keeps all bytes from the first
 * one on and asks again when there are more. Nothing is allocated, and a hello that claims to be longer than
 * LIMIT_TLS_HELLO_BYTES is refused at once.
 *
 * The name is what the client shows to the network. With Encrypted Client Hello that is the name of the server that
 * decrypts; browsers send the extension also without meaning it, so it is not looked at.
 *
 * Pure: no I/O, no clock.
 */
#ifndef WIRE_TLS_HELLO_H
#define WIRE_TLS_HELLO_H

#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

enum tls_hello_parse {
    TLS_HELLO_MORE, /* not all there yet: ask again with everything received so far, when there are `more` bytes more */
    TLS_HELLO_DONE,
    TLS_HELLO_NONE, /* not TLS: another protocol, to be let through or not */
    TLS_HELLO_BAD,  /* err says why */
};

struct tls_hello {
    char name[256];    /* "": the client names no server. Letters, digits, '-', '_' and '.', as they came. */
    bool offers_http1; /* in ALPN; true too if there is no ALPN */
    size_t more;       /* of TLS_HELLO_MORE, which sets nothing else: with fewer it is not all there either */
};

enum tls_hello_parse tls_hello_parse(struct str received, struct tls_hello *out, struct err *err) must_use;

#endif
