/*
 * kernelspec.h - finds the template's Jupyter kernels and their languages.
 *
 * A kernelspec is a directory with a kernel.json: the command that starts it, and its language. The guest can write
 * these files, so they are read with a cap, and a malformed one is ignored.
 */
#ifndef GUEST_INTERPRETER_KERNELSPEC_H
#define GUEST_INTERPRETER_KERNELSPEC_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "guest/users.h"

struct kernelspec {
    char **argv; /* "{connection_file}" is replaced by the file's name */
    size_t argc;
    json_t *env;                /* an object; may be NULL */
    bool interrupts_by_message; /* instead of SIGINT */
    char language[64];          /* lower case */
};

/* By the directory's name or by its language. NULL if there is none. */
struct kernelspec *kernelspec_find_new(const struct user *user, const char *language) must_use;
void kernelspec_free(struct kernelspec *spec);

/* All of them: "bash, r". */
void kernelspec_list(const struct user *user, struct arena *arena, char *room, size_t size);

#endif
