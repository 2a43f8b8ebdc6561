/*
 * The allowlist and local parts, for all texts of up to TEXT_MOST bytes: long enough for every rule but the lengths, which
 * the unit test has.
 */
#include "model.h"

enum { TEXT_MOST = 5 };

char nondet_char(void);
size_t nondet_size(void);

static struct str some_text(char room[TEXT_MOST])
{
    size_t len = nondet_size();

    for (unsigned i = 0; i < TEXT_MOST; i++)
        room[i] = nondet_char();
    __CPROVER_assume(len <= TEXT_MOST);
    return (struct str){ room, len };
}

static unsigned count(struct str s, char c)
{
    unsigned found = 0;

    for (size_t i = 0; i < s.len; i++)
        found += s.at[i] == c;
    return found;
}

static size_t place_of_at(struct str s)
{
    size_t at = 0;

    while (at < s.len && s.at[at] != '@')
        at++;
    return at;
}

/* From the @ on, but for letter case. */
static bool same_domain(struct str a, struct str b)
{
    size_t i = place_of_at(a), j = place_of_at(b);

    for (; i < a.len && j < b.len; i++, j++)
        if (char_lower(a.at[i]) != char_lower(b.at[j]))
            return false;
    return i == a.len && j == b.len;
}

static bool same_local(struct str a, struct str b)
{
    size_t i = 0;

    for (; i < a.len && a.at[i] != '@'; i++)
        if (i >= b.len || char_lower(a.at[i]) != char_lower(b.at[i]))
            return false;
    return i < b.len && b.at[i] == '@';
}

static void check_allowlist(void)
{
    char room[TEXT_MOST], other_room[TEXT_MOST];
    struct str pattern = some_text(room), address = some_text(other_room);

    if (!mail_allow_covers(pattern, address))
        return;
    __CPROVER_assert(mail_allow_valid(pattern), "only a valid entry covers");
    __CPROVER_assert(count(pattern, '@') == 1 && count(address, '@') == 1, "one @ in each");
    __CPROVER_assert(same_domain(pattern, address), "an entry covers its own domain only");
    __CPROVER_assert((pattern.at[0] == '*' && pattern.at[1] == '@') || same_local(pattern, address),
                     "an entry covers its own address, or a whole domain");
    for (size_t i = 0; i < address.len; i++)
        __CPROVER_assert(address.at[i] > ' ' && address.at[i] < 127 && address.at[i] != '"' && address.at[i] != '<',
                         "nothing that needs quotes is covered");
}

static void check_local(void)
{
    char room[TEXT_MOST], key[MAIL_LOCAL_MOST + 1];
    struct str local = some_text(room);

    if (mail_local_key(local, key)) {
        struct str made = str_from(key);
        __CPROVER_assert(made.len > 0 && made.len <= local.len, "a key is not longer than its name");
        __CPROVER_assert(!count(made, '.') && !count(made, '+'), "a key has no dots and no tag");
    }
    if (!mail_local_valid(local))
        return;
    __CPROVER_assert(local.len >= MAIL_LOCAL_LEAST, "a local part has three bytes");
    __CPROVER_assert(char_is_alnum(local.at[0]) && char_is_alnum(local.at[local.len - 1]),
                     "it begins and ends plainly");
    for (size_t i = 0; i < local.len; i++) {
        char c = local.at[i];
        __CPROVER_assert((c >= 'a' && c <= 'z') || char_is_digit(c) || c == '.' || c == '_' || c == '-', "plain bytes");
        __CPROVER_assert(c != '.' || local.at[i + 1] != '.', "no two dots in a row");
    }
}

int main(void)
{
    check_allowlist();
    check_local();
    return 0;
}
