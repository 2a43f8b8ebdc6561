#include "daemon/certificates.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/config.h"
#include "io/tls_key.h"

enum {
    LOOK_MS = 5000,
    RENEW_LOOK_MS = 3600 * 1000, /* at the local authority's certificate, and at the system's roots */
    SOON_DAYS = 7,               /* before its end the operator is told */
};

/* What a file was when we looked: enough to see that it was replaced, through symbolic links too. */
struct file_state {
    bool exists;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed, modified;
};

struct certificates {
    struct certificates_config config;
    char host[256]; /* of the domain, for the local authority; empty: none, or the operator has a certificate for it */
    struct key_pair given, local;
    struct file_state loaded[2], seen[2]; /* certificate, key */
    struct timer look;
    uint64_t renew_ms;
};

/* ---- files ---- */

static struct file_state look_at_file(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return (struct file_state){ 0 };
    return (struct file_state){ .exists = true,
                                .device = st.st_dev,
                                .inode = st.st_ino,
                                .size = st.st_size,
                                .changed = st.st_ctim,
                                .modified = st.st_mtim };
}

static bool is_same_file(const struct file_state *a, const struct file_state *b)
{
    return a->exists == b->exists && a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec &&
           a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

/* Things that clients will complain about, and that the server can live with. */
static void warn_about(const char *path, struct str chain, const char *domain)
{
    char host[256], below[270], day[CLOCK_TEXT_BYTES];
    struct tls_chain_facts facts;
    struct err err;
    int64_t now = clock_wall_us(), soon = now + (int64_t)SOON_DAYS * 86400 * 1000000;

    authority_host(domain, host, sizeof host);
    (void)snprintf(below, sizeof below, "x.%s", host);
    if (!tls_chain_look(chain, below, &facts, &err))
        return;
    if (facts.ends_us < now)
        log_warn("the certificate in %s has ended on %.10s: clients refuse it", path, clock_text(facts.ends_us, day));
    else if (facts.begins_us > now)
        log_warn("the certificate in %s begins only on %.10s: clients refuse it", path,
                 clock_text(facts.begins_us, day));
    else if (facts.ends_us < soon)
        log_warn("the certificate in %s ends on %.10s: renew it", path, clock_text(facts.ends_us, day));
    const char *name = facts.first_name + (strncmp(facts.first_name, "*.", 2) == 0 ? 2 : 0);
    if (host[0] && !facts.has_name && name[0])
        log_warn("the certificate in %s is for %s and not for *.%s: clients refuse it for sandboxes; if %s is this "
                 "server's domain, set --domain %s",
                 path, facts.first_name, host, name, name);
    else if (host[0] && !facts.has_name)
        log_warn("the certificate in %s is not for *.%s: clients refuse it for sandboxes", path, host);
}

/*
 * Puts the files into the message, because at the start of the server the trail is shown only after a failed system call.
 * Long paths are cut, so that the reason is whole.
 */
static bool name_files(struct err *err, const char *files)
{
    struct err why = *err;
    int room = (int)sizeof err->message - (int)strlen(why.message) - (int)sizeof ": ";

    return why.sys ? err_wrap(err, "%s", files)
                   : err_set(err, why.kind, "%.*s: %s", room > 0 ? room : 0, files, why.message);
}

bool certificates_read(const char *cert_path, const char *key_path, const char *domain, struct key_pair *out,
                       struct err *err)
{
    auto_pair struct key_pair pair = { 0 };
    size_t chain_len, key_len;
    char files[2 * CONFIG_TEXT_BYTES + 32];

    (void)snprintf(files, sizeof files, "certificate %s with key %s", cert_path, key_path);
    if (!fd_read_file(AT_FDCWD, cert_path, LIMIT_TLS_CHAIN_BYTES, &pair.chain, &chain_len, err))
        return err_wrap(err, "certificate %s", cert_path);
    if (!fd_read_file(AT_FDCWD, key_path, LIMIT_TLS_KEY_BYTES, &pair.key, &key_len, err))
        return err_wrap(err, "key %s", key_path);
    struct tls_key *key = tls_key_read(str_of(pair.key, key_len), err);
    if (!key)
        return name_files(err, files);
    bool ok = tls_key_fits(key, str_of(pair.chain, chain_len), err) &&
              tls_chain_is_usable(str_of(pair.chain, chain_len), err);
    tls_key_free(key);
    if (!ok)
        return name_files(err, files);
    warn_about(cert_path, str_of(pair.chain, chain_len), domain);
    *out = (struct key_pair){ .chain = take_ptr(&pair.chain), .key = take_ptr(&pair.key) };
    return true;
}

static bool load_given(struct certificates *all, struct err *err)
{
    const char *paths[2] = { all->config.cert_path, all->config.key_path };
    struct key_pair pair;

    /* Before reading: if they change while we read, the next look sees a difference. */
    for (int i = 0; i < 2; i++)
        all->loaded[i] = all->seen[i] = look_at_file(paths[i]);
    if (!certificates_read(paths[0], paths[1], all->config.domain, &pair, err))
        return false;
    key_pair_done(&all->given);
    all->given = pair;
    return true;
}

/* True if there is something new to send. */
static bool look_at_given(struct certificates *all)
{
    struct file_state now[2] = { look_at_file(all->config.cert_path), look_at_file(all->config.key_path) };
    bool is_loaded = is_same_file(&now[0], &all->loaded[0]) && is_same_file(&now[1], &all->loaded[1]);
    bool is_settled = is_same_file(&now[0], &all->seen[0]) && is_same_file(&now[1], &all->seen[1]);
    struct err err;

    memcpy(all->seen, now, sizeof now);
    /* Two files cannot be replaced at once: wait until both have been left alone for a while. */
    if (is_loaded || !is_settled)
        return false;
    if (!load_given(all, &err)) {
        log_error("the new certificate cannot be used, the old one stays in force: %s", err_text(&err));
        return false;
    }
    log_info("certificate %s was loaded again", all->config.cert_path);
    return true;
}

static bool look_at_local(struct certificates *all)
{
    struct key_pair pair;
    bool is_new;
    struct err err;

    all->renew_ms = loop_now_ms(all->config.loop) + RENEW_LOOK_MS;
    if (!authority_refresh_bundle(all->config.data_fd, &err) ||
        !authority_certificate(all->config.data_fd, all->host, &pair, &is_new, &err)) {
        log_warn("cannot renew the local certificate: %s", err_text(&err));
        return false;
    }
    key_pair_done(&all->local);
    all->local = pair;
    return is_new;
}

static void on_look(struct timer *timer)
{
    struct certificates *all = container_of(timer, struct certificates, look);
    bool is_new = certificates_are_given(all) && look_at_given(all);

    if (loop_now_ms(all->config.loop) >= all->renew_ms && look_at_local(all))
        is_new = true;
    timer_set(&all->look, all->config.loop, all->config.look_ms, on_look);
    if (is_new)
        all->config.changed(all->config.context);
}

/* ---- messages ---- */

static int sealed_text(const char *text, struct err *err)
{
    auto_close int fd = memfd_create("certificate", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 || err_sys(err, "memfd_create");

    ok = ok && fd_write_all(fd, str_from(text), err);
    if (ok && (lseek(fd, 0, SEEK_SET) < 0 ||
               fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0))
        ok = err_sys(err, "seal a certificate");
    return ok ? take_fd(&fd) : -1;
}

static void send_texts(struct channel *channel, const char *const *texts, uint32_t count)
{
    auto_buf struct buf payload = buf_make(NULL, 1);
    int fds[LIMIT_TLS_CERTIFICATES];
    uint32_t made = 0;
    struct err err;

    while (made < count && (fds[made] = sealed_text(texts[made], &err)) >= 0)
        made++;
    pack_u8(&payload, (uint8_t)count);
    if (made == count)
        channel_send_event(channel, MESSAGE_CERTIFICATE, buf_str(&payload), fds, made);
    else
        log_error("cannot hand out certificates: %s", err_text(&err));
    while (made > 0)
        fd_close(&fds[--made]);
}

void certificates_send_keys(struct certificates *all, struct channel *signer)
{
    const char *texts[] = { all->given.key ? all->given.key : all->local.key, all->local.key };

    send_texts(signer, texts, all->given.key ? 2 : 1);
}

void certificates_send_chains(struct certificates *all, struct channel *front)
{
    const char *texts[] = { all->given.chain ? all->given.chain : all->local.chain, all->local.chain };

    send_texts(front, texts, all->given.chain ? 2 : 1);
}

bool message_texts_read(struct str payload, struct message_fds *fds, size_t cap, struct message_texts *out,
                        struct err *err)
{
    struct message_texts texts = { 0 };
    struct unpack in = unpack_from(payload);
    uint8_t count = unpack_u8(&in);

    if (!unpack_done(&in, err))
        return err_wrap(err, "certificates");
    if (count == 0 || count > LIMIT_TLS_CERTIFICATES || fds->count != count)
        return err_set(err, ERR_INVALID, "malformed message: %u certificates, %u descriptors", count, fds->count);
    for (; texts.count < count; texts.count++)
        if (!fd_read_all(fds->at[texts.count], cap, &texts.at[texts.count], &texts.len[texts.count], err)) {
            message_texts_done(&texts);
            return err_wrap(err, "certificates");
        }
    *out = texts;
    return true;
}

void message_texts_done(struct message_texts *texts)
{
    for (uint32_t i = 0; i < texts->count; i++) {
        explicit_bzero(texts->at[i], texts->len[i]);
        free(texts->at[i]);
    }
    texts->count = 0;
}

/* ---- beginning and end ---- */

bool certificates_are_given(const struct certificates *all)
{
    return all->config.cert_path[0];
}

bool certificates_check_paths(const char *cert_path, const char *key_path, struct err *err)
{
    return !cert_path[0] == !key_path[0] ||
           err_set(err, ERR_INVALID, "--tls-cert and --tls-key belong together: name both files, or none");
}

struct certificates *certificates_new(const struct certificates_config *config, struct err *err)
{
    struct certificates *all = NEW(struct certificates);
    bool is_new, ok = certificates_check_paths(config->cert_path, config->key_path, err);

    all->config = *config;
    if (!all->config.look_ms)
        all->config.look_ms = LOOK_MS;
    if (!certificates_are_given(all))
        authority_host(config->domain, all->host, sizeof all->host);
    ok = ok && (!certificates_are_given(all) || load_given(all, err));
    ok = ok && authority_certificate(config->data_fd, all->host, &all->local, &is_new, err);
    if (!ok) {
        certificates_free(all);
        return NULL;
    }
    all->renew_ms = loop_now_ms(config->loop) + RENEW_LOOK_MS;
    timer_set(&all->look, config->loop, all->config.look_ms, on_look);
    return all;
}

void certificates_free(struct certificates *all)
{
    if (!all)
        return;
    timer_clear(&all->look);
    key_pair_done(&all->given);
    key_pair_done(&all->local);
    free(all);
}
