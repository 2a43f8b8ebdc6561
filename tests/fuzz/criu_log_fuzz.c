/*
 * A log of CRIU's, parts of which a guest has chosen: there is always an error, and nothing of the log is in what callers
 * are told.
 */
#include "isolation/native/criu_log.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct err err = { 0 };

    criu_log_explain(str_of(data, size), &err);
    if (err.kind != ERR_INVALID && err.kind != ERR_FULL && err.kind != ERR_INTERNAL)
        abort();
    for (const char *at = err.trail; *at; at++)
        if (*at < ' ' || *at > '~')
            abort();
    if (strstr(err.message, "criu/"))
        abort();
    return 0;
}
