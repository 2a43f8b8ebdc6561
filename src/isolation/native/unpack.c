/*
 * How a layer of an image is made. Keeper makes snapshots/<chain>.new with upper/ and work/, and mounts an overlay of the layers
 * below and upper/ that shows nowhere. A helper, which holds that mount, does the rest:
 *
 *   take     the archive's descriptor, from a socket whose other end keeper has offered to front
 *   unpack   into the mount (untar.h), and compares the archive's sum
 *   write    syncfs, then the manifest
 *   name     keeper renames <chain>.new/upper to layers/<chain> and <chain>.new to <chain>, in one turn of its loop, because
 *            the sweep of layers must see the manifest when it sees the layer
 *   sync     of the two directories, and the layer is there
 *
 * The manifest is also written first, before anything is unpacked: from then on the sweep keeps the layers below.
 *
 * If the layer is there already, the helper takes the archive all the same, and only compares its sum: who knows the sum of a
 * layer and does not have the archive must not get at its files. Then it writes the manifest, if that is not there (somebody has
 * dropped it, and another image needs the layer). Two that want the same one at once: the second waits, and then finds it there.
 *
 * Whatever fails or dies before the end: what was made goes to the trash. If keeper dies, the next one finds <chain>.new, or a
 * layer that nothing names, and removes either (snapshots_open(), the sweep).
 */
#include "isolation/native/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/remove.h"
#include "isolation/native/box.h"
#include "isolation/native/helper.h"
#include "isolation/native/manifest.h"
#include "isolation/native/room.h"
#include "isolation/native/untar.h"

#define BYTES_MARK "trusted.cloister.bytes" /* on the layer: its size, for a new manifest */

enum {
    DRAFT_BYTES = LAYER_ID_BYTES + 8,
    ARCHIVE_S = 30, /* until front has given it */
};
enum step { STEP_NAME };

struct unpacking {
    struct native *native;
    struct unpacking *next; /* in the order in which they came */
    struct helper *helper;  /* NULL: it waits */
    struct unpack_want want;
    struct manifest manifest;
    char draft[DRAFT_BYTES]; /* <chain>.new */
    int socket_fd;           /* the helper's: the archive comes from there */
    int draft_fd, root_fd;
    bool has_draft;
    bool is_there;     /* the layer is, and… */
    bool has_manifest; /* …its manifest too: without a draft */
    bool is_named;
    driver_offer_fn *offer;
    driver_kept_fn *done;
    void *context;
};

/* ---- the helper ---- */

static bool take_archive(int socket_fd, int *out_fd, struct err *err)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    struct iovec bytes = { &byte, 1 };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    struct stat st;

    ssize_t n = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *head = n == 1 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!head || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof(int)))
        return err_set(err, ERR_UNAVAILABLE, "the archive of a layer did not come");
    memcpy(out_fd, CMSG_DATA(head), sizeof *out_fd);
    if (fstat(*out_fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "the archive of a layer is no file");
    return true;
}

static bool read_archive(struct unpacking *unpacking, struct untar *untar, struct err *err)
{
    auto_close int archive_fd = -1;

    *untar = (struct untar){ .root_fd = unpacking->root_fd, .most_bytes = unpacking->want.most_bytes };
    memcpy(untar->diff, unpacking->want.diff, sizeof untar->diff);
    if (!take_archive(unpacking->socket_fd, &archive_fd, err))
        return false;
    untar->archive_fd = archive_fd;
    return unpacking->is_there ? untar_check(untar, err) : untar_layer(untar, err);
}

static bool unpack_files(struct unpacking *unpacking, struct err *err)
{
    struct untar untar;
    char bytes[24];

    if (!read_archive(unpacking, &untar, err))
        return false;
    if (unpacking->is_there)
        return true;
    fd_close(&unpacking->root_fd); /* keeper's is closed, so the overlay is gone */
    if (!remove_tree(unpacking->draft_fd, "work", err))
        return false;
    unpacking->manifest.layer_bytes = untar.bytes + untar.entries * LIMIT_SNAPSHOT_ENTRY_BYTES;
    auto_close int upper_fd = openat(unpacking->draft_fd, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int len = snprintf(bytes, sizeof bytes, "%" PRIu64, unpacking->manifest.layer_bytes);
    if (upper_fd < 0 || fsetxattr(upper_fd, BYTES_MARK, bytes, (size_t)len, 0) < 0)
        return err_sys(err, "mark a layer");
    /* Contents first, then names: after a power cut no name may lead to half a layer. */
    return syncfs(unpacking->draft_fd) == 0 || err_sys(err, "sync a layer");
}

static bool make_layer(struct helper_voice *voice, void *context, struct err *err)
{
    struct unpacking *unpacking = context;

    if (!unpacking->has_manifest && !manifest_write(unpacking->draft_fd, &unpacking->manifest, err))
        return false;
    if (!unpack_files(unpacking, err) ||
        (!unpacking->is_there && !manifest_write(unpacking->draft_fd, &unpacking->manifest, err)))
        return false;
    helper_figure(voice, 0, unpacking->manifest.layer_bytes);
    if (!helper_ask(voice, STEP_NAME, err))
        return false;
    return unpacking->has_manifest ||
           (fsync(unpacking->native->layers_fd) == 0 && fsync(unpacking->native->snapshots_fd) == 0) ||
           err_sys(err, "sync the name of a layer");
}

/* ---- the end ---- */

static void start_waiting(struct native *native);

static void throw_away(struct native *native, int dir_fd, const char *name)
{
    struct err err;

    if (!trash_add(native->trash, dir_fd, name, &err))
        log_warn("native: what is left of an image's layer is removed at the next start of the server: %s",
                 err_text(&err));
}

static void finish(struct unpacking *unpacking, const struct kept *kept, const struct err *err)
{
    struct native *native = unpacking->native;
    struct unpacking **at = &native->unpackings;
    driver_kept_fn *done = unpacking->done;
    void *context = unpacking->context;

    while (*at != unpacking)
        at = &(*at)->next;
    *at = unpacking->next;
    helper_cancel(unpacking->helper);
    fd_close(&unpacking->socket_fd);
    fd_close(&unpacking->draft_fd);
    fd_close(&unpacking->root_fd);
    free(unpacking);
    done(context, kept, err);
    start_waiting(native);
}

static void fail(struct unpacking *unpacking, const struct err *why)
{
    struct native *native = unpacking->native;
    struct err copy = *why; /* it may be the helper's */

    helper_cancel(take_ptr(&unpacking->helper)); /* before its directory goes */
    if (unpacking->is_named && !unpacking->is_there)
        throw_away(native, native->layers_fd, unpacking->want.chain);
    if (unpacking->has_draft)
        throw_away(native, native->snapshots_fd, unpacking->is_named ? unpacking->want.chain : unpacking->draft);
    finish(unpacking, NULL, &copy);
}

static void succeed(struct unpacking *unpacking, uint64_t layer_bytes)
{
    const struct manifest *manifest = &unpacking->manifest;
    struct kept kept = { .layer_count = manifest->layer_count, .layer_bytes = layer_bytes };

    memcpy(kept.id, unpacking->want.chain, sizeof kept.id);
    memcpy(kept.layers, manifest->layers, sizeof kept.layers);
    finish(unpacking, &kept, NULL);
}

static void ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct unpacking *unpacking = context;
    struct err why;

    unpacking->helper = NULL;
    if (err || !native_reach(unpacking->native, NATIVE_AT_UNPACK_END, &why) ||
        (!unpacking->is_named && !err_set(&why, ERR_INTERNAL, "a layer was not finished")))
        fail(unpacking, err ? err : &why);
    else
        succeed(unpacking, figures[0]);
}

/* ---- names ---- */

static bool has_dir(int dir_fd, const char *name)
{
    struct stat st;

    return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static bool name_it(struct unpacking *unpacking, struct err *err)
{
    struct native *native = unpacking->native;
    const char *chain = unpacking->want.chain;

    for (uint32_t i = 0; i + !unpacking->is_there < unpacking->manifest.layer_count; i++)
        if (!has_dir(native->layers_fd, unpacking->manifest.layers[i]))
            return err_set(err, ERR_CONFLICT, "a layer below was removed meanwhile: try again");
    if (unpacking->has_manifest) {
        unpacking->is_named = has_dir(native->snapshots_fd, chain);
        return unpacking->is_named || err_set(err, ERR_CONFLICT, "a layer was removed meanwhile: try again");
    }
    if (!unpacking->is_there && renameat2(unpacking->draft_fd, "upper", native->layers_fd, chain, RENAME_NOREPLACE) < 0)
        return err_sys(err, "name a layer");
    if (!native_reach(native, NATIVE_AT_UNPACK_LAYER, err) ||
        (renameat2(native->snapshots_fd, unpacking->draft, native->snapshots_fd, chain, RENAME_NOREPLACE) < 0 &&
         !err_sys(err, "name the manifest of a layer"))) {
        if (!unpacking->is_there)
            throw_away(native, native->layers_fd, chain);
        return false;
    }
    unpacking->is_named = true;
    return native_reach(native, NATIVE_AT_UNPACK_NAME, err);
}

static void asked(void *context, uint8_t step)
{
    struct unpacking *unpacking = context;
    struct err err;
    bool fine = step == STEP_NAME && !unpacking->is_named
                    ? native_reach(unpacking->native, NATIVE_AT_UNPACK_WRITE, &err) && name_it(unpacking, &err)
                    : err_set(&err, ERR_INTERNAL, "the process that unpacks a layer does not keep to its steps");

    if (fine)
        helper_go(unpacking->helper);
    else
        fail(unpacking, &err);
}

/* ---- the beginning ---- */

/* SHA-256 of "sha256:BELOW sha256:DIFF"; the lowest layer's is its own sum. */
static bool check_chain(const struct unpack_want *want, struct err *err)
{
    char text[2 * (LAYER_ID_BYTES + 8)], hex[2 * EVP_MAX_MD_SIZE + 1];
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned len;

    if (want->layer_count) {
        int size = snprintf(text, sizeof text, "sha256:%s sha256:%s", want->layers[want->layer_count - 1], want->diff);
        if (EVP_Digest(text, (size_t)size, sum, &len, EVP_sha256(), NULL) != 1)
            return err_set(err, ERR_INTERNAL, "cannot compute a SHA-256");
        (void)hex_text(str_of(sum, len), hex);
    }
    if (strcmp(want->layer_count ? hex : want->diff, want->chain) != 0)
        return err_set(err, ERR_INVALID, "the id of a layer is not its chain id");
    return true;
}

static void plan_manifest(struct unpacking *unpacking)
{
    struct manifest *manifest = &unpacking->manifest;
    const struct unpack_want *want = &unpacking->want;

    *manifest = (struct manifest){ 0 };
    memcpy(manifest->layers, want->layers, sizeof manifest->layers);
    memcpy(manifest->layers[want->layer_count], want->chain, sizeof want->chain);
    manifest->layer_count = want->layer_count + 1;
}

/* A layer that is there already: its size is written on it. */
static void read_size(struct unpacking *unpacking)
{
    auto_close int fd =
        openat(unpacking->native->layers_fd, unpacking->want.chain, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char text[24];
    ssize_t len = fd < 0 ? -1 : fgetxattr(fd, BYTES_MARK, text, sizeof text);

    if (len < 0 || !str_to_u64(str_of(text, (size_t)len), INT64_MAX, &unpacking->manifest.layer_bytes))
        unpacking->manifest.layer_bytes = 0;
}

/* The root looks as it does below, unless the archive says something about it. */
static bool make_upper(struct unpacking *unpacking, struct err *err)
{
    const struct unpack_want *want = &unpacking->want;
    struct stat st = { .st_mode = 0755 };

    if (want->layer_count) {
        const char *below = want->layers[want->layer_count - 1];
        if (fstatat(unpacking->native->layers_fd, below, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return err_sys(err, "look at layer %.16s", below);
    }
    if (mkdirat(unpacking->draft_fd, "upper", 0755) < 0 || mkdirat(unpacking->draft_fd, "work", 0700) < 0)
        return err_sys(err, "make the directories of a layer");
    auto_close int fd = openat(unpacking->draft_fd, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const struct timespec times[2] = { st.st_mtim, st.st_mtim };
    if (fd < 0 || fchown(fd, st.st_uid, st.st_gid) < 0 || fchmod(fd, st.st_mode & 07777) < 0 || futimens(fd, times) < 0)
        return err_sys(err, "make the root of a layer");
    return true;
}

static bool open_root(struct unpacking *unpacking, struct err *err)
{
    const struct unpack_want *want = &unpacking->want;
    struct native *native = unpacking->native;
    auto_free struct plan *plan = NULL;

    if (!make_upper(unpacking, err))
        return false;
    if (!want->layer_count) {
        unpacking->root_fd = openat(unpacking->draft_fd, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return unpacking->root_fd >= 0 || err_sys(err, "open the root of a layer");
    }
    plan = NEW(struct plan);
    plan->layer_count = want->layer_count;
    memcpy(plan->layers, want->layers, sizeof plan->layers);
    return mounts_unpack(&native->mounts, native->layers_fd, unpacking->draft_fd, plan, &unpacking->root_fd, err);
}

static bool make_draft(struct unpacking *unpacking, struct err *err)
{
    int snapshots_fd = unpacking->native->snapshots_fd;

    if (mkdirat(snapshots_fd, unpacking->draft, 0700) < 0)
        return err_sys(err, "make the directory of a layer");
    unpacking->has_draft = true;
    unpacking->draft_fd = openat(snapshots_fd, unpacking->draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return unpacking->draft_fd >= 0 || err_sys(err, "open the directory of a layer");
}

static bool start_helper(struct unpacking *unpacking, struct err *err)
{
    const struct timeval patience = { .tv_sec = ARCHIVE_S };
    struct native *native = unpacking->native;
    auto_close int front_fd = -1;
    int pair[2];
    struct helper_job job = { .work = make_layer,
                              .asked = asked,
                              .ended = ended,
                              .context = unpacking,
                              .dirs = { { native->layers_fd, HELPER_HOLD }, { native->snapshots_fd, HELPER_HOLD } },
                              .dir_count = 2,
                              .patience_ms = LIMIT_UNPACK_MS };

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a socket for an archive");
    front_fd = pair[0];
    unpacking->socket_fd = pair[1];
    (void)setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience); /* or LIMIT_UNPACK_MS it is */
    job.dirs[job.dir_count++] = (struct helper_dir){ unpacking->socket_fd, HELPER_HOLD };
    if (unpacking->draft_fd >= 0)
        job.dirs[job.dir_count++] = (struct helper_dir){ unpacking->draft_fd, HELPER_CHANGE };
    if (unpacking->root_fd >= 0)
        job.dirs[job.dir_count++] = (struct helper_dir){ unpacking->root_fd, HELPER_CHANGE };
    unpacking->helper = helper_start(native->helpers, &job, err);
    /* The helper's are the last: what the kernel does at the end of a mount, or with what front sends, is not ours. */
    fd_close(&unpacking->root_fd);
    fd_close(&unpacking->socket_fd);
    if (!unpacking->helper)
        return false;
    unpacking->offer(unpacking->context, front_fd);
    return true;
}

/* A small file that was read or written when the layer was made: the one thing that keeper reads itself. */
static bool read_manifest(struct unpacking *unpacking)
{
    auto_close int fd =
        openat(unpacking->native->snapshots_fd, unpacking->want.chain, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct err err;

    return fd >= 0 && manifest_read(fd, &unpacking->manifest, &err);
}

static bool begin(struct unpacking *unpacking, struct err *err)
{
    struct native *native = unpacking->native;

    unpacking->is_there = has_dir(native->layers_fd, unpacking->want.chain);
    unpacking->has_manifest = unpacking->is_there && read_manifest(unpacking);
    if (unpacking->has_manifest)
        return untar_prepare(err) && start_helper(unpacking, err);
    plan_manifest(unpacking);
    if (unpacking->is_there)
        read_size(unpacking);
    return room_check(native->snapshots_fd, err) && untar_prepare(err) && make_draft(unpacking, err) &&
           native_reach(native, NATIVE_AT_UNPACK_DRAFT, err) && (unpacking->is_there || open_root(unpacking, err)) &&
           start_helper(unpacking, err);
}

static bool is_under_way(const struct native *native, const char *chain)
{
    for (const struct unpacking *at = native->unpackings; at; at = at->next)
        if (at->helper && strcmp(at->want.chain, chain) == 0)
            return true;
    return false;
}

/* One at a time: each end leads here again. */
static void start_waiting(struct native *native)
{
    struct unpacking *next = NULL;
    unsigned running = 0;
    struct err err;

    for (struct unpacking *at = native->unpackings; at; at = at->next)
        running += at->helper != NULL;
    for (struct unpacking *at = native->unpackings; at && !next; at = at->next)
        next = at->helper || is_under_way(native, at->want.chain) ? NULL : at;
    if (!next || running >= LIMIT_UNPACKS || native->is_stopping)
        return;
    if (!begin(next, &err))
        fail(next, &err);
}

void native_unpack(struct driver *driver, const struct unpack_want *want, driver_offer_fn *offer, driver_kept_fn *done,
                   void *context)
{
    struct native *native = native_of(driver);
    struct unpacking *unpacking, **at = &native->unpackings;
    struct err err;
    bool fine = want->layer_count < LIMIT_LAYERS
                    ? check_chain(want, &err)
                    : err_set(&err, ERR_LIMIT, "an image may have %d layers here", LIMIT_LAYERS);

    if (!fine) {
        done(context, NULL, &err);
        return;
    }
    unpacking = NEW(struct unpacking);
    *unpacking = (struct unpacking){ .native = native,
                                     .want = *want,
                                     .socket_fd = -1,
                                     .draft_fd = -1,
                                     .root_fd = -1,
                                     .offer = offer,
                                     .done = done,
                                     .context = context };
    (void)snprintf(unpacking->draft, sizeof unpacking->draft, "%s.new", want->chain);
    while (*at)
        at = &(*at)->next;
    *at = unpacking;
    start_waiting(native);
}

void unpackings_close(struct native *native)
{
    struct err err;

    (void)err_set(&err, ERR_UNAVAILABLE, "keeper is stopping");
    while (native->unpackings)
        fail(native->unpackings, &err);
}
