#include "guest/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "guest/network.h"

#define BEGIN "# Cloister: this sandbox's header rules need the following certificate\n"
#define END "# Cloister: end\n"
#define DIRECTORY "ssl/certs"
#define BUNDLE DIRECTORY "/ca-certificates.crt"
#define ALONE DIRECTORY "/cloister-authority.pem"
#define HASHED DIRECTORY "/.cloister-authority" /* a link to the <hash>.0 that we have written */

/* Debian, Ubuntu and Alpine; Fedora; SUSE; Alpine and the BSDs. */
static const char *const bundles[] = { BUNDLE, "pki/tls/certs/ca-bundle.crt", "ssl/ca-bundle.pem", "ssl/cert.pem" };

const struct guestlink_env trust_envs[TRUST_ENVS] = {
    { STR_INIT("SSL_CERT_FILE"), STR_INIT("/etc/" BUNDLE) },
    { STR_INIT("REQUESTS_CA_BUNDLE"), STR_INIT("/etc/" BUNDLE) },
    { STR_INIT("NODE_EXTRA_CA_CERTS"), STR_INIT("/etc/" ALONE) },
};

void trust_bundle(struct str old, struct str authority, struct buf *out)
{
    const char *begin = old.len ? memmem(old.at, old.len, BEGIN, sizeof BEGIN - 1) : NULL;
    size_t before = begin ? (size_t)(begin - old.at) : old.len;
    const char *end = begin ? memmem(begin, old.len - before, END, sizeof END - 1) : NULL;

    buf_add(out, str_of(old.at, before));
    if (end)
        buf_add(out, str_of(end + sizeof END - 1, (size_t)(old.at + old.len - end) - (sizeof END - 1)));
    if (authority.len == 0)
        return;
    if (out->len && out->data[out->len - 1] != '\n')
        buf_add_char(out, '\n');
    buf_add(out, STR(BEGIN));
    buf_add(out, authority);
    buf_add(out, STR(END));
}

static void warn(const struct err *err)
{
    log_warn("header rules may not work for some programs: %s", err_text(err));
}

static void put(int etc_fd, const char *name, struct str text)
{
    struct err err;

    if (!network_replace(etc_fd, name, text, &err))
        warn(&err);
}

/* False: there is no such file. */
static bool change_bundle(int etc_fd, const char *name, struct str authority)
{
    auto_free char *text = NULL;
    size_t len = 0;
    struct err err;

    if (!fd_read_regular(etc_fd, name, LIMIT_BUNDLE_BYTES, &text, &len, &err)) {
        if (err.sys == ENOENT)
            return false;
        warn(&err);
        return true;
    }
    auto_buf struct buf out = buf_make(NULL, LIMIT_BUNDLE_BYTES + 2 * LIMIT_AUTHORITY_BYTES);
    trust_bundle(str_of(text, len), authority, &out);
    if (!str_eq(buf_str(&out), str_of(text, len)))
        put(etc_fd, name, buf_str(&out));
    return true;
}

/* The variables name a bundle, so there is one: a copy of another one, or the authority alone. */
static void make_bundle(int etc_fd, struct str authority)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_BUNDLE_BYTES + 2 * LIMIT_AUTHORITY_BYTES);

    for (size_t i = 1; i < COUNT_OF(bundles) && out.len == 0; i++) {
        auto_free char *text = NULL;
        size_t len;
        struct err ignored; /* the next one, or none */
        if (fd_read_regular(etc_fd, bundles[i], LIMIT_BUNDLE_BYTES, &text, &len, &ignored))
            buf_add(&out, str_of(text, len));
    }
    if (out.len == 0)
        trust_bundle(STR(""), authority, &out);
    put(etc_fd, BUNDLE, buf_str(&out));
}

static void forget_hashed(int etc_fd)
{
    char name[64];
    ssize_t len = readlinkat(etc_fd, HASHED, name, sizeof name - 1);

    if (len <= 0)
        return;
    name[len] = '\0';
    if (strspn(name, "0123456789abcdef.") != (size_t)len) /* the guest can change it; only names like ours count */
        return;
    char path[96];
    (void)snprintf(path, sizeof path, DIRECTORY "/%s", name);
    (void)unlinkat(etc_fd, path, 0);
    (void)unlinkat(etc_fd, HASHED, 0);
}

static void put_hashed(int etc_fd, const struct guestlink_authority *authority)
{
    char name[32], path[64];

    (void)snprintf(name, sizeof name, "%08x.0", authority->hash);
    (void)snprintf(path, sizeof path, DIRECTORY "/%s", name);
    put(etc_fd, path, authority->pem);
    if (symlinkat(name, etc_fd, HASHED) < 0) {
        struct err err;
        (void)err_sys(&err, "make " HASHED);
        warn(&err);
    }
}

void trust_tell(const char *etc, const struct guestlink_authority *authority)
{
    auto_close int etc_fd = open(etc, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat found;

    if (etc_fd < 0)
        return; /* network_tell() has said so */
    /* Nothing to do, and nothing to take back: what nearly every sandbox comes to. */
    if (authority->pem.len == 0 && fstatat(etc_fd, ALONE, &found, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    forget_hashed(etc_fd);
    if (authority->pem.len) {
        (void)mkdirat(etc_fd, "ssl", 0755); /* if they are not there */
        (void)mkdirat(etc_fd, DIRECTORY, 0755);
    }
    for (size_t i = 0; i < COUNT_OF(bundles); i++)
        if (!change_bundle(etc_fd, bundles[i], authority->pem) && i == 0 && authority->pem.len)
            make_bundle(etc_fd, authority->pem);
    if (authority->pem.len) {
        put_hashed(etc_fd, authority);
        put(etc_fd, ALONE, authority->pem);
    } else {
        (void)unlinkat(etc_fd, ALONE, 0);
    }
}
