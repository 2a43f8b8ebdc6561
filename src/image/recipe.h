/*
 * recipe.h - the templates that Cloister can build, by name.
 *
 * `base` is made by bootstrap.h. Every other recipe is a layer on top of it: what a shell script (recipes/) has written in a
 * sandbox. Nothing of base is copied. Who calls this brings the sandbox: struct recipe_place.
 *
 * Where      As root and outside every role, like bootstrap.h. The script is root of its sandbox alone.
 * Threads    Blocks for minutes. One at a time per data directory.
 * Failure    Leaves at most files in tmp/, which the next run removes; never a half-made template.
 */
#ifndef IMAGE_RECIPE_H
#define IMAGE_RECIPE_H

#include "image/bootstrap.h"

#define RECIPE_UPPER "recipe-upper" /* in tmp/ */

struct recipe_job {
    const char *script;                           /* for bash, with -eu */
    const char *setting;                          /* "NAME=value" for the script */
    const struct template *base;                  /* whose layers it runs on */
    void (*line)(void *context, struct str line); /* for each that it prints */
    void *context;
};
/* Where scripts run. */
struct recipe_place {
    /*
     * Runs the script as root of a sandbox. If it exits with 0, *out_fine is true and tmp/RECIPE_UPPER is what it has
     * written: the upper directory of an overlay. False: it was not run.
     */
    bool (*run)(void *context, int data_fd, int tmp_fd, const struct recipe_job *job, bool *out_fine, struct err *err);
    void *context;
};

/* By "base", "code-interpreter" or a template's full name. Makes `base` first if need be. ERR_NOT_FOUND lists all. */
bool recipe_build(int data_fd, const char *name, const struct bootstrap_want *want, const struct recipe_place *place,
                  struct template *out, struct err *err) must_use;

/* Lists what can be built: the recipe's name and the template's full name. False: no more. */
bool recipe_at(size_t index, const char **out_name, const char **out_makes);
/*
 * Whether the template of that full name exists and was made by the same recipe as this program has. Outdated templates
 * are not rebuilt automatically: that takes minutes and the network, and the old layers stay on disk.
 */
enum recipe_state { RECIPE_NOT_BUILT, RECIPE_OUTDATED, RECIPE_CURRENT };
enum recipe_state recipe_state(int data_fd, const char *makes);
/* The largest CPU count and memory of any recipe's template. */
void recipe_largest(uint32_t *out_cpus, uint32_t *out_memory_mb);
/* "base, code-interpreter" */
const char *recipe_names(void);

/* Progress from what a script prints, a line at a time; exposed for tests. */
struct recipe_meter {
    unsigned percent; /* of the script */
    char phase[80];
    /* private */
    unsigned from, to; /* percent of the whole at which this phase begins and ends */
};
/* True if percent or phase changed. */
bool recipe_meter_line(struct recipe_meter *meter, struct str line);

/* The scripts, embedded at build time. */
extern const char recipe_code_interpreter_sh[];

#endif
