#include "policy/mail_rules.h"

#include <string.h>

const char *const mail_mode_name[MAIL_MODE_COUNT] = {
    [MAIL_READ_ONLY] = "read_only", [MAIL_GATED_ALL] = "gated_all",   [MAIL_GATED_SEND] = "gated_send",
    [MAIL_MONITORED] = "monitored", [MAIL_AUTONOMOUS] = "autonomous",
};

const char *const mail_state_name[MAIL_STATE_COUNT] = {
    [MAIL_SCAN] = "scan",           [MAIL_HELD] = "held",         [MAIL_APPROVED] = "approved",
    [MAIL_SCHEDULED] = "scheduled", [MAIL_UNDO] = "undo",         [MAIL_QUEUED] = "queued",
    [MAIL_SENDING] = "sending",     [MAIL_DEFERRED] = "deferred", [MAIL_SENT] = "sent",
    [MAIL_UNCERTAIN] = "uncertain", [MAIL_REJECTED] = "rejected", [MAIL_CANCELLED] = "cancelled",
    [MAIL_FAILED] = "failed",       [MAIL_EXPIRED] = "expired",   [MAIL_BOUNCED] = "bounced",
};

bool mail_mode_parse(struct str name, enum mail_mode *out)
{
    for (unsigned i = 0; i < MAIL_MODE_COUNT; i++) {
        if (str_eq(name, str_from(mail_mode_name[i]))) {
            *out = (enum mail_mode)i;
            return true;
        }
    }
    return false;
}

bool mail_state_is_final(enum mail_state state)
{
    switch (state) {
    case MAIL_REJECTED:
    case MAIL_CANCELLED:
    case MAIL_FAILED:
    case MAIL_EXPIRED:
    case MAIL_BOUNCED:
        return true;
    default:
        return false;
    }
}

bool mail_state_has_left(enum mail_state state)
{
    switch (state) {
    case MAIL_SENDING:
    case MAIL_DEFERRED:
    case MAIL_SENT:
    case MAIL_UNCERTAIN:
    case MAIL_FAILED:
    case MAIL_BOUNCED:
        return true;
    default:
        return false;
    }
}

/* ---- who may ---- */

static bool may_send(uint32_t scopes)
{
    return scopes & (MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN);
}

bool mail_scopes_valid(uint32_t scopes)
{
    if (scopes == 0 || (scopes & ~(uint32_t)MAIL_SCOPE_ALL))
        return false;
    return !(may_send(scopes) && (scopes & MAIL_SCOPE_OVERSIGHT));
}

bool mail_scope_allows(uint32_t scopes, enum mail_scope needed)
{
    if (!mail_scopes_valid(scopes))
        return false;
    switch (needed) {
    case MAIL_SCOPE_READ:
        return scopes & (MAIL_SCOPE_READ | MAIL_SCOPE_ADMIN);
    case MAIL_SCOPE_SEND:
        return may_send(scopes);
    case MAIL_SCOPE_ADMIN:
        return scopes & MAIL_SCOPE_ADMIN;
    case MAIL_SCOPE_OVERSIGHT:
        return scopes & MAIL_SCOPE_OVERSIGHT;
    case MAIL_SCOPE_OVERSIGHT_READ:
        return scopes & (MAIL_SCOPE_OVERSIGHT | MAIL_SCOPE_OVERSIGHT_READ);
    default:
        return false; /* a set of several: ask for each */
    }
}

bool mail_may_decide(uint32_t scopes, bool is_composer)
{
    return !is_composer && mail_scope_allows(scopes, MAIL_SCOPE_OVERSIGHT);
}

bool mail_may_cancel(uint32_t scopes, bool is_composer, enum mail_state state)
{
    if (mail_scope_allows(scopes, MAIL_SCOPE_SEND))
        return true;
    return state == MAIL_UNDO && mail_may_decide(scopes, is_composer);
}

/* ---- what may leave ---- */

bool mail_is_gated(enum mail_mode mode, bool all_allowlisted)
{
    switch (mode) {
    case MAIL_GATED_SEND:
        return !all_allowlisted;
    case MAIL_MONITORED:
    case MAIL_AUTONOMOUS:
        return false;
    default:
        return true; /* also for a value that is none of them */
    }
}

bool mail_mode_may_change(enum mail_mode from, enum mail_mode to, bool has_code)
{
    if ((unsigned)from >= MAIL_MODE_COUNT || (unsigned)to >= MAIL_MODE_COUNT)
        return false;
    return to <= from || has_code;
}

enum mail_verdict mail_judge(enum mail_mode mode, bool all_allowlisted, bool is_approved)
{
    if (mode == MAIL_READ_ONLY)
        return MAIL_REFUSE;
    if (mail_is_gated(mode, all_allowlisted) && !is_approved)
        return MAIL_HOLD;
    return MAIL_RELEASE;
}

/* ---- addresses ---- */

/* RFC 5321 section 4.5.3.1, and RFC 1035 section 2.3.4 for names. */
enum { ADDRESS_MOST = 254, LOCAL_MOST = 64, DOMAIN_MOST = 253, LABEL_MOST = 63 };

/* RFC 5322's atext, ASCII: what needs no quotes in a local part. */
static bool is_atext(char c)
{
    return char_is_alnum(c) || (c != '\0' && strchr("!#$%&'*+-/=?^_`{|}~", c));
}

/* Pieces of one or more characters with a dot between them. */
static bool is_dotted(struct str s, bool (*is_fine)(char), size_t piece_most)
{
    size_t piece = 0;

    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] == '.') {
            if (piece == 0)
                return false;
            piece = 0;
        } else if (!is_fine(s.at[i]) || ++piece > piece_most) {
            return false;
        }
    }
    return piece > 0;
}

static bool is_label_char(char c)
{
    return char_is_alnum(c) || c == '-';
}

static bool is_host_name(struct str s)
{
    if (s.len > DOMAIN_MOST || !is_dotted(s, is_label_char, LABEL_MOST))
        return false;
    for (size_t i = 0; i < s.len; i++) {
        bool is_edge = i == 0 || i + 1 == s.len || s.at[i - 1] == '.' || s.at[i + 1] == '.';
        if (s.at[i] == '-' && is_edge)
            return false;
    }
    return true;
}

/* Splits at the only @ there is. */
static bool split(struct str address, struct str *out_local, struct str *out_domain)
{
    struct str rest = address;

    if (address.len > ADDRESS_MOST || !str_has_char(address, '@') || !str_cut(&rest, '@', out_local))
        return false;
    *out_domain = rest;
    return out_local->len <= LOCAL_MOST && is_dotted(*out_local, is_atext, LOCAL_MOST) && is_host_name(rest);
}

bool mail_allow_valid(struct str pattern)
{
    struct str local, domain;

    return split(pattern, &local, &domain);
}

bool mail_allow_covers(struct str pattern, struct str address)
{
    struct str want_local, want_domain, local, domain;

    if (!split(pattern, &want_local, &want_domain) || !split(address, &local, &domain))
        return false;
    if (!str_eq_nocase(want_domain, domain))
        return false;
    return str_eq(want_local, STR("*")) || str_eq_nocase(want_local, local);
}

/* ---- local parts of our own addresses ---- */

/* As their keys are: without dots. */
static const char *const reserved[] = {
    "admin",         "postmaster", "hostmaster", "webmaster", "abuse",     "noreply",  "no-reply",
    "mailer-daemon", "support",    "help",       "info",      "contact",   "root",     "security",
    "www",           "mail",       "email",      "lobster",   "billing",   "sales",    "api",
    "lobstermail",   "dev",        "test",       "null",      "undefined", "cloister",
};

static bool is_local_char(char c)
{
    return (c >= 'a' && c <= 'z') || char_is_digit(c) || c == '_' || c == '-';
}

bool mail_local_key(struct str local, char out[MAIL_LOCAL_MOST + 1])
{
    size_t len = 0;

    if (local.len > MAIL_LOCAL_MOST)
        return false;
    for (size_t i = 0; i < local.len && local.at[i] != '+'; i++) {
        char c = char_lower(local.at[i]);
        if (c == '.')
            continue;
        if (!is_local_char(c)) /* a zero byte, too: "admin" must not be found by "admin\0x" */
            return false;
        out[len++] = c;
    }
    out[len] = '\0';
    return len > 0;
}

bool mail_local_reserved(struct str local)
{
    char key[MAIL_LOCAL_MOST + 1];

    if (!mail_local_key(local, key))
        return false;
    for (size_t i = 0; i < COUNT_OF(reserved); i++)
        if (str_eq(str_from(key), str_from(reserved[i])))
            return true;
    return false;
}

bool mail_local_valid(struct str local)
{
    if (local.len < MAIL_LOCAL_LEAST || local.len > MAIL_LOCAL_MOST ||
        !is_dotted(local, is_local_char, MAIL_LOCAL_MOST))
        return false;
    return char_is_alnum(local.at[0]) && char_is_alnum(local.at[local.len - 1]) && !mail_local_reserved(local);
}

struct str mail_bare_address(struct str shown)
{
    shown = str_trim(shown);
    if (!str_ends(shown, STR(">")))
        return shown;
    for (size_t i = shown.len - 1; i > 0; i--)
        if (shown.at[i - 1] == '<')
            return str_trim(str_of(shown.at + i, shown.len - i - 1));
    return shown;
}
