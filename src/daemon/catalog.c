#include "daemon/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "image/templates.h"
#include "isolation/native/native.h"

struct catalog {
    struct catalog_config config;
    struct templates told; /* what front was told last */
    struct timer sweep;    /* set while something may have to be removed */
    struct err logged_bad; /* so that a bad file is logged once, not with every list */
};

/* ---- removing layers ---- */

struct used {
    struct arena arena;
    struct map layers;
};

static void use_layer(void *context, const char *layer)
{
    struct used *used = context;
    struct str key = arena_copy(&used->arena, str_from(layer));

    (void)map_put(&used->layers, key, (void *)key.at);
}

static void use_templates(struct used *used, const struct templates *templates)
{
    for (uint32_t i = 0; i < templates->count; i++)
        for (uint32_t k = 0; k < templates->list[i].layer_count; k++)
            use_layer(used, templates->list[i].layers[k]);
}

/* *out_in_sandboxes: sandboxes or snapshots hold layers that no template has. */
static bool collect_used(const struct catalog *catalog, struct used *used, bool *out_in_sandboxes, struct err *err)
{
    auto_templates struct templates now = { 0 };

    if (!templates_read(catalog->config.data_fd, &now, err))
        return false;
    if (now.bad_count) {
        *err = now.bad;
        return false;
    }
    use_templates(used, &now);
    use_templates(used, &catalog->told);
    size_t in_templates = used->layers.count;
    if (!native_used_layers(catalog->config.data_fd, use_layer, used, err))
        return false;
    *out_in_sandboxes = used->layers.count > in_templates;
    return true;
}

static bool sweep_layers(const struct catalog *catalog, uint32_t *out_count, bool *out_in_sandboxes, struct err *err)
{
    auto_close int lock_fd = -1;
    struct used used;

    if (!layers_lock(catalog->config.data_fd, &lock_fd, err))
        return false;
    arena_init(&used.arena);
    map_init(&used.layers);
    bool ok = collect_used(catalog, &used, out_in_sandboxes, err) &&
              layers_sweep(catalog->config.data_fd, &used.layers, out_count, err);
    map_done(&used.layers);
    arena_done(&used.arena);
    return ok;
}

static void on_sweep(struct timer *timer)
{
    struct catalog *catalog = container_of(timer, struct catalog, sweep);
    bool ok, again = false;
    uint32_t count = 0;
    struct err err;

    ok = sweep_layers(catalog, &count, &again, &err);
    if (count) {
        log_info("layers: removed %u that nothing refers to", count);
        if (catalog->config.on_swept)
            catalog->config.on_swept(catalog->config.context);
    }
    if (!ok && err.kind != ERR_CONFLICT) /* a template is being built */
        log_info("layers: unused ones are kept for now: %s", err_text(&err));
    if (again || !ok)
        timer_set(timer, catalog->config.loop, catalog->config.sweep_ms, on_sweep);
}

void catalog_sweep_soon(struct catalog *catalog)
{
    timer_set(&catalog->sweep, catalog->config.loop, MIN(catalog->config.sweep_ms, (uint64_t)CATALOG_SWEEP_SOON_MS),
              on_sweep);
}

/* ---- the list ---- */

struct catalog *catalog_new(const struct catalog_config *config)
{
    struct catalog *catalog = NEW(struct catalog);

    catalog->config = *config;
    on_sweep(&catalog->sweep);
    return catalog;
}

void catalog_free(struct catalog *catalog)
{
    if (!catalog)
        return;
    timer_clear(&catalog->sweep);
    templates_done(&catalog->told);
    free(catalog);
}

/* A template that is built again has another time. */
static bool same_list(const struct templates *a, const struct templates *b)
{
    if (a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (strcmp(a->list[i].id, b->list[i].id) != 0 || a->list[i].created_us != b->list[i].created_us)
            return false;
    return true;
}

static void log_bad(struct catalog *catalog)
{
    const struct templates *told = &catalog->told;
    struct err *logged = &catalog->logged_bad;
    bool is_new = strcmp(logged->trail, told->bad.trail) != 0 || strcmp(logged->message, told->bad.message) != 0;

    if (told->bad_count && is_new)
        log_warn("templates: %u file%s left out, correct or remove it: %s", told->bad_count,
                 told->bad_count == 1 ? " is" : "s are", err_text(&told->bad));
    *logged = told->bad;
}

static bool reload(struct catalog *catalog, struct err *err)
{
    struct templates now;

    if (!templates_read(catalog->config.data_fd, &now, err))
        return false;
    if (!same_list(&catalog->told, &now))
        timer_set(&catalog->sweep, catalog->config.loop, catalog->config.sweep_ms, on_sweep);
    templates_done(&catalog->told);
    catalog->told = now;
    log_bad(catalog);
    return true;
}

bool catalog_page(struct catalog *catalog, const char *after, struct buf *out, struct err *err)
{
    const struct templates *told = &catalog->told;
    uint32_t first = 0;

    if (!after[0] && !reload(catalog, err))
        return false;
    while (first < told->count && strcmp(told->list[first].id, after) <= 0)
        first++;
    pack_u8(out, told->bad_count == 0);
    templates_pack(out, told->list + first, MIN(told->count - first, (uint32_t)LIMIT_TEMPLATES_PAGE));
    return true;
}
