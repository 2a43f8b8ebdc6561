/*
 * front_tls.h - front's part of TLS: certificates come from keeper, signatures from signer.
 */
#ifndef DAEMON_FRONT_TLS_H
#define DAEMON_FRONT_TLS_H

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/worker.h"
#include "privsep/channel.h"

struct front_tls;

/* The channel stays the caller's. */
struct front_tls *front_tls_new(struct loop *loop, struct workers *workers, struct channel *signer) must_use;
/* MESSAGE_CERTIFICATE. False: malformed. Certificates that cannot be used change nothing. */
bool front_tls_take(struct front_tls *tls, struct str payload, struct message_fds *fds, struct err *err) must_use;
/* A new connection: TLS or not, as its first byte says. */
void front_tls_accept(struct front_tls *tls, struct stream *stream);
/* After the connections and the workers. NULL is fine. */
void front_tls_free(struct front_tls *tls);

#endif
