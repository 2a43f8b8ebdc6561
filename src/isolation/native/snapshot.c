/*
 * How a snapshot is made. Keeper makes snapshots/<id>.new, and a helper does the rest, step by step with keeper:
 *
 *   merge    only if the sandbox has LIMIT_LAYERS layers: those that came from snapshots become one with the new. The
 *            template's own stay: they are large, and other sandboxes share them
 *   freeze   keeper freezes the sandbox
 *   dump     with memory: CRIU writes its processes into <id>.new/image (checkpoint.h)
 *   copy     its upper is copied into <id>.new/layer
 *   thaw     keeper thaws it, if it ran before; from here on it has nothing to do with the snapshot
 *   write    syncfs, then the manifest
 *   name     keeper renames <id>.new/layer to layers/<id> and <id>.new to <id>. Keeper, and both in one turn of its loop,
 *            because the sweep of layers runs there too: it must see the manifest when it sees the layer
 *   sync     of the two directories, and the snapshot is there
 *
 * Whatever fails or dies before the end: the sandbox is thawed, and what was made goes to the trash. If keeper dies, the
 * next one finds <id>.new, or a layer that nothing names, and removes either; front thaws the sandbox.
 *
 * A copy (PAUSE_COPY) is the same without `sync` and the syncfs: if the machine goes down, so do the sandboxes that are made
 * from it. One of those that is kept later, parked or as a snapshot, has all of the file system synced first, and with it
 * this layer. Its manifest has another name (manifest.h), by which the next keeper knows that it is rubbish.
 *
 * A layer that is a snapshot's has an attribute that says so, for `merge`: its manifest may have been removed.
 *
 * A seal is a snapshot of a sandbox that ends. It needs no copy, and nothing stands still for it:
 *
 *   kill     marked as dying, so that the next keeper clears it away if this one dies. From here on there is no way back
 *   move     no process of it is left: its upper becomes <id>.new/layer, and the rest of the sandbox goes to the trash.
 *            With LIMIT_LAYERS layers it becomes <id>.new/upper, and the helper merges as above
 *   write, name, sync    as above
 */
#include "isolation/native/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/remove.h"
#include "isolation/native/box.h"
#include "isolation/native/checkpoint.h"
#include "isolation/native/copy.h"
#include "isolation/native/helper.h"
#include "isolation/native/manifest.h"
#include "isolation/native/room.h"

#define SNAPSHOT_MARK "trusted.cloister.snapshot" /* its value: one of these */
#define MARK_COPIED "y"
#define MARK_SEALED "s"

enum {
    FROZEN_MS = 120000, /* a sandbox does not stand still for longer: 20 GB on a disk of 170 MB a second */
    HELPER_MS = 600000, /* all of it, with the sync of what was copied */
    DRAFT_BYTES = LAYER_ID_BYTES + 8,
    COUNT_DEPTH = 256, /* directories below one another whose files count for the size of a seal; a descriptor each */
};

enum step { STEP_FREEZE, STEP_COPIED, STEP_NAME };

struct snapshot {
    struct native *native;
    struct snapshot *next;
    struct box *box; /* NULL once its files are copied, and of a seal */
    bool is_seal;
    struct box *dying; /* of a seal, until its files are moved */
    struct helper *helper;
    char id[LAYER_ID_BYTES], draft[DRAFT_BYTES]; /* <id>.new */
    struct manifest manifest;
    uint32_t merged; /* of the sandbox's layers, the uppermost */
    int draft_fd, upper_fd, layer_fds[LIMIT_LAYERS];
    bool was_frozen, we_froze, is_named;
    bool is_copy;
    bool is_freezing; /* box_freeze() has not answered yet */
    bool is_over;     /* …and its answer does not matter any more */
    struct timer patience;
    driver_kept_fn *done;
    void *context;
};

/* ---- the helper ---- */

static int make_inside(int dir_fd, const char *name, struct err *err)
{
    int fd = mkdirat(dir_fd, name, 0700) < 0 ? -1 : openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        (void)err_sys(err, "make %s", name);
    return fd;
}

/* What CRIU has written, on disk. */
static uint64_t count_image(int draft_fd)
{
    int fd = openat(draft_fd, "image", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    uint64_t bytes = 0;
    struct stat st;

    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
    if (dir)
        (void)closedir(dir);
    else
        fd_close(&fd);
    return bytes;
}

/* On disk; files without contents are not free. */
static uint64_t size_of(const struct copy *copy)
{
    return copy->bytes + copy->entries * LIMIT_SNAPSHOT_ENTRY_BYTES;
}

static bool write_down(struct snapshot *snapshot, const struct copy *copy, uint64_t *image_bytes, struct err *err)
{
    if (!remove_tree(snapshot->draft_fd, "links", err) || !remove_tree(snapshot->draft_fd, "upper", err))
        return false;
    /* Contents first, then names: after a power cut no name may lead to half a layer. */
    if (!snapshot->is_copy && syncfs(snapshot->draft_fd) < 0)
        return err_sys(err, "sync a snapshot");
    snapshot->manifest.layer_bytes = size_of(copy);
    snapshot->manifest.image_bytes = *image_bytes = snapshot->manifest.has_image ? count_image(snapshot->draft_fd) : 0;
    return snapshot->is_copy ? manifest_write_copy(snapshot->draft_fd, &snapshot->manifest, err)
                             : manifest_write(snapshot->draft_fd, &snapshot->manifest, err);
}

/* The layer is complete. */
static bool keep_it(struct snapshot *snapshot, struct helper_voice *voice, const struct copy *copy, struct err *err)
{
    uint64_t image_bytes = 0;

    helper_figure(voice, 0, size_of(copy));
    if (!write_down(snapshot, copy, &image_bytes, err))
        return false;
    helper_figure(voice, 1, image_bytes);
    if (!helper_ask(voice, STEP_NAME, err))
        return false;
    return snapshot->is_copy ||
           (fsync(snapshot->native->layers_fd) == 0 && fsync(snapshot->native->snapshots_fd) == 0) ||
           err_sys(err, "sync the name of a snapshot");
}

static bool make_snapshot(struct helper_voice *voice, void *context, struct err *err)
{
    struct snapshot *snapshot = context;
    auto_close int layer_fd = make_inside(snapshot->draft_fd, "layer", err);
    auto_close int links_fd = layer_fd < 0 ? -1 : make_inside(snapshot->draft_fd, "links", err);
    struct copy copy = { .to_fd = layer_fd, .links_fd = links_fd, .is_merge = snapshot->merged > 0 };

    if (links_fd < 0)
        return false;
    for (uint32_t i = 0; i < snapshot->merged; i++)
        if (!copy_tree(&copy, snapshot->layer_fds[i], err))
            return false;
    if (!helper_ask(voice, STEP_FREEZE, err) || !copy_tree(&copy, snapshot->upper_fd, err))
        return false;
    if (fsetxattr(layer_fd, SNAPSHOT_MARK, MARK_COPIED, 1, 0) < 0)
        return err_sys(err, "mark a layer");
    if (!helper_ask(voice, STEP_COPIED, err))
        return false;
    if (!snapshot->is_copy)
        helper_slow_down();
    return keep_it(snapshot, voice, &copy, err);
}

/* What is below this directory; an estimate where a guest has nested it deeply. */
static void count_below(int dir_fd, unsigned depth, struct copy *sum)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct stat st;

    if (!dir)
        fd_close(&fd);
    for (struct dirent *entry; dir && sum->entries < LIMIT_SNAPSHOT_ENTRIES && (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        sum->entries++;
        if (S_ISREG(st.st_mode))
            sum->bytes += (uint64_t)st.st_blocks * 512 / MAX(st.st_nlink, (nlink_t)1);
        auto_close int below = S_ISDIR(st.st_mode) && depth < COUNT_DEPTH
                                   ? openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                                   : -1;
        if (below >= 0)
            count_below(below, depth + 1, sum);
    }
    if (dir)
        (void)closedir(dir);
}

static bool make_seal(struct helper_voice *voice, void *context, struct err *err)
{
    struct snapshot *snapshot = context;
    struct copy copy = { .to_fd = snapshot->upper_fd, .links_fd = -1, .is_merge = true };
    auto_close int layer_fd = -1, links_fd = -1;

    if (snapshot->merged) {
        copy.to_fd = layer_fd = make_inside(snapshot->draft_fd, "layer", err);
        copy.links_fd = links_fd = layer_fd < 0 ? -1 : make_inside(snapshot->draft_fd, "links", err);
        if (links_fd < 0)
            return false;
        for (uint32_t i = 0; i < snapshot->merged; i++)
            if (!copy_tree(&copy, snapshot->layer_fds[i], err))
                return false;
        if (!copy_tree(&copy, snapshot->upper_fd, err))
            return false;
    } else {
        count_below(snapshot->upper_fd, 0, &copy);
    }
    if (fsetxattr(copy.to_fd, SNAPSHOT_MARK, MARK_SEALED, 1, 0) < 0)
        return err_sys(err, "mark a layer");
    return keep_it(snapshot, voice, &copy, err);
}

/* ---- the end ---- */

static void start_waiting(struct native *native);

static void close_all(struct snapshot *snapshot)
{
    fd_close(&snapshot->draft_fd);
    fd_close(&snapshot->upper_fd);
    fd_close_each(snapshot->layer_fds, snapshot->merged);
}

/* The sandbox goes on, and is no longer ours. */
static void let_go(struct snapshot *snapshot)
{
    struct box *box = snapshot->box;
    struct err err;

    timer_clear(&snapshot->patience);
    if (!box)
        return;
    snapshot->box = NULL;
    box->snapshot = NULL;
    if (snapshot->we_froze && box->state == BOX_RUNNING && !box_thaw(box, &err))
        log_error("native: sandbox %s stays frozen after a snapshot: %s", box->id, err_text(&err));
}

static void finish(struct snapshot *snapshot, const struct kept *kept, const struct err *err)
{
    struct native *native = snapshot->native;
    struct snapshot **at = &native->snapshots;
    driver_kept_fn *done = snapshot->done;
    void *context = snapshot->context;

    while (*at != snapshot)
        at = &(*at)->next;
    *at = snapshot->next;
    let_go(snapshot);
    helper_cancel(snapshot->helper);
    close_all(snapshot);
    free(snapshot);
    start_waiting(native);
    done(context, kept, err);
}

static void throw_away(struct native *native, int dir_fd, const char *name)
{
    struct err err;

    if (!trash_add(native->trash, dir_fd, name, &err))
        log_warn("native: what is left of a snapshot is removed at the next start of the server: %s", err_text(&err));
}

static void fail(struct snapshot *snapshot, const struct err *why)
{
    struct native *native = snapshot->native;
    struct err err;

    snapshot->is_over = true;
    if (snapshot->dying)
        snapshot->dying->seal = NULL;
    if (snapshot->box)
        checkpoint_forget(snapshot->box, why);
    if (snapshot->is_freezing && !box_thaw(snapshot->box, &err)) { /* which answers: it was thawed before */
        log_error("native: sandbox %s is partly frozen: %s", snapshot->box->id, err_text(&err));
        box_forget_freeze(snapshot->box, why); /* the answer must not come later: the snapshot goes */
    }
    helper_cancel(take_ptr(&snapshot->helper)); /* before its directory goes */
    if (snapshot->is_named)
        throw_away(native, native->layers_fd, snapshot->id);
    throw_away(native, native->snapshots_fd, snapshot->is_named ? snapshot->id : snapshot->draft);
    finish(snapshot, NULL, why);
}

static void ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct snapshot *snapshot = context;
    struct kept kept = { .layer_count = snapshot->manifest.layer_count };
    struct err why;

    snapshot->helper = NULL;
    if (err || !native_reach(snapshot->native, NATIVE_AT_SNAPSHOT_END, &why) ||
        (!snapshot->is_named && !err_set(&why, ERR_INTERNAL, "a snapshot was not finished"))) {
        fail(snapshot, err ? err : &why);
        return;
    }
    memcpy(kept.id, snapshot->id, sizeof kept.id);
    memcpy(kept.layers, snapshot->manifest.layers, sizeof kept.layers);
    kept.layer_bytes = figures[0];
    kept.has_image = snapshot->manifest.has_image;
    kept.image_bytes = figures[1];
    if (kept.has_image)
        compress_note(snapshot->native, snapshot->id);
    finish(snapshot, &kept, NULL);
}

void snapshot_lost(struct box *box, const struct err *why)
{
    if (box->snapshot)
        fail(box->snapshot, why);
}

/* ---- the steps ---- */

static void impatient(struct timer *timer)
{
    struct snapshot *snapshot = container_of(timer, struct snapshot, patience);
    struct err err;

    (void)err_set(&err, ERR_LIMIT,
                  "copying the files of sandbox %s takes longer than %d seconds: remove some, or pause it instead",
                  snapshot->box->id, FROZEN_MS / 1000);
    fail(snapshot, &err);
}

static void dumped(void *context, const struct err *err)
{
    struct snapshot *snapshot = context;

    if (snapshot->is_over)
        return;
    if (err)
        fail(snapshot, err);
    else
        helper_go(snapshot->helper);
}

static void frozen(void *context, const struct kept *kept, const struct err *err)
{
    struct snapshot *snapshot = context;
    struct err why;

    (void)kept;
    snapshot->is_freezing = false;
    if (snapshot->is_over)
        return;
    snapshot->we_froze = !err && !snapshot->was_frozen;
    if (err || !native_reach(snapshot->native, NATIVE_AT_SNAPSHOT_FREEZE, &why)) {
        fail(snapshot, err ? err : &why);
        return;
    }
    timer_set(&snapshot->patience, snapshot->native->loop, FROZEN_MS, impatient);
    if (!snapshot->manifest.has_image)
        helper_go(snapshot->helper);
    else if (!box_checkpoint(snapshot->box, snapshot->draft_fd, dumped, snapshot, &why))
        fail(snapshot, &why);
}

static bool name_it(struct snapshot *snapshot, struct err *err)
{
    struct native *native = snapshot->native;

    if (renameat2(snapshot->draft_fd, "layer", native->layers_fd, snapshot->id, RENAME_NOREPLACE) < 0)
        return err_sys(err, "name the layer of a snapshot");
    if (!native_reach(native, NATIVE_AT_SNAPSHOT_LAYER, err) ||
        (renameat2(native->snapshots_fd, snapshot->draft, native->snapshots_fd, snapshot->id, RENAME_NOREPLACE) < 0 &&
         !err_sys(err, "name a snapshot"))) {
        throw_away(native, native->layers_fd, snapshot->id);
        return false;
    }
    snapshot->is_named = true;
    return native_reach(native, NATIVE_AT_SNAPSHOT_NAME, err);
}

static void asked(void *context, uint8_t step)
{
    struct snapshot *snapshot = context;
    struct native *native = snapshot->native;
    struct err err;
    bool fine = true;

    if (step == STEP_FREEZE && snapshot->box && !snapshot->is_freezing && !timer_is_set(&snapshot->patience)) {
        snapshot->was_frozen = snapshot->box->ice.is_frozen;
        snapshot->is_freezing = true;
        if (snapshot->box->state == BOX_PARKED)
            frozen(snapshot, NULL, NULL);
        else
            box_freeze(snapshot->box, frozen, snapshot);
        return;
    }
    if (step == STEP_COPIED && snapshot->box) {
        fine = native_reach(native, NATIVE_AT_SNAPSHOT_COPY, &err);
        if (fine)
            let_go(snapshot);
    } else if (step == STEP_NAME && !snapshot->box && !snapshot->is_named) {
        fine = native_reach(native, NATIVE_AT_SNAPSHOT_WRITE, &err) && name_it(snapshot, &err);
    } else {
        fine = err_set(&err, ERR_INTERNAL, "the process that makes a snapshot does not keep to its steps");
    }
    if (fine)
        helper_go(snapshot->helper);
    else
        fail(snapshot, &err);
}

/* ---- the beginning ---- */

/* 0: it has none. Also a mark if that cannot be told. */
static char mark_of(int layers_fd, const char *layer)
{
    auto_close int fd = openat(layers_fd, layer, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char value = MARK_COPIED[0];

    if (fd >= 0 && fgetxattr(fd, SNAPSHOT_MARK, &value, 1) < 0 && (errno == ENODATA || errno == ENOTSUP))
        return 0;
    return value;
}

bool snapshot_made_layer(int layers_fd, const char *layer)
{
    return mark_of(layers_fd, layer) != 0;
}

bool native_own_layer(int layer_fd, struct err *err)
{
    return fremovexattr(layer_fd, SNAPSHOT_MARK) == 0 || errno == ENODATA || err_sys(err, "take the mark off a layer");
}

bool snapshot_outlived_layer(int layers_fd, const char *layer)
{
    char mark = mark_of(layers_fd, layer);

    return mark != 0 && mark != MARK_SEALED[0];
}

/* How many of these layers stay as they are. */
static uint32_t layers_below(const struct native *native, const struct state *record)
{
    uint32_t stay = 1;

    if (record->layer_count < LIMIT_LAYERS)
        return record->layer_count;
    while (stay < LIMIT_LAYERS - 1 && !snapshot_made_layer(native->layers_fd, record->layers[stay]))
        stay++;
    return stay;
}

static bool plan_layers(struct snapshot *snapshot, const struct state *record, struct err *err)
{
    struct manifest *manifest = &snapshot->manifest;
    uint32_t stay = layers_below(snapshot->native, record);
    struct utsname machine;

    for (uint32_t i = stay; i < record->layer_count; i++) {
        int fd =
            openat(snapshot->native->layers_fd, record->layers[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return err_sys(err, "open layer %s", record->layers[i]);
        snapshot->layer_fds[snapshot->merged++] = fd;
    }
    memcpy(manifest->layers, record->layers, stay * sizeof *record->layers);
    memcpy(manifest->layers[stay], snapshot->id, sizeof snapshot->id);
    manifest->layer_count = stay + 1;
    if (manifest->has_image) {
        const struct image_origin *here = &snapshot->native->memory.origin;
        memcpy(manifest->kernel, here->kernel, sizeof manifest->kernel);
        memcpy(manifest->cpu, here->cpu, sizeof manifest->cpu);
        memcpy(manifest->guestd, here->guestd, sizeof manifest->guestd);
        memcpy(manifest->criu, here->criu, sizeof manifest->criu);
    } else if (uname(&machine) == 0) {
        (void)snprintf(manifest->kernel, sizeof manifest->kernel, "%.100s", machine.release);
    }
    return true;
}

static bool open_sandbox(struct snapshot *snapshot, struct state *out_record, struct err *err)
{
    const struct box *box = snapshot->box;
    auto_close int fd = openat(box->native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open sandboxes/%s", box->id);
    if (!state_read(fd, out_record, err))
        return false;
    if (!out_record->layer_count)
        return err_set(err, ERR_INVALID, "an older server started this sandbox: it can have no snapshot");
    snapshot->upper_fd = openat(fd, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return snapshot->upper_fd >= 0 || err_sys(err, "open the files of sandbox %s", box->id);
}

static bool make_draft(struct snapshot *snapshot, struct err *err)
{
    int snapshots_fd = snapshot->native->snapshots_fd;

    if (mkdirat(snapshots_fd, snapshot->draft, 0700) < 0)
        return err_sys(err, "make the directory of a snapshot");
    snapshot->draft_fd = openat(snapshots_fd, snapshot->draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return snapshot->draft_fd >= 0 || err_sys(err, "open the directory of a snapshot");
}

static bool start_helper(struct snapshot *snapshot, struct err *err)
{
    struct native *native = snapshot->native;
    struct helper_job job = { .work = snapshot->is_seal ? make_seal : make_snapshot,
                              .asked = asked,
                              .ended = ended,
                              .context = snapshot,
                              .dirs = { { snapshot->draft_fd, HELPER_CHANGE },
                                        { snapshot->upper_fd, HELPER_READ },
                                        { native->layers_fd, HELPER_HOLD },
                                        { native->snapshots_fd, HELPER_HOLD } },
                              .dir_count = 4,
                              .patience_ms = HELPER_MS };

    for (uint32_t i = 0; i < snapshot->merged; i++)
        job.dirs[job.dir_count++] = (struct helper_dir){ snapshot->layer_fds[i], HELPER_READ };
    snapshot->helper = helper_start(native->helpers, &job, err);
    return snapshot->helper != NULL;
}

static bool begin(struct snapshot *snapshot, struct err *err)
{
    struct state record;

    return room_check(snapshot->native->snapshots_fd, err) && open_sandbox(snapshot, &record, err) &&
           plan_layers(snapshot, &record, err) && make_draft(snapshot, err) &&
           native_reach(snapshot->native, NATIVE_AT_SNAPSHOT_DRAFT, err) && start_helper(snapshot, err);
}

static void new_id(struct snapshot *snapshot)
{
    unsigned char random[32];

    random_bytes(random, sizeof random);
    (void)hex_text(str_of(random, sizeof random), snapshot->id);
    (void)snprintf(snapshot->draft, sizeof snapshot->draft, "%s.new", snapshot->id);
}

static void start_waiting(struct native *native)
{
    struct snapshot *next = NULL;
    unsigned running = 0;
    struct err err;

    for (struct snapshot *at = native->snapshots; at; at = at->next) {
        if (at->is_seal)
            continue; /* nothing stands still for it, so it waits for nobody */
        running += at->helper != NULL;
        next = at->helper || at->draft_fd >= 0 ? next : at; /* the newest is the first in the list */
    }
    if (next && running < LIMIT_COPIES && !begin(next, &err))
        fail(next, &err);
}

static void take(struct driver *driver, const char *id, bool memory, bool is_copy, driver_kept_fn *done, void *context)
{
    struct native *native = native_of(driver);
    struct box *box = box_find(native, id);
    struct err err;

    if (!box || (box->state != BOX_RUNNING && box->state != BOX_PARKED)) {
        (void)err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    } else if (memory && box->state == BOX_PARKED) {
        (void)err_set(&err, ERR_CONFLICT, "sandbox %s is paused: resume it for a snapshot with its memory", id);
    } else if ((!memory || memory_works(native, &err)) && !box_is_busy(box, &err)) {
        struct snapshot *snapshot = NEW(struct snapshot);
        *snapshot = (struct snapshot){ .native = native,
                                       .next = native->snapshots,
                                       .box = box,
                                       .manifest.has_image = memory,
                                       .is_copy = is_copy,
                                       .draft_fd = -1,
                                       .upper_fd = -1,
                                       .done = done,
                                       .context = context };
        new_id(snapshot);
        box->snapshot = native->snapshots = snapshot;
        start_waiting(native);
        return;
    }
    done(context, NULL, &err);
}

void native_snapshot(struct driver *driver, const char *id, bool memory, driver_kept_fn *done, void *context)
{
    take(driver, id, memory, false, done, context);
}

void native_copy(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    const struct native *native = native_of(driver);
    struct stat layers, sandboxes;
    /* What parks a sandbox syncs the file system that it is on. */
    bool is_one = fstat(native->layers_fd, &layers) == 0 && fstat(native->sandboxes_fd, &sandboxes) == 0 &&
                  layers.st_dev == sandboxes.st_dev;

    take(driver, id, true, is_one, done, context);
}

/* ---- a seal ---- */

static bool begin_seal(struct snapshot *snapshot, struct err *err)
{
    struct native *native = snapshot->native;
    struct state record;

    snapshot->box = snapshot->dying; /* open_sandbox() reads its record */
    bool ok = open_sandbox(snapshot, &record, err) && plan_layers(snapshot, &record, err);
    snapshot->box = NULL;
    return ok && make_draft(snapshot, err) && native_reach(native, NATIVE_AT_SEAL_DRAFT, err) &&
           box_kill(snapshot->dying, err);
}

void native_seal(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    struct native *native = native_of(driver);
    struct box *box = box_find(native, id);
    struct err err, ignored;

    if (!box || box->state != BOX_RUNNING) {
        (void)err_set(&err, ERR_NOT_FOUND, "there is no sandbox %s", id);
    } else if (!box_is_busy(box, &err)) {
        struct snapshot *snapshot = NEW(struct snapshot);
        *snapshot = (struct snapshot){ .native = native,
                                       .next = native->snapshots,
                                       .is_seal = true,
                                       .dying = box,
                                       .draft_fd = -1,
                                       .upper_fd = -1,
                                       .done = done,
                                       .context = context };
        new_id(snapshot);
        native->snapshots = box->seal = snapshot;
        if (begin_seal(snapshot, &err)) {
            (void)!native_reach(native, NATIVE_AT_SEAL_KILL, &ignored);
            return; /* box_gone() goes on */
        }
        fail(snapshot, &err);
        if (box->state == BOX_RUNNING && !box_kill(box, &err))
            log_error("native: %s", err_text(&err));
        return;
    }
    done(context, NULL, &err);
}

static bool move_files(struct snapshot *snapshot, const struct box *box, struct err *err)
{
    struct native *native = snapshot->native;
    auto_close int fd = openat(native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open sandboxes/%s", box->id);
    if (renameat2(fd, "upper", snapshot->draft_fd, snapshot->merged ? "upper" : "layer", RENAME_NOREPLACE) < 0)
        return err_sys(err, "keep the files of sandbox %s", box->id);
    return native_reach(native, NATIVE_AT_SEAL_MOVE, err) && start_helper(snapshot, err);
}

void seal_take_files(struct box *box)
{
    struct snapshot *snapshot = take_ptr(&box->seal);
    struct err err;

    if (!snapshot)
        return;
    snapshot->dying = NULL;
    if (!move_files(snapshot, box, &err))
        fail(snapshot, &err);
}

void seal_lost(struct box *box, const struct err *why)
{
    if (box->seal)
        fail(box->seal, why);
}

void native_drop(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    struct native *native = native_of(driver);
    struct err err;

    compress_forget(native, id);
    bool fine = plan_layer_id_valid(id) ? trash_add(native->trash, native->snapshots_fd, id, &err)
                                        : err_set(&err, ERR_INVALID, "a snapshot's id is 64 hex digits");

    if (fine && native->on_unused)
        native->on_unused(native->on_unused_context);
    done(context, NULL, fine ? NULL : &err);
}

static int in_order(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Puts it among the first ones, if it is one of them. */
static void note_id(struct kept *page, const char *id)
{
    char(*last)[LAYER_ID_BYTES] = &page->layers[LIMIT_LAYERS - 1];

    if (page->layer_count < LIMIT_LAYERS)
        last = &page->layers[page->layer_count++];
    else if (strcmp(id, *last) > 0)
        return;
    (void)snprintf(*last, sizeof *last, "%s", id);
    qsort(page->layers, page->layer_count, sizeof page->layers[0], in_order);
}

void native_list_snapshots(struct driver *driver, const char *after, driver_kept_fn *done, void *context)
{
    struct native *native = native_of(driver);
    int fd = openat(native->snapshots_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct kept page = { 0 };
    struct err err;

    if (!dir) {
        (void)err_sys(&err, "read snapshots");
        fd_close(&fd);
        done(context, NULL, &err);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        if (plan_layer_id_valid(entry->d_name) && strcmp(entry->d_name, after) > 0)
            note_id(&page, entry->d_name);
    (void)closedir(dir);
    done(context, &page, NULL);
}

/* ---- a new keeper ---- */

static bool is_whole(const struct native *native, const char *name)
{
    struct stat st;

    return fstatat(native->layers_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

bool snapshots_open(struct native *native, struct err *err)
{
    int fd = openat(native->snapshots_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool ok = true;

    if (!dir) {
        (void)err_sys(err, "read snapshots");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        if (plan_layer_id_valid(entry->d_name) && is_whole(native, entry->d_name) &&
            !manifest_is_copy(native->snapshots_fd, entry->d_name)) {
            compress_note(native, entry->d_name); /* if it has an image */
            continue;
        }
        log_info("native: removing snapshot %.16s, which was never finished", entry->d_name);
        ok = trash_add(native->trash, native->snapshots_fd, entry->d_name, err);
    }
    (void)closedir(dir);
    return ok;
}

void snapshots_close(struct native *native)
{
    struct err err;

    (void)err_set(&err, ERR_UNAVAILABLE, "keeper is stopping");
    while (native->snapshots)
        fail(native->snapshots, &err);
}
