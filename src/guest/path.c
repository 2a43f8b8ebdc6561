#include "guest/path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"

struct str path_clean(struct arena *arena, struct str path)
{
    struct buf out = buf_make(arena, path.len + 2);
    struct str part;

    while (str_cut(&path, '/', &part)) {
        if (!part.len || str_eq(part, STR(".")))
            continue;
        if (str_eq(part, STR(".."))) {
            while (out.len && out.data[out.len - 1] != '/')
                out.len--;
            if (out.len)
                out.len--;
            continue;
        }
        buf_add_char(&out, '/');
        buf_add(&out, part);
    }
    return out.len ? buf_str(&out) : STR("/");
}

struct str path_base(struct str path)
{
    while (path.len > 1 && path.at[path.len - 1] == '/')
        path.len--;
    const char *slash = path.len > 1 ? memrchr(path.at, '/', path.len) : NULL;
    if (!slash)
        return path;
    return str_of(slash + 1, path.len - (size_t)(slash + 1 - path.at));
}

const char *path_parent(struct arena *arena, const char *path)
{
    struct str whole = str_from(path), base = path_base(whole);
    size_t len = (size_t)(base.at - whole.at);

    while (len > 1 && path[len - 1] == '/')
        len--;
    return len ? arena_text(arena, str_of(path, len)) : "/";
}

bool path_resolve(struct arena *arena, struct str path, const struct user *user, struct str workdir,
                  const char **out_path, struct err *err)
{
    struct str found;

    if (str_has_char(path, '\0'))
        return err_set(err, ERR_INVALID, "the path has a zero byte in it");
    if (!path.len) {
        found = workdir.len ? workdir : user->home;
    } else if (path.at[0] == '~') {
        if (path.len > 1 && path.at[1] != '/')
            return err_set(err, ERR_INVALID, "failed to expand path '%.*s': cannot expand user-specific home dir",
                           (int)MIN(path.len, 60), path.at);
        found = path_clean(arena, arena_format(arena, "%.*s%.*s", STR_ARG(user->home), (int)path.len - 1, path.at + 1));
    } else if (path.at[0] == '/') {
        found = path;
    } else {
        struct buf joined = buf_make(arena, user->home.len + path.len + 2);
        buf_add(&joined, user->home);
        buf_add_char(&joined, '/');
        buf_add(&joined, path);
        found = path_clean(arena, buf_str(&joined));
    }
    if (found.len >= LIMIT_PATH_BYTES)
        return err_set(err, ERR_INVALID, "the path is longer than %d bytes", LIMIT_PATH_BYTES - 1);
    *out_path = arena_text(arena, found);
    return true;
}

int path_open(const char *path, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
        .mode = flags & O_CREAT ? mode : 0,
        .resolve = RESOLVE_NO_MAGICLINKS,
    };

    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

bool path_make_dirs(struct arena *arena, const char *path, const struct user *user, struct str *out_message,
                    struct err *err)
{
    struct stat st;

    *out_message = STR("");
    /* Usually it is there already. */
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return true;
    char *walk = arena_text(arena, str_from(path));
    for (char *at = walk; *at;) {
        while (*at == '/')
            at++;
        while (*at && *at != '/')
            at++;
        char kept = *at;
        *at = '\0';
        if (stat(walk, &st) == 0) {
            if (!S_ISDIR(st.st_mode)) {
                *out_message = arena_format(arena, "path is a file: %s", walk);
                return err_set(err, ERR_INVALID, "path is a file: %.100s", walk);
            }
        } else if (errno != ENOENT) {
            return err_sys(err, "stat %.80s", walk);
        } else {
            /* Another process may make it at the same moment: its owner is set all the same. */
            if (mkdir(walk, 0755) < 0 && errno != EEXIST)
                return err_sys(err, "mkdir %.80s", walk);
            if (lchown(walk, user->uid, user->gid) < 0)
                return err_sys(err, "chown %.80s", walk);
        }
        *at = kept;
    }
    return true;
}
