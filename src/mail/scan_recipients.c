/*
 * Warnings, and recipients that only an untrusted body has named. In front: it has both messages, the composer has one.
 */
#include "base/limits.h"
#include "mail/scan.h"
#include "mail/text.h"

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

static bool has_nocase(struct str text, struct str part)
{
    if (!part.len)
        return false;
    char first = char_lower(part.at[0]);
    for (size_t i = 0; i + part.len <= text.len; i++)
        if (char_lower(text.at[i]) == first && str_eq_nocase(str_of(text.at + i, part.len), part))
            return true;
    return false;
}

static bool is_in_list(struct str address, const struct str *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (has_nocase(list[i], address))
            return true;
    return false;
}

void mail_scan_recipients(struct mail_content *content, const struct mail_content *answered, struct arena *arena)
{
    for (uint32_t i = 0; i < content->recipient_count; i++) {
        struct str to = content->recipients[i];
        if (has_nocase(answered->from, to) || has_nocase(answered->sender, to) || has_nocase(answered->reply_to, to) ||
            is_in_list(to, answered->to, answered->to_count) || is_in_list(to, answered->cc, answered->cc_count))
            continue;
        if (has_nocase(answered->text, to) || has_nocase(answered->html, to) || has_nocase(answered->subject, to))
            content_warn(
                content, arena, "new_recipient", false,
                arena_format(arena, "%.*s is only named in the body of the message that this answers.", STR_ARG(to)));
    }
}
