/*
 * Apart from settings.c: every role reads its log level, also those of cloister-mail, which need nothing else of it.
 */
#include <string.h>

#include "daemon/settings.h"

bool settings_log_level(const char *name, enum log_level *out, struct err *err)
{
    static const char *const names[LOG_LEVEL_COUNT] = {
        [LOG_DEBUG] = "debug",
        [LOG_INFO] = "info",
        [LOG_WARN] = "warn",
        [LOG_ERROR] = "error",
    };

    for (int level = 0; level < LOG_LEVEL_COUNT; level++) {
        if (strcmp(name, names[level]) == 0) {
            *out = (enum log_level)level;
            return true;
        }
    }
    return err_set(err, ERR_INVALID, "--log must be debug, info, warn or error, not '%.40s'", name);
}
