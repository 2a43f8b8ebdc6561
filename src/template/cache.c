/*
 * The cache of steps. The key of a step is a hash of the key before it and of all that it depends on, so equal recipes have
 * equal keys as far as they are equal. A team's rows are its own: a key says nothing about who has made the files.
 *
 * While a build makes a key, another that needs it waits and then finds it in the cache. A build makes one key at a time, so
 * builds cannot wait for each other in a circle. (And while it makes that of an image, it has its team's turn to unpack, in
 * which it waits for no other.)
 */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/map.h"
#include "template/inside.h"
#include "wire/json.h"

void key_of(char out[KEY_BYTES], const struct str *parts, size_t count)
{
    crypto_hash_sha256_state state;
    unsigned char sum[crypto_hash_sha256_BYTES];

    crypto_hash_sha256_init(&state);
    for (size_t i = 0; i < count; i++) {
        unsigned char length[8];
        for (int k = 0; k < 8; k++)
            length[k] = (unsigned char)((uint64_t)parts[i].len >> (8 * k));
        crypto_hash_sha256_update(&state, length, sizeof length);
        crypto_hash_sha256_update(&state, (const unsigned char *)parts[i].at, parts[i].len);
    }
    crypto_hash_sha256_final(&state, sum);
    (void)hex_text(str_of(sum, sizeof sum), out);
}

/* ---- environments ---- */

bool envs_text(struct build *build, const struct chain *chain, struct arena *arena, struct str *out_text)
{
    struct buf text = buf_make(arena, (size_t)8 * LIMIT_ENV_BYTES);
    struct json_out out = json_out_to(&text);

    json_out_object(&out, NULL);
    for (uint32_t i = 0; i < chain->env_count; i++)
        json_out_pair(&out, chain->envs[i].name, chain->envs[i].value);
    json_out_end(&out);
    *out_text = buf_str(&text);
    return !text.overflowed || build_fail(build, "the environment of the build is too large to be kept");
}

void envs_own(struct chain *chain, struct arena *arena, uint32_t more)
{
    struct pair *envs = ARENA_ARRAY(arena, struct pair, chain->env_count + more);

    if (chain->env_count)
        memcpy(envs, chain->envs, chain->env_count * sizeof *envs);
    chain->envs = envs;
}

static uint32_t env_at(const struct chain *chain, struct str name)
{
    uint32_t at = 0;

    while (at < chain->env_count && !str_eq(chain->envs[at].name, name))
        at++;
    return at;
}

void envs_set(struct chain *chain, struct arena *arena, struct str name, struct str value)
{
    uint32_t at = env_at(chain, name);

    chain->envs[at] = (struct pair){ arena_copy(arena, name), arena_copy(arena, value) };
    chain->env_count = MAX(chain->env_count, at + 1);
}

bool build_env(struct build *build, struct str name, struct str value)
{
    const struct chain *chain = &build->chain;
    size_t bytes = name.len + value.len;
    uint32_t at = env_at(chain, name);

    for (uint32_t i = 0; i < chain->env_count; i++)
        bytes += i == at ? 0 : chain->envs[i].name.len + chain->envs[i].value.len;
    if (at >= LIMIT_ENV_PAIRS || bytes > LIMIT_ENV_BYTES)
        return build_fail(build, "the environment of the build has more than %d variables or %d bytes", LIMIT_ENV_PAIRS,
                          LIMIT_ENV_BYTES);
    envs_set(&build->chain, &build->arena, name, value);
    return true;
}

bool envs_read(struct str text, struct arena *arena, struct chain *out, struct err *err)
{
    const char *name;
    json_t *value;

    out->env_count = 0;
    out->envs = NULL;
    if (!text.len)
        return true;
    auto_json json_t *object = json_parse_object(text, err);
    if (!object)
        return err_wrap(err, "read the environment of a build");
    out->envs = ARENA_ARRAY(arena, struct pair, json_object_size(object));
    json_object_foreach(object, name, value)
    {
        if (json_is_string(value))
            out->envs[out->env_count++] =
                (struct pair){ arena_copy(arena, str_from(name)), arena_copy(arena, json_str(value)) };
    }
    return true;
}

/* ---- keys under way ---- */

static struct str busy_name(const struct build *build, const char *key, char room[2 * KEY_BYTES])
{
    int len = snprintf(room, 2 * KEY_BYTES, "%.*s %s", (int)MIN(build->want.team_id.len, (size_t)60),
                       build->want.team_id.at, key);

    return str_of(room, (size_t)len);
}

bool cache_take(struct build *build, const char *key)
{
    struct builder *builder = build->builder;
    char room[2 * KEY_BYTES];
    struct str name = busy_name(build, key, room);
    bool is_told = false;

    for (;;) {
        {
            auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);
            if (!map_get(&builder->busy, name)) {
                (void)map_put(&builder->busy, arena_copy(&build->arena, name), build); /* the map borrows it */
                return true;
            }
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += BUILD_LOOK_MS * 1000000L;
            until.tv_sec += until.tv_nsec / 1000000000L;
            until.tv_nsec %= 1000000000L;
            (void)pthread_cond_timedwait(&builder->changed, &builder->lock, &until);
        }
        if (!is_told)
            build_say(build, BUILD_DEBUG, "[%s] waiting for a build that does the same", build->prefix);
        is_told = true;
        log_tick(build);
        if (!build_goes_on(build))
            return false;
    }
}

void cache_leave(struct build *build, const char *key)
{
    struct builder *builder = build->builder;
    char room[2 * KEY_BYTES];
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);

    (void)map_remove(&builder->busy, busy_name(build, key, room));
    pthread_cond_broadcast(&builder->changed);
}

/* ---- rows ---- */

static bool has_envs(const struct chain *chain, const struct chain *other)
{
    bool is_same = chain->env_count == other->env_count;

    for (uint32_t i = 0; is_same && i < chain->env_count; i++)
        is_same =
            str_eq(chain->envs[i].name, other->envs[i].name) && str_eq(chain->envs[i].value, other->envs[i].value);
    return is_same;
}

/* The row is in an arena that ends before the build's. Most steps leave the environment as it is: that is not copied again. */
static bool adopt(struct build *build, const char *key, const struct cached_step *row, struct arena *scratch,
                  struct err *err)
{
    struct chain chain = build->chain, got = { 0 };
    struct str *layers = ARENA_ARRAY(&build->arena, struct str, row->layer_count);

    if (!envs_read(row->context.envs, scratch, &got, err) ||
        (!has_envs(&chain, &got) && !envs_read(row->context.envs, &build->arena, &chain, err)))
        return false;
    memcpy(chain.key, key, KEY_BYTES);
    for (uint32_t i = 0; i < row->layer_count; i++)
        layers[i] = arena_copy(&build->arena, row->layers[i]);
    chain.layer_count = row->layer_count;
    chain.layers = layers;
    chain.user = arena_copy(&build->arena, row->context.user);
    chain.workdir = arena_copy(&build->arena, row->context.workdir);
    build->chain = chain;
    return true;
}

/* It is held before anybody can see that its row is gone. */
static bool find_step(struct build *build, const char *key, struct arena *arena, struct cached_step *out,
                      struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&build->builder->holds.lock);

    if (!store_step_find(build->builder->config.store, build->want.team_id, str_from(key), arena, out, err))
        return false;
    layers_hold(build, out->layers, out->layer_count);
    return true;
}

bool cache_begin(struct build *build, const char *key, bool *out_hit)
{
    struct cached_step row;
    struct arena scratch;
    struct err err;

    *out_hit = false;
    if (!cache_take(build, key))
        return false;
    if (build->is_forced)
        return true;
    arena_init(&scratch);
    bool there = find_step(build, key, &scratch, &row, &err);
    *out_hit = there && adopt(build, key, &row, &scratch, &err);
    arena_done(&scratch);
    if (!there && err.kind == ERR_NOT_FOUND)
        return true;
    cache_leave(build, key);
    return *out_hit || build_fail_err(build, &err);
}

/* The team's builds that run are on steps that were used since they began. */
static int64_t oldest_turn_us(const struct build *build)
{
    struct builder *builder = build->builder;
    int64_t oldest_us = INT64_MAX;
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->lock);

    for (const struct build *other = builder->builds; other; other = other->next)
        if (other->is_running && str_eq(other->want.team_id, build->want.team_id))
            oldest_us = MIN(oldest_us, other->began_us);
    return oldest_us;
}

static bool evict(struct build *build, uint64_t bytes, struct str **out, size_t *out_count, struct err *err)
{
    struct builder *builder = build->builder;
    const int64_t before_us = oldest_turn_us(build);
    auto_unlock pthread_mutex_t *held = lock_mutex(&builder->holds.lock);
    size_t count;

    if (!store_steps_evict(builder->config.store, build->want.team_id, before_us, bytes, &build->arena, out, &count,
                           err))
        return false;
    *out_count = layers_doom(builder, *out, count, count); /* builds of other teams may be on some of it */
    return true;
}

static bool make_room(struct build *build, uint64_t bytes, struct err *err)
{
    size_t count, dropped;
    struct str *ids;

    return evict(build, bytes, &ids, &count, err) && layers_drop(build->builder, ids, count, UINT64_MAX, &dropped, err);
}

static uint64_t too_much(const struct build *build, uint64_t of_team, uint64_t of_all)
{
    const struct builder_config *config = &build->builder->config;

    return MAX(of_team > config->bytes_of_team ? of_team - config->bytes_of_team : 0,
               of_all > config->bytes ? of_all - config->bytes : 0);
}

bool cache_room(struct build *build, uint64_t bytes)
{
    const struct builder_config *config = &build->builder->config;
    uint64_t of_team, of_all;
    struct err err;

    for (int attempt = 0; attempt < 2; attempt++) {
        if (!store_build_bytes(config->store, build->want.team_id, &of_team, &of_all, &err))
            return build_fail_err(build, &err);
        uint64_t over = too_much(build, of_team + bytes, of_all + bytes);
        if (!over)
            return true;
        if (attempt == 0 && !make_room(build, over, &err))
            return build_fail_err(build, &err);
    }
    if (of_team + bytes > config->bytes_of_team)
        return build_fail(
            build,
            "the builds of this team take %llu MB on disk, and there is no room for %llu more of the %llu "
            "MB that they may take: delete templates that are not needed any more, and try again when no "
            "other build runs",
            (unsigned long long)(of_team >> 20), (unsigned long long)(bytes >> 20),
            (unsigned long long)(config->bytes_of_team >> 20));
    return build_fail(build,
                      "the builds of all teams take %llu MB on disk, of %llu MB that they may take: delete templates "
                      "that are not needed any more, or ask the operator to",
                      (unsigned long long)(of_all >> 20), (unsigned long long)(config->bytes >> 20));
}

bool cache_keep(struct build *build, const struct kept *kept)
{
    uint64_t bytes = kept ? kept->layer_bytes + build->image_bytes : 0;
    struct builder *builder = build->builder;
    const struct chain *chain = &build->chain;
    struct cached_step row = {
        .team_id = build->want.team_id,
        .key = str_from(chain->key),
        .kept_id = kept ? str_from(kept->id) : STR(""),
        .layer_count = chain->layer_count,
        .layers = chain->layers,
        .context = { .user = chain->user, .workdir = chain->workdir },
        .bytes = bytes,
        .layer_bytes = kept ? kept->layer_bytes : 0,
        .text = build->text,
    };
    struct arena scratch;
    struct err err, ignored;

    arena_init(&scratch);
    bool ok = envs_text(build, chain, &scratch, &row.context.envs) && (!kept || cache_room(build, bytes)) &&
              (store_step_put(builder->config.store, &row, &err) || build_fail_err(build, &err));
    arena_done(&scratch);
    cache_leave(build, chain->key);
    build->image_bytes = 0;
    if (!ok && kept) /* else the next start of the server removes it */
        (void)!sandbox_drop_snapshot(builder->config.sandboxes, row.kept_id, &ignored);
    return ok;
}
