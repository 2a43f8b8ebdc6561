/*
 * fake.h - a driver that holds sandboxes in memory and fails on demand, for all tests above isolation/native.
 *
 * A sandbox is a socket pair: guestlink's host end, and guestd's end, which the fake answers before it is asked, so that
 * it needs no thread of its own: a new sandbox with OK, a new link with OK after a thaw and else with READY. dial() and listen() use this machine's own loopback, so that a test that listens on
 * 127.0.0.1 stands in for a server inside.
 *
 * Threads    Calls from any thread. Tests set the fields under the lock, or while no other thread uses the driver.
 */
#ifndef TESTS_ISOLATION_FAKE_H
#define TESTS_ISOLATION_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/str.h"
#include "io/loop.h"
#include "isolation/driver.h"
#include "wire/guestlink.h"

enum fake_start {
    FAKE_STARTS,
    FAKE_START_FAILS,           /* as if a mount had failed: ENOENT, which must not become a 404 */
    FAKE_START_IS_FULL,         /* there is no room on disk */
    FAKE_START_IS_REFUSED,      /* what it should come from is damaged */
    FAKE_NO_NAMESPACES,         /* ENOSPC too, and nothing to do with the disk */
    FAKE_START_ANSWERS_WRONGLY, /* it went well, and the answer has the wrong shape */
    FAKE_START_GIVES_UP,        /* the driver itself was too slow: one that was parked is parked */
    FAKE_START_TIMES_OUT,       /* and the driver holds it nevertheless */
    FAKE_GUEST_REFUSES,         /* guestd answers the set-up with an error */
    FAKE_GUEST_DIES,            /* the connection closes instead */
    FAKE_GUEST_IS_SILENT,       /* until fake_break_silence() */
};

struct fake_held {
    char id[LIMIT_ID_BYTES];
    enum held_state state;
    bool thawed; /* and no link was made since */
    struct plan plan;
    int peer_fd; /* guestd's side of guestlink; -1: parked */
    bool dying;  /* stopped while stop_sticks */
    bool silent; /* owes an answer */
};

enum fake_guest {
    FAKE_GUEST_ANSWERS,
    FAKE_GUEST_HANGS_UP, /* closes a new link */
    FAKE_GUEST_IS_OLD,   /* answers with an error */
};

enum { FAKE_HELD = 128 };

/* A stop that waits at the gate. */
struct fake_waiting {
    struct fake_waiting *next;
    char id[LIMIT_ID_BYTES];
    uint32_t patience_ms;
    driver_stopped_fn *done;
    void *context;
};

struct fake {
    struct driver driver;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t changed;
    struct fake_held held[FAKE_HELD];
    uint32_t held_count;
    enum fake_start start;
    enum exit_cause exit_cause; /* of fake_exit() */
    bool gate_shut;             /* starts wait */
    bool stop_gate_shut;        /* stops do: those of workers, and those of the loop, which does not wait itself */
    struct fake_waiting *at_stop_gate;
    unsigned at_stop_gate_count;
    bool stop_sticks; /* a stop kills, and nothing goes until fake_exit() */
    bool stats_fail;
    struct str exits_after_list; /* dies just after the driver was asked what it holds */
    uint32_t stop_patience_ms;
    unsigned at_gate, starts, stops, stop_failures, stats_calls;
    const char *noted_id;        /* of the stops… */
    unsigned stops_before_noted; /* …those before the one of this id */
    struct plan last_plan;
    uint16_t guestd_port;       /* where dials to guestd's port go; 0: there */
    struct loop *dial_later;    /* a dial is answered in a later turn of this loop, as keeper does; NULL: at once */
    atomic_uint dials;          /* sockets made by dial */
    bool no_network;            /* sandboxes start without one */
    enum err_kind divert_fails; /* ERR_NONE: divert gives sockets */
    unsigned diverts;
    void (*on_link)(void *context); /* called while a link is made; NULL: nothing */
    void *link_context;
    atomic_uint links; /* made for sandboxes that run already */

    /* Pauses. */
    enum fake_guest guest;
    struct guestlink_ready ready;               /* what guestd answers to PREPARE */
    unsigned pause_calls[PAUSE_CALL_COUNT];     /* how many there were */
    struct err pause_errs[PAUSE_CALL_COUNT][2]; /* [with memory?]; ERR_NONE: it works */
    unsigned pause_gates;                       /* BIT() of calls that wait */
    unsigned at_pause_gate;
    bool parks_by_itself; /* a park is refused, because what was to be parked has ended; and is parked as it was */
    char parked[8][LIMIT_ID_BYTES]; /* the first ones, in their order */
    void (*on_pause)(void *context,
                     enum pause_call call); /* called when one has worked, without the lock; may be NULL */
    void *pause_context;
    char dropped[LAYER_ID_BYTES]; /* the last one */
    const char *stuck;            /* one that cannot be dropped; NULL: none */
    const char *unknown, *known;  /* snapshots that are listed, in this order; NULL: none */
};

void fake_make(struct fake *fake);
void fake_drop(struct fake *fake);

/* With the lock held. NULL: the driver does not hold it. */
struct fake_held *fake_find(struct fake *fake, struct str id);
void fake_remove(struct fake *fake, struct fake_held *held);

/* On the loop: those that wait at the gate go on; with an err, they fail instead. */
void fake_pass_stops(struct fake *fake, const struct err *err);

void fake_hold(struct fake *fake, const char *id); /* as if an earlier process had started it */
void fake_hold_as(struct fake *fake, struct str id, enum held_state state); /* one that is held */
void fake_exit(struct fake *fake, struct str id);      /* it dies by itself; exited() is called in this thread */
void fake_answer(struct fake_held *held, bool refuse); /* what guestd says to a set-up */

#endif
