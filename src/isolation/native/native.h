/*
 * native.h - sandboxes made of namespaces: the driver that keeper owns.
 *
 * Below the data directory, all of it 0700 and root's:
 *   layers/<64 hex>/        what sandboxes are made of (image/ puts it there)
 *   sandboxes/<id>/         upper/, work/ and state of one sandbox; image/ if its processes were written to disk
 *   snapshots/<id>/         the manifest of a snapshot (manifest.h)
 *   trash/                  what is being deleted
 *   mnt/                    mount point of a small tmpfs that only keeper's mount namespace shows
 *
 * Where      Root, one thread, in a mount namespace of its own (native_enter_mount_namespace()).
 * Failure    A start that fails at any step leaves nothing behind. Killed at any moment, the next driver finds what
 *            runs and clears away what was half-made.
 */
#ifndef ISOLATION_NATIVE_H
#define ISOLATION_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "io/loop.h"
#include "isolation/driver.h"

/* In the order a start meets them; a test names one to make the start fail there. */
enum native_step {
    NATIVE_NOWHERE, /* the default: nothing fails on purpose */
    NATIVE_AT_RECORD,
    NATIVE_AT_CGROUP,
    NATIVE_AT_SOCKETS,
    NATIVE_AT_CLONE,
    NATIVE_AT_MAPS,
    NATIVE_AT_OVERLAY,
    NATIVE_AT_DEVICES,
    NATIVE_AT_NETWORK, /* in the child */
    NATIVE_AT_LINK,
    NATIVE_AT_HOLD,
    NATIVE_AT_GO,
    NATIVE_AT_CHILD_ROOT, /* from here on inside the sandbox */
    NATIVE_AT_CHILD_PROC,
    NATIVE_AT_CHILD_MASK,
    NATIVE_AT_CHILD_PIVOT,
    NATIVE_AT_CHILD_CAPABILITIES,
    NATIVE_AT_CHILD_SECCOMP,
    NATIVE_AT_CHILD_EXEC,
    NATIVE_STEP_COUNT,                         /* of a start */
    NATIVE_AT_PARK_FREEZE = NATIVE_STEP_COUNT, /* of a park, see park.c */
    NATIVE_AT_PARK_MARK,
    NATIVE_AT_PARK_KILL,
    NATIVE_AT_PARK_GONE,
    NATIVE_AT_PARK_CLEAR,
    NATIVE_AT_SNAPSHOT_DRAFT, /* of a snapshot, see snapshot.c */
    NATIVE_AT_SNAPSHOT_FREEZE,
    NATIVE_AT_SNAPSHOT_COPY,
    NATIVE_AT_SNAPSHOT_WRITE,
    NATIVE_AT_SNAPSHOT_LAYER,
    NATIVE_AT_SNAPSHOT_NAME,
    NATIVE_AT_SNAPSHOT_END,
    NATIVE_AT_SEAL_DRAFT, /* of a seal, which goes on as a snapshot from its WRITE on */
    NATIVE_AT_SEAL_KILL,
    NATIVE_AT_SEAL_MOVE,
    NATIVE_AT_RESTORE_IDS, /* of a start from an image, see restore.c */
    NATIVE_AT_RESTORE_PROCESS,
    NATIVE_AT_RESTORE_SOCKET,
    NATIVE_AT_RESTORE_LINK,
    NATIVE_AT_COMPRESS_BEGIN, /* of an image that is compressed, see compress.c */
    NATIVE_AT_COMPRESS_NAME,
    NATIVE_AT_COMPRESS_SYNC,
    NATIVE_AT_COMPRESS_END,
    NATIVE_AT_UNPACK_DRAFT, /* of an image's layer, see unpack.c */
    NATIVE_AT_UNPACK_WRITE,
    NATIVE_AT_UNPACK_LAYER,
    NATIVE_AT_UNPACK_NAME,
    NATIVE_AT_UNPACK_END,
    NATIVE_AT_CHILD_DEATH, /* of a start: its child is as one that dies before exec, its descriptors closed */
};

/* Sandboxes that are killed and not yet gone, at a time; box.c says why there is a limit. */
enum { NATIVE_DYING = 64 };

/*
 * Sandbox s has the user ids base + s * 65536 and the 65535 after them. The default lies above what systemd gives to
 * containers (up to 0x6fffffff), below the signed 32-bit border, and no tool is known to hand it out.
 */
#define NATIVE_UID_BASE 0x70000000u
enum { NATIVE_UIDS = 65536 };

struct native_config {
    int data_fd;      /* the data directory, opened after native_enter_mount_namespace(); borrowed */
    int guestd_fd;    /* the guestd program, static, open for reading; read whole by native_driver_new() */
    const char *criu; /* where CRIU is (criu.h), borrowed; NULL: the memory of sandboxes is not written to disk */
    uint64_t compress_after_ms; /* images of memory are compressed when nobody has used them for so long; 0: never */
    uint32_t uid_base;          /* 0: NATIVE_UID_BASE. Two servers on one machine should not share it. */
    void (*on_unused)(void *context); /* a snapshot was removed, and its layer may be in use no more; may be NULL */
    void *on_unused_context;
    enum native_step fail_at; /* for tests */
    bool old_overlay;         /* for tests: mount the way kernels before 6.15 need it */
    bool old_freezer;         /* for tests: freeze by the v1 controller, as where there is no v2 tree */
    bool no_network;          /* for tests: as on a kernel that lacks what sandboxes need for a network */
};

/*
 * A private copy of the mount table, so that what we mount shows nowhere else. Descriptors from before lead to mounts of
 * the old one, which the kernel does not let us clone or mount on: open the data directory afterwards.
 */
bool native_enter_mount_namespace(struct err *err) must_use;

/* Adopts sandboxes that run and clears away the rest. */
struct driver *native_driver_new(struct loop *loop, const struct native_config *config, struct err *err) must_use;

/*
 * Calls use() for each layer of each sandbox and each snapshot below the data directory: sandboxes that run, are parked
 * or not yet cleared away; needs no driver. Fails when the layers of one are not known: then any layer may be in use.
 */
bool native_used_layers(int data_fd, void (*use)(void *context, const char *layer), void *context, struct err *err)
    must_use;

/*
 * Takes the mark off a layer that a sandbox has written, on behalf of the operator: from now on it is one of his own, and
 * zygotes run on it.
 */
bool native_own_layer(int layer_fd, struct err *err) must_use;

/* Deletes what image/ has put into trash/, in the background. */
void native_empty_trash(struct driver *driver);

/* For tests: the step at which the next starts, parks and snapshots fail. */
void native_fail_at(struct driver *driver, enum native_step step);
/* For tests: the step at which this process is killed, in keeper's part of a start and in all of the others. */
void native_die_at(struct driver *driver, enum native_step step);
/*
 * For tests: the child of each start from now on reads a byte from this descriptor before it sets its network up. Borrowed;
 * -1: none does.
 */
void native_gate_children(struct driver *driver, int fd);
/* For tests: how long a dump may take. */
void native_dump_within(struct driver *driver, uint64_t ms);
/* The host's process id of a sandbox's guestd, or -1; for tests and doctor. */
int native_pid_of(struct driver *driver, const char *id);
/* The host's process id of the zygote outside that its interpreters are forked from, or -1; for tests. */
int native_zygote_of(struct driver *driver, const char *id);

#endif
