#include "base/encode.h"

#include <stdint.h>

char *hex_text(struct str bytes, char *room)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < bytes.len; i++) {
        room[2 * i] = digits[(unsigned char)bytes.at[i] >> 4];
        room[2 * i + 1] = digits[(unsigned char)bytes.at[i] & 15];
    }
    room[2 * bytes.len] = '\0';
    return room;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hex_bytes(struct str text, unsigned char *room, size_t room_size, size_t *out_len)
{
    if (text.len % 2 || text.len / 2 > room_size)
        return false;
    for (size_t i = 0; i < text.len; i += 2) {
        int high = hex_digit(text.at[i]), low = hex_digit(text.at[i + 1]);
        if (high < 0 || low < 0)
            return false;
        room[i / 2] = (unsigned char)(high << 4 | low);
    }
    *out_len = text.len / 2;
    return true;
}

size_t base64_encode(struct str bytes, char *room)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = (const unsigned char *)bytes.at;
    char *out = room;
    size_t i = 0;

    for (; i + 2 < bytes.len; i += 3) {
        uint32_t three = (uint32_t)in[i] << 16 | (uint32_t)in[i + 1] << 8 | in[i + 2];
        *out++ = letters[three >> 18];
        *out++ = letters[three >> 12 & 63];
        *out++ = letters[three >> 6 & 63];
        *out++ = letters[three & 63];
    }
    if (i < bytes.len) {
        bool two = bytes.len - i == 2;
        uint32_t rest = (uint32_t)in[i] << 16 | (two ? (uint32_t)in[i + 1] << 8 : 0);
        *out++ = letters[rest >> 18];
        *out++ = letters[rest >> 12 & 63];
        *out++ = two ? letters[rest >> 6 & 63] : '=';
        *out++ = '=';
    }
    return (size_t)(out - room);
}

/* Value of a letter. *family becomes 1 for the standard alphabet, 2 for URL-safe; letters of both leave it alone. */
static int base64_value(char c, unsigned *family)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '/') {
        *family |= 1;
        return c == '+' ? 62 : 63;
    }
    if (c == '-' || c == '_') {
        *family |= 2;
        return c == '-' ? 62 : 63;
    }
    return -1;
}

bool base64_decode(struct str text, unsigned char *room, size_t *out_len)
{
    unsigned family = 0;
    uint32_t bits = 0;
    size_t out = 0, pads = 0;

    while (text.len && pads < 2 && text.at[text.len - 1] == '=') {
        text.len--;
        pads++;
    }
    if (text.len % 4 == 1 || (pads && (text.len + pads) % 4 != 0))
        return false;
    for (size_t i = 0; i < text.len; i++) {
        int value = base64_value(text.at[i], &family);
        if (value < 0 || family == 3)
            return false;
        bits = bits << 6 | (uint32_t)value;
        switch (i % 4) {
        case 1:
            room[out++] = (unsigned char)(bits >> 4);
            break;
        case 2:
            room[out++] = (unsigned char)(bits >> 2);
            break;
        case 3:
            room[out++] = (unsigned char)bits;
            break;
        }
    }
    *out_len = out;
    return true;
}

bool percent_decode(struct arena *arena, struct str text, enum percent_plus plus, struct str *out)
{
    bool plain = !str_has_char(text, '%') && (plus == PERCENT_PLUS_IS_PLUS || !str_has_char(text, '+'));

    if (plain) {
        *out = text;
        return true;
    }
    char *room = arena_alloc(arena, text.len + 1);
    size_t len = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (c == '%') {
            int high = i + 2 < text.len ? hex_digit(text.at[i + 1]) : -1;
            int low = i + 2 < text.len ? hex_digit(text.at[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus == PERCENT_PLUS_IS_SPACE) {
            c = ' ';
        }
        room[len++] = c;
    }
    *out = str_of(room, len);
    return true;
}

void percent_encode(struct buf *out, struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        bool plain = char_is_alnum(c) || c == '-' || c == '.' || c == '_' || c == '~';
        if (plain)
            buf_add_char(out, c);
        else
            buf_format(out, "%%%02X", (unsigned char)c);
    }
}

/* Length of the well-formed sequence at the front, or 0. Table 3-7 of the Unicode standard. */
static size_t utf8_step(const unsigned char *s, size_t len)
{
    unsigned char lead = s[0];
    size_t more;
    unsigned char low = 0x80, high = 0xbf;

    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        more = 1;
    else if (lead >= 0xe0 && lead <= 0xef)
        more = 2;
    else if (lead >= 0xf0 && lead <= 0xf4)
        more = 3;
    else
        return 0;
    if (lead == 0xe0)
        low = 0xa0; /* overlong */
    else if (lead == 0xed)
        high = 0x9f; /* surrogates */
    else if (lead == 0xf0)
        low = 0x90; /* overlong */
    else if (lead == 0xf4)
        high = 0x8f; /* past U+10FFFF */
    if (len < more + 1 || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i <= more; i++)
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    return more + 1;
}

bool utf8_valid(struct str text)
{
    for (size_t i = 0; i < text.len;) {
        size_t step = utf8_step((const unsigned char *)text.at + i, text.len - i);
        if (!step)
            return false;
        i += step;
    }
    return true;
}

struct str utf8_repair(struct arena *arena, struct str text)
{
    if (utf8_valid(text))
        return text;
    struct buf out = buf_make(arena, 3 * text.len);
    for (size_t i = 0; i < text.len;) {
        size_t step = utf8_step((const unsigned char *)text.at + i, text.len - i);
        buf_add(&out, step ? str_of(text.at + i, step) : STR("\xEF\xBF\xBD"));
        i += step ? step : 1;
    }
    return buf_str(&out);
}

uint32_t utf8_next(struct str *rest)
{
    unsigned char first = (unsigned char)rest->at[0];
    size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint32_t c = size == 1 ? first : first & (0xffu >> (size + 1));

    for (size_t i = 1; i < size; i++)
        c = c << 6 | ((unsigned char)rest->at[i] & 0x3f);
    *rest = str_of(rest->at + size, rest->len - size);
    return c;
}

static bool is_between(uint32_t c, uint32_t first, uint32_t last)
{
    return c >= first && c <= last;
}

bool utf8_is_hidden(uint32_t c)
{
    return c < 0x20 || is_between(c, 0x7f, 0x9f) || c == 0xad || c == 0x61c || c == 0x180e ||
           is_between(c, 0x200b, 0x200f) || is_between(c, 0x2028, 0x202e) || is_between(c, 0x2060, 0x206f) ||
           c == 0xfeff || is_between(c, 0xfff9, 0xfffb) || is_between(c, 0xe0000, 0xe0fff);
}
