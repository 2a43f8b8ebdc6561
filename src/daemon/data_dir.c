#include "daemon/data_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    /* 0711: the user of an inbox can reach its directory, and only root can list them. */
    if (!make_dir(fd, "mail", 0711, err))
        return -1;
    return take_fd(&fd);
}

/* A directory that belongs to a role. */
static int open_for(int data_fd, const char *name, uid_t uid, gid_t gid, struct err *err)
{
    if (!make_dir(data_fd, name, 0700, err))
        return -1;
    auto_close int fd = openat(data_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fchown(fd, uid, gid) < 0) {
        (void)err_sys(err, "open %s", name);
        return -1;
    }
    return take_fd(&fd);
}

int data_dir_store(int data_fd, uid_t uid, gid_t gid, struct err *err)
{
    return open_for(data_fd, "store", uid, gid, err);
}

int data_dir_blobs(int data_fd, uid_t uid, gid_t gid, struct err *err)
{
    return open_for(data_fd, "blobs", uid, gid, err);
}

static const char hex_digits[] = "0123456789abcdef";
static const char base62_digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

enum { KEY_DIGITS = 40, MAIL_KEY_DIGITS = 43 };

/* What a secret looks like. */
struct secret_form {
    struct str prefix;
    const char *digits;
    size_t count;
    const char *fix; /* what to do if it is damaged */
};

#define FIX_BY_NEW "remove it and start again to have a new one made"
#define FIX_BY_COPY "restore a copy of it: without it the server cannot read the addresses of inboxes"

static void random_digits(const struct secret_form *form, char *out)
{
    size_t kinds = strlen(form->digits);

    for (size_t i = 0; i < form->count;) {
        unsigned char byte;
        random_bytes(&byte, sizeof byte);
        if (byte < 256 - 256 % kinds) /* else the first digits would be more likely */
            out[i++] = form->digits[byte % kinds];
    }
}

static bool has_form(struct str line, const struct secret_form *form)
{
    if (line.len != form->prefix.len + form->count || !str_skip(&line, form->prefix))
        return false;
    for (size_t i = 0; i < line.len; i++)
        if (!line.at[i] || !strchr(form->digits, line.at[i]))
            return false;
    return true;
}

/* One line in a file that only root can read. */
static bool secret_file(int dir_fd, const char *name, const struct secret_form *form, struct secret *out,
                        struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (fd_read_file(dir_fd, name, SECRET_MAX_BYTES, &text, &len, err)) {
        struct str line = str_of(text, len);
        while (line.len && line.at[line.len - 1] == '\n')
            line.len--;
        bool ok = has_form(line, form) && secret_set(out, line);
        explicit_bzero(text, len);
        return ok || err_set(err, ERR_INVALID, "%s is damaged; %s", name, form->fix);
    }
    if (err->sys != ENOENT)
        return false;

    char line[SECRET_MAX_BYTES];
    memcpy(line, form->prefix.at, form->prefix.len);
    random_digits(form, line + form->prefix.len);
    size_t used = form->prefix.len + form->count;
    bool kept = secret_set(out, str_of(line, used));
    line[used++] = '\n';
    bool ok = kept && fd_replace_file(dir_fd, name, str_of(line, used), 0600, err);
    explicit_bzero(line, sizeof line);
    return ok || err_wrap(err, "make %s", name);
}

bool data_dir_api_key(int data_fd, struct secret *out, struct err *err)
{
    return secret_file(data_fd, "api-key", &(struct secret_form){ STR("e2b_"), hex_digits, KEY_DIGITS, FIX_BY_NEW },
                       out, err);
}

bool data_dir_admin_token(int data_fd, struct secret *out, struct err *err)
{
    return secret_file(data_fd, "admin-token", &(struct secret_form){ STR("adm_"), hex_digits, KEY_DIGITS, FIX_BY_NEW },
                       out, err);
}

static bool has_directory(int parent_fd)
{
    int fd = openat(parent_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool found = false;
    struct stat st;

    if (!dir) {
        fd_close(&fd);
        return false;
    }
    /* Not d_type: some file systems do not know it. */
    for (struct dirent *entry; !found && (entry = readdir(dir));)
        found = entry->d_name[0] != '.' &&
                (fstatat(parent_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode));
    (void)closedir(dir);
    return found;
}

bool data_dir_mail_keys(int data_fd, struct secret *out_server, struct secret *out_inbox_key, struct secret *out_token,
                        struct err *err)
{
    const struct secret_form server = { STR("srv_"), base62_digits, MAIL_KEY_DIGITS, FIX_BY_COPY };
    const struct secret_form inbox = { STR("mm_live_"), base62_digits, MAIL_KEY_DIGITS, FIX_BY_NEW };
    const struct secret_form account = { STR("lm_sk_live_"), base62_digits, MAIL_KEY_DIGITS, FIX_BY_NEW };
    auto_close int mail_fd = openat(data_fd, "mail", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (mail_fd < 0)
        return err_sys(err, "open mail");
    if (faccessat(mail_fd, "server-key", F_OK, 0) < 0 && has_directory(mail_fd))
        return err_set(err, ERR_INVALID, "mail/server-key is missing and there are inboxes: " FIX_BY_COPY);
    return secret_file(mail_fd, "server-key", &server, out_server, err) &&
           secret_file(data_fd, "multimail-key", &inbox, out_inbox_key, err) &&
           secret_file(data_fd, "lobstermail-token", &account, out_token, err);
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

bool data_dir_note_address(int data_fd, const char *address, const char *domain, bool has_mail, struct err *err)
{
    char lines[ADDRESS_FILE_BYTES];
    int len = snprintf(lines, sizeof lines, "%s\n%s\n%s", address, domain, has_mail ? "" : "mail off\n");

    if (len < 0 || (size_t)len >= sizeof lines)
        return err_set(err, ERR_LIMIT, "the address and the domain are too long");
    return fd_update_file(data_fd, "server", str_of(lines, (size_t)len), 0644, err);
}
