/*
 * bootstrap.h - the `base` template, made from Debian packages.
 *
 * mmdebstrap unpacks and configures the packages into tmp/, we add the user, sudo's rule, shell start-up files and the
 * like, and the result is sealed as a layer. A template of the same recipe is not built again.
 *
 * Where      As root and outside every role. Debian's package scripts run in namespaces of their own, as a root that is
 *            nobody on the host (build.h).
 * Threads    Blocks for minutes. One at a time per data directory.
 * Failure    Leaves at most files in tmp/, which the next run removes; never a half-made template.
 */
#ifndef IMAGE_BOOTSTRAP_H
#define IMAGE_BOOTSTRAP_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "image/templates.h"

/*
 * The host name of every sandbox, which the template's /etc/hosts resolves. With another name, programs that look up
 * their own host (Java's getLocalHost(), `hostname -f`) would fail. E2B_SANDBOX_ID tells sandboxes apart.
 */
#define BOOTSTRAP_HOSTNAME "cloister"

/* 0 to 100, and a few words on what is being done. */
typedef void bootstrap_progress_fn(void *context, unsigned percent, const char *phase);

struct bootstrap_want {
    const char *suite;               /* NULL: trixie */
    const char *mirror;              /* NULL: $CLOISTER_DEBIAN_MIRROR, or else mmdebstrap's own choice */
    bool again;                      /* make it even if the recipe is the same */
    bootstrap_progress_fn *progress; /* may be NULL */
    void *progress_context;
};

bool bootstrap_base(int data_fd, const struct bootstrap_want *want, struct template *out, struct err *err) must_use;

/* The recipe hash of the `base` that this program makes; see template_is_current(). */
void bootstrap_recipe(char out_hex[LAYER_HEX_BYTES]);

/* Progress from what mmdebstrap prints, a line at a time; exposed for tests. */
struct bootstrap_meter {
    unsigned percent;
    char phase[64];
    /* private */
    unsigned from, to; /* percent of the whole at which this phase begins and ends */
    unsigned total, seen;
};
/* True if percent or phase changed. */
bool bootstrap_meter_line(struct bootstrap_meter *meter, struct str line);

/* Turns a fresh Debian tree into `base`; exposed for tests. */
bool bootstrap_customize(int root_fd, struct err *err) must_use;

#endif
