/*
 * How a new keeper finds the sandboxes of the last one, which may have been killed at any moment (start.c has the steps).
 *
 * The record is made before anything else and removed after everything else. Before `go` the child waits on a socket to
 * keeper, and exits when that closes. From `hold` on it is in a cgroup named after the sandbox, and the state has its pid.
 * A cgroup without a record is left over from a sandbox whose directory was already removed. So a record whose process runs
 * in its own cgroup is a sandbox and is adopted; everything else is killed by cgroup and swept.
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

    *out_slot = BOX_SLOTS;
    if (sandbox_fd < 0)
        return err_sys(err, "open sandboxes/%s", id);
    if (!state_read(sandbox_fd, &state, err))
        return false;
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
    memcpy(plan.layers, state.layers, sizeof plan.layers);
    plan.layer_count = state.layer_count;
    box->zygote = state.owner ? zygote_ref(native->zygotes, &plan, state.owner) : NULL;
    native->slot_taken[state.slot] = true;
    (void)map_put(&native->boxes, str_from(box->id), box);
    box_watch(box, BOX_RUNNING);
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

bool native_used_layers(int data_fd, void (*use)(void *context, const char *layer), void *context, struct err *err)
{
    int fd = openat(data_fd, "sandboxes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool ok = true;

    if (!dir) {
        (void)err_sys(err, "read sandboxes");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        if (!id_valid(entry->d_name))
            continue;
        auto_close int sandbox_fd = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        ok = sandbox_fd < 0 ? err_sys(err, "open it") : state_read_layers(sandbox_fd, use, context, err);
        ok = ok || err->sys == ENOENT; /* it has gone meanwhile, or a start ended before it had a state */
        if (!ok)
            (void)err_wrap(err, "layers of sandbox %s", entry->d_name);
    }
    (void)closedir(dir);
    return ok;
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

/* A sandbox that cannot be adopted. */
struct left {
    char id[LIMIT_ID_BYTES];
    uint32_t slot;
};

bool native_find_again(struct native *native, struct err *err)
{
    int fd = openat(native->sandboxes_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    auto_free struct left *left = NULL;
    size_t count = 0;
    bool ok = true;

    if (!dir) {
        (void)err_sys(err, "read sandboxes");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        uint32_t slot;
        struct err why;
        if (!id_valid(entry->d_name) || adopt(native, entry->d_name, &slot, &why))
            continue;
        if (!is_proof(&why)) {
            *err = why;
            ok = err_wrap(err, "sandbox %s", entry->d_name);
            continue;
        }
        log_info("native: sandbox %s cannot be adopted: %s", entry->d_name, err_text(&why));
        left = mem_grow(left, (count + 1) * sizeof *left);
        (void)snprintf(left[count].id, sizeof left[count].id, "%s", entry->d_name);
        left[count++].slot = slot;
    }
    (void)closedir(dir);
    if (!ok)
        return false;
    /* After all that live have their slots. */
    for (size_t i = 0; i < count; i++)
        sweep(native, left[i].id, left[i].slot);
    cgroups_walk(native->cgroups, sweep_orphan, native);
    return true;
}
