#include "mail/hook.h"

#include <string.h>

#include "base/limits.h"

bool mail_hook_pack(struct buf *out, const struct mail_hook *hook, struct err *err)
{
    if (hook->url.len > LIMIT_HOOK_URL_BYTES || hook->header_count > LIMIT_HOOK_HEADERS)
        return err_set(err, ERR_LIMIT, "the webhook's address is longer than %d bytes", LIMIT_HOOK_URL_BYTES);
    pack_bool(out, hook->only_check);
    pack_str(out, hook->url);
    pack_u32(out, hook->header_count);
    for (uint32_t i = 0; i < hook->header_count; i++) {
        pack_str(out, hook->headers[i].key);
        pack_str(out, hook->headers[i].value);
    }
    pack_str(out, hook->body);
    return !out->overflowed || err_set(err, ERR_LIMIT, "the webhook's request is too long");
}

static bool is_token(struct str name)
{
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'))
            return false;
    }
    return name.len > 0;
}

/* Printable ASCII: a line end would begin another header. */
static bool is_line(struct str value)
{
    for (size_t i = 0; i < value.len; i++)
        if (value.at[i] < ' ' || value.at[i] > '~')
            return false;
    return true;
}

bool mail_hook_unpack(struct str bytes, struct arena *arena, struct mail_hook *out, struct err *err)
{
    struct unpack in = unpack_from(bytes);
    struct mail_hook got = { 0 };

    got.only_check = unpack_bool(&in);
    got.url = unpack_str(&in, LIMIT_HOOK_URL_BYTES);
    got.header_count = unpack_count(&in, LIMIT_HOOK_HEADERS);
    struct mail_pair *headers = ARENA_ARRAY(arena, struct mail_pair, got.header_count);
    for (uint32_t i = 0; i < got.header_count; i++) {
        headers[i].key = unpack_str(&in, LIMIT_HOOK_BYTES);
        headers[i].value = unpack_str(&in, LIMIT_HOOK_BYTES);
        if (!is_token(headers[i].key) || !is_line(headers[i].value))
            in.failed = true;
    }
    got.headers = headers;
    got.body = unpack_str(&in, LIMIT_HOOK_BYTES);
    if (!unpack_done(&in, err))
        return err_wrap(err, "webhook");
    *out = got;
    return true;
}
