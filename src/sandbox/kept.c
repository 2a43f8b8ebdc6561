/* What outlives its sandbox: snapshots, which belong to the driver. */
#include "sandbox/inside.h"

bool sandbox_drop_snapshot(struct sandboxes *all, struct str kept_id, struct err *err)
{
    char id[LAYER_ID_BYTES];

    return str_to_path(kept_id, id, sizeof id, err) &&
           driver_pause_call(all->config.driver, PAUSE_DROP, id, false, NULL, err);
}
