/*
 * message.h - what front and a child of the role puller tell each other, as frames (privsep/frame.h).
 *
 *   front    PULL_ASK      an image, a login, what for; perhaps with an archive that a client has uploaded, as a descriptor
 *   child    PULL_SAID     a line for the build's log; any number, at any time
 *   child    PULL_CHAINS   the layers of the image, lowest first: which are there?
 *   front    PULL_HAVE     a byte for each
 *   child    PULL_LAYER    the number of a layer that is not there, with its archive as a descriptor
 *   child    PULL_DONE     digests and variables, or PULL_FAILED
 *
 * Or, in place of all that:
 *
 *   front    PULL_STOCK    what was downloaded and is not in use: how much is it, and shall it go?
 *   child    PULL_STOCKED  so much, or PULL_FAILED
 *
 * Both sides decode all of a message before they use any of it.
 */
#ifndef REGISTRY_MESSAGE_H
#define REGISTRY_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/pack.h"
#include "base/str.h"
#include "registry/reference.h"

enum pull_message {
    PULL_ASK = 1,
    PULL_SAID,
    PULL_CHAINS,
    PULL_HAVE,
    PULL_LAYER,
    PULL_DONE,
    PULL_FAILED,
    PULL_STOCK,
    PULL_STOCKED,
};

/* The fields of template.h's registry_login. */
enum pull_login_kind { PULL_LOGIN_NONE, PULL_LOGIN_BASIC, PULL_LOGIN_AWS, PULL_LOGIN_GCP };
struct pull_login {
    enum pull_login_kind kind;
    struct str user, password;      /* BASIC; the user "<token>" has an identity token as password */
    struct str key_id, key, region; /* AWS */
    struct str account;             /* GCP: JSON text */
};

struct pull_ask {
    struct str image;   /* a reference; of an archive the name in it, or empty if there is just one */
    bool is_archive;    /* the image is in the file that comes with the message */
    struct str team_id; /* who shares room with it */
    bool only_digest;
    char architecture[16];
    struct pull_login login;
};
void pull_ask_pack(struct buf *out, const struct pull_ask *ask);
/* Borrows from the bytes. */
bool pull_ask_unpack(struct str bytes, struct pull_ask *out, struct err *err) must_use;

struct pull_layer {
    char diff_hex[DIGEST_HEX_BYTES], chain_hex[DIGEST_HEX_BYTES];
    uint64_t size; /* of the archive as it is stored */
};
/* Layers of an image, as PULL_CHAINS. */
void pull_chains_pack(struct buf *out, const struct pull_layer *layers, uint32_t count);
struct pull_done {
    char reference_hex[DIGEST_HEX_BYTES]; /* what the reference has now: perhaps an index */
    char digest_hex[DIGEST_HEX_BYTES];    /* of the manifest; empty if only the digest was asked for */
    uint32_t env_count;
    const struct str *envs;
};
void pull_done_pack(struct buf *out, const struct pull_done *done);

/* What a child says. Borrows from the bytes, lists are in the arena. */
struct pull_told {
    enum pull_message type;
    struct str line;           /* SAID */
    uint32_t layer_count;      /* CHAINS */
    struct pull_layer *layers; /* CHAINS */
    uint32_t layer;            /* LAYER: below LIMIT_IMAGE_LAYERS */
    struct pull_done done;     /* DONE */
    struct err err;            /* FAILED */
    uint64_t files, bytes;     /* STOCKED */
};
bool pull_told_unpack(struct str bytes, struct arena *arena, struct pull_told *out, struct err *err) must_use;

void pull_said_pack(struct buf *out, struct str line);
void pull_layer_pack(struct buf *out, uint32_t layer);
void pull_failed_pack(struct buf *out, const struct err *err);
void pull_have_pack(struct buf *out, const bool *have, uint32_t count);
void pull_stock_pack(struct buf *out, bool removes);
bool pull_stock_unpack(struct str bytes, bool *out_removes, struct err *err) must_use;
void pull_stocked_pack(struct buf *out, uint64_t files, uint64_t bytes);
bool pull_have_unpack(struct str bytes, bool *out, uint32_t count, struct err *err) must_use;

#endif
