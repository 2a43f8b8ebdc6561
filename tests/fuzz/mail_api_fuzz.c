/*
 * What mail's API reads: the body of a send, the query of a list, paths with stray percent signs, and the key that says
 * which dialect is meant. The first byte says what the rest is.
 */
#include <stdlib.h>

#include "api/mail_lobstermail.h"
#include "api/mail_multimail.h"
#include "base/encode.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void fuzz_send(struct str text, struct arena *arena)
{
    struct send_want want;
    uint32_t scopes = 0;
    int mode = -1;
    struct err err;

    auto_json json_t *body = json_parse_object(text, &err);
    if (!body)
        return;
    if (mm_send_decode(body, arena, &want, &err)) {
        check(want.to_count <= LIMIT_MAIL_RECIPIENTS && want.attachment_count <= LIMIT_MAIL_ATTACHMENTS);
        for (uint32_t i = 0; i < want.to_count; i++)
            check(want.to[i].len > 0);
        check(!want.html.len || !want.markdown.len);
    }
    if (mm_take_scopes(body, &scopes, &err))
        check(!(scopes & ~(uint32_t)MAIL_SCOPE_ALL));
    if (mm_take_mode(body, "oversight_mode", &mode, &err))
        check(mode >= -1 && mode < MAIL_MODE_COUNT);
}

static void fuzz_lobster_send(struct str text, struct arena *arena)
{
    struct send_want want;
    struct err err;

    auto_json json_t *body = json_parse_object(text, &err);
    if (!body || !lm_send_decode(body, arena, &want, &err))
        return;
    check(want.to_count >= 1 && want.to_count <= LIMIT_MAIL_RECIPIENTS);
    check(want.attachment_count <= LIMIT_MAIL_ATTACHMENTS);
    check(want.text.len || want.html.len);
    check(!want.markdown.len && !want.bcc_count);
}

static void fuzz_query(struct str text, struct arena *arena)
{
    struct http_exchange ex = { .head = { .query = text } };
    struct request rq = { .ex = &ex, .arena = arena };
    struct mail_filter filter;
    struct err err;

    if (mm_filter_decode(&rq, 20, &filter, &err))
        check(filter.limit >= 1 && filter.limit <= LIMIT_MAIL_PAGE && (filter.inbound || filter.outbound));
    for (int kind = LM_LIST; kind <= LM_SEARCH; kind++) {
        if (!lm_filter_decode(&rq, (enum lm_list)kind, &filter, &err))
            continue;
        check(filter.limit >= 1 && filter.limit <= LIMIT_MAIL_PAGE && (filter.inbound || filter.outbound));
        check(kind != LM_SEARCH || filter.text.len);
        check(kind != LM_POLL || !filter.outbound);
    }
}

/* A repaired path has no broken escape left, and a sound one is not changed. */
static void fuzz_path(struct str text, struct arena *arena)
{
    struct str decoded, again, repaired = mail_path_repair(text, arena);

    check(percent_decode(arena, repaired, PERCENT_PLUS_IS_PLUS, &decoded));
    if (percent_decode(arena, text, PERCENT_PLUS_IS_PLUS, &again))
        check(str_eq(text, repaired) && str_eq(decoded, again));
}

static void fuzz_key(struct str text, struct arena *arena)
{
    struct http_head head = { .path = STR("/v1/account"), .header_count = 1 };

    head.headers[0] = (struct http_header){ STR("Authorization"), text };
    const struct mail_dialect *dialect = mail_dialect_of(&head, arena);
    check(dialect == &mail_multimail || dialect == &mail_lobstermail);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct arena arena;

    if (size < 1 || size > LIMIT_TARGET_BYTES)
        return 0;
    struct str rest = str_of(data + 1, size - 1);
    arena_init(&arena);
    if (data[0] == 's')
        fuzz_send(rest, &arena);
    else if (data[0] == 'l')
        fuzz_lobster_send(rest, &arena);
    else if (data[0] == 'q')
        fuzz_query(rest, &arena);
    else if (data[0] == 'k')
        fuzz_key(rest, &arena);
    else
        fuzz_path(rest, &arena);
    arena_done(&arena);
    return 0;
}
