#include "proxy/admit.h"

#include "base/mem.h"
#include "proxy/links.h"

/* Routes of guestd's whose need for a token differs from the rest of their port. A bad path is refused by guestd. */
static const struct http_route open_routes[] = {
    { HTTP_GET, "/health", NULL, 0, NULL },
    { HTTP_GET, "/files", NULL, 0, NULL }, /* wants a token or a signature, and says which one is wrong */
    { HTTP_POST, "/files", NULL, 0, NULL },
};
static const struct http_route code_routes[] = {
    { HTTP_POST, "/execute", NULL, 0, NULL },
};

bool admit_wants_token(const struct sandbox *sandbox, const struct target *target, const struct http_head *head,
                       struct arena *arena)
{
    struct http_match match;
    struct err ignored;

    if (target_is_preflight(head))
        return false;
    if (target->port == GUESTD_PORT)
        return http_route(open_routes, COUNT_OF(open_routes), head, arena, &match, &ignored) && !match.route;
    if (target->port == GUESTD_CODE_PORT)
        return sandbox_wants_token(sandbox, target->port) &&
               http_route(code_routes, COUNT_OF(code_routes), head, arena, &match, &ignored) && match.route;
    return false;
}

static bool is_known(const struct sandbox *sandbox, const struct target *target, const struct http_head *head)
{
    const struct str *token = http_header(head, STR("X-Access-Token"));

    if (token && sandbox_has_token(sandbox, *token))
        return true;
    /* may_enter() in proxy.c has checked a private sandbox's traffic token. */
    return target->port != GUESTD_PORT && sandbox_is_private(sandbox);
}

enum admission admit(const struct sandbox *sandbox, const struct target *target, const struct http_head *head,
                     struct arena *arena)
{
    if (is_known(sandbox, target, head))
        return ADMIT_KNOWN;
    if (target->port == GUESTD_PORT && links_is_link(head) && links_is_valid(head, arena, sandbox))
        return ADMIT_LINK;
    return admit_wants_token(sandbox, target, head, arena) ? ADMIT_REFUSED : ADMIT_STRANGER;
}
