/*
 * Theory of operation: the recipe (its script, its settings, the layers below) is hashed. If there is a template with
 * that hash and its layers exist, nothing is built. Otherwise a child enters a mount namespace of its own, mounts base
 * with an empty upper directory on top, changes its root there and runs the script. The mounts end with the child. The
 * upper directory then holds exactly what the script has changed, and layer_seal() makes it a layer.
 *
 * The script needs the network, so it sees the host's resolv.conf and certificates while it runs. Both are mounted over
 * base's files and leave no trace in the layer.
 */
#include "image/recipe.h"

#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/random.h"
#include "base/remove.h"
#include "image/build.h"

#define UPPER_NAME "recipe-upper" /* in tmp/ */
#define WORK_NAME "recipe-work"
#define ROOT_NAME "recipe-root"
#define LOG_NAME "recipe-log" /* the script's whole output; the next build removes it */

enum {
    OPTIONS_BYTES = 4000, /* of one mount: the kernel accepts a page */
    SCRIPT_PERCENT = 92,  /* of the whole; the rest is writing to disk */
};

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
    const struct recipe *recipe;
    const struct place *place;
    struct recipe_meter meter;
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

    if (recipe_meter_line(&run->meter, line)) {
        tell(run->want, run->meter.percent * SCRIPT_PERCENT / 100, run->meter.phase);
    } else if (line.len && !is_status(line) && (is_complaint(line) || !run->has_complaint)) {
        run->has_complaint |= is_complaint(line);
        (void)snprintf(run->last_line, sizeof run->last_line, "%.*s", STR_ARG(line));
    }
}

/* ---- the script in its chroot ---- */

struct place {
    char options[OPTIONS_BYTES]; /* of the overlay */
    char root[LIMIT_PATH_BYTES];
};

/* Overlayfs lists the topmost layer first, a template the lowest one first. */
static bool make_place(int data_fd, const struct template *base, struct place *out, struct err *err)
{
    char data[LIMIT_PATH_BYTES];
    struct buf options = buf_make(NULL, sizeof out->options - 1);
    static const char *const names[] = { "tmp/" UPPER_NAME, "tmp/" WORK_NAME, "tmp/" ROOT_NAME };

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (mkdirat(data_fd, names[i], 0755) < 0 || fchmodat(data_fd, names[i], 0755, 0) < 0) /* whatever the umask */
            return err_sys(err, "make %s", names[i]);
    if (!build_path(data_fd, data, sizeof data, err))
        return false;
    buf_add(&options, STR("lowerdir="));
    for (uint32_t i = base->layer_count; i-- > 0;)
        buf_format(&options, "%s/layers/%s%s", data, base->layers[i], i ? ":" : "");
    buf_format(&options, ",upperdir=%s/tmp/" UPPER_NAME ",workdir=%s/tmp/" WORK_NAME, data, data);
    bool fits = !options.overflowed && strlen(data) + sizeof ROOT_NAME + 8 < sizeof out->root;
    (void)snprintf(out->options, sizeof out->options, "%.*s", STR_ARG(buf_str(&options)));
    (void)snprintf(out->root, sizeof out->root, "%.4000s/tmp/" ROOT_NAME, data);
    buf_done(&options);
    return fits || err_set(err, ERR_LIMIT, "the path of the data directory is too long");
}

/* Host files that the script sees in place of base's own. A file that is missing on either side is left out. */
static const char *const borrowed[] = { "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt" };

/*
 * run_script() - between fork and the recipe's shell.
 *   user      root, in the host's user namespace     mounts   a private copy of the host's (build_run())
 *   root      the host's, then the new template's    network  the host's
 *   must      change the root before anything of the template runs
 */
static void run_script(void *context)
{
    const struct script_run *run = context;
    const struct recipe *recipe = run->recipe;
    const struct place *place = run->place;
    const char *environment[8] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                                   "PIP_CERT=/etc/ssl/certs/ca-certificates.crt",
                                   "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt", recipe->setting };
    static const char *const kept[] = { "http_proxy", "https_proxy" };
    char pairs[COUNT_OF(kept)][512];
    size_t count = 5;
    char path[LIMIT_PATH_BYTES];

    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        const char *value = getenv(kept[i]);
        if (value && (size_t)snprintf(pairs[i], sizeof pairs[i], "%s=%s", kept[i], value) < sizeof pairs[i])
            environment[count++] = pairs[i];
    }
    if (mount("overlay", place->root, "overlay", 0, place->options) < 0)
        build_give_up("mount an overlay");
    for (size_t i = 0; i < COUNT_OF(borrowed); i++) {
        if (snprintf(path, sizeof path, "%.3900s%s", place->root, borrowed[i]) > 0 && access(path, F_OK) == 0)
            (void)mount(borrowed[i], path, NULL, MS_BIND, NULL);
    }
    if (chdir(place->root) < 0 || mount("proc", "proc", "proc", 0, NULL) < 0 ||
        mount("/dev", "dev", NULL, MS_BIND | MS_REC, NULL) < 0 || chroot(".") < 0)
        build_give_up("enter the new template");
    (void)execle("/bin/sh", "sh", "-eu", "-c", recipe->script, (char *)NULL, environment);
    build_give_up("start a shell");
}

static bool run_recipe(const struct recipe *recipe, const struct place *place, int tmp_fd,
                       const struct bootstrap_want *want, struct err *err)
{
    auto_close int log_fd = openat(tmp_fd, LOG_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct script_run run = { .want = want, .recipe = recipe, .place = place };
    const struct build_child child = { run_script, take_line, &run, SIGKILL, log_fd, -1 };
    bool fine;

    if (!build_run(&child, &fine, err))
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
    build_hash_add(&state, "cloister recipe 1"); /* change the number when the code of this file changes the result */
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
                        const struct bootstrap_want *want, char out_layer[LAYER_HEX_BYTES], struct err *err)
{
    struct place place;

    for (uint32_t i = 0; i < base->layer_count; i++)
        if (!layer_exists(data_fd, base->layers[i])) /* another build has replaced base before we had the lock */
            return err_set(err, ERR_CONFLICT, "the base template has changed meanwhile: build again");
    if (!make_place(data_fd, base, &place, err) || !run_recipe(recipe, &place, tmp_fd, want, err))
        return false;
    tell(want, 93, "writing to disk");
    return remove_tree(tmp_fd, WORK_NAME, err) && remove_tree(tmp_fd, ROOT_NAME, err) &&
           layer_seal(data_fd, UPPER_NAME, out_layer, err);
}

static bool build_on_base(int data_fd, const struct recipe *recipe, const struct template *base,
                          const struct bootstrap_want *want, struct template *out, struct err *err)
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
        !build_layer(data_fd, lock_fd, recipe, base, want, made.layers[made.layer_count], err))
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

bool recipe_build(int data_fd, const char *name, const struct bootstrap_want *want, struct template *out,
                  struct err *err)
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
    return bootstrap_base(data_fd, &for_base, &base, err) && build_on_base(data_fd, recipe, &base, want, out, err);
}
