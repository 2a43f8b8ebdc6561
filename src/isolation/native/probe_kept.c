/* What paused sandboxes and snapshots take on disk, for doctor. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "isolation/native/manifest.h"
#include "isolation/native/measure.h"
#include "isolation/native/probe.h"
#include "isolation/native/state.h"

enum { LOOK_MS = 5000 }; /* then the sums are said to be larger */

struct sums {
    unsigned paused, snapshots;
    uint64_t paused_bytes, snapshot_bytes, raw_bytes, image_bytes;
    bool is_cut_short;
};

/* Rounded up: what is there is not 0. */
static uint64_t mib(uint64_t bytes)
{
    return (bytes + (1 << 20) - 1) >> 20;
}

static void add_image(struct sums *sums, const struct measured *found)
{
    sums->image_bytes += found->image_bytes;
    sums->raw_bytes += found->raw_bytes;
}

static void add_sandbox(int dir_fd, struct sums *sums)
{
    struct measured found;
    struct state state;
    struct err err;

    if (!state_read(dir_fd, &state, &err) || (state.held != HELD_PARKED && state.held != HELD_PARKED_IMAGE) ||
        !measure_dir(dir_fd, &found, &err))
        return;
    sums->paused++;
    sums->paused_bytes += found.files_bytes + found.image_bytes;
    add_image(sums, &found);
}

static void add_snapshot(int dir_fd, struct sums *sums)
{
    struct measured found;
    struct manifest manifest;
    struct err err;

    if (!manifest_read(dir_fd, &manifest, &err) || !measure_dir(dir_fd, &found, &err))
        return;
    sums->snapshots++;
    sums->snapshot_bytes += manifest.layer_bytes + found.image_bytes;
    add_image(sums, &found);
}

static void each(int data_fd, const char *name, void (*add)(int dir_fd, struct sums *sums), struct sums *sums)
{
    uint64_t until_ms = clock_mono_ms() + LOOK_MS;
    int fd = openat(data_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        auto_close int entry_fd =
            entry->d_name[0] == '.' ? -1 : openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (entry_fd >= 0)
            add(entry_fd, sums);
        if (clock_mono_ms() > until_ms) {
            sums->is_cut_short = true;
            break;
        }
    }
    if (dir)
        (void)closedir(dir);
    else
        fd_close(&fd);
}

void native_probe_kept(const char *data_path, uint64_t cap_bytes, struct probe_row *row)
{
    struct sums sums = { 0 };

    *row = (struct probe_row){ .name = "kept on disk", .verdict = PROBE_OK };
    if (geteuid() != 0) {
        row->verdict = PROBE_SKIP;
        (void)snprintf(row->found, sizeof row->found, "needs root to find out");
        (void)snprintf(row->fix, sizeof row->fix, "look again as root");
        return;
    }
    auto_close int data_fd = open(data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (data_fd >= 0) {
        each(data_fd, "sandboxes", add_sandbox, &sums);
        each(data_fd, "snapshots", add_snapshot, &sums);
    }
    int len = snprintf(row->found, sizeof row->found,
                       "%u snapshots and layers of builds, %" PRIu64 " of %" PRIu64
                       " MiB; %u paused sandboxes, %" PRIu64 " MiB%s",
                       sums.snapshots, mib(sums.snapshot_bytes), mib(cap_bytes), sums.paused, mib(sums.paused_bytes),
                       sums.is_cut_short ? ", or more" : "");
    if (sums.raw_bytes > sums.image_bytes && len > 0 && (size_t)len < sizeof row->found)
        (void)snprintf(row->found + len, sizeof row->found - (size_t)len,
                       "; memory is compressed from %" PRIu64 " to %" PRIu64 " MiB", mib(sums.raw_bytes),
                       mib(sums.image_bytes));
    if (sums.snapshot_bytes < cap_bytes - cap_bytes / 10)
        return;
    row->verdict = PROBE_WARN;
    (void)snprintf(row->fix, sizeof row->fix,
                   "delete snapshots (snapshot list, snapshot delete), or serve with more "
                   "--snapshot-disk, or with --snapshot-days");
}
