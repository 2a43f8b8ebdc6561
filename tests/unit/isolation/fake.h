/*
 * fake.h - a driver that starts nothing, for tests of what sits above.
 *
 * A started sandbox is a thread that answers guestlink: OK to everything, until the link closes. dial() gives a socket
 * of the host's own network, so a test that listens on 127.0.0.1 stands in for a server inside.
 *
 * Threads    Like the remote driver: start, stop_wait and list from any thread; stop and dial from the loop, dial
 *            answered in a later turn.
 */
#ifndef TESTS_ISOLATION_FAKE_H
#define TESTS_ISOLATION_FAKE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "isolation/driver.h"
#include "wire/guestlink.h"

struct fake_config {
    /* Instead of the thread: takes guestd's end of the link. Called in start(). May be NULL. */
    void (*guest)(void *context, const struct plan *plan, int link_fd);
    /* Called by the thread with every SETUP before it is answered; false answers with the error. May be NULL. */
    bool (*setup)(void *context, const struct plan *plan, const struct guestlink_setup *setup, struct err *err);
    void *context;
};

/* config may be NULL. */
struct driver *fake_driver_new(struct loop *loop, const struct fake_config *config) must_use;

/* Where to fail, until told otherwise; a bitmask. */
enum {
    FAKE_FAIL_START = 1,  /* start() fails with ERR_INTERNAL */
    FAKE_FAIL_LINK = 2,   /* start() succeeds, guestlink is closed before a word */
    FAKE_SILENT_LINK = 4, /* start() succeeds, guestlink never answers */
    FAKE_FAIL_STOP = 8,
    FAKE_FAIL_DIAL = 16,
    FAKE_FAIL_LIST = 32,
    FAKE_FAIL_STATS = 64,
    FAKE_STUCK_STOP = 128, /* stop() kills, and nothing is gone until fake_exit() */
};
void fake_fail(struct driver *driver, unsigned where);

/* From any thread: it ends by itself, and exited() follows on the loop. */
void fake_exit(struct driver *driver, const char *id);
/* It was there before this driver: the next list shows it. */
void fake_adopt(struct driver *driver, const char *id);

unsigned fake_count(struct driver *driver);  /* alive now */
unsigned fake_starts(struct driver *driver); /* ever, also failed ones */
bool fake_plan_of(struct driver *driver, const char *id, struct plan *out);

#endif
