/*
 * recipe_server.h - where the scripts of recipes run: in a sandbox of a server of their own, which builds one template.
 *
 * Where      The command `template build`, as root and outside every role. The script is in a sandbox like any other.
 * Threads    Blocks for as long as the script runs. One at a time per data directory: tmp/ is locked.
 * Failure    Leaves at most files in tmp/, and nothing that runs.
 */
#ifndef DAEMON_RECIPE_SERVER_H
#define DAEMON_RECIPE_SERVER_H

#include "base/buf.h"
#include "daemon/config.h"
#include "image/recipe.h"

struct recipe_server {
    const struct config *config; /* the operator's: recipe_server.c lists what of it counts for the server too */
};
/* For struct recipe_place; the context is a struct recipe_server. */
bool recipe_server_run(void *context, int data_fd, int tmp_fd, const struct recipe_job *job, bool *out_fine,
                       struct err *err) must_use;

/*
 * What the sandbox is told to run: the script, with the certificates in that directory beside the template's own and with the
 * proxies of our environment, none of which end up in the layer. Exposed for tests.
 */
bool recipe_step_text(const struct recipe_job *job, const char *certificates, struct buf *out, struct err *err)
    must_use;

#endif
