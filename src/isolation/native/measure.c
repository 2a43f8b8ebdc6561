#include "isolation/native/measure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/zpages.h"

enum {
    DEPTH = 128,         /* of directories; each takes a descriptor */
    MEASURE_MS = 120000, /* of millions of files, at the lowest priority */
};
enum { FIGURE_FILES, FIGURE_IMAGE, FIGURE_RAW };

/* ---- in the helper ---- */

struct walk {
    uint64_t bytes, entries;
};

static DIR *open_dir(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir)
        fd_close(&fd);
    return dir;
}

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Without recursion: the directories from the first to the one that is being read are open. */
static void walk_tree(int dir_fd, const char *name, struct walk *walk)
{
    DIR *open[DEPTH];
    unsigned depth = 0;
    struct stat st;

    open[0] = open_dir(dir_fd, name);
    depth = open[0] ? 1 : 0;
    while (depth) {
        DIR *dir = open[depth - 1];
        struct dirent *entry = walk->entries < LIMIT_SNAPSHOT_ENTRIES ? readdir(dir) : NULL;
        if (!entry) {
            (void)closedir(dir);
            depth--;
            continue;
        }
        if (is_dots(entry->d_name) || fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        walk->entries++;
        walk->bytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_blocks * 512 : 0;
        if (S_ISDIR(st.st_mode) && depth < DEPTH && (open[depth] = open_dir(dirfd(dir), entry->d_name)))
            depth++;
    }
}

/* Files beside compressed pages are a cache, and are not counted. */
static bool measure_image(int dir_fd, struct measured *out, struct err *err)
{
    DIR *dir = open_dir(dir_fd, "image");
    uint64_t pages = 0, others = 0, compressed = 0, raw = 0;
    struct stat st;
    bool fine = true;

    if (!dir)
        return errno == ENOENT || err_sys(err, "open the image");
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
            continue;
        uint64_t bytes = (uint64_t)st.st_blocks * 512;
        if (strcmp(entry->d_name, ZPAGES) == 0)
            compressed = bytes;
        else if (zpages_is_name(entry->d_name))
            pages += bytes;
        else
            others += bytes;
    }
    if (compressed)
        fine = zpages_read_size(dirfd(dir), &raw, err);
    (void)closedir(dir);
    out->image_bytes = others + (compressed ? compressed : pages);
    out->raw_bytes = others + (compressed ? raw : pages);
    return fine;
}

bool measure_dir(int dir_fd, struct measured *out, struct err *err)
{
    struct walk walk = { 0 };

    *out = (struct measured){ 0 };
    walk_tree(dir_fd, "upper", &walk);
    out->files_bytes = walk.bytes + walk.entries * LIMIT_SNAPSHOT_ENTRY_BYTES;
    return measure_image(dir_fd, out, err);
}

/* ---- in keeper ---- */

struct measure {
    struct native *native;
    struct measure *next;
    char id[LAYER_ID_BYTES];
    struct helper *helper;
    int dir_fd;
    driver_kept_fn *done;
    void *context;
};

static bool work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct measure *measure = context;
    struct measured found;

    helper_slow_down();
    if (!measure_dir(measure->dir_fd, &found, err))
        return false;
    helper_figure(voice, FIGURE_FILES, found.files_bytes);
    helper_figure(voice, FIGURE_IMAGE, found.image_bytes);
    helper_figure(voice, FIGURE_RAW, found.raw_bytes);
    return true;
}

static void finish(struct measure *measure, const struct kept *kept, const struct err *err)
{
    struct measure **at = &measure->native->measures;
    driver_kept_fn *done = measure->done;
    void *context = measure->context;

    while (*at != measure)
        at = &(*at)->next;
    *at = measure->next;
    helper_cancel(measure->helper);
    fd_close(&measure->dir_fd);
    free(measure);
    done(context, kept, err);
}

static void ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct measure *measure = context;
    struct kept kept = { 0 };

    measure->helper = NULL;
    if (!err) {
        kept.layer_bytes = figures[FIGURE_FILES];
        kept.image_bytes = figures[FIGURE_IMAGE];
        kept.raw_bytes = figures[FIGURE_RAW];
        kept.has_image = kept.image_bytes > 0;
        kept.is_final = compress_is_done(measure->native, measure->id);
    }
    finish(measure, err ? NULL : &kept, err);
}

void native_measure(struct driver *driver, const char *id, driver_kept_fn *done, void *context)
{
    struct native *native = native_of(driver);
    bool is_snapshot = plan_layer_id_valid(id);
    const struct box *box = is_snapshot ? NULL : box_find(native, id);
    struct measure *measure = NEW(struct measure);
    struct err err;

    *measure = (struct measure){ .native = native, .next = native->measures, .dir_fd = -1 };
    measure->done = done;
    measure->context = context;
    (void)snprintf(measure->id, sizeof measure->id, "%s", id);
    native->measures = measure;
    if (!is_snapshot && (!box || box->state != BOX_PARKED)) {
        (void)err_set(&err, ERR_NOT_FOUND, "there is no parked sandbox %s", id);
        finish(measure, NULL, &err);
        return;
    }
    measure->dir_fd = openat(is_snapshot ? native->snapshots_fd : native->sandboxes_fd, id,
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const struct helper_job job = { .work = work,
                                    .ended = ended,
                                    .context = measure,
                                    .dirs = { { measure->dir_fd, HELPER_READ } },
                                    .dir_count = 1,
                                    .patience_ms = MEASURE_MS };
    if (measure->dir_fd < 0)
        (void)(errno == ENOENT ? err_set(&err, ERR_NOT_FOUND, "there is nothing kept of %s", id)
                               : err_sys(&err, "open what is kept of %s", id));
    else if ((measure->helper = helper_start(native->helpers, &job, &err)))
        return;
    finish(measure, NULL, &err);
}

void measures_close(struct native *native)
{
    struct err err;

    (void)err_set(&err, ERR_UNAVAILABLE, "keeper is stopping");
    while (native->measures)
        finish(native->measures, NULL, &err);
}
