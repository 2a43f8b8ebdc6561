/*
 * kernelspec.h - the languages that the template's Jupyter kernels speak.
 *
 * A kernelspec is a directory with a kernel.json: how to start it and what it speaks. The files are the guest's: read with
 * a cap, and one that makes no sense is as good as absent.
 */
#ifndef GUEST_INTERPRETER_KERNELSPEC_H
#define GUEST_INTERPRETER_KERNELSPEC_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "guest/users.h"

struct kernelspec {
    char **argv; /* "{connection_file}" stands where its name goes */
    size_t argc;
    json_t *env;                /* an object; may be NULL */
    bool interrupts_by_message; /* instead of SIGINT */
    char language[64];          /* lower case */
};

/* By the directory's name or by what it says it speaks. NULL if there is none. */
struct kernelspec *kernelspec_find_new(const struct user *user, const char *language) must_use;
void kernelspec_free(struct kernelspec *spec);

/* "bash, r": all there are. */
void kernelspec_list(const struct user *user, struct arena *arena, char *room, size_t size);

#endif
