/*
 * python.h - Python interpreters: engines that run our driver (driver/main.py) in the template's python3.
 *
 * Each runs as the sandbox's user, in the limited cgroup. Most are forks of a warm zygote outside the sandbox; where
 * that is not possible each is a python3 of its own. docs/interpreter.md has the whole picture.
 *
 * Trust      User code can write to an interpreter's socket. A malformed frame ends that interpreter; nothing in a
 *            frame reaches another one.
 */
#ifndef GUEST_INTERPRETER_PYTHON_H
#define GUEST_INTERPRETER_PYTHON_H

#include "guest/guest.h"
#include "guest/interpreter/engine.h"

struct python;

struct python *python_new(struct guest *guest) must_use;
void python_free(struct python *python);
/* Takes a socket to the zygote, and closes it if the one from before still works. */
void python_take_zygote(struct python *python, int fd);
/* See interpreter_warm(). */
void python_warm(struct python *python, void (*done)(struct guest *guest, const struct err *err));
/* Is there an interpreter of python_warm(), or one on its way? */
bool python_has_spare(const struct python *python);
/* See interpreter_set_up(). `user` is that of the interpreters from now on; NULL: there is none. */
void python_set_up(struct python *python, const struct user *user);
/* See interpreter_prepare(). */
void python_prepare(struct python *python);
bool python_is_prepared(const struct python *python);
void python_give_up_spawns(struct python *python);
void python_resumed(struct python *python);
void python_copied(struct python *python);

/* Does the template have a python3? */
bool python_is_there(struct guest *guest);

/* As `user`. on_ready or on_died follows. */
struct engine *python_engine_new(struct python *python, const struct user *user, const struct engine_want *want,
                                 struct err *err) must_use;

/* See interpreter_reaped(). */
void python_reaped(struct python *python, pid_t pid, int status);

/* The driver and charts.py, embedded at build time. */
extern const char interpreter_driver_py[], interpreter_charts_py[];

#endif
