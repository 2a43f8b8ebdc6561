#include "daemon/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/random.h"

enum {
    ADDRESS_FILE_BYTES = 1200, /* more than two of CONFIG_TEXT_BYTES */
    NODE_ID_CHARS = 20,
};

/* Missing parents too: `cloister serve --data /srv/new/place` should just work. */
static bool make_parents(const char *path, struct err *err)
{
    char room[512];

    if ((size_t)snprintf(room, sizeof room, "%s", path) >= sizeof room)
        return err_set(err, ERR_INVALID, "the path of the data directory is too long");
    for (char *slash = strchr(room + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(room, 0755) < 0 && errno != EEXIST)
            return err_sys(err, "make %s", room);
        *slash = '/';
    }
    return true;
}

static bool make_dir(int data_fd, const char *name, mode_t mode, struct err *err)
{
    if (mkdirat(data_fd, name, mode) < 0 && errno != EEXIST)
        return err_sys(err, "make %s", name);
    if (fchmodat(data_fd, name, mode, 0) < 0)
        return err_sys(err, "chmod %s", name);
    return true;
}

int data_dir_open(const char *path, struct err *err)
{
    if (!make_parents(path, err))
        return -1;
    /* 0711: front can reach its store, and only root can list the directory. */
    if (mkdir(path, 0711) < 0 && errno != EEXIST) {
        (void)err_sys(err, "make %s", path);
        return -1;
    }
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        (void)err_sys(err, "open %s", path);
        return -1;
    }
    /* A directory that was made by hand may have a mode that keeps front out. */
    if (fchmod(fd, 0711) < 0) {
        (void)err_sys(err, "chmod %s", path);
        return -1;
    }
    static const char *const ours[] = { "layers", "templates", "sandboxes", "trash", "tmp" };
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        if (!make_dir(fd, ours[i], 0700, err))
            return -1;
    return take_fd(&fd);
}

int data_dir_store(int data_fd, uid_t uid, gid_t gid, struct err *err)
{
    if (!make_dir(data_fd, "store", 0700, err))
        return -1;
    auto_close int fd = openat(data_fd, "store", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fchown(fd, uid, gid) < 0) {
        (void)err_sys(err, "open store");
        return -1;
    }
    return take_fd(&fd);
}

enum { KEY_RANDOM_BYTES = 20 };

/* One line, `prefix` and 40 hex digits, in a file that only root can read. */
static bool secret_file(int data_fd, const char *name, struct str prefix, struct secret *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (fd_read_file(data_fd, name, SECRET_MAX_BYTES, &text, &len, err)) {
        struct str line = str_of(text, len);
        while (line.len && line.at[line.len - 1] == '\n')
            line.len--;
        bool ok = line.len == prefix.len + 2 * KEY_RANDOM_BYTES && str_starts(line, prefix) && secret_set(out, line);
        explicit_bzero(text, len);
        return ok || err_set(err, ERR_INVALID, "%s is damaged; remove it and start again to have a new one made", name);
    }
    if (err->sys != ENOENT)
        return false;

    unsigned char bytes[KEY_RANDOM_BYTES];
    char line[SECRET_MAX_BYTES];
    random_bytes(bytes, sizeof bytes);
    memcpy(line, prefix.at, prefix.len);
    (void)hex_text(str_of(bytes, sizeof bytes), line + prefix.len);
    size_t used = prefix.len + 2 * sizeof bytes;
    bool kept = secret_set(out, str_of(line, used));
    line[used++] = '\n';
    bool ok = kept && fd_replace_file(data_fd, name, str_of(line, used), 0600, err);
    explicit_bzero(line, sizeof line);
    explicit_bzero(bytes, sizeof bytes);
    return ok || err_wrap(err, "make %s", name);
}

bool data_dir_api_key(int data_fd, struct secret *out, struct err *err)
{
    return secret_file(data_fd, "api-key", STR("e2b_"), out, err);
}

bool data_dir_admin_token(int data_fd, struct secret *out, struct err *err)
{
    return secret_file(data_fd, "admin-token", STR("adm_"), out, err);
}

bool data_dir_node_id(int data_fd, char out[LIMIT_ID_BYTES], struct err *err)
{
    auto_free char *text = NULL;
    char id[NODE_ID_CHARS + 2];
    size_t len;

    if (fd_read_file(data_fd, "node-id", LIMIT_ID_BYTES, &text, &len, err)) {
        if (len != NODE_ID_CHARS + 1 || strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789") != NODE_ID_CHARS)
            return err_set(err, ERR_INVALID,
                           "node-id is damaged: restore a copy of it. Without one, remove it: the next start makes "
                           "another and ends the sandboxes that still run");
    } else if (err->sys == ENOENT) {
        random_id(id, NODE_ID_CHARS);
        id[NODE_ID_CHARS] = '\n';
        if (!fd_replace_file(data_fd, "node-id", str_of(id, NODE_ID_CHARS + 1), 0600, err))
            return err_wrap(err, "make node-id");
    } else {
        return false;
    }
    (void)snprintf(out, LIMIT_ID_BYTES, "%.*s", NODE_ID_CHARS, text ? text : id);
    return true;
}

/* Line 0 or 1 of `server`. */
static bool noted_line(int data_fd, int number, const char *what, char *room, size_t size, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(data_fd, "server", ADDRESS_FILE_BYTES, &text, &len, err))
        return false;
    struct str rest = str_of(text, len), line;
    bool ok = str_cut(&rest, '\n', &line) && (number == 0 || str_cut(&rest, '\n', &line));
    if (!ok || line.len == 0 || line.len >= size || str_has_char(line, '\0'))
        return err_set(err, ERR_INTERNAL, "the file `server` does not contain %s", what);
    memcpy(room, line.at, line.len);
    room[line.len] = '\0';
    return true;
}

bool data_dir_noted_address(int data_fd, char *room, size_t size, struct err *err)
{
    return noted_line(data_fd, 0, "an address", room, size, err);
}

bool data_dir_noted_domain(int data_fd, char *room, size_t size, struct err *err)
{
    return noted_line(data_fd, 1, "a domain", room, size, err);
}

bool data_dir_note_address(int data_fd, const char *address, const char *domain, struct err *err)
{
    char lines[ADDRESS_FILE_BYTES];
    int len = snprintf(lines, sizeof lines, "%s\n%s\n", address, domain);

    if (len < 0 || (size_t)len >= sizeof lines)
        return err_set(err, ERR_LIMIT, "the address and the domain are too long");
    return fd_update_file(data_fd, "server", str_of(lines, (size_t)len), 0644, err);
}
