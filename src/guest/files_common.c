#include "guest/files_common.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <time.h>

#include "base/encode.h"
#include "guest/answer.h"
#include "guest/api.h"
#include "guest/files.h"

void files_sign(struct str path, struct str operation, struct str user, struct str token, struct str expiration,
                char room[FILES_SIGNATURE_BYTES])
{
    crypto_hash_sha256_state state;
    unsigned char hash[crypto_hash_sha256_BYTES];
    char text[64];

    (void)crypto_hash_sha256_init(&state);
    const struct str parts[] = { path, operation, user, token, expiration };
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (i == COUNT_OF(parts) - 1 && !expiration.len)
            break;
        if (i)
            (void)crypto_hash_sha256_update(&state, (const unsigned char *)":", 1);
        if (parts[i].len)
            (void)crypto_hash_sha256_update(&state, (const unsigned char *)parts[i].at, parts[i].len);
    }
    (void)crypto_hash_sha256_final(&state, hash);
    size_t len = base64_encode(str_of(hash, sizeof hash), text);
    while (len && text[len - 1] == '=')
        len--;
    (void)snprintf(room, FILES_SIGNATURE_BYTES, "v1_%.*s", (int)len, text);
}

static struct str query_or_empty(struct http_exchange *ex, struct str name)
{
    struct str value;

    return http_query(&ex->head, &ex->arena, name, &value) ? value : STR("");
}

/* By header, or by a signature over this path, user and operation that only a holder of the token can make. */
static bool is_authorised(const struct files_request *request, struct str operation)
{
    struct http_exchange *ex = request->ex;
    const struct secret *token = &request->guest->token;
    const struct str *header = http_header(&ex->head, STR("x-access-token"));

    if (!token->len)
        return true;
    if (header) {
        if (secret_eq(token, *header))
            return true;
        answer_error(ex, 401, "access token present in header but does not match");
        return false;
    }
    struct str signature = query_or_empty(ex, STR("signature"));
    struct str expiration = query_or_empty(ex, STR("signature_expiration"));
    struct str user = query_or_empty(ex, STR("username"));
    uint64_t expires = 0;
    char right[FILES_SIGNATURE_BYTES];
    if (!signature.len) {
        answer_error(ex, 401, "missing signature query parameter");
        return false;
    }
    if (expiration.len && !str_to_u64(expiration, INT64_MAX, &expires)) {
        answer_error(ex, 400, "signature_expiration must be a whole number of seconds");
        return false;
    }
    files_sign(request->path, operation, user, secret_reveal(token), expiration, right);
    if (signature.len != strlen(right) || sodium_memcmp(signature.at, right, signature.len) != 0) {
        answer_error(ex, 401, "invalid signature");
        return false;
    }
    if (expiration.len && expires < (uint64_t)time(NULL)) {
        answer_error(ex, 401, "signature is already expired");
        return false;
    }
    return true;
}

bool files_begin(struct files_request *request, struct guest *guest, struct http_exchange *ex, struct str operation)
{
    *request = (struct files_request){ .guest = guest, .ex = ex, .path = STR("") };
    request->has_path = http_query(&ex->head, &ex->arena, STR("path"), &request->path) && request->path.len;
    return is_authorised(request, operation);
}

bool files_take_user(struct files_request *request)
{
    struct http_exchange *ex = request->ex;
    struct str name = query_or_empty(ex, STR("username"));
    struct err err;

    if (!name.len) {
        if (api_default_user(request->guest, &ex->arena, &request->user, &err))
            return true;
        answer_error(ex, 400, "%s", err.message);
        return false;
    }
    if (users_find(request->guest->users, &ex->arena, name, &request->user))
        return true;
    answer_error(ex, 401, "error looking up user '%.*s': user: unknown user %.*s", (int)MIN(name.len, 200), name.at,
                 (int)MIN(name.len, 200), name.at);
    return false;
}
