/*
 * interpreter.h - run_code: the HTTP service of guestd on port 49999. docs/interpreter.md explains how it works.
 *
 *   POST /execute                 code in, a stream of JSON lines out (line.h)
 *   GET, POST /contexts           interpreters with a name: list, make
 *   POST /contexts/{id}/restart   a new interpreter under the same name
 *   DELETE /contexts/{id}
 *   GET /health
 *
 * A context (context.h) is an interpreter with variables and a queue of its own. Python runs our driver (python.h,
 * driver/); every other language is a Jupyter kernel of the template (kernelspec.h, jupyter.h). All run as the
 * sandbox's user, in the limited cgroup.
 *
 * Auth       /execute needs the sandbox's access token. The other routes do not, because SDKs send none there; they can
 *            make, restart and remove interpreters, but run no code.
 */
#ifndef GUEST_INTERPRETER_INTERPRETER_H
#define GUEST_INTERPRETER_INTERPRETER_H

#include <sys/types.h>

#include "guest/guest.h"
#include "wire/zygote.h"

struct interpreter;

enum { INTERPRETER_PORT = ZYGOTE_CODE_PORT };

/* Takes the listening descriptor. */
struct interpreter *interpreter_new(struct guest *guest, int listen_fd) must_use;
void interpreter_free(struct interpreter *interpreter);
/* Takes a socket to the template's zygote (wire/zygote.h). */
void interpreter_take_zygote(struct interpreter *interpreter, int fd);
/*
 * Before SETUP: makes the interpreter that the first Python context will get, so that its first cell waits for nothing.
 * `done` is called once, perhaps from inside this call; with NULL for err it is there. A second call before that takes
 * the place of the first. ERR_UNAVAILABLE and ERR_TIMEOUT: another try may work, later.
 */
void interpreter_warm(struct interpreter *interpreter, void (*done)(struct guest *guest, const struct err *err));
/* The guest has been set up: an interpreter of interpreter_warm() ends if the default user or a variable does not fit. NULL is fine. */
void interpreter_set_up(struct interpreter *interpreter);
/*
 * The sandbox will be paused: from now on nothing is asked of the zygote outside, whose socket is closed, until
 * interpreter_resumed(). Interpreters that it has forked and that are on their way come in, or are given up and started
 * inside instead; it is prepared when none is on its way. NULL is fine for all four.
 */
void interpreter_prepare(struct interpreter *interpreter);
bool interpreter_is_prepared(const struct interpreter *interpreter);
void interpreter_give_up_spawns(struct interpreter *interpreter);
void interpreter_resumed(struct interpreter *interpreter);
/* guestd and all interpreters are copies of those in another sandbox: they must not draw the same random numbers. */
void interpreter_copied(struct interpreter *interpreter);
/* guestd has reaped a child; status as in wait(2). NULL is fine. */
void interpreter_reaped(struct interpreter *interpreter, pid_t pid, int status);

#endif
