/*
 * state.h - what is written down about a sandbox, so that the next keeper finds it again.
 *
 * One small file, sandboxes/<id>/state. It is made before the process is and completed after: a record without a pid
 * means that a start was under way. Written in place with one write(2), which a kill cannot cut in two; a power cut
 * can, but no running sandbox survives that, and what does not parse is swept like what does not run. The record of a
 * parked sandbox, which survives, is written with state_replace(). A record that a newer version wrote is ERR_UNAVAILABLE:
 * its sandbox may run.
 */
#ifndef ISOLATION_NATIVE_STATE_H
#define ISOLATION_NATIVE_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "isolation/native/network.h"
#include "isolation/plan.h"
#include "isolation/stats.h"

enum { BOOT_ID_BYTES = 40 };

struct state {
    char boot_id[BOOT_ID_BYTES]; /* of the boot it was written in: pids start anew with each */
    uint32_t slot;
    pid_t pid;            /* 0: not yet */
    uint64_t start_time;  /* field 22 of /proc/<pid>/stat */
    bool dying;           /* it has been killed: a keeper that finds it running waits for its end */
    enum held_state held; /* HELD_PARKED…: its files outlive its process, if there is one (park.c); else RUNNING */
    enum network_kind network; /* that it was started with; sandboxes of older versions have none */
    uint32_t owner;            /* of its user namespace, which its zygote runs as (zygotes.h); 0: it has none */
    uint32_t layer_count;
    char layers[LIMIT_LAYERS][LAYER_ID_BYTES]; /* as in the plan: its zygote needs them, and they must not be removed */
};

/* Calls use(context, layer) for each layer of the sandbox. */
typedef void state_layer_fn(void *context, const char *layer);

void state_print(struct buf *out, const struct state *state);
bool state_parse(struct str text, struct state *out, struct err *err) must_use;

bool state_write(int fd, const struct state *state, struct err *err) must_use;
/* The same for a record that is there already, by the sandbox's directory. */
bool state_rewrite(int sandbox_fd, const struct state *state, struct err *err) must_use;
/* After a power cut either the old or the new record is there. Waits for the disk. */
bool state_replace(int sandbox_fd, const struct state *state, struct err *err) must_use;
bool state_read(int sandbox_fd, struct state *out, struct err *err) must_use;
/* ERR_NOT_FOUND when there are none: an older version wrote the record. */
bool state_read_layers(int sandbox_fd, state_layer_fn *use, void *context, struct err *err) must_use;

/*
 * The mark of a sandbox that runs on from what was parked: the boot it does so in. Its record says that too, and its image
 * goes, but all of this is on disk some time later than what it writes. So if the machine goes down in between, this tells
 * that the files are newer than the image. Made before the sandbox runs (waits for the disk), or just after its start if it
 * does so without its image; gone when it is parked again.
 */
bool state_mark_resumed(int sandbox_fd, const char *boot_id, bool waits, struct err *err) must_use;
bool state_unmark_resumed(int sandbox_fd, struct err *err) must_use;
/* False (ERR_CONFLICT) if that was in another boot: its image must not be used. */
bool state_check_resumed(int sandbox_fd, const char *boot_id, struct err *err) must_use;

/*
 * A lock on the directory of a sandbox, for a process that makes processes of it. Keeper holds it during a start. Keeper's
 * child holds it too, until it is about to become guestd, because the child enters the cgroup by itself. The helper that
 * restores a sandbox holds it as long as it lives. Child and helper keep it if keeper dies. The lock ends with the last copy of
 * its descriptor. ERR_CONFLICT: another process holds it.
 */
bool state_claim(int sandbox_fd, int *out_fd, struct err *err) must_use;

/* Field 22, which together with the pid names a process for as long as the machine is up. */
bool state_start_time(struct str stat_line, uint64_t *out_ticks) must_use;
bool state_process_start_time(pid_t pid, uint64_t *out_ticks, struct err *err) must_use;
bool state_boot_id(char out_id[BOOT_ID_BYTES], struct err *err) must_use;

#endif
