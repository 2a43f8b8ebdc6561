/*
 * Theory of operation: the recipe (its script, its settings, the layers below) is hashed. If there is a template with that
 * hash and its layers exist, nothing is built. Otherwise the script runs in a sandbox on base's layers (struct
 * recipe_place), which leaves what it has written in tmp/. layer_seal() makes that a layer, and template_save() the
 * template. What the script lists at its end is noted in packages/.
 */
#include "image/recipe.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/random.h"
#include "image/build.h"

#define LOG_NAME "recipe-log"    /* in tmp/: the script's whole output; the next build removes it */
#define PACKAGE_MARK "package: " /* before each line of the list that a script ends with */

enum { SCRIPT_PERCENT = 92 }; /* of the whole; the rest is writing to disk */

struct recipe {
    const char *name, *short_name;
    const char *script;
    const char *setting; /* "NAME=value" for the script */
    uint32_t cpu_millis;
    uint64_t memory_bytes;
};

static const struct recipe recipes[] = {
    { "code-interpreter-v1", "code-interpreter", recipe_code_interpreter_sh, "JAVA_KERNEL=3.0.1", 2000, 2ull << 30 },
};

bool recipe_at(size_t index, const char **out_name, const char **out_makes)
{
    if (index > COUNT_OF(recipes))
        return false;
    *out_name = index == 0 ? "base" : recipes[index - 1].short_name;
    *out_makes = index == 0 ? "base" : recipes[index - 1].name;
    return true;
}

void recipe_largest(uint32_t *out_cpus, uint32_t *out_memory_mb)
{
    *out_cpus = *out_memory_mb = 0;
    for (size_t i = 0; i < COUNT_OF(recipes); i++) {
        struct template made = { .cpu_millis = recipes[i].cpu_millis, .memory_bytes = recipes[i].memory_bytes };
        *out_cpus = MAX(*out_cpus, template_cpus(&made));
        *out_memory_mb = MAX(*out_memory_mb, template_memory_mb(&made));
    }
}

const char *recipe_names(void)
{
    return "base, code-interpreter";
}

static const struct recipe *find_recipe(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(recipes); i++)
        if (strcmp(recipes[i].name, name) == 0 || strcmp(recipes[i].short_name, name) == 0)
            return &recipes[i];
    return NULL;
}

/* ---- progress ---- */

struct script_run {
    const struct bootstrap_want *want;
    struct recipe_meter meter;
    struct buf *packages;
    int log_fd;
    char last_line[BUILD_LINE_BYTES]; /* the newest line that looks like an error, or else the newest one */
    bool has_complaint;
};

static void tell(const struct bootstrap_want *want, unsigned percent, const char *phase)
{
    if (want->progress)
        want->progress(want->progress_context, percent, phase);
}

static bool is_complaint(struct str line)
{
    return str_starts(line, STR("E: ")) || str_starts(line, STR("ERROR")) || str_starts(line, STR("npm error")) ||
           str_starts(line, STR("curl: "));
}

/* "== 5 20 fetching packages": from five percent of the whole to twenty. */
static bool read_phase(struct recipe_meter *meter, struct str line)
{
    struct str from_word, to_word;
    uint64_t from, to;

    if (!str_skip(&line, STR("== ")) || !str_cut(&line, ' ', &from_word) || !str_cut(&line, ' ', &to_word) ||
        !str_to_u64(from_word, 100, &from) || !str_to_u64(to_word, 100, &to) || from > to)
        return false;
    meter->from = meter->percent = (unsigned)from;
    meter->to = (unsigned)to;
    (void)snprintf(meter->phase, sizeof meter->phase, "%.*s", STR_ARG(line));
    return true;
}

/* apt's progress within a phase: "dlstatus:12:34.5:Retrieving file 12 of 400", "pmstatus:bash:56.7:Unpacking bash". */
static bool read_apt_status(struct str line, uint64_t *out_percent)
{
    struct str word, whole;
    bool is_download = str_skip(&line, STR("dlstatus:"));

    if ((!is_download && !str_skip(&line, STR("pmstatus:"))) || !str_cut(&line, ':', &word))
        return false;
    while (str_cut(&line, ':', &word)) /* a package's name may contain a colon: bash:amd64 */
        if (str_cut(&word, '.', &whole) && str_to_u64(whole, 100, out_percent))
            return true;
    return false;
}

bool recipe_meter_line(struct recipe_meter *meter, struct str line)
{
    uint64_t percent;

    if (read_phase(meter, line))
        return true;
    if (!read_apt_status(line, &percent))
        return false;
    unsigned now = meter->from + (meter->to - meter->from) * (unsigned)percent / 100;
    bool moved = now > meter->percent; /* apt counts to a hundred twice: fetching, then unpacking */
    if (moved)
        meter->percent = now;
    return moved;
}

static bool is_status(struct str line)
{
    return str_starts(line, STR("dlstatus:")) || str_starts(line, STR("pmstatus:"));
}

static void take_line(void *context, struct str line)
{
    struct script_run *run = context;
    struct str package = line;

    (void)dprintf(run->log_fd, "%.*s\n", STR_ARG(line)); /* a build does not fail for lack of its log */
    if (str_skip(&package, STR(PACKAGE_MARK)))
        buf_format(run->packages, "%.*s\n", STR_ARG(package));
    else if (recipe_meter_line(&run->meter, line)) {
        tell(run->want, run->meter.percent * SCRIPT_PERCENT / 100, run->meter.phase);
    } else if (line.len && !is_status(line) && (is_complaint(line) || !run->has_complaint)) {
        run->has_complaint |= is_complaint(line);
        (void)snprintf(run->last_line, sizeof run->last_line, "%.*s", STR_ARG(line));
    }
}

/* ---- the script ---- */

static bool run_recipe(const struct recipe *recipe, const struct template *base, int data_fd, int tmp_fd,
                       const struct bootstrap_want *want, const struct recipe_place *place, struct buf *packages,
                       struct err *err)
{
    auto_close int log_fd = openat(tmp_fd, LOG_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct script_run run = { .want = want, .packages = packages, .log_fd = log_fd };
    const struct recipe_job job = { recipe->script, recipe->setting, base, take_line, &run };
    bool fine;

    tell(want, 0, "starting a sandbox");
    if (!place->run(place->context, data_fd, tmp_fd, &job, &fine, err))
        return false;
    return fine || err_set(err, ERR_UNAVAILABLE, "the recipe failed (its output is in tmp/" LOG_NAME "): %.90s",
                           run.last_line[0] ? run.last_line : "it did not say why");
}

/* ---- building ---- */

static void recipe_hash(const struct recipe *recipe, const struct template *base, char out_hex[LAYER_HEX_BYTES])
{
    crypto_generichash_state state;
    unsigned char hash[32];

    (void)crypto_generichash_init(&state, NULL, 0, sizeof hash);
    build_hash_add(&state, "cloister recipe 2"); /* change the number when the code of this file changes the result */
    build_hash_add(&state, recipe->script);
    build_hash_add(&state, recipe->setting);
    for (uint32_t i = 0; i < base->layer_count; i++)
        build_hash_add(&state, base->layers[i]);
    (void)crypto_generichash_final(&state, hash, sizeof hash);
    (void)hex_text(str_of(hash, sizeof hash), out_hex);
}

enum recipe_state recipe_state(int data_fd, const char *makes)
{
    const struct recipe *recipe = find_recipe(makes);
    struct template made, base;
    char hash[LAYER_HEX_BYTES];
    struct err err;

    if (!template_find(data_fd, makes, &made, &err))
        return RECIPE_NOT_BUILT;
    bootstrap_recipe(hash);
    if (!template_find(data_fd, "base", &base, &err) || !template_is_current(data_fd, &base, hash))
        return RECIPE_OUTDATED;
    if (!recipe)
        return RECIPE_CURRENT;
    recipe_hash(recipe, &base, hash);
    return template_is_current(data_fd, &made, hash) ? RECIPE_CURRENT : RECIPE_OUTDATED;
}

static bool build_layer(int data_fd, int tmp_fd, const struct recipe *recipe, const struct template *base,
                        const struct bootstrap_want *want, const struct recipe_place *place,
                        char out_layer[LAYER_HEX_BYTES], struct err *err)
{
    auto_buf struct buf packages = buf_make(NULL, BUILD_PACKAGES_BYTES);

    for (uint32_t i = 0; i < base->layer_count; i++)
        if (!layer_exists(data_fd, base->layers[i])) /* another build has replaced base before we had the lock */
            return err_set(err, ERR_CONFLICT, "the base template has changed meanwhile: build again");
    if (!run_recipe(recipe, base, data_fd, tmp_fd, want, place, &packages, err))
        return false;
    tell(want, 93, "writing to disk");
    return layer_seal(data_fd, RECIPE_UPPER, out_layer, err) &&
           build_note_packages(data_fd, recipe->name, out_layer, buf_str(&packages), err);
}

static bool build_on_base(int data_fd, const struct recipe *recipe, const struct template *base,
                          const struct bootstrap_want *want, const struct recipe_place *place, struct template *out,
                          struct err *err)
{
    struct template made = *base, before;

    recipe_hash(recipe, base, made.recipe);
    bool known = template_find(data_fd, recipe->name, &before, err);
    if (!known && err->kind != ERR_NOT_FOUND)
        return err_wrap(err, "look for %s", recipe->name);
    if (known && !want->again && template_is_current(data_fd, &before, made.recipe)) {
        tell(want, 100, "already there");
        *out = before;
        return true;
    }
    if (base->layer_count == LIMIT_LAYERS)
        return err_set(err, ERR_LIMIT, "the base template has %d layers already", LIMIT_LAYERS);
    auto_close int lock_fd = -1; /* until the template is saved: a layer without one would be swept */
    if (!layers_prepare(data_fd, &lock_fd, err) ||
        !build_layer(data_fd, lock_fd, recipe, base, want, place, made.layers[made.layer_count], err))
        return err_wrap(err, "make %s", recipe->name);
    made.layer_count++;
    if (known)
        memcpy(made.id, before.id, sizeof made.id);
    else
        random_id(made.id, TEMPLATE_ID_CHARS);
    (void)snprintf(made.name, sizeof made.name, "%s", recipe->name);
    made.cpu_millis = recipe->cpu_millis;
    made.memory_bytes = recipe->memory_bytes;
    made.created_us = clock_wall_us();
    if (!template_save(data_fd, &made, err))
        return false;
    tell(want, 100, "done");
    *out = made;
    return true;
}

/* Progress of base while it is built for another template; that it exists already is not reported. */
static void tell_if_made(void *context, unsigned percent, const char *phase)
{
    if (percent < 100)
        tell(context, percent, phase);
}

bool recipe_build(int data_fd, const char *name, const struct bootstrap_want *want, const struct recipe_place *place,
                  struct template *out, struct err *err)
{
    const struct recipe *recipe = find_recipe(name);
    struct bootstrap_want for_base = *want;
    struct template base;

    if (strcmp(name, "base") == 0)
        return bootstrap_base(data_fd, want, out, err);
    if (!recipe)
        return err_set(err, ERR_NOT_FOUND, "no recipe for a template '%.60s'; there are: %s", name, recipe_names());
    for_base.progress = tell_if_made;
    for_base.progress_context = (void *)want; /* tell() only reads it */
    for_base.again = false;                   /* --again applies to the named template only */
    return bootstrap_base(data_fd, &for_base, &base, err) &&
           build_on_base(data_fd, recipe, &base, want, place, out, err);
}
