/*
 * Front's half of composing: checks sizes, packs the draft, asks a child of the composer and unpacks what it has made.
 */
#include "base/limits.h"
#include "mail/compose.h"
#include "mail/content_pack.h"
#include "mail/inside.h"

static bool check_size(struct str text, size_t most, const char *field, struct err *err)
{
    return text.len <= most
               ? true
               : err_set(err, ERR_LIMIT, "%s has %zu bytes: at most %zu are allowed", field, text.len, most);
}

static bool check_list(const struct str *list, uint32_t count, const char *field, struct err *err)
{
    if (count > LIMIT_MAIL_RECIPIENTS)
        return err_set(err, ERR_LIMIT, "%s has %u addresses: at most %d are allowed", field, count,
                       LIMIT_MAIL_RECIPIENTS);
    for (uint32_t i = 0; i < count; i++)
        if (!check_size(list[i], LIMIT_MAIL_ADDRESS_BYTES, field, err))
            return false;
    return true;
}

/* What the packed form cannot hold; everything else is checked by the composer. */
static bool draft_check(const struct mail_draft *d, struct err *err)
{
    size_t total = 0;

    if (!check_list(d->to, d->to_count, "to", err) || !check_list(d->cc, d->cc_count, "cc", err) ||
        !check_list(d->bcc, d->bcc_count, "bcc", err) ||
        !check_size(d->from_address, LIMIT_MAIL_ADDRESS_BYTES, "from", err) ||
        !check_size(d->from_name, LIMIT_MAIL_ADDRESS_BYTES, "the sender's name", err) ||
        !check_size(d->reply_to, LIMIT_MAIL_ADDRESS_BYTES, "reply_to", err) ||
        !check_size(d->subject, LIMIT_MAIL_SUBJECT_BYTES, "subject", err) ||
        !check_size(d->markdown, LIMIT_MAIL_DRAFT_BYTES, "markdown", err) ||
        !check_size(d->text, LIMIT_MAIL_DRAFT_BYTES, "text", err) ||
        !check_size(d->html, LIMIT_MAIL_DRAFT_BYTES, "html", err) ||
        !check_size(d->signature, LIMIT_MAIL_SIGNATURE_BYTES, "the signature", err) ||
        !check_size(d->in_reply_to, LIMIT_MAIL_MESSAGE_ID_BYTES, "in_reply_to", err) ||
        !check_size(d->message_id, LIMIT_MAIL_MESSAGE_ID_BYTES, "message_id", err) ||
        !check_size(d->identity, LIMIT_MAIL_SUBJECT_BYTES, "identity", err))
        return false;
    if (d->attachment_count > LIMIT_MAIL_ATTACHMENTS)
        return err_set(err, ERR_LIMIT, "the message has %u attachments: at most %d are allowed", d->attachment_count,
                       LIMIT_MAIL_ATTACHMENTS);
    for (uint32_t i = 0; i < d->attachment_count; i++) {
        total += d->attachments[i].content.len;
        if (!check_size(d->attachments[i].name, LIMIT_MAIL_FILE_NAME_BYTES, "an attachment's name", err) ||
            !check_size(d->attachments[i].content_type, LIMIT_MAIL_TYPE_BYTES, "an attachment's content type", err))
            return false;
    }
    if (total > LIMIT_MAIL_ATTACHMENTS_BYTES)
        return err_set(err, ERR_LIMIT, "the attachments have %zu bytes together: at most %d are allowed", total,
                       LIMIT_MAIL_ATTACHMENTS_BYTES);
    return true;
}

/* A long thread has more references than a header should: the first stays, and as many of the last as fit (RFC 5537). */
static struct str references_trim(struct arena *arena, struct str references)
{
    struct str rest = references, first;

    if (references.len <= LIMIT_MAIL_REFERENCES_BYTES)
        return references;
    (void)str_cut(&rest, ' ', &first);
    if (first.len > LIMIT_MAIL_MESSAGE_ID_BYTES)
        first = STR("");
    size_t from = rest.len - MIN(rest.len, LIMIT_MAIL_REFERENCES_BYTES - first.len - 1);
    while (from < rest.len && rest.at[from] != ' ')
        from++;
    return arena_format(arena, "%.*s%.*s", STR_ARG(first), (int)(rest.len - from), rest.at + from);
}

static bool ask(struct mail *mail, const char *inbox_id, const struct buf *request, struct arena *arena,
                struct mail_content *out, uint32_t *out_retry_s, struct err *err)
{
    struct mail_content content = { 0 };
    struct unpack reply;

    if (request->overflowed)
        return err_set(err, ERR_LIMIT, "the message is too large");
    if (!mail_composer_call(mail, inbox_id, buf_str(request), arena, &reply, out_retry_s, err))
        return false;
    (void)unpack_content(&reply, arena, &content);
    if (!unpack_done(&reply, err)) {
        err->kind = ERR_INTERNAL;
        return err_wrap(err, "the composer's answer");
    }
    *out = content;
    return true;
}

bool mail_compose(struct mail *mail, const char *inbox_id, const struct mail_draft *draft, struct arena *arena,
                  struct mail_content *out, uint32_t *out_retry_s, struct err *err)
{
    struct buf request = mail_request(arena);
    struct mail_draft d = *draft;

    *out_retry_s = 0;
    if (!draft_check(draft, err))
        return false;
    d.references = references_trim(arena, d.references);
    pack_u8(&request, COMPOSER_COMPOSE);
    pack_draft(&request, &d);
    return ask(mail, inbox_id, &request, arena, out, out_retry_s, err) || err_wrap(err, "compose a message");
}

bool mail_parse(struct mail *mail, const char *inbox_id, struct str mime, struct arena *arena, struct mail_content *out,
                struct err *err)
{
    struct buf request = mail_request(arena);
    uint32_t retry_s = 0;

    if (mime.len > LIMIT_MAIL_MIME_BYTES)
        return err_set(err, ERR_LIMIT, "the message has %zu bytes: at most %d are allowed", mime.len,
                       LIMIT_MAIL_MIME_BYTES);
    pack_u8(&request, COMPOSER_PARSE);
    pack_str(&request, mime);
    if (ask(mail, inbox_id, &request, arena, out, &retry_s, err))
        return true;
    if (retry_s)
        err->kind = ERR_UNAVAILABLE;
    return err_wrap(err, "read a message");
}
