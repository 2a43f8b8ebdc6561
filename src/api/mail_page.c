/*
 * The page behind an approval link: GET shows exactly what leaves, POST decides. No JavaScript, no cookies.
 *
 * The token in the path is the credential: it is unguessable, works once and expires. There is nothing else that a browser
 * would send by itself, so another site cannot decide for its visitor; a form that comes from another origin is refused
 * all the same. The form carries the hash of what was shown, and a message with another hash is not decided.
 *
 * Everything in the page that a stranger has written goes through text(), which escapes it. The message's own HTML, which
 * was sanitised when it was composed, is in a frame without scripts, forms or a network.
 */
#include "api/mail_page.h"

#include <stdlib.h>
#include <string.h>

#include "api/mail_multimail.h"
#include "base/clock.h"
#include "base/encode.h"

enum { PAGE_BYTES = 8 << 20 };

static const char style[] =
    ":root{color-scheme:light "
    "dark;--line:#d5d9de;--soft:#f4f6f8;--ink:#1b1f24;--dim:#5b6570;--bad:#a40e26;--badbg:#fdecee;"
    "--go:#116329;--goink:#fff}"
    "@media(prefers-color-scheme:dark){:root{--line:#3a4048;--soft:#20252b;--ink:#e8ebee;--dim:#9aa5b1;--bad:#ff9aa5;"
    "--badbg:#3b161b;--go:#2ea043;--goink:#fff}body{background:#14181c}}"
    "*{box-sizing:border-box}"
    "body{margin:0;font:16px/1.5 system-ui,sans-serif;color:var(--ink)}"
    "main{max-width:46rem;margin:0 auto;padding:1.5rem 1rem 3rem}"
    "h1{font-size:1.4rem;margin:.2rem 0 1rem}h2{font-size:1rem;margin:1.6rem 0 .4rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0;padding:1rem;border:1px solid "
    "var(--line);border-radius:8px}"
    "dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;padding:1rem;background:var(--soft);border-radius:8px;"
    "font:"
    "inherit}"
    ".old{color:var(--dim)}"
    ".warn{border-left:4px solid var(--bad);background:var(--badbg);padding:.6rem 1rem;margin:.5rem "
    "0;border-radius:4px}"
    "code{font:.85em ui-monospace,monospace;overflow-wrap:anywhere}"
    "iframe{width:100%;height:24rem;border:1px solid var(--line);border-radius:8px;background:#fff}"
    "ul{padding-left:1.2rem;margin:.3rem 0}"
    "form{margin-top:1.8rem;padding:1rem;border:1px solid var(--line);border-radius:8px}"
    "label{display:block;color:var(--dim);margin-bottom:.2rem}"
    "textarea{width:100%;font:inherit;padding:.5rem;border:1px solid var(--line);border-radius:6px;background:"
    "transparent;color:inherit}"
    ".act{display:flex;gap:.8rem;margin-top:1rem;flex-wrap:wrap}"
    "button{font:inherit;font-weight:600;padding:.6rem 1.4rem;border-radius:6px;border:1px solid "
    "var(--line);background:"
    "transparent;color:inherit;cursor:pointer}"
    "button.go{background:var(--go);border-color:var(--go);color:var(--goink)}"
    "p.note{color:var(--dim);font-size:.9rem}";

/* ---- writing ---- */

static void raw(struct request *rq, const char *html)
{
    buf_add(&rq->reply.body, str_from(html));
}

static void escape_to(struct buf *out, struct arena *arena, struct str text, bool shows_hidden)
{
    for (struct str rest = utf8_repair(arena, text); rest.len;) {
        const char *at = rest.at;
        uint32_t c = utf8_next(&rest);
        if (shows_hidden && utf8_is_hidden(c) && c != '\n' && c != '\t')
            buf_format(out, "&lt;U+%04X&gt;", c);
        else if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\'')
            buf_format(out, "&#%u;", c);
        else
            buf_add(out, str_of(at, (size_t)(rest.at - at)));
    }
}

/* Anything that a stranger may have written. */
static void text(struct request *rq, struct str value)
{
    escape_to(&rq->reply.body, rq->arena, value, true);
}

static void field(struct request *rq, const char *name, struct str value)
{
    if (!value.len)
        return;
    raw(rq, "<dt>");
    raw(rq, name);
    raw(rq, "</dt><dd>");
    text(rq, value);
    raw(rq, "</dd>");
}

static void list(struct request *rq, const char *name, const struct str *values, uint32_t count)
{
    if (!count)
        return;
    raw(rq, "<dt>");
    raw(rq, name);
    raw(rq, "</dt><dd>");
    for (uint32_t i = 0; i < count; i++) {
        raw(rq, i ? "<br>" : "");
        text(rq, values[i]);
    }
    raw(rq, "</dd>");
}

static void time_field(struct request *rq, const char *name, int64_t us)
{
    char room[CLOCK_TEXT_BYTES];

    if (us) {
        struct str text = arena_copy(rq->arena, str_from(clock_text(us, room))); /* 2026-11-16T09:44:45.093211Z */
        field(rq, name, arena_format(rq->arena, "%.10s %.5s UTC", text.at, text.len > 16 ? text.at + 11 : ""));
    }
}

static void page_begin(struct request *rq, unsigned status, const char *title)
{
    reply_empty(rq, status);
    rq->reply.body = buf_make(rq->arena, PAGE_BYTES);
    reply_field(rq, STR("Content-Type"), STR("text/html; charset=utf-8"));
    reply_field(rq, STR("Content-Security-Policy"),
                STR("default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
                    "frame-ancestors 'none'"));
    reply_field(rq, STR("Referrer-Policy"), STR("no-referrer"));
    reply_field(rq, STR("X-Content-Type-Options"), STR("nosniff"));
    reply_field(rq, STR("X-Robots-Tag"), STR("noindex"));
    reply_field(rq, STR("Cache-Control"), STR("no-store"));
    raw(rq, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width,initial-scale=1\"><title>");
    raw(rq, title);
    raw(rq, "</title><style>");
    raw(rq, style);
    raw(rq, "</style></head><body><main><h1>");
    raw(rq, title);
    raw(rq, "</h1>");
}

static void page_end(struct request *rq)
{
    raw(rq, "</main></body></html>\n");
}

static void short_page(struct request *rq, unsigned status, const char *title, struct str sentence)
{
    page_begin(rq, status, title);
    raw(rq, "<p>");
    text(rq, sentence);
    raw(rq, "</p>");
    page_end(rq);
}

/* Unknown, spent and expired links look the same: a guess learns nothing. */
static void reply_failure(struct request *rq, const struct err *err)
{
    if (err->kind == ERR_NOT_FOUND)
        short_page(rq, 404, "This link does not work",
                   STR("It was used already, has expired, or never existed. Nothing was decided now. Ask the operator "
                       "of this server for a new "
                       "link."));
    else if (err->kind == ERR_CONFLICT)
        short_page(rq, 409, "Nothing was decided", str_from(err->message));
    else if (err->kind == ERR_INVALID || err->kind == ERR_LIMIT)
        short_page(rq, 400, "Nothing was decided", str_from(err->message));
    else
        short_page(rq, 503, "Nothing was decided", reply_reference(rq, "The server could not do it now", err));
}

/* ---- showing ---- */

static bool is_among(struct str address, const struct str *shown, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (str_eq_nocase(mail_bare_address(shown[i]), address))
            return true;
    return false;
}

/* Recipients of the envelope that no list above has: automatic copies. */
static void copies(struct request *rq, const struct mail_content *content)
{
    uint32_t count = 0;
    struct str *rest = ARENA_ARRAY(rq->arena, struct str, content->recipient_count + 1);

    for (uint32_t i = 0; i < content->recipient_count; i++)
        if (!is_among(content->recipients[i], content->to, content->to_count) &&
            !is_among(content->recipients[i], content->cc, content->cc_count) &&
            !is_among(content->recipients[i], content->bcc, content->bcc_count))
            rest[count++] = content->recipients[i];
    list(rq, "Copy to", rest, count);
}

static struct str line_core(struct str line)
{
    while (line.len && (line.at[0] == '>' || line.at[0] == ' ' || line.at[0] == '\t'))
        line = str_of(line.at + 1, line.len - 1);
    return str_trim(line);
}

static int compare_lines(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    int order = memcmp(x->at, y->at, MIN(x->len, y->len));

    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* The lines of a text, sorted: a message may have very many, and each is looked up here. */
static struct str *sorted_lines(struct arena *arena, struct str body, size_t *out_count)
{
    size_t room = 1, count = 0;
    struct str line;

    for (size_t i = 0; i < body.len; i++)
        room += body.at[i] == '\n';
    struct str *lines = ARENA_ARRAY(arena, struct str, room);
    while (body.len && str_cut(&body, '\n', &line))
        if (line_core(line).len)
            lines[count++] = line_core(line);
    qsort(lines, count, sizeof *lines, compare_lines);
    *out_count = count;
    return lines;
}

/*
 * Lines that are quoted (">") and that the answered message has are dim. Others never are: a stranger could have written in
 * advance what the agent says, and the approver would overlook it.
 */
static void body_lines(struct request *rq, struct str body, struct str answered)
{
    size_t count;
    const struct str *old = sorted_lines(rq->arena, answered, &count);
    struct str line;

    raw(rq, "<pre>");
    while (body.len && str_cut(&body, '\n', &line)) {
        struct str core = line_core(line);
        bool is_old =
            core.len && count && str_starts(line, STR(">")) && bsearch(&core, old, count, sizeof core, compare_lines);
        raw(rq, is_old ? "<span class=\"old\">" : "");
        text(rq, line);
        raw(rq, is_old ? "</span>\n" : "\n");
    }
    raw(rq, "</pre>");
}

static void warnings(struct request *rq, const struct mail_content *content)
{
    for (uint32_t i = 0; i < content->warning_count; i++) {
        raw(rq, "<div class=\"warn\"><strong>Warning</strong> ");
        text(rq, content->warnings[i].detail);
        raw(rq, " <code>");
        text(rq, content->warnings[i].code);
        raw(rq, "</code></div>");
    }
}

static void attachments(struct request *rq, const struct mail_content *content)
{
    if (!content->attachment_count)
        return;
    raw(rq, "<h2>Attachments</h2><ul>");
    for (uint32_t i = 0; i < content->attachment_count; i++) {
        const struct mail_attachment *file = &content->attachments[i];
        /* Below the page's own address, whichever of its two that is. */
        raw(rq, "<li><a href=\"");
        text(rq, rq->match.params[0]);
        buf_format(&rq->reply.body, "/attachments/%u\">", i);
        text(rq, file->name.len ? file->name : STR("(no name)"));
        raw(rq, "</a>, ");
        text(rq, file->content_type);
        buf_format(&rq->reply.body, ", %llu bytes<br><code>sha256 ", (unsigned long long)file->size);
        text(rq, str_from(file->sha256));
        raw(rq, "</code></li>");
    }
    raw(rq, "</ul>");
}

/* Open if the agent has written it itself: then it may say something else than the text. */
static void html_view(struct request *rq, const struct mail_content *content)
{
    struct str html = content->html;
    bool is_raw = false;

    for (uint32_t i = 0; i < content->warning_count; i++)
        is_raw = is_raw || str_eq(content->warnings[i].code, STR("raw_html"));
    if (!html.len)
        return;
    raw(rq, is_raw ? "<details open>" : "<details>");
    raw(rq, "<summary>As HTML</summary><iframe sandbox title=\"The message as HTML\" srcdoc=\"");
    escape_to(&rq->reply.body, rq->arena, html, false);
    raw(rq, "\"></iframe></details>");
}

static void answered_view(struct request *rq, const struct held_message *held)
{
    if (!held->answered.has_content)
        return;
    raw(rq, "<h2>The message that it answers</h2><p class=\"note\">From ");
    text(rq, held->answered.content.from);
    raw(rq, "</p>");
    body_lines(rq, held->answered.content.text, STR(""));
}

static void form(struct request *rq, const struct mail_message *message)
{
    bool inbound = message->direction == MAIL_INBOUND;

    raw(rq, "<form method=\"post\"><input type=\"hidden\" name=\"sha256\" value=\"");
    text(rq, str_from(message->sha256));
    raw(rq, "\"><label for=\"reason\">Reason, for the agent and the audit</label>"
            "<textarea id=\"reason\" name=\"reason\" rows=\"2\" maxlength=\"1000\" autocomplete=\"off\"></textarea>"
            "<div class=\"act\"><button class=\"go\" name=\"decision\" value=\"approve\">");
    raw(rq, inbound ? "Show it to the agent" : "Approve and send");
    raw(rq, "</button><button name=\"decision\" value=\"reject\">Reject</button></div></form>");
    raw(rq, "<p class=\"note\">This link works once, for a day. Opening the page decides nothing.</p>");
}

void mail_page_show(struct request *rq)
{
    struct held_message held;
    struct err err;

    if (!action_approval_show(rq->actions, rq->match.params[0], rq->arena, &held, &err)) {
        reply_failure(rq, &err);
        return;
    }
    const struct mail_content *content = &held.message.content;
    bool inbound = held.message.direction == MAIL_INBOUND;
    page_begin(rq, 200, inbound ? "May the agent see this message?" : "May this message leave?");
    warnings(rq, content);
    raw(rq, "<dl>");
    field(rq, "From", content->from);
    list(rq, "To", content->to, content->to_count);
    list(rq, "Cc", content->cc, content->cc_count);
    list(rq, "Bcc", content->bcc, content->bcc_count);
    if (!inbound)
        copies(rq, content);
    field(rq, "Reply to", content->reply_to);
    field(rq, "Subject", content->subject.len ? content->subject : STR("(none)"));
    if (!str_eq(held.inbox.address, mail_bare_address(content->from)))
        field(rq, "Inbox", held.inbox.address);
    time_field(rq, "Leaves at", held.message.send_at_us);
    time_field(rq, "Decide by", held.message.hold_until_us);
    raw(rq, "</dl><h2>Text</h2>");
    body_lines(rq, content->text, held.answered.has_content ? held.answered.content.text : STR(""));
    html_view(rq, content);
    attachments(rq, content);
    answered_view(rq, &held);
    raw(rq,
        "<h2>What is approved</h2><p class=\"note\">Exactly the bytes and recipients with this hash: <code>sha256 ");
    text(rq, str_from(held.message.sha256));
    raw(rq, "</code></p>");
    form(rq, &held.message);
    page_end(rq);
}

void mail_page_attachment(struct request *rq)
{
    struct mail_attachment file;
    struct err err;

    if (action_approval_attachment(rq->actions, rq->match.params[0], rq->match.params[1], rq->arena, &file, &err))
        mail_reply_file(rq, &file);
    else
        reply_failure(rq, &err);
}

/* ---- deciding ---- */

/* A browser says where a form comes from. Programs that say nothing have the token, which no other site has. */
static bool is_from_here(const struct request *rq)
{
    const struct str *origin = http_header(&rq->ex->head, STR("Origin"));
    const struct str *host = http_header(&rq->ex->head, STR("Host"));
    const struct str *site = http_header(&rq->ex->head, STR("Sec-Fetch-Site"));

    if (site && !str_eq(*site, STR("same-origin")) && !str_eq(*site, STR("none")))
        return false;
    if (!origin || str_eq(*origin, STR("null"))) /* Referrer-Policy makes browsers send null */
        return true;
    struct str rest = *origin;
    return host && (str_skip(&rest, STR("https://")) || str_skip(&rest, STR("http://"))) && str_eq_nocase(rest, *host);
}

static bool form_field(struct request *rq, struct str name, struct str *out)
{
    struct str rest = rq->body, pair;

    while (rest.len && str_cut(&rest, '&', &pair)) {
        struct str value = pair, key;
        if (!str_has_char(pair, '=') || !str_cut(&value, '=', &key) || !str_eq(key, name))
            continue;
        return percent_decode(rq->arena, value, PERCENT_PLUS_IS_SPACE, out) && utf8_valid(*out);
    }
    return false;
}

void mail_page_decide(struct request *rq)
{
    struct str decision = STR(""), reason = STR(""), sha256 = STR("");
    struct mail_message message;
    struct err err;

    if (!is_from_here(rq)) {
        short_page(rq, 403, "Nothing was decided", STR("This form was not sent from the page of the message."));
        return;
    }
    (void)form_field(rq, STR("reason"), &reason); /* may be absent */
    bool approve = form_field(rq, STR("decision"), &decision) && str_eq(decision, STR("approve"));
    if ((!approve && !str_eq(decision, STR("reject"))) || !form_field(rq, STR("sha256"), &sha256) || !sha256.len) {
        (void)err_set(&err, ERR_INVALID,
                      "The form is not complete: open the link again, and press one of its buttons.");
        reply_failure(rq, &err);
        return;
    }
    if (!action_approval_decide(rq->actions, rq->match.params[0], approve, reason, sha256, rq->arena, &message, &err)) {
        reply_failure(rq, &err);
        return;
    }
    if (message.direction == MAIL_INBOUND)
        short_page(rq, 200, approve ? "Approved" : "Rejected",
                   approve ? STR("The agent can read the message now.") : STR("The agent will not see the message."));
    else
        short_page(rq, 200, approve ? "Approved" : "Rejected",
                   !approve                     ? STR("The message will not leave.")
                   : message.state == MAIL_SENT ? STR("The message has been delivered.")
                   : message.state == MAIL_UNDO ? STR("The message leaves in a moment; until then it can be cancelled.")
                   : message.state == MAIL_SCHEDULED ? STR("The message leaves at its time.")
                                                     : STR("The message is on its way."));
}
