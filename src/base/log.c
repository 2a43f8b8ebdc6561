#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };

static const char *log_role = "cloister";
static enum log_level log_least = LOG_INFO;

static const char *const level_name[LOG_LEVEL_COUNT] = {
    [LOG_DEBUG] = "debug",
    [LOG_INFO] = "info",
    [LOG_WARN] = "warn",
    [LOG_ERROR] = "error",
};

void log_setup(const char *role, enum log_level least)
{
    log_role = role;
    log_least = least;
}

static void printf_like(2, 0) log_write(enum log_level level, const char *format, va_list args)
{
    char line[LINE_BYTES];
    struct timespec now;
    struct tm utc;
    int used;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    used = (int)strftime(line, sizeof line, "%FT%T", &utc);
    used += snprintf(line + used, sizeof line - (size_t)used, ".%03ldZ %-5s %s: ", now.tv_nsec / 1000000,
                     level_name[level], log_role);
    int more = vsnprintf(line + used, sizeof line - (size_t)used, format, args);
    if (more > 0)
        used += more;
    if (used > LINE_BYTES - 2)
        used = LINE_BYTES - 2;
    /* Bytes from outside must not forge another log line or control a terminal. */
    for (int i = 0; i < used; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)used);
    (void)written; /* there is no other place to report it */
}

void log_line(enum log_level level, const char *format, ...)
{
    va_list args;

    if (level < log_least)
        return;
    va_start(args, format);
    log_write(level, format, args);
    va_end(args);
}

void log_die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_write(LOG_ERROR, format, args);
    va_end(args);
    abort();
}
