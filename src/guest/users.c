#include "guest/users.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"

struct file {
    const char *name;
    struct stat seen; /* as of the last reading */
    char *text;       /* NULL: not read, or not there */
    size_t len;
};

struct users {
    char *etc;
    struct file passwd, group;
};

struct users *users_new(const char *etc)
{
    struct users *users = NEW(struct users);

    users->etc = mem_copy_text(etc);
    users->passwd.name = "passwd";
    users->group.name = "group";
    return users;
}

void users_free(struct users *users)
{
    if (!users)
        return;
    free(users->passwd.text);
    free(users->group.text);
    free(users->etc);
    free(users);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* The text of the file as it is now; empty if it cannot be read. */
static struct str text_of(struct users *users, struct file *file)
{
    char path[LIMIT_PATH_BYTES];
    struct stat now;
    struct err ignored;

    (void)snprintf(path, sizeof path, "%s/%s", users->etc, file->name);
    if (stat(path, &now) < 0)
        return STR("");
    if (file->text && same_file(&now, &file->seen))
        return str_of(file->text, file->len);
    free(take_ptr(&file->text));
    /* The guest may have put a FIFO there to hold us up. */
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &file->seen) < 0 || !S_ISREG(file->seen.st_mode) ||
        !fd_read_all(fd, LIMIT_USERS_BYTES, &file->text, &file->len, &ignored))
        return STR("");
    return str_of(file->text, file->len);
}

/* "root:x:0:0:root:/root:/bin/bash": exactly `count` fields, or more in newer formats. */
static bool split(struct str line, struct str *fields, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!str_cut(&line, ':', &fields[i]))
            return false;
    return true;
}

static bool read_id(struct str text, uint32_t *out)
{
    uint64_t id;

    /* (uid_t)-1 means "leave as it is" to the kernel and names nobody. */
    if (!str_to_u64(text, UINT32_MAX - 1, &id))
        return false;
    *out = (uint32_t)id;
    return true;
}

static bool next_user(struct str *rest, struct user *out)
{
    struct str line, f[6];

    while (str_cut(rest, '\n', &line)) {
        if (!split(line, f, COUNT_OF(f)) || !f[0].len || !read_id(f[2], &out->uid) || !read_id(f[3], &out->gid))
            continue;
        out->name = f[0];
        out->home = f[5].len ? f[5] : STR("/");
        return true;
    }
    return false;
}

struct group_line {
    struct str name, members;
    gid_t gid;
};

static bool next_group(struct str *rest, struct group_line *out)
{
    struct str line, f[4];

    while (str_cut(rest, '\n', &line)) {
        if (!split(line, f, COUNT_OF(f)) || !f[0].len || !read_id(f[2], &out->gid))
            continue;
        out->name = f[0];
        out->members = f[3];
        return true;
    }
    return false;
}

bool users_find(struct users *users, struct arena *arena, struct str name, struct user *out)
{
    struct str rest = text_of(users, &users->passwd);
    struct user user;

    while (next_user(&rest, &user)) {
        if (!str_eq(user.name, name))
            continue;
        user.name = arena_copy(arena, user.name);
        user.home = arena_copy(arena, user.home);
        *out = user;
        return true;
    }
    return false;
}

size_t users_groups(struct users *users, const struct user *user, gid_t *out, size_t room)
{
    struct str rest = text_of(users, &users->group), member;
    struct group_line group;
    size_t count = 0;

    if (count < room)
        out[count++] = user->gid;
    while (count < room && next_group(&rest, &group)) {
        bool listed = false;
        while (!listed && str_cut(&group.members, ',', &member))
            listed = str_eq(str_trim(member), user->name);
        if (listed && group.gid != user->gid)
            out[count++] = group.gid;
    }
    return count;
}

struct str users_uid_name(struct users *users, struct arena *arena, uid_t uid)
{
    struct str rest = text_of(users, &users->passwd);
    struct user user;

    while (next_user(&rest, &user))
        if (user.uid == uid)
            return arena_copy(arena, user.name);
    return arena_format(arena, "%u", (unsigned)uid);
}

struct str users_gid_name(struct users *users, struct arena *arena, gid_t gid)
{
    struct str rest = text_of(users, &users->group);
    struct group_line group;

    while (next_group(&rest, &group))
        if (group.gid == gid)
            return arena_copy(arena, group.name);
    return arena_format(arena, "%u", (unsigned)gid);
}
