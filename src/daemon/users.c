#include "daemon/users.h"

#include <errno.h>
#include <pwd.h>

bool role_user(const char *name, uid_t *out_uid, gid_t *out_gid, struct err *err)
{
    errno = 0;
    const struct passwd *found = getpwnam(name);

    if (!found)
        return err_set(
            err, ERR_NOT_FOUND,
            "there is no user '%.32s' to run as: useradd --system --no-create-home --shell /usr/sbin/nologin "
            "%.32s",
            name, name);
    if (found->pw_uid == 0 || found->pw_gid == 0)
        return err_set(err, ERR_DENIED, "'%.32s' is root; a role that faces the network must run as another user",
                       name);
    *out_uid = found->pw_uid;
    *out_gid = found->pw_gid;
    return true;
}
