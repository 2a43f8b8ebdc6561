#include "isolation/native/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define FIRST_LINE "cloister-image 2"

static const char *const from_name[IMAGE_FROM_COUNT] = { "mount", "guestd", "cgroup", "file", "enter", "socket" };

void image_done(struct image *image)
{
    for (size_t i = 0; i < image->count; i++) {
        free(image->parts[i].where);
        free(image->parts[i].path);
    }
    free(image->parts);
    *image = (struct image){ 0 };
}

/* In a line, and in an argument of CRIU's: no blank, no control character, no bracket. */
static bool is_plain(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text == 127 || *text == '[' || *text == ']')
            return false;
    return true;
}

static bool path_ok(const char *path)
{
    return !path || (path[0] == '/' && strlen(path) < LIMIT_PATH_BYTES && is_plain(path));
}

bool image_add(struct image *image, const struct image_part *part, struct err *err)
{
    if (!path_ok(part->where) || !path_ok(part->path))
        return err_set(err, ERR_INVALID,
                       "cannot be kept with its memory: a program's file has an unusual name; without memory "
                       "(mode='filesystem') it works");
    if (image->count == LIMIT_IMAGE_FILES)
        return err_set(err, ERR_LIMIT, "more than %d program files are in use", LIMIT_IMAGE_FILES);
    if (image->count == image->room) {
        image->room = image->room ? 2 * image->room : 64;
        image->parts = mem_grow(image->parts, image->room * sizeof *image->parts);
    }
    struct image_part *added = &image->parts[image->count++];
    *added = *part;
    added->where = part->where ? mem_copy_text(part->where) : NULL;
    added->path = part->path ? mem_copy_text(part->path) : NULL;
    return true;
}

bool image_has_file(const struct image *image, uint64_t mount_id, uint64_t inode)
{
    for (size_t i = 0; i < image->count; i++) {
        const struct image_part *part = &image->parts[i];
        if (part->from != IMAGE_MOUNT && part->from != IMAGE_SOCKET && part->mount_id == mount_id &&
            part->inode == inode)
            return true;
    }
    return false;
}

uint64_t image_changed_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec; /* wraps for times before 1970 */
}

void image_print(struct buf *out, const struct image *image)
{
    buf_format(out, FIRST_LINE "\nkernel %s\ncpu %s\nprogram %s\ncriu %s\nlayers %" PRIu32 "\n", image->origin.kernel,
               image->origin.cpu, image->origin.guestd, image->origin.criu, image->layer_count);
    for (size_t i = 0; i < image->count; i++) {
        const struct image_part *part = &image->parts[i];
        buf_format(out, "%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s %s\n", from_name[part->from],
                   part->mount_id, part->inode, part->number, part->size, part->changed_ns,
                   part->where ? part->where : "-", part->path ? part->path : "-");
    }
}

static bool cut_text(struct str *text, struct str name, char room[IMAGE_TEXT_BYTES])
{
    struct str line;

    if (!text->len || !str_cut(text, '\n', &line) || !str_skip(&line, name) || line.len >= IMAGE_TEXT_BYTES)
        return false;
    if (line.len)
        memcpy(room, line.at, line.len);
    room[line.len] = '\0';
    return strlen(room) == line.len;
}

static bool cut_layers(struct str *text, uint32_t *out)
{
    struct str line;
    uint64_t count;

    if (!text->len || !str_cut(text, '\n', &line) || !str_skip(&line, STR("layers ")) ||
        !str_to_u64(line, LIMIT_LAYERS, &count))
        return false;
    *out = (uint32_t)count;
    return true;
}

static bool cut_number(struct str *line, uint64_t *out)
{
    struct str word;

    return str_cut(line, ' ', &word) && str_to_u64(word, UINT64_MAX, out);
}

static bool cut_path(struct str word, char room[LIMIT_PATH_BYTES], char **out)
{
    if (!word.len || word.len >= LIMIT_PATH_BYTES)
        return false;
    memcpy(room, word.at, word.len);
    room[word.len] = '\0';
    *out = strcmp(room, "-") == 0 ? NULL : room;
    return strlen(room) == word.len;
}

/* What each kind must have. */
static bool part_ok(const struct image_part *part)
{
    switch (part->from) {
    case IMAGE_MOUNT:
        return part->where && part->path;
    case IMAGE_FILE:
        return part->path && !part->where;
    default:
        return !part->path && !part->where;
    }
}

static bool parse_part(struct str line, struct image *out, struct err *err)
{
    char where[LIMIT_PATH_BYTES], path[LIMIT_PATH_BYTES];
    struct image_part part = { .from = IMAGE_FROM_COUNT };
    struct str name, word;

    if (str_cut(&line, ' ', &name))
        for (int i = 0; i < IMAGE_FROM_COUNT; i++)
            if (str_eq(name, str_from(from_name[i])))
                part.from = (enum image_from)i;
    if (part.from == IMAGE_FROM_COUNT || !cut_number(&line, &part.mount_id) || !cut_number(&line, &part.inode) ||
        !cut_number(&line, &part.number) || !cut_number(&line, &part.size) || !cut_number(&line, &part.changed_ns) ||
        !str_cut(&line, ' ', &word) || !cut_path(word, where, &part.where) || !cut_path(line, path, &part.path) ||
        !part_ok(&part))
        return err_set(err, ERR_INVALID, "the image is damaged");
    return image_add(out, &part, err);
}

bool image_parse(struct str text, struct image *out, struct err *err)
{
    auto_image struct image image = { 0 };
    struct str line;

    if (!text.len || !str_cut(&text, '\n', &line) || !str_eq(line, STR(FIRST_LINE)) ||
        !cut_text(&text, STR("kernel "), image.origin.kernel) || !cut_text(&text, STR("cpu "), image.origin.cpu) ||
        !cut_text(&text, STR("program "), image.origin.guestd) || !cut_text(&text, STR("criu "), image.origin.criu) ||
        !cut_layers(&text, &image.layer_count))
        return err_set(err, ERR_INVALID, "the image is damaged, or of another version of Cloister");
    while (text.len && str_cut(&text, '\n', &line))
        if (!parse_part(line, &image, err))
            return false;
    *out = image;
    image = (struct image){ 0 };
    return true;
}

bool image_fits(const struct image_origin *made, const struct image_origin *here, struct err *err)
{
    const struct {
        const char *what, *made, *here;
    } each[] = {
        { "kernel", made->kernel, here->kernel },
        { "processor", made->cpu, here->cpu },
        { "version of Cloister", made->guestd, here->guestd },
        { "version of CRIU", made->criu, here->criu },
    };

    for (size_t i = 0; i < COUNT_OF(each); i++)
        if (strcmp(each[i].made, each[i].here) != 0)
            return err_set(err, ERR_CONFLICT,
                           "its memory was saved under another %s; it can be started from its files "
                           "(on_resume='reboot')",
                           each[i].what);
    return true;
}
