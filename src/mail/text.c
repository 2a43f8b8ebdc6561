#include "mail/text.h"

#include "base/encode.h"

enum { REPLACEMENT = 0xFFFD, PREVIEW_CHARACTERS = 200, TAGS_MOST = 4096 };

uint32_t text_next(struct str *rest)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    unsigned char first = (unsigned char)rest->at[0];
    size_t len = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    uint32_t value = len == 1 ? first : first & (0x7Fu >> len);

    if (len == 0 || len > rest->len) {
        *rest = str_of(rest->at + 1, rest->len - 1);
        return REPLACEMENT;
    }
    for (size_t i = 1; i < len; i++) {
        unsigned char next = (unsigned char)rest->at[i];
        if ((next & 0xC0) != 0x80) {
            *rest = str_of(rest->at + i, rest->len - i);
            return REPLACEMENT;
        }
        value = value << 6 | (next & 0x3F);
    }
    *rest = str_of(rest->at + len, rest->len - len);
    if (value < least[len] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return REPLACEMENT;
    return value;
}

void text_put(struct buf *out, uint32_t c)
{
    char room[4];
    size_t len;

    if (c < 0x80) {
        buf_add_char(out, (char)c);
        return;
    }
    if (c < 0x800) {
        room[0] = (char)(0xC0 | c >> 6);
        len = 2;
    } else if (c < 0x10000) {
        room[0] = (char)(0xE0 | c >> 12);
        len = 3;
    } else {
        room[0] = (char)(0xF0 | c >> 18);
        len = 4;
    }
    for (size_t i = 1; i < len; i++)
        room[i] = (char)(0x80 | (c >> (6 * (len - 1 - i)) & 0x3F));
    buf_add(out, str_of(room, len));
}

/* ---- what is shown ---- */

struct range {
    uint32_t first, last;
};

static bool is_in(const struct range *ranges, size_t count, uint32_t c)
{
    for (size_t i = 0; i < count; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

bool text_is_invisible(uint32_t c)
{
    static const struct range invisible[] = {
        { 0x00AD, 0x00AD },   /* soft hyphen */
        { 0x034F, 0x034F },   /* combining grapheme joiner */
        { 0x061C, 0x061C },   /* Arabic letter mark */
        { 0x115F, 0x1160 },   /* Hangul fillers */
        { 0x17B4, 0x17B5 },   /* Khmer inherent vowels */
        { 0x180B, 0x180F },   /* Mongolian selectors */
        { 0x200B, 0x200F },   /* zero-width space, joiners, left-to-right and right-to-left marks */
        { 0x202A, 0x202E },   /* bidi embeddings and overrides */
        { 0x2060, 0x206F },   /* word joiner, invisible operators, bidi isolates */
        { 0x3164, 0x3164 },   /* Hangul filler */
        { 0xFE00, 0xFE0F },   /* variation selectors */
        { 0xFEFF, 0xFEFF },   /* byte order mark */
        { 0xFFA0, 0xFFA0 },   /* half-width Hangul filler */
        { 0xFFF9, 0xFFFB },   /* interlinear annotations */
        { 0x1BCA0, 0x1BCA3 }, /* shorthand controls */
        { 0x1D173, 0x1D17A }, /* musical controls */
        { 0xE0000, 0xE0FFF }, /* tags and more variation selectors: each can carry a hidden byte */
    };

    return c >= 0xAD && is_in(invisible, COUNT_OF(invisible), c);
}

/* Persian, Indic scripts and joined emoji need joiners; an emoji may choose its form. Between Latin letters they hide. */
static bool is_needed(uint32_t c, uint32_t before, uint32_t after)
{
    if (c == 0x200C || c == 0x200D)
        return (before >= 0x0590 && !text_is_invisible(before) && after >= 0x0590) || (before == 0xFE0F && c == 0x200D);
    if (c == 0xFE0E || c == 0xFE0F)
        return before >= 0x2000 && !text_is_invisible(before);
    return false;
}

struct str text_clean(struct arena *arena, struct str text, enum text_form form, uint32_t *out_removed)
{
    struct buf out = buf_make(arena, text.len * 3 + 1); /* a broken byte becomes three */
    uint32_t before = 0, removed = 0;

    for (struct str rest = text; rest.len;) {
        uint32_t c = text_next(&rest);
        if (c == '\r' && rest.len && rest.at[0] == '\n')
            continue;
        if (c == '\r' || c == '\n' || c == 0x0B || c == 0x0C || c == 0x85 || c == 0x2028 || c == 0x2029)
            c = form == TEXT_LINES ? '\n' : ' ';
        else if (c == '\t')
            c = form == TEXT_LINES ? '\t' : ' ';
        else if (c < 0x20 || (c >= 0x7F && c < 0xA0))
            continue;
        else if (text_is_invisible(c)) {
            struct str peek = rest;
            if (!is_needed(c, before, peek.len ? text_next(&peek) : 0)) {
                removed++;
                continue;
            }
        }
        text_put(&out, c);
        before = c;
    }
    if (out_removed)
        *out_removed = removed;
    return buf_str(&out);
}

struct str text_tags(struct arena *arena, struct str text)
{
    struct buf out = buf_make(arena, TAGS_MOST);
    const char *first;

    /* All of them begin with F3 A0. */
    while (text.len && out.len < TAGS_MOST && (first = memchr(text.at, 0xF3, text.len))) {
        text = str_of(first, text.len - (size_t)(first - text.at));
        uint32_t c = text_next(&text);
        if (c >= 0xE0020 && c <= 0xE007E)
            buf_add_char(&out, (char)(c - 0xE0000));
    }
    return buf_str(&out);
}

struct str text_preview(struct arena *arena, struct str text)
{
    struct buf out = buf_make(arena, PREVIEW_CHARACTERS * 4 + 8);
    bool space = false;

    for (int i = 0; text.len && i < PREVIEW_CHARACTERS;) {
        uint32_t c = text_next(&text);
        if (c <= ' ' || c == 0xA0) {
            space = out.len > 0;
            continue;
        }
        if (space) {
            buf_add_char(&out, ' ');
            i++;
        }
        space = false;
        text_put(&out, c);
        i++;
    }
    return buf_str(&out);
}

struct str text_cut(struct str text, size_t most)
{
    if (text.len <= most)
        return text;
    while (most && ((unsigned char)text.at[most] & 0xC0) == 0x80)
        most--;
    return str_of(text.at, most);
}

/* ---- what it looks like ---- */

/* U+00C0 to U+017F without their marks; '.': none. */
static const char latin_fold[] = "aaaaaaaceeeeiiiidnooooo.ouuuuy.baaaaaaaceeeeiiiidnooooo.ouuuuypy"
                                 "aaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiiiii..jjkkklllllll"
                                 "lllnnnnnnnnnoooooooorrrrrrssssssssttttttuuuuuuuuuuuuwwyyyzzzzzzf";

char text_fold(uint32_t c)
{
    /* Letters of other scripts that fonts draw like Latin ones; a part of Unicode's confusables (UTS 39). */
    static const struct {
        uint32_t character;
        char like;
    } others[] = {
        { 0x0251, 'a' }, { 0x0261, 'g' }, { 0x0269, 'i' }, { 0x026A, 'i' }, { 0x0280, 'r' }, { 0x028F, 'y' },
        { 0x0299, 'b' }, { 0x029C, 'h' }, { 0x029F, 'l' }, { 0x0391, 'a' }, { 0x0392, 'b' }, { 0x0395, 'e' },
        { 0x0396, 'z' }, { 0x0397, 'h' }, { 0x0399, 'i' }, { 0x039A, 'k' }, { 0x039C, 'm' }, { 0x039D, 'n' },
        { 0x039F, 'o' }, { 0x03A1, 'p' }, { 0x03A4, 't' }, { 0x03A5, 'y' }, { 0x03A7, 'x' }, { 0x03B1, 'a' },
        { 0x03B3, 'y' }, { 0x03B5, 'e' }, { 0x03B7, 'n' }, { 0x03B9, 'i' }, { 0x03BA, 'k' }, { 0x03BD, 'v' },
        { 0x03BF, 'o' }, { 0x03C1, 'p' }, { 0x03C3, 'o' }, { 0x03C4, 't' }, { 0x03C5, 'u' }, { 0x03C7, 'x' },
        { 0x03F2, 'c' }, { 0x0405, 's' }, { 0x0406, 'i' }, { 0x0408, 'j' }, { 0x0410, 'a' }, { 0x0412, 'b' },
        { 0x0415, 'e' }, { 0x041A, 'k' }, { 0x041C, 'm' }, { 0x041D, 'h' }, { 0x041E, 'o' }, { 0x0420, 'p' },
        { 0x0421, 'c' }, { 0x0422, 't' }, { 0x0423, 'y' }, { 0x0425, 'x' }, { 0x0430, 'a' }, { 0x0432, 'b' },
        { 0x0433, 'r' }, { 0x0435, 'e' }, { 0x043A, 'k' }, { 0x043C, 'm' }, { 0x043D, 'h' }, { 0x043E, 'o' },
        { 0x043F, 'n' }, { 0x0440, 'p' }, { 0x0441, 'c' }, { 0x0442, 't' }, { 0x0443, 'y' }, { 0x0445, 'x' },
        { 0x0450, 'e' }, { 0x0451, 'e' }, { 0x0455, 's' }, { 0x0456, 'i' }, { 0x0457, 'i' }, { 0x0458, 'j' },
        { 0x0475, 'v' }, { 0x04AF, 'y' }, { 0x04BB, 'h' }, { 0x04CF, 'l' }, { 0x04D9, 'e' }, { 0x0501, 'd' },
        { 0x051B, 'q' }, { 0x051D, 'w' }, { 0x0561, 'w' }, { 0x0563, 'q' }, { 0x0566, 'q' }, { 0x0570, 'h' },
        { 0x0578, 'n' }, { 0x057C, 'n' }, { 0x057D, 'u' }, { 0x0581, 'g' }, { 0x0584, 'f' }, { 0x0585, 'o' },
        { 0x1E37, 'l' }, { 0x1EA1, 'a' }, { 0x1EB9, 'e' }, { 0x1ECB, 'i' }, { 0x1ECD, 'o' }, { 0x1EE5, 'u' },
        { 0x2113, 'l' }, { 0x212A, 'k' },
    };

    if (c < 0x80)
        return char_is_alnum((char)c) ? char_lower((char)c) : 0;
    if (c >= 0xC0 && c < 0x180)
        return latin_fold[c - 0xC0] == '.' ? 0 : latin_fold[c - 0xC0];
    if (c >= 0xFF10 && c <= 0xFF5A) /* full width */
        return text_fold(c - 0xFEE0);
    if (c >= 0x24B6 && c <= 0x24E9) /* in circles */
        return (char)('a' + (c - 0x24B6) % 26);
    if (c >= 0x1D400 && c <= 0x1D6A3) /* mathematical letters, thirteen alphabets */
        return (char)('a' + (c - 0x1D400) % 26);
    if (c >= 0x1D7CE && c <= 0x1D7FF)
        return (char)('0' + (c - 0x1D7CE) % 10);
    if (c >= 0x1F130 && c <= 0x1F189) /* in squares */
        return (char)('a' + (c - 0x1F130) % 32 % 26);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (others[i].character == c)
            return others[i].like;
    return 0;
}

enum text_script text_script(uint32_t c)
{
    static const struct range letterless[] = {
        { 0x80, 0xBF },     { 0xD7, 0xD7 },     { 0xF7, 0xF7 },     { 0x2B0, 0x36F },
        { 0x2000, 0x2BFF }, { 0x3000, 0x3004 }, { 0xFE00, 0xFE0F }, { 0x1F000, 0x1FAFF },
    };

    if (c < 0x80)
        return char_is_letter((char)c) ? SCRIPT_LATIN : SCRIPT_NONE;
    if (is_in(letterless, COUNT_OF(letterless), c))
        return SCRIPT_NONE;
    if (c < 0x370 || (c >= 0x1E00 && c <= 0x1EFF) || (c >= 0xFF21 && c <= 0xFF5A))
        return SCRIPT_LATIN;
    if (c < 0x400 || (c >= 0x1F00 && c <= 0x1FFF))
        return SCRIPT_GREEK;
    if (c < 0x530 || (c >= 0x1C80 && c <= 0x1C8F) || (c >= 0xA640 && c <= 0xA69F))
        return SCRIPT_CYRILLIC;
    return c < 0x590 ? SCRIPT_ARMENIAN : SCRIPT_OTHER;
}
