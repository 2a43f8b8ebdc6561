/*
 * sign_message.h - what MESSAGE_SIGN carries: from front a key, an algorithm and a digest, from signer a signature.
 */
#ifndef DAEMON_SIGN_MESSAGE_H
#define DAEMON_SIGN_MESSAGE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "io/tls.h"

enum { SIGN_MESSAGE_BYTES = TLS_KEY_ID_BYTES + TLS_BLOCK_BYTES + 16 };

void sign_request_pack(struct buf *out, const struct tls_to_sign *want);
/* out->bytes borrows from the payload. */
bool sign_request_unpack(struct str payload, struct tls_to_sign *out, struct err *err) must_use;
void sign_reply_pack(struct buf *out, struct str signature);
bool sign_reply_unpack(struct str payload, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len, struct err *err)
    must_use;

#endif
