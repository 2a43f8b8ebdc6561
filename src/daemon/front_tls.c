#include "daemon/front_tls.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/certificates.h"
#include "daemon/sign_message.h"
#include "io/tls.h"

enum { SIGN_RETRY_MS = 20 };

struct front_tls {
    struct tls_server *server;
    struct channel *signer;
};

static bool ask_signer(struct front_tls *tls, struct str request, unsigned char out[TLS_SIGNATURE_BYTES],
                       size_t *out_len, struct err *err)
{
    auto_answer struct channel_answer answer = { 0 };

    if (!channel_call(tls->signer, MESSAGE_SIGN, request, &answer, err))
        return err_wrap(err, "ask signer");
    return sign_reply_unpack(str_of(answer.payload, answer.len), out, out_len, err);
}

/*
 * On a worker, in the middle of a handshake. Signer may be starting again, or may not have a new key yet: it is asked
 * again for a while.
 */
static bool sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len,
                 struct err *err)
{
    auto_buf struct buf request = buf_make(NULL, SIGN_MESSAGE_BYTES);
    uint64_t until_ms = clock_mono_ms() + LIMIT_TLS_SIGN_MS;

    sign_request_pack(&request, want);
    while (!ask_signer(context, buf_str(&request), out, out_len, err)) {
        if ((err->kind != ERR_UNAVAILABLE && err->kind != ERR_NOT_FOUND) || clock_mono_ms() >= until_ms)
            return false;
        (void)usleep(SIGN_RETRY_MS * 1000);
    }
    return true;
}

struct front_tls *front_tls_new(struct loop *loop, struct workers *workers, struct channel *signer)
{
    static const char *const protocols[] = { "h2", "http/1.1", NULL };
    struct front_tls *tls = NEW(struct front_tls);

    tls->signer = signer;
    tls->server = tls_server_new(&(struct tls_server_config){
        .loop = loop, .workers = workers, .protocols = protocols, .sign = sign, .context = tls });
    return tls;
}

bool front_tls_take(struct front_tls *tls, struct str payload, struct message_fds *fds, struct err *err)
{
    auto_texts struct message_texts texts = { 0 };
    struct str chains[LIMIT_TLS_CERTIFICATES];

    if (!message_texts_read(payload, fds, LIMIT_TLS_CHAIN_BYTES, &texts, err))
        return false;
    for (uint32_t i = 0; i < texts.count; i++)
        chains[i] = str_of(texts.at[i], texts.len[i]);
    /* Keeper has tried them. What is in force stays so. */
    struct err why;
    if (!tls_server_use(tls->server, chains, texts.count, &why))
        log_error("certificates from keeper cannot be used: %s", err_text(&why));
    return true;
}

void front_tls_accept(struct front_tls *tls, struct stream *stream)
{
    tls_accept(tls->server, stream);
}

void front_tls_free(struct front_tls *tls)
{
    if (!tls)
        return;
    tls_server_free(tls->server);
    free(tls);
}
