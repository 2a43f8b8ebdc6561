#include "base/pack.h"

static void pack_number(struct buf *out, uint64_t value, size_t bytes)
{
    char room[8];

    for (size_t i = 0; i < bytes; i++)
        room[i] = (char)(value >> (8 * (bytes - 1 - i)));
    buf_add(out, str_of(room, bytes));
}

void pack_u8(struct buf *out, uint8_t value)
{
    pack_number(out, value, 1);
}

void pack_u16(struct buf *out, uint16_t value)
{
    pack_number(out, value, 2);
}

void pack_u32(struct buf *out, uint32_t value)
{
    pack_number(out, value, 4);
}

void pack_u64(struct buf *out, uint64_t value)
{
    pack_number(out, value, 8);
}

void pack_i64(struct buf *out, int64_t value)
{
    pack_number(out, (uint64_t)value, 8);
}

void pack_bool(struct buf *out, bool value)
{
    pack_number(out, value, 1);
}

void pack_str(struct buf *out, struct str value)
{
    if (value.len > UINT32_MAX) {
        out->overflowed = true;
        return;
    }
    pack_u32(out, (uint32_t)value.len);
    buf_add(out, value);
}

static uint64_t unpack_number(struct unpack *in, size_t bytes)
{
    uint64_t value = 0;

    if (in->failed || in->rest.len < bytes) {
        in->failed = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | (unsigned char)in->rest.at[i];
    in->rest.at += bytes;
    in->rest.len -= bytes;
    return value;
}

uint8_t unpack_u8(struct unpack *in)
{
    return (uint8_t)unpack_number(in, 1);
}

uint16_t unpack_u16(struct unpack *in)
{
    return (uint16_t)unpack_number(in, 2);
}

uint32_t unpack_u32(struct unpack *in)
{
    return (uint32_t)unpack_number(in, 4);
}

uint64_t unpack_u64(struct unpack *in)
{
    return unpack_number(in, 8);
}

int64_t unpack_i64(struct unpack *in)
{
    return (int64_t)unpack_number(in, 8);
}

bool unpack_bool(struct unpack *in)
{
    uint64_t value = unpack_number(in, 1);

    if (value > 1)
        in->failed = true;
    return value == 1;
}

struct str unpack_str(struct unpack *in, size_t max)
{
    uint32_t len = unpack_u32(in);

    if (in->failed || len > max || len > in->rest.len) {
        in->failed = true;
        return STR("");
    }
    struct str value = str_of(in->rest.at, len);
    in->rest.at += len;
    in->rest.len -= len;
    return value;
}

uint32_t unpack_count(struct unpack *in, uint32_t max)
{
    uint32_t count = unpack_u32(in);

    if (count > max)
        in->failed = true;
    return in->failed ? 0 : count;
}

void unpack_text(struct unpack *in, char *room, size_t room_size)
{
    struct str value = unpack_str(in, room_size - 1);

    if (str_has_char(value, '\0')) {
        in->failed = true;
        value = STR("");
    }
    if (value.len)
        memcpy(room, value.at, value.len);
    room[value.len] = '\0';
}

bool unpack_done(const struct unpack *in, struct err *err)
{
    if (in->failed)
        return err_set(err, ERR_INVALID, "malformed message");
    if (in->rest.len)
        return err_set(err, ERR_INVALID, "malformed message: %zu bytes left over", in->rest.len);
    return true;
}
