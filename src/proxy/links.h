/*
 * links.h - signed links to files on an address that all sandboxes share.
 *
 * Such a link has no host name and no header that names its sandbox. Only one sandbox's token can have made its
 * signature, so we compare it with those of all running sandboxes. Links that were found are remembered. Searches that
 * fail are charged to the address they came from (sources.h), so that a stranger who guesses links can neither keep the
 * loop busy nor keep others from their files.
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

/* GET or POST of /files with a signature? */
bool links_is_link(const struct http_head *head);

/* Has this sandbox signed the link, and has it not expired? guestd checks again, and says what is wrong. */
bool links_is_valid(const struct http_head *head, struct arena *arena, const struct sandbox *sandbox);

enum links_verdict {
    LINK_FOUND,
    LINK_WRONG, /* no running sandbox has signed it */
    LINK_BUSY,  /* too many wrong links from this address in this second: not searched */
};
/* With LINK_FOUND *out is a reference. */
enum links_verdict links_find(struct links *links, const struct http_head *head, struct arena *arena,
                              const struct source *source, uint64_t now_ms, struct sandbox **out);

#endif
