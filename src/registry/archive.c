/*
 * An image from an archive, which may be compressed: one of `docker save`, or a tar of an OCI layout. What `docker save` of
 * today writes is both, and is read as the first.
 *
 * manifest.json may come last in it, so that it is read several times: for manifest.json and index.json, for the documents that
 * an index leads to, for the configuration and the sizes of layers, for the layers that are wanted. A layer that is a link to
 * another one is looked for under the name that it leads to, by reading once more. Layers are copied to files without a name.
 * Of `docker save` the configuration has their digests, and who unpacks one checks it; of a layout they are checked here, too.
 *
 * Whoever has uploaded an archive has chosen all of its bytes. Names in it are only compared, never opened. Few bytes may unpack
 * to many, and links may want many readings: both have a limit, and after each piece is a look whether anybody still waits.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "registry/digest.h"
#include "registry/source.h"
#include "wire/tar.h"
#include "wire/unzip.h"

enum {
    READ_BYTES = 256 * 1024,
    LINKS_MOST = 8, /* one after the other */
};
#define ARCHIVE_BYTES (2 * LIMIT_UNPACKED_BYTES) /* unpacked: other images may be in it, too */

/* A file that is looked for in the archive. */
struct sought {
    struct str name;
    bool is_wanted;   /* its content, in this reading */
    bool is_found;    /* in this reading */
    bool is_complete; /* found for good */
    uint64_t size;
    int fd; /* where its content goes; -1: to `text` */
    struct buf *text;
    uint64_t written;
    struct sought *also; /* another one of the same name, which gets the same data */
};

struct archive {
    const struct fetch_config *config;
    int fd;
    struct sought list[LIMIT_IMAGE_LAYERS + 1]; /* the layers, and then the configuration */
    uint32_t count;
    struct sought *now; /* those whose data comes */
    uint32_t entries;
    uint32_t readings; /* so far… */
    uint64_t bytes;    /* …and how many bytes were unpacked in all of them */
    struct str top;    /* of a layout: the directory that it is in, with a "/"; empty: it is not in one */
    struct manifest manifest;
    bool is_layout; /* the manifest's digests are those of the files */
    struct image image;
    struct blob_promise promise;
};

/* ---- names ---- */

/* Where a link leads, as a name in the archive: without "." and "..", which cannot lead out of it. */
static struct str clean(struct arena *arena, struct str dir, struct str path)
{
    struct buf out = buf_make(arena, 2 * LIMIT_TAR_NAME_BYTES);
    struct str both[] = { str_starts(path, STR("/")) ? STR("") : dir, path };

    for (size_t i = 0; i < COUNT_OF(both); i++) {
        struct str part;
        for (struct str rest = both[i]; rest.len && str_cut(&rest, '/', &part);) {
            if (part.len == 0 || str_eq(part, STR(".")))
                continue;
            if (str_eq(part, STR(".."))) {
                const char *slash = out.len ? memrchr(out.data, '/', out.len) : NULL;
                out.len = slash ? (size_t)(slash - out.data) : 0;
                continue;
            }
            if (out.len)
                buf_add_char(&out, '/');
            buf_add(&out, part);
        }
    }
    return out.overflowed ? STR("") : buf_str(&out);
}

static struct str dir_of(struct str name)
{
    const char *slash = name.len ? memrchr(name.at, '/', name.len) : NULL;

    return slash ? str_of(name.at, (size_t)(slash - name.at)) : STR("");
}

/* ---- one reading ---- */

static bool begin_file(struct archive *archive, struct sought *sought, const struct tar_entry *entry, struct err *err)
{
    /* Of a layer that is copied the size is known, and there is room for it. */
    if (sought->fd >= 0 && sought->size != entry->size)
        return err_set(err, ERR_INVALID, "the archive has two files of one name that are not the same: it is damaged");
    sought->is_found = true;
    sought->size = entry->size;
    sought->written = 0;
    if (sought->is_wanted) {
        sought->also = archive->now;
        archive->now = sought;
    }
    return true;
}

/* A link: the file is sought under another name, from the next reading on. */
static void follow(struct archive *archive, struct sought *sought, const struct tar_entry *entry, struct str name)
{
    struct str dir = entry->type == TAR_SYMLINK ? dir_of(name) : STR("");

    sought->name = clean(archive->config->arena, dir, entry->link);
}

/* `tar c layout/` puts a directory before all names. */
static void look_for_top(struct archive *archive, struct str name)
{
    const char *slash = name.len ? memchr(name.at, '/', name.len) : NULL;

    if (slash && !archive->top.len && str_eq(str_of(slash, name.len - (size_t)(slash - name.at)), STR("/oci-layout")))
        archive->top = arena_copy(archive->config->arena, str_of(name.at, (size_t)(slash - name.at) + 1));
}

static bool take_entry(struct archive *archive, const struct tar_entry *entry, struct err *err)
{
    struct str name = entry->name;

    archive->now = NULL;
    if (++archive->entries > LIMIT_ARCHIVE_ENTRIES)
        return err_set(err, ERR_LIMIT, "the archive has more than %d files", LIMIT_ARCHIVE_ENTRIES);
    while (str_skip(&name, STR("./")) || str_skip(&name, STR("/")))
        ;
    look_for_top(archive, name);
    for (uint32_t i = 0; i < archive->count; i++) {
        struct sought *sought = &archive->list[i];
        if (sought->is_complete || sought->is_found || !str_eq(sought->name, name))
            continue;
        if (entry->type == TAR_FILE && !begin_file(archive, sought, entry, err))
            return false;
        if (entry->type == TAR_SYMLINK || entry->type == TAR_HARD_LINK)
            follow(archive, sought, entry, name);
    }
    return true;
}

static bool write_data(struct sought *to, struct str data, struct err *err)
{
    to->written += data.len;
    if (to->fd >= 0)
        return fd_write_all(to->fd, data, err);
    buf_add(to->text, data);
    return !to->text->overflowed ||
           err_set(err, ERR_LIMIT, "the archive has a document of more than %d bytes", LIMIT_REGISTRY_JSON_BYTES);
}

static bool take_data(struct archive *archive, struct str data, struct err *err)
{
    for (struct sought *to = archive->now; to; to = to->also)
        if (!write_data(to, data, err))
            return false;
    return true;
}

static bool take_bytes(struct archive *archive, struct tar *tar, struct str bytes, bool *out_over, struct err *err)
{
    const struct tar_entry *entry;
    enum tar_event event = TAR_DATA;
    struct str data;

    while (event != TAR_MORE && event != TAR_END) {
        if (!tar_read(tar, &bytes, &event, &entry, &data, err))
            return false;
        if ((event == TAR_ENTRY && !take_entry(archive, entry, err)) ||
            (event == TAR_DATA && !take_data(archive, data, err)))
            return false;
    }
    *out_over = event == TAR_END;
    return true;
}

/* Is there a reason to go on? */
static bool count_bytes(struct archive *archive, size_t len, struct err *err)
{
    const struct web *web = archive->config->web;

    archive->bytes += len;
    if (archive->bytes > LIMIT_ARCHIVE_READ_BYTES)
        return err_set(err, ERR_LIMIT,
                       "the archive is too large: more than %llu MB were unpacked to find the image in it",
                       (unsigned long long)(LIMIT_ARCHIVE_READ_BYTES >> 20));
    return web->wait(web->context, 0, err);
}

static bool unzip_bytes(struct archive *archive, struct unzip *unzip, struct tar *tar, struct str bytes, char *room,
                        bool *out_over, struct err *err)
{
    size_t len;

    for (;;) {
        if (!unzip_read(unzip, &bytes, room, READ_BYTES, &len, err) || !count_bytes(archive, len, err))
            return false;
        if (len == 0 && bytes.len == 0)
            return true;
        if (len && !take_bytes(archive, tar, str_of(room, len), out_over, err))
            return false;
        if (*out_over)
            return true;
    }
}

static bool read_through(struct archive *archive, struct unzip *unzip, struct tar *tar, struct err *err)
{
    auto_free char *from = mem_new(READ_BYTES);
    auto_free char *room = mem_new(READ_BYTES);
    bool is_over = false;
    off_t at = 0;

    while (!is_over) {
        ssize_t n = pread(archive->fd, from, READ_BYTES, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, "read the archive");
        if (n == 0)
            return unzip_finish(unzip, err) && tar_finish(tar, err);
        at += n;
        if (!unzip_bytes(archive, unzip, tar, str_of(from, (size_t)n), room, &is_over, err))
            return false;
    }
    return true;
}

static bool read_once(struct archive *archive, struct err *err)
{
    if (++archive->readings > LIMIT_ARCHIVE_READINGS)
        return err_set(err, ERR_LIMIT,
                       "the archive was read %d times, and not all of the image was found: too many of its links lead "
                       "to one another; write it with `docker save`",
                       LIMIT_ARCHIVE_READINGS);
    struct unzip *unzip = unzip_new(ARCHIVE_BYTES);
    struct tar *tar = tar_new();

    archive->now = NULL;
    archive->entries = 0;
    for (uint32_t i = 0; i < archive->count; i++)
        archive->list[i].is_found = false;
    bool fine = read_through(archive, unzip, tar, err);
    tar_free(tar);
    unzip_free(unzip);
    return fine;
}

static bool all_are_complete(struct archive *archive)
{
    bool all = true;

    for (uint32_t i = 0; i < archive->count; i++) {
        struct sought *sought = &archive->list[i];
        sought->is_complete |= sought->is_found && (!sought->is_wanted || sought->written == sought->size);
        all &= sought->is_complete;
    }
    return all;
}

/* Until all that is sought was found. */
static bool read_for_all(struct archive *archive, struct err *err)
{
    for (uint32_t i = 0; i <= LINKS_MOST; i++) {
        struct str names[COUNT_OF(archive->list)];
        bool has_changed = false;
        for (uint32_t at = 0; at < archive->count; at++)
            names[at] = archive->list[at].name;
        if (!read_once(archive, err))
            return false;
        for (uint32_t at = 0; at < archive->count; at++)
            has_changed |= archive->list[at].is_found || !str_eq(names[at], archive->list[at].name);
        if (all_are_complete(archive))
            return true;
        if (!has_changed)
            break;
    }
    return err_set(err, ERR_INVALID, "the archive has not all files that its manifest names: it is damaged");
}

/* ---- documents ---- */

static bool read_text(struct archive *archive, struct str name, struct str *out, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, LIMIT_REGISTRY_JSON_BYTES);

    archive->list[archive->count++] = (struct sought){ .name = name, .is_wanted = true, .fd = -1, .text = &text };
    bool fine = read_for_all(archive, err);
    archive->count--;
    if (fine)
        *out = arena_copy(archive->config->arena, buf_str(&text));
    return fine;
}

/* The configuration, and how large the layers are: those that are sought. */
static bool describe(struct archive *archive, struct str config_name, struct str *out_config, struct err *err)
{
    struct manifest *manifest = &archive->manifest;

    if (!read_text(archive, config_name, out_config, err))
        return false;
    manifest->layer_count = archive->count;
    manifest->size = 0;
    for (uint32_t i = 0; i < archive->count; i++) {
        if (archive->is_layout && manifest->layers[i].size != archive->list[i].size)
            return err_set(err, ERR_INVALID, "the file for sha256:%.12s… has another size than its manifest says",
                           manifest->layers[i].hex);
        manifest->layers[i].size = archive->list[i].size;
        manifest->size += archive->list[i].size;
        if (manifest->size > LIMIT_UNPACKED_BYTES)
            return err_set(err, ERR_LIMIT, "image size exceeds maximum filesystem size: more than %llu MB",
                           (unsigned long long)(LIMIT_UNPACKED_BYTES >> 20));
    }
    return true;
}

/* ---- docker save ---- */

static bool describe_saved(struct archive *archive, struct str list, struct str name, struct err *err)
{
    struct arena *arena = archive->config->arena;
    struct pull_done *done = &archive->image.done;
    struct saved_image saved;
    struct str config_json;

    if (!saved_image_choose(list, name, arena, &saved, err))
        return false;
    for (uint32_t i = 0; i < saved.layer_count; i++)
        archive->list[archive->count++] = (struct sought){ .name = clean(arena, STR(""), saved.layers[i]), .fd = -1 };
    archive->manifest.layers = ARENA_ARRAY(arena, struct descriptor, saved.layer_count);
    if (!describe(archive, clean(arena, STR(""), saved.config), &config_json, err))
        return false;
    sha256_hex(config_json, done->reference_hex);
    memcpy(done->digest_hex, done->reference_hex, sizeof done->digest_hex);
    return image_describe(archive->config, &archive->manifest, config_json, &archive->image, err);
}

/* ---- a layout ---- */

static struct str blob_name(const struct archive *archive, const struct descriptor *what)
{
    return arena_format(archive->config->arena, "%.*sblobs/sha256/%s", STR_ARG(archive->top), what->hex);
}

static bool check_text(struct str text, const struct descriptor *what, struct err *err)
{
    char hex[DIGEST_HEX_BYTES];

    sha256_hex(text, hex);
    return strcmp(hex, what->hex) == 0 ||
           err_set(err, ERR_INVALID, "the file for sha256:%.12s… has another digest: it is damaged", what->hex);
}

static bool find_manifest(struct archive *archive, struct str json, struct str name, struct err *err)
{
    const struct fetch_config *config = archive->config;
    struct pull_done *done = &archive->image.done;
    enum document kind = DOCUMENT_INDEX;
    struct descriptor chosen;

    for (int depth = 0; kind == DOCUMENT_INDEX && depth < LAYOUT_DEPTH; depth++) {
        if ((depth == 0 && !index_check_names(json, name, config->arena, err)) ||
            !index_choose(json, config->ask->architecture, depth ? STR("") : name, config->arena, &chosen, &kind,
                          err) ||
            !read_text(archive, blob_name(archive, &chosen), &json, err) || !check_text(json, &chosen, err))
            return false;
        memcpy(depth ? done->digest_hex : done->reference_hex, chosen.hex, DIGEST_HEX_BYTES);
        kind = document_kind(STR(""), json);
    }
    if (!done->digest_hex[0])
        memcpy(done->digest_hex, done->reference_hex, DIGEST_HEX_BYTES);
    if (kind != DOCUMENT_MANIFEST)
        return err_set(err, ERR_INVALID, "the layout has no manifest of an image");
    return oci_manifest_parse(json, config->arena, &archive->manifest, err);
}

static bool describe_layout(struct archive *archive, struct str index, struct str name, struct err *err)
{
    struct manifest *manifest = &archive->manifest;
    struct str config_json;

    if (!find_manifest(archive, index, name, err))
        return false;
    archive->is_layout = true;
    for (uint32_t i = 0; i < manifest->layer_count; i++)
        archive->list[archive->count++] = (struct sought){ .name = blob_name(archive, &manifest->layers[i]), .fd = -1 };
    return describe(archive, blob_name(archive, &manifest->config), &config_json, err) &&
           check_text(config_json, &manifest->config, err) &&
           image_describe(archive->config, manifest, config_json, &archive->image, err);
}

/* ---- layers ---- */

static bool copy_layers(void *context, const bool *have, struct err *err)
{
    struct archive *archive = context;
    uint64_t bytes = 0;
    bool was_said = false;

    for (uint32_t i = 0; i < archive->count; i++)
        bytes += have[i] ? 0 : archive->list[i].size;
    while (!blobs_make_room(archive->config->blobs, bytes, &archive->promise, err))
        if (!image_wait_for_room(archive->config, &was_said, err))
            return false;
    if (!blob_promise_use(archive->config->blobs, &archive->promise, bytes, err)) /* all of it is here */
        return false;
    for (uint32_t i = 0; i < archive->count; i++) {
        struct sought *sought = &archive->list[i];
        sought->is_wanted = !have[i];
        sought->is_complete = have[i];
        if (!have[i] && (sought->fd = blobs_make_file(archive->config->blobs, err)) < 0)
            return false;
    }
    return all_are_complete(archive) || read_for_all(archive, err);
}

static bool open_layer(void *context, uint32_t thread, uint32_t number, int *out_fd, struct err *err)
{
    struct archive *archive = context;
    const struct web *web = &archive->config->web[thread];

    *out_fd = take_fd(&archive->list[number].fd);
    if (archive->is_layout && !blob_check(*out_fd, &archive->manifest.layers[number], web, err))
        return false;
    return lseek(*out_fd, 0, SEEK_SET) == 0 || err_sys(err, "read a layer from its beginning");
}

/* What kind of archive it is: *out_list of `docker save`, *out_index of a layout; at least one is not empty. */
static bool look(struct archive *archive, struct str *out_list, struct str *out_index, struct err *err)
{
    auto_buf struct buf list = buf_make(NULL, LIMIT_REGISTRY_JSON_BYTES);
    auto_buf struct buf index = buf_make(NULL, LIMIT_REGISTRY_JSON_BYTES);
    struct arena *arena = archive->config->arena;

    archive->list[0] = (struct sought){ .name = STR("manifest.json"), .is_wanted = true, .fd = -1, .text = &list };
    archive->list[1] = (struct sought){ .name = STR("index.json"), .is_wanted = true, .fd = -1, .text = &index };
    archive->count = 2;
    bool fine = read_once(archive, err);
    archive->count = 0;
    if (archive->entries == 0 && (fine || err->kind == ERR_INVALID))
        return err_set(err, ERR_INVALID,
                       "this is no archive of an image: one of `docker save` or a tar of an OCI layout is needed");
    if (!fine)
        return false;
    *out_list = arena_copy(arena, buf_str(&list));
    *out_index = arena_copy(arena, buf_str(&index));
    if (out_list->len || out_index->len)
        archive->top = STR("");
    else if (archive->top.len &&
             !read_text(archive, arena_format(arena, "%.*sindex.json", STR_ARG(archive->top)), out_index, err))
        return false;
    return out_list->len || out_index->len ||
           err_set(err, ERR_INVALID,
                   "the archive is of no image: it has neither manifest.json, as `docker save` writes it, nor the "
                   "index.json of an OCI layout");
}

static bool fetch(struct archive *archive, struct str name, struct err *err)
{
    const struct fetch_config *config = archive->config;
    struct str list, index;

    if (!look(archive, &list, &index, err) ||
        !(list.len ? describe_saved(archive, list, name, err) : describe_layout(archive, index, name, err)))
        return false;
    if (config->ask->only_digest)
        return true;
    archive->image.prepare = copy_layers;
    archive->image.open_layer = open_layer;
    archive->image.context = archive;
    return image_give(config, &archive->image, err);
}

bool archive_read(const struct fetch_config *config, int fd, struct str name, struct pull_done *out, struct err *err)
{
    auto_free struct archive *archive = NEW(struct archive);

    archive->config = config;
    archive->fd = fd;
    archive->promise.fd = -1;
    bool fine = fetch(archive, name, err);
    blob_promise_done(&archive->promise);
    if (fine)
        *out = archive->image.done;
    for (uint32_t i = 0; i < archive->count; i++)
        fd_close(&archive->list[i].fd);
    return fine;
}

bool archive_fetch(const struct fetch_config *config, const struct image_source *source, struct pull_done *out,
                   struct err *err)
{
    auto_close int fd = open(source->path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_set(err, ERR_UNAVAILABLE,
                       "the archive %.60s of this image cannot be opened: it must be there when the server starts, and "
                       "readable",
                       source->path);
    return archive_read(config, fd, str_from(source->name), out, err);
}
