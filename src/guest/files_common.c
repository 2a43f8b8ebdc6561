/*
 * files_common.c - who may use GET and POST /files: by access token, or by a signed link (wire/file_link.h).
 */
#include "guest/files_common.h"

#include <time.h>

#include "guest/answer.h"
#include "guest/api.h"
#include "guest/files.h"
#include "wire/file_link.h"

static struct str query_or_empty(struct http_exchange *ex, struct str name)
{
    struct str value;

    return http_query(&ex->head, &ex->arena, name, &value) ? value : STR("");
}

/* By the access token, or by a signature over this path, user and operation that was made with it. */
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
    const struct file_link link = {
        .path = request->path,
        .operation = operation,
        .user = query_or_empty(ex, STR("username")),
        .expiration = query_or_empty(ex, STR("signature_expiration")),
        .signature = query_or_empty(ex, STR("signature")),
    };
    struct file_link_check check;
    uint64_t expires = 0;
    if (!link.signature.len) {
        answer_error(ex, 401, "missing signature query parameter");
        return false;
    }
    if (link.expiration.len && !str_to_u64(link.expiration, INT64_MAX, &expires)) {
        answer_error(ex, 400, "signature_expiration must be a whole number of seconds");
        return false;
    }
    if (!file_link_open(&link, &check) || !file_link_is_signed_with(&check, secret_reveal(token))) {
        answer_error(ex, 401, "invalid signature");
        return false;
    }
    if (link.expiration.len && expires < (uint64_t)time(NULL)) {
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
