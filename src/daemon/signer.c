/*
 * signer_main() - holds the private keys of TLS, and signs with them.
 *   holds     keys, in its memory, and channels to keeper and front
 *   must not  open a file, make a socket, start a process or a thread, parse a byte from a client
 *
 * How it works: keeper sends the keys (MESSAGE_CERTIFICATE) when signer starts and when they change. Front sends digests
 * (MESSAGE_SIGN) while a handshake runs. An attacker who has taken over front can have digests signed while that lasts,
 * but does not get the keys.
 *
 * After a change the keys from before are kept, too: handshakes with the old certificate may be under way.
 */
#include <openssl/ssl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/certificates.h"
#include "daemon/roles.h"
#include "daemon/sign_message.h"
#include "daemon/supervisor.h"
#include "io/loop.h"
#include "io/tls_key.h"
#include "privsep/channel.h"
#include "privsep/role.h"

struct signer {
    struct loop *loop;
    struct channel *keeper;
    struct channel *peers[ROLE_COUNT];
    struct tls_key *keys[LIMIT_TLS_CERTIFICATES], *old_keys[LIMIT_TLS_CERTIFICATES];
    int exit_code;
};

static void free_keys(struct tls_key *keys[LIMIT_TLS_CERTIFICATES])
{
    for (size_t i = 0; i < LIMIT_TLS_CERTIFICATES; i++)
        tls_key_free(take_ptr(&keys[i]));
}

static bool take_keys(struct signer *signer, struct str payload, struct message_fds *fds, struct err *err)
{
    struct tls_key *keys[LIMIT_TLS_CERTIFICATES] = { NULL };
    auto_texts struct message_texts texts = { 0 };

    if (!message_texts_read(payload, fds, LIMIT_TLS_KEY_BYTES, &texts, err))
        return false;
    for (uint32_t i = 0; i < texts.count; i++) {
        keys[i] = tls_key_read(str_of(texts.at[i], texts.len[i]), err);
        if (!keys[i]) {
            free_keys(keys);
            return err_wrap(err, "key %u from keeper", i);
        }
    }
    free_keys(signer->old_keys);
    memcpy(signer->old_keys, signer->keys, sizeof keys);
    memcpy(signer->keys, keys, sizeof keys);
    return true;
}

static const struct tls_key *find_key(const struct signer *signer, const unsigned char id[TLS_KEY_ID_BYTES])
{
    for (size_t i = 0; i < 2 * LIMIT_TLS_CERTIFICATES; i++) {
        const struct tls_key *key =
            i < LIMIT_TLS_CERTIFICATES ? signer->keys[i] : signer->old_keys[i - LIMIT_TLS_CERTIFICATES];
        if (key && memcmp(tls_key_id(key), id, TLS_KEY_ID_BYTES) == 0)
            return key;
    }
    return NULL;
}

/* ---- messages ---- */

static bool on_front_request(void *context, struct channel *channel, enum message_type type, uint32_t id,
                             struct str payload, struct message_fds *fds, struct err *err)
{
    struct signer *signer = context;
    unsigned char signature[TLS_SIGNATURE_BYTES];
    auto_buf struct buf reply = buf_make(NULL, SIGN_MESSAGE_BYTES);
    struct tls_to_sign want;
    size_t len;
    struct err why;

    (void)fds;
    if (type != MESSAGE_SIGN)
        return err_set(err, ERR_INVALID, "front may not send %s to signer", message_type_name[type]);
    if (!sign_request_unpack(payload, &want, err))
        return false;
    const struct tls_key *key = find_key(signer, want.key_id);
    if (!key) {
        (void)err_set(&why, ERR_NOT_FOUND, "signer does not have this key");
        channel_reply_error(channel, type, id, &why);
    } else if (!tls_key_sign(key, &want, signature, &len, &why)) {
        channel_reply_error(channel, type, id, &why);
    } else {
        sign_reply_pack(&reply, str_of(signature, len));
        channel_reply(channel, type, id, buf_str(&reply), NULL, 0);
    }
    return true;
}

static bool on_keeper_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                            struct err *err)
{
    struct signer *signer = context;

    if (type == MESSAGE_PEER)
        return supervisor_take_peer(signer->peers, ROLE_COUNT, payload, fds, err);
    if (type == MESSAGE_CERTIFICATE)
        return take_keys(signer, payload, fds, err);
    return err_set(err, ERR_INVALID, "keeper may not send %s to signer", message_type_name[type]);
}

static void on_keeper_broken(void *context, const struct err *why)
{
    struct signer *signer = context;

    log_error("keeper is gone: %s", err_text(why));
    signer->exit_code = 1;
    loop_stop_soon(signer->loop);
}

/* Front has ended, or sent nonsense: keeper starts another one, and connects it. */
static void on_front_broken(void *context, const struct err *why)
{
    (void)context;
    if (why->kind == ERR_INVALID)
        log_error("front's connection is closed: %s", err_text(why));
}

static void on_signal(void *context, int number)
{
    (void)number;
    loop_stop_soon(((struct signer *)context)->loop);
}

int signer_main(const struct role_row *self)
{
    static const struct channel_handlers from_keeper = { .event = on_keeper_event, .broken = on_keeper_broken };
    static const struct channel_handlers from_front = { .request = on_front_request, .broken = on_front_broken };
    struct signer *signer = NEW(struct signer);
    struct err err;

    (void)self;
    signer->loop = loop_new();
    (void)signal(SIGINT, SIG_IGN); /* a terminal sends it to all; keeper sends SIGTERM */
    signer->keeper = channel_new(signer->loop, ROLE_CHANNEL_FD, &from_keeper, signer);
    signer->peers[ROLE_FRONT] = channel_new(signer->loop, -1, &from_front, signer);
    if (loop_on_signal(signer->loop, SIGTERM, on_signal, signer, &err)) {
        loop_run(signer->loop);
    } else {
        log_error("cannot start: %s", err_text(&err));
        signer->exit_code = 1;
    }
    int code = signer->exit_code;
    free_keys(signer->keys);
    free_keys(signer->old_keys);
    channel_free(signer->peers[ROLE_FRONT]);
    channel_free(signer->keeper);
    loop_free(signer->loop);
    free(signer);
    return code;
}

/*
 * Every system call that signer may make. It opens nothing: keys come as descriptors that it can only read.
 */
const struct confine_rule signer_calls[] = {
    { "recvmsg", "keeper, front" },
    { "sendmsg", "front" },
    { "read", "keys, wake-ups of the loop" },
    { "write", "the log, wake-ups of the loop" },
    { "close", "descriptors of keys" },
    { "lseek", "keys" },
    { "epoll_create1", "the loop" },
    { "epoll_ctl", "the loop" },
    { "epoll_wait", "the loop" },
    { "epoll_pwait", "the loop" },
    { "eventfd2", "the loop" },
    { "fcntl", "O_NONBLOCK" },
    { "ioctl", "the loop makes descriptors non-blocking by it", .only = FIONBIO },
    { "setsockopt", "channels" },
    { "getsockopt", "channels" },
    { "futex", "OpenSSL's locks" },
    { "restart_syscall", "after a signal" },
    { "mmap", "memory" },
    { "munmap", "memory" },
    { "mremap", "memory" },
    { "mprotect", "memory" },
    { "madvise", "memory given back" },
    { "brk", "memory" },
    { "exit", "the end" },
    { "exit_group", "the end" },
    { "rt_sigaction", "signals" },
    { "rt_sigprocmask", "signals" },
    { "rt_sigreturn", "signals" },
    { "sigaltstack", "the sanitizers of test builds" },
    { "getpid", "abort, OpenSSL's random numbers" },
    { "gettid", "abort" },
    { "tgkill", "abort" },
    { "getrandom", "signatures" },
    { "clock_gettime", "time, where the vDSO cannot" },
    { "gettimeofday", "the same" },
    { "sched_yield", "locks" },
    { "prlimit64", "libc" },
    { "sysinfo", "the allocator" },
    { NULL },
};
