/*
 * How much does a message try to instruct the agent that reads it?
 *
 * The text is normalised first: letters that look like Latin ones become these, case and invisible characters go, so that
 * an attacker gains nothing by them. Then
 *
 *   patterns  over words: "ignore … previous … instructions" with a few words allowed in between
 *   marks     over characters: tokens by which prompts are divided, calls of tools
 *   encodings base64, ROT13, s p a c e d letters: undone, and the result is read once more
 *
 * Each detector counts with its strongest finding; detectors are combined like independent probabilities. Text that was
 * hidden from a human reader counts more. All of it is deterministic and can be tried by an attacker: a low score proves
 * nothing.
 */
#include "mail/scan.h"

#include "base/encode.h"
#include "base/limits.h"
#include "mail/address.h"
#include "mail/text.h"

enum {
    WORD_MOST = 24,    /* longer words are cut: no pattern has such */
    GROUPS_MOST = 6,   /* of one pattern */
    BUCKETS = 512,     /* for first words */
    BASE64_LEAST = 24, /* characters of a run that is decoded */
    SPACED_LEAST = 6,  /* single letters in a row */
    HIDDEN_EXTRA = 35, /* for a finding in text that nobody sees */
    RISK_PERCENT = 50, /* from here on the flag is set */
    HONEST = 1 << 30,  /* beside the bits of scripts: a letter that looks like no Latin one */
    DETECTORS = 6,
};

/* ---- patterns over words ---- */

/*
 * Groups of words with how many other words may stand before the next group: "a|b 3 c* 0 d" is a or b, within the next
 * three words one that begins with c, and directly after it d.
 */
static const struct pattern {
    unsigned detector;
    unsigned percent;
    const char *words;
} patterns[] = {
    /* Override */
    { SCAN_OVERRIDE, 75,
      "ignore|ignoring|disregard|forget|override|bypass|neglect|discard|drop 4 "
      "previous|prior|above|earlier|preceding|original|initial|former|foregoing|existing 4 "
      "instruct*|prompt*|rule*|guideline*|direction*|directive*|command*|order*|context|polic*|training|constraint*" },
    { SCAN_OVERRIDE, 55,
      "ignore|disregard|forget|override|bypass 3 your|all|any 3 "
      "instruct*|prompt*|guideline*|directive*|programming|training|"
      "rules|restrictions|safeguards" },
    { SCAN_OVERRIDE, 60, "do 0 not 0 follow|obey 4 previous|prior|original|earlier|your 3 instruct*|rules|guidelines" },
    { SCAN_OVERRIDE, 50,
      "your 0 new|real|actual|updated|true 1 instruct*|task|goal|objective|mission|orders|directive*" },
    { SCAN_OVERRIDE, 45,
      "new|updated|override|important|special|urgent 0 instruct*|directive* 3 ai|assistant|agent|model|llm|bot" },
    { SCAN_OVERRIDE, 55,
      "not|dont|never|without 0 tell|telling|inform|informing|notify|notifying|alert|alerting|mention|mentioning 4 "
      "user|human|humans|operator|supervisor|approver|reviewer" },
    { SCAN_OVERRIDE, 50, "without 1 asking|waiting|requesting|needing 4 confirmation|permission|approval|user|human" },
    { SCAN_OVERRIDE, 75,
      "ignoriere|vergiss|missachte|ubergehe 4 vorherig*|bisherig*|obig*|vorangegangen*|alle 3 "
      "anweisung*|instruktion*|regeln|befehl*" },
    { SCAN_OVERRIDE, 75,
      "ignora|ignore|olvida|olvide|ignorez|oubliez|oublie|dimentica|esqueca|ignorar 4 "
      "instrucciones|instrucoes|istruzioni|consignes|reglas" },
    { SCAN_OVERRIDE, 75, "ignorez|oubliez|ignore|oublie 3 instructions 3 precedentes|anterieures" },
    /* Role */
    { SCAN_ROLE, 55,
      "you|youre|your 0 are|re|now 1 now|are 4 "
      "dan|jailbroken|unrestricted|uncensored|root|administrator|admin|evil|developer|"
      "hacker|unfiltered|sudo" },
    { SCAN_ROLE, 45, "from 0 now 0 on 1 you|your|always|respond|act|answer" },
    { SCAN_ROLE, 50,
      "act|behave|respond|roleplay|function|operate 0 as|like 4 "
      "administrator|admin|root|system|developer|unrestricted|dan|"
      "terminal|shell|assistant|agent|ai" },
    { SCAN_ROLE, 30, "pretend|imagine 1 you|to|that 1 are|be|you|have" },
    { SCAN_ROLE, 40, "developer|god|dan|sudo|jailbreak|admin|unrestricted 0 mode" },
    { SCAN_ROLE, 50, "i 0 am 2 your|the 2 developer|creator|operator|owner|master|administrator|admin" },
    { SCAN_ROLE, 60, "if 0 you 0 are|re 2 ai|llm|language|chatbot|automated|bot|gpt|model|assistant" },
    { SCAN_ROLE, 50,
      "ai|llm|assistant|agent|model|chatbot|gpt|claude|chatgpt|copilot|gemini 3 "
      "reading|processing|summarizing|summarising|parsing 2 this" },
    { SCAN_ROLE, 50,
      "attention|dear|hey|hello|note|message|instructions|to 3 ai|llm|chatgpt|gpt|claude|copilot|gemini 1 "
      "assistant*|agent*|model*|system*|bot*|reader*" },
    { SCAN_ROLE, 40, "as 2 ai|llm|language 1 assistant|model|agent 4 must|should|have|need|will" },
    /* Exfiltration */
    { SCAN_EXFILTRATION, 60,
      "reveal|print|show|repeat|output|leak|disclose|dump|expose|display|recite|tell 4 "
      "system|hidden|initial|internal|your|"
      "secret 2 prompt*|instruct*|configuration|guidelines" },
    { SCAN_EXFILTRATION, 60,
      "send|forward|email|mail|share|transmit|post|upload|exfiltrate|leak|copy|reveal|paste|include|append|encode 6 "
      "apikey*|credential*|passwords|secrets|token|tokens|cookies 3 to|here|into|url|link" },
    { SCAN_EXFILTRATION, 55,
      "send|forward|share|reveal|give|provide|paste|include|print|leak|post 4 api|private|secret|access|ssh 0 "
      "key|keys|token*" },
    { SCAN_EXFILTRATION, 55,
      "forward|send|share|export|copy|bcc|summarize|collect 2 all|every|each|entire|latest|recent|last|other 4 "
      "email*|mail|mails|message*|inbox|contact*|conversation*|attachment*|chat* 8 to" },
    { SCAN_EXFILTRATION, 45,
      "search|look|scan 3 inbox|mailbox|emails|messages|files 6 "
      "password*|credential*|code|codes|token*|invoice*|reset" },
    { SCAN_EXFILTRATION, 50,
      "append|add|encode|include|embed 5 url|link|image|query|parameter 5 "
      "data|contents|conversation|secret*|history|base64" },
    /* Tools */
    { SCAN_TOOL, 50,
      "call|invoke|use|trigger|execute 1 your|available 2 tool|tools|function|functions|plugin|plugins" },
    { SCAN_TOOL, 45, "call|invoke|use|trigger 0 the 2 tool 1 to|and|with|now" },
    { SCAN_TOOL, 45, "call|invoke|use|trigger 3 mcp 2 tool|tools|server" },
    { SCAN_TOOL, 35, "execute|run 3 following|this|these 2 command*|code|script|shell|python|bash|powershell" },
    { SCAN_TOOL, 50,
      "delete|remove|erase|wipe|purge|archive 2 all|every|entire 4 "
      "email*|message*|file*|inbox|mailbox|records|backups" },
    { SCAN_TOOL, 40,
      "automatically|immediately|silently|secretly|quietly 3 "
      "approve|transfer|pay|wire|forward|delete|execute|run|reply|send" },
    { SCAN_TOOL, 45, "reply|respond 3 with|including|containing 4 contents|password*|token*|key*|full|entire|all" },
    { SCAN_TOOL, 45, "change|lower|disable|turn|set|raise 4 oversight|gate|approval|allowlist|autonomous|moderation" },
};

/* Signs of pressure on people; two different kinds together are social engineering. */
static const struct pattern pressures[] = {
    { 1, 0, "urgent*|immediately|asap 12 act|respond|pay|verify|confirm|transfer|reply|action|purchase|click|send" },
    { 1, 0, "within 1 24|48|12|hour|hours|minutes 1 or|hours|hour" },
    { 1, 0, "final|last 0 notice|warning|reminder|chance" },
    { 2, 0, "gift 0 card|cards" },
    { 2, 0, "wire|bank 0 transfer" },
    { 2, 0, "bitcoin|btc|ethereum|usdt 4 wallet|address|transfer|send" },
    { 2, 0, "change|update|new 3 bank|payment|account 1 details|account|information|instructions" },
    { 2, 0, "verify|confirm|validate|update 3 account|identity|password|credentials|billing|login" },
    { 2, 0, "account 4 suspended|locked|limited|deactivated|terminated|closed" },
    { 2, 0, "send|share|give|tell|read 3 code|otp|password|pin" },
    { 4, 0, "keep|stay 3 confidential|secret|between|quiet" },
    { 4, 0, "do 0 not 1 discuss|tell|share|call|contact|mention" },
    { 4, 0, "ceo|cfo|director|president|chairman|boss|irs|fbi|police" },
    { 4, 0, "i 1 am|m 2 meeting|conference|travelling|traveling" },
};

struct word {
    const char *at;
    unsigned len;
};

struct words {
    struct word *list;
    size_t count;
};

static bool word_matches(const struct word *word, struct str group)
{
    struct str one;

    while (group.len && str_cut(&group, '|', &one)) {
        bool prefix = str_ends(one, STR("*"));
        size_t len = one.len - prefix;
        if ((prefix ? word->len >= len : word->len == len) && memcmp(word->at, one.at, len) == 0)
            return true;
    }
    return false;
}

/* The groups of a pattern, and how many words may stand before each. */
struct groups {
    struct str group[GROUPS_MOST];
    unsigned gap[GROUPS_MOST];
    size_t count;
};

static void groups_parse(const char *text, struct groups *out)
{
    struct str rest = str_from(text), part;

    *out = (struct groups){ 0 };
    for (bool is_gap = false; rest.len && out->count < GROUPS_MOST && str_cut(&rest, ' ', &part); is_gap = !is_gap) {
        if (is_gap) {
            for (size_t i = 0; i < part.len; i++)
                out->gap[out->count] = 10 * out->gap[out->count] + (unsigned)(part.at[i] - '0');
        } else {
            out->group[out->count++] = part;
        }
    }
}

static bool matches_at(const struct words *words, size_t at, const struct groups *groups)
{
    for (size_t g = 1; g < groups->count; g++) {
        bool found = false;
        for (size_t i = at + 1; i <= at + 1 + groups->gap[g] && i < words->count && !found; i++)
            if (word_matches(&words->list[i], groups->group[g])) {
                at = i;
                found = true;
            }
        if (!found)
            return false;
    }
    return true;
}

/* Which first words there are, so that most words of a text cost one look. A group's word with * counts by four letters. */
static unsigned bucket_of(const char *at, size_t len)
{
    unsigned hash = 5381;

    for (size_t i = 0; i < MIN(len, (size_t)4); i++)
        hash = hash * 33 + (unsigned char)at[i];
    return hash % BUCKETS;
}

struct matcher {
    struct groups groups[COUNT_OF(patterns)];
    uint64_t starts[BUCKETS]; /* a bit for each pattern */
    size_t count;
};
_Static_assert(COUNT_OF(patterns) <= 64 && COUNT_OF(pressures) <= 64, "a bit for each pattern");

static void matcher_init(struct matcher *m, const struct pattern *list, size_t count)
{
    *m = (struct matcher){ .count = count };
    for (size_t i = 0; i < count; i++) {
        groups_parse(list[i].words, &m->groups[i]);
        for (struct str one, rest = m->groups[i].group[0]; rest.len && str_cut(&rest, '|', &one);) {
            size_t len = one.len - str_ends(one, STR("*"));
            m->starts[bucket_of(one.at, len)] |= UINT64_C(1) << i;
        }
    }
}

/* A bit for each pattern that is found. */
static uint64_t matcher_run(const struct matcher *m, const struct words *words)
{
    uint64_t found = 0;

    for (size_t at = 0; at < words->count; at++) {
        const struct word *word = &words->list[at];
        uint64_t tries = m->starts[bucket_of(word->at, word->len)] & ~found;
        for (size_t i = 0; tries && i < m->count; i++)
            if (tries & UINT64_C(1) << i && word_matches(word, m->groups[i].group[0]) &&
                matches_at(words, at, &m->groups[i]))
                found |= UINT64_C(1) << i;
    }
    return found;
}

/* ---- normalised text ---- */

struct normal {
    struct str text;    /* ASCII, lower case, look-alikes folded, other characters as spaces, runs of spaces as one */
    struct words words; /* of it */
    size_t mixed;       /* words with letters of two scripts */
    size_t spaced;      /* runs of single letters… */
    struct str joined;  /* …and these without their spaces */
};

/* "1gn0re": only in words that have letters too. */
static char unleet(char c)
{
    static const char from[] = "013457", to[] = "oieast";
    const char *at = c ? strchr(from, c) : NULL;

    return at ? to[at - from] : c;
}

static void words_make(struct arena *arena, struct str text, struct words *out)
{
    char *room = arena_alloc(arena, text.len + 1);

    out->list = ARENA_ARRAY(arena, struct word, text.len / 2 + 1);
    for (size_t i = 0; i < text.len;) {
        size_t from = i;
        bool letters = false, digits = false;
        /* An apostrophe is no end: "don't" is one word. */
        for (; i < text.len && (char_is_alnum(text.at[i]) || (text.at[i] == '\'' && i > from)); i++) {
            letters |= char_is_letter(text.at[i]);
            digits |= char_is_digit(text.at[i]);
        }
        if (i == from) {
            i++;
            continue;
        }
        struct word *word = &out->list[out->count++];
        word->at = room + from;
        for (size_t k = from; k < i && word->len < WORD_MOST; k++)
            if (text.at[k] != '\'')
                room[from + word->len++] = letters && digits ? unleet(text.at[k]) : text.at[k];
    }
}

static void spaced_find(struct arena *arena, struct normal *n)
{
    struct buf joined = buf_make(arena, n->text.len + 1);

    for (size_t i = 0; i < n->words.count;) {
        size_t from = i;
        while (i < n->words.count && n->words.list[i].len == 1 && char_is_letter(n->words.list[i].at[0]))
            i++;
        if (i - from >= SPACED_LEAST) {
            n->spaced++;
            for (size_t k = from; k < i; k++)
                buf_add_char(&joined, n->words.list[k].at[0]);
            buf_add_char(&joined, ' ');
        }
        i += i == from;
    }
    n->joined = buf_str(&joined);
}

static bool is_mixed(unsigned scripts)
{
    return !(scripts & HONEST) && (scripts & (scripts - 1)) != 0;
}

static void normalise(struct arena *arena, struct str text, struct normal *out)
{
    struct buf plain = buf_make(arena, text.len + 1);
    unsigned scripts = 0;

    *out = (struct normal){ 0 };
    while (text.len) {
        uint32_t c = text_next(&text);
        char like = text_fold(c);
        enum text_script script = text_script(c);
        if (text_is_invisible(c))
            continue;
        if (script == SCRIPT_NONE || script == SCRIPT_OTHER) {
            out->mixed += is_mixed(scripts);
            scripts = 0;
        } else {
            /* "kΩ" deceives nobody: only letters that look like Latin ones count. */
            scripts |= script == SCRIPT_LATIN || like ? BIT(script) : HONEST;
        }
        if (!like)
            like = c > ' ' && c < 0x7F ? (char)c : c == 0x2019 ? '\'' : c == '\n' ? '\n' : ' ';
        bool is_space = like == ' ' || like == '\n';
        if (is_space && plain.len && (plain.data[plain.len - 1] == ' ' || plain.data[plain.len - 1] == '\n')) {
            if (like == '\n')
                plain.data[plain.len - 1] = '\n';
            continue;
        }
        buf_add_char(&plain, like);
    }
    out->mixed += is_mixed(scripts);
    out->text = buf_str(&plain);
    words_make(arena, out->text, &out->words);
    spaced_find(arena, out);
}

static bool has(struct str text, struct str part)
{
    return text.len && memmem(text.at, text.len, part.at, part.len) != NULL;
}

/* ---- marks ---- */

static const struct mark {
    unsigned detector, percent;
    struct str text; /* as it looks when normalised; \n: at the start of a line */
} marks[] = {
    { SCAN_BOUNDARY, 75, STR_INIT("<|im_start|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|im_end|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|system|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|assistant|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|user|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|endoftext|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|eot_id|>") },
    { SCAN_BOUNDARY, 75, STR_INIT("<|start_header_id|>") },
    { SCAN_BOUNDARY, 70, STR_INIT("[/inst]") },
    { SCAN_BOUNDARY, 70, STR_INIT("[inst]") },
    { SCAN_BOUNDARY, 75, STR_INIT("<<sys>>") },
    { SCAN_BOUNDARY, 60, STR_INIT("<system>") },
    { SCAN_BOUNDARY, 60, STR_INIT("</system>") },
    { SCAN_BOUNDARY, 60, STR_INIT("<system-") },
    { SCAN_BOUNDARY, 60, STR_INIT("<assistant>") },
    { SCAN_BOUNDARY, 55, STR_INIT("### system") },
    { SCAN_BOUNDARY, 50, STR_INIT("### instruction") },
    { SCAN_BOUNDARY, 60, STR_INIT("\nsystem prompt:") },
    { SCAN_BOUNDARY, 55, STR_INIT("\n[system]") },
    { SCAN_BOUNDARY, 45, STR_INIT("\nsystem:") },
    { SCAN_BOUNDARY, 40, STR_INIT("\nassistant:") },
    { SCAN_BOUNDARY, 75, STR_INIT("untrusted email data") },
    { SCAN_BOUNDARY, 75, STR_INIT("email_content_end") },
    { SCAN_BOUNDARY, 75, STR_INIT("email_content_start") },
    { SCAN_BOUNDARY, 50, STR_INIT("end of email") },
    { SCAN_BOUNDARY, 50, STR_INIT("end of untrusted") },
    { SCAN_BOUNDARY, 50, STR_INIT("end of user input") },
    { SCAN_BOUNDARY, 50, STR_INIT("begin system") },
    { SCAN_TOOL, 65, STR_INIT("<tool_call") },
    { SCAN_TOOL, 65, STR_INIT("<function_call") },
    { SCAN_TOOL, 60, STR_INIT("\"tool_use\"") },
    { SCAN_TOOL, 60, STR_INIT("\"tool_calls\"") },
    { SCAN_TOOL, 60, STR_INIT("<invoke name=") },
    { SCAN_TOOL, 55, STR_INIT("send_email(") },
    { SCAN_TOOL, 45, STR_INIT("| bash") },
    { SCAN_TOOL, 45, STR_INIT("| sh\n") },
    { SCAN_TOOL, 45, STR_INIT("rm -rf /") },
    { SCAN_TOOL, 35, STR_INIT("os.system(") },
};

/* ---- putting it together ---- */

struct scan {
    unsigned percent[DETECTORS]; /* the strongest finding of each */
    const struct matcher *matcher;
    struct arena *arena;
};

static void note(struct scan *s, unsigned detector, unsigned percent)
{
    for (unsigned i = 0; i < DETECTORS; i++)
        if (detector == BIT(i))
            s->percent[i] = MAX(s->percent[i], percent);
}

/* What the words and marks of one text say; `extra` for text that is hidden. True: something was found. */
static bool read_plain(struct scan *s, const struct normal *n, unsigned extra)
{
    uint64_t found = matcher_run(s->matcher, &n->words);
    bool any = found != 0;

    for (size_t i = 0; i < COUNT_OF(patterns); i++)
        if (found & UINT64_C(1) << i)
            note(s, patterns[i].detector, MIN(patterns[i].percent + extra, 95u));
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        struct str mark = marks[i].text;
        bool at_start = mark.at[0] == '\n' && str_starts(n->text, str_of(mark.at + 1, mark.len - 1));
        if (at_start || has(n->text, mark)) {
            note(s, marks[i].detector, MIN(marks[i].percent + extra, 95u));
            any = true;
        }
    }
    return any;
}

static bool is_base64(char c)
{
    return char_is_alnum(c) || c == '+' || c == '/';
}

static bool is_readable(const unsigned char *bytes, size_t len)
{
    size_t words = 0;

    for (size_t i = 0; i < len; i++) {
        if (bytes[i] < ' ' && bytes[i] != '\n' && bytes[i] != '\r' && bytes[i] != '\t')
            return false;
        words += bytes[i] == ' ';
    }
    return words > 0;
}

/* Sentences in base64. */
static void read_base64(struct scan *s, struct str text)
{
    for (size_t i = 0; i < text.len;) {
        size_t end = i, len;
        while (end < text.len && is_base64(text.at[end]))
            end++;
        struct str run = str_of(text.at + i, end - i);
        i = end + 1;
        if (run.len < BASE64_LEAST)
            continue;
        unsigned char *room = arena_alloc(s->arena, run.len + 3);
        run.len -= run.len % 4;
        if (!base64_decode(run, room, &len) || !is_readable(room, len))
            continue;
        struct normal decoded;
        normalise(s->arena, str_of(room, len), &decoded);
        note(s, SCAN_ENCODING, read_plain(s, &decoded, 0) ? 70 : 20);
    }
}

static void read_rot13(struct scan *s, const struct normal *n)
{
    struct normal turned = { 0 };
    char *room = arena_alloc(s->arena, n->text.len + 1);

    for (size_t i = 0; i < n->text.len; i++)
        room[i] = char_is_letter(n->text.at[i]) ? (char)('a' + (n->text.at[i] - 'a' + 13) % 26) : n->text.at[i];
    turned.text = str_of(room, n->text.len);
    words_make(s->arena, turned.text, &turned.words);
    if (matcher_run(s->matcher, &turned.words))
        note(s, SCAN_ENCODING, 70);
}

static void read_text(struct scan *s, struct str text, unsigned extra)
{
    static const struct str telling[] = { STR_INIT("ignore"),   STR_INIT("instruct"),  STR_INIT("system"),
                                          STR_INIT("password"), STR_INIT("disregard"), STR_INIT("previous") };
    struct normal n;

    if (!text.len)
        return;
    normalise(s->arena, text, &n);
    if (read_plain(s, &n, extra) && extra)
        note(s, SCAN_ENCODING, HIDDEN_EXTRA);
    if (n.mixed >= 2)
        note(s, SCAN_ENCODING, n.mixed >= 5 ? 45 : 30); /* alone it is no attack */
    if (n.spaced) {
        note(s, SCAN_ENCODING, 15);
        for (size_t i = 0; i < COUNT_OF(telling); i++)
            if (has(n.joined, telling[i]))
                note(s, SCAN_ENCODING, 60);
    }
    read_base64(s, text);
    read_rot13(s, &n);
}

/* ---- links and senders ---- */

static struct str host_of(struct str url)
{
    size_t end = 0;

    if (!str_skip_nocase(&url, STR("https://")) && !str_skip_nocase(&url, STR("http://")))
        return STR("");
    while (end < url.len && (unsigned char)url.at[end] > ' ' && !strchr("/?#<>\"')]", url.at[end]))
        end++;
    return str_of(url.at, end);
}

static struct str without_www(struct str host)
{
    (void)str_skip_nocase(&host, STR("www."));
    return host;
}

/* a.b.example and b.example belong together. */
static bool is_related(struct str a, struct str b)
{
    if (a.len < b.len) {
        struct str swap = a;
        a = b;
        b = swap;
    }
    return str_eq_nocase(str_of(a.at + a.len - b.len, b.len), b) && (a.len == b.len || a.at[a.len - b.len - 1] == '.');
}

static bool is_ip(struct str host)
{
    for (size_t i = 0; i < host.len; i++)
        if (!char_is_digit(host.at[i]) && host.at[i] != '.' && host.at[i] != ':')
            return false;
    return host.len > 0;
}

static bool host_is_suspect(struct arena *arena, struct str host, struct str own)
{
    struct str name, rest = host;

    if (str_has_char(host, '@') || is_ip(host) || (host.len && host.at[0] == '['))
        return true;
    (void)str_cut(&rest, ':', &name);
    name = without_www(name);
    return scan_lookalike(arena, address_domain_shown(arena, name), own).len > 0;
}

/* Does the text of a link name a host? "www.bank.example/login", "https://bank.example". */
static struct str shown_host(struct str text)
{
    struct str host = host_of(text);
    size_t dots = 0;

    if (host.len)
        return host;
    for (size_t i = 0; i < text.len && text.at[i] != '/'; i++) {
        char c = text.at[i];
        if (!char_is_alnum(c) && c != '.' && c != '-')
            return STR("");
        dots += c == '.' && i > 0 && i + 2 < text.len && char_is_letter(text.at[i + 1]);
        host = str_of(text.at, i + 1);
    }
    return dots ? host : STR("");
}

static bool link_is_suspect(struct arena *arena, const struct html_link *link, struct str own)
{
    struct str host = host_of(link->href), shown = shown_host(str_trim(link->text));

    if (!host.len)
        return false;
    return host_is_suspect(arena, host, own) || (shown.len && !is_related(without_www(shown), without_www(host)));
}

static bool text_has_suspect_link(struct arena *arena, struct str text, struct str own)
{
    for (size_t i = 0, links = 0; i + 8 < text.len && links < 1000; i++) {
        struct str host = text.at[i] == 'h' || text.at[i] == 'H' ? host_of(str_of(text.at + i, text.len - i)) : STR("");
        if (!host.len)
            continue;
        if (host_is_suspect(arena, text_cut(host, LIMIT_NET_NAME_BYTES), own))
            return true;
        i += host.len;
        links++;
    }
    return false;
}

static struct str domain_of(struct str shown)
{
    size_t at = shown.len;

    while (at && shown.at[at - 1] != '@')
        at--;
    if (!at)
        return STR("");
    shown = str_of(shown.at + at, shown.len - at);
    if (str_ends(shown, STR(">")))
        shown.len--;
    return shown;
}

/* The name before the address is another address. */
static bool name_is_false(const struct mail_content *c)
{
    struct str name = c->from;
    size_t open = name.len;

    while (open && name.at[open - 1] != '<')
        open--;
    if (!open)
        return false;
    name.len = open - 1;
    for (size_t i = 1; i + 4 < name.len; i++)
        if (name.at[i] == '@' && char_is_alnum(name.at[i - 1]) && char_is_alnum(name.at[i + 1])) {
            size_t end = i + 1;
            while (end < name.len && (char_is_alnum(name.at[end]) || name.at[end] == '.' || name.at[end] == '-'))
                end++;
            return !is_related(str_of(name.at + i + 1, end - i - 1), domain_of(c->sender));
        }
    return false;
}

static bool sender_is_suspect(const struct mail_content *c, struct arena *arena, struct str own)
{
    for (uint32_t i = 0; i < c->warning_count; i++)
        if (str_eq(c->warnings[i].code, STR("several_senders")))
            return true;
    return name_is_false(c) || scan_lookalike(arena, address_domain_shown(arena, domain_of(c->sender)), own).len > 0;
}

static bool is_pressing(struct scan *s, struct str text)
{
    struct matcher *m = ARENA_NEW(s->arena, struct matcher);
    struct normal n;
    unsigned kinds = 0;

    matcher_init(m, pressures, COUNT_OF(pressures));
    normalise(s->arena, text, &n);
    uint64_t found = matcher_run(m, &n.words);
    for (size_t i = 0; i < COUNT_OF(pressures); i++)
        if (found & UINT64_C(1) << i)
            kinds |= pressures[i].detector;
    return (kinds & 2) && (kinds & 5);
}

struct scan_result scan_inbound(const struct mail_content *c, const struct html *html, struct arena *arena)
{
    struct matcher *matcher = ARENA_NEW(arena, struct matcher);
    struct scan s = { .matcher = matcher, .arena = arena };
    struct scan_result result = { 0 };
    struct str own = c->to_count ? domain_of(c->to[0]) : STR("");
    unsigned clean = 1000;

    matcher_init(matcher, patterns, COUNT_OF(patterns));
    read_text(&s, c->subject, 0);
    read_text(&s, c->text, 0);
    if (html->text.len && !str_eq(html->text, c->text))
        read_text(&s, html->text, 0);
    read_text(&s, html->hidden, HIDDEN_EXTRA);
    read_text(&s, c->from, 0);
    for (uint32_t i = 0; i < c->attachment_count; i++)
        read_text(&s, c->attachments[i].name, 0);
    if (html->invisible >= 3)
        note(&s, SCAN_ENCODING, html->invisible >= 20 ? 30 : 15);

    for (unsigned i = 0; i < DETECTORS; i++) {
        clean = clean * (100 - s.percent[i]) / 100;
        if (s.percent[i])
            result.detectors |= BIT(i);
    }
    result.percent = (1000 - clean) / 10;
    if (result.percent >= RISK_PERCENT)
        result.flags |= SCAN_PROMPT_INJECTION;
    bool phishing = text_has_suspect_link(arena, c->text, own);
    for (uint32_t i = 0; i < html->link_count && !phishing; i++)
        phishing = link_is_suspect(arena, &html->links[i], own);
    if (phishing)
        result.flags |= SCAN_PHISHING_URL;
    if (sender_is_suspect(c, arena, own))
        result.flags |= SCAN_SPOOFED_SENDER;
    if (is_pressing(&s, c->text) || is_pressing(&s, c->subject))
        result.flags |= SCAN_SOCIAL_ENGINEERING;
    return result;
}

void scan_warn(struct mail_content *content, const struct scan_result *result, struct arena *arena)
{
    if (result->flags & SCAN_PROMPT_INJECTION)
        content_warn(
            content, arena, "injection", false,
            arena_format(arena, "The text tries to instruct the program that reads it (%u of 100).", result->percent));
}

void scan_note(struct mail_content *content, const struct scan_result *result, struct arena *arena)
{
    static const struct str names[] = { STR_INIT("prompt_injection"), STR_INIT("phishing_url"),
                                        STR_INIT("spoofed_sender"), STR_INIT("social_engineering") };

    content->injection_percent = result->percent;
    content->flags = ARENA_ARRAY(arena, struct str, COUNT_OF(names));
    content->flag_count = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (result->flags & BIT(i))
            content->flags[content->flag_count++] = names[i];
    scan_warn(content, result, arena);
}
