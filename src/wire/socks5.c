#include "wire/socks5.h"

#include <assert.h>

/*
 *     us      5, number of methods, methods
 *     proxy   5, method                                  → WAIT_METHOD
 *     us      1, length, user name, length, password     only if the proxy chose so
 *     proxy   1, 0                                       → WAIT_LOGIN
 *     us      5, CONNECT, 0, kind of address, address, port
 *     proxy   5, code, 0, kind of address, address, port → WAIT_CONNECT
 */
enum state { WAIT_METHOD, WAIT_LOGIN, WAIT_CONNECT, OVER };

enum {
    VERSION = 5,
    METHOD_NONE = 0,
    METHOD_PASSWORD = 2,
    METHOD_NO_ACCEPTABLE = 0xff,
    LOGIN_VERSION = 1,
    CONNECT = 1,
    KIND_V4 = 1,
    KIND_NAME = 3,
    KIND_V6 = 4,
    TEXT_MOST = 255,
};

/* Codes of a reply to CONNECT, RFC 1928 section 6. */
static const struct {
    enum err_kind kind;
    const char *text;
} codes[] = {
    { ERR_NONE, "" },
    { ERR_UNAVAILABLE, "general failure" },
    { ERR_DENIED, "its rules do not allow the connection" },
    { ERR_UNAVAILABLE, "the network is unreachable" },
    { ERR_UNAVAILABLE, "the host is unreachable" },
    { ERR_UNAVAILABLE, "the connection was refused" },
    { ERR_UNAVAILABLE, "the connection took too long" },
    { ERR_UNAVAILABLE, "it does not know CONNECT" },
    { ERR_UNAVAILABLE, "it does not know this kind of address" },
};

static void add_text(struct buf *out, struct str text)
{
    assert(text.len <= TEXT_MOST);
    buf_add_char(out, (char)text.len);
    buf_add(out, text);
}

void socks5_begin(struct socks5 *socks, const struct socks5_want *want, struct buf *out)
{
    *socks = (struct socks5){ .want = want, .state = WAIT_METHOD };
    buf_add_char(out, VERSION);
    buf_add_char(out, want->username.len ? 2 : 1);
    buf_add_char(out, METHOD_NONE);
    if (want->username.len)
        buf_add_char(out, METHOD_PASSWORD);
}

static void write_login(const struct socks5_want *want, struct buf *out)
{
    buf_add_char(out, LOGIN_VERSION);
    add_text(out, want->username);
    add_text(out, want->password);
}

static void write_connect(const struct socks5_want *want, struct buf *out)
{
    buf_add_char(out, VERSION);
    buf_add_char(out, CONNECT);
    buf_add_char(out, 0);
    if (want->name.len) {
        buf_add_char(out, KIND_NAME);
        add_text(out, want->name);
    } else {
        buf_add_char(out, want->is_v4 ? KIND_V4 : KIND_V6);
        buf_add(out, str_of(want->address, want->is_v4 ? 4 : 16));
    }
    buf_add_char(out, (char)(want->port >> 8));
    buf_add_char(out, (char)want->port);
}

static enum socks5_step bad(struct socks5 *socks, struct err *err, enum err_kind kind, const char *text)
{
    socks->state = OVER;
    (void)err_set(err, kind, "the egress proxy: %s", text);
    return SOCKS5_BAD;
}

static void use(struct str *in, size_t bytes)
{
    *in = str_of(in->at + bytes, in->len - bytes);
}

static enum socks5_step take_method(struct socks5 *socks, struct str *in, struct buf *out, struct err *err)
{
    const uint8_t *at = (const uint8_t *)in->at;

    if (in->len >= 1 && at[0] != VERSION)
        return bad(socks, err, ERR_INVALID, "it does not speak SOCKS5");
    if (in->len < 2)
        return SOCKS5_MORE;
    uint8_t method = at[1];
    use(in, 2);
    if (method == METHOD_PASSWORD && socks->want->username.len) {
        write_login(socks->want, out);
        socks->state = WAIT_LOGIN;
    } else if (method == METHOD_NONE) {
        write_connect(socks->want, out);
        socks->state = WAIT_CONNECT;
    } else if (method == METHOD_NO_ACCEPTABLE) {
        return bad(socks, err, ERR_DENIED,
                   socks->want->username.len ? "it accepts neither a password nor none"
                                             : "it asks for a user name and a password");
    } else {
        return bad(socks, err, ERR_INVALID, "it chose a method that was not offered");
    }
    return SOCKS5_MORE;
}

static enum socks5_step take_login(struct socks5 *socks, struct str *in, struct buf *out, struct err *err)
{
    const uint8_t *at = (const uint8_t *)in->at;

    if (in->len < 2)
        return SOCKS5_MORE;
    if (at[0] != LOGIN_VERSION)
        return bad(socks, err, ERR_INVALID, "malformed answer to the password");
    if (at[1] != 0)
        return bad(socks, err, ERR_DENIED, "it does not accept this user name and password");
    use(in, 2);
    write_connect(socks->want, out);
    socks->state = WAIT_CONNECT;
    return SOCKS5_MORE;
}

static enum socks5_step take_connect(struct socks5 *socks, struct str *in, struct err *err)
{
    const uint8_t *at = (const uint8_t *)in->at;

    if (in->len < 2)
        return SOCKS5_MORE;
    if (at[0] != VERSION)
        return bad(socks, err, ERR_INVALID, "malformed answer to CONNECT");
    /* A "no" counts at once: some proxies close without the address that should follow. */
    if (at[1] >= COUNT_OF(codes))
        return bad(socks, err, ERR_UNAVAILABLE, "it failed with a code that SOCKS5 does not know");
    if (at[1] != 0)
        return bad(socks, err, codes[at[1]].kind, codes[at[1]].text);
    if (in->len < 5)
        return SOCKS5_MORE;
    size_t address = 0;
    if (at[3] == KIND_V4)
        address = 4;
    else if (at[3] == KIND_V6)
        address = 16;
    else if (at[3] == KIND_NAME)
        address = 1 + (size_t)at[4];
    if (at[2] != 0 || address == 0)
        return bad(socks, err, ERR_INVALID, "malformed answer to CONNECT");
    if (in->len < 4 + address + 2)
        return SOCKS5_MORE;
    use(in, 4 + address + 2);
    socks->state = OVER;
    return SOCKS5_DONE;
}

enum socks5_step socks5_next(struct socks5 *socks, struct str *in, struct buf *out, struct err *err)
{
    enum socks5_step step = SOCKS5_MORE;
    int before;

    do { /* a proxy may send two answers in one piece, though it has no reason to */
        before = socks->state;
        switch (socks->state) {
        case WAIT_METHOD:
            step = take_method(socks, in, out, err);
            break;
        case WAIT_LOGIN:
            step = take_login(socks, in, out, err);
            break;
        case WAIT_CONNECT:
            step = take_connect(socks, in, err);
            break;
        default:
            return bad(socks, err, ERR_INTERNAL, "the handshake is over");
        }
    } while (step == SOCKS5_MORE && socks->state != before);
    return step;
}
