/*
 * TLS beneath a stream (io/tls.h): first what a stranger sends instead of a handshake, then a client of our own whose
 * bytes arrive in pieces of any size.
 *
 * The first byte of the input chooses. A stranger's bytes follow as they are, in pieces whose sizes the second byte sets:
 * whatever they are, the owner gets none of them. In the other case each byte is a step: one side writes or ends, or the
 * wire moves some bytes. Each side must get what the other one wrote, from the beginning on and in order.
 */
#include <assert.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/buf.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/tls.h"
#include "io/tls_key.h"

enum { IN_CAP = 8192, STEPS_MOST = 400, TURNS_MOST = 2000 };

/* A key for this test alone. */
static const char key_pem[] = "-----BEGIN PRIVATE KEY-----\n"
                              "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgi9+RlirkQBGTD7xH\n"
                              "e9taljc6i6IFVW6mx/kBDl6PPomhRANCAASS1l+yMVMQNEdyXUN+A5Q4JR2Aicc0\n"
                              "g1Rm+vso+mG2mwgKZC7wDjW0hlEl1Gy5TowGBt+jbI2BXW4xQlemZ2RM\n"
                              "-----END PRIVATE KEY-----\n";
static const char certificate_pem[] = "-----BEGIN CERTIFICATE-----\n"
                                      "MIIBlDCCATugAwIBAgIUSjUGiujoLnVmmTfI5pzWzsm32vEwCgYIKoZIzj0EAwIw\n"
                                      "FDESMBAGA1UEAwwJZnV6ei50ZXN0MCAXDTI2MTExNjAzMTgwMloYDzIxMjYxMDIz\n"
                                      "MDMxODAyWjAUMRIwEAYDVQQDDAlmdXp6LnRlc3QwWTATBgcqhkjOPQIBBggqhkjO\n"
                                      "PQMBBwNCAASS1l+yMVMQNEdyXUN+A5Q4JR2Aicc0g1Rm+vso+mG2mwgKZC7wDjW0\n"
                                      "hlEl1Gy5TowGBt+jbI2BXW4xQlemZ2RMo2kwZzAdBgNVHQ4EFgQUoLEIBOHC3C2B\n"
                                      "olGLcyH9+jc/ORswHwYDVR0jBBgwFoAUoLEIBOHC3C2BolGLcyH9+jc/ORswDwYD\n"
                                      "VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglmdXp6LnRlc3QwCgYIKoZIzj0EAwID\n"
                                      "RwAwRAIgYu4tEGfZzw+Ut3hbi9rf5BF9hUblvRpL0g+H8C7OQmUCIF3GUEURhYK3\n"
                                      "FNRFJ8S4wBImPb5gvNKXAsHcaUETePuH\n"
                                      "-----END CERTIFICATE-----\n";

static struct loop *loop;
static struct tls_server *server;
static struct tls_client *client;
static struct tls_key *key;

struct side {
    struct stream *stream;
    int wire; /* the other end of its socket */
    struct buf got;
    size_t sent;
    bool has_finished, has_ended, has_failed;
};

static void on_input(struct stream *stream)
{
    struct side *side = stream->owner;

    buf_add(&side->got, buf_str(&stream->in));
    buf_drop(&stream->in, stream->in.len);
}

static void on_end(struct stream *stream, const struct err *err)
{
    struct side *side = stream->owner;

    if (err)
        side->has_failed = true;
    else
        side->has_ended = true;
}

static const struct stream_events events = { .on_input = on_input, .on_end = on_end };

static bool sign(void *context, const struct tls_to_sign *want, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len,
                 struct err *err)
{
    (void)context;
    return tls_key_sign(key, want, out, out_len, err);
}

static void stop(struct timer *timer)
{
    loop_stop_soon(timer->loop);
}

/* One turn of the loop, without waiting. */
static void turn(void)
{
    struct timer timer = { 0 };

    timer_set(&timer, loop, 0, stop);
    loop_run(loop);
    timer_clear(&timer);
}

static void begin(void)
{
    static const char *const protocols[] = { "h2", "http/1.1", NULL };
    struct str chain = str_from(certificate_pem);
    struct err err;

    if (loop)
        return;
    (void)signal(SIGPIPE, SIG_IGN);
    loop = loop_new();
    key = tls_key_read(str_from(key_pem), &err);
    server = tls_server_new(&(struct tls_server_config){ .loop = loop, .protocols = protocols, .sign = sign });
    client = tls_client_new(loop, NULL, &err);
    if (!key || !client || !tls_server_use(server, &chain, 1, &err))
        __builtin_trap();
}

static void open_side(struct side *side)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        __builtin_trap();
    *side = (struct side){ .wire = ends[1], .got = buf_make(NULL, 1 << 24) };
    side->stream = stream_new(loop, ends[0], IN_CAP, &events, side);
}

static void close_side(struct side *side)
{
    stream_free(side->stream);
    close(side->wire);
    buf_done(&side->got);
}

static void be_a_stranger(const unsigned char *data, size_t size)
{
    struct side near;
    char rest[4096];
    size_t step = size ? data[0] + 1u : 1;

    open_side(&near);
    tls_accept(server, near.stream);
    stream_read(near.stream, true);
    (void)!write(near.wire, "\x16", 1);
    for (size_t at = 1; at < size && !near.has_failed; at += step) {
        (void)!write(near.wire, data + at, MIN(step, size - at));
        turn();
        turn();
        while (read(near.wire, rest, sizeof rest) > 0)
            ;
    }
    (void)shutdown(near.wire, SHUT_WR);
    for (int i = 0; i < 8 && !near.has_failed; i++)
        turn();
    if (near.got.len || near.has_ended || !near.has_failed)
        __builtin_trap();
    close_side(&near);
    turn();
}

/* ---- a client of our own ---- */

static void say(struct side *side, size_t size)
{
    char bytes[8192];

    if (side->has_finished || size == 0)
        return;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)((side->sent + i) * 131 >> 3);
    stream_write(side->stream, str_of(bytes, size));
    side->sent += size;
}

static bool move(struct side *from, struct side *to, size_t most)
{
    char bytes[4096];
    ssize_t n = read(from->wire, bytes, MIN(most, sizeof bytes));

    if (n > 0 && write(to->wire, bytes, (size_t)n) != n)
        __builtin_trap();
    if (n == 0)
        (void)shutdown(to->wire, SHUT_WR);
    return n > 0;
}

static void check(const struct side *side, const struct side *other)
{
    if (side->got.len > other->sent || side->has_failed)
        __builtin_trap();
    for (size_t i = 0; i < side->got.len; i++)
        if (side->got.data[i] != (char)(i * 131 >> 3))
            __builtin_trap();
    if (other->has_finished && (side->got.len != other->sent || !side->has_ended))
        __builtin_trap();
}

static void be_a_client(const unsigned char *data, size_t size)
{
    struct side near, far;
    struct err err;

    open_side(&near);
    open_side(&far);
    tls_accept(server, near.stream);
    stream_read(near.stream, true);
    if (!tls_connect(client, far.stream, "fuzz.test", &err))
        __builtin_trap();
    stream_read(far.stream, true);
    for (size_t i = 0; i < MIN(size, (size_t)STEPS_MOST); i++) {
        struct side *side = data[i] & 8 ? &far : &near, *other = side == &far ? &near : &far;
        size_t amount = data[i] >> 4;
        switch (data[i] & 7) {
        case 0:
        case 1:
            say(side, side == &far || stream_is_tls(near.stream) ? 1 + amount * amount * 30 : 0);
            break;
        case 2:
            side->stream->in.cap = 1 + amount * 500;
            stream_read(side->stream, true);
            break;
        case 3:
            side->has_finished |= side == &far || stream_is_tls(near.stream);
            if (side->has_finished || size == 0)
                stream_finish(side->stream);
            break;
        default:
            (void)move(side, other, 1 + amount * amount * 7);
        }
        turn();
    }
    unsigned quiet = 0;
    for (unsigned i = 0; i < TURNS_MOST && quiet < 8; i++) {
        bool has_moved = move(&near, &far, SIZE_MAX);
        has_moved |= move(&far, &near, SIZE_MAX);
        turn();
        quiet = has_moved ? 0 : quiet + 1;
    }
    check(&near, &far);
    check(&far, &near);
    close_side(&near);
    close_side(&far);
    turn();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    begin();
    if (size == 0)
        return 0;
    if (data[0] & 1)
        be_a_stranger(data + 1, size - 1);
    else
        be_a_client(data + 1, size - 1);
    return 0;
}
