/*
 * recipe.h - the templates that Cloister can build, by name.
 *
 * `base` is made by bootstrap.h. Every other recipe is a layer on top of it: a shell script (recipes/) that runs in a
 * chroot whose writes go to a directory of their own, which is then sealed. Nothing of base is copied.
 *
 * Where      As root and outside every role, like bootstrap.h: it runs Debian's package scripts. The mounts are made in
 * a
 *            namespace of the script's own and go with it.
 * Threads    Blocks for minutes. One at a time per data directory.
 * Failure    Leaves at most files in tmp/, which the next run removes; never a half-made template.
 */
#ifndef IMAGE_RECIPE_H
#define IMAGE_RECIPE_H

#include "image/bootstrap.h"

/* By "base", "code-interpreter" or a template's full name. Makes `base` first if need be. ERR_NOT_FOUND lists all. */
bool recipe_build(int data_fd, const char *name, const struct bootstrap_want *want, struct template *out,
                  struct err *err) must_use;

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
