#include "isolation/native/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

enum { FORMAT = 1 };

/* ---- text ---- */

void manifest_print(struct buf *out, const struct manifest *manifest)
{
    buf_format(out, "cloister-snapshot %d\nlayers %" PRIu32 "\n", FORMAT, manifest->layer_count);
    for (uint32_t i = 0; i < manifest->layer_count; i++)
        buf_format(out, "layer %s\n", manifest->layers[i]);
    buf_format(out, "layer-bytes %" PRIu64 "\nimage %d\nimage-bytes %" PRIu64 "\n", manifest->layer_bytes,
               manifest->has_image, manifest->image_bytes);
    buf_format(out, "kernel %s\ncpu %s\nguestd %s\ncriu %s\nend\n", manifest->kernel, manifest->cpu, manifest->guestd,
               manifest->criu);
}

static bool number_line(struct str *text, struct str key, uint64_t max, uint64_t *out)
{
    struct str line;

    return str_cut(text, '\n', &line) && str_skip(&line, key) && str_to_u64(line, max, out);
}

static bool text_line(struct str *text, struct str key, char out[MANIFEST_TEXT_BYTES])
{
    struct str line;

    if (!str_cut(text, '\n', &line) || !str_skip(&line, key) || line.len >= MANIFEST_TEXT_BYTES)
        return false;
    for (size_t i = 0; i < line.len; i++)
        if (line.at[i] < ' ' || line.at[i] > '~')
            return false;
    memcpy(out, line.at, line.len);
    out[line.len] = '\0';
    return true;
}

static bool is_hex(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!char_is_digit(s.at[i]) && (s.at[i] < 'a' || s.at[i] > 'f'))
            return false;
    return s.len == LAYER_ID_BYTES - 1;
}

static bool layer_lines(struct str *text, struct manifest *out)
{
    uint64_t count;
    struct str line;

    if (!number_line(text, STR("layers "), LIMIT_LAYERS, &count) || count == 0)
        return false;
    for (out->layer_count = 0; out->layer_count < count; out->layer_count++) {
        if (!str_cut(text, '\n', &line) || !str_skip(&line, STR("layer ")) || !is_hex(line))
            return false;
        memcpy(out->layers[out->layer_count], line.at, line.len);
    }
    return true;
}

bool manifest_parse(struct str text, struct manifest *out, struct err *err)
{
    struct manifest parsed = { 0 };
    struct str line;
    uint64_t version, has_image;

    if (!str_cut(&text, '\n', &line) || !str_skip(&line, STR("cloister-snapshot ")) ||
        !str_to_u64(line, UINT32_MAX, &version))
        return err_set(err, ERR_INVALID, "the manifest of a snapshot does not parse");
    if (version > FORMAT)
        return err_set(err, ERR_UNAVAILABLE, "a newer Cloister wrote the manifest of a snapshot: run that version");
    /* The last line is there to show that the one before it is whole. */
    if (!layer_lines(&text, &parsed) || !number_line(&text, STR("layer-bytes "), INT64_MAX, &parsed.layer_bytes) ||
        !number_line(&text, STR("image "), 1, &has_image) ||
        !number_line(&text, STR("image-bytes "), INT64_MAX, &parsed.image_bytes) ||
        !text_line(&text, STR("kernel "), parsed.kernel) || !text_line(&text, STR("cpu "), parsed.cpu) ||
        !text_line(&text, STR("guestd "), parsed.guestd) || !text_line(&text, STR("criu "), parsed.criu) ||
        !str_eq(text, STR("end\n")))
        return err_set(err, ERR_INVALID, "the manifest of a snapshot does not parse");
    parsed.has_image = has_image;
    *out = parsed;
    return true;
}

/* ---- files ---- */

bool manifest_write(int snapshot_fd, const struct manifest *manifest, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, MANIFEST_BYTES);

    manifest_print(&text, manifest);
    if (text.overflowed)
        return err_set(err, ERR_INTERNAL, "the manifest of a snapshot is too long");
    return fd_replace_file(snapshot_fd, "manifest", buf_str(&text), 0600, err);
}

#define COPY "copy"

bool manifest_write_copy(int snapshot_fd, const struct manifest *manifest, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, MANIFEST_BYTES);

    manifest_print(&text, manifest);
    if (text.overflowed)
        return err_set(err, ERR_INTERNAL, "the manifest of a snapshot is too long");
    auto_close int fd = openat(snapshot_fd, COPY ".new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text.data, text.len) != (ssize_t)text.len ||
        renameat(snapshot_fd, COPY ".new", snapshot_fd, COPY) < 0)
        return err_sys(err, "write the manifest of a copy");
    return true;
}

bool manifest_is_copy(int snapshots_fd, const char *id)
{
    char path[LAYER_ID_BYTES + sizeof COPY + 1];

    (void)snprintf(path, sizeof path, "%s/" COPY, id);
    return faccessat(snapshots_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

bool manifest_read(int snapshot_fd, struct manifest *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    return (fd_read_file(snapshot_fd, "manifest", MANIFEST_BYTES, &text, &len, err) ||
            (err->sys == ENOENT && fd_read_file(snapshot_fd, COPY, MANIFEST_BYTES, &text, &len, err))) &&
           manifest_parse(str_of(text, len), out, err);
}

/* ---- layers in use ---- */

static bool use_layers(int snapshots_fd, const char *name, void (*use)(void *context, const char *layer), void *context,
                       struct err *err)
{
    auto_close int fd = openat(snapshots_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct manifest manifest;

    if (!(fd < 0 ? err_sys(err, "open it") : manifest_read(fd, &manifest, err)))
        return err->sys == ENOENT || /* it has gone meanwhile, or is being made and has no layer yet */
               err_wrap(err, "snapshot %.16s", name);
    for (uint32_t i = 0; i < manifest.layer_count; i++)
        use(context, manifest.layers[i]);
    return true;
}

bool manifests_used_layers(int snapshots_fd, void (*use)(void *context, const char *layer), void *context,
                           struct err *err)
{
    int fd = openat(snapshots_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool ok = true;

    if (!dir) {
        (void)err_sys(err, "read snapshots");
        fd_close(&fd);
        return false;
    }
    for (struct dirent *entry; ok && (entry = readdir(dir));)
        ok = entry->d_name[0] == '.' || use_layers(snapshots_fd, entry->d_name, use, context, err);
    (void)closedir(dir);
    return ok;
}
