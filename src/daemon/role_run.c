#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "daemon/roles.h"
#include "daemon/settings.h"
#include "privsep/role.h"

int role_fd(const struct role_row *row, enum role_grant grant)
{
    for (int i = 0; row->grants[i]; i++)
        if (row->grants[i] == grant)
            return ROLE_FIRST_FD + i;
    return -1;
}

static bool shut_files(const struct role_row *row, bool *out_done, struct err *err)
{
    int fds[ROLE_FDS_MAX];
    uint32_t count = row->readable ? row->readable(row, fds) : 0;
    bool fine = confine_files_and_read(role_fd(row, row->directory), fds, count, out_done, err);

    fd_close_each(fds, count);
    return fine;
}

/* In this order: later steps take away what earlier ones need. */
static bool drop_privileges(const struct role_row *row, struct err *err)
{
    unsigned long files;
    bool landlocked;

    if (!confine_raise_files(&files, err) || !confine_drop_all_capabilities(err) || !confine_no_new_privileges(err) ||
        !confine_hide_memory(err) || !shut_files(row, &landlocked, err) || !confine_load_seccomp(row->calls, err))
        return false;
    if (!landlocked)
        log_warn("this kernel has no Landlock: %s could open every file that all users may open", row->name);
    return true;
}

int role_run(const struct role_row *row, const char *log_level)
{
    enum log_level least;
    struct err err;

    log_setup(row->name, LOG_INFO);
    if (row->prepare)
        row->prepare();
    if (!settings_log_level(log_level, &least, &err) || !drop_privileges(row, &err)) {
        log_error("cannot start: %s", err_text(&err));
        return 1;
    }
    log_setup(row->name, least);
    return row->main(row);
}
