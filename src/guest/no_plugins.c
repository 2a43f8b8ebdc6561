/*
 * libuv can look up home directories and groups; we never ask it to. But the archive's object that holds the loop holds
 * that, too, and would bring the C library's lookups into guestd: those load plugins from the file system they find
 * themselves in, which is the guest's. With these in their place none of it is linked (and the linker has nothing to warn
 * of). Who wants to know about users asks guest/users.c.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stddef.h>

int getpwuid_r(uid_t uid, struct passwd *room, char *text, size_t size, struct passwd **out)
{
    (void)uid, (void)room, (void)text, (void)size;
    *out = NULL;
    return ENOSYS;
}

int getgrgid_r(gid_t gid, struct group *room, char *text, size_t size, struct group **out)
{
    (void)gid, (void)room, (void)text, (void)size;
    *out = NULL;
    return ENOSYS;
}
