#include "wire/zmtp.h"

#include <stdint.h>
#include <string.h>

enum {
    FLAG_MORE = 1,
    FLAG_LONG = 2,
    FLAG_COMMAND = 4,
    SHORT_MAX = 255,
};

/* ---- writing ---- */

/* Signature, version 3.0, mechanism, not a server, filler. */
static const unsigned char greeting[ZMTP_GREETING_BYTES] = {
    0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L',
};

void zmtp_write_greeting(struct buf *out)
{
    buf_add(out, str_of(greeting, sizeof greeting));
}

static void add_big_endian(struct buf *out, uint64_t value, unsigned bytes)
{
    while (bytes--)
        buf_add_char(out, (char)(value >> (8 * bytes)));
}

static void write_frame(struct buf *out, unsigned flags, struct str body)
{
    bool is_long = body.len > SHORT_MAX;

    buf_add_char(out, (char)(flags | (is_long ? FLAG_LONG : 0)));
    add_big_endian(out, body.len, is_long ? 8 : 1);
    buf_add(out, body);
}

static void add_property(struct buf *out, struct str name, struct str value)
{
    buf_add_char(out, (char)name.len);
    buf_add(out, name);
    add_big_endian(out, value.len, 4);
    buf_add(out, value);
}

void zmtp_write_ready(struct buf *out, struct str socket_type, struct str identity)
{
    auto_buf struct buf body = buf_make(NULL, 1024);

    buf_add(&body, STR("\5READY"));
    add_property(&body, STR("Socket-Type"), socket_type);
    add_property(&body, STR("Identity"), identity);
    write_frame(out, FLAG_COMMAND, buf_str(&body));
}

void zmtp_write_message(struct buf *out, const struct str *frames, size_t count)
{
    for (size_t i = 0; i < count; i++)
        write_frame(out, i + 1 < count ? FLAG_MORE : 0, frames[i]);
}

void zmtp_write_pong(struct buf *out, struct str ping)
{
    auto_buf struct buf body = buf_make(NULL, 1024);

    /* "\4PING", two bytes of time-to-live, then up to 16 bytes that the answer repeats. */
    if (!str_skip(&ping, STR("\4PING")) || ping.len < 2)
        return;
    buf_add(&body, STR("\4PONG"));
    buf_add(&body, str_of(ping.at + 2, MIN(ping.len - 2, 16)));
    write_frame(out, FLAG_COMMAND, buf_str(&body));
}

/* ---- reading ---- */

enum zmtp_parse zmtp_parse_greeting(struct str in, struct err *err)
{
    const unsigned char *at = (const unsigned char *)in.at;

    if ((in.len > 0 && at[0] != 0xff) || (in.len > 9 && !(at[9] & 1))) {
        err_note(err, ERR_INVALID, "the peer does not speak ZMTP");
        return ZMTP_BAD;
    }
    if (in.len > 10 && at[10] < 3) {
        err_note(err, ERR_INVALID, "the peer speaks ZMTP %u, not 3", at[10]);
        return ZMTP_BAD;
    }
    if (in.len < ZMTP_GREETING_BYTES)
        return ZMTP_MORE;
    if (memcmp(at + 12, greeting + 12, 20) != 0) {
        err_note(err, ERR_INVALID, "the peer wants another security mechanism than NULL");
        return ZMTP_BAD;
    }
    return ZMTP_DONE;
}

/* The frame at the front of *rest, which moves past it. */
static enum zmtp_parse parse_frame(struct str *rest, size_t cap, unsigned *out_flags, struct str *out_body,
                                   struct err *err)
{
    const unsigned char *at = (const unsigned char *)rest->at;

    if (rest->len < 2)
        return ZMTP_MORE;
    unsigned flags = at[0];
    size_t header = flags & FLAG_LONG ? 9 : 2;
    if (flags & ~(unsigned)(FLAG_MORE | FLAG_LONG | FLAG_COMMAND)) {
        err_note(err, ERR_INVALID, "a frame has unknown flags");
        return ZMTP_BAD;
    }
    if (rest->len < header)
        return ZMTP_MORE;
    uint64_t size = 0;
    for (size_t i = 1; i < header; i++)
        size = size << 8 | at[i];
    if (size > cap) {
        err_note(err, ERR_LIMIT, "a message is longer than %zu bytes", cap);
        return ZMTP_BAD;
    }
    if (rest->len - header < size)
        return ZMTP_MORE;
    *out_flags = flags;
    *out_body = str_of(rest->at + header, size);
    *rest = str_of(rest->at + header + size, rest->len - header - size);
    return ZMTP_DONE;
}

enum zmtp_parse zmtp_parse_message(struct str in, size_t cap, struct zmtp_message *out, size_t *out_used,
                                   struct err *err)
{
    struct zmtp_message message = { .count = 0 };
    struct str rest = in;
    unsigned flags = FLAG_MORE;

    while (flags & FLAG_MORE) {
        struct str body;
        size_t used = (size_t)(rest.at - in.at);
        if (message.count == ZMTP_FRAMES_MAX || used > cap) {
            err_note(err, ERR_LIMIT, "a message has too many frames or bytes");
            return ZMTP_BAD;
        }
        enum zmtp_parse found = parse_frame(&rest, cap, &flags, &body, err);
        if (found != ZMTP_DONE)
            return found;
        if ((flags & FLAG_COMMAND) && ((flags & FLAG_MORE) || message.count > 0)) {
            err_note(err, ERR_INVALID, "a command stands inside a message");
            return ZMTP_BAD;
        }
        message.frames[message.count++] = body;
        message.is_command = flags & FLAG_COMMAND;
    }
    *out = message;
    *out_used = (size_t)(rest.at - in.at);
    return ZMTP_DONE;
}

bool zmtp_is_command(const struct zmtp_message *message, struct str name)
{
    struct str body = message->frames[0];

    return message->is_command && body.len > name.len && (unsigned char)body.at[0] == name.len &&
           str_eq(str_of(body.at + 1, name.len), name);
}
