/*
 * catalog.h - keeper's list of templates: what front is told, and which layers nothing refers to any more.
 *
 * A page is a byte that says whether all files could be read, and up to LIMIT_TEMPLATES_PAGE templates in the order of
 * their ids (image/templates.h). A page that is not full is the last. Pages are of the list as it was when the first one
 * was asked for.
 *
 * A layer is removed when no template file, no sandbox, no snapshot and no list that front was told refers to it: at the
 * start of the server, and CATALOG_SWEEP_MS after front was told a list that differs from the one before; then again in
 * the same interval for as long as only sandboxes and snapshots refer to one. Nothing is removed while a template is being
 * built, or while one file, sandbox or snapshot cannot say which layers it needs.
 */
#ifndef DAEMON_CATALOG_H
#define DAEMON_CATALOG_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "io/loop.h"

struct catalog;

/* Creates that front began with an older list are over by then: each has LIMIT_START_MS. */
enum { CATALOG_SWEEP_MS = 10 * 60 * 1000 };
/* The same for creates from a snapshot that is removed meanwhile. */
enum { CATALOG_SWEEP_SOON_MS = 15 * 1000 };

struct catalog_config {
    struct loop *loop;
    int data_fd;                     /* borrowed */
    uint64_t sweep_ms;               /* CATALOG_SWEEP_MS, but for tests */
    void (*on_swept)(void *context); /* layers were moved into trash/; may be NULL */
    void *context;
};

/* Sweeps at once: call it when no other server can have this data directory, and before front runs. */
struct catalog *catalog_new(const struct catalog_config *config) must_use;
void catalog_free(struct catalog *catalog); /* NULL is fine */

/* A snapshot was removed: look for unused layers soon. */
void catalog_sweep_soon(struct catalog *catalog);

/* The templates whose ids come after `after`; "" is the first page, and reads the files anew. */
bool catalog_page(struct catalog *catalog, const char *after, struct buf *out, struct err *err) must_use;

#endif
