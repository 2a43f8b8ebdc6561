/*
 * What builds take on disk, whose it is, and what of it can go.
 *
 * A layer is written down once (build_kept), and once more for each ready build that has it (build_layers), by team and layer:
 * so that what is shared is found without reading all builds.
 *
 * A team can have a thousand templates with a thousand tags each. What all of them take is added up in pages: between two of
 * them others have the store, and what they change meanwhile is seen or not.
 */
#include <time.h>

#include "base/buf.h"
#include "base/map.h"
#include "store/inside.h"

/* ---- the layers of one template ---- */

static bool layer_kept(struct store *store, struct str team_id, struct arena *arena, struct layer_row *row,
                       struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    if (!sql_select(store->sql, "SELECT layer_bytes, team_id, step FROM build_kept WHERE kept_id = $1 AND node_id = $2",
                    SQL_ARGS(sql_text(row->id), sql_text(str_from(store->node_id))), &rows, err) ||
        !sql_next(&rows, &row->is_known, err))
        return false;
    if (!row->is_known)
        return true;
    struct str owner = sql_row_text(&rows, 1);
    row->bytes = (uint64_t)sql_row_int(&rows, 0);
    row->origin = !owner.len ? LAYER_IMAGE : str_eq(owner, team_id) ? LAYER_STEP : LAYER_OTHER;
    if (row->origin == LAYER_STEP)
        row->step = arena_copy(arena, sql_row_text(&rows, 2));
    return true;
}

static bool is_there(struct store *store, const char *query, const struct sql_value *args, size_t count, bool *out,
                     struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };

    return sql_select(store->sql, query, args, count, &rows, err) && sql_next(&rows, out, err);
}

static bool layer_shared(struct store *store, struct str team_id, struct str template_id, struct layer_row *row,
                         struct err *err)
{
    bool in_operators, in_built;

    if (!is_there(store,
                  "SELECT 1 FROM template_layers l JOIN templates t ON t.id = l.template_id WHERE l.layer = $1 "
                  "AND t.id <> $2 AND (t.team_id IS NULL OR t.team_id = $3) LIMIT 1",
                  SQL_ARGS(sql_text(row->id), sql_text(template_id), sql_text(team_id)), &in_operators, err) ||
        !is_there(store, "SELECT 1 FROM build_layers WHERE team_id = $1 AND layer = $2 AND template_id <> $3 LIMIT 1",
                  SQL_ARGS(sql_text(team_id), sql_text(row->id), sql_text(template_id)), &in_built, err))
        return false;
    row->is_shared = in_operators || in_built;
    if (in_operators)
        row->origin = LAYER_OPERATOR;
    return true;
}

bool store_layer_list(struct store *store, struct str team_id, struct str template_id, const struct str *layers,
                      uint32_t count, struct arena *arena, struct layer_row **out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct layer_row *list = ARENA_ARRAY(arena, struct layer_row, count);

    for (uint32_t i = 0; i < count; i++) {
        list[i] = (struct layer_row){ .id = arena_copy(arena, layers[i]) };
        if (!layer_kept(store, team_id, arena, &list[i], err) ||
            !layer_shared(store, team_id, template_id, &list[i], err))
            return err_wrap(err, "list layers");
    }
    *out = list;
    return true;
}

bool store_template_uses(struct store *store, struct str team_id, struct str template_id, struct template_uses *out,
                         struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    struct sql_value id = sql_text(template_id), team = sql_text(team_id);
    struct template_uses uses;

    if (!ask_number(store, "SELECT COUNT(*) FROM sandboxes WHERE template_id = $1 AND team_id = $2", SQL_ARGS(id, team),
                    &uses.sandboxes, err) ||
        !ask_number(store,
                    "SELECT COUNT(*) FROM snapshots WHERE source_template_id = $1 AND team_id = $2 AND removed = 0",
                    SQL_ARGS(id, team), &uses.snapshots, err) ||
        !ask_number(store,
                    "SELECT COUNT(DISTINCT template_id) FROM builds WHERE from_template = $1 AND team_id = $2 "
                    "AND state = 'ready' AND template_id <> $1",
                    SQL_ARGS(id, team), &uses.templates, err))
        return err_wrap(err, "look who uses a template");
    *out = uses;
    return true;
}

/* ---- of all templates ---- */

enum {
    TEMPLATES_PAGE = 20, /* with 200 builds and 1000 tags each: some milliseconds */
    LAYERS_PAGE = 500,   /* layers of templates; each is read once for each build that has it */
};

/* A lock that is taken again at once is never had by those who wait for it. */
static void let_others(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 500 * 1000 }, NULL);
}

static void disk_read(const struct sql_rows *rows, struct arena *arena, struct template_disk *out)
{
    *out = (struct template_disk){
        .id = arena_copy(arena, sql_row_text(rows, 0)),
        .team_slug = arena_copy(arena, sql_row_text(rows, 1)),
        .is_public = sql_row_int(rows, 2) != 0,
    };
}

static bool list_templates(struct store *store, struct str team_id, struct arena *arena, struct build_disk *out,
                           struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };

    return sql_select(store->sql,
                      "SELECT t.id, m.slug, t.is_public FROM built_templates t JOIN teams m ON m.id = t.team_id "
                      "WHERE ($1 = '' OR t.team_id = $1) AND t.node_id = $2 AND t.removed_us = 0 "
                      "ORDER BY t.created_us, t.id",
                      SQL_ARGS(sql_text(team_id), sql_text(str_from(store->node_id))), &rows, err) &&
           ROWS_READ(&rows, disk_read, arena, &out->templates, &out->count, err);
}

static bool read_tags(struct store *store, struct arena *arena, struct template_disk *disk, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!ask_number(store, "SELECT COUNT(*) FROM newest_tags WHERE template_id = $1", SQL_ARGS(sql_text(disk->id)),
                    &disk->tag_count, err) ||
        !sql_select(store->sql, "SELECT tag FROM newest_tags WHERE template_id = $1 ORDER BY tag LIMIT $2",
                    SQL_ARGS(sql_text(disk->id), sql_int(STORE_DISK_TAGS)), &rows, err))
        return false;
    for (size_t i = 0; i < STORE_DISK_TAGS; i++) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            break;
        disk->tags[i] = arena_copy(arena, sql_row_text(&rows, 0));
    }
    return true;
}

static bool describe(struct store *store, struct arena *arena, struct template_disk *disk, struct err *err)
{
    struct sql_value id = sql_text(disk->id);
    bool there;

    return ask_text(store,
                    "SELECT a.alias FROM built_aliases a JOIN built_templates t ON t.id = a.template_id "
                    "WHERE a.template_id = $1 AND a.owner = t.team_id ORDER BY a.alias LIMIT 1",
                    SQL_ARGS(id), arena, &disk->alias, &there, err) &&
           ask_number(store, "SELECT COUNT(*) FROM builds WHERE template_id = $1 AND state = 'ready'", SQL_ARGS(id),
                      &disk->build_count, err) &&
           read_tags(store, arena, disk, err);
}

static bool describe_all(struct store *store, struct arena *arena, struct build_disk *out, struct err *err)
{
    for (size_t i = 0; i < out->count;) {
        if (i)
            let_others();
        auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
        for (size_t end = MIN(i + TEMPLATES_PAGE, out->count); i < end; i++)
            if (!describe(store, arena, &out->templates[i], err))
                return false;
    }
    return true;
}

/* The templates that have one layer. */
struct sharers {
    struct template_disk *last;
    size_t count;
    uint64_t bytes;
};

static void share(struct sharers *sharers, struct build_disk *out)
{
    if (sharers->count) {
        out->template_bytes += sharers->bytes;
        if (sharers->count == 1)
            sharers->last->own_bytes += sharers->bytes;
    }
    sharers->count = 0;
}

/* Where a page of layers ends. */
struct layers_at {
    struct buf layer, template_id;
};

/* CROSS JOIN: in this order, so that they come as they are in an index, and no more of them are read than a page has. */
#define LAYERS_SELECT                                                                                \
    "SELECT l.layer, l.template_id, MAX(k.layer_bytes) FROM build_layers l CROSS JOIN build_kept k " \
    "WHERE k.kept_id = l.layer AND k.node_id = $1 AND (l.layer, l.template_id) > ($2, $3) "

/* In order of the layers: those that have the same one come together. */
static bool add_page(struct store *store, struct str team_id, const struct map *by_id, struct sharers *sharers,
                     struct layers_at *at, struct build_disk *out, bool *out_more, struct err *err)
{
    static const char of_all[] =
        LAYERS_SELECT "AND $4 = '' GROUP BY l.layer, l.template_id ORDER BY l.layer, l.template_id LIMIT $5";
    static const char of_team[] =
        LAYERS_SELECT "AND l.team_id = $4 GROUP BY l.layer, l.template_id ORDER BY l.layer, l.template_id LIMIT $5";
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);
    auto_rows struct sql_rows rows = { 0 };
    size_t count = 0;
    bool there;

    if (!sql_select(store->sql, team_id.len ? of_team : of_all,
                    SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(buf_str(&at->layer)),
                             sql_text(buf_str(&at->template_id)), sql_text(team_id), sql_int(LAYERS_PAGE)),
                    &rows, err))
        return false;
    for (;; count++) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            break;
        if (!str_eq(sql_row_text(&rows, 0), buf_str(&at->layer))) {
            share(sharers, out);
            buf_clear(&at->layer);
            buf_add(&at->layer, sql_row_text(&rows, 0));
        }
        buf_clear(&at->template_id);
        buf_add(&at->template_id, sql_row_text(&rows, 1));
        struct template_disk *template = map_get(by_id, sql_row_text(&rows, 1));
        if (!template)
            continue;
        sharers->bytes = (uint64_t)sql_row_int(&rows, 2);
        template->shared_bytes += sharers->bytes; /* its own are taken off at the end */
        sharers->last = template;
        sharers->count++;
    }
    *out_more = count == LAYERS_PAGE;
    return true;
}

static bool add_layers(struct store *store, struct str team_id, struct build_disk *out, struct arena *arena,
                       struct err *err)
{
    struct layers_at at = { .layer = buf_make(arena, 256), .template_id = buf_make(arena, 256) };
    struct sharers sharers = { 0 };
    bool ok = true, more = true;
    struct map by_id;

    map_init(&by_id);
    for (size_t i = 0; i < out->count; i++)
        (void)map_put(&by_id, out->templates[i].id, &out->templates[i]);
    for (; ok && more; let_others())
        ok = add_page(store, team_id, &by_id, &sharers, &at, out, &more, err);
    map_done(&by_id);
    share(&sharers, out);
    for (size_t i = 0; i < out->count; i++)
        out->templates[i].shared_bytes -= out->templates[i].own_bytes;
    return ok;
}

/* With the layers of an image that a step has brought, unless a template has that step. */
static bool add_cache(struct store *store, struct str team_id, struct build_disk *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&store->lock);

    return ask_number(store,
                      "SELECT COALESCE(SUM(k.bytes), 0) FROM build_kept k WHERE k.node_id = $1 "
                      "AND ($2 = '' OR k.team_id = $2) AND NOT EXISTS (SELECT 1 FROM build_layers l "
                      "WHERE l.team_id = k.team_id AND l.layer = k.kept_id)",
                      SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(team_id)), &out->cache_bytes, err);
}

bool store_build_disk(struct store *store, struct str team_id, struct arena *arena, struct build_disk *out,
                      struct err *err)
{
    struct build_disk disk = { 0 };

    if (!list_templates(store, team_id, arena, &disk, err) || !describe_all(store, arena, &disk, err) ||
        !add_layers(store, team_id, &disk, arena, err) || !add_cache(store, team_id, &disk, err))
        return err_wrap(err, "add up what builds take");
    *out = disk;
    return true;
}

/* ---- what can go ---- */

struct pruning {
    struct store *store;
    const struct cache_prune *want;
    struct arena scratch;
    struct map held; /* layers of builds, snapshots and sandboxes */
    struct map used; /* layers of steps that stay */
    struct str *keys, *teams;
    size_t count, room; /* of the steps that go */
};

static bool is_of(const struct pruning *pruning, struct str team_id)
{
    return !pruning->want->team_id.len || str_eq(pruning->want->team_id, team_id);
}

static bool is_held(const struct pruning *pruning, struct str layer)
{
    const struct cache_prune *want = pruning->want;

    return map_get(&pruning->held, layer) || (want->is_held && want->is_held(want->context, layer));
}

static struct str last_of(struct str list)
{
    for (size_t i = list.len; i > 0; i--)
        if (list.at[i - 1] == ',')
            return str_of(list.at + i, list.len - i);
    return list;
}

static void goes(struct pruning *pruning, struct str team_id, struct str key)
{
    if (pruning->count == pruning->room) {
        size_t room = pruning->room ? 2 * pruning->room : 64;
        struct str *keys = ARENA_ARRAY(&pruning->scratch, struct str, room);
        struct str *teams = ARENA_ARRAY(&pruning->scratch, struct str, room);
        if (pruning->count) {
            memcpy(keys, pruning->keys, pruning->count * sizeof *keys);
            memcpy(teams, pruning->teams, pruning->count * sizeof *teams);
        }
        pruning->keys = keys;
        pruning->teams = teams;
        pruning->room = room;
    }
    pruning->keys[pruning->count] = arena_copy(&pruning->scratch, key);
    pruning->teams[pruning->count++] = arena_copy(&pruning->scratch, team_id);
}

/* A step whose last layer somebody is on costs nothing, and spares a build that work. */
static bool judge_steps(struct pruning *pruning, struct err *err)
{
    struct store *store = pruning->store;
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(store->sql, "SELECT team_id, step_key, kept_id, layers FROM cached_steps WHERE node_id = $1",
                    SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err))
        return false;
    for (;;) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            return true;
        struct str list = sql_row_text(&rows, 3);
        if (is_of(pruning, sql_row_text(&rows, 0)) && !is_held(pruning, last_of(list))) {
            goes(pruning, sql_row_text(&rows, 0), sql_row_text(&rows, 1));
            continue;
        }
        note_ids(&pruning->used, list, &pruning->scratch);
        note_ids(&pruning->used, sql_row_text(&rows, 2), &pruning->scratch);
    }
}

/*
 * Of a team: what it was charged for. Which of an image's layers stay because another team has them, too, is not its business:
 * their number, and the time that it takes to drop them, would tell. Those that nobody has are found by the next sweep.
 */
static bool judge_kept(struct pruning *pruning, struct arena *arena, struct cache_pruned *out, struct err *err)
{
    const bool is_all = !pruning->want->team_id.len;
    struct store *store = pruning->store;
    auto_rows struct sql_rows rows = { 0 };
    size_t room = 0;
    bool there;

    if (!sql_select(store->sql, "SELECT kept_id, team_id, bytes, layer_bytes FROM build_kept WHERE node_id = $1",
                    SQL_ARGS(sql_text(str_from(store->node_id))), &rows, err))
        return false;
    for (;;) {
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there)
            return true;
        struct str id = sql_row_text(&rows, 0), team_id = sql_row_text(&rows, 1);
        if (!is_of(pruning, team_id) || is_held(pruning, id) || map_get(&pruning->used, id))
            continue;
        out->bytes += (uint64_t)sql_row_int(&rows, is_all ? 3 : 2);
        if (out->count == room) {
            room = room ? 2 * room : 64;
            struct str *ids = ARENA_ARRAY(arena, struct str, room);
            if (out->count)
                memcpy(ids, out->kept_ids, out->count * sizeof *ids);
            out->kept_ids = ids;
        }
        out->kept_ids[out->count++] = arena_copy(arena, id);
    }
}

static bool remove_steps(const struct pruning *pruning, struct err *err)
{
    struct store *store = pruning->store;

    if (!sql_begin(store->sql, SQL_LAZY, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < pruning->count; i++)
        ok = sql_exec(
            store->sql, "DELETE FROM cached_steps WHERE node_id = $1 AND team_id = $2 AND step_key = $3",
            SQL_ARGS(sql_text(str_from(store->node_id)), sql_text(pruning->teams[i]), sql_text(pruning->keys[i])), err);
    return sql_end(store->sql, ok, err);
}

bool store_cache_prune(struct store *store, const struct cache_prune *want, struct arena *arena,
                       struct cache_pruned *out, struct err *err)
{
    auto_unlock pthread_mutex_t *locked = lock_mutex(&store->lock);
    struct pruning pruning = { .store = store, .want = want };
    struct cache_pruned pruned = { 0 };

    arena_init(&pruning.scratch);
    map_init(&pruning.held);
    map_init(&pruning.used);
    bool ok = note_holders(store, false, &pruning.held, &pruning.scratch, err) && judge_steps(&pruning, err) &&
              judge_kept(&pruning, arena, &pruned, err) && (want->dry_run || remove_steps(&pruning, err));
    pruned.steps = pruning.count;
    map_done(&pruning.used);
    map_done(&pruning.held);
    arena_done(&pruning.scratch);
    if (!ok)
        return err_wrap(err, "look for what the cache can do without");
    *out = pruned;
    return true;
}
