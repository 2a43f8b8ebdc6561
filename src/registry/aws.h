/*
 * aws.h - the request by which ECR gives out a password for a registry, signed as AWS wants it (Signature Version 4).
 */
#ifndef REGISTRY_AWS_H
#define REGISTRY_AWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct aws_request {
    struct str url, body;
    struct str date, authorization; /* values of X-Amz-Date and Authorization */
};
#define AWS_ECR_TARGET "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
#define AWS_ECR_TYPE "application/x-amz-json-1.1"

/* wall_s: seconds since 1970. ERR_INVALID: the region or the key's id has characters that none has. */
bool aws_ecr_request(struct arena *arena, struct str key_id, struct str key, struct str region, int64_t wall_s,
                     struct aws_request *out, struct err *err) must_use;

/* The key that a day's requests to a service are signed with. */
void aws_signing_key(struct str key, const char *day, struct str region, const char *service, unsigned char out[32]);

#endif
