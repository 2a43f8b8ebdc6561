#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const err_kind_name[ERR_KIND_COUNT] = {
    [ERR_NONE] = "none",           [ERR_INVALID] = "invalid",         [ERR_DENIED] = "denied",
    [ERR_NOT_FOUND] = "not found", [ERR_CONFLICT] = "conflict",       [ERR_LIMIT] = "limit",
    [ERR_TIMEOUT] = "timeout",     [ERR_UNAVAILABLE] = "unavailable", [ERR_INTERNAL] = "internal",
    [ERR_FULL] = "full",
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
        return ERR_FULL;
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

void err_note(struct err *err, enum err_kind kind, const char *format, ...)
{
    va_list args;

    err->kind = kind;
    err->sys = 0;
    err->trail[0] = '\0';
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof err->message, format, args); /* a longer message is cut */
    va_end(args);
}

void err_note_sys(struct err *err, int number, const char *format, ...)
{
    char what[sizeof err->message], reason[64];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    err->kind = kind_of_errno(number);
    err->sys = number;
    err->trail[0] = '\0';
    (void)snprintf(err->message, sizeof err->message, "%.90s: %s", what, strerror_r(number, reason, sizeof reason));
}

void err_note_asker(struct err *err, const char *format, ...)
{
    char older[sizeof err->trail];
    char step[128];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(step, sizeof step, format, args);
    va_end(args);
    memcpy(older, err->trail, sizeof older);
    older[sizeof older - 1] = '\0';
    /* The outermost step comes first. When the trail is full, the innermost detail is cut. */
    (void)snprintf(err->trail, sizeof err->trail, older[0] ? "%s: %.*s" : "%s%.*s", step,
                   (int)(sizeof err->trail - sizeof step - 3), older);
}

const char *err_text(const struct err *err)
{
    static _Thread_local char text[sizeof err->trail + sizeof err->message + 4];

    (void)snprintf(text, sizeof text, "%s%s%s", err->trail, err->trail[0] ? ": " : "", err->message);
    return text;
}
