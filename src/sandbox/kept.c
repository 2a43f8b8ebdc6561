/* What outlives its sandbox: snapshots, which belong to the driver. */
#include "base/log.h"
#include "sandbox/inside.h"

bool sandbox_drop_snapshot(struct sandboxes *all, struct str kept_id, struct err *err)
{
    char id[LAYER_ID_BYTES];

    return str_to_path(kept_id, id, sizeof id, err) &&
           driver_pause_call(all->config.driver, PAUSE_DROP, id, false, NULL, err);
}

/* Returns false when the rest must be left for the next start. */
static bool drop_if_unknown(struct sandboxes *all, const char *id, struct err *err)
{
    bool is_known;

    if (!store_snapshot_is_known(all->config.store, str_from(id), &is_known, err))
        return false;
    if (is_known)
        return true;
    log_info("snapshot %s: left over, removing it", id);
    return driver_pause_call(all->config.driver, PAUSE_DROP, id, false, NULL, err);
}

void snapshots_drop_unknown(struct sandboxes *all)
{
    char after[LAYER_ID_BYTES] = "";
    struct kept page = { 0 };
    struct err err;
    bool ok = true;

    do {
        ok = driver_pause_call(all->config.driver, PAUSE_LIST, after, false, &page, &err);
        for (uint32_t i = 0; ok && i < page.layer_count; i++) {
            memcpy(after, page.layers[i], sizeof after);
            ok = drop_if_unknown(all, after, &err);
        }
    } while (ok && page.layer_count);
    if (!ok && err.kind != ERR_UNAVAILABLE)
        log_warn("snapshots that are left over stay until the next start: %s", err_text(&err));
}
