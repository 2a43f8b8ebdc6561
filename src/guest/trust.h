/*
 * trust.h - has programs in the sandbox trust the authority of its header rules (egress/intercept.h).
 *
 * Programs look for certificates in one of three ways, and each is served:
 *   a bundle     ssl/certs/ca-certificates.crt and its like get the authority at their end, between two comments
 *   a directory  ssl/certs/<hash>.0, as OpenSSL looks it up
 *   variables    trust_envs: for Node, and for programs that bring a bundle of their own (Python's requests)
 *
 * Failure    Only logged, for each file: programs that read it refuse the hosts with header rules, and no others.
 */
#ifndef GUEST_TRUST_H
#define GUEST_TRUST_H

#include "base/str.h"
#include "wire/guestlink.h"

/* Makes the files in `etc`, normally "/etc", say so. Without an authority, takes it out again. */
void trust_tell(const char *etc, const struct guestlink_authority *authority);

/* For every process, while there is an authority. */
enum { TRUST_ENVS = 3 };
extern const struct guestlink_env trust_envs[TRUST_ENVS];

/* A bundle with the authority at its end, in place of the one that it may have. Exposed for tests. */
struct buf;
void trust_bundle(struct str old, struct str authority, struct buf *out);

#endif
