#include "guest/users.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"

struct id_name {
    uint32_t id;
    struct str name;
};

struct file {
    const char *name;
    bool was_read;
    struct stat seen; /* at the last reading; zero: it was not there */
    char *text;       /* NULL: not there, not a file, or too large */
    size_t len;
    struct id_name *ids; /* in the order of ids, and of lines for the same id; NULL: not asked for yet */
    size_t id_count;
};

struct users {
    char *etc;
    struct file passwd, group;
};

static void file_forget(struct file *file)
{
    free(take_ptr(&file->text));
    free(take_ptr(&file->ids));
    file->len = file->id_count = 0;
}

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
    file_forget(&users->passwd);
    file_forget(&users->group);
    free(users->etc);
    free(users);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Reads the file, unless it is unchanged. */
static void file_look(struct users *users, struct file *file)
{
    char path[LIMIT_PATH_BYTES];
    struct stat now = { 0 };
    struct err err;

    (void)snprintf(path, sizeof path, "%s/%s", users->etc, file->name);
    if (stat(path, &now) < 0)
        now = (struct stat){ 0 };
    if (file->was_read && same_file(&now, &file->seen))
        return;
    auto_close int fd = fd_open_regular(AT_FDCWD, path, &now, &err);
    if (fd < 0 && (err.sys == EMFILE || err.sys == ENFILE) && file->was_read)
        return; /* the old contents are better than none */
    file_forget(file);
    file->was_read = true;
    file->seen = now;
    if (fd < 0 || now.st_size > LIMIT_USERS_BYTES || !fd_read_all(fd, LIMIT_USERS_BYTES, &file->text, &file->len, &err))
        file->text = NULL;
}

static struct str text_of(struct users *users, struct file *file)
{
    if (!file->was_read)
        file_look(users, file);
    return file->text ? str_of(file->text, file->len) : STR("");
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

    /* (uid_t)-1 means "leave as it is" to the kernel and is no user. */
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
    file_look(users, &users->passwd);
    file_look(users, &users->group);
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

bool users_find_group(struct users *users, struct str name, gid_t *out)
{
    file_look(users, &users->group);
    struct str rest = text_of(users, &users->group);
    struct group_line group;

    while (next_group(&rest, &group)) {
        if (!str_eq(group.name, name))
            continue;
        *out = group.gid;
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

static bool next_uid(struct str *rest, struct id_name *out)
{
    struct user user;

    if (!next_user(rest, &user))
        return false;
    *out = (struct id_name){ user.uid, user.name };
    return true;
}

static bool next_gid(struct str *rest, struct id_name *out)
{
    struct group_line group;

    if (!next_group(rest, &group))
        return false;
    *out = (struct id_name){ group.gid, group.name };
    return true;
}

static int by_id(const void *a, const void *b)
{
    const struct id_name *one = a, *other = b;

    if (one->id != other->id)
        return one->id < other->id ? -1 : 1;
    return one->name.at < other->name.at ? -1 : one->name.at > other->name.at;
}

/* A listing looks up every entry, and the guest decides how long the file is: so it is sorted once. */
static void sort_ids(struct users *users, struct file *file, bool (*next)(struct str *rest, struct id_name *out))
{
    struct str rest = text_of(users, file);
    size_t room = 64;

    if (file->ids)
        return;
    file->ids = mem_new(room * sizeof *file->ids);
    while (next(&rest, &file->ids[file->id_count])) {
        if (++file->id_count == room) {
            room *= 2;
            file->ids = mem_grow(file->ids, room * sizeof *file->ids);
        }
    }
    qsort(file->ids, file->id_count, sizeof *file->ids, by_id);
}

static struct str name_of(const struct file *file, struct arena *arena, uint32_t id)
{
    size_t low = 0, high = file->id_count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (file->ids[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < file->id_count && file->ids[low].id == id)
        return arena_copy(arena, file->ids[low].name);
    return arena_format(arena, "%u", (unsigned)id);
}

struct str users_uid_name(struct users *users, struct arena *arena, uid_t uid)
{
    sort_ids(users, &users->passwd, next_uid);
    return name_of(&users->passwd, arena, uid);
}

struct str users_gid_name(struct users *users, struct arena *arena, gid_t gid)
{
    sort_ids(users, &users->group, next_gid);
    return name_of(&users->group, arena, gid);
}
