/*
 * What a build begins with: a template of this server, a build, or an image.
 *
 * An image is pulled (pull.h) from a registry, or read from an archive that the client has uploaded; each of its layers is
 * unpacked by the driver as a layer of ours, named by the OCI chain id: images that begin with the same layers share them. The
 * lower ones are unpacked while others are still on their way. Then a script makes it fit for sandboxes (provision.sh), as one more
 * step, and all of it together is the cached step of this image. An image's tag is not looked up again while it is cached.
 */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/log.h"
#include "template/inside.h"

/* Instead of a step's key. The driver unpacks few at once, as they come: no team has more than one of its places. */
#define UNPACK_TURN "unpack"
#define PROVISION_VERSION "1" /* of provision.sh: another one makes images anew */

enum { PROVISION_MS = 15 * 60 * 1000 }; /* packages from a slow mirror */

/* ---- templates of this server ---- */

static void hold(struct build *build, uint32_t layer_count, const struct str *layers)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&build->builder->holds.lock);

    layers_hold(build, layers, layer_count);
}

static void begin_with(struct build *build, uint32_t layer_count, const struct str *layers)
{
    build->chain.layer_count = layer_count;
    build->chain.layers = layers;
}

/* The layers are held. */
static bool from_layers(struct build *build, uint32_t layer_count, const struct str *layers)
{
    const struct build_want *want = &build->want;
    struct arena arena;

    arena_init(&arena);
    struct str *parts = ARENA_ARRAY(&arena, struct str, layer_count + 2);
    parts[0] = STR("1");
    parts[1] = STR("layers");
    memcpy(parts + 2, layers, layer_count * sizeof *parts);
    key_of(build->chain.key, parts, layer_count + 2);
    arena_done(&arena);
    begin_with(build, layer_count, layers);
    if (want->from_image.len)
        build_say(build, BUILD_INFO, "CACHED [base] FROM %.*s [%s]", STR_ARG(want->from_image), build->chain.key);
    else
        build_say(build, BUILD_INFO, "CACHED [base] FROM TEMPLATE %.*s [%s]", STR_ARG(want->from_text),
                  build->chain.key);
    return true;
}

static bool from_template(struct build *build, uint32_t layer_count, const struct str *layers)
{
    hold(build, layer_count, layers);
    return from_layers(build, layer_count, layers);
}

/* It may have been deleted since the build was asked for. One that has taken its place since then does as well. */
static bool find_snapshot(struct build *build, struct snapshot_row *out, struct err *err)
{
    const struct build_want *want = &build->want;
    auto_unlock pthread_mutex_t *held = lock_mutex(&build->builder->holds.lock);

    if (!store_snapshot_get(build->builder->config.store, want->team_id, want->from_snapshot, want->from_tag,
                            &build->arena, out, err))
        return false;
    layers_hold(build, out->layers, out->layer_count); /* which may be those of a build */
    return true;
}

static bool snapshot_gone(struct build *build)
{
    struct str name = build->want.from_text.len ? build->want.from_text : build->want.from_image;

    return build_fail(build, "snapshot '%.*s' was deleted before the build could begin with it",
                      (int)MIN(name.len, (size_t)200), name.at);
}

static bool from_snapshot(struct build *build)
{
    struct snapshot_row row;
    struct err err;

    if (!find_snapshot(build, &row, &err))
        return err.kind == ERR_NOT_FOUND ? snapshot_gone(build) : build_fail_err(build, &err);
    build->from_kept = row.kept_id;
    return from_layers(build, row.layer_count, row.layers);
}

bool base_is_there(struct build *build)
{
    const struct build_want *want = &build->want;
    const struct chain *chain = &build->chain;
    struct snapshot_row row;
    struct err err;

    if (!build->from_kept.len || !str_eq(chain->layers[chain->layer_count - 1], build->from_kept))
        return true;
    bool is_found = store_snapshot_get(build->builder->config.store, want->team_id, want->from_snapshot, want->from_tag,
                                       &build->arena, &row, &err);
    if (is_found ? str_eq(row.kept_id, build->from_kept) : err.kind != ERR_NOT_FOUND)
        return true;
    return snapshot_gone(build);
}

/* Its template may be deleted meanwhile: the layers are held before anybody can see that. */
static bool find_build(struct build *build, struct build_row *out, struct err *err)
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&build->builder->holds.lock);

    if (!store_build_get(build->builder->config.store, build->want.from_build, &build->arena, out, err))
        return false;
    layers_hold(build, out->layers, out->layer_count);
    return true;
}

static bool from_build(struct build *build)
{
    const struct build_want *want = &build->want;
    struct build_row row;
    struct err err;

    if (!find_build(build, &row, &err))
        return err.kind == ERR_NOT_FOUND ? build_fail(build, "template '%.*s' not found", STR_ARG(want->from_text))
                                         : build_fail_err(build, &err);
    if (row.state != BUILD_READY || !row.layer_count)
        return build_fail(build, "template '%.*s' is not ready", STR_ARG(want->from_text));
    key_of(build->chain.key, (struct str[]){ STR("1"), STR("template"), want->from_build }, 3);
    if (!envs_read(row.context.envs, &build->arena, &build->chain, &err) ||
        !envs_read(row.start_context.envs, &build->arena, &build->start_chain, &err))
        return build_fail_err(build, &err);
    begin_with(build, row.layer_count, row.layers);
    build->chain.workdir = row.context.workdir;
    build->from_template = row.template_id;
    build->start_cmd = row.start_cmd;
    build->ready_cmd = row.ready_cmd;
    build->start_chain.user = row.start_context.user;
    build->start_chain.workdir = row.start_context.workdir;
    build_say(build, BUILD_INFO, "CACHED [base] FROM TEMPLATE %.*s [%s]", STR_ARG(want->from_text), build->chain.key);
    return true;
}

/* ---- images ---- */

/* Of one image. */
struct unpacking {
    struct build *build;
    struct unpack_want want;
    struct kept kept;
    struct str layers[LIMIT_IMAGE_LAYERS];
};

static void said(void *context, struct str line)
{
    struct build *build = ((const struct unpacking *)context)->build;

    build_say(build, BUILD_INFO, "%.*s", (int)MIN(line.len, (size_t)1000), line.at);
    log_tick(build);
}

static bool is_cancelled(void *context)
{
    struct build *build = ((const struct unpacking *)context)->build;

    log_tick(build);
    return !build_goes_on(build);
}

static const char *architecture(struct utsname *room)
{
    if (uname(room) < 0 || !strcmp(room->machine, "x86_64"))
        return "amd64";
    return !strcmp(room->machine, "aarch64") ? "arm64" : room->machine;
}

static void size_text(uint64_t bytes, char room[32])
{
    (void)snprintf(room, 32, "%llu MB", (unsigned long long)((bytes + 999999) / 1000000));
}

/*
 * Each on top of the ones before. What was unpacked is the driver's snapshots, by the same ids. Another build may be on them as
 * soon as they are there, so they are not dropped here, whatever becomes of this one: they are held, and written down before
 * they are made as what goes when nothing needs them.
 */
static bool unpack_layer(struct unpacking *unpacking, const struct pulled_layer *layer)
{
    struct build *build = unpacking->build;
    struct unpack_want *want = &unpacking->want;
    struct kept *kept = &unpacking->kept;
    char size[32];
    struct err err;

    size_text(layer->size, size);
    build_say(build, BUILD_INFO, "Uncompressing layer sha256:%s %s", layer->diff_hex, size);
    log_flush(build);
    memcpy(want->chain, layer->chain_hex, sizeof want->chain);
    memcpy(want->diff, layer->diff_hex, sizeof want->diff);
    if (!build_goes_on(build))
        return false;
    const struct str id = str_from(want->chain);
    hold(build, 1, &id);
    if (!store_build_keep(build->builder->config.store, id, &err))
        return build_fail_err(build, &err);
    if (!cache_take(build, UNPACK_TURN))
        return false;
    bool ok = driver_unpack(build->builder->config.driver, want, layer->fd, kept, &err);
    cache_leave(build, UNPACK_TURN);
    if (!ok)
        return err.kind == ERR_LIMIT
                   ? build_fail(build, "the image's files are larger than %llu MB, the largest size of a file system",
                                (unsigned long long)(LIMIT_UNPACKED_BYTES >> 20))
                   : build_fail(build, "failed to unpack layer sha256:%.12s: %s", layer->diff_hex, err.message);
    if (!store_build_measured(build->builder->config.store, id, kept->layer_bytes, &err))
        return build_fail_err(build, &err);
    want->most_bytes -= MIN(kept->layer_bytes, want->most_bytes);
    build->image_bytes += kept->layer_bytes;
    memcpy(want->layers[want->layer_count++], layer->chain_hex, LAYER_ID_BYTES);
    return true;
}

static bool on_layer(void *context, const struct pulled *so_far, uint32_t number)
{
    struct unpacking *unpacking = context;
    const struct pulled_layer *layer = &so_far->layers[number];

    unpacking->layers[number] = arena_copy(&unpacking->build->arena, str_from(layer->chain_hex));
    return unpack_layer(unpacking, layer);
}

static bool take_envs(struct build *build, const struct pulled *image)
{
    envs_own(&build->chain, &build->arena, image->env_count);
    for (uint32_t i = 0; i < image->env_count; i++) {
        struct str value = image->envs[i], name;
        if (str_cut(&value, '=', &name) && name.len && value.len && !build_env(build, name, value))
            return false;
    }
    return true;
}

static bool provision(struct build *build, struct kept *out)
{
    struct workplace place = { .build = build };
    struct run_result result;

    build_say(build, BUILD_INFO, "Provisioning sandbox template");
    if (!workplace_open(&place, build))
        return false;
    bool ok = workplace_run(&place,
                            &(struct command){ .shell = STR("/bin/sh"),
                                               .workdir = STR("/"),
                                               .text = str_from(template_provision_sh),
                                               .is_quiet = true,
                                               .most_ms = PROVISION_MS },
                            NULL, &result);
    if (ok && (result.state != RUN_EXITED || result.exit_code != 0))
        ok = build_fail(build, "failed to provision the image: %s", result.text);
    ok = ok && workplace_seal(&place, out);
    workplace_close(&place);
    return ok;
}

/* archive_fd: -1, or the archive that it is in. */
static bool pull(struct build *build, int archive_fd, struct kept *out_kept)
{
    const struct builder_config *config = &build->builder->config;
    struct unpacking *unpacking = ARENA_NEW(&build->arena, struct unpacking);
    struct pulled image = { 0 };
    struct utsname machine;
    struct pull_want want = { .image = archive_fd < 0 ? build->want.from_image : build->want.archive_image,
                              .is_archive = archive_fd >= 0,
                              .archive_fd = archive_fd,
                              .team_id = build->want.team_id,
                              .login = &build->want.login,
                              .architecture = architecture(&machine),
                              .said = said,
                              .cancelled = is_cancelled,
                              .layer = on_layer,
                              .context = unpacking };
    struct err err;

    unpacking->build = build;
    unpacking->want.most_bytes = LIMIT_UNPACKED_BYTES;
    if (!config->puller)
        return build_fail(build, "image '%.*s': images from registries are not available on this server",
                          STR_ARG(want.image));
    log_flush(build);
    if (!puller_pull(config->puller, &want, &build->arena, &image, &err))
        return build_goes_on(build) && build_fail(build, "%s", err.message);
    begin_with(build, image.layer_count, unpacking->layers);
    pulled_done(&image);
    build_say(build, BUILD_INFO, "Layers extracted");
    return take_envs(build, &image) && provision(build, out_kept);
}

static bool begin_key(struct build *build, const char *key, struct str name, bool *out_hit)
{
    if (!cache_begin(build, key, out_hit))
        return false;
    build->text = arena_format(&build->arena, "FROM %.*s", STR_ARG(name));
    build_say(build, BUILD_INFO, "%s[base] FROM %.*s [%s]", *out_hit ? "CACHED " : "", STR_ARG(name), key);
    return true;
}

/* The image that was not in the cache becomes what it has under this key. */
static bool make_key(struct build *build, const char *key, int archive_fd)
{
    struct chain before = build->chain;
    struct kept *kept = ARENA_NEW(&build->arena, struct kept);

    if (pull(build, archive_fd, kept)) {
        memcpy(build->chain.key, key, KEY_BYTES);
        return cache_keep(build, kept);
    }
    cache_leave(build, key);
    build->chain = before;
    return false;
}

static bool from_image(struct build *build)
{
    struct str image = build->want.from_image;
    char key[KEY_BYTES];
    bool is_hit;

    key_of(key, (struct str[]){ STR("1"), STR("image"), STR(PROVISION_VERSION), image }, 4);
    return begin_key(build, key, image, &is_hit) && (is_hit || make_key(build, key, -1));
}

/*
 * An archive is known by the hash that the client has uploaded it under. Nobody compares the two: archives and cache are the
 * team's own.
 */
static bool from_archive(struct build *build)
{
    const struct build_want *want = &build->want;
    struct str name = arena_format(&build->arena, "ARCHIVE %.12s%s%.*s", want->from_archive.at,
                                   want->archive_image.len ? " " : "", STR_ARG(want->archive_image));
    auto_close int fd = -1;
    char key[KEY_BYTES];
    uint64_t size;
    bool is_hit;
    struct err err;

    key_of(key,
           (struct str[]){ STR("1"), STR("archive"), STR(PROVISION_VERSION), want->from_archive, want->archive_image },
           5);
    if (!begin_key(build, key, name, &is_hit))
        return false;
    if (is_hit)
        return true;
    struct uploads *uploads = build->builder->config.uploads;
    if (uploads && upload_open(uploads, want->team_id, want->from_archive, &fd, &size, &err))
        return make_key(build, key, fd);
    cache_leave(build, key);
    return !uploads || err.kind == ERR_NOT_FOUND ? build_fail(build, "the archive is not here: upload it again")
                                                 : build_fail_err(build, &err);
}

/* An image of which the image map says that it is a template. */
static bool from_mapped(struct build *build, struct str name)
{
    struct template_row template;
    struct err err;

    if (store_template_by_alias(build->builder->config.store, STR(""), name, &build->arena, &template, &err))
        return from_template(build, template.layer_count, template.layers);
    return err.kind == ERR_NOT_FOUND
               ? build_fail(build, "image '%.*s': the operator has made it the template '%.*s', which does not exist",
                            (int)MIN(build->want.from_image.len, (size_t)200), build->want.from_image.at, STR_ARG(name))
               : build_fail_err(build, &err);
}

static bool from_given(struct build *build)
{
    const struct build_want *want = &build->want;

    return want->from_snapshot.len ? from_snapshot(build)
                                   : from_template(build, want->from_layer_count, want->from_layers);
}

static bool from_reference(struct build *build)
{
    const struct build_want *want = &build->want;
    struct puller *puller = build->builder->config.puller;
    struct str name = STR("");
    struct err err;

    if (puller && !puller_template(puller, want->from_image, &build->arena, &name, &err))
        return build_fail(build, "%s", err.message);
    bool is_given = (want->from_snapshot.len || want->from_layer_count > 0) && (!puller || str_eq(name, STR("base")));
    if (is_given)
        return from_given(build);
    return name.len ? from_mapped(build, name) : from_image(build);
}

bool run_base(struct build *build)
{
    const struct build_want *want = &build->want;

    (void)snprintf(build->step, sizeof build->step, "base");
    (void)snprintf(build->prefix, sizeof build->prefix, "base");
    if (want->from_error.len)
        return build_fail(build, "%.*s", (int)MIN(want->from_error.len, (size_t)1000), want->from_error.at);
    bool ok = want->from_build.len     ? from_build(build)
              : want->from_image.len   ? from_reference(build)
              : want->from_archive.len ? from_archive(build)
              : want->from_snapshot.len || want->from_layer_count > 0
                  ? from_given(build)
                  : build_fail(build, "a build needs an image or a template to begin with");
    if (!ok)
        return false;
    build->chain.user = STR("");
    return want->dialect == DIALECT_2_0 || run_default_user(build);
}
