#include "wire/tls_hello.h"

#include <stdint.h>
#include <string.h>

#include "base/limits.h"

/*
 * TLS sends records (type, version, length, bytes); the handshake's messages (type, length, bytes) are in the bytes of
 * records of type 22, one after the other, cut anywhere. A reader takes single bytes of the message and steps over the
 * heads of the records on its way. The message is read only when all of it is there, so reading never has to be resumed.
 */

enum {
    RECORD_HEAD = 5,
    RECORD_MAX = 16384,
    RECORD_HANDSHAKE = 22,
    MESSAGE_HEAD = 4,
    MESSAGE_CLIENT_HELLO = 1,
    EXTENSION_NAME = 0,
    EXTENSION_ALPN = 16,
};

struct reader {
    const uint8_t *at; /* records */
    size_t next;
    size_t record_left; /* bytes of the present record that are not read yet */
    size_t left;        /* bytes that may be read before the end of the present field */
    bool bad;
};

/* The head of the record at `at`: its bytes, or 0 when it is not a handshake record that TLS allows. */
static size_t record_size(const uint8_t *at)
{
    size_t size = (size_t)at[3] << 8 | at[4];

    return at[0] == RECORD_HANDSHAKE && at[1] == 3 && size <= RECORD_MAX ? size : 0;
}

static uint8_t take_u8(struct reader *r)
{
    if (r->bad || r->left == 0) {
        r->bad = true;
        return 0;
    }
    if (r->record_left == 0) {
        r->record_left = record_size(r->at + r->next);
        r->next += RECORD_HEAD;
    }
    r->left--;
    r->record_left--;
    return r->at[r->next++];
}

static size_t take_size(struct reader *r, unsigned bytes)
{
    size_t size = 0;

    while (bytes--)
        size = size << 8 | take_u8(r);
    return size;
}

static void skip(struct reader *r, size_t bytes)
{
    if (bytes > r->left)
        r->bad = true;
    while (!r->bad && bytes--)
        (void)take_u8(r);
}

/* Reads a length and narrows the reader to that many bytes. Returns what is left behind it, for leave(). */
static size_t enter(struct reader *r, unsigned length_bytes)
{
    size_t size = take_size(r, length_bytes);

    if (r->bad || size > r->left) {
        r->bad = true;
        return 0;
    }
    size_t behind = r->left - size;
    r->left = size;
    return behind;
}

/* All of the field must have been read. */
static void leave(struct reader *r, size_t behind)
{
    if (r->left)
        r->bad = true;
    r->left = behind;
}

static bool is_name_char(uint8_t c)
{
    return char_is_alnum((char)c) || c == '-' || c == '_' || c == '.';
}

/* RFC 6066: a list of names, of which only one of type 0 has ever been defined. */
static void take_name(struct reader *r, struct tls_hello *out)
{
    size_t behind_list = enter(r, 2);

    if (take_u8(r) != 0)
        r->bad = true;
    size_t behind_name = enter(r, 2);
    size_t size = r->left;
    if (size == 0 || size >= sizeof out->name)
        r->bad = true;
    for (size_t i = 0; i < size && !r->bad; i++) {
        uint8_t c = take_u8(r);
        if (!is_name_char(c))
            r->bad = true;
        out->name[i] = (char)c;
    }
    out->name[r->bad ? 0 : size] = '\0';
    leave(r, behind_name);
    leave(r, behind_list);
}

static void take_alpn(struct reader *r, struct tls_hello *out)
{
    static const char http1[] = "http/1.1";
    size_t behind_list = enter(r, 2);

    out->offers_http1 = false;
    while (r->left && !r->bad) {
        size_t behind = enter(r, 1);
        bool same = r->left == sizeof http1 - 1;
        for (size_t i = 0; r->left && !r->bad; i++)
            same = take_u8(r) == (uint8_t)(same ? http1[i] : 0) && same;
        out->offers_http1 = out->offers_http1 || same;
        leave(r, behind);
    }
    leave(r, behind_list);
}

static void take_extensions(struct reader *r, struct tls_hello *out)
{
    bool has_name = false, has_alpn = false;
    size_t behind_all = enter(r, 2);

    while (r->left && !r->bad) {
        size_t type = take_size(r, 2);
        size_t behind = enter(r, 2);
        switch (type) {
        case EXTENSION_NAME:
            r->bad = r->bad || has_name;
            has_name = true;
            take_name(r, out);
            break;
        case EXTENSION_ALPN:
            r->bad = r->bad || has_alpn;
            has_alpn = true;
            take_alpn(r, out);
            break;
        default:
            skip(r, r->left);
        }
        leave(r, behind);
    }
    leave(r, behind_all);
}

/*
 * How much of the message is there: DONE with its size (head included), MORE with how much is missing at least, or BAD.
 * Looks at record heads only. There may be thousands of them, so a caller need not ask for each byte.
 */
static enum tls_hello_parse measure(const uint8_t *at, size_t len, size_t *out_size, struct err *err)
{
    uint8_t head[MESSAGE_HEAD];
    size_t have = 0, next = 0, missing = 1;

    while (len - next >= RECORD_HEAD) {
        size_t size = record_size(at + next);
        if (size == 0) {
            (void)err_set(err, ERR_INVALID, "malformed TLS record");
            return TLS_HELLO_BAD;
        }
        next += RECORD_HEAD;
        size_t there = MIN(size, len - next);
        for (size_t i = 0; i < there && have + i < MESSAGE_HEAD; i++)
            head[have + i] = at[next + i];
        have += there;
        if (have >= MESSAGE_HEAD) {
            size_t total = MESSAGE_HEAD + ((size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3]);
            if (head[0] != MESSAGE_CLIENT_HELLO || total > LIMIT_TLS_HELLO_BYTES) {
                (void)err_set(err, ERR_INVALID, "not a TLS ClientHello of at most %d bytes", LIMIT_TLS_HELLO_BYTES);
                return TLS_HELLO_BAD;
            }
            if (have >= total) {
                *out_size = total;
                return TLS_HELLO_DONE;
            }
            missing = total - have;
        }
        if (there < size)
            break;
        next += size;
    }
    if (len >= LIMIT_TLS_HELLO_RECORD_BYTES) {
        (void)err_set(err, ERR_INVALID, "the TLS ClientHello is not complete after %zu bytes", len);
        return TLS_HELLO_BAD;
    }
    *out_size = MIN(missing, LIMIT_TLS_HELLO_RECORD_BYTES - len);
    return TLS_HELLO_MORE;
}

enum tls_hello_parse tls_hello_parse(struct str received, struct tls_hello *out, struct err *err)
{
    const uint8_t *at = (const uint8_t *)received.at;
    size_t size = 0;

    out->more = 1;
    if (received.len == 0)
        return TLS_HELLO_MORE;
    /* The second byte too: 3 for every version since SSL 3. */
    if (at[0] != RECORD_HANDSHAKE || (received.len > 1 && at[1] != 3))
        return TLS_HELLO_NONE;
    enum tls_hello_parse there = measure(at, received.len, &size, err);
    out->more = size;
    if (there != TLS_HELLO_DONE)
        return there;

    struct reader r = { .at = at, .left = size };
    struct tls_hello hello = { .offers_http1 = true };
    skip(&r, MESSAGE_HEAD + 2 + 32); /* version, random */
    size_t behind = enter(&r, 1);    /* session */
    skip(&r, r.left);
    leave(&r, behind);
    behind = enter(&r, 2); /* ciphers */
    skip(&r, r.left);
    leave(&r, behind);
    behind = enter(&r, 1); /* compression */
    skip(&r, r.left);
    leave(&r, behind);
    if (r.left)
        take_extensions(&r, &hello);
    if (r.bad || r.left) {
        (void)err_set(err, ERR_INVALID, "malformed TLS ClientHello");
        return TLS_HELLO_BAD;
    }
    *out = hello;
    return TLS_HELLO_DONE;
}
