#include "guest/interpreter/jupyter.h"

struct engine *jupyter_engine_new(struct guest *guest, const struct user *user, const struct kernelspec *spec,
                                  const struct engine_want *want, struct err *err)
{
    (void)guest, (void)user, (void)spec, (void)want;
    (void)err_set(err, ERR_UNAVAILABLE, "Jupyter kernels are not spoken to yet");
    return NULL;
}
