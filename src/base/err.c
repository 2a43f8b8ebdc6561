#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const err_kind_name[ERR_KIND_COUNT] = {
    [ERR_NONE] = "none",         [ERR_INVALID] = "invalid", [ERR_DENIED] = "denied",
    [ERR_NOT_FOUND] = "not found", [ERR_CONFLICT] = "conflict", [ERR_LIMIT] = "limit",
    [ERR_TIMEOUT] = "timeout",   [ERR_UNAVAILABLE] = "unavailable", [ERR_INTERNAL] = "internal",
};

static enum err_kind kind_of_errno(int number)
{
    switch (number) {
    case ENOENT:
    case ESRCH:
        return ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return ERR_DENIED;
    case EEXIST:
    case EBUSY:
    case ENOTEMPTY:
        return ERR_CONFLICT;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case E2BIG:
        return ERR_LIMIT;
    case ETIMEDOUT:
        return ERR_TIMEOUT;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
        return ERR_INVALID;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
        return ERR_UNAVAILABLE;
    default:
        return ERR_INTERNAL;
    }
}

bool err_set(struct err *err, enum err_kind kind, const char *format, ...)
{
    va_list args;

    err->kind = kind;
    err->sys = 0;
    err->trail[0] = '\0';
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof err->message, format, args); /* a cut sentence is still a sentence */
    va_end(args);
    return false;
}

static void set_sys(struct err *err, int number, const char *format, va_list args)
{
    char what[sizeof err->message];

    (void)vsnprintf(what, sizeof what, format, args);
    err->kind = kind_of_errno(number);
    err->sys = number;
    err->trail[0] = '\0';
    /* %m-like, but thread-safe and with the number we were given. */
    char reason[64];
    (void)snprintf(err->message, sizeof err->message, "%.90s: %s", what, strerror_r(number, reason, sizeof reason));
}

bool err_sys(struct err *err, const char *format, ...)
{
    int number = errno;
    va_list args;

    va_start(args, format);
    set_sys(err, number, format, args);
    va_end(args);
    return false;
}

bool err_sys_num(struct err *err, int number, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    set_sys(err, number, format, args);
    va_end(args);
    return false;
}

bool err_wrap(struct err *err, const char *format, ...)
{
    char older[sizeof err->trail];
    char who[128];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(who, sizeof who, format, args);
    va_end(args);
    memcpy(older, err->trail, sizeof older);
    older[sizeof older - 1] = '\0';
    /* The newest asker stands first; when the trail is full, the oldest detail is what goes. */
    (void)snprintf(err->trail, sizeof err->trail, older[0] ? "%s: %.*s" : "%s%.*s", who,
                   (int)(sizeof err->trail - sizeof who - 3), older);
    return false;
}

const char *err_text(const struct err *err)
{
    static _Thread_local char text[sizeof err->trail + sizeof err->message + 4];

    (void)snprintf(text, sizeof text, "%s%s%s", err->trail, err->trail[0] ? ": " : "", err->message);
    return text;
}
