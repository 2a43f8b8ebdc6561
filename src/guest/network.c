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
#define KEPT ".cloister-network" /* directory of the files that ours stand in for; there while ours are */
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
    { "apt/apt.conf.d/90cloister-network", KEPT "/90cloister-network",
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
      "    print STDERR \"" OFF ": neither packages nor lists of packages can be fetched.\\n" HOW ".\\n\" if "
      "/install\\.fail/;\n"
      "    exit if /hooks\\.bye/;\n"
      "}\n",
      REPLACED },
    /* Not 0: pip says why it found nothing only when it tries again. The first retry comes at once, and shows the path. */
    { "pip.conf", KEPT "/pip.conf",
      "# " OFF ".\n# " HOW ".\n[global]\nretries = 1\nindex-url = https://" REASON_HOST "/" REASON "\n", LEFT },
    { "npmrc", KEPT "/npmrc", "# " OFF ".\n# " HOW ".\nfetch-retries=0\nregistry=https://" REASON_HOST "/\n", LEFT },
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

bool network_replace(int dir_fd, const char *name, struct str text, struct err *err)
{
    if (unlinkat(dir_fd, DRAFT, 0) < 0 && errno != ENOENT)
        return err_sys(err, "remove an old " DRAFT);
    auto_close int fd = openat(dir_fd, DRAFT, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(err, "create " DRAFT);
    bool ok = fd_write_all(fd, text, err) || err_wrap(err, "write %s", name);
    if (ok && renameat(dir_fd, DRAFT, dir_fd, name) == 0)
        return true;
    if (ok) {
        ok = errno == ENOENT; /* no apt here */
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

/* What the file shall be, made of what it is. Without a file the C library and git have their defaults. */
static bool new_text(int dir_fd, const struct file *file, struct buf *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len = 0;

    if (!fd_read_regular(dir_fd, file->name, LIMIT_NSS_BYTES, &text, &len, err) && err->sys != ENOENT)
        return err_wrap(err, "read %s", file->name);
    if (file == &nsswitch) {
        network_nsswitch_without_dns(str_of(text, len), out);
        return true;
    }
    buf_add(out, str_of(text, len));
    if (len && text[len - 1] != '\n')
        buf_add_char(out, '\n');
    buf_add(out, str_from(file->text));
    return true;
}

static bool write_file(int dir_fd, const struct file *file, struct err *err)
{
    auto_buf struct buf made = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES);

    if (file->there == LEFT && exists(dir_fd, file->name))
        return true;
    if (file != &nsswitch && file->there == REPLACED)
        buf_add(&made, str_from(file->text));
    else if (!new_text(dir_fd, file, &made, err))
        return false;
    return keep(dir_fd, file, err) && network_replace(dir_fd, file->name, buf_str(&made), err);
}

/* Is it still as we wrote it? `text` is what it is now. */
static bool is_ours(int dir_fd, const struct file *file, struct str text)
{
    auto_free char *kept = NULL;
    struct err ignored; /* what cannot be read is not ours */
    size_t len;

    if (file == &nsswitch)
        return str_ends(text, STR(NSSWITCH_HOSTS));
    if (file->there != EXTENDED || !exists(dir_fd, file->kept))
        return str_eq(text, str_from(file->text));
    if (!fd_read_regular(dir_fd, file->kept, LIMIT_NSS_BYTES, &kept, &len, &ignored))
        return false;
    if (!str_skip(&text, str_of(kept, len)))
        return false;
    (void)str_skip(&text, STR("\n")); /* new_text() may have ended the last line */
    return str_eq(text, str_from(file->text));
}

static bool is_line_of(struct str line, struct str text)
{
    struct str each;

    while (text.len && str_cut(&text, '\n', &each))
        if (str_eq(each, line))
            return true;
    return false;
}

/* All but our lines. The head of a section stays: other lines may follow it. */
static void ours_out(struct str text, struct str ours, struct buf *out)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        bool is_head = str_ends(line, STR("]"));
        if ((!is_head && is_line_of(line, ours)) || memmem(line.at, line.len, REASON, sizeof REASON - 1))
            continue;
        buf_add(out, line);
        buf_add_char(out, '\n');
    }
}

/*
 * The guest has changed it: `npm config set` and `git config --system` do. Its lines stay, and ours do not, or git would
 * go on to say that internet access is off.
 */
static bool leave_to_guest(int dir_fd, const struct file *file, struct str text, struct err *err)
{
    auto_buf struct buf rest = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES + 1);

    (void)unlinkat(dir_fd, file->kept, 0);
    if (!file->text)
        return true;
    ours_out(text, str_from(file->text), &rest);
    return rest.len >= text.len || network_replace(dir_fd, file->name, buf_str(&rest), err);
}

static bool take_back(int dir_fd, const struct file *file, struct err *err)
{
    auto_free char *text = NULL;
    struct err ignored; /* what cannot be read is the guest's */
    size_t len = 0;

    if (!fd_read_regular(dir_fd, file->name, (size_t)2 * LIMIT_NSS_BYTES, &text, &len, &ignored) ||
        !is_ours(dir_fd, file, str_of(text, len)))
        return leave_to_guest(dir_fd, file, str_of(text, len), err);
    if (renameat(dir_fd, file->kept, dir_fd, file->name) == 0)
        return true;
    if (errno != ENOENT)
        return err_sys(err, "put the old %s back", file->name);
    return unlinkat(dir_fd, file->name, 0) == 0 || err_sys(err, "remove %s", file->name);
}

/* ---- all of them ---- */

/* Each for itself: one that cannot be written leaves the others as useful as before. */
static void for_each_file(int dir_fd, bool (*act)(int dir_fd, const struct file *file, struct err *err))
{
    struct err err;

    if (!act(dir_fd, &nsswitch, &err))
        log_warn("programs are not told about the network: %s", err_text(&err));
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (!act(dir_fd, &files[i], &err))
            log_warn("programs are not told about the network: %s", err_text(&err));
}

static void see_to_nameserver(int dir_fd)
{
    auto_free char *text = NULL;
    size_t len = 0;
    struct err err;

    if (fd_read_regular(dir_fd, "resolv.conf", LIMIT_NSS_BYTES, &text, &len, &err) &&
        network_has_nameserver(str_of(text, len)))
        return;
    if (!network_replace(dir_fd, "resolv.conf", STR(RESOLV_CONF), &err))
        log_warn("names cannot be resolved: %s", err_text(&err));
}

void network_tell(const char *etc, bool has_network)
{
    auto_close int dir_fd = open(etc, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct err err;

    if (dir_fd < 0) {
        log_warn("cannot open %s, so programs are not told about the network: %s", etc, strerror(errno));
        return;
    }
    if (has_network) {
        if (exists(dir_fd, KEPT)) {
            for_each_file(dir_fd, take_back);
            (void)unlinkat(dir_fd, KEPT, AT_REMOVEDIR); /* not if the guest has put something there */
        }
        see_to_nameserver(dir_fd);
        return;
    }
    if (mkdirat(dir_fd, KEPT, 0755) == 0)
        for_each_file(dir_fd, write_file);
    else if (errno != EEXIST) { /* else they were written before, and what is there now is the guest's */
        (void)err_sys(&err, "make " KEPT);
        log_warn("programs are not told about the network: %s", err_text(&err));
    }
}
