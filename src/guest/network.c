#include "guest/network.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

#define DRAFT ".cloister-new"
#define NO_NETWORK "This sandbox has no network"

/* Files and not variables: `su -`, `env -i` and cron clear those. */
static const struct {
    const char *name, *text;
    bool is_kept; /* one that the template has stays as it is */
} files[] = {
    /* A nameserver all the same: programs with a resolver of their own are refused there at once, and ask no other. */
    { "resolv.conf",
      "# " NO_NETWORK ": no name but those in /etc/hosts can be resolved.\n"
      "nameserver 127.0.0.1\n"
      "options timeout:1 attempts:1\n",
      false },
    { "motd", NO_NETWORK ": programs in it reach each other on 127.0.0.1, and nothing outside.\n", false },
    /* Without the second line `apt-get update` calls what it could not fetch a warning, and ends with 0. */
    { "apt/apt.conf.d/90cloister-network",
      "// " NO_NETWORK ".\nAcquire::Retries \"0\";\nAPT::Update::Error-Mode \"any\";\n", false },
    /* Not 0: pip says why it found nothing only when it tries again. The first retry comes at once. */
    { "pip.conf", "# " NO_NETWORK ".\n[global]\nretries = 1\n", true },
    { "npmrc", "# " NO_NETWORK ".\nfetch-retries=0\n", true },
};

void network_nsswitch_without_dns(struct str text, struct buf *out)
{
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        if (str_starts(str_trim(line), STR("hosts:")))
            continue;
        buf_add(out, line);
        buf_add_char(out, '\n');
    }
    buf_add(out, STR("# " NO_NETWORK ".\nhosts: files\n"));
}

/* A new file in place of the old one: a reader sees one of the two. */
static bool replace(int dir_fd, const char *name, struct str text, struct err *err)
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

static bool exists(int dir_fd, const char *name)
{
    struct stat found;

    return fstatat(dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool change_nsswitch(int dir_fd, struct err *err)
{
    auto_free char *text = NULL;
    auto_buf struct buf changed = buf_make(NULL, 2 * LIMIT_NSS_BYTES);
    size_t len = 0;

    /* Without the file the C library has defaults for all that we do not name. */
    if (!fd_read_regular(dir_fd, "nsswitch.conf", LIMIT_NSS_BYTES, &text, &len, err) && err->sys != ENOENT)
        return err_wrap(err, "read nsswitch.conf");
    network_nsswitch_without_dns(str_of(text, len), &changed);
    return replace(dir_fd, "nsswitch.conf", buf_str(&changed), err);
}

void network_tell_none(const char *etc)
{
    auto_close int dir_fd = open(etc, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct err err;

    if (dir_fd < 0) {
        log_warn("cannot open %s, so programs are not told that there is no network: %s", etc, strerror(errno));
        return;
    }
    /* Each for itself: one that cannot be written leaves the others as useful as before. */
    if (!change_nsswitch(dir_fd, &err))
        log_warn("programs are not told that there is no network: %s", err_text(&err));
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (!(files[i].is_kept && exists(dir_fd, files[i].name)) &&
            !replace(dir_fd, files[i].name, str_from(files[i].text), &err))
            log_warn("programs are not told that there is no network: %s", err_text(&err));
}
