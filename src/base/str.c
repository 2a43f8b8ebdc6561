#include "base/str.h"

#include "base/mem.h"

bool char_is_token(char c)
{
    static const bool table[256] = {
        ['!'] = 1, ['#'] = 1, ['$'] = 1, ['%'] = 1,         ['&'] = 1,         ['\''] = 1,
        ['*'] = 1, ['+'] = 1, ['-'] = 1, ['.'] = 1,         ['^'] = 1,         ['_'] = 1,
        ['`'] = 1, ['|'] = 1, ['~'] = 1, ['0' ... '9'] = 1, ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1,
    };

    return table[(unsigned char)c];
}

bool str_is_token(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!char_is_token(s.at[i]))
            return false;
    return s.len > 0;
}

void text_lower(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        text[i] = char_lower(text[i]);
}

bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

bool str_eq_nocase(struct str a, struct str b)
{
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (char_lower(a.at[i]) != char_lower(b.at[i]))
            return false;
    return true;
}

bool str_starts(struct str s, struct str prefix)
{
    return s.len >= prefix.len && str_eq(str_of(s.at, prefix.len), prefix);
}

bool str_ends(struct str s, struct str suffix)
{
    return s.len >= suffix.len && str_eq(str_of(s.at + (s.len - suffix.len), suffix.len), suffix);
}

int str_order(struct str a, struct str b)
{
    size_t common = MIN(a.len, b.len);
    int order = common ? memcmp(a.at, b.at, common) : 0;

    if (order)
        return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

bool str_has_char(struct str s, char c)
{
    return s.len > 0 && memchr(s.at, c, s.len) != NULL;
}

static void drop(struct str *s, size_t n)
{
    s->at += n;
    s->len -= n;
}

bool str_skip(struct str *s, struct str prefix)
{
    if (!str_starts(*s, prefix))
        return false;
    drop(s, prefix.len);
    return true;
}

bool str_skip_nocase(struct str *s, struct str prefix)
{
    if (s->len < prefix.len || !str_eq_nocase(str_of(s->at, prefix.len), prefix))
        return false;
    drop(s, prefix.len);
    return true;
}

bool str_cut(struct str *s, char separator, struct str *out_head)
{
    if (!s->at)
        return false;
    const char *found = s->len ? memchr(s->at, separator, s->len) : NULL;
    if (found) {
        *out_head = str_of(s->at, (size_t)(found - s->at));
        drop(s, out_head->len + 1);
        return true;
    }
    *out_head = *s;
    *s = (struct str){ NULL, 0 };
    return true;
}

struct str str_trim(struct str s)
{
    while (s.len && (s.at[0] == ' ' || s.at[0] == '\t'))
        drop(&s, 1);
    while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
        s.len--;
    return s;
}

bool str_to_u64(struct str s, uint64_t max, uint64_t *out_value)
{
    uint64_t value = 0;

    if (s.len == 0)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] < '0' || s.at[i] > '9')
            return false;
        unsigned digit = (unsigned)(s.at[i] - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (value > max)
        return false;
    *out_value = value;
    return true;
}

bool str_to_path(struct str s, char *room, size_t room_size, struct err *err)
{
    if (s.len == 0)
        return err_set(err, ERR_INVALID, "the path is empty");
    if (str_has_char(s, '\0'))
        return err_set(err, ERR_INVALID, "the path has a zero byte in it");
    if (s.len >= room_size)
        return err_set(err, ERR_INVALID, "the path is too long (%zu bytes, at most %zu)", s.len, room_size - 1);
    memcpy(room, s.at, s.len);
    room[s.len] = '\0';
    return true;
}

char *str_copy(struct str s)
{
    char *copy = mem_new(s.len + 1);

    if (s.len)
        memcpy(copy, s.at, s.len);
    return copy;
}
