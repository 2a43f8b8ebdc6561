/*
 * Reads MIME from anywhere. GMime makes the tree; this file decides what is body and what is attachment, turns everything
 * into UTF-8 and bounds it. Nothing that is found inside is trusted: names and texts are cleaned (text.h), HTML is
 * rebuilt (html.h), and the scan reads what was hidden.
 *
 * The text is the text/plain part if there is one, else what the HTML shows. A message within the message is an
 * attachment.
 */
#include "mail/compose.h"

#include <errno.h>
#include <gmime/gmime.h>
#include <iconv.h>

#include "base/buf.h"
#include "base/encode.h"
#include "base/limits.h"
#include "mail/address.h"
#include "mail/html.h"
#include "mail/scan.h"
#include "mail/text.h"

enum {
    CHARSET_MOST = 40,
    NAME_MOST = 256,
    GROUP_DEPTH = 2, /* groups within groups are not a thing */
};

struct reader {
    struct arena *arena;
    struct mail_content *content;
    struct buf text, html; /* UTF-8, as they came */
    uint32_t parts;
    uint32_t attachment_room;
    bool is_cut, has_unknown_charset;
};

/* ---- character sets ---- */

static void add_windows_1252(struct buf *out, struct str bytes)
{
    static const uint16_t high[32] = { 0x20AC, 0x81,   0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021,
                                       0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0x8D,   0x017D, 0x8F,
                                       0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                       0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x9D,   0x017E, 0x0178 };

    for (size_t i = 0; i < bytes.len && !out->overflowed; i++) {
        unsigned char c = (unsigned char)bytes.at[i];
        text_put(out, c >= 0x80 && c < 0xA0 ? high[c - 0x80] : c);
    }
}

static bool is_charset_name(struct str name)
{
    for (size_t i = 0; i < name.len; i++)
        if (!char_is_alnum(name.at[i]) && !strchr("._:+-", name.at[i]))
            return false;
    return name.len > 0 && name.len < CHARSET_MOST;
}

static bool is_one_of(struct str name, const struct str *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq_nocase(name, list[i]))
            return true;
    return false;
}

/* By iconv, with U+FFFD for each byte that it does not take. False: it does not know the character set. */
static bool add_converted(struct buf *out, struct str name, struct str bytes)
{
    char charset[CHARSET_MOST], room[4096];
    char *in = (char *)(uintptr_t)bytes.at; /* iconv's type; it does not write there */
    size_t left = bytes.len;

    memcpy(charset, name.at, name.len);
    charset[name.len] = '\0';
    /* Names that only mail programs use. */
    iconv_t cd = iconv_open("UTF-8", g_mime_charset_iconv_name(charset));
    if (cd == (iconv_t)-1)
        return false;
    while (left && !out->overflowed) {
        char *at = room;
        size_t free_bytes = sizeof room;
        size_t code = iconv(cd, &in, &left, &at, &free_bytes);
        int why = errno;
        buf_add(out, str_of(room, sizeof room - free_bytes));
        if (code != (size_t)-1)
            break;
        if (why == EILSEQ || why == EINVAL) {
            text_put(out, 0xFFFD);
            in++;
            left--;
        }
    }
    (void)iconv_close(cd);
    return true;
}

/* Most senders who say nothing, or something wrong, use UTF-8 or Windows' Latin; browsers read Latin-1 as that, too. */
static void add_utf8(struct reader *r, struct buf *out, struct str charset, struct str bytes)
{
    static const struct str plain[] = { STR_INIT("utf-8"), STR_INIT("utf8"), STR_INIT("us-ascii"), STR_INIT("ascii"),
                                        STR_INIT("") };
    static const struct str latin[] = { STR_INIT("iso-8859-1"), STR_INIT("iso8859-1"), STR_INIT("latin1"),
                                        STR_INIT("windows-1252"), STR_INIT("cp1252") };

    charset = str_trim(charset);
    if (bytes.len > out->cap - out->len) {
        bytes = text_cut(bytes, out->cap - out->len);
        r->is_cut = true;
    }
    if (is_one_of(charset, plain, COUNT_OF(plain)) && utf8_valid(bytes))
        buf_add(out, bytes);
    else if (is_one_of(charset, plain, COUNT_OF(plain)) || is_one_of(charset, latin, COUNT_OF(latin)))
        add_windows_1252(out, bytes);
    else if (!is_charset_name(charset) || !add_converted(out, charset, bytes)) {
        r->has_unknown_charset = true;
        add_windows_1252(out, bytes);
    }
    if (out->overflowed) { /* what is there is fine, the rest is left out */
        out->overflowed = false;
        r->is_cut = true;
    }
}

/* ---- encoded words (RFC 2047) ---- */

struct encoded_word {
    struct str charset, payload; /* base64 */
    size_t len;                  /* of the whole word */
};

/* "=?charset?B?payload?=" at the start of the text. */
static bool word_read(struct str text, struct encoded_word *out)
{
    struct str rest = text, payload;

    if (!str_skip(&rest, STR("=?")) || !str_cut(&rest, '?', &out->charset) || !rest.at ||
        !(str_skip(&rest, STR("B?")) || str_skip(&rest, STR("b?"))) || !str_cut(&rest, '?', &payload) || !rest.at ||
        !str_skip(&rest, STR("=")) || !is_charset_name(out->charset))
        return false;
    out->payload = payload;
    out->len = text.len - rest.len;
    return true;
}

static bool payload_add(struct reader *r, struct buf *out, struct str payload)
{
    unsigned char *room = arena_alloc(r->arena, payload.len + 3);
    size_t len;

    if (!base64_decode(payload, room, &len))
        return false;
    buf_add(out, str_of(room, len));
    return true;
}

/*
 * GMime decodes adjacent words as one, and stops at the padding of the first. So adjacent words of one character set
 * become one word here, which also joins characters that were cut in two.
 */
static const char *words_join(struct reader *r, const char *header)
{
    struct str rest = str_from(header);
    struct buf out = buf_make(r->arena, 2 * rest.len + 16);
    struct encoded_word word, next;

    while (rest.len) {
        struct buf bytes = buf_make(r->arena, rest.len);
        if (rest.at[0] != '=' || !word_read(rest, &word) || !payload_add(r, &bytes, word.payload)) {
            buf_add_char(&out, rest.at[0]);
            rest = str_of(rest.at + 1, rest.len - 1);
            continue;
        }
        rest = str_of(rest.at + word.len, rest.len - word.len);
        for (;;) {
            struct str after = rest;
            while (after.len && strchr(" \t\r\n", after.at[0]))
                after = str_of(after.at + 1, after.len - 1);
            if (!word_read(after, &next) || !str_eq_nocase(next.charset, word.charset) ||
                !payload_add(r, &bytes, next.payload))
                break;
            rest = str_of(after.at + next.len, after.len - next.len);
        }
        char *encoded = arena_alloc(r->arena, base64_size(bytes.len) + 1);
        size_t len = base64_encode(buf_str(&bytes), encoded);
        buf_format(&out, "=?%.*s?B?%.*s?=", STR_ARG(word.charset), (int)len, encoded);
    }
    return out.overflowed ? header : arena_text(r->arena, buf_str(&out));
}

/* ---- headers ---- */

static struct str line_clean(struct reader *r, const char *text, size_t most)
{
    return str_trim(text_cut(text_clean(r->arena, str_from(text), TEXT_LINE, NULL), most));
}

/*
 * GMime makes Unicode of an A-label ("xn--…") and an A-label of that again, which can be another one: xn--mi7ciaupa.com, which is
 * "apple" in wide letters, would be apple.com. It does not know A-labels in upper case. So a header is parsed twice: as it is
 * for names and what is before @, and like this for domains.
 */
static const char *labels_hide(struct reader *r, const char *header)
{
    char *hidden = arena_text(r->arena, str_from(header));

    for (char *at = hidden; (at = strstr(at, "xn--"));)
        memcpy(at, "XN", 2);
    return hidden;
}

static struct str domain_of(InternetAddress *mailbox)
{
    const char *address = internet_address_mailbox_get_addr(INTERNET_ADDRESS_MAILBOX(mailbox));
    const char *at = address ? strrchr(address, '@') : NULL;

    return at ? str_from(at + 1) : STR("");
}

/* With A-labels: another script in a domain is shown as such. `hidden`: the same, from the header of labels_hide(). */
static bool mailbox_read(struct reader *r, InternetAddress *from, InternetAddress *hidden, struct str *out_shown)
{
    struct address address = { 0 };
    struct str bare = str_from(internet_address_mailbox_get_addr(INTERNET_ADDRESS_MAILBOX(from)));
    struct str domain = address_domain_wire(r->arena, domain_of(hidden));

    if (!bare.len)
        return false;
    bare.len -= domain_of(from).len;
    bare = arena_format(r->arena, "%.*s%.*s", STR_ARG(bare), STR_ARG(domain));
    address.bare = line_clean(r, bare.at, LIMIT_MAIL_ADDRESS_BYTES / 4);
    address.name = line_clean(r, internet_address_get_name(from), NAME_MOST);
    *out_shown = address_shown(r->arena, &address);
    return true;
}

static void list_add(struct reader *r, InternetAddressList *list, InternetAddressList *hidden, struct str *out,
                     uint32_t *count, int depth)
{
    int length = list && hidden ? internet_address_list_length(list) : 0;

    /* Both have the same form; the second only has other letters. */
    if (length && internet_address_list_length(hidden) != length)
        return;
    for (int i = 0; i < length && *count < LIMIT_MAIL_SHOWN; i++) {
        InternetAddress *one = internet_address_list_get_address(list, i);
        InternetAddress *other = internet_address_list_get_address(hidden, i);
        if (INTERNET_ADDRESS_IS_GROUP(one) != INTERNET_ADDRESS_IS_GROUP(other))
            return;
        if (INTERNET_ADDRESS_IS_GROUP(one)) {
            if (depth < GROUP_DEPTH)
                list_add(r, internet_address_group_get_members(INTERNET_ADDRESS_GROUP(one)),
                         internet_address_group_get_members(INTERNET_ADDRESS_GROUP(other)), out, count, depth + 1);
        } else if (mailbox_read(r, one, other, &out[*count])) {
            ++*count;
        }
    }
}

/* All headers of this name together. */
static void list_read(struct reader *r, GMimeMessage *message, const char *name, struct str **out, uint32_t *out_count)
{
    GMimeHeaderList *headers = g_mime_object_get_header_list(GMIME_OBJECT(message));
    struct str *room = ARENA_ARRAY(r->arena, struct str, LIMIT_MAIL_SHOWN);

    for (int i = 0; i < g_mime_header_list_get_count(headers); i++) {
        GMimeHeader *header = g_mime_header_list_get_header_at(headers, i);
        const char *raw = g_mime_header_get_raw_value(header);
        if (!raw || !str_eq_nocase(str_from(g_mime_header_get_name(header)), str_from(name)))
            continue;
        const char *joined = words_join(r, raw);
        InternetAddressList *list = internet_address_list_parse(NULL, joined);
        InternetAddressList *hidden = internet_address_list_parse(NULL, labels_hide(r, joined));
        list_add(r, list, hidden, room, out_count, 0);
        g_clear_object(&list);
        g_clear_object(&hidden);
    }
    if (*out_count)
        *out = room;
    if (*out_count == LIMIT_MAIL_SHOWN)
        content_warn(r->content, r->arena, "many_recipients", false,
                     arena_format(r->arena, "Only the first %d addresses of a header are shown.", LIMIT_MAIL_SHOWN));
}

static struct str subject_read(struct reader *r, GMimeMessage *message)
{
    GMimeHeader *header =
        g_mime_header_list_get_header(g_mime_object_get_header_list(GMIME_OBJECT(message)), "Subject");
    const char *raw = header ? g_mime_header_get_raw_value(header) : NULL;

    if (!raw)
        return STR("");
    char *unfolded = g_mime_utils_header_unfold(words_join(r, raw));
    char *text = g_mime_utils_header_decode_text(NULL, unfolded);
    struct str subject = line_clean(r, text, LIMIT_MAIL_SUBJECT_BYTES);
    g_free(text);
    g_free(unfolded);
    return subject;
}

/* The well-formed Message-IDs of a header, with a space between. When they are too many the last ones stay. */
static struct str ids_read(struct reader *r, const char *header)
{
    struct buf out = buf_make(r->arena, LIMIT_MAIL_HEADER_BYTES + 1);
    struct str text = str_from(header), ids;

    for (size_t i = 0; i < text.len; i++) {
        size_t end = i;
        if (text.at[i] != '<')
            continue;
        while (end < text.len && text.at[end] != '>')
            end++;
        struct str id = str_of(text.at + i, MIN(end + 1, text.len) - i);
        if (message_id_valid(id)) {
            buf_add(&out, out.len ? STR(" ") : STR(""));
            buf_add(&out, id);
            i = end;
        }
    }
    if (out.overflowed)
        return STR("");
    ids = buf_str(&out);
    while (ids.len > LIMIT_MAIL_REFERENCES_BYTES) {
        struct str first;
        (void)str_cut(&ids, ' ', &first);
    }
    return ids;
}

static int count_headers(GMimeObject *object, const char *name)
{
    GMimeHeaderList *headers = g_mime_object_get_header_list(object);
    int found = 0;

    for (int i = 0; i < g_mime_header_list_get_count(headers); i++)
        found += str_eq_nocase(str_from(g_mime_header_get_name(g_mime_header_list_get_header_at(headers, i))),
                               str_from(name));
    return found;
}

static void headers_read(struct reader *r, GMimeMessage *message)
{
    struct mail_content *c = r->content;
    struct str *senders = NULL, *answers = NULL;
    uint32_t sender_count = 0, answer_count = 0;
    GDateTime *date = g_mime_message_get_date(message);
    struct str id = arena_format(r->arena, "<%s>", g_mime_message_get_message_id(message) ?: "");

    list_read(r, message, "From", &senders, &sender_count);
    if (sender_count) {
        c->from = senders[0];
        c->sender = mail_bare_address(senders[0]);
    }
    if (sender_count > 1 || count_headers(GMIME_OBJECT(message), "From") > 1)
        content_warn(c, r->arena, "several_senders", false, STR("The message names more than one sender."));
    list_read(r, message, "Reply-To", &answers, &answer_count);
    if (answer_count)
        c->reply_to = answers[0];
    list_read(r, message, "To", &c->to, &c->to_count);
    list_read(r, message, "Cc", &c->cc, &c->cc_count);
    c->subject = subject_read(r, message);
    c->message_id = message_id_valid(id) ? id : STR("");
    struct str ids = ids_read(r, g_mime_object_get_header(GMIME_OBJECT(message), "In-Reply-To"));
    if (ids.len)
        (void)str_cut(&ids, ' ', &c->in_reply_to);
    c->references = ids_read(r, g_mime_object_get_header(GMIME_OBJECT(message), "References"));
    c->date_us = date ? g_date_time_to_unix(date) * 1000000 : 0;
}

/* ---- parts ---- */

static struct str type_of(struct reader *r, GMimeObject *object)
{
    GMimeContentType *type = g_mime_object_get_content_type(object);
    const char *main_type = type ? g_mime_content_type_get_media_type(type) : NULL;
    const char *sub_type = type ? g_mime_content_type_get_media_subtype(type) : NULL;

    if (!main_type || !sub_type || !str_is_token(str_from(main_type)) || !str_is_token(str_from(sub_type)) ||
        strlen(main_type) + strlen(sub_type) + 1 > LIMIT_MAIL_TYPE_BYTES)
        return STR("application/octet-stream");
    struct str text = arena_format(r->arena, "%s/%s", main_type, sub_type);
    char *lower = arena_text(r->arena, text);
    text_lower(lower, text.len);
    return str_of(lower, text.len);
}

static struct str name_by_type(struct str type)
{
    static const struct {
        struct str type, name;
    } known[] = {
        { STR_INIT("message/rfc822"), STR_INIT("message.eml") }, { STR_INIT("text/calendar"), STR_INIT("invite.ics") },
        { STR_INIT("text/html"), STR_INIT("page.html") },        { STR_INIT("text/plain"), STR_INIT("text.txt") },
        { STR_INIT("image/png"), STR_INIT("image.png") },        { STR_INIT("image/jpeg"), STR_INIT("image.jpg") },
        { STR_INIT("image/gif"), STR_INIT("image.gif") },        { STR_INIT("application/pdf"), STR_INIT("file.pdf") },
    };

    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (str_eq(known[i].type, type))
            return known[i].name;
    return STR("");
}

static void attachment_add(struct reader *r, struct str type, struct str name, struct str content)
{
    struct mail_content *c = r->content;

    if (c->attachment_count == r->attachment_room) {
        uint32_t room = MIN(MAX(16u, 4 * r->attachment_room), (uint32_t)LIMIT_MAIL_PARTS);
        struct mail_attachment *more = ARENA_ARRAY(r->arena, struct mail_attachment, room);
        if (c->attachment_count)
            memcpy(more, c->attachments, c->attachment_count * sizeof *more);
        c->attachments = more;
        r->attachment_room = room;
    }
    struct mail_attachment *a = &c->attachments[c->attachment_count];
    a->name = file_name_clean(r->arena, name.len ? name : name_by_type(type), c->attachments, c->attachment_count);
    a->content_type = type;
    a->content = content;
    a->size = content.len;
    content_sha256(content, a->sha256);
    c->attachment_count++;
}

static struct str stream_take(struct reader *r, GMimeStream *stream)
{
    GByteArray *bytes = g_mime_stream_mem_get_byte_array(GMIME_STREAM_MEM(stream));
    struct str content = arena_copy(r->arena, str_of(bytes->data, bytes->len));

    g_object_unref(stream);
    return content;
}

static struct str part_content(struct reader *r, GMimePart *part)
{
    GMimeDataWrapper *wrapper = g_mime_part_get_content(part);
    GMimeStream *stream = g_mime_stream_mem_new();

    if (wrapper)
        (void)g_mime_data_wrapper_write_to_stream(wrapper, stream); /* what can be decoded is used */
    return stream_take(r, stream);
}

static struct str object_content(struct reader *r, GMimeObject *object)
{
    GMimeStream *stream = g_mime_stream_mem_new();

    (void)g_mime_object_write_to_stream(object, NULL, stream);
    return stream_take(r, stream);
}

/* By Content-Disposition, else by Content-Type. */
static struct str file_name_of(struct reader *r, GMimeObject *object)
{
    static const struct {
        const char *header, *param;
    } places[] = { { "Content-Disposition", "filename" }, { "Content-Type", "name" } };
    GMimeHeaderList *headers = g_mime_object_get_header_list(object);
    struct str name = STR("");

    for (size_t i = 0; i < COUNT_OF(places) && !name.len; i++) {
        GMimeHeader *header = g_mime_header_list_get_header(headers, places[i].header);
        const char *raw = header ? g_mime_header_get_raw_value(header) : NULL;
        GMimeContentDisposition *found = raw ? g_mime_content_disposition_parse(NULL, words_join(r, raw)) : NULL;
        const char *value = found ? g_mime_content_disposition_get_parameter(found, places[i].param) : NULL;
        name = arena_copy(r->arena, str_from(value));
        if (found)
            g_object_unref(found);
    }
    return name;
}

static void part_read(struct reader *r, GMimePart *part)
{
    struct str type = type_of(r, GMIME_OBJECT(part)), content = part_content(r, part);
    struct str name = file_name_of(r, GMIME_OBJECT(part));
    const char *disposition = g_mime_object_get_disposition(GMIME_OBJECT(part));
    bool is_attached = (disposition && str_eq_nocase(str_from(disposition), STR("attachment"))) || name.len;
    bool is_html = str_eq(type, STR("text/html"));

    if (is_attached || (!is_html && !str_eq(type, STR("text/plain")))) {
        attachment_add(r, type, name, content);
        return;
    }
    struct buf *out = is_html ? &r->html : &r->text;
    const char *charset = g_mime_object_get_content_type_parameter(GMIME_OBJECT(part), "charset");
    if (out->len)
        buf_add(out, STR("\n\n"));
    add_utf8(r, out, str_from(charset), content);
}

static bool header_size_fits(GMimeObject *object)
{
    GMimeHeaderList *headers = g_mime_object_get_header_list(object);
    size_t total = 0;

    for (int i = 0; i < g_mime_header_list_get_count(headers) && total <= LIMIT_MAIL_HEADER_BYTES; i++) {
        const char *value = g_mime_header_get_raw_value(g_mime_header_list_get_header_at(headers, i));
        total += value ? strlen(value) : 0;
    }
    return total <= LIMIT_MAIL_HEADER_BYTES;
}

static bool object_read(struct reader *r, GMimeObject *object, int depth, struct err *err)
{
    if (depth > LIMIT_MAIL_DEPTH)
        return err_set(err, ERR_LIMIT, "the message has parts within parts deeper than %d", LIMIT_MAIL_DEPTH);
    if (++r->parts > LIMIT_MAIL_PARTS)
        return err_set(err, ERR_LIMIT, "the message has more than %d parts", LIMIT_MAIL_PARTS);
    if (!header_size_fits(object))
        return err_set(err, ERR_LIMIT, "the headers of a part have more than %d bytes", LIMIT_MAIL_HEADER_BYTES);
    if (GMIME_IS_MULTIPART(object)) {
        GMimeMultipart *multipart = GMIME_MULTIPART(object);
        int count = g_mime_multipart_get_count(multipart);
        for (int i = 0; i < count; i++)
            if (!object_read(r, g_mime_multipart_get_part(multipart, i), depth + 1, err))
                return false;
        return true;
    }
    if (GMIME_IS_MESSAGE_PART(object)) {
        GMimeMessage *inner = g_mime_message_part_get_message(GMIME_MESSAGE_PART(object));
        attachment_add(r, STR("message/rfc822"), file_name_of(r, object),
                       inner ? object_content(r, GMIME_OBJECT(inner)) : STR(""));
    } else if (GMIME_IS_PART(object)) {
        part_read(r, GMIME_PART(object));
    }
    return true;
}

/* ---- whole ---- */

static bool head_fits(struct str mime)
{
    size_t line = 0;

    for (size_t i = 0; i < mime.len && i <= LIMIT_MAIL_HEADER_BYTES; i++) {
        if (mime.at[i] != '\n') {
            line += mime.at[i] != '\r';
            continue;
        }
        if (!line)
            return true;
        line = 0;
    }
    return mime.len <= LIMIT_MAIL_HEADER_BYTES;
}

static void body_finish(struct reader *r, struct html *html)
{
    struct mail_content *c = r->content;
    uint32_t removed = 0;

    if (r->html.len) {
        html_read(buf_str(&r->html), r->arena, html);
        c->html = html->html;
    }
    struct str tags = text_tags(r->arena, buf_str(&r->text)), more = text_tags(r->arena, buf_str(&r->html));
    if (tags.len + more.len)
        html->hidden = arena_format(r->arena, "%.*s\n%.*s\n%.*s", STR_ARG(html->hidden), STR_ARG(tags), STR_ARG(more));
    c->text = text_clean(r->arena, buf_str(&r->text), TEXT_LINES, &removed);
    if (!text_preview(r->arena, c->text).len)
        c->text = html->text;
    if (c->text.len > LIMIT_MAIL_TEXT_BYTES) {
        c->text = text_cut(c->text, LIMIT_MAIL_TEXT_BYTES);
        r->is_cut = true;
    }
    c->preview = text_preview(r->arena, c->text);
    html->invisible += removed;
    if (html->invisible)
        content_warn(c, r->arena, "invisible_characters", false,
                     arena_format(r->arena, "Invisible characters were removed: %u.", html->invisible));
    if (html->scripts)
        content_warn(c, r->arena, "active_html", false,
                     arena_format(r->arena, "Scripts or other active parts were removed: %u.", html->scripts));
    if (html->images)
        content_warn(c, r->arena, "remote_images", false,
                     arena_format(r->arena, "Remote images were removed: %u.", html->images));
    if (str_trim(html->hidden).len)
        content_warn(c, r->arena, "hidden_text", false, STR("Text that a reader would not see was removed."));
    if (r->is_cut || html->is_cut)
        content_warn(c, r->arena, "cut", false, STR("The body is too long or too complex: a part of it is not shown."));
    if (r->has_unknown_charset)
        content_warn(c, r->arena, "unknown_charset", false,
                     STR("The body is in a character set that is not known here."));
}

bool parse_message(struct str mime, struct arena *arena, struct mail_content *out, struct err *err)
{
    struct mail_content c = { .mime = mime };
    struct html html = { 0 };
    struct reader r = {
        .arena = arena,
        .content = &c,
        .text = buf_make(arena, LIMIT_MAIL_TEXT_BYTES),
        .html = buf_make(arena, LIMIT_MAIL_TEXT_BYTES),
    };
    GMimeStream *stream;
    GMimeParser *parser;
    GMimeMessage *message;
    bool fine = true;

    if (mime.len > LIMIT_MAIL_MIME_BYTES)
        return err_set(err, ERR_LIMIT, "the message has %zu bytes: at most %d are allowed", mime.len,
                       LIMIT_MAIL_MIME_BYTES);
    if (!head_fits(mime))
        return err_set(err, ERR_LIMIT, "the headers of the message have more than %d bytes", LIMIT_MAIL_HEADER_BYTES);
    stream = g_mime_stream_mem_new_with_buffer(mime.at ? mime.at : "", mime.len);
    parser = g_mime_parser_new_with_stream(stream);
    g_mime_parser_set_persist_stream(parser, FALSE);
    message = g_mime_parser_construct_message(parser, NULL);
    if (message) {
        GMimeObject *body = g_mime_message_get_mime_part(message);
        headers_read(&r, message);
        fine = !body || object_read(&r, body, 1, err);
        g_object_unref(message);
    } else {
        fine = err_set(err, ERR_INVALID, "this is not a mail message");
    }
    g_object_unref(parser);
    g_object_unref(stream);
    if (!fine)
        return false;
    body_finish(&r, &html);
    struct scan_result scan = scan_inbound(&c, &html, arena);
    scan_note(&c, &scan, arena);
    *out = c;
    return true;
}
