/*
 * An image has its pages as CRIU wrote them, in the files pages-*.img, or compressed, in pages.zst. If there is a pages.zst it
 * counts, and files beside it are a cache that is good for as long as this keeper knows of it: nobody has synced them.
 *
 *   write    a helper writes pages.zst.new and waits until that is on disk
 *   name     keeper renames it to pages.zst: from here on this form counts, after whatever crash
 *   sync     of the directory, by the helper
 *   remove   keeper moves pages-*.img to the trash
 *
 * A restore that comes before the last step has pages-*.img, all of them, and the helper is killed. One that comes after it
 * has them made again by another helper, several restores at once by the same one, and CRIU starts when all of them are
 * there and their checksums are right. They stay beside pages.zst; later a helper only syncs, and they are removed.
 *
 * A keeper that starts knows nothing of the images it finds: each is looked at by a helper when it is due.
 */
#include "isolation/native/compress.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/room.h"
#include "isolation/native/zpages.h"

enum {
    COMPRESS_MS = 1800000,   /* for one image, at the lowest priority */
    FAILED_MS = 600000,      /* between attempts, if one has failed: the disk may be full */
    LEAST_BYTES = 64 * 1024, /* less is not worth a file */
    GAIN = 8,                /* nor is one that becomes smaller by less than an eighth */
};

enum step { STEP_NAME };
enum { FIGURE_RAW, FIGURE_BYTES };

struct image_wait {
    struct image_wait *next;
    image_fn *done;
    void *context;
};

struct kept_image {
    struct native *native;
    char id[LAYER_ID_BYTES];
    uint64_t due_ms;       /* UINT64_MAX: there is nothing to do */
    unsigned users;        /* restores that need its pages as they are */
    bool is_gone;          /* not among the others any more */
    bool is_whole;         /* pages-*.img are beside pages.zst, and are good */
    int fd;                /* its directory, while a helper is at it; else -1 */
    struct helper *helper; /* that compresses, or expands for `waits` */
    struct image_wait *waits;
};

/* ---- the helpers ---- */

static bool has_zpages(int image_fd)
{
    return faccessat(image_fd, ZPAGES, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool compress_work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct kept_image *image = context;
    auto_zpages struct zpages pages = { 0 };
    uint64_t bytes = 0;
    struct stat st;

    helper_slow_down();
    if (!zpages_sweep(image->fd, err))
        return false;
    if (fstatat(image->fd, ZPAGES, &st, AT_SYMLINK_NOFOLLOW) == 0) /* they are a cache, or were left over by a crash */
        return fsync(image->fd) == 0 || err_sys(err, "sync the name of the compressed pages");
    if (!zpages_list(image->fd, &pages, err))
        return false;
    uint64_t raw = zpages_bytes(&pages);
    if (pages.count == 0 || raw < LEAST_BYTES)
        return true;
    helper_figure(voice, FIGURE_RAW, raw);
    if (!room_check_memory(image->fd, raw, err) || !zpages_compress(image->fd, &pages, &bytes, err))
        return false;
    if (bytes > raw - raw / GAIN)
        return zpages_sweep(image->fd, err);
    helper_figure(voice, FIGURE_BYTES, bytes);
    if (!helper_ask(voice, STEP_NAME, err))
        return false;
    return fsync(image->fd) == 0 || err_sys(err, "sync the name of the compressed pages");
}

static bool expand_work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct kept_image *image = context;

    (void)voice;
    return zpages_expand(image->fd, err);
}

/* ---- in keeper ---- */

static void look(struct native *native);

static void look_again(struct timer *timer)
{
    look(container_of(timer, struct native, compress.timer));
}

static void look_at(struct native *native, uint64_t when_ms)
{
    uint64_t now_ms = clock_mono_ms();

    native->compress.timer_ms = when_ms;
    timer_set(&native->compress.timer, native->loop, when_ms > now_ms ? when_ms - now_ms : 0, look_again);
}

static void image_free(struct kept_image *image)
{
    fd_close(&image->fd);
    free(image);
}

static bool is_snapshot(const char *id)
{
    return plan_layer_id_valid(id); /* longer than the id of any sandbox */
}

static bool open_image(struct kept_image *image, struct err *err)
{
    char path[LAYER_ID_BYTES + 32];

    (void)snprintf(path, sizeof path, "%s/%s/image", is_snapshot(image->id) ? "snapshots" : "sandboxes", image->id);
    image->fd = openat(image->native->data_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return image->fd >= 0 || err_sys(err, "open %s", path);
}

/* No helper is at it any more; done by it or not. */
static void leave(struct kept_image *image)
{
    struct compress *compress = &image->native->compress;

    helper_cancel(take_ptr(&image->helper));
    fd_close(&image->fd);
    if (compress->first == image)
        compress->first = NULL;
}

static void touch(struct kept_image *image)
{
    struct compress *compress = &image->native->compress;

    image->due_ms = compress->after_ms ? clock_mono_ms() + compress->after_ms : UINT64_MAX;
    if (image->due_ms != UINT64_MAX && (!timer_is_set(&compress->timer) || image->due_ms < compress->timer_ms))
        look_at(image->native, image->due_ms);
}

/* pages.zst counts, and its name is on disk. */
static void remove_raw(struct kept_image *image)
{
    int fd = has_zpages(image->fd) ? openat(image->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct err err;
    bool fine = true;

    image->is_whole = false;
    for (struct dirent *entry; dir && fine && (entry = readdir(dir));)
        fine = !zpages_is_name(entry->d_name) || trash_add(image->native->trash, image->fd, entry->d_name, &err);
    if (dir)
        (void)closedir(dir);
    else
        fd_close(&fd);
    if (!fine)
        log_warn("native: pages of %s stay on disk in both forms: %s", image->id, err_text(&err));
}

static void compressed(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct kept_image *image = context;
    struct native *native = image->native;
    struct err why;

    image->helper = NULL;
    if (!err && !native_reach(native, NATIVE_AT_COMPRESS_SYNC, &why))
        err = &why;
    if (err) {
        log_warn("native: the memory of %s is not compressed, next attempt in %d minutes: %s", image->id,
                 FAILED_MS / 60000, err_text(err));
        image->due_ms = clock_mono_ms() + FAILED_MS;
    } else {
        image->due_ms = UINT64_MAX;
        remove_raw(image);
        if (figures[FIGURE_BYTES])
            log_info("native: the memory of %s is compressed: %" PRIu64 " of %" PRIu64 " KiB", image->id,
                     figures[FIGURE_BYTES] >> 10, figures[FIGURE_RAW] >> 10);
        (void)!native_reach(native, NATIVE_AT_COMPRESS_END, &why);
    }
    leave(image);
    look(native);
}

static void asked(void *context, uint8_t step)
{
    struct kept_image *image = context;
    struct err err;

    if (step != STEP_NAME || has_zpages(image->fd))
        (void)err_set(&err, ERR_INTERNAL, "the process that compresses does not keep to its steps");
    else if (!native_reach(image->native, NATIVE_AT_COMPRESS_NAME, &err))
        ;
    else if (renameat(image->fd, ZPAGES_NEW, image->fd, ZPAGES) < 0)
        (void)err_sys(&err, "name the compressed pages");
    else {
        image->is_whole = true;
        helper_go(image->helper);
        return;
    }
    helper_cancel(take_ptr(&image->helper));
    compressed(image, NULL, &err);
}

static struct helper *start_helper(struct kept_image *image, bool expands,
                                   void (*ended)(void *context, const uint64_t figures[HELPER_FIGURES],
                                                 const struct err *err),
                                   struct err *err)
{
    const struct helper_job job = { .work = expands ? expand_work : compress_work,
                                    .asked = expands ? NULL : asked,
                                    .ended = ended,
                                    .context = image,
                                    .dirs = { { image->fd, HELPER_CHANGE } },
                                    .dir_count = 1,
                                    .patience_ms = expands ? LIMIT_DUMP_MS : COMPRESS_MS };

    return helper_start(image->native->helpers, &job, err);
}

static void begin(struct kept_image *image)
{
    struct err err;

    if (open_image(image, &err) && native_reach(image->native, NATIVE_AT_COMPRESS_BEGIN, &err))
        image->helper = start_helper(image, false, compressed, &err);
    if (image->helper) {
        image->native->compress.first = image;
        return;
    }
    fd_close(&image->fd);
    image->due_ms = UINT64_MAX;
    if (err.sys == ENOENT) /* a snapshot of files only */
        return;
    image->due_ms = clock_mono_ms() + FAILED_MS;
    log_warn("native: the memory of %s is not compressed; next attempt in %d minutes: %s", image->id, FAILED_MS / 60000,
             err_text(&err));
}

/* Begins with the one that is due for longest, if none is under way; else looks again later. */
static void look(struct native *native)
{
    struct compress *compress = &native->compress;
    struct kept_image *image, *next;
    uint64_t now_ms = clock_mono_ms();

    while (!compress->first && !native->is_stopping) {
        next = NULL;
        for (size_t i = 0; (image = map_next(&compress->images, &i));)
            if (!image->users && image->due_ms != UINT64_MAX && (!next || image->due_ms < next->due_ms))
                next = image;
        if (!next)
            return;
        if (next->due_ms > now_ms) {
            look_at(native, next->due_ms);
            return;
        }
        begin(next);
    }
}

void compress_open(struct native *native, uint64_t after_ms)
{
    map_init(&native->compress.images);
    native->compress.after_ms = after_ms;
}

static void end_waits(struct kept_image *image, const struct err *err)
{
    for (struct image_wait *wait; (wait = image->waits);) {
        image_fn *done = wait->done;
        void *context = wait->context;
        image->waits = wait->next;
        free(wait);
        done(context, err);
    }
}

void compress_close(struct native *native)
{
    struct kept_image *image;

    timer_clear(&native->compress.timer);
    for (size_t i = 0; (image = map_next(&native->compress.images, &i));) {
        leave(image);
        image_free(image); /* restores have ended before */
    }
    map_done(&native->compress.images);
}

static struct kept_image *find_or_add(struct native *native, const char *id)
{
    struct kept_image *image = map_get(&native->compress.images, str_from(id));

    if (image)
        return image;
    image = NEW(struct kept_image);
    *image = (struct kept_image){ .native = native, .due_ms = UINT64_MAX, .fd = -1 };
    (void)snprintf(image->id, sizeof image->id, "%s", id);
    (void)map_put(&native->compress.images, str_from(image->id), image);
    return image;
}

void compress_note(struct native *native, const char *id)
{
    touch(find_or_add(native, id));
}

void compress_forget(struct native *native, const char *id)
{
    struct kept_image *image = map_remove(&native->compress.images, str_from(id));
    struct err err;

    if (!image)
        return;
    leave(image);
    image->is_gone = true;
    (void)err_set(&err, ERR_NOT_FOUND, "it was removed while it was read");
    image->users++; /* a waiter may let go of it */
    end_waits(image, &err);
    if (--image->users == 0)
        image_free(image);
    look(native);
}

bool compress_is_done(const struct native *native, const char *id)
{
    const struct kept_image *image = map_get(&native->compress.images, str_from(id));

    return !image || (!image->users && !image->helper && image->due_ms == UINT64_MAX);
}

/* ---- for a restore ---- */

struct kept_image *image_hold(struct native *native, const char *id)
{
    struct kept_image *image = find_or_add(native, id);

    image->users++;
    if (native->compress.first == image) {
        leave(image);
        look(native);
    }
    return image;
}

bool image_is_whole(struct kept_image *image)
{
    struct err err;
    bool whole = image->is_whole;

    if (whole || image->helper)
        return whole;
    if (open_image(image, &err))
        whole = !has_zpages(image->fd);
    fd_close(&image->fd);
    return whole; /* if it cannot be opened, image_expand() says so */
}

static void expanded(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct kept_image *image = context;

    (void)figures;
    image->helper = NULL;
    image->is_whole = !err;
    leave(image);
    image->users++;
    end_waits(image, err);
    image_release(image, NULL);
}

bool image_expand(struct kept_image *image, image_fn *done, void *context, struct err *err)
{
    if (!image->helper) {
        if (!open_image(image, err))
            return false;
        image->helper = start_helper(image, true, expanded, err);
        if (!image->helper) {
            fd_close(&image->fd);
            return false;
        }
    }
    struct image_wait *wait = NEW(struct image_wait);
    *wait = (struct image_wait){ .next = image->waits, .done = done, .context = context };
    image->waits = wait;
    return true;
}

void image_release(struct kept_image *image, void *context)
{
    if (!image)
        return;
    for (struct image_wait **at = &image->waits, *wait; (wait = *at);) {
        if (wait->context == context) {
            *at = wait->next;
            free(wait);
        } else {
            at = &wait->next;
        }
    }
    if (!image->waits && image->helper)
        leave(image); /* nobody waits for it: what it has made is swept */
    if (--image->users)
        return;
    if (image->is_gone)
        image_free(image);
    else
        touch(image);
}
