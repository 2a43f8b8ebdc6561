/*
 * interpreter.h - run_code: guestd's third door, on port 49999.
 *
 *   POST /execute                 code in, a stream of JSON lines out (line.h)
 *   GET, POST /contexts           interpreters with a name: list, make
 *   POST /contexts/{id}/restart   a new interpreter under the same name
 *   DELETE /contexts/{id}
 *   GET /health
 *
 * A context (context.h) is an interpreter of its own with its own variables and queue. Python is ours (python.h, driver/);
 * every other language is a Jupyter kernel of the template (kernelspec.h, jupyter.h). All run as the sandbox's user, in
 * the limited cgroup.
 *
 * Auth       /execute wants the sandbox's access token, as SDKs send it. The other routes do not, because SDKs send none
 *            there; they can make, restart and remove interpreters, but run nothing.
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
/* guestd has collected a child that it had not started itself; status as wait(2) has it. NULL is fine. */
void interpreter_reaped(struct interpreter *interpreter, pid_t pid, int status);

#endif
