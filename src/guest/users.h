/*
 * users.h - users and groups of the sandbox: our own reader of /etc/passwd and /etc/group.
 *
 * guestd is static, so the C library's name service (which loads shared objects from the guest's disk into pid 1) is
 * neither available nor wanted. Both files belong to the guest: malformed lines are skipped.
 *
 * Threads    One instance a thread.
 */
#ifndef GUEST_USERS_H
#define GUEST_USERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/str.h"

struct user {
    struct str name, home;
    uid_t uid;
    gid_t gid;
};

struct users;

/*
 * Read when first needed. users_find() and users_find_group() read a file again if it has changed; the others use what was
 * read last, so that a guest that keeps changing a file cannot make one listing read it for every entry. A file of more than
 * LIMIT_USERS_BYTES counts as empty. `etc` is the directory, normally "/etc".
 */
struct users *users_new(const char *etc) must_use;
void users_free(struct users *users);

/* False if there is none of that name. The text is copied to the arena. */
bool users_find(struct users *users, struct arena *arena, struct str name, struct user *out) must_use;

/* The group of that name, as users_find(). */
bool users_find_group(struct users *users, struct str name, gid_t *out) must_use;

/* The primary group and all that list the user; at most `room`, the rest is left out. Returns how many. */
enum { USERS_GROUPS_MAX = 64 };
size_t users_groups(struct users *users, const struct user *user, gid_t *out, size_t room);

/* The name, or the number in decimal when there is none. */
struct str users_uid_name(struct users *users, struct arena *arena, uid_t uid);
struct str users_gid_name(struct users *users, struct arena *arena, gid_t gid);

#endif
