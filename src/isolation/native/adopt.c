/*
 * How a new keeper finds the sandboxes of the last one, which may have been killed at any moment (start.c has the steps).
 *
 * The record is made before anything else and removed after everything else. The child goes to a cgroup named after the
 * sandbox; from `hold` on the state has its pid. Before `go` it waits on a socket to keeper, and exits when that closes. Until
 * just before its exec it holds the lock of the data directory, so no keeper finds it half-made.
 * A cgroup without a record is left over from a sandbox whose directory was already removed. So a record whose process runs
 * in its own cgroup is a sandbox and is adopted; one that says parked is a sandbox whatever runs of it (park.c); everything
 * else is killed by cgroup and swept.
 *
 * Sandboxes outlive keeper on purpose: there is no PDEATHSIG, and keeper reaches each one by names alone: its cgroup, its
 * state, and the socket that its guestd listens on (handover.c).
 */
#include "isolation/native/adopt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/manifest.h"
#include "isolation/native/park.h"

/* Dead or half-made: kills what is in its cgroup and removes the rest. `slot` is its own, if it is known. */
static void sweep(struct native *native, const char *id, uint32_t slot)
{
    struct box *box = box_new(native, id);
    struct err err;

    log_info("native: sweeping sandbox %s", id);
    (void)cgroup_kill(native->cgroups, id);
    box->state = BOX_CLEARING;
    /* Its ids stay taken while it dies. If the slot is unknown or not free, use any free one. */
    box->slot = slot;
    if (slot < BOX_SLOTS && !native->slot_taken[slot]) {
        native->slot_taken[slot] = true;
    } else if (!slot_take(native, &box->slot, &err)) {
        log_error("native: sandbox %s is not swept: %s", id, err_text(&err));
        box_free(box);
        return;
    }
    (void)map_put(&native->boxes, str_from(box->id), box);
    box_clear(box);
}

/* *out_slot is set as soon as it is known, also when this is false. */
static bool adopt(struct native *native, const char *id, uint32_t *out_slot, struct err *err)
{
    auto_close int sandbox_fd = openat(native->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct state state;
    struct plan plan = { 0 };
    uint64_t start_time;
    enum cgroup_ice ice = CGROUP_THAWED;

    *out_slot = BOX_SLOTS;
    if (sandbox_fd < 0)
        return err_sys(err, "open sandboxes/%s", id);
    if (!state_read(sandbox_fd, &state, err))
        return false;
    if (state.held != HELD_RUNNING && !state.dying) {
        park_found(box_new(native, id), &state);
        return true;
    }
    if (strcmp(state.boot_id, native->boot_id) != 0)
        return err_set(err, ERR_NOT_FOUND, "it is from before a reboot");
    *out_slot = state.slot;
    if (!state.pid)
        return err_set(err, ERR_NOT_FOUND, "it never started");
    if (state.slot >= BOX_SLOTS || native->slot_taken[state.slot])
        return err_set(err, ERR_CONFLICT, "its slot %u is not free", state.slot);
    /* First hold the process, then check what it is: otherwise its number could be reused in between. */
    auto_close int pidfd = pidfd_open(state.pid, 0);
    if (pidfd < 0)
        return err_sys(err, "pidfd_open");
    if (process_ended(pidfd))
        return err_set(err, ERR_NOT_FOUND, "it has ended");
    if (!state_process_start_time(state.pid, &start_time, err))
        return false;
    if (start_time != state.start_time || !cgroup_holds(native->cgroups, id, state.pid))
        return err_set(err, ERR_NOT_FOUND, "it has ended");
    struct box *box = box_new(native, id);
    box->slot = state.slot;
    box->pid = state.pid;
    box->pidfd = take_fd(&pidfd);
    box->ran = true;
    box->network = state.network;
    if (state.network == NETWORK_NONE && native->network != NETWORK_NONE)
        log_info("native: sandbox %s was started without a network, and stays without", id);
    memcpy(plan.layers, state.layers, sizeof plan.layers);
    plan.layer_count = state.layer_count;
    box->zygote = state.owner ? zygote_ref(native->zygotes, &plan, state.owner) : NULL;
    native->slot_taken[state.slot] = true;
    (void)map_put(&native->boxes, str_from(box->id), box);
    box_watch(box, BOX_RUNNING);
    /* Of a dump that the last keeper did not finish, or did not use; or what it was restored from. */
    if (!trash_add(native->trash, sandbox_fd, "image.new", err) || !trash_add(native->trash, sandbox_fd, "image", err))
        log_warn("native: an image of sandbox %s stays on disk: %s", id, err_text(err));
    if (!cgroup_read_ice(native->cgroups, id, &ice, err))
        log_warn("native: sandbox %s counts as running: %s", id, err_text(err));
    if (ice != CGROUP_THAWED)
        box_found_frozen(box);
    if (state.dying && !box_kill(box, err)) /* again: the last keeper may have died between the mark and the kill */
        log_warn("native: %s", err_text(err));
    return true;
}

static bool id_valid(const char *id)
{
    return id[0] && strlen(id) < LIMIT_ID_BYTES && id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789")] == '\0';
}

static void sweep_orphan(void *context, const char *id)
{
    struct native *native = context;

    if (id_valid(id) && !box_find(native, id))
        sweep(native, id, BOX_SLOTS);
}

/* Calls fn for each sandbox's directory, until it fails. */
static bool each_directory(int sandboxes_fd, bool (*fn)(void *context, const char *id, struct err *err), void *context,
                           struct err *err)
{
    int fd = openat(sandboxes_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool ok = true;

    if (!dir) {
        (void)err_sys(err, "read sandboxes");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));)
        ok = !id_valid(entry->d_name) || fn(context, entry->d_name, err) || err_wrap(err, "sandbox %s", entry->d_name);
    (void)closedir(dir);
    return ok;
}

struct layer_walk {
    int sandboxes_fd;
    void (*use)(void *context, const char *layer);
    void *context;
};

static bool use_layers(void *context, const char *id, struct err *err)
{
    const struct layer_walk *walk = context;
    auto_close int fd = openat(walk->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 ? err_sys(err, "open it") : state_read_layers(fd, walk->use, walk->context, err))
        return true;
    return err->sys == ENOENT || /* it has gone meanwhile, or a start ended before it had a state */
           err_wrap(err, "read its layers");
}

bool native_used_layers(int data_fd, void (*use)(void *context, const char *layer), void *context, struct err *err)
{
    auto_close int fd = openat(data_fd, "sandboxes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int snapshots_fd = openat(data_fd, "snapshots", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open sandboxes");
    if (snapshots_fd < 0 ? errno != ENOENT && !err_sys(err, "open snapshots")
                         : !manifests_used_layers(snapshots_fd, use, context, err))
        return false;
    return each_directory(fd, use_layers, &(struct layer_walk){ fd, use, context }, err);
}

/*
 * Does the error show that the sandbox does not run? If it only shows that keeper could not find out, the sandbox must not
 * be swept: keeper does not start, and the operator reads why.
 */
static bool is_proof(const struct err *why)
{
    static const int unsure[] = { EMFILE, ENFILE, ENOMEM, EIO, EACCES, EPERM };

    for (size_t i = 0; i < COUNT_OF(unsure); i++)
        if (why->sys == unsure[i])
            return false;
    return why->kind != ERR_UNAVAILABLE;
}

/* The sandboxes that cannot be adopted. */
struct leftovers {
    struct native *native;
    size_t count;
    struct {
        char id[LIMIT_ID_BYTES];
        uint32_t slot;
    } * at;
};

static bool adopt_or_note(void *context, const char *id, struct err *err)
{
    struct leftovers *left = context;
    uint32_t slot;

    if (adopt(left->native, id, &slot, err))
        return true;
    if (!is_proof(err))
        return false;
    log_info("native: sandbox %s cannot be adopted: %s", id, err_text(err));
    left->at = mem_grow(left->at, (left->count + 1) * sizeof *left->at);
    (void)snprintf(left->at[left->count].id, sizeof left->at->id, "%s", id);
    left->at[left->count++].slot = slot;
    return true;
}

bool native_find_again(struct native *native, struct err *err)
{
    struct leftovers left = { .native = native };
    bool ok = each_directory(native->sandboxes_fd, adopt_or_note, &left, err);

    /* After all that live have their slots. */
    for (size_t i = 0; ok && i < left.count; i++)
        sweep(native, left.at[i].id, left.at[i].slot);
    free(left.at);
    if (ok)
        cgroups_walk(native->cgroups, sweep_orphan, native);
    return ok;
}
