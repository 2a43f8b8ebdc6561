#include "guest/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/network.h"

#define DRAFT ".cloister-new"
#define KEPT ".cloister-network"   /* directory of the files that ours stand in for; there while ours are */
#define KEPT_INSIDE KEPT "/inside" /* the names that stay inside, a line each, if ours are written for them */
#define OFF "Internet access is off for this sandbox"
#define HOW "To allow it: allow_internet_access=True in create(), or update_network()"
#define NSSWITCH_HOSTS "# " OFF ".\n# " HOW ".\nhosts: files\n"
/*
 * Programs show the host that they cannot reach, and not the comments of their configuration. So the reason is the host.
 * No name below `invalid` exists (RFC 2606): also a program that asks a name server of its own gets no other answer.
 */
#define REASON "internet-access-is-off-for-this-sandbox"
#define REASON_HOST REASON ".invalid"
/* apt-get fetches nothing for a package that none of its lists has, and names no host then. It tells this hook. */
#define APT_HOOK KEPT "/apt-hook"
#define APT_DIRECTORY "apt/apt.conf.d"
#define APT_CONF APT_DIRECTORY "/90cloister-network"
#define PIP_CONF "pip.conf"
#define NPMRC "npmrc"

/* Files and not variables: `su -`, `env -i` and cron clear those. */
static const struct file {
    const char *name, *kept, *text;
    enum { REPLACED, LEFT, EXTENDED } there; /* what becomes of one that the template has */
} files[] = {
    /* A nameserver all the same: programs with a resolver of their own are refused there at once, and ask no other. */
    { "resolv.conf", KEPT "/resolv.conf",
      "# " OFF ": no name but those in /etc/hosts can be resolved.\n"
      "# " HOW ".\n"
      "nameserver 127.0.0.1\n"
      "options timeout:1 attempts:1\n",
      REPLACED },
    { "motd", KEPT "/motd", OFF ": programs in it reach each other on 127.0.0.1, and nothing outside.\n" HOW ".\n",
      REPLACED },
    /* Without Error-Mode `apt-get update` calls what it could not fetch a warning, and ends with 0. */
    { APT_CONF, KEPT "/90cloister-network",
      "// " OFF ".\n"
      "// " HOW ".\n"
      "Acquire::Retries \"0\";\n"
      "APT::Update::Error-Mode \"any\";\n"
      "Acquire::http::Proxy \"http://" REASON_HOST "\";\n"
      "Acquire::http::Proxy::localhost \"DIRECT\";\n"
      "Acquire::http::Proxy::127.0.0.1 \"DIRECT\";\n"
      "Acquire::https::Proxy \"http://" REASON_HOST "\";\n"
      "Acquire::https::Proxy::localhost \"DIRECT\";\n"
      "Acquire::https::Proxy::127.0.0.1 \"DIRECT\";\n"
      "AptCli::Hooks::Install:: \"[ ! -x /usr/bin/perl ] || /usr/bin/perl /etc/" APT_HOOK " || true\";\n",
      REPLACED },
    /* Where apt is, there is Perl: dpkg needs it. The protocol is apt's json-hooks-protocol.md; 0.1 is known to all. */
    { APT_HOOK, KEPT "/apt-hook.old",
      "open(my $apt, '+<&=', $ENV{APT_HOOK_SOCKET}) or exit;\n"
      "while (<$apt>) {\n"
      "    syswrite($apt, '{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"version\":\"0.1\"}}' . \"\\n\\n\") if "
      "/hooks\\.hello/;\n"
      "    print STDERR \"" OFF ": packages and lists of packages cannot be fetched from outside.\\n" HOW ".\\n\" if "
      "/install\\.fail/;\n"
      "    exit if /hooks\\.bye/;\n"
      "}\n",
      REPLACED },
    /* Not 0: pip says why it found nothing only when it tries again. The first retry comes at once, and shows the path. */
    { PIP_CONF, KEPT "/pip.conf",
      "# " OFF ".\n# " HOW ".\n[global]\nretries = 1\nindex-url = https://" REASON_HOST "/" REASON "\n", LEFT },
    { NPMRC, KEPT "/npmrc", "# " OFF ".\n# " HOW ".\nfetch-retries=0\nregistry=https://" REASON_HOST "/\n", LEFT },
    /* The longest insteadOf counts, so the last two lines let services of the sandbox be. One line each: see ours_out(). */
    { "gitconfig", KEPT "/gitconfig",
      "# " OFF ".\n"
      "# " HOW ".\n"
      "[url \"https://" REASON_HOST "/\"] insteadOf = https://\n"
      "[url \"https://localhost\"] insteadOf = https://localhost\n"
      "[url \"https://127.0.0.1\"] insteadOf = https://127.0.0.1\n",
      EXTENDED },
};

static const struct file nsswitch = { "nsswitch.conf", KEPT "/nsswitch.conf", NULL, REPLACED };

/* Where names that stay inside are reached, these files say so, and nsswitch.conf is left alone. */
static const struct file_inside {
    const char *name, *text;
} files_inside[] = {
    { "resolv.conf",
      "# " OFF ": no name can be resolved but those in /etc/hosts and of services that its operator provides.\n"
      "# " HOW ".\n"
      "nameserver " NETWORK_NAMESERVER "\n"
      "options timeout:3 attempts:2\n" },
    { "motd", OFF ": programs in it reach each other on 127.0.0.1 and services that its operator provides, and nothing "
                  "else.\n" HOW ".\n" },
};

/* Where programs fetch from. If this name is inside, the file does not name the reason in its place. */
static const struct usual_host {
    const char *name, *host;
} usual_hosts[] = { { PIP_CONF, "pypi.org" }, { NPMRC, "registry.npmjs.org" } };

/* As in our own templates (image/bootstrap.c). */
#define RESOLV_CONF                                                                                     \
    "# Every question to port 53 is answered by Cloister's resolver, whichever server it is sent to.\n" \
    "nameserver " NETWORK_NAMESERVER "\n"                                                               \
    "options timeout:3 attempts:2\n"

void network_nsswitch_without_dns(struct str text, struct buf *out)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        if (str_starts(str_trim(line), STR("hosts:")))
            continue;
        buf_add(out, line);
        buf_add_char(out, '\n');
    }
    buf_add(out, STR(NSSWITCH_HOSTS));
}

static bool is_outside(struct str address)
{
    char text[INET6_ADDRSTRLEN];
    struct in_addr v4;
    struct in6_addr v6;

    if (address.len == 0 || address.len >= sizeof text)
        return false;
    memcpy(text, address.at, address.len);
    text[address.len] = '\0';
    if (inet_pton(AF_INET, text, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) != 127 && v4.s_addr != 0;
    return inet_pton(AF_INET6, text, &v6) == 1 && !IN6_IS_ADDR_LOOPBACK(&v6) && !IN6_IS_ADDR_UNSPECIFIED(&v6);
}

bool network_has_nameserver(struct str text)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        line = str_trim(line);
        if (str_skip(&line, STR("nameserver")) && line.len && (line.at[0] == ' ' || line.at[0] == '\t') &&
            is_outside(str_trim(line)))
            return true;
    }
    return false;
}

/* ---- one file ---- */

/*
 * Whoever is root in the sandbox may put anything there. A FIFO is not waited for, and a link out of /etc not followed: it
 * may lead to /proc/self, which is the guest's own for a guest, and ours for us.
 */
static bool read_inside(int dir_fd, const char *name, size_t cap, char **out_text, size_t *out_len, struct err *err)
{
    auto_close int fd = fd_open_inside(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
    struct stat found;

    if (fd < 0)
        return false;
    if (fstat(fd, &found) < 0)
        return err_sys(err, "stat %s", name);
    if (!S_ISREG(found.st_mode))
        return err_set(err, ERR_INVALID, "%s is not a regular file", name);
    return fd_read_all(fd, cap, out_text, out_len, err) || err_wrap(err, "read %s", name);
}

/* The draft may hold what the old file holds, a password for a registry say: nobody may read it who could not before. */
static bool permit_like_old(int dir_fd, const char *name, int draft_fd, struct err *err)
{
    struct stat old, draft;
    unsigned mode = 0644;

    if (fstat(draft_fd, &draft) < 0)
        return err_sys(err, "stat " DRAFT);
    if (fstatat(dir_fd, name, &old, 0) == 0 && S_ISREG(old.st_mode)) {
        mode = old.st_mode & 0777;
        if ((old.st_uid != draft.st_uid || old.st_gid != draft.st_gid) && fchown(draft_fd, old.st_uid, old.st_gid) < 0)
            return err_sys(err, "give the owner of %s to " DRAFT, name);
    }
    return fchmod(draft_fd, mode) == 0 || err_sys(err, "give the mode of %s to " DRAFT, name);
}

bool network_replace(int dir_fd, const char *name, struct str text, struct err *err)
{
    if (unlinkat(dir_fd, DRAFT, 0) < 0 && errno != ENOENT)
        return err_sys(err, "remove an old " DRAFT);
    auto_close int fd = openat(dir_fd, DRAFT, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(err, "create " DRAFT);
    bool ok =
        (fd_write_all(fd, text, err) || err_wrap(err, "write %s", name)) && permit_like_old(dir_fd, name, fd, err);
    if (ok && renameat(dir_fd, DRAFT, dir_fd, name) == 0)
        return true;
    if (ok) {
        ok = errno == ENOENT;
        (void)err_sys(err, "put %s in its place", name);
    }
    (void)unlinkat(dir_fd, DRAFT, 0); /* or else the next call does */
    return ok;
}

/* Keeps what is there now, a link as a link. */
static bool keep(int dir_fd, const struct file *file, struct err *err)
{
    return linkat(dir_fd, file->name, dir_fd, file->kept, 0) == 0 || errno == ENOENT ||
           err_sys(err, "keep %s", file->name);
}

static bool exists(int dir_fd, const char *name)
{
    struct stat found;

    return fstatat(dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool is_directory(int dir_fd, const char *name)
{
    struct stat found;

    return fstatat(dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(found.st_mode);
}

static bool is_line_of(struct str line, struct str text)
{
    struct str each;

    while (text.len && str_cut(&text, '\n', &each))
        if (str_eq(each, line))
            return true;
    return false;
}

static bool usual_host_is_inside(const struct file *file, struct str inside)
{
    for (size_t i = 0; i < COUNT_OF(usual_hosts); i++)
        if (strcmp(usual_hosts[i].name, file->name) == 0)
            return is_line_of(str_from(usual_hosts[i].host), inside);
    return false;
}

/* A name that stays inside is reached without a proxy and as itself, like localhost. */
static void add_exceptions(const struct file *file, struct str inside, struct buf *out)
{
    struct str name;

    while (inside.len && str_cut(&inside, '\n', &name)) {
        if (strcmp(file->name, APT_CONF) == 0)
            buf_format(out, "Acquire::http::Proxy::%.*s \"DIRECT\";\nAcquire::https::Proxy::%.*s \"DIRECT\";\n",
                       STR_ARG(name), STR_ARG(name));
        else if (file->there == EXTENDED)
            buf_format(out, "[url \"https://%.*s\"] insteadOf = https://%.*s\n", STR_ARG(name), STR_ARG(name));
    }
}

static bool names_reason(struct str line)
{
    return memmem(line.at, line.len, REASON, sizeof REASON - 1);
}

/* What we write into a file, or at its end. Not of nsswitch.conf, which depends on what is there. */
static void add_ours(const struct file *file, struct str inside, struct buf *out)
{
    struct str text = str_from(file->text), line;
    bool keeps_host = usual_host_is_inside(file, inside);

    for (size_t i = 0; inside.len && i < COUNT_OF(files_inside); i++)
        if (strcmp(files_inside[i].name, file->name) == 0)
            text = str_from(files_inside[i].text);
    while (text.len && str_cut(&text, '\n', &line)) {
        if (keeps_host && names_reason(line))
            continue;
        buf_add(out, line);
        buf_add_char(out, '\n');
    }
    add_exceptions(file, inside, out);
}

/* What the file shall be, made of what it is. Without a file the C library and git have their defaults. */
static bool new_text(int dir_fd, const struct file *file, struct str inside, struct buf *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len = 0;

    if (!read_inside(dir_fd, file->name, LIMIT_NSS_BYTES, &text, &len, err)) {
        if (err->sys != ENOENT)
            return err_wrap(err, "%s stays as it is", file->name);
        if (exists(dir_fd, file->name))
            return err_set(err, ERR_INVALID, "%s stays as it is: a link that leads out of /etc, or nowhere",
                           file->name);
    }
    if (file == &nsswitch) {
        network_nsswitch_without_dns(str_of(text, len), out);
        return true;
    }
    buf_add(out, str_of(text, len));
    if (len && text[len - 1] != '\n')
        buf_add_char(out, '\n');
    add_ours(file, inside, out);
    return true;
}

static bool write_file(int dir_fd, const struct file *file, struct str inside, struct err *err)
{
    auto_buf struct buf made = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES);

    if (file->there == LEFT && exists(dir_fd, file->name))
        return true;
    if (file != &nsswitch && file->there == REPLACED)
        add_ours(file, inside, &made);
    else if (!new_text(dir_fd, file, inside, &made, err))
        return false;
    return keep(dir_fd, file, err) && network_replace(dir_fd, file->name, buf_str(&made), err);
}

/* Is it still as we wrote it? `text` is what it is now, and `ours` what we wrote. */
static bool is_ours(int dir_fd, const struct file *file, struct str text, struct str ours)
{
    auto_free char *kept = NULL;
    struct err ignored; /* what cannot be read is not ours */
    size_t len;

    if (file == &nsswitch)
        return str_ends(text, STR(NSSWITCH_HOSTS));
    if (file->there != EXTENDED || !exists(dir_fd, file->kept))
        return str_eq(text, ours);
    if (!read_inside(dir_fd, file->kept, LIMIT_NSS_BYTES, &kept, &len, &ignored))
        return false;
    if (!str_skip(&text, str_of(kept, len)))
        return false;
    (void)str_skip(&text, STR("\n")); /* new_text() may have ended the last line */
    return str_eq(text, ours);
}

/* A line like one of ours proves nothing: a template's own pip.conf may say `retries = 1`. */
static bool has_ours(struct str text)
{
    return memmem(text.at, text.len, OFF, sizeof OFF - 1) || names_reason(text);
}

/* All but our lines. The head of a section stays: other lines may follow it. */
static void ours_out(struct str text, struct str ours, struct buf *out)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        bool is_head = str_ends(line, STR("]"));
        if ((!is_head && is_line_of(line, ours)) || names_reason(line))
            continue;
        buf_add(out, line);
        buf_add_char(out, '\n');
    }
}

/*
 * The guest has changed it: `npm config set` and `git config --system` do. Its lines stay, and ours do not, or git would
 * go on to say that internet access is off.
 */
static bool leave_to_guest(int dir_fd, const struct file *file, struct str text, struct str ours, struct err *err)
{
    auto_buf struct buf rest = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES + 1);

    (void)unlinkat(dir_fd, file->kept, 0);
    if (file == &nsswitch || !has_ours(text))
        return true;
    ours_out(text, ours, &rest);
    return rest.len >= text.len || network_replace(dir_fd, file->name, buf_str(&rest), err);
}

static bool take_back(int dir_fd, const struct file *file, struct str inside, struct err *err)
{
    auto_buf struct buf ours = buf_make(NULL, LIMIT_NSS_BYTES);
    auto_free char *text = NULL;
    struct err ignored; /* what cannot be read is the guest's */
    size_t len = 0;

    if (file != &nsswitch)
        add_ours(file, inside, &ours);
    if (!read_inside(dir_fd, file->name, (size_t)2 * LIMIT_NSS_BYTES, &text, &len, &ignored))
        return leave_to_guest(dir_fd, file, STR(""), STR(""), err);
    if (!is_ours(dir_fd, file, str_of(text, len), buf_str(&ours)))
        return leave_to_guest(dir_fd, file, str_of(text, len), buf_str(&ours), err);
    if (renameat(dir_fd, file->kept, dir_fd, file->name) == 0)
        return true;
    if (errno != ENOENT)
        return err_sys(err, "put the old %s back", file->name);
    return unlinkat(dir_fd, file->name, 0) == 0 || err_sys(err, "remove %s", file->name);
}

/* ---- all of them ---- */

typedef bool act_fn(int dir_fd, const struct file *file, struct str inside, struct err *err);

/* Each for itself: one that cannot be written leaves the others as useful as before. */
static void for_each_file(int dir_fd, struct str inside, act_fn *act)
{
    bool has_apt = is_directory(dir_fd, "apt") && is_directory(dir_fd, APT_DIRECTORY); /* and not a link to one */
    struct err err;

    if (inside.len == 0 && !act(dir_fd, &nsswitch, inside, &err))
        log_warn("programs are not told about the network: %s", err_text(&err));
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if ((strcmp(files[i].name, APT_CONF) != 0 || has_apt) && !act(dir_fd, &files[i], inside, &err))
            log_warn("programs are not told about the network: %s", err_text(&err));
}

/* Ours comes first: the C library asks three servers at most. `options` and `search` of the guest come later and win. */
static void see_to_nameserver(int dir_fd)
{
    auto_buf struct buf made = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES);
    auto_free char *text = NULL;
    size_t len = 0;
    struct err err; /* what cannot be read is replaced */

    if (read_inside(dir_fd, "resolv.conf", LIMIT_NSS_BYTES, &text, &len, &err) &&
        network_has_nameserver(str_of(text, len)))
        return;
    buf_add(&made, STR(RESOLV_CONF));
    buf_add(&made, str_of(text, len));
    if (!network_replace(dir_fd, "resolv.conf", buf_str(&made), &err))
        log_warn("names cannot be resolved: %s", err_text(&err));
}

static bool make_kept(int dir_fd, struct str inside, struct err *err)
{
    if (mkdirat(dir_fd, KEPT, 0755) < 0)
        return err_sys(err, "make " KEPT);
    return inside.len == 0 || network_replace(dir_fd, KEPT_INSIDE, inside, err);
}

static void tell_off(int dir_fd, struct str inside)
{
    struct err err;

    if (make_kept(dir_fd, inside, &err))
        for_each_file(dir_fd, inside, write_file);
    else
        log_warn("programs are not told about the network: %s", err_text(&err));
}

static void take_all_back(int dir_fd, struct str inside)
{
    for_each_file(dir_fd, inside, take_back);
    (void)unlinkat(dir_fd, KEPT_INSIDE, 0);     /* there are no names */
    (void)unlinkat(dir_fd, KEPT, AT_REMOVEDIR); /* not if the guest has put something there */
}

/*
 * The names that the files were written for, if any. A list that the guest has made longer than any of ours is not used:
 * each line of each file is compared with lines for all of them, and guestd does nothing else meanwhile.
 */
static void read_told(int dir_fd, char **out_text, size_t *out_len)
{
    auto_free char *text = NULL;
    size_t len, count = 0;
    struct err ignored; /* there are none */

    if (!read_inside(dir_fd, KEPT_INSIDE, LIMIT_INSIDE_BYTES, &text, &len, &ignored))
        return;
    for (size_t i = 0; i < len; i++)
        count += text[i] == '\n';
    if (count > LIMIT_INSIDE)
        return;
    *out_text = take_ptr(&text);
    *out_len = len;
}

void network_tell(const char *etc, enum guestlink_reach reach, struct str inside)
{
    auto_close int dir_fd = open(etc, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_free char *old = NULL;
    size_t old_len = 0;

    if (dir_fd < 0) {
        log_warn("cannot open %s, so programs are not told about the network: %s", etc, strerror(errno));
        return;
    }
    if (reach != GUESTLINK_INSIDE)
        inside = STR("");
    bool is_told = is_directory(dir_fd, KEPT); /* a link is not ours, and leads anywhere */
    if (is_told)
        read_told(dir_fd, &old, &old_len);
    if (is_told && reach != GUESTLINK_OUTSIDE && str_eq(str_of(old, old_len), inside))
        return; /* the files were written before, and what is there now is the guest's */
    if (is_told)
        take_all_back(dir_fd, str_of(old, old_len));
    if (reach == GUESTLINK_OUTSIDE)
        see_to_nameserver(dir_fd);
    else
        tell_off(dir_fd, inside);
}
