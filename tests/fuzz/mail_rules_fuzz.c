/*
 * An entry of an allowlist and an address, a line each: what covers is valid, letter case changes nothing, and the entry of
 * an address's whole domain covers each address that could be an entry. The second line is also a local part.
 */
#include <stdlib.h>

#include "base/buf.h"
#include "policy/mail_rules.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void need(bool is_so)
{
    if (!is_so)
        abort();
}

static struct str in_other_case(struct buf *room, struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        if (char_is_letter(c))
            c = (char)(c ^ ('a' ^ 'A'));
        buf_add(room, str_of(&c, 1));
    }
    return buf_str(room);
}

static void ask_allowlist(struct str pattern, struct str address)
{
    auto_buf struct buf other = buf_make(NULL, address.len + 1), whole = buf_make(NULL, address.len + 2);
    bool covers = mail_allow_covers(pattern, address);
    struct str rest = address, local;

    need(!covers || (mail_allow_valid(pattern) && mail_allow_valid(address)));
    need(mail_allow_covers(pattern, in_other_case(&other, address)) == covers);
    need(mail_allow_covers(address, address) == mail_allow_valid(address));
    if (!str_has_char(address, '@') || !str_cut(&rest, '@', &local))
        return;
    buf_add(&whole, STR("*@"));
    buf_add(&whole, rest);
    need(mail_allow_covers(buf_str(&whole), address) ==
         (mail_allow_valid(buf_str(&whole)) && mail_allow_valid(address)));
}

static void ask_local(struct str local)
{
    char key[MAIL_LOCAL_MOST + 1], again[MAIL_LOCAL_MOST + 1];
    bool has_key = mail_local_key(local, key);

    need(!mail_local_valid(local) || (has_key && !mail_local_reserved(local)));
    if (!has_key)
        return;
    need(mail_local_key(str_from(key), again) && str_eq(str_from(key), str_from(again)));
    need(mail_local_reserved(local) == mail_local_reserved(str_from(key)));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str text = str_of(data, size), pattern;
    enum mail_mode mode;

    if (!str_cut(&text, '\n', &pattern))
        return 0;
    ask_allowlist(pattern, text);
    ask_local(text);
    need(!mail_mode_parse(pattern, &mode) || str_eq(pattern, str_from(mail_mode_name[mode])));
    return 0;
}
