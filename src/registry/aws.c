#include "registry/aws.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/limits.h"
#include "registry/digest.h"

void aws_signing_key(struct str key, const char *day, struct str region, const char *service, unsigned char out[32])
{
    auto_buf struct buf first = buf_make(NULL, LIMIT_LOGIN_BYTES + 8);

    first.is_secret = true;
    buf_add(&first, STR("AWS4"));
    buf_add(&first, key);
    sha256_hmac(buf_str(&first), str_from(day), out);
    sha256_hmac(str_of(out, SHA256_BYTES), region, out);
    sha256_hmac(str_of(out, SHA256_BYTES), str_from(service), out);
    sha256_hmac(str_of(out, SHA256_BYTES), STR("aws4_request"), out);
}

/* It becomes part of a host name. */
static bool region_is_valid(struct str region)
{
    for (size_t i = 0; i < region.len; i++)
        if (!(region.at[i] >= 'a' && region.at[i] <= 'z') && !char_is_digit(region.at[i]) && region.at[i] != '-')
            return false;
    return region.len > 0 && region.len <= 32;
}

static bool key_id_is_valid(struct str key_id)
{
    for (size_t i = 0; i < key_id.len; i++)
        if (!char_is_alnum(key_id.at[i]) && key_id.at[i] != '_')
            return false;
    return key_id.len > 0 && key_id.len <= 128;
}

bool aws_ecr_request(struct arena *arena, struct str key_id, struct str key, struct str region, int64_t wall_s,
                     struct aws_request *out, struct err *err)
{
    static const char signed_headers[] = "content-type;host;x-amz-date;x-amz-target";
    char stamp[32], day[16], body_hex[DIGEST_HEX_BYTES], request_hex[DIGEST_HEX_BYTES];
    char signature_hex[2 * SHA256_BYTES + 1];
    unsigned char signing_key[SHA256_BYTES], signature[SHA256_BYTES];
    time_t now = (time_t)wall_s;
    struct tm parts;

    if (!region_is_valid(region))
        return err_set(err, ERR_INVALID, "the AWS region must be like us-east-1");
    if (!key_id_is_valid(key_id) || key.len == 0 || key.len > LIMIT_LOGIN_BYTES)
        return err_set(err, ERR_INVALID, "the AWS access key has characters that no key has");
    (void)gmtime_r(&now, &parts);
    (void)strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &parts);
    (void)strftime(day, sizeof day, "%Y%m%d", &parts);
    out->body = STR("{}");
    sha256_hex(out->body, body_hex);
    struct str host = arena_format(arena, "api.ecr.%.*s.amazonaws.com%s", STR_ARG(region),
                                   str_starts(region, STR("cn-")) ? ".cn" : "");
    struct str request = arena_format(arena,
                                      "POST\n/\n\ncontent-type:" AWS_ECR_TYPE "\nhost:%.*s\nx-amz-date:%s\n"
                                      "x-amz-target:" AWS_ECR_TARGET "\n\n%s\n%s",
                                      STR_ARG(host), stamp, signed_headers, body_hex);
    sha256_hex(request, request_hex);
    struct str scope = arena_format(arena, "%s/%.*s/ecr/aws4_request", day, STR_ARG(region));
    struct str to_sign = arena_format(arena, "AWS4-HMAC-SHA256\n%s\n%.*s\n%s", stamp, STR_ARG(scope), request_hex);
    aws_signing_key(key, day, region, "ecr", signing_key);
    sha256_hmac(str_of(signing_key, sizeof signing_key), to_sign, signature);
    explicit_bzero(signing_key, sizeof signing_key);
    (void)hex_text(str_of(signature, sizeof signature), signature_hex);
    out->url = arena_format(arena, "https://%.*s/", STR_ARG(host));
    out->date = arena_format(arena, "%s", stamp);
    out->authorization = arena_format(arena, "AWS4-HMAC-SHA256 Credential=%.*s/%.*s, SignedHeaders=%s, Signature=%s",
                                      STR_ARG(key_id), STR_ARG(scope), signed_headers, signature_hex);
    return true;
}
