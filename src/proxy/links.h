/*
 * links.h - signed links to files on an address that all sandboxes share.
 *
 * Such a link carries neither a host name nor a header that would say which sandbox it is for: whoever uses it has only
 * a URL. Its signature says it, because only one sandbox's token can have made it. Finding that one means trying all
 * that run. What was found is remembered, and what failed searches cost is charged to the address they were asked from
 * (sources.h), so that strangers who guess can neither keep the loop busy nor keep anybody else from their files.
 *
 * Threads    The loop's.
 */
#ifndef PROXY_LINKS_H
#define PROXY_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "http/http.h"
#include "proxy/sources.h"
#include "sandbox/sandbox.h"

struct links;

struct links *links_new(struct sandboxes *sandboxes) must_use;
void links_free(struct links *links);

/* GET or POST of /files with a signature: then the answer to "which sandbox?" is in the signature. */
bool links_is_link(const struct http_head *head);

/* Has this sandbox signed the link, and has it not expired? guestd decides again, and says what is wrong. */
bool links_is_valid(const struct http_head *head, struct arena *arena, const struct sandbox *sandbox);

enum links_verdict {
    LINK_FOUND,
    LINK_WRONG, /* no running sandbox has signed it */
    LINK_BUSY,  /* too many wrong ones from the same address lately: not looked for */
};
/* With LINK_FOUND *out is a reference. */
enum links_verdict links_find(struct links *links, const struct http_head *head, struct arena *arena,
                              const struct source *source, uint64_t now_ms, struct sandbox **out);

#endif
