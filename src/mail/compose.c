/*
 * Theory of operation. A draft is checked field by field before GMime sees it: no text that becomes a header has a control
 * character, each address is exactly one, each Message-ID has its form. Header injection is impossible after that; the
 * finished bytes are checked all the same: the head may have only headers that we have set, each once, and no line of the
 * message ends in another way than CR LF.
 *
 *   text/plain                          only text was given
 *   multipart/alternative               Markdown (its source is the text), or HTML
 *     text/plain, text/html
 *   multipart/mixed                     with attachments: one of the above, then each attachment
 *
 * The HTML is the sanitiser's output, never the caller's. Boundaries come from the Message-ID, the date from the draft: the
 * same draft gives the same bytes.
 */
#include "mail/compose.h"

#include <cmark-gfm-core-extensions.h>
#include <cmark-gfm-extension_api.h>
#include <cmark-gfm.h>
#include <gmime/gmime.h>
#include <iconv.h>
#include <sodium.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/limits.h"
#include "base/mem.h"
#include "mail/address.h"
#include "mail/budget.h"
#include "mail/content_pack.h"
#include "mail/html.h"
#include "mail/scan.h"
#include "mail/text.h"
#include "privsep/frame.h"
#include "privsep/message.h"

enum { NAME_MOST = 256, BOUNDARY_BYTES = 16, LINE_MOST = 998 };

/* ---- small things ---- */

void content_sha256(struct str bytes, char out[MAIL_HASH_TEXT_BYTES])
{
    unsigned char hash[crypto_hash_sha256_BYTES];

    crypto_hash_sha256(hash, (const unsigned char *)bytes.at, bytes.len);
    hex_text(str_of(hash, sizeof hash), out);
}

bool message_id_valid(struct str id)
{
    if (id.len < 5 || id.len > LIMIT_MAIL_MESSAGE_ID_BYTES || id.at[0] != '<' || id.at[id.len - 1] != '>')
        return false;
    for (size_t i = 1; i + 1 < id.len; i++)
        if (id.at[i] <= ' ' || id.at[i] >= 0x7F || id.at[i] == '<' || id.at[i] == '>' || id.at[i] == ',')
            return false;
    return str_has_char(id, '@');
}

/* ---- file names ---- */

/* Windows opens a device instead of a file of such a name, also with an extension. */
static bool is_reserved_name(struct str name)
{
    static const struct str devices[] = { STR_INIT("CON"), STR_INIT("PRN"), STR_INIT("AUX"), STR_INIT("NUL") };
    struct str base = STR("");

    (void)str_cut(&name, '.', &base);
    base = str_trim(base);
    for (size_t i = 0; i < COUNT_OF(devices); i++)
        if (str_eq_nocase(base, devices[i]))
            return true;
    return base.len == 4 && char_is_digit(base.at[3]) &&
           (str_skip_nocase(&base, STR("COM")) || str_skip_nocase(&base, STR("LPT")));
}

static struct str extension_of(struct str name)
{
    for (size_t i = name.len; i > 1 && name.len - i < 16; i--)
        if (name.at[i - 1] == '.')
            return str_of(name.at + i - 1, name.len - i + 1);
    return STR("");
}

static bool is_taken(struct str name, const struct mail_attachment *taken, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq_nocase(taken[i].name, name))
            return true;
    return false;
}

struct str file_name_clean(struct arena *arena, struct str name, const struct mail_attachment *taken, size_t count)
{
    struct buf out;

    name = text_clean(arena, name, TEXT_LINE, NULL);
    for (size_t i = name.len; i; i--)
        if (name.at[i - 1] == '/' || name.at[i - 1] == '\\') {
            name = str_of(name.at + i, name.len - i);
            break;
        }
    while (name.len && (name.at[0] == '.' || name.at[0] == ' '))
        name = str_of(name.at + 1, name.len - 1);
    while (name.len && (name.at[name.len - 1] == '.' || name.at[name.len - 1] == ' '))
        name.len--;
    if (!name.len)
        name = STR("attachment");
    out = buf_make(arena, 2 * name.len + 2);
    if (is_reserved_name(name))
        buf_add_char(&out, '_');
    for (size_t i = 0; i < name.len; i++)
        buf_add_char(&out, strchr("<>:\"|?*", name.at[i]) ? '_' : name.at[i]);
    name = buf_str(&out);
    struct str extension = extension_of(name);
    struct str stem =
        text_cut(str_of(name.at, name.len - extension.len), LIMIT_MAIL_FILE_NAME_BYTES - 8 - extension.len);
    name = arena_format(arena, "%.*s%.*s", STR_ARG(stem), STR_ARG(extension));
    /* Attachments are fetched by name. */
    for (size_t i = count < 16 ? 2 : count + 1; is_taken(name, taken, count); i++)
        name = arena_format(arena, "%.*s (%zu)%.*s", STR_ARG(stem), i, STR_ARG(extension));
    return name;
}

/* ---- recipients ---- */

static bool name_check(struct str name, const char *field, struct err *err)
{
    return name.len <= NAME_MOST ? true
                                 : err_set(err, ERR_INVALID, "%s has a name of more than %d bytes", field, NAME_MOST);
}

static bool list_parse(const struct str *list, uint32_t count, const char *field, struct arena *arena,
                       struct address *out, struct err *err)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!mail_address_parse(list[i], field, arena, &out[i], err) || !name_check(out[i].name, field, err))
            return false;
    }
    return true;
}

static struct str *list_shown(const struct address *list, uint32_t count, struct arena *arena)
{
    struct str *shown = ARENA_ARRAY(arena, struct str, count);

    for (uint32_t i = 0; i < count; i++)
        shown[i] = address_shown(arena, &list[i]);
    return shown;
}

struct people {
    struct address from, reply_to;
    struct address *to, *cc, *bcc;
};

static bool people_parse(const struct mail_draft *d, struct arena *arena, struct people *out, struct mail_content *c,
                         struct err *err)
{
    struct address *all;
    uint32_t count = d->to_count + d->cc_count + d->bcc_count;

    if (!mail_address_parse(d->from_address, "from", arena, &out->from, err))
        return false;
    if (!header_text_check(d->from_name, "the sender's name", err) || !name_check(d->from_name, "from", err))
        return false;
    out->from.name = str_trim(text_clean(arena, d->from_name, TEXT_LINE, NULL));
    if (count == 0)
        return err_set(err, ERR_INVALID, "the message has no recipient: give at least one in to, cc or bcc");
    if (count > LIMIT_MAIL_RECIPIENTS)
        return err_set(err, ERR_LIMIT, "the message has %u recipients: at most %d are allowed", count,
                       LIMIT_MAIL_RECIPIENTS);
    all = ARENA_ARRAY(arena, struct address, count);
    out->to = all;
    out->cc = all + d->to_count;
    out->bcc = out->cc + d->cc_count;
    if (!list_parse(d->to, d->to_count, "to", arena, out->to, err) ||
        !list_parse(d->cc, d->cc_count, "cc", arena, out->cc, err) ||
        !list_parse(d->bcc, d->bcc_count, "bcc", arena, out->bcc, err))
        return false;
    if (d->reply_to.len && !list_parse(&d->reply_to, 1, "reply_to", arena, &out->reply_to, err))
        return false;
    c->recipients = ARENA_ARRAY(arena, struct str, count);
    for (uint32_t i = 0; i < count; i++) {
        bool known = false;
        for (uint32_t k = 0; k < c->recipient_count && !known; k++)
            known = str_eq_nocase(c->recipients[k], all[i].bare);
        if (!known)
            c->recipients[c->recipient_count++] = all[i].bare;
    }
    c->from = address_shown(arena, &out->from);
    c->sender = out->from.bare;
    c->reply_to = d->reply_to.len ? address_shown(arena, &out->reply_to) : STR("");
    c->to = list_shown(out->to, d->to_count, arena);
    c->to_count = d->to_count;
    c->cc = list_shown(out->cc, d->cc_count, arena);
    c->cc_count = d->cc_count;
    c->bcc = list_shown(out->bcc, d->bcc_count, arena);
    c->bcc_count = d->bcc_count;
    return true;
}

/* ---- body ---- */

/* cmark's allocator has no argument. One message, one thread. */
static struct budget markdown_budget;

static void *markdown_alloc(size_t count, size_t size)
{
    if (size && count > LIMIT_MAIL_TREE_BYTES / size)
        longjmp(markdown_budget.out, 1);
    return memset(budget_alloc(&markdown_budget, count * size), 0, count * size);
}

static void *markdown_grow(void *old, size_t size)
{
    return budget_grow(&markdown_budget, old, size);
}

static cmark_mem markdown_memory = { markdown_alloc, markdown_grow, budget_free };

static const char *markdown_render(struct str markdown)
{
    static const char *const extensions[] = { "table", "strikethrough", "autolink", "tagfilter" };
    /* A line ends where the author ended it, as in the text part. Raw HTML is left out: CMARK_OPT_UNSAFE is not set. */
    int options = CMARK_OPT_DEFAULT | CMARK_OPT_VALIDATE_UTF8 | CMARK_OPT_HARDBREAKS;
    cmark_parser *parser = cmark_parser_new_with_mem(options, &markdown_memory);

    for (size_t i = 0; i < COUNT_OF(extensions); i++) {
        cmark_syntax_extension *extension = cmark_find_syntax_extension(extensions[i]);
        if (extension)
            cmark_parser_attach_syntax_extension(parser, extension);
    }
    cmark_parser_feed(parser, markdown.at ? markdown.at : "", markdown.len);
    return cmark_render_html_with_mem(cmark_parser_finish(parser), options, cmark_parser_get_syntax_extensions(parser),
                                      &markdown_memory);
}

/* False: it takes too long. A function of its own, because what setjmp() returns to may have lost its variables. */
static bool markdown_try(struct arena *arena, struct str markdown, struct str *out)
{
    if (setjmp(markdown_budget.out) != 0)
        return false;
    *out = arena_copy(arena, str_from(markdown_render(markdown)));
    return true;
}

/* As HTML by cmark, or as it is when that takes too long: some tables and brackets do. */
static void markdown_read(struct mail_content *c, struct arena *arena, struct str markdown, struct html *out)
{
    struct str html;

    budget_init(&markdown_budget, LIMIT_MAIL_TREE_BYTES, LIMIT_MAIL_TREE_MS);
    if (!markdown_try(arena, markdown, &html)) {
        struct buf plain = buf_make(arena, 6 * markdown.len + 16);
        buf_add(&plain, STR("<pre>"));
        html_escape(&plain, markdown);
        buf_add(&plain, STR("</pre>"));
        html = buf_str(&plain);
        content_warn(c, arena, "markdown_too_complex", false,
                     STR("The Markdown is too complex: it is sent as plain text."));
    }
    budget_done(&markdown_budget);
    html_read(html, arena, out);
}

static bool body_check(struct str text, const char *field, struct err *err)
{
    if (text.len && memchr(text.at, '\0', text.len))
        return err_set(err, ERR_INVALID, "%s has a zero byte: remove it", field);
    if (!utf8_valid(text))
        return err_set(err, ERR_INVALID, "%s is not UTF-8", field);
    return true;
}

static void warn_of_html(struct mail_content *c, struct arena *arena, const struct html *html)
{
    if (html->scripts)
        content_warn(
            c, arena, "active_html", false,
            arena_format(arena, "Scripts or other active parts were removed from the HTML: %u.", html->scripts));
    if (html->images)
        content_warn(c, arena, "remote_images", false,
                     arena_format(arena, "Remote images were removed from the HTML: %u.", html->images));
    if (str_trim(html->hidden).len)
        content_warn(c, arena, "hidden_text", false,
                     arena_format(arena, "Text that readers would not see was removed from the HTML: %.*s",
                                  STR_ARG(text_preview(arena, html->hidden))));
    if (html->is_cut)
        content_warn(c, arena, "html_too_complex", false, STR("The HTML is too complex: it was made plain text."));
}

static bool body_make(const struct mail_draft *d, struct arena *arena, struct mail_content *c, struct html *html,
                      struct err *err)
{
    struct str signature = text_clean(arena, d->signature, TEXT_LINES, NULL), text;
    uint32_t removed = 0;
    bool has_html = d->markdown.len || d->html.len;

    if (!body_check(d->markdown, "markdown", err) || !body_check(d->text, "text", err) ||
        !body_check(d->html, "html", err) || !body_check(d->signature, "the signature", err))
        return false;
    if (d->markdown.len && (d->text.len || d->html.len))
        return err_set(err, ERR_INVALID, "give the body either as Markdown, or as text and HTML, not both");
    if (!d->markdown.len && !d->text.len && !d->html.len && !d->attachment_count)
        return err_set(err, ERR_INVALID, "the message has no body");
    if (d->markdown.len)
        markdown_read(c, arena, d->markdown, html);
    else if (has_html)
        html_read(d->html, arena, html);
    text = text_clean(arena, d->markdown.len ? d->markdown : d->text, TEXT_LINES, &removed);
    if (!text.len && d->html.len)
        text = html->text;
    if (removed + html->invisible)
        content_warn(
            c, arena, "invisible_characters", false,
            arena_format(arena, "Invisible characters were removed from the body: %u.", MAX(removed, html->invisible)));
    if (d->html.len) {
        content_warn(c, arena, "raw_html", false, STR("The sender wrote the HTML part; it was sanitised."));
        warn_of_html(c, arena, html);
    }
    struct buf whole = buf_make(arena, LIMIT_MAIL_TEXT_BYTES);
    buf_add(&whole, text);
    if (signature.len) {
        buf_add(&whole, text.len ? STR("\n\n-- \n") : STR("-- \n"));
        buf_add(&whole, signature);
    }
    if (whole.len && !str_ends(buf_str(&whole), STR("\n")))
        buf_add_char(&whole, '\n');
    c->text = buf_str(&whole);
    if (has_html) {
        struct buf marked = buf_make(arena, LIMIT_MAIL_HTML_BYTES);
        buf_add(&marked, html->html);
        if (signature.len) {
            buf_add(&marked, STR("<p>-- <br>"));
            for (struct str line, rest = signature; rest.len && str_cut(&rest, '\n', &line);) {
                html_escape(&marked, line);
                buf_add(&marked, rest.len ? STR("<br>") : STR(""));
            }
            buf_add(&marked, STR("</p>"));
        }
        c->html = buf_str(&marked);
        whole.overflowed |= marked.overflowed;
    }
    if (whole.overflowed)
        return err_set(err, ERR_LIMIT, "the body is too long");
    c->preview = text_preview(arena, c->text);
    return true;
}

/* ---- attachments ---- */

/* One that we can vouch for: "type/subtype" without parameters. Others are bytes. */
static struct str content_type_clean(struct arena *arena, struct str type)
{
    struct str rest = type, main_type = STR(""), sub_type;

    (void)str_cut(&rest, ';', &type);
    type = str_trim(type);
    rest = type;
    (void)str_cut(&rest, '/', &main_type);
    sub_type = rest;
    if (type.len > LIMIT_MAIL_TYPE_BYTES || !str_is_token(main_type) || !str_is_token(sub_type) ||
        str_eq_nocase(main_type, STR("multipart")) || str_eq_nocase(main_type, STR("message")))
        return STR("application/octet-stream");
    char *lower = arena_text(arena, type);
    text_lower(lower, type.len);
    return str_of(lower, type.len);
}

static bool attachments_make(const struct mail_draft *d, struct arena *arena, struct mail_content *c, struct err *err)
{
    size_t total = 0;

    if (d->attachment_count > LIMIT_MAIL_ATTACHMENTS)
        return err_set(err, ERR_LIMIT, "the message has %u attachments: at most %d are allowed", d->attachment_count,
                       LIMIT_MAIL_ATTACHMENTS);
    c->attachments = ARENA_ARRAY(arena, struct mail_attachment, d->attachment_count);
    for (uint32_t i = 0; i < d->attachment_count; i++) {
        const struct mail_attachment *from = &d->attachments[i];
        struct mail_attachment *to = &c->attachments[i];
        if (!header_text_check(from->name, "an attachment's name", err) ||
            !header_text_check(from->content_type, "an attachment's content type", err))
            return false;
        total += from->content.len;
        if (total > LIMIT_MAIL_ATTACHMENTS_BYTES)
            return err_set(err, ERR_LIMIT, "the attachments have more than %d bytes together",
                           LIMIT_MAIL_ATTACHMENTS_BYTES);
        to->name = file_name_clean(arena, from->name, c->attachments, i);
        to->content_type = content_type_clean(arena, from->content_type);
        to->content = from->content;
        to->size = from->content.len;
        content_sha256(from->content, to->sha256);
    }
    c->attachment_count = d->attachment_count;
    return true;
}

/* ---- headers ---- */

static bool headers_make(const struct mail_draft *d, struct arena *arena, struct mail_content *c, struct err *err)
{
    struct str one, rest;
    uint32_t removed;

    if (!header_text_check(d->subject, "subject", err) || !header_text_check(d->references, "references", err) ||
        !header_text_check(d->identity, "identity", err))
        return false;
    if (d->subject.len > LIMIT_MAIL_SUBJECT_BYTES)
        return err_set(err, ERR_INVALID, "the subject is longer than 998 characters");
    c->subject = str_trim(text_clean(arena, d->subject, TEXT_LINE, &removed));
    if (removed)
        content_warn(c, arena, "invisible_characters", false,
                     arena_format(arena, "Invisible characters were removed from the subject: %u.", removed));
    if (!message_id_valid(d->message_id))
        return err_set(err, ERR_INVALID, "message_id is not of the form <id@domain>");
    if (d->in_reply_to.len && !message_id_valid(d->in_reply_to))
        return err_set(err, ERR_INVALID, "in_reply_to is not of the form <id@domain>");
    for (rest = d->references; rest.len && str_cut(&rest, ' ', &one);)
        if (one.len && !message_id_valid(one))
            return err_set(err, ERR_INVALID, "references is not a list of Message-IDs such as <id@domain>");
    c->message_id = d->message_id;
    c->in_reply_to = d->in_reply_to;
    c->references = d->references;
    c->date_us = d->date_us;
    return true;
}

/* ---- MIME ---- */

static GMimeObject *text_part(struct arena *arena, const char *subtype, struct str text)
{
    GMimeTextPart *part = g_mime_text_part_new_with_subtype(subtype);
    GMimeStream *stream;
    GMimeDataWrapper *content;
    size_t high = 0;

    for (size_t i = 0; i < text.len; i++)
        high += (unsigned char)text.at[i] >= 0x80;
    stream = g_mime_stream_mem_new_with_buffer(text.at ? text.at : "", text.len);
    content = g_mime_data_wrapper_new_with_stream(stream, GMIME_CONTENT_ENCODING_DEFAULT);
    g_mime_part_set_content(GMIME_PART(part), content);
    g_mime_text_part_set_charset(part, "utf-8");
    /* Both leave lines of 76 characters, whatever the text has. */
    g_mime_part_set_content_encoding(GMIME_PART(part), high > text.len / 3 ? GMIME_CONTENT_ENCODING_BASE64
                                                                           : GMIME_CONTENT_ENCODING_QUOTEDPRINTABLE);
    g_object_unref(content);
    g_object_unref(stream);
    (void)arena;
    return GMIME_OBJECT(part);
}

/* A boundary that no body can have foreseen by accident: a hash of the Message-ID. */
static GMimeMultipart *multipart(const char *subtype, struct str message_id)
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    char hex[2 * BOUNDARY_BYTES + 1], boundary[sizeof hex + 16];
    crypto_hash_sha256_state state;
    GMimeMultipart *part = g_mime_multipart_new_with_subtype(subtype);

    crypto_hash_sha256_init(&state);
    crypto_hash_sha256_update(&state, (const unsigned char *)subtype, strlen(subtype) + 1);
    crypto_hash_sha256_update(&state, (const unsigned char *)message_id.at, message_id.len);
    crypto_hash_sha256_final(&state, hash);
    hex_text(str_of(hash, BOUNDARY_BYTES), hex);
    snprintf(boundary, sizeof boundary, "=_%s", hex); /* "=_" cannot be in quoted-printable or base64 */
    g_mime_multipart_set_boundary(part, boundary);
    return part;
}

static void multipart_take(GMimeMultipart *into, GMimeObject *part)
{
    g_mime_multipart_add(into, part);
    g_object_unref(part);
}

static GMimeObject *body_part(struct arena *arena, const struct mail_content *c)
{
    GMimeMultipart *alternative;
    struct buf document;

    if (!c->html.len)
        return text_part(arena, "plain", c->text);
    document = buf_make(arena, c->html.len + 256);
    buf_add(&document, STR("<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"></head><body>\n"));
    buf_add(&document, c->html);
    buf_add(&document, STR("\n</body></html>\n"));
    alternative = multipart("alternative", c->message_id);
    multipart_take(alternative, text_part(arena, "plain", c->text));
    multipart_take(alternative, text_part(arena, "html", buf_str(&document)));
    return GMIME_OBJECT(alternative);
}

/* Of a parameter that may have other letters: UTF-8, instead of the narrowest character set that has them. */
static void param_in_utf8(GMimeParamList *params, const char *name)
{
    GMimeParam *param = params ? g_mime_param_list_get_parameter(params, name) : NULL;

    if (param)
        g_mime_param_set_charset(param, "utf-8");
}

static GMimeObject *attachment_part(struct arena *arena, const struct mail_attachment *a)
{
    struct str rest = a->content_type, type;
    GMimeStream *stream = g_mime_stream_mem_new_with_buffer(a->content.at ? a->content.at : "", a->content.len);
    GMimeDataWrapper *content = g_mime_data_wrapper_new_with_stream(stream, GMIME_CONTENT_ENCODING_DEFAULT);
    GMimePart *part;

    (void)str_cut(&rest, '/', &type);
    part = g_mime_part_new_with_type(arena_text(arena, type), arena_text(arena, rest));
    g_mime_part_set_content(part, content);
    g_mime_part_set_content_encoding(part, GMIME_CONTENT_ENCODING_BASE64);
    g_mime_object_set_disposition(GMIME_OBJECT(part), "attachment");
    g_mime_part_set_filename(part, arena_text(arena, a->name));
    param_in_utf8(g_mime_content_disposition_get_parameters(g_mime_object_get_content_disposition(GMIME_OBJECT(part))),
                  "filename");
    param_in_utf8(g_mime_content_type_get_parameters(g_mime_object_get_content_type(GMIME_OBJECT(part))), "name");
    g_object_unref(content);
    g_object_unref(stream);
    return GMIME_OBJECT(part);
}

/*
 * Headers with text that people wrote are encoded here. GMime leaves text alone that looks like an encoded word (RFC 2047),
 * and does not escape = in a name: the recipient's program would decode that, and the recipient would read something else
 * than the approver.
 */
static bool is_plain(struct str text, const char *also)
{
    for (size_t i = 0; i < text.len; i++)
        if (!char_is_alnum(text.at[i]) && !(text.at[i] && strchr(also, text.at[i])))
            return false;
    return true;
}

static bool looks_encoded(struct str text)
{
    return text.len && memmem(text.at, text.len, "=?", 2);
}

static void add_encoded_words(struct buf *out, struct str text)
{
    char room[64];

    for (bool first = true; text.len; first = false) {
        struct str piece = text_cut(text, 45);
        text = str_of(text.at + piece.len, text.len - piece.len);
        buf_add(out, first ? STR("=?utf-8?B?") : STR("\n =?utf-8?B?"));
        buf_add(out, str_of(room, base64_encode(piece, room)));
        buf_add(out, STR("?="));
    }
}

static void add_name(struct buf *out, struct str name)
{
    bool is_short = name.len <= 60 && !looks_encoded(name);

    if (is_short && is_plain(name, " !#$%&'*+-/^_`{|}~")) {
        buf_add(out, name);
    } else if (is_short && is_plain(name, " !#$%&'*+-/^_`{|}~=?()<>[]:;@,.\"\\")) {
        buf_add_char(out, '"');
        for (size_t i = 0; i < name.len; i++) {
            if (name.at[i] == '"' || name.at[i] == '\\')
                buf_add_char(out, '\\');
            buf_add_char(out, name.at[i]);
        }
        buf_add_char(out, '"');
    } else {
        add_encoded_words(out, name);
    }
}

static void set_raw(GMimeMessage *message, const char *header, struct arena *arena, const struct buf *value)
{
    GMimeHeaderList *headers = g_mime_object_get_header_list(GMIME_OBJECT(message));

    g_mime_header_list_set(headers, header, "x", "utf-8");
    g_mime_header_set_raw_value(g_mime_header_list_get_header(headers, header),
                                arena_format(arena, " %.*s\n", STR_ARG(buf_str(value))).at);
}

static void set_mailboxes(GMimeMessage *message, const char *header, const struct address *list, uint32_t count,
                          struct arena *arena)
{
    struct buf value = buf_make(arena, LIMIT_MAIL_HEADER_BYTES);

    for (uint32_t i = 0; i < count; i++) {
        buf_add(&value, i ? STR(",\n ") : STR(""));
        if (list[i].name.len) {
            add_name(&value, list[i].name);
            buf_add(&value, list[i].name.len + list[i].bare.len > 64 ? STR("\n <") : STR(" <"));
            buf_add(&value, list[i].bare);
            buf_add_char(&value, '>');
        } else {
            buf_add(&value, list[i].bare);
        }
    }
    if (count)
        set_raw(message, header, arena, &value);
}

static void set_subject(GMimeMessage *message, struct str subject, struct arena *arena)
{
    struct buf value = buf_make(arena, LIMIT_MAIL_HEADER_BYTES);
    size_t word = 0, longest = 0;

    for (size_t i = 0; i < subject.len; i++) {
        word = subject.at[i] == ' ' ? 0 : word + 1;
        longest = MAX(longest, word);
    }
    if (longest <= 64 && !looks_encoded(subject) && is_plain(subject, " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) {
        g_mime_message_set_subject(message, arena_text(arena, subject), "utf-8"); /* folds it */
        return;
    }
    add_encoded_words(&value, subject);
    set_raw(message, "Subject", arena, &value);
}

static GMimeMessage *message_make(const struct mail_draft *d, const struct people *people, struct arena *arena,
                                  const struct mail_content *c)
{
    GMimeMessage *message = g_mime_message_new(TRUE);
    GMimeObject *body = body_part(arena, c);
    GDateTime *date = g_date_time_new_from_unix_utc(d->date_us / 1000000);
    struct str id = str_of(c->message_id.at + 1, c->message_id.len - 2);

    set_mailboxes(message, "From", &people->from, 1, arena);
    set_mailboxes(message, "Reply-To", &people->reply_to, d->reply_to.len ? 1 : 0, arena);
    set_mailboxes(message, "To", people->to, d->to_count, arena);
    set_mailboxes(message, "Cc", people->cc, d->cc_count, arena);
    set_subject(message, c->subject, arena);
    if (date)
        g_mime_message_set_date(message, date);
    g_mime_message_set_message_id(message, arena_text(arena, id));
    if (c->in_reply_to.len)
        g_mime_object_set_header(GMIME_OBJECT(message), "In-Reply-To", arena_text(arena, c->in_reply_to), "utf-8");
    if (c->references.len)
        g_mime_object_set_header(GMIME_OBJECT(message), "References", arena_text(arena, c->references), "utf-8");
    g_mime_object_set_header(GMIME_OBJECT(message), "X-AI-Generated",
                             d->identity.len ? arena_text(arena, d->identity) : "true", "utf-8");
    if (d->attachment_count) {
        GMimeMultipart *mixed = multipart("mixed", c->message_id);
        multipart_take(mixed, body);
        for (uint32_t i = 0; i < c->attachment_count; i++)
            multipart_take(mixed, attachment_part(arena, &c->attachments[i]));
        body = GMIME_OBJECT(mixed);
    }
    g_mime_message_set_mime_part(message, body);
    g_object_unref(body);
    if (date)
        g_date_time_unref(date);
    return message;
}

/* ---- the last check ---- */

/* Each header of the head is one of ours, once; every line ends in CR LF and is short enough. */
static bool mime_check(struct str mime, struct err *err)
{
    static const struct str ours[] = {
        STR_INIT("Date"),
        STR_INIT("From"),
        STR_INIT("Reply-To"),
        STR_INIT("To"),
        STR_INIT("Cc"),
        STR_INIT("Subject"),
        STR_INIT("Message-Id"),
        STR_INIT("In-Reply-To"),
        STR_INIT("References"),
        STR_INIT("Mime-Version"),
        STR_INIT("X-AI-Generated"),
        STR_INIT("Content-Type"),
        STR_INIT("Content-Transfer-Encoding"),
    };
    bool seen[COUNT_OF(ours)] = { 0 }, in_head = true;

    while (mime.len) {
        const char *end = memchr(mime.at, '\n', mime.len);
        size_t len = end ? (size_t)(end - mime.at) : 0;
        if (!end || len == 0 || end[-1] != '\r' || memchr(mime.at, '\r', len - 1))
            return err_set(err, ERR_INTERNAL, "the composed message has a line that does not end in CR LF");
        if (len - 1 > LINE_MOST)
            return err_set(err, ERR_INVALID, "a word in a header is too long: at most %d bytes without a space",
                           LINE_MOST / 2);
        struct str line = str_of(mime.at, len - 1), name;
        mime = str_of(end + 1, mime.len - len - 1);
        if (!in_head)
            continue;
        in_head = line.len > 0;
        if (!in_head || line.at[0] == ' ' || line.at[0] == '\t')
            continue;
        size_t i = 0;
        if (!str_cut(&line, ':', &name) || !line.at)
            return err_set(err, ERR_INTERNAL, "the composed message has a line in its head that is no header");
        while (i < COUNT_OF(ours) && !str_eq_nocase(name, ours[i]))
            i++;
        if (i == COUNT_OF(ours) || seen[i])
            return err_set(err, ERR_INTERNAL, "the composed message has a header that was not asked for");
        seen[i] = true;
    }
    return in_head ? err_set(err, ERR_INTERNAL, "the composed message has no body") : true;
}

static bool mime_write(GMimeMessage *message, struct arena *arena, struct str *out, struct err *err)
{
    GMimeFormatOptions *format = g_mime_format_options_new();
    GMimeStream *stream = g_mime_stream_mem_new();
    GByteArray *bytes;
    bool fine = true;

    g_mime_format_options_set_newline_format(format, GMIME_NEWLINE_FORMAT_DOS);
    if (g_mime_object_write_to_stream(GMIME_OBJECT(message), format, stream) < 0)
        fine = err_set(err, ERR_INTERNAL, "the message could not be written");
    bytes = g_mime_stream_mem_get_byte_array(GMIME_STREAM_MEM(stream));
    if (fine && bytes->len > LIMIT_MAIL_MIME_BYTES)
        fine = err_set(err, ERR_LIMIT, "the message has %u bytes: at most %d are allowed", bytes->len,
                       LIMIT_MAIL_MIME_BYTES);
    if (fine)
        *out = arena_copy(arena, str_of(bytes->data, bytes->len));
    g_object_unref(stream);
    g_mime_format_options_free(format);
    return fine && mime_check(*out, err);
}

bool compose_message(const struct mail_draft *draft, struct arena *arena, struct mail_content *out, struct err *err)
{
    struct mail_content c = { 0 };
    struct people people = { 0 };
    struct html html = { 0 };
    GMimeMessage *message;
    bool fine;

    if (!headers_make(draft, arena, &c, err) || !people_parse(draft, arena, &people, &c, err) ||
        !attachments_make(draft, arena, &c, err) || !body_make(draft, arena, &c, &html, err))
        return false;
    message = message_make(draft, &people, arena, &c);
    fine = mime_write(message, arena, &c.mime, err);
    g_object_unref(message);
    if (!fine)
        return false;
    scan_outbound(&c, &html, arena);
    struct scan_result scan = scan_inbound(&c, &html, arena);
    scan_warn(&c, &scan, arena); /* the reader may be an agent, too */
    *out = c;
    return true;
}

/* ---- the child ---- */

void composer_prepare(void)
{
    /* glibc reads a file for each character set on first use; one that is open stays loaded, also in children. */
    static const char *const charsets[] = {
        "ISO-8859-1",   "ISO-8859-2",   "ISO-8859-3",   "ISO-8859-4",   "ISO-8859-5",   "ISO-8859-6",   "ISO-8859-7",
        "ISO-8859-8",   "ISO-8859-9",   "ISO-8859-10",  "ISO-8859-13",  "ISO-8859-14",  "ISO-8859-15",  "ISO-8859-16",
        "WINDOWS-1250", "WINDOWS-1251", "WINDOWS-1252", "WINDOWS-1253", "WINDOWS-1254", "WINDOWS-1255", "WINDOWS-1256",
        "WINDOWS-1257", "WINDOWS-1258", "KOI8-R",       "KOI8-U",       "GB18030",      "GBK",          "GB2312",
        "BIG5",         "BIG5-HKSCS",   "EUC-JP",       "SHIFT_JIS",    "CP932",        "ISO-2022-JP",  "EUC-KR",
        "UHC",          "ISO-2022-KR",  "TIS-620",      "UTF-7",        "UTF-16",       "UTF-16LE",     "UTF-16BE",
        "UTF-32",       "US-ASCII",     "MACINTOSH",    "CP437",        "CP850"
    };

    static iconv_t open[COUNT_OF(charsets)];

    g_mime_init();
    cmark_gfm_core_extensions_ensure_registered();
    for (size_t i = 0; i < COUNT_OF(charsets); i++)
        open[i] = iconv_open("UTF-8", charsets[i]); /* one that this system does not have is not converted */
    (void)open;
}

static bool serve(struct str frame, struct arena *arena, struct mail_content *out, struct err *err)
{
    struct unpack in = unpack_from(frame);
    struct mail_draft draft;
    struct str mime;

    switch (unpack_u8(&in)) {
    case COMPOSER_COMPOSE:
        unpack_draft(&in, arena, &draft);
        return unpack_done(&in, err) && compose_message(&draft, arena, out, err);
    case COMPOSER_PARSE:
        mime = unpack_str(&in, LIMIT_MAIL_MIME_BYTES);
        return unpack_done(&in, err) && parse_message(mime, arena, out, err);
    default:
        return err_set(err, ERR_INVALID, "malformed message: an operation that the composer does not have");
    }
}

bool composer_serve(int fd, struct err *err)
{
    auto_free char *frame = NULL;
    struct mail_content content = { 0 };
    struct arena arena;
    struct err why;
    size_t len;

    if (!frame_read(fd, LIMIT_MAIL_FRAME_BYTES, LIMIT_COMPOSE_MS, &frame, &len, err))
        return false;
    arena_init(&arena);
    struct buf out = buf_make(&arena, LIMIT_MAIL_FRAME_BYTES);
    pack_bool(&out, true);
    bool fine = serve(str_of(frame, len), &arena, &content, &why);
    if (fine)
        pack_content(&out, &content, CONTENT_ALL);
    if (fine && out.overflowed)
        fine = err_set(&why, ERR_LIMIT, "the message is too large");
    if (!fine) {
        buf_clear(&out);
        pack_bool(&out, false);
        message_pack_err(&out, &why);
    }
    bool sent = frame_write(fd, buf_str(&out), LIMIT_COMPOSE_MS, err);
    arena_done(&arena);
    return sent;
}
