/*
 * link.c - finds a sandbox by its access token, or by a link that was signed with it (wire/file_link.h): a signature is
 * compared with every running sandbox, well below a microsecond each.
 */
#include <sodium.h>

#include "sandbox/inside.h"

bool sandbox_has_signed(const struct sandbox *sb, const struct file_link *link)
{
    struct file_link_check check;

    return file_link_open(link, &check) && file_link_is_signed_with(&check, str_from(sb->token));
}

bool sandbox_has_token(const struct sandbox *sb, struct str access_token)
{
    return access_token.len == strlen(sb->token) && sodium_memcmp(access_token.at, sb->token, access_token.len) == 0;
}

struct sandbox *sandbox_find_by_link(struct sandboxes *all, const struct file_link *link, uint32_t *out_tried)
{
    struct file_link_check check;
    struct sandbox *sb;

    *out_tried = 0;
    if (!file_link_open(link, &check))
        return NULL;
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    for (size_t i = 0; (sb = map_next(&all->by_id, &i));) {
        if (!sandbox_state_is_running(sb->state))
            continue;
        ++*out_tried;
        if (file_link_is_signed_with(&check, str_from(sb->token)))
            return sandbox_ref(sb);
    }
    return NULL;
}

/* Its timing reveals nothing: the map compares texts only when their hashes agree, and the hash has a secret key. */
struct sandbox *sandbox_find_by_token(struct sandboxes *all, struct str token)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&all->lock);
    struct sandbox *sb = map_get(&all->by_token, token);

    return sb && sandbox_state_is_running(sb->state) ? sandbox_ref(sb) : NULL;
}
