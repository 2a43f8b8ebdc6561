/*
 * content_pack.h - drafts and contents as bytes: between front, composer and inbox, and in the inbox's file.
 *
 * A content is packed in parts, so that a list of messages need not decrypt their attachments. Parts that were packed
 * apart are unpacked one after the other into the same struct, CONTENT_HEAD before CONTENT_FILES.
 *
 * Unpacking is total: any bytes either fit or make the reader fail, as with the other functions of base/pack.h.
 *
 * Ownership  Texts are borrowed from the packed bytes, lists live in the arena.
 */
#ifndef MAIL_CONTENT_PACK_H
#define MAIL_CONTENT_PACK_H

#include "base/pack.h"
#include "mail/mail.h"

enum content_part {
    CONTENT_HEAD = 1,  /* everything but what the other parts hold */
    CONTENT_TEXT = 2,  /* text and html, and the text that is answered */
    CONTENT_MIME = 4,  /* the bytes themselves */
    CONTENT_FILES = 8, /* contents of the attachments; name, type, size and hash are in the head */
    CONTENT_ALL = 15,
};

void pack_content(struct buf *out, const struct mail_content *content, unsigned parts);
/* Sets only the fields of the parts that are there. The reader's failure leaves them empty. Returns the parts. */
unsigned unpack_content(struct unpack *in, struct arena *arena, struct mail_content *out);

void pack_draft(struct buf *out, const struct mail_draft *draft);
void unpack_draft(struct unpack *in, struct arena *arena, struct mail_draft *out);

#endif
