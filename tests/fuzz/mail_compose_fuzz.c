/*
 * A draft whose fields come from the input, one after the other with byte 0xFE between. What is composed has no header that
 * was not asked for, reads back as the approver saw it, and fits the packed form. Odd first byte: the input is a request
 * of the composer, packed.
 */
#include <stdlib.h>

#include "base/limits.h"
#include "mail/compose.h"
#include "mail/content_pack.h"
#include "mail/text.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    composer_prepare();
    return 0;
}

static struct str take(struct str *rest)
{
    struct str field = STR("");

    (void)str_cut(rest, (char)0xFE, &field);
    return field;
}

/* Lines of a header are folded at white space, which may change its amount. */
static void check_same_words(struct str a, struct str b)
{
    size_t i = 0, k = 0;

    for (;;) {
        while (i < a.len && a.at[i] == ' ')
            i++;
        while (k < b.len && b.at[k] == ' ')
            k++;
        if (i == a.len || k == b.len)
            break;
        if (a.at[i++] != b.at[k++])
            abort();
    }
    if (i != a.len || k != b.len)
        abort();
}

static void check_same(const struct str *sent, uint32_t count, const struct str *got, uint32_t got_count)
{
    if (count != got_count)
        abort();
    for (uint32_t i = 0; i < count; i++)
        check_same_words(sent[i], got[i]);
}

static void check(const struct mail_content *c, struct arena *arena)
{
    auto_buf struct buf packed = buf_make(NULL, LIMIT_MAIL_CONTENT_BYTES);
    struct mail_content got = { 0 };
    struct err err;

    pack_content(&packed, c, CONTENT_ALL);
    struct unpack in = unpack_from(buf_str(&packed));
    if (packed.overflowed || unpack_content(&in, arena, &got) != CONTENT_ALL || !unpack_done(&in, &err))
        abort();
    if (!parse_message(c->mime, arena, &got, &err))
        abort();
    check_same(c->to, c->to_count, got.to, got.to_count);
    check_same(c->cc, c->cc_count, got.cc, got.cc_count);
    if (got.attachment_count != c->attachment_count || !str_eq(got.sender, c->sender) || got.bcc_count)
        abort();
    for (uint32_t i = 0; i < got.attachment_count; i++) {
        if (!str_eq(got.attachments[i].content, c->attachments[i].content))
            abort();
        check_same_words(c->attachments[i].name, got.attachments[i].name);
    }
    check_same_words(c->subject, got.subject);
    check_same_words(c->from, got.from);
    check_same_words(c->reply_to, got.reply_to);
    if (text_preview(arena, c->text).len && !str_eq(c->text, got.text))
        abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct mail_content content = { 0 };
    struct mail_draft draft = { 0 };
    struct arena arena;
    struct err err;

    if (!size)
        return 0;
    arena_init(&arena);
    struct str rest = str_of(data + 1, size - 1);
    if (data[0] & 1) {
        struct unpack in = unpack_from(rest);
        unpack_draft(&in, &arena, &draft);
        if (unpack_done(&in, &err) && compose_message(&draft, &arena, &content, &err))
            check(&content, &arena);
    } else {
        struct str to = take(&rest), cc = take(&rest), bcc = take(&rest);
        struct mail_attachment file = { .name = take(&rest), .content_type = take(&rest) };
        draft = (struct mail_draft){
            .from_address = STR("agent@mail.example"),
            .from_name = take(&rest),
            .to = &to,
            .to_count = 1,
            .cc = &cc,
            .cc_count = cc.len > 0,
            .bcc = &bcc,
            .bcc_count = bcc.len > 0,
            .reply_to = take(&rest),
            .subject = take(&rest),
            .in_reply_to = take(&rest),
            .references = take(&rest),
            .signature = take(&rest),
            .message_id = STR("<01ABC@mail.example>"),
            .date_us = 1,
            .attachments = &file,
            .attachment_count = file.name.len > 0,
        };
        file.content = take(&rest);
        *(data[0] & 2 ? &draft.markdown : data[0] & 4 ? &draft.text : &draft.html) = rest;
        if (compose_message(&draft, &arena, &content, &err))
            check(&content, &arena);
    }
    arena_done(&arena);
    return 0;
}
