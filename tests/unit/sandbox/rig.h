/*
 * rig.h - everything below the API, in one process: a loop on its own thread, workers, a store in a temporary
 * directory, and the fake driver. What it was told on guestlink can be read afterwards. Time is a hand_clock: rig_turn() makes deadlines pass.
 */
#ifndef TESTS_SANDBOX_RIG_H
#define TESTS_SANDBOX_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "../isolation/fake.h"
#include "../store/temp_store.h"
#include "io/loop.h"
#include "io/worker.h"
#include "sandbox/sandbox.h"
#include "wire/guestlink.h"

struct rig {
    struct temp_store disk;
    struct loop *loop;
    struct workers *workers;
    struct sandboxes *all;
    pthread_t thread;
    bool loop_runs;
    struct sandboxes_config config;      /* what sandboxes_new() gets besides; set before rig_start() */
    bool stays_busy;                     /* rig_start() does not wait for new guestlinks and for ends */
    void (*before_run)(struct rig *rig); /* for what else lives on the loop; may be NULL */
    void (*after_run)(struct rig *rig);

    struct fake fake;

    /* Egress, as the manager sees it. Under a lock of its own: send_policy() is called with the manager's held. */
    pthread_mutex_t egress_lock;
    bool egress_is_away;
    unsigned policies_sent, policies_applied;
    char policy_id[LIMIT_ID_BYTES];                        /* the last one */
    struct net_policy policy;                              /* in egress_arena: workers call */
    bool is_shut;                                          /* it reaches nothing, because it ends */
    void (*before_apply)(struct rig *rig, const char *id); /* by a worker, as it applies a change; may be NULL */
    struct arena egress_arena;

    /* Under fake.lock. */
    char cut_id[LIMIT_ID_BYTES]; /* the last one cut */
    bool cut_while_alive;
    unsigned cuts;

    /* The caller's sandboxes: what most tests ask for. */
    struct sandbox_want want;
    struct arena arena;
};

/* Two steps, so that a test can put rows and sandboxes in place before anybody looks. */
void rig_make(struct rig *rig);
void rig_start(struct rig *rig); /* loop, workers, manager, recovery */
/* As if the process had died: the manager goes, rows and sandboxes stay. */
void rig_stop(struct rig *rig);
void rig_drop(struct rig *rig);
/* For cmocka: *state is a rig, made only, or running. */
int rig_set_up_only(void **state);
int rig_set_up(void **state);
int rig_tear_down(void **state);
void rig_stand(void);                        /* from here on the clock moves only by rig_turn() */
void rig_set_wall(int64_t us);               /* so much later or earlier in the day, and no time has passed */
void rig_turn(struct rig *rig, uint64_t ms); /* turn the clock ahead, and let the loop notice if it runs */

void rig_hold(struct rig *rig, const char *id); /* as if a process before us had started it */
bool rig_holds(struct rig *rig, struct str id);
uint32_t rig_held_count(struct rig *rig);
enum held_state rig_held_state(struct rig *rig, struct str id);
void rig_exit(struct rig *rig, struct str id); /* it dies by itself */
void rig_lose(struct rig *rig,
              struct str id); /* it is no longer held, as after a reboot, and the manager is not told */
void rig_shut_gate(struct rig *rig, bool shut);
void rig_wait_at_gate(struct rig *rig, unsigned count);
void rig_wait_silent(struct rig *rig, unsigned count); /* until so many are */
void rig_break_silence(struct rig *rig);               /* those that are silent now answer */
void rig_shut_stop_gate(struct rig *rig, bool shut);
void rig_wait_at_stop_gate(struct rig *rig, unsigned count); /* until so many of the loop's stops wait there */
/* Waits until the manager has none that end: what was killed is gone. */
void rig_wait_ended(struct rig *rig);
size_t rig_rows(struct rig *rig); /* in the store */
/* Waits until the driver holds none. */
void rig_wait_empty(struct rig *rig);
/* What guestd of that sandbox was told. */
struct guestlink_setup rig_setup_of(struct rig *rig, struct str id);
/* The next message to guestd of that sandbox. */
struct guestlink_message rig_message_to(struct rig *rig, struct str id);

/* guestd of that sandbox says this on guestlink. */
void rig_say(struct rig *rig, struct str id, struct str bytes);
void rig_wait_deaf(struct rig *rig, struct str id); /* until nobody listens to it there any more */

/* Egress reports this, on the loop. Returns afterwards. */
void rig_refuse(struct rig *rig, struct str id, const struct sandbox_refusal *list, uint32_t count);

/* With the rig's want. */
struct sandbox_info rig_create(struct rig *rig);

#endif
