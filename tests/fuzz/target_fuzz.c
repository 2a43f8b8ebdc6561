/* Which sandbox a request is for, by its host, headers, path or token. */
#include <stdlib.h>

#include "proxy/target.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_target(const struct target *target)
{
    size_t len = strnlen(target->id, sizeof target->id);

    check(target->port && len && len < sizeof target->id);
    for (size_t i = 0; i < len; i++)
        check((target->id[i] >= 'a' && target->id[i] <= 'z') || (target->id[i] >= '0' && target->id[i] <= '9'));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct arena arena;
    struct http_head head;
    struct target target;
    struct str path, token;
    size_t used;
    struct err err;

    if (http_parse_request(str_of(data, size), &head, &used, &err) != HTTP_DONE)
        return 0;
    arena_init(&arena);
    enum target_verdict verdict = target_of(&head, &target);
    if (verdict == TARGET_FOUND)
        check_target(&target);
    check((verdict == TARGET_FOUND || verdict == TARGET_PREFLIGHT) == !target_complaint(verdict));
    if (target_has_token(&head, &token))
        check(token.len && !http_header(&head, STR("X-API-Key")));
    struct str shown = target_path(head.path);
    check(shown.len <= head.path.len && (shown.len < 2 || shown.at[0] != '/' || shown.at[1] != '/'));
    if (target_is_control_path(head.path, &arena, &path))
        check(path.len > 1 && path.at[0] == '/');
    arena_done(&arena);
    return 0;
}
