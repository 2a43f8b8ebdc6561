/*
 * log.h - one line per decision, to standard error.
 *
 * Threads    Any. A line is written with a single write(2), so lines of several processes do not mix.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/attr.h"

enum log_level {
    LOG_DEBUG,
    LOG_INFO,
    LOG_WARN,
    LOG_ERROR,
    LOG_LEVEL_COUNT,
};

/* The name in front of each line ("keeper", "front"), and the lowest level that is written. */
void log_setup(const char *role, enum log_level least);

void log_line(enum log_level level, const char *format, ...) printf_like(2, 3);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* For our own mistakes and for conditions that leave no way to continue: logs the reason, then aborts. */
void log_die(const char *format, ...) printf_like(1, 2) no_return;

#endif
