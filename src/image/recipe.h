/*
 * recipe.h - templates by name: how each that we know is made.
 *
 * `base` is made by bootstrap.h. Every other recipe is a layer on top of it: a shell script (recipes/) that runs in a
 * chroot whose writes go to a directory of their own, which is then sealed. Nothing of base is copied.
 *
 * Where      As root and outside every role, like bootstrap.h: it runs Debian's package scripts. The mounts are made in a
 *            namespace of the script's own and go with it.
 * Threads    Blocks for minutes. One at a time per data directory.
 * Failure    Leaves at most rubbish in tmp/, which the next run sweeps; never a half-made template.
 */
#ifndef IMAGE_RECIPE_H
#define IMAGE_RECIPE_H

#include "image/bootstrap.h"

/* By "base", "code-interpreter" or a template's full name. Makes `base` first if need be. ERR_NOT_FOUND lists all. */
bool recipe_build(int data_fd, const char *name, const struct bootstrap_want *want, struct template *out,
                  struct err *err) must_use;

/* All that can be built, one after the other: what to ask for, and the template's full name. False: no more. */
bool recipe_at(size_t index, const char **out_name, const char **out_makes);
/*
 * Whether the template of that full name is there, and made from what this program would make it from. Templates are
 * not made anew by themselves: that takes minutes and the network, and the old layers stay on disk.
 */
enum recipe_state { RECIPE_NOT_BUILT, RECIPE_OUTDATED, RECIPE_CURRENT };
enum recipe_state recipe_state(int data_fd, const char *makes);
/* The most CPUs and MiB that any of the others gives its template; base has no more. */
void recipe_largest(uint32_t *out_cpus, uint32_t *out_memory_mb);
/* "base, code-interpreter" */
const char *recipe_names(void);

/* Progress from what a script prints, a line at a time; exposed for tests. */
struct recipe_meter {
    unsigned percent; /* of the script */
    char phase[80];
    /* private */
    unsigned from, to; /* the share of the whole that this phase has */
};
/* True if percent or phase changed. */
bool recipe_meter_line(struct recipe_meter *meter, struct str line);

/* The scripts, embedded at build time. */
extern const char recipe_code_interpreter_sh[];

#endif
