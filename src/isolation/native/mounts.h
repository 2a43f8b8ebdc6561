/*
 * mounts.h - the file systems of a sandbox, made by keeper as detached mounts and handed in by descriptor.
 *
 * A detached mount is in no mount table: the host never shows a sandbox's root, and a keeper that dies takes what it
 * had half-made with it.
 */
#ifndef ISOLATION_NATIVE_MOUNTS_H
#define ISOLATION_NATIVE_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/plan.h"

struct mounts {
    int scratch_fd;   /* a tmpfs of our own, attached at mnt/ in keeper's mount namespace */
    bool old_overlay; /* the kernel takes no detached layers */
};

/* Mounts the tmpfs. */
bool mounts_open(int data_fd, struct mounts *out, struct err *err) must_use;
void mounts_close(struct mounts *mounts);

/* Whose eyes the files are seen with: files of user 0 on disk belong to uid_base inside this user namespace. */
struct mounts_ids {
    int userns_fd;
    uint32_t uid_base;
};

/*
 * The root: the plan's layers below, <sandbox_fd>/upper above, work in <sandbox_fd>/work. All seen through the
 * sandbox's ids, so that what is on disk stays 0-based and any sandbox may use it later.
 */
bool mounts_overlay(struct mounts *mounts, int layers_fd, int sandbox_fd, const struct plan *plan,
                    const struct mounts_ids *ids, int *out_fd, struct err *err) must_use;
/* The same for ourselves, with the ids that are on disk: an image's layer is unpacked there. Its programs cannot be run. */
bool mounts_unpack(struct mounts *mounts, int layers_fd, int draft_fd, const struct plan *plan, int *out_fd,
                   struct err *err) must_use;
/*
 * The root of a zygote (zygotes.h): the same layers, and writes go to memory that is charged to the zygote, up to
 * MOUNTS_ZYGOTE_SIZE. No set-user-id file in it has an effect. Before 6.3 a tmpfs cannot be idmapped, and this fails.
 */
#define MOUNTS_ZYGOTE_SIZE "64m"
bool mounts_zygote(struct mounts *mounts, int layers_fd, const struct plan *plan, const struct mounts_ids *ids,
                   int *out_fd, struct err *err) must_use;
/*
 * A read-only /dev with the six devices that programs expect, a file system of its own. MOUNTS_EMPTY in it is a
 * directory with nothing in it, to be cloned as a cover for others before something is mounted there. MOUNTS_BOOT_ID is
 * what /proc/sys/kernel/random/boot_id shows: `boot_id`, or if that is NULL a new one, as programs expect of a machine that
 * has started again. To be cloned before devpts is mounted there, which then hides it.
 */
#define MOUNTS_EMPTY "shm"
#define MOUNTS_BOOT_ID "pts/boot_id"
bool mounts_devices(const struct mounts_ids *ids, const char *boot_id, int *out_fd, struct err *err) must_use;

#endif
