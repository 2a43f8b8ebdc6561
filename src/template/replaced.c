/* Builds that a tag means no more. */
#include "base/log.h"
#include "sandbox/sandbox.h"
#include "template/template.h"

struct replaced replaced_find(struct store *store, struct str template_id, const struct str *tags, uint32_t count,
                              struct arena *arena)
{
    struct replaced found = { .builds = ARENA_ARRAY(arena, struct build_row, count) };
    struct err err;

    for (uint32_t i = 0; i < count; i++) {
        if (store_build_by_tag(store, template_id, tags[i], arena, &found.builds[found.count], &err))
            found.count++;
        else if (err.kind != ERR_NOT_FOUND)
            log_debug("template %.*s: the pool may keep sandboxes of a build that was replaced: %s",
                      STR_ARG(template_id), err_text(&err));
    }
    return found;
}

void replaced_retire(const struct replaced *replaced, struct sandboxes *sandboxes, struct str build_id)
{
    for (uint32_t i = 0; i < replaced->count; i++)
        if (!str_eq(replaced->builds[i].id, build_id))
            sandboxes_retire(sandboxes, replaced->builds[i].layers, replaced->builds[i].layer_count);
}
