#include "guest/entry.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>

#include "base/clock.h"
#include "base/encode.h"
#include "guest/path.h"

enum {
    XATTR_LIST_BYTES = 64 * 1024, /* the kernel's own limit */
    XATTR_VALUE_BYTES = 4096,     /* more than an upload may set */
    XATTR_FIRST_BYTES = 512,
};

const char *entry_permissions(mode_t mode, char room[ENTRY_PERMISSIONS_BYTES])
{
    static const char bits[] = "rwxrwxrwx";
    size_t len = 0;

    switch (mode & S_IFMT) {
    case S_IFDIR:
        room[len++] = 'd';
        break;
    case S_IFLNK:
        room[len++] = 'L';
        break;
    case S_IFBLK:
    case S_IFCHR:
        room[len++] = 'D';
        break;
    case S_IFIFO:
        room[len++] = 'p';
        break;
    case S_IFSOCK:
        room[len++] = 'S';
        break;
    }
    if (mode & S_ISUID)
        room[len++] = 'u';
    if (mode & S_ISGID)
        room[len++] = 'g';
    if (S_ISCHR(mode))
        room[len++] = 'c';
    if (mode & S_ISVTX)
        room[len++] = 't';
    if (len == 0)
        room[len++] = '-';
    for (int i = 0; i < 9; i++)
        room[len++] = mode & (0400u >> i) ? bits[i] : '-';
    room[len] = '\0';
    return room;
}

void entry_write_metadata(struct json_out *out, const char *name, const char *path, struct arena *arena)
{
    char *names = arena_alloc(arena, XATTR_FIRST_BYTES);
    ssize_t len = listxattr(path, names, XATTR_FIRST_BYTES);
    bool opened = false;

    if (len < 0) {
        names = arena_alloc(arena, XATTR_LIST_BYTES);
        len = listxattr(path, names, XATTR_LIST_BYTES);
    }
    for (const char *at = names; len > 0 && at < names + len; at += strlen(at) + 1) {
        struct str key = str_from(at);
        if (!str_skip(&key, STR(ENTRY_METADATA_PREFIX)))
            continue;
        char *value = arena_alloc(arena, XATTR_VALUE_BYTES);
        ssize_t size = getxattr(path, at, value, XATTR_VALUE_BYTES);
        struct str text = str_of(value, size > 0 ? (size_t)size : 0);
        if (size < 0 || !utf8_valid(key) || !utf8_valid(text))
            continue;
        if (!opened)
            json_out_object(out, name);
        opened = true;
        json_out_pair(out, key, text);
    }
    if (opened)
        json_out_end(out);
}

static const char *type_name(mode_t mode)
{
    if (S_ISREG(mode))
        return "FILE_TYPE_FILE";
    if (S_ISDIR(mode))
        return "FILE_TYPE_DIRECTORY";
    return NULL;
}

static void write_time(struct json_out *out, const struct timespec *time)
{
    char room[CLOCK_TEXT_BYTES], text[CLOCK_TEXT_BYTES + 8];

    if (time->tv_sec == 0 && time->tv_nsec == 0)
        return;
    /* Whole microseconds from the clock's own text, the last three digits from here. */
    (void)clock_text((int64_t)time->tv_sec * 1000000 + time->tv_nsec / 1000, room);
    (void)snprintf(text, sizeof text, "%.*s%03ldZ", (int)strlen(room) - 1, room, time->tv_nsec % 1000);
    json_out_str(out, "modifiedTime", str_from(text));
}

void entry_write(struct json_out *out, const char *name, const char *path, const struct stat *st,
                 enum entry_detail detail, struct users *users, struct arena *arena)
{
    struct stat target = *st;
    bool is_link = S_ISLNK(st->st_mode);

    /* A link is described by its target; a broken link has no description. */
    if (is_link && stat(path, &target) < 0)
        target = (struct stat){ 0 };
    json_out_object(out, name);
    json_out_str(out, "name", path_base(str_from(path)));
    const char *type = type_name(target.st_mode);
    if (type)
        json_out_str(out, "type", str_from(type));
    json_out_str(out, "path", str_from(path));
    if (detail == ENTRY_FULL) {
        char number[24], permissions[ENTRY_PERMISSIONS_BYTES];
        (void)snprintf(number, sizeof number, "%lld", (long long)st->st_size);
        json_out_str(out, "size", str_from(number));
        json_out_int(out, "mode", target.st_mode & 0777);
        json_out_str(out, "permissions", str_from(entry_permissions(st->st_mode, permissions)));
        json_out_str(out, "owner", users_uid_name(users, arena, st->st_uid));
        json_out_str(out, "group", users_gid_name(users, arena, st->st_gid));
        write_time(out, &st->st_mtim);
        if (is_link) {
            char *resolved = realpath(path, NULL);
            json_out_str(out, "symlinkTarget", str_from(resolved ? resolved : path));
            json_out_bool(out, "isSymlink", true);
            free(resolved);
        }
        entry_write_metadata(out, "metadata", path, arena);
    }
    json_out_end(out);
}
