/*
 * The end of a build. If the template has a start command, it is run here, and when it is ready, the sandbox is copied with
 * its processes: sandboxes begin with what runs in that copy. Where a machine cannot do that, each create runs the start
 * command anew (template_start()), on the files as the steps have left them.
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "template/inside.h"
#include "template/start.h"

struct finalizing {
    struct build *build;
    struct lines start, ready;
};

static void hear_start(void *context, enum run_stream stream, struct str bytes)
{
    lines_take(&((struct finalizing *)context)->start, stream, bytes);
}

static void hear_ready(void *context, enum run_stream stream, struct str bytes)
{
    lines_take(&((struct finalizing *)context)->ready, stream, bytes);
}

static bool goes_on(void *context, struct err *err)
{
    struct build *build = ((struct finalizing *)context)->build;

    log_tick(build);
    return build_goes_on(build) || err_set(err, ERR_CONFLICT, "the build is over");
}

static bool start_it(struct build *build, struct workplace *place, struct err *err)
{
    struct finalizing finalizing = { .build = build,
                                     .start = lines_of(build, "start", BUILD_INFO),
                                     .ready = lines_of(build, "ready", BUILD_DEBUG) };
    uint64_t until_ms = MIN(build->until_ms, clock_mono_ms() + LIMIT_READY_MS);

    if (build->start_cmd.len)
        build_say(build, BUILD_INFO, "Running start command: %.*s", STR_ARG(build->start_cmd));
    build_say(build, BUILD_INFO, "Waiting for template to be ready: %.*s", STR_ARG(build->ready_cmd));
    bool ok = start_and_wait(build->builder->config.sandboxes,
                             &(struct starting){ .sandbox_id = place->id,
                                                 .start_cmd = build->start_cmd,
                                                 .ready_cmd = build->ready_cmd,
                                                 .chain = &build->start_chain,
                                                 .until_ms = until_ms,
                                                 .most_ms = LIMIT_READY_MS,
                                                 .start_output = hear_start,
                                                 .ready_output = hear_ready,
                                                 .goes_on = goes_on,
                                                 .context = &finalizing },
                             err);
    lines_done(&finalizing.start);
    lines_done(&finalizing.ready);
    if (ok)
        build_say(build, BUILD_INFO, "Template is ready");
    log_flush(build);
    return ok;
}

/* A copy with its processes. If the machine or these processes do not allow that, there is none, and that is fine. */
static bool take_image(struct build *build, struct workplace *place, struct build_row *row)
{
    struct sandboxes *sandboxes = build->builder->config.sandboxes;
    struct sandbox_info info;
    const struct str *layers;
    uint32_t layer_count;
    struct kept kept;
    struct err err;

    if (!build_goes_on(build))
        return false;
    if (sandbox_snapshot(sandboxes, build->want.build_id, place->id, true, &build->arena, &kept, &info, &layer_count,
                         &layers, &err)) {
        row->image_bytes = kept.layer_bytes + kept.image_bytes;
        if (!cache_room(build, row->image_bytes)) {
            (void)!sandbox_drop_snapshot(sandboxes, str_from(kept.id), &err); /* else the next start does */
            return false;
        }
        row->image = arena_copy(&build->arena, str_from(kept.id));
        row->layers = layers;
        row->layer_count = layer_count;
        return true;
    }
    if (err.kind == ERR_FULL || err.kind == ERR_NOT_FOUND)
        return build_fail_err(build, &err);
    log_info("build %.*s: its processes are not kept: %s", STR_ARG(build->want.build_id), err_text(&err));
    build_say(build, BUILD_WARN, "The start command runs whenever a sandbox is created: %s", err.message);
    return true;
}

/*
 * A build whose steps have written nothing is on the layers of a template or a snapshot, which go when those are made anew or
 * deleted. A layer of its own holds on to them.
 */
static bool hold_layers(struct build *build)
{
    const struct chain *chain = &build->chain;
    struct workplace place = { .build = build };
    struct kept *kept;
    char key[KEY_BYTES];
    bool is_held, is_hit;
    struct err err;

    if (!store_build_keeps(build->builder->config.store, chain->layers[chain->layer_count - 1], &is_held, &err))
        return build_fail_err(build, &err);
    if (is_held)
        return true;
    key_of(key, (struct str[]){ str_from(chain->key), STR("HOLD") }, 2);
    if (!cache_begin(build, key, &is_hit))
        return false;
    if (is_hit)
        return true;
    build->text = STR("");
    kept = ARENA_NEW(&build->arena, struct kept);
    if (workplace_open(&place, build) && workplace_seal(&place, kept)) {
        memcpy(build->chain.key, key, sizeof key);
        return cache_keep(build, kept);
    }
    cache_leave(build, key);
    return false;
}

bool run_finalize(struct build *build, struct build_row *row)
{
    struct workplace place = { .build = build };
    const struct build_want *want = &build->want;
    char key[KEY_BYTES];
    struct err err;

    if (want->start_cmd.len || want->ready_cmd.len) {
        build->start_cmd = want->start_cmd;
        build->ready_cmd = want->ready_cmd;
        build->start_chain = build->chain;
    }
    build->ready_cmd = ready_or_default(build->start_cmd, build->ready_cmd);
    key_of(key, (struct str[]){ str_from(build->chain.key), STR("FINALIZE"), build->start_cmd, build->ready_cmd }, 4);
    build_say(build, BUILD_INFO, "[finalize] Finalizing template build [%s]", key);
    if (!hold_layers(build))
        return false;
    row->layers = build->chain.layers;
    row->layer_count = build->chain.layer_count;
    row->context.user = want->dialect == DIALECT_2_0 ? STR("") : build->chain.user;
    row->context.workdir = want->dialect == DIALECT_2_0 ? STR("") : build->chain.workdir;
    row->from_template = build->from_template;
    row->start_cmd = build->start_cmd;
    row->ready_cmd = build->ready_cmd;
    row->start_context =
        (struct build_context){ .user = build->start_chain.user, .workdir = build->start_chain.workdir };
    if (!envs_text(build, &build->chain, &build->arena, &row->context.envs) ||
        !envs_text(build, &build->start_chain, &build->arena, &row->start_context.envs))
        return false;
    if (!build->ready_cmd.len)
        return build_goes_on(build);
    bool ok = workplace_open(&place, build) &&
              (start_it(build, &place, &err) || (build_goes_on(build) && build_fail(build, "%s", err.message))) &&
              take_image(build, &place, row);
    workplace_close(&place);
    return ok;
}
