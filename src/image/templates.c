/*
 * Theory of operation: a template is written to a draft and renamed, so a reader finds it whole. A file that a person has
 * damaged is left out of the list and counted; the others stay usable.
 */
#include "image/templates.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define FORMAT_LINE "cloister-template 1"

static bool all_of(const char *text, const char *chars)
{
    return text[0] && text[strspn(text, chars)] == '\0';
}

static bool id_valid(const char *id)
{
    return strlen(id) == TEMPLATE_ID_CHARS && all_of(id, "abcdefghijklmnopqrstuvwxyz0123456789");
}

bool template_check(const struct template *template, struct err *err)
{
    if (!id_valid(template->id))
        return err_set(err, ERR_INVALID, "a template id is %d characters of a-z and 0-9", TEMPLATE_ID_CHARS);
    if (!all_of(template->name, "abcdefghijklmnopqrstuvwxyz0123456789_-"))
        return err_set(err, ERR_INVALID, "a template name is made of a-z, 0-9, _ and -");
    if (template->owner[0] && !all_of(template->owner, "abcdef0123456789-"))
        return err_set(err, ERR_INVALID, "the owner of template %s is not the id of a team", template->name);
    if (template->layer_count == 0 || template->layer_count > LIMIT_LAYERS)
        return err_set(err, ERR_INVALID, "a template has 1 to %d layers", LIMIT_LAYERS);
    for (uint32_t i = 0; i < template->layer_count; i++)
        if (!layer_hex_valid(template->layers[i]))
            return err_set(err, ERR_INVALID, "layer %u of template %s has no valid id", i, template->name);
    if (!layer_hex_valid(template->recipe))
        return err_set(err, ERR_INVALID, "the recipe of template %s is not 64 hex digits", template->name);
    if (template->cpu_millis == 0 || template->memory_bytes == 0)
        return err_set(err, ERR_INVALID, "template %s has no CPU or no memory", template->name);
    if (template->cpu_millis > TEMPLATE_CPUS_MAX * 1000 || template->memory_bytes >> 20 > TEMPLATE_MEMORY_MB_MAX)
        return err_set(err, ERR_INVALID, "template %s asks for more than %d CPUs or %d MiB", template->name,
                       TEMPLATE_CPUS_MAX, TEMPLATE_MEMORY_MB_MAX);
    return true;
}

uint32_t template_cpus(const struct template *template)
{
    return (template->cpu_millis + 999) / 1000;
}

uint32_t template_memory_mb(const struct template *template)
{
    return MAX((uint32_t)(template->memory_bytes >> 20), 1u);
}

/* ---- text ---- */

void template_print(struct buf *out, const struct template *template)
{
    char created[CLOCK_TEXT_BYTES];

    buf_add(out, STR(FORMAT_LINE "\n"));
    buf_format(out, "id %s\n", template->id);
    buf_format(out, "name %s\n", template->name);
    if (template->owner[0])
        buf_format(out, "owner %s\n", template->owner);
    for (uint32_t i = 0; i < template->layer_count; i++)
        buf_format(out, "layer %s\n", template->layers[i]);
    buf_format(out, "cpu_millis %" PRIu32 "\n", template->cpu_millis);
    buf_format(out, "memory_bytes %" PRIu64 "\n", template->memory_bytes);
    buf_format(out, "created %s\n", clock_text(template->created_us, created));
    buf_format(out, "recipe %s\n", template->recipe);
}

static bool set_text(struct str value, char *room, size_t room_size)
{
    if (value.len >= room_size || room[0])
        return false; /* too long, or the key stands there twice */
    memcpy(room, value.at, value.len);
    room[value.len] = '\0';
    return true;
}

static bool parse_line(struct str line, struct template *out)
{
    uint64_t number;

    if (str_skip(&line, STR("id ")))
        return set_text(line, out->id, sizeof out->id);
    if (str_skip(&line, STR("name ")))
        return set_text(line, out->name, sizeof out->name);
    if (str_skip(&line, STR("owner ")))
        return set_text(line, out->owner, sizeof out->owner);
    if (str_skip(&line, STR("layer ")))
        return out->layer_count < LIMIT_LAYERS &&
               set_text(line, out->layers[out->layer_count++], sizeof out->layers[0]);
    if (str_skip(&line, STR("recipe ")))
        return set_text(line, out->recipe, sizeof out->recipe);
    if (str_skip(&line, STR("created ")))
        return clock_parse(line, &out->created_us);
    if (str_skip(&line, STR("memory_bytes ")))
        return str_to_u64(line, UINT64_MAX, &out->memory_bytes);
    if (!str_skip(&line, STR("cpu_millis ")) || !str_to_u64(line, UINT32_MAX, &number))
        return false;
    out->cpu_millis = (uint32_t)number;
    return true;
}

bool template_parse(struct str text, struct template *out, struct err *err)
{
    struct template parsed = { 0 };
    struct str line;

    if (!str_cut(&text, '\n', &line) || !str_eq(line, STR(FORMAT_LINE)))
        return err_set(err, ERR_INVALID, "this is not a template file");
    while (text.len && str_cut(&text, '\n', &line))
        if (!parse_line(line, &parsed))
            return err_set(err, ERR_INVALID, "bad line in a template file: %.*s", STR_ARG(line));
    if (!template_check(&parsed, err))
        return false;
    *out = parsed;
    return true;
}

/* ---- files ---- */

static bool template_path(const char *id, char room[64], struct err *err)
{
    if (!id_valid(id))
        return err_set(err, ERR_INVALID, "a template id is %d characters of a-z and 0-9", TEMPLATE_ID_CHARS);
    (void)snprintf(room, 64, "templates/%.*s", TEMPLATE_ID_CHARS, id);
    return true;
}

bool template_save(int data_fd, const struct template *template, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, TEMPLATE_FILE_BYTES);
    char path[64];

    if (!template_check(template, err) || !template_path(template->id, path, err))
        return false;
    template_print(&text, template);
    if (text.overflowed)
        return err_set(err, ERR_LIMIT, "template %s does not fit its file", template->name);
    return fd_replace_file(data_fd, path, buf_str(&text), 0600, err) || err_wrap(err, "save template %s", template->id);
}

bool template_load(int data_fd, const char *id, struct template *out, struct err *err)
{
    auto_free char *text = NULL;
    struct template loaded;
    size_t len;
    char path[64];

    if (!template_path(id, path, err) || !fd_read_file(data_fd, path, TEMPLATE_FILE_BYTES, &text, &len, err) ||
        !template_parse(str_of(text, len), &loaded, err))
        return err_wrap(err, "template %s", id);
    if (strcmp(loaded.id, id) != 0)
        return err_set(err, ERR_INVALID, "the file of template %s says it is %s", id, loaded.id);
    *out = loaded;
    return true;
}

static int order_by_id(const void *a, const void *b)
{
    return strcmp(((const struct template *)a)->id, ((const struct template *)b)->id);
}

void templates_done(struct templates *templates)
{
    free(templates->list);
    *templates = (struct templates){ 0 };
}

bool templates_read(int data_fd, struct templates *out, struct err *err)
{
    int dir_fd = openat(data_fd, "templates", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct templates all = { 0 };
    uint32_t room = 0;

    if (dir_fd < 0 && errno == ENOENT) { /* nothing was ever built here */
        *out = all;
        return true;
    }
    DIR *dir = dir_fd < 0 ? NULL : fdopendir(dir_fd);
    if (!dir) {
        (void)err_sys(err, "open directory templates");
        fd_close(&dir_fd);
        return false;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct err bad;
        if (!id_valid(entry->d_name))
            continue; /* ., .., and the draft of a write that a crash cut short */
        if (all.count == room) {
            room = room ? room * 2 : LIMIT_TEMPLATES_PAGE;
            all.list = mem_grow(all.list, room * sizeof *all.list);
        }
        if (template_load(data_fd, entry->d_name, &all.list[all.count], &bad)) {
            all.count++;
        } else if (bad.sys != ENOENT) { /* which is one that was removed meanwhile */
            all.bad_count++;
            all.bad = bad;
        }
    }
    (void)closedir(dir);
    if (all.count)
        qsort(all.list, all.count, sizeof *all.list, order_by_id);
    *out = all;
    return true;
}

bool template_find(int data_fd, const char *name, struct template *out, struct err *err)
{
    auto_templates struct templates all = { 0 };

    if (!templates_read(data_fd, &all, err))
        return false;
    for (uint32_t i = 0; i < all.count; i++) {
        if (!strcmp(all.list[i].name, name) && !all.list[i].owner[0]) {
            *out = all.list[i];
            return true;
        }
    }
    return err_set(err, ERR_NOT_FOUND, "there is no template named %s", name);
}

/* ---- message ---- */

void templates_pack(struct buf *out, const struct template *list, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        pack_str(out, str_from(list[i].id));
        pack_str(out, str_from(list[i].name));
        pack_str(out, str_from(list[i].owner));
        pack_u32(out, list[i].layer_count);
        for (uint32_t layer = 0; layer < list[i].layer_count; layer++)
            pack_str(out, str_from(list[i].layers[layer]));
        pack_u32(out, list[i].cpu_millis);
        pack_u64(out, list[i].memory_bytes);
        pack_i64(out, list[i].created_us);
        pack_str(out, str_from(list[i].recipe));
    }
}

struct template *templates_unpack(struct unpack *in, uint32_t *out_count)
{
    uint32_t count = unpack_count(in, LIMIT_TEMPLATES_PAGE);
    auto_free struct template *list = mem_new((count ? count : 1) * sizeof *list);

    for (uint32_t i = 0; i < count && !in->failed; i++) {
        struct err ignored; /* a bad message ends the channel, whichever field it was */
        unpack_text(in, list[i].id, sizeof list[i].id);
        unpack_text(in, list[i].name, sizeof list[i].name);
        unpack_text(in, list[i].owner, sizeof list[i].owner);
        list[i].layer_count = unpack_count(in, LIMIT_LAYERS);
        for (uint32_t layer = 0; layer < list[i].layer_count; layer++)
            unpack_text(in, list[i].layers[layer], sizeof list[i].layers[layer]);
        list[i].cpu_millis = unpack_u32(in);
        list[i].memory_bytes = unpack_u64(in);
        list[i].created_us = unpack_i64(in);
        unpack_text(in, list[i].recipe, sizeof list[i].recipe);
        if (!in->failed && !template_check(&list[i], &ignored))
            in->failed = true;
    }
    if (in->failed)
        return NULL;
    *out_count = count;
    return take_ptr(&list);
}

bool template_is_current(int data_fd, const struct template *template, const char *recipe)
{
    if (strcmp(template->recipe, recipe) != 0)
        return false;
    for (uint32_t i = 0; i < template->layer_count; i++)
        if (!layer_exists(data_fd, template->layers[i]))
            return false;
    return true;
}
