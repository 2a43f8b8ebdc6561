#include "wire/websocket.h"

#include "base/encode.h"

enum {
    FIN = 0x80,
    RESERVED = 0x70,
    KIND = 0x0f,
    MASKED = 0x80,
    LENGTH = 0x7f,
    LENGTH_16 = 126,
    LENGTH_64 = 127,
    CONTINUATION = 0,
    CONTROL = 8, /* this bit: a control frame */
    CONTROL_MOST = 125,
    MASK_BYTES = 4,
};

/* ---- SHA-1, which the handshake asks for. It protects nothing: it shows that the server speaks WebSocket. ---- */

struct sha1 {
    uint32_t h[5];
};

static uint32_t turn(uint32_t x, unsigned by)
{
    return x << by | x >> (32 - by);
}

static void sha1_block(struct sha1 *sha, const unsigned char block[64])
{
    uint32_t w[80], a = sha->h[0], b = sha->h[1], c = sha->h[2], d = sha->h[3], e = sha->h[4];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? (b & c) | (~b & d)
                     : i < 40 ? b ^ c ^ d
                     : i < 60 ? (b & c) | (b & d) | (c & d)
                              : b ^ c ^ d;
        uint32_t k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
        uint32_t next = turn(a, 5) + f + e + k + w[i];
        e = d;
        d = c;
        c = turn(b, 30);
        b = a;
        a = next;
    }
    sha->h[0] += a;
    sha->h[1] += b;
    sha->h[2] += c;
    sha->h[3] += d;
    sha->h[4] += e;
}

/* Of at most 119 bytes: two blocks. */
static void sha1_short(struct str text, unsigned char out[20])
{
    struct sha1 sha = { { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 } };
    unsigned char room[128] = { 0 };
    size_t size = text.len < 56 ? 64 : 128;

    memcpy(room, text.at, text.len);
    room[text.len] = 0x80;
    room[size - 2] = (unsigned char)(text.len * 8 >> 8);
    room[size - 1] = (unsigned char)(text.len * 8);
    for (size_t at = 0; at < size; at += 64)
        sha1_block(&sha, room + at);
    for (int i = 0; i < 20; i++)
        out[i] = (unsigned char)(sha.h[i / 4] >> (24 - 8 * (i % 4)));
}

bool websocket_accept(struct str key, char out[WEBSOCKET_ACCEPT_BYTES])
{
    static const char magic[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char bytes[24 / 4 * 3 + 3], hash[20];
    char text[24 + sizeof magic];
    size_t len;

    if (key.len != 24 || !base64_decode(key, bytes, &len) || len != 16)
        return false;
    memcpy(text, key.at, key.len);
    memcpy(text + key.len, magic, sizeof magic);
    sha1_short(str_from(text), hash);
    out[base64_encode(str_of(hash, sizeof hash), out)] = '\0';
    return true;
}

/* ---- reading ---- */

void websocket_init(struct websocket *ws)
{
    *ws = (struct websocket){ .message = buf_make(NULL, LIMIT_WEBSOCKET_BYTES) };
}

void websocket_done(struct websocket *ws)
{
    buf_done(&ws->message);
}

struct frame {
    bool is_last;
    unsigned kind;
    uint64_t len;
    const unsigned char *mask, *data;
    size_t size; /* head and data */
};

static enum websocket_step bad(unsigned status, const char *why, unsigned *out_status, struct err *err)
{
    *out_status = status;
    (void)err_set(err, ERR_INVALID, "%s", why);
    return WEBSOCKET_BAD;
}

static enum websocket_step take_length(const unsigned char *at, size_t have, struct frame *frame, size_t *head,
                                       unsigned *out_status, struct err *err)
{
    unsigned first = at[1] & LENGTH, bytes = first == LENGTH_16 ? 2 : first == LENGTH_64 ? 8 : 0;

    *head = 2 + bytes;
    frame->len = bytes ? 0 : first;
    if (have < *head)
        return WEBSOCKET_MORE;
    for (unsigned i = 0; i < bytes; i++)
        frame->len = frame->len << 8 | at[2 + i];
    if ((bytes == 2 && frame->len < LENGTH_16) || (bytes == 8 && frame->len <= UINT16_MAX) || frame->len > INT64_MAX)
        return bad(WEBSOCKET_BROKEN, "the length of a frame is not in its shortest form", out_status, err);
    return WEBSOCKET_DONE;
}

/* What is wrong is told as soon as it is there: a frame that is refused anyway is not waited for. */
static enum websocket_step take_frame(const struct websocket *ws, struct str in, struct frame *out,
                                      unsigned *out_status, struct err *err)
{
    const unsigned char *at = (const unsigned char *)in.at;
    size_t head;

    if (in.len < 2)
        return WEBSOCKET_MORE;
    *out = (struct frame){ .is_last = at[0] & FIN, .kind = at[0] & KIND };
    if (at[0] & RESERVED)
        return bad(WEBSOCKET_BROKEN, "a frame has reserved bits", out_status, err);
    if (out->kind > WEBSOCKET_PONG || (out->kind > WEBSOCKET_BINARY && out->kind < WEBSOCKET_CLOSE))
        return bad(WEBSOCKET_BROKEN, "a frame is of an unknown kind", out_status, err);
    if (!(at[1] & MASKED))
        return bad(WEBSOCKET_BROKEN, "a frame of a client has no mask", out_status, err);
    bool is_control = out->kind & CONTROL;
    if (is_control && (!out->is_last || (at[1] & LENGTH) > CONTROL_MOST))
        return bad(WEBSOCKET_BROKEN, "a control frame is in pieces or too long", out_status, err);
    if (!is_control && (out->kind == CONTINUATION) != (ws->kind != 0))
        return bad(WEBSOCKET_BROKEN, ws->kind ? "a message begins inside another one" : "a piece belongs to no message",
                   out_status, err);
    enum websocket_step step = take_length(at, in.len, out, &head, out_status, err);
    if (step != WEBSOCKET_DONE)
        return step;
    if (!is_control && out->len > LIMIT_WEBSOCKET_BYTES - (ws->kind ? ws->message.len : 0))
        return bad(WEBSOCKET_TOO_BIG, "a message is too long", out_status, err);
    out->mask = at + head;
    out->data = out->mask + MASK_BYTES;
    out->size = head + MASK_BYTES + (size_t)out->len;
    return in.len < out->size ? WEBSOCKET_MORE : WEBSOCKET_DONE;
}

static void unmask(const struct frame *frame, unsigned char *to)
{
    for (size_t i = 0; i < frame->len; i++)
        to[i] = frame->data[i] ^ frame->mask[i % MASK_BYTES];
}

static bool may_be_sent(unsigned status)
{
    return (status >= 1000 && status <= 1014 && status != 1004 && status != 1005 && status != 1006) ||
           (status >= 3000 && status <= 4999);
}

static enum websocket_step take_control(struct websocket *ws, const struct frame *frame, struct websocket_message *out,
                                        unsigned *out_status, struct err *err)
{
    unmask(frame, ws->control);
    *out = (struct websocket_message){ .kind = (enum websocket_kind)frame->kind,
                                       .text = str_of(ws->control, (size_t)frame->len) };
    if (frame->kind != WEBSOCKET_CLOSE)
        return WEBSOCKET_DONE;
    out->status = WEBSOCKET_NO_STATUS;
    if (frame->len == 0)
        return WEBSOCKET_DONE;
    if (frame->len == 1)
        return bad(WEBSOCKET_BROKEN, "a close has half a status", out_status, err);
    out->status = (unsigned)ws->control[0] << 8 | ws->control[1];
    out->text = str_of(ws->control + 2, (size_t)frame->len - 2);
    if (!may_be_sent(out->status))
        return bad(WEBSOCKET_BROKEN, "a close has a status that must not be sent", out_status, err);
    if (!utf8_valid(out->text))
        return bad(WEBSOCKET_NOT_TEXT, "the reason of a close is not UTF-8", out_status, err);
    return WEBSOCKET_DONE;
}

static enum websocket_step take_piece(struct websocket *ws, const struct frame *frame, struct websocket_message *out,
                                      unsigned *out_status, struct err *err)
{
    if (frame->kind != CONTINUATION) {
        buf_clear(&ws->message);
        ws->kind = frame->kind;
    }
    if (frame->len) {
        char *room = buf_reserve(&ws->message, (size_t)frame->len);
        if (!room)
            return bad(WEBSOCKET_TOO_BIG, "a message is too long", out_status, err);
        unmask(frame, (unsigned char *)room);
        buf_grew(&ws->message, (size_t)frame->len);
    }
    if (!frame->is_last)
        return WEBSOCKET_MORE;
    *out = (struct websocket_message){ .kind = (enum websocket_kind)ws->kind, .text = buf_str(&ws->message) };
    ws->kind = 0;
    if (out->kind == WEBSOCKET_TEXT && !utf8_valid(out->text))
        return bad(WEBSOCKET_NOT_TEXT, "a text is not UTF-8", out_status, err);
    return WEBSOCKET_DONE;
}

enum websocket_step websocket_next(struct websocket *ws, struct str *in, struct websocket_message *out,
                                   unsigned *out_status, struct err *err)
{
    enum websocket_step step;
    struct frame frame;

    do {
        step = take_frame(ws, *in, &frame, out_status, err);
        if (step != WEBSOCKET_DONE)
            return step;
        step = frame.kind & CONTROL ? take_control(ws, &frame, out, out_status, err)
                                    : take_piece(ws, &frame, out, out_status, err);
        *in = str_of(in->at + frame.size, in->len - frame.size);
    } while (step == WEBSOCKET_MORE);
    return step;
}

/* ---- writing ---- */

void websocket_write(struct buf *out, enum websocket_kind kind, struct str text)
{
    buf_add_char(out, (char)(FIN | kind));
    if (text.len < LENGTH_16) {
        buf_add_char(out, (char)text.len);
    } else if (text.len <= UINT16_MAX) {
        buf_add_char(out, LENGTH_16);
        buf_add_char(out, (char)(text.len >> 8));
        buf_add_char(out, (char)text.len);
    } else {
        buf_add_char(out, LENGTH_64);
        for (int shift = 56; shift >= 0; shift -= 8)
            buf_add_char(out, (char)((uint64_t)text.len >> shift));
    }
    buf_add(out, text);
}

void websocket_write_close(struct buf *out, unsigned status, struct str reason)
{
    char text[CONTROL_MOST] = { (char)(status >> 8), (char)status };
    size_t len = MIN(reason.len, sizeof text - 2);

    if (status == WEBSOCKET_NO_STATUS) {
        websocket_write(out, WEBSOCKET_CLOSE, STR(""));
        return;
    }
    while (len && !utf8_valid(str_of(reason.at, len)))
        len--; /* not in the middle of a character */
    memcpy(text + 2, reason.at, len);
    websocket_write(out, WEBSOCKET_CLOSE, str_of(text, len + 2));
}
