/*
 * listen.h - accept connections on a loop.
 */
#ifndef IO_LISTEN_H
#define IO_LISTEN_H

#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"

/* "127.0.0.1:7070", "[::1]:7070": an address and a port, no names. Returns a listening, non-blocking descriptor. */
int listen_open(struct str address, struct err *err) must_use;

struct listener;
typedef void accepted_fn(void *context, int fd); /* which the callback owns: non-blocking, close-on-exec, TCP_NODELAY */
/*
 * Takes ownership of fd. Accepts so many connections in one turn of the loop at most; then the others of the loop are served.
 * When the process is out of descriptors, pauses instead of spinning.
 */
struct listener *listener_new(struct loop *loop, int fd, unsigned a_turn, accepted_fn *accepted, void *context)
    must_use;
/* False: connections stay in the backlog, at no cost to the loop. Also from accepted(). */
void listener_accept(struct listener *listener, bool on);
void listener_free(struct listener *listener);

#endif
