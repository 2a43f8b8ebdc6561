/* The sandbox's own /etc/passwd and /etc/group, which whoever is root there may fill with anything. */
#include "guest/users.c" /* its decoders are its own */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str rest = str_of(data, size);
    struct user user;
    struct group_line group;

    while (next_user(&rest, &user))
        check(user.name.len && user.home.len && user.uid != (uid_t)-1 && user.gid != (gid_t)-1);
    rest = str_of(data, size);
    while (next_group(&rest, &group))
        check(group.name.len && group.gid != (gid_t)-1);
    return 0;
}
