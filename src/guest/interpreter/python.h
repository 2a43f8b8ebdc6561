/*
 * python.h - Python interpreters: a zygote that has its imports done, and the children she forks.
 *
 * The zygote is a `python3` of the template that runs our driver (driver/main.py) as the sandbox's user, in the limited
 * cgroup. She starts when the first interpreter is wanted and stays; every interpreter after that is a fork of her, ready
 * in milliseconds and sharing her memory until it writes. If she dies, her children live on and the next one wanted gets a
 * new zygote.
 * In cold mode each interpreter has a zygote to itself: nothing is shared, not even the seed of hashes.
 *
 * Where the host has a zygotes (wire/zygote.h), a zygote outside the sandbox is asked before any of this. Whenever she
 * fails to bear one that says hello in time, we stop asking her and have a zygote of our own.
 *
 * Trust      What comes over an interpreter's socket may have been written by user code. A frame that makes no sense
 *            ends that interpreter; nothing in it reaches another one.
 */
#ifndef GUEST_INTERPRETER_PYTHON_H
#define GUEST_INTERPRETER_PYTHON_H

#include "guest/guest.h"
#include "guest/interpreter/engine.h"

struct python;

struct python *python_new(struct guest *guest) must_use;
void python_free(struct python *python);

/* Is there a python3 at all? */
bool python_is_there(struct guest *guest);

enum python_mode {
    PYTHON_WARM,
    PYTHON_COLD,
};

/* As `user`. Comes to life, or dies, by events. */
struct engine *python_engine_new(struct python *python, const struct user *user, enum python_mode mode,
                                 const struct engine_want *want, struct err *err) must_use;

/* See interpreter_reaped(). */
void python_reaped(struct python *python, pid_t pid, int status);

/* The texts, embedded at build time. */
extern const char interpreter_driver_py[], interpreter_charts_py[];

#endif
