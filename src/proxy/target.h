/*
 * target.h - the sandbox that a request is for, and the port inside it.
 *
 *   by host      "8000-iabc.example.com": port 8000 of sandbox iabc. More parts ("8000-iabc-6532622b.…") are an old
 *                kind of client id and ignored.
 *   by header    E2b-Sandbox-Id and E2b-Sandbox-Port, on any host that does not read as above, so that one address can
 *                serve every sandbox. The SDKs always send both headers: a host that reads as above wins. With an API
 *                key they are for the API.
 *
 *   by neither   a signed link to a file: the signature determines the sandbox (links.h). Or a call of guestd's with an
 *                access token, which belongs to one sandbox: some SDK releases send nothing else
 *
 * Pure.
 */
#ifndef PROXY_TARGET_H
#define PROXY_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/limits.h"
#include "base/ports.h"
#include "base/str.h"
#include "http/http.h"

struct target {
    uint16_t port;           /* guestd's (base/ports.h), or a service of the user's */
    char id[LIMIT_ID_BYTES]; /* [a-z0-9]+ */
};

enum target_verdict {
    TARGET_NONE,      /* names no sandbox */
    TARGET_FOUND,     /* well-formed; the sandbox need not exist */
    TARGET_PREFLIGHT, /* a browser's preflight for routing headers or a signed link, which cannot name the sandbox */
    TARGET_MISSING_HEADER, /* one routing header without the other */
    TARGET_BAD_ID,
    TARGET_BAD_PORT,
    TARGET_VERDICT_COUNT,
};

/* *out is filled in with TARGET_FOUND only. */
enum target_verdict target_of(const struct http_head *head, struct target *out);

/* With TARGET_NONE: does it carry an access token, to one of guestd's paths? Then the token says which sandbox. */
bool target_has_token(const struct http_head *head, struct str *out_token);

/* The message for a request without a target; NULL for TARGET_FOUND and TARGET_PREFLIGHT. */
const char *target_complaint(enum target_verdict verdict);

/* A call of guestd's that uses its body while it is still coming, even if its length is known? */
bool target_is_stream(const struct http_head *head);

/* A browser's question before a cross-origin request. */
bool target_is_preflight(const struct http_head *head);

/* The path with one slash in front: a base URL that ends in a slash makes clients ask for "//process.Process/Start". */
struct str target_path(struct str raw_path);

/*
 * Is this one of the paths that E2B's daemon keeps for its host, however it is spelled ("/x/..//in%69t/")? *out_path is
 * the plain spelling. guestd does not serve them at this port. Clients expect the refusal.
 */
bool target_is_control_path(struct str raw_path, struct arena *arena, struct str *out_path);

#endif
