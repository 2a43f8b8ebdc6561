#include "mail/content_pack.h"

#include "base/limits.h"

enum { CONTENT_FORM = 1, DRAFT_FORM = 1 }; /* the first byte; bytes in an inbox's file outlive this program */

static void pack_list(struct buf *out, const struct str *list, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++)
        pack_str(out, list[i]);
}

static struct str *unpack_list(struct unpack *in, struct arena *arena, uint32_t most, size_t each, uint32_t *out_count)
{
    uint32_t count = unpack_count(in, most);
    struct str *list;

    /* Each has four bytes of length at least: a count that promises more allocates nothing. */
    if (count > in->rest.len / 4)
        in->failed = true;
    *out_count = 0;
    if (in->failed || !count)
        return NULL;
    list = ARENA_ARRAY(arena, struct str, count);
    for (uint32_t i = 0; i < count; i++)
        list[i] = unpack_str(in, each);
    *out_count = in->failed ? 0 : count;
    return list;
}

/* ---- content ---- */

static void pack_head(struct buf *out, const struct mail_content *c)
{
    pack_str(out, c->from);
    pack_str(out, c->reply_to);
    pack_str(out, c->subject);
    pack_str(out, c->message_id);
    pack_str(out, c->in_reply_to);
    pack_str(out, c->references);
    pack_list(out, c->to, c->to_count);
    pack_list(out, c->cc, c->cc_count);
    pack_list(out, c->bcc, c->bcc_count);
    pack_list(out, c->recipients, c->recipient_count);
    pack_str(out, c->sender);
    pack_i64(out, c->date_us);
    pack_str(out, c->preview);
    pack_u32(out, c->attachment_count);
    for (uint32_t i = 0; i < c->attachment_count; i++) {
        const struct mail_attachment *a = &c->attachments[i];
        pack_str(out, a->name);
        pack_str(out, a->content_type);
        pack_u64(out, a->size);
        pack_str(out, str_from(a->sha256));
    }
    pack_u32(out, c->warning_count);
    for (uint32_t i = 0; i < c->warning_count; i++) {
        pack_str(out, c->warnings[i].code);
        pack_str(out, c->warnings[i].detail);
        pack_bool(out, c->warnings[i].blocks);
    }
    pack_u32(out, c->injection_percent);
    pack_list(out, c->flags, c->flag_count);
}

static void unpack_attachments(struct unpack *in, struct arena *arena, struct mail_content *c)
{
    uint32_t count = unpack_count(in, LIMIT_MAIL_PARTS);

    if (count > in->rest.len / 20) /* three texts and a number */
        in->failed = true;
    if (in->failed || !count)
        return;
    c->attachments = ARENA_ARRAY(arena, struct mail_attachment, count);
    for (uint32_t i = 0; i < count; i++) {
        struct mail_attachment *a = &c->attachments[i];
        a->name = unpack_str(in, LIMIT_MAIL_FILE_NAME_BYTES);
        a->content_type = unpack_str(in, LIMIT_MAIL_TYPE_BYTES);
        a->size = unpack_u64(in);
        unpack_text(in, a->sha256, sizeof a->sha256);
    }
    c->attachment_count = count;
}

static void unpack_warnings(struct unpack *in, struct arena *arena, struct mail_content *c)
{
    uint32_t count = unpack_count(in, LIMIT_MAIL_WARNINGS);

    if (in->failed || !count)
        return;
    c->warnings = ARENA_ARRAY(arena, struct mail_warning, count);
    for (uint32_t i = 0; i < count; i++) {
        c->warnings[i].code = unpack_str(in, LIMIT_MAIL_WARNING_BYTES);
        c->warnings[i].detail = unpack_str(in, LIMIT_MAIL_WARNING_BYTES);
        c->warnings[i].blocks = unpack_bool(in);
    }
    c->warning_count = count;
}

static void unpack_head(struct unpack *in, struct arena *arena, struct mail_content *c)
{
    c->from = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    c->reply_to = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    c->subject = unpack_str(in, LIMIT_MAIL_SUBJECT_BYTES);
    c->message_id = unpack_str(in, LIMIT_MAIL_MESSAGE_ID_BYTES);
    c->in_reply_to = unpack_str(in, LIMIT_MAIL_REFERENCES_BYTES);
    c->references = unpack_str(in, LIMIT_MAIL_REFERENCES_BYTES);
    c->to = unpack_list(in, arena, LIMIT_MAIL_SHOWN, LIMIT_MAIL_ADDRESS_BYTES, &c->to_count);
    c->cc = unpack_list(in, arena, LIMIT_MAIL_SHOWN, LIMIT_MAIL_ADDRESS_BYTES, &c->cc_count);
    c->bcc = unpack_list(in, arena, LIMIT_MAIL_SHOWN, LIMIT_MAIL_ADDRESS_BYTES, &c->bcc_count);
    c->recipients = unpack_list(in, arena, LIMIT_MAIL_RECIPIENTS, LIMIT_MAIL_ADDRESS_BYTES, &c->recipient_count);
    c->sender = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    c->date_us = unpack_i64(in);
    c->preview = unpack_str(in, LIMIT_MAIL_PREVIEW_BYTES);
    unpack_attachments(in, arena, c);
    unpack_warnings(in, arena, c);
    c->injection_percent = unpack_u32(in);
    if (c->injection_percent > 100)
        in->failed = true;
    c->flags = unpack_list(in, arena, LIMIT_MAIL_FLAGS, LIMIT_MAIL_WARNING_BYTES, &c->flag_count);
}

static void unpack_files(struct unpack *in, struct mail_content *c)
{
    uint32_t count = unpack_count(in, LIMIT_MAIL_PARTS);

    if (count != c->attachment_count)
        in->failed = true;
    if (in->failed)
        return;
    for (uint32_t i = 0; i < count; i++)
        c->attachments[i].content = unpack_str(in, LIMIT_MAIL_MIME_BYTES);
}

void pack_content(struct buf *out, const struct mail_content *content, unsigned parts)
{
    pack_u8(out, CONTENT_FORM);
    pack_u8(out, (uint8_t)(parts & CONTENT_ALL));
    if (parts & CONTENT_HEAD)
        pack_head(out, content);
    if (parts & CONTENT_TEXT) {
        pack_str(out, content->text);
        pack_str(out, content->html);
        pack_str(out, content->answered_from);
        pack_str(out, content->answered_text);
        pack_i64(out, content->answered_us);
    }
    if (parts & CONTENT_MIME)
        pack_str(out, content->mime);
    if (parts & CONTENT_FILES) {
        pack_u32(out, content->attachment_count);
        for (uint32_t i = 0; i < content->attachment_count; i++)
            pack_str(out, content->attachments[i].content);
    }
}

unsigned unpack_content(struct unpack *in, struct arena *arena, struct mail_content *out)
{
    struct mail_content got = *out;
    unsigned parts;

    if (unpack_u8(in) != CONTENT_FORM)
        in->failed = true;
    parts = unpack_u8(in);
    if (parts & ~(unsigned)CONTENT_ALL)
        in->failed = true;
    if (parts & CONTENT_HEAD) {
        got = (struct mail_content){
            .mime = out->mime,
            .text = out->text,
            .html = out->html,
            .answered_from = out->answered_from,
            .answered_text = out->answered_text,
            .answered_us = out->answered_us,
        };
        unpack_head(in, arena, &got);
    }
    if (parts & CONTENT_TEXT) {
        got.text = unpack_str(in, LIMIT_MAIL_TEXT_BYTES);
        got.html = unpack_str(in, LIMIT_MAIL_HTML_BYTES);
        got.answered_from = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
        got.answered_text = unpack_str(in, LIMIT_MAIL_ANSWERED_BYTES);
        got.answered_us = unpack_i64(in);
    }
    if (parts & CONTENT_MIME)
        got.mime = unpack_str(in, LIMIT_MAIL_MIME_BYTES);
    if (parts & CONTENT_FILES)
        unpack_files(in, &got);
    if (in->failed) {
        *out = (struct mail_content){ 0 };
        return 0;
    }
    *out = got;
    return parts;
}

/* ---- draft ---- */

void pack_draft(struct buf *out, const struct mail_draft *d)
{
    pack_u8(out, DRAFT_FORM);
    pack_str(out, d->from_address);
    pack_str(out, d->from_name);
    pack_list(out, d->to, d->to_count);
    pack_list(out, d->cc, d->cc_count);
    pack_list(out, d->bcc, d->bcc_count);
    pack_str(out, d->reply_to);
    pack_str(out, d->subject);
    pack_str(out, d->markdown);
    pack_str(out, d->text);
    pack_str(out, d->html);
    pack_str(out, d->signature);
    pack_str(out, d->in_reply_to);
    pack_str(out, d->references);
    pack_str(out, d->message_id);
    pack_i64(out, d->date_us);
    pack_str(out, d->identity);
    pack_u32(out, d->attachment_count);
    for (uint32_t i = 0; i < d->attachment_count; i++) {
        pack_str(out, d->attachments[i].name);
        pack_str(out, d->attachments[i].content_type);
        pack_str(out, d->attachments[i].content);
    }
}

void unpack_draft(struct unpack *in, struct arena *arena, struct mail_draft *out)
{
    struct mail_draft d = { 0 };
    struct mail_attachment *attachments;

    if (unpack_u8(in) != DRAFT_FORM)
        in->failed = true;
    d.from_address = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    d.from_name = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    d.to = unpack_list(in, arena, LIMIT_MAIL_RECIPIENTS, LIMIT_MAIL_ADDRESS_BYTES, &d.to_count);
    d.cc = unpack_list(in, arena, LIMIT_MAIL_RECIPIENTS, LIMIT_MAIL_ADDRESS_BYTES, &d.cc_count);
    d.bcc = unpack_list(in, arena, LIMIT_MAIL_RECIPIENTS, LIMIT_MAIL_ADDRESS_BYTES, &d.bcc_count);
    d.reply_to = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    d.subject = unpack_str(in, LIMIT_MAIL_SUBJECT_BYTES);
    d.markdown = unpack_str(in, LIMIT_MAIL_DRAFT_BYTES);
    d.text = unpack_str(in, LIMIT_MAIL_DRAFT_BYTES);
    d.html = unpack_str(in, LIMIT_MAIL_DRAFT_BYTES);
    d.signature = unpack_str(in, LIMIT_MAIL_SIGNATURE_BYTES);
    d.in_reply_to = unpack_str(in, LIMIT_MAIL_MESSAGE_ID_BYTES);
    d.references = unpack_str(in, LIMIT_MAIL_REFERENCES_BYTES);
    d.message_id = unpack_str(in, LIMIT_MAIL_MESSAGE_ID_BYTES);
    d.date_us = unpack_i64(in);
    d.identity = unpack_str(in, LIMIT_MAIL_SUBJECT_BYTES);
    d.attachment_count = unpack_count(in, LIMIT_MAIL_ATTACHMENTS);
    if (!in->failed && d.attachment_count) {
        attachments = ARENA_ARRAY(arena, struct mail_attachment, d.attachment_count);
        for (uint32_t i = 0; i < d.attachment_count; i++) {
            attachments[i].name = unpack_str(in, LIMIT_MAIL_FILE_NAME_BYTES);
            attachments[i].content_type = unpack_str(in, LIMIT_MAIL_TYPE_BYTES);
            attachments[i].content = unpack_str(in, LIMIT_MAIL_ATTACHMENTS_BYTES);
            attachments[i].size = attachments[i].content.len;
        }
        d.attachments = attachments;
    }
    *out = in->failed ? (struct mail_draft){ 0 } : d;
}
