/*
 * jupyter.h - engines that are Jupyter kernels, connected over ZMTP on the sandbox's loopback.
 */
#ifndef GUEST_INTERPRETER_JUPYTER_H
#define GUEST_INTERPRETER_JUPYTER_H

#include "guest/guest.h"
#include "guest/interpreter/engine.h"
#include "guest/interpreter/kernelspec.h"

struct engine *jupyter_engine_new(struct guest *guest, const struct user *user, const struct kernelspec *spec,
                                  const struct engine_want *want, struct err *err) must_use;

#endif
