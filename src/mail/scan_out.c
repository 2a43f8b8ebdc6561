/*
 * What leaves: secrets, canaries, recipients that look like others.
 *
 * A secret is found by its form: a known prefix after which enough characters of its alphabet follow. Text that is hidden
 * in base64 is looked at as well, once.
 */
#include "mail/scan.h"

#include "base/encode.h"
#include "base/limits.h"
#include "mail/address.h"
#include "mail/text.h"

enum {
    BASE64_LEAST = 32,      /* characters; shorter runs are words */
    PARTS_WORDS = 1 << 16,  /* a bit for each word of the text part, by its hash */
    PARTS_LEAST = 5,        /* words that only the HTML part has, before it is told */
    DECODED_MOST = 1 << 20, /* bytes of one run */
};

void content_warn(struct mail_content *content, struct arena *arena, const char *code, bool blocks, struct str detail)
{
    if (!content->warnings)
        content->warnings = ARENA_ARRAY(arena, struct mail_warning, LIMIT_MAIL_WARNINGS);
    if (content->warning_count == LIMIT_MAIL_WARNINGS)
        return;
    content->warnings[content->warning_count++] = (struct mail_warning){
        .code = str_from(code),
        .detail = text_cut(text_clean(arena, detail, TEXT_LINE, NULL), LIMIT_MAIL_WARNING_BYTES),
        .blocks = blocks,
    };
}

/* ---- secrets ---- */

static const struct secret_form {
    struct str prefix;
    size_t least;     /* characters that must follow */
    const char *also; /* allowed besides letters and digits */
    const char *what;
    bool is_canary;
} forms[] = {
    { STR_INIT("cloister_canary_"), 8, "-_", "a canary token", true },
    { STR_INIT("mm_live_"), 20, "-_", "a mail key of this server" },
    { STR_INIT("mm_test_"), 20, "-_", "a mail key of this server" },
    { STR_INIT("lm_sk_live_"), 20, "-_", "a mail token of this server" },
    { STR_INIT("lm_sk_test_"), 20, "-_", "a mail token of this server" },
    { STR_INIT("e2b_"), 32, "", "a sandbox key of this server" },
    { STR_INIT("whsec_"), 16, "+/=-_", "a webhook secret" },
    { STR_INIT("AKIA"), 16, "", "an AWS access key" },
    { STR_INIT("ASIA"), 16, "", "an AWS access key" },
    { STR_INIT("ghp_"), 30, "", "a GitHub token" },
    { STR_INIT("gho_"), 30, "", "a GitHub token" },
    { STR_INIT("ghu_"), 30, "", "a GitHub token" },
    { STR_INIT("ghs_"), 30, "", "a GitHub token" },
    { STR_INIT("ghr_"), 30, "", "a GitHub token" },
    { STR_INIT("github_pat_"), 22, "_", "a GitHub token" },
    { STR_INIT("glpat-"), 20, "-_", "a GitLab token" },
    { STR_INIT("sk-ant-"), 20, "-_", "an Anthropic key" },
    { STR_INIT("sk-proj-"), 20, "-_", "an OpenAI key" },
    { STR_INIT("sk-or-v1-"), 20, "", "an OpenRouter key" },
    { STR_INIT("sk-"), 32, "", "an API key" },
    { STR_INIT("sk_live_"), 16, "", "a Stripe key" },
    { STR_INIT("rk_live_"), 16, "", "a Stripe key" },
    { STR_INIT("sk_test_"), 16, "", "a Stripe key" },
    { STR_INIT("xoxb-"), 10, "-", "a Slack token" },
    { STR_INIT("xoxp-"), 10, "-", "a Slack token" },
    { STR_INIT("xoxa-"), 10, "-", "a Slack token" },
    { STR_INIT("xoxs-"), 10, "-", "a Slack token" },
    { STR_INIT("xapp-"), 10, "-", "a Slack token" },
    { STR_INIT("AIza"), 35, "-_", "a Google key" },
    { STR_INIT("ya29."), 20, "-_", "a Google token" },
    { STR_INIT("npm_"), 36, "", "an npm token" },
    { STR_INIT("pypi-"), 50, "-_", "a PyPI token" },
    { STR_INIT("dop_v1_"), 40, "", "a DigitalOcean token" },
    { STR_INIT("hf_"), 30, "", "a Hugging Face token" },
    { STR_INIT("SG."), 40, ".-_", "a SendGrid key" },
    { STR_INIT("shpat_"), 32, "", "a Shopify token" },
    { STR_INIT("AGE-SECRET-KEY-1"), 50, "", "an age key" },
    { STR_INIT("postgres://"), 8, "", "" }, /* these only with a password, see is_url_with_password() */
    { STR_INIT("postgresql://"), 8, "", "" },
    { STR_INIT("mysql://"), 8, "", "" },
    { STR_INIT("mongodb://"), 8, "", "" },
    { STR_INIT("mongodb+srv://"), 8, "", "" },
    { STR_INIT("redis://"), 8, "", "" },
    { STR_INIT("amqp://"), 8, "", "" },
    { STR_INIT("ftp://"), 8, "", "" },
    { STR_INIT("http://"), 8, "", "" },
    { STR_INIT("https://"), 8, "", "" },
};

/* user:password@host, before the first slash or space. */
static bool is_url_with_password(struct str rest)
{
    size_t colon = 0;

    for (size_t i = 0; i < rest.len && i < 256; i++) {
        char c = rest.at[i];
        if (c == '@')
            return colon && i > colon + 1;
        if (c == ':' && !colon)
            colon = i + 1;
        else if (c <= ' ' || c == '/' || c == '<' || c == '>' || c == '"' || c == '?' || c == '#')
            return false;
    }
    return false;
}

static bool form_matches(const struct secret_form *form, struct str text)
{
    size_t len = 0;

    if (!str_skip(&text, form->prefix))
        return false;
    if (!*form->what)
        return is_url_with_password(text);
    while (len < text.len && len < form->least &&
           (char_is_alnum(text.at[len]) || (text.at[len] && strchr(form->also, text.at[len]))))
        len++;
    return len == form->least;
}

/* "eyJ….eyJ….…": a signed token. */
static bool is_jwt(struct str text)
{
    struct str part;

    for (int i = 0; i < 2; i++)
        if (!str_starts(text, STR("eyJ")) || !str_cut(&text, '.', &part) || part.len < 12 || part.len > 4096)
            return false;
    size_t len = 0;
    while (len < text.len && (char_is_alnum(text.at[len]) || text.at[len] == '-' || text.at[len] == '_'))
        len++;
    return len >= 10;
}

/* "-----BEGIN … PRIVATE KEY": PEM, OpenSSH, PGP. */
static bool is_private_key(struct str text)
{
    if (!str_skip(&text, STR("-----BEGIN ")))
        return false;
    for (size_t i = 0; i + 11 <= text.len && i < 32; i++)
        if (str_starts(str_of(text.at + i, text.len - i), STR("PRIVATE KEY")))
            return true;
    return false;
}

static bool is_canary_link(struct str text)
{
    return str_skip_nocase(&text, STR("canarytokens.com/")) || str_skip_nocase(&text, STR("canarytokens.org/"));
}

struct secrets {
    struct mail_content *content;
    struct arena *arena;
    const char *where;
    const char *seen[COUNT_OF(forms) + 4]; /* each is told once for a place */
    size_t seen_count;
};

static void tell(struct secrets *s, const char *what, bool is_canary, struct str prefix)
{
    for (size_t i = 0; i < s->seen_count; i++)
        if (s->seen[i] == what)
            return;
    if (s->seen_count < COUNT_OF(s->seen))
        s->seen[s->seen_count++] = what;
    content_warn(s->content, s->arena, is_canary ? "canary" : "secret", is_canary,
                 arena_format(s->arena, "%s contains what looks like %s (%.*s…).", s->where, what, STR_ARG(prefix)));
}

static void find_secrets(struct secrets *s, struct str text)
{
    bool starts[256] = { 0 };

    for (size_t i = 0; i < COUNT_OF(forms); i++)
        starts[(unsigned char)forms[i].prefix.at[0]] = true;
    starts['-'] = starts['e'] = starts['c'] = starts['C'] = true;
    for (size_t i = 0; i < text.len; i++) {
        if (!starts[(unsigned char)text.at[i]] || (i && (char_is_alnum(text.at[i - 1]) || text.at[i - 1] == '_')))
            continue;
        struct str rest = str_of(text.at + i, text.len - i);
        if (is_private_key(rest))
            tell(s, "a private key", false, STR("-----BEGIN"));
        else if (is_jwt(rest))
            tell(s, "a signed token (JWT)", false, STR("eyJ"));
        else if (is_canary_link(rest))
            tell(s, "a canary link", true, STR("canarytokens"));
        for (size_t k = 0; k < COUNT_OF(forms); k++)
            if (form_matches(&forms[k], rest)) {
                tell(s, *forms[k].what ? forms[k].what : "a password in a link", forms[k].is_canary, forms[k].prefix);
                break;
            }
    }
}

static bool is_base64(char c)
{
    return char_is_alnum(c) || c == '+' || c == '/' || c == '-' || c == '_';
}

/* Runs of base64, also over several lines. Found ones are decoded and searched once. */
static void find_encoded_secrets(struct secrets *s, struct str text)
{
    struct arena arena;

    for (size_t i = 0; i < text.len;) {
        if (!is_base64(text.at[i])) {
            i++;
            continue;
        }
        size_t end = i, digits = 0, run = 0;
        /* A line end within a run only after a long line: else it would join words. */
        while (end < text.len && digits < DECODED_MOST &&
               (is_base64(text.at[end]) || (run >= BASE64_LEAST && (text.at[end] == '\n' || text.at[end] == '\r')))) {
            run = is_base64(text.at[end]) ? run + 1 : run;
            digits += is_base64(text.at[end]);
            end++;
        }
        if (digits >= BASE64_LEAST) {
            arena_init(&arena);
            char *packed = arena_alloc(&arena, digits + 1);
            unsigned char *room = arena_alloc(&arena, digits + 3);
            size_t len = 0, size;
            for (size_t k = i; k < end; k++)
                if (is_base64(text.at[k]))
                    packed[len++] = text.at[k];
            if (base64_decode(str_of(packed, len - len % 4), room, &size))
                find_secrets(s, str_of(room, size));
            arena_done(&arena);
        }
        i = end;
    }
}

static void scan_secrets(struct mail_content *content, struct arena *arena, const char *where, struct str text)
{
    struct secrets s = { .content = content, .arena = arena, .where = where };

    find_secrets(&s, text);
    find_encoded_secrets(&s, text);
}

/* ---- recipients that look like others ---- */

/* What a domain looks like: letters folded, "rn" as m, digits as the letters they resemble. */
static struct str skeleton(struct arena *arena, struct str domain)
{
    struct buf out = buf_make(arena, domain.len * 2 + 1);

    while (domain.len) {
        uint32_t c = text_next(&domain);
        char like = text_fold(c);
        switch (like) {
        case '0':
            like = 'o';
            break;
        case '1':
        case 'i':
            like = 'l';
            break;
        case '5':
            like = 's';
            break;
        default:
            break;
        }
        if (like == 'n' && out.len && out.data[out.len - 1] == 'r')
            out.data[out.len - 1] = 'm';
        else if (like == 'v' && out.len && out.data[out.len - 1] == 'v')
            out.data[out.len - 1] = 'w';
        else if (like)
            buf_add_char(&out, like);
        else if (c == '.' || c == '-')
            buf_add_char(&out, (char)c);
        else
            text_put(&out, c);
    }
    return buf_str(&out);
}

/* Letters of two scripts in one label: never the case in an honest name, except for scripts that are used together. */
static bool is_mixed(struct str domain)
{
    unsigned seen = 0;

    while (domain.len) {
        uint32_t c = text_next(&domain);
        if (c == '.')
            seen = 0;
        enum text_script script = text_script(c);
        if (script != SCRIPT_NONE && script != SCRIPT_OTHER)
            seen |= BIT(script);
        if (seen & (seen - 1))
            return true;
    }
    return false;
}

static bool is_ascii(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.at[i] >= 0x80)
            return false;
    return true;
}

static struct str domain_of(struct str address)
{
    for (size_t i = address.len; i; i--)
        if (address.at[i - 1] == '@')
            return str_of(address.at + i, address.len - i);
    return STR("");
}

static const struct str imitated[] = {
    STR_INIT("gmail.com"),     STR_INIT("google.com"),  STR_INIT("outlook.com"), STR_INIT("hotmail.com"),
    STR_INIT("microsoft.com"), STR_INIT("apple.com"),   STR_INIT("icloud.com"),  STR_INIT("paypal.com"),
    STR_INIT("amazon.com"),    STR_INIT("github.com"),  STR_INIT("yahoo.com"),   STR_INIT("linkedin.com"),
    STR_INIT("facebook.com"),  STR_INIT("dropbox.com"), STR_INIT("stripe.com"),  STR_INIT("proton.me"),
};

static bool looks_like(struct arena *arena, struct str shown, struct str like, struct str other)
{
    return other.len && !str_eq(shown, other) && str_eq(like, skeleton(arena, other));
}

struct str scan_lookalike(struct arena *arena, struct str domain, struct str own)
{
    struct str like = skeleton(arena, domain);

    for (size_t i = 0; i < COUNT_OF(imitated); i++)
        if (looks_like(arena, domain, like, imitated[i]))
            return imitated[i];
    return looks_like(arena, domain, like, own) ? own : STR("");
}

/* A name in other letters that all look like Latin ones: which name it would be in these. Empty: it is not such. */
static struct str latin_reading(struct arena *arena, struct str domain)
{
    struct buf out = buf_make(arena, domain.len + 1);
    bool foreign = false;

    while (domain.len) {
        uint32_t c = text_next(&domain);
        enum text_script script = text_script(c);
        char like = c == '.' || c == '-' ? (char)c : text_fold(c);
        if (!like)
            return STR("");
        foreign |= script != SCRIPT_NONE && script != SCRIPT_LATIN;
        buf_add_char(&out, like);
    }
    return foreign ? buf_str(&out) : STR("");
}

static void scan_recipient(struct mail_content *content, struct arena *arena, struct str address)
{
    struct str domain = domain_of(address), shown = address_domain_shown(arena, domain), like = skeleton(arena, shown),
               other = scan_lookalike(arena, shown, address_domain_shown(arena, domain_of(content->sender)));

    for (uint32_t i = 0; i < content->recipient_count && !other.len; i++)
        if (looks_like(arena, shown, like, address_domain_shown(arena, domain_of(content->recipients[i]))))
            other = domain_of(content->recipients[i]);
    if (!other.len)
        other = latin_reading(arena, shown);
    if (other.len)
        content_warn(content, arena, "lookalike", false,
                     arena_format(arena, "%.*s goes to the domain %.*s, which looks like %.*s but is another one.",
                                  STR_ARG(address), STR_ARG(shown), STR_ARG(other)));
    else if (is_mixed(shown))
        content_warn(content, arena, "lookalike", false,
                     arena_format(arena, "%.*s goes to the domain %.*s, which mixes letters of several scripts.",
                                  STR_ARG(address), STR_ARG(shown)));
    else if (!is_ascii(shown))
        content_warn(content, arena, "international_domain", false,
                     arena_format(arena, "%.*s goes to the domain %.*s.", STR_ARG(address), STR_ARG(shown)));
}

/* A name such as "ceo@bank.example" before another address. */
static void scan_name(struct mail_content *content, struct arena *arena, struct str shown)
{
    size_t open = shown.len;

    while (open && shown.at[open - 1] != '<')
        open--;
    if (!open)
        return;
    struct str name = str_of(shown.at, open - 1), bare = str_of(shown.at + open, shown.len - open - 1);
    for (size_t i = 1; i + 1 < name.len; i++)
        if (name.at[i] == '@' && name.at[i - 1] > ' ' && name.at[i + 1] > ' ') {
            struct str quoted = name;
            while (quoted.len && (quoted.at[0] == '"' || quoted.at[0] == ' '))
                quoted = str_of(quoted.at + 1, quoted.len - 1);
            if (!str_starts(quoted, bare))
                content_warn(content, arena, "misleading_name", false,
                             arena_format(arena,
                                          "The name of a recipient contains an address, but the mail goes to %.*s.",
                                          STR_ARG(bare)));
            return;
        }
}

/* ---- two parts that say different things ---- */

static unsigned word_hash(struct str *rest)
{
    unsigned hash = 5381;

    while (rest->len && !char_is_alnum(rest->at[0]) && (unsigned char)rest->at[0] < 0x80)
        *rest = str_of(rest->at + 1, rest->len - 1);
    while (rest->len && (char_is_alnum(rest->at[0]) || (unsigned char)rest->at[0] >= 0x80)) {
        hash = hash * 33 + (unsigned char)char_lower(rest->at[0]);
        *rest = str_of(rest->at + 1, rest->len - 1);
    }
    return hash % PARTS_WORDS;
}

/* Most programs show the HTML part. An approver who reads the text must hear of it when that says something else. */
static void scan_parts(struct mail_content *content, const struct html *html, struct arena *arena)
{
    bool *known = ARENA_ARRAY(arena, bool, PARTS_WORDS);
    size_t all = 0, unknown = 0;

    for (struct str rest = content->text; rest.len;)
        known[word_hash(&rest)] = true;
    for (struct str rest = html->text; rest.len;) {
        unsigned word = word_hash(&rest);
        all++;
        unknown += !known[word];
    }
    if (unknown >= PARTS_LEAST && unknown * 4 > all)
        content_warn(content, arena, "parts_differ", false,
                     arena_format(arena,
                                  "The HTML part has %zu of %zu words that the text part does not have: read both.",
                                  unknown, all));
}

void scan_outbound(struct mail_content *content, const struct html *html, struct arena *arena)
{
    scan_secrets(content, arena, "The subject", content->subject);
    scan_secrets(content, arena, "The text", content->text);
    if (html->text.len && !str_eq(html->text, content->text)) {
        scan_secrets(content, arena, "The HTML part", html->text);
        scan_parts(content, html, arena);
    }
    for (uint32_t i = 0; i < html->link_count; i++)
        scan_secrets(content, arena, "A link", html->links[i].href);
    for (uint32_t i = 0; i < content->attachment_count; i++) {
        const struct mail_attachment *a = &content->attachments[i];
        struct str where = arena_format(arena, "The attachment %.*s", STR_ARG(a->name));
        scan_secrets(content, arena, where.at, a->name);
        scan_secrets(content, arena, where.at, a->content);
    }
    for (uint32_t i = 0; i < content->recipient_count; i++)
        scan_recipient(content, arena, content->recipients[i]);
    for (uint32_t i = 0; i < content->to_count; i++)
        scan_name(content, arena, content->to[i]);
    for (uint32_t i = 0; i < content->cc_count; i++)
        scan_name(content, arena, content->cc[i]);
    for (uint32_t i = 0; i < content->bcc_count; i++)
        scan_name(content, arena, content->bcc[i]);
}
