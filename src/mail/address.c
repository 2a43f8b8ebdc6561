#include "mail/address.h"

#include <idn2.h>
#include <stdlib.h>

#include "base/encode.h"
#include "base/limits.h"
#include "mail/text.h"

enum { LOCAL_MOST = 64, DOMAIN_MOST = 253, LABEL_MOST = 63, ADDRESS_MOST = 254 };

bool header_text_check(struct str text, const char *field, struct err *err)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.at[i];
        if (c == '\r' || c == '\n')
            return err_set(err, ERR_INVALID, "%s has a line break: write it on one line", field);
        if ((c < 0x20 && c != '\t') || c == 0x7F)
            return err_set(err, ERR_INVALID, "%s has a control character (0x%02x): remove it", field, c);
    }
    if (!utf8_valid(text))
        return err_set(err, ERR_INVALID, "%s is not UTF-8", field);
    return true;
}

static bool is_atom_char(char c)
{
    return char_is_alnum(c) || (c && strchr("!#$%&'*+-/=?^_`{|}~", c));
}

/* RFC 5322 section 3.2.3. */
static bool is_dot_atom(struct str s)
{
    char before = '.';

    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] == '.' ? before == '.' : !is_atom_char(s.at[i]))
            return false;
        before = s.at[i];
    }
    return s.len && before != '.';
}

static bool is_ascii(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.at[i] >= 0x80)
            return false;
    return true;
}

/* Two labels or more, of letters, digits and hyphens; the last is no number, so that it is no IPv4 address. */
static bool is_domain(struct str domain)
{
    struct str label = STR(""), rest = domain;
    size_t labels = 0;
    uint64_t number;

    if (domain.len > DOMAIN_MOST)
        return false;
    while (str_cut(&rest, '.', &label)) {
        labels++;
        if (!label.len || label.len > LABEL_MOST || label.at[0] == '-' || label.at[label.len - 1] == '-')
            return false;
        for (size_t i = 0; i < label.len; i++)
            if (!char_is_alnum(label.at[i]) && label.at[i] != '-')
                return false;
    }
    return labels >= 2 && !str_to_u64(label, UINT64_MAX, &number) && !str_ends(domain, STR("."));
}

/* A code of libidn2. */
static int domain_encode(struct str text, struct arena *arena, struct str *out)
{
    char *domain = arena_text(arena, text);

    if (!is_ascii(text)) {
        char *ascii = NULL;
        int code = text.len > LIMIT_MAIL_ADDRESS_BYTES ? IDN2_TOO_BIG_DOMAIN
                                                       : idn2_to_ascii_8z(domain, &ascii, IDN2_NONTRANSITIONAL);
        if (code != IDN2_OK)
            return code;
        domain = arena_text(arena, str_from(ascii));
        idn2_free(ascii);
    }
    text_lower(domain, strlen(domain));
    *out = str_from(domain);
    return IDN2_OK;
}

struct str address_domain_wire(struct arena *arena, struct str domain)
{
    struct str wire = domain;

    (void)domain_encode(domain, arena, &wire);
    return wire;
}

static bool domain_parse(struct str text, const char *field, struct arena *arena, struct str *out, struct err *err)
{
    struct str domain;

    if (text.len && text.at[0] == '[')
        return err_set(err, ERR_INVALID, "%s: an IP address after @ is not supported: use a domain", field);
    int code = domain_encode(text, arena, &domain);
    if (code != IDN2_OK)
        return err_set(err, ERR_INVALID, "%s: the domain after @ is not a valid international domain name: %s", field,
                       idn2_strerror(code));
    if (!is_domain(domain))
        return err_set(err, ERR_INVALID, "%s: '%.64s' after @ is not a domain name such as b.example", field,
                       domain.at);
    *out = domain;
    return true;
}

static bool bare_parse(struct str text, const char *field, struct arena *arena, struct address *out, struct err *err)
{
    struct str local, domain;
    size_t at = text.len;

    while (at && text.at[at - 1] != '@')
        at--;
    if (!at)
        return err_set(err, ERR_INVALID, "%s: '%.64s' is not an address such as a@b.example", field,
                       arena_text(arena, text));
    local = str_of(text.at, at - 1);
    if (!is_ascii(local))
        return err_set(err, ERR_INVALID, "%s: the part before @ must be ASCII; other letters are not supported", field);
    if (!is_dot_atom(local) || local.len > LOCAL_MOST)
        return err_set(err, ERR_INVALID, "%s: '%.64s' before @ is not valid in an address", field,
                       arena_text(arena, local));
    if (!domain_parse(str_of(text.at + at, text.len - at), field, arena, &domain, err))
        return false;
    if (local.len + 1 + domain.len > ADDRESS_MOST)
        return err_set(err, ERR_INVALID, "%s: an address has at most %d characters", field, ADDRESS_MOST);
    out->bare = arena_format(arena, "%.*s@%.*s", STR_ARG(local), STR_ARG(domain));
    out->domain = domain;
    return true;
}

/* "Last, First" with its backslashes taken off; false if the quotes do not enclose it whole. */
static bool unquote(struct str text, struct arena *arena, struct str *out)
{
    struct buf name = buf_make(arena, text.len);

    for (size_t i = 1; i < text.len; i++) {
        if (text.at[i] == '"') {
            *out = buf_str(&name);
            return i + 1 == text.len;
        }
        if (text.at[i] == '\\' && ++i == text.len)
            return false;
        buf_add_char(&name, text.at[i]);
    }
    return false;
}

static bool name_parse(struct str text, const char *field, struct arena *arena, struct str *out, struct err *err)
{
    if (text.len && text.at[0] == '"') {
        if (!unquote(text, arena, out))
            return err_set(err, ERR_INVALID, "%s: the quotes around the name do not end before <", field);
        return true;
    }
    for (size_t i = 0; i < text.len; i++)
        if (strchr("()<>[]:;@\\,\"", text.at[i]))
            return err_set(err, ERR_INVALID, "%s: put a name with '%c' in quotes; give each address by itself", field,
                           text.at[i]);
    *out = text;
    return true;
}

bool mail_address_parse(struct str text, const char *field, struct arena *arena, struct address *out, struct err *err)
{
    struct address got = { 0 };
    size_t open;

    text = str_trim(text);
    if (!text.len)
        return err_set(err, ERR_INVALID, "%s has an empty address", field);
    if (text.len > LIMIT_MAIL_ADDRESS_BYTES)
        return err_set(err, ERR_INVALID, "%s has an address of more than %d bytes", field, LIMIT_MAIL_ADDRESS_BYTES);
    if (!header_text_check(text, field, err))
        return false;
    if (text.at[text.len - 1] != '>') {
        if (!bare_parse(text, field, arena, &got, err))
            return false;
    } else {
        for (open = text.len; open && text.at[open - 1] != '<';)
            open--;
        if (!open)
            return err_set(err, ERR_INVALID, "%s: an address has > without <", field);
        if (!name_parse(str_trim(str_of(text.at, open - 1)), field, arena, &got.name, err) ||
            !bare_parse(str_of(text.at + open, text.len - open - 1), field, arena, &got, err))
            return false;
        got.name = str_trim(text_clean(arena, got.name, TEXT_LINE, NULL));
    }
    *out = got;
    return true;
}

struct str address_shown(struct arena *arena, const struct address *address)
{
    struct buf out = buf_make(arena, 2 * address->name.len + address->bare.len + 8);
    bool quote = false;

    if (!address->name.len)
        return address->bare;
    for (size_t i = 0; i < address->name.len; i++)
        quote |= strchr("()<>[]:;@\\,.\"", address->name.at[i]) != NULL;
    if (quote)
        buf_add_char(&out, '"');
    for (size_t i = 0; i < address->name.len; i++) {
        if (address->name.at[i] == '"' || address->name.at[i] == '\\')
            buf_add_char(&out, '\\');
        buf_add_char(&out, address->name.at[i]);
    }
    if (quote)
        buf_add_char(&out, '"');
    buf_add(&out, STR(" <"));
    buf_add(&out, address->bare);
    buf_add_char(&out, '>');
    return buf_str(&out);
}

struct str address_domain_shown(struct arena *arena, struct str domain)
{
    char *shown = NULL;

    if (domain.len > DOMAIN_MOST || idn2_to_unicode_8z8z(arena_text(arena, domain), &shown, 0) != IDN2_OK)
        return domain;
    struct str copy = arena_copy(arena, str_from(shown));
    idn2_free(shown);
    return copy;
}
