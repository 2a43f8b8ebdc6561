#include "mail_served.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/encode.h"
#include "io/listen.h"

/* ---- the fake ---- */

struct mail_fake fake = { .gate = PTHREAD_MUTEX_INITIALIZER };

static printf_like(1, 2) void say(const char *format, ...)
{
    size_t len = strlen(fake.said);
    va_list args;

    va_start(args, format);
    vsnprintf(fake.said + len, sizeof fake.said - len, format, args);
    va_end(args);
}

static bool end(struct err *err)
{
    if (fake.fail.kind == ERR_NONE)
        return true;
    *err = fake.fail;
    return false;
}
#define SAY(...) (say(__VA_ARGS__), say("\n"), end(err))
#define S(s) STR_ARG(s)

static struct inbox_info an_inbox(void)
{
    struct inbox_info info = { .tenant = STR("default"),
                               .address = STR("agent@mail.example"),
                               .display_name = STR("Agent"),
                               .mode = MAIL_GATED_SEND,
                               .is_active = true,
                               .created_us = 1700000000000000 };
    strcpy(info.id, FAKE_INBOX);
    strcpy(info.tenant_id, "01JMXK9F2A0000000000000009");
    return info;
}

static struct str to[] = { STR_INIT("Bob <bob@b.example>"), STR_INIT("carol@c.example") };
static struct mail_attachment file = {
    .name = STR_INIT("100%.txt"), .content_type = STR_INIT("text/plain"), .content = STR_INIT("hello"), .size = 5
};
static struct mail_pair tags[] = { { STR_INIT("a"), STR_INIT("true") } };
static struct mail_warning warnings[] = { { .code = STR_INIT("secret"), .detail = STR_INIT("a key is in the text") } };

static struct mail_message a_message(void)
{
    struct mail_message m = { .direction = fake.direction,
                              .state = fake.state,
                              .in_status = fake.in_status,
                              .created_us = 1700000000000000,
                              .received_us = fake.direction == MAIL_INBOUND ? 1700000001000000 : 0,
                              .has_content = !fake.has_no_content,
                              .label = STR("spam"),
                              .tags = tags,
                              .tag_count = 1 };

    strcpy(m.id, FAKE_MESSAGE);
    strcpy(m.thread_id, FAKE_THREAD);
    strcpy(m.inbox_id, FAKE_INBOX);
    strcpy(m.sha256, FAKE_SHA);
    if (m.has_content)
        m.content = (struct mail_content){ .from = STR("Ann <ann@a.example>"),
                                           .subject = STR("Hi"),
                                           .to = to,
                                           .to_count = 2,
                                           .text = STR("the text"),
                                           .preview = STR("the"),
                                           .attachments = &file,
                                           .attachment_count = 1,
                                           .warnings = warnings,
                                           .warning_count = 1 };
    return m;
}

void mail_caller_wipe(struct mail_caller *caller)
{
    secret_wipe(&caller->credential);
}

static void fill(struct mail_caller *out, enum mail_caller_kind kind, const char *id, uint32_t scopes)
{
    *out = (struct mail_caller){ .kind = kind, .scopes = scopes };
    snprintf(out->key_id, sizeof out->key_id, "%s", id);
    if (kind == MAIL_CALLER_INBOX || kind == MAIL_CALLER_SANDBOX)
        strcpy(out->inbox_id, FAKE_INBOX);
}

bool mail_caller_by_key(const struct actions *actions, struct str key, struct mail_caller *out, struct err *err)
{
    static const struct {
        const char *key;
        uint32_t scopes;
        enum mail_caller_kind kind;
    } known[] = {
        { KEY_FULL, MAIL_SCOPE_READ | MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN, MAIL_CALLER_INBOX },
        { KEY_READ, MAIL_SCOPE_READ, MAIL_CALLER_INBOX },
        { KEY_SEND, MAIL_SCOPE_SEND, MAIL_CALLER_INBOX },
        { KEY_EYES, MAIL_SCOPE_OVERSIGHT, MAIL_CALLER_OVERSIGHT },
        { KEY_LOBSTER, MAIL_SCOPE_READ | MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN, MAIL_CALLER_ACCOUNT },
    };

    (void)actions;
    if (str_eq(key, STR(KEY_BROKEN)))
        return err_set(err, ERR_UNAVAILABLE, "the store is busy");
    for (size_t i = 0; i < COUNT_OF(known) && !fake.no_key_is_valid; i++)
        if (str_eq(key, str_from(known[i].key))) {
            fill(out, known[i].kind, known[i].key, known[i].scopes);
            return true;
        }
    return err_set(err, ERR_DENIED, "the key is not valid");
}

bool mail_caller_by_admin(const struct actions *actions, struct str token, struct mail_caller *out, struct err *err)
{
    (void)actions;
    if (!str_eq(token, STR(ADMIN)))
        return err_set(err, ERR_DENIED, "the admin token is not valid");
    fill(out, MAIL_CALLER_OPERATOR, "", 0);
    return true;
}

bool mail_caller_by_sandbox(const struct actions *actions, struct str sandbox_id, struct str key,
                            struct mail_caller *out, struct err *err)
{
    (void)actions;
    if (str_eq(key, STR(KEY_FULL)))
        return err_set(err, ERR_DENIED, "the key is of another inbox");
    say("by sandbox %.*s key '%.*s'\n", S(sandbox_id), S(key));
    fill(out, MAIL_CALLER_SANDBOX, "", MAIL_SCOPE_SEND);
    return true;
}

#define ARGS const struct actions *actions, const struct mail_caller *caller
#define UNUSED (void)actions, (void)caller, (void)arena

bool action_inbox_create(ARGS, const struct inbox_want *want, struct arena *arena, struct inbox_info *out,
                         struct secret *out_key, bool *out_pending, struct err *err)
{
    UNUSED;
    *out = an_inbox();
    out->made_tenant = str_eq(want->tenant, STR("acme"));
    *out_pending = fake.asks_for_code && !want->approval_code.len;
    return secret_set(out_key, STR("mm_live_new")) &&
           SAY("inbox_create local=%.*s name=%.*s tenant=%.*s mode=%d code=%.*s", S(want->local), S(want->display_name),
               S(want->tenant), want->mode, S(want->approval_code));
}

bool action_inbox_list(ARGS, struct arena *arena, struct inbox_info **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct inbox_info);
    **out = an_inbox();
    *out_count = 1;
    return SAY("inbox_list");
}

bool action_inbox_get(ARGS, struct str ref, struct arena *arena, struct inbox_info *out, struct err *err)
{
    UNUSED;
    *out = an_inbox();
    return SAY("inbox_get %.*s", S(ref));
}

static void say_text(const char *name, const struct str *text)
{
    if (text)
        say(" %s='%.*s'", name, S(*text));
}

static void say_int(const char *name, int value)
{
    if (value != -1)
        say(" %s=%d", name, value);
}

bool action_inbox_update(ARGS, struct str ref, const struct inbox_change *change, struct arena *arena,
                         struct inbox_info *out, bool *out_pending, struct err *err)
{
    UNUSED;
    say("inbox_update %.*s", S(ref));
    say_text("display_name", change->display_name);
    say_text("signature", change->signature);
    say_text("auto_cc", change->auto_cc);
    say_text("auto_bcc", change->auto_bcc);
    say_int("mode", change->mode);
    say_int("undo", change->undo_s);
    say_int("schedule_first", change->schedule_first);
    say_int("scheduling", change->scheduling_enabled);
    say_int("forward", change->forward_inbound);
    say_int("mcp", change->mcp_configured);
    say_int("extract", change->auto_extract);
    *out = an_inbox();
    *out_pending = fake.asks_for_code && !change->approval_code.len;
    return SAY("%s", "");
}

bool action_inbox_delete(ARGS, struct str ref, struct arena *arena, struct err *err)
{
    UNUSED;
    return SAY("inbox_delete %.*s", S(ref));
}

bool action_inbox_request_mode(ARGS, struct str ref, enum mail_mode mode, struct arena *arena, struct err *err)
{
    UNUSED;
    return SAY("inbox_request_mode %.*s %s", S(ref), mail_mode_name[mode]);
}

bool action_inbox_raise_mode(ARGS, struct str ref, struct str code, int mode, struct arena *arena,
                             struct inbox_info *out, struct err *err)
{
    UNUSED;
    *out = an_inbox();
    return SAY("inbox_raise_mode %.*s code=%.*s mode=%d", S(ref), S(code), mode);
}

static struct mail_allow an_entry(void)
{
    struct mail_allow entry = { .pattern = STR("*@b.example"), .created_us = 1700000000000000 };

    strcpy(entry.id, "allow1");
    return entry;
}

bool action_allow_list(ARGS, struct str ref, struct arena *arena, struct mail_allow **out, size_t *out_count,
                       struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_allow);
    **out = an_entry();
    *out_count = 1;
    return SAY("allow_list %.*s", S(ref));
}

bool action_allow_add(ARGS, struct str ref, struct str pattern, struct str code, struct arena *arena,
                      struct mail_allow *out, bool *out_pending, struct err *err)
{
    UNUSED;
    *out = an_entry();
    *out_pending = fake.asks_for_code && !code.len;
    return SAY("allow_add %.*s %.*s code=%.*s", S(ref), S(pattern), S(code));
}

bool action_allow_remove(ARGS, struct str ref, struct str id, struct str code, struct arena *arena, bool *out_pending,
                         struct err *err)
{
    UNUSED;
    *out_pending = fake.asks_for_code && !code.len;
    return SAY("allow_remove %.*s %.*s code=%.*s", S(ref), S(id), S(code));
}

static struct mail_key_info a_key(void)
{
    struct mail_key_info key = { .name = STR("k"),
                                 .prefix = STR("mm_live_abc"),
                                 .tenant = STR("default"),
                                 .scopes = MAIL_SCOPE_READ | MAIL_SCOPE_SEND,
                                 .created_us = 1700000000000000,
                                 .is_active = true };

    strcpy(key.id, "key1");
    return key;
}

bool action_mail_key_create(ARGS, const struct mail_key_want *want, struct arena *arena, struct mail_key_info *out,
                            struct secret *out_key, bool *out_pending, struct err *err)
{
    UNUSED;
    *out = a_key();
    *out_pending = fake.asks_for_code && !want->approval_code.len;
    return secret_set(out_key, STR("mm_live_made")) &&
           SAY("key_create %.*s scopes=%u tenant=%.*s inbox=%.*s code=%.*s", S(want->name), want->scopes,
               S(want->tenant), S(want->inbox_ref), S(want->approval_code));
}

bool action_mail_key_list(ARGS, struct arena *arena, struct mail_key_info **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_key_info);
    **out = a_key();
    *out_count = 1;
    return SAY("key_list");
}

bool action_mail_key_update(ARGS, struct str id, const struct str *name, uint32_t scopes, struct str code,
                            struct arena *arena, bool *out_pending, struct err *err)
{
    UNUSED;
    *out_pending = fake.asks_for_code && !code.len;
    say("key_update %.*s", S(id));
    say_text("name", name);
    return SAY(" scopes=%u", scopes);
}

bool action_mail_key_revoke(ARGS, struct str id, struct str code, struct arena *arena, bool *out_pending,
                            struct err *err)
{
    UNUSED;
    *out_pending = fake.asks_for_code && !code.len;
    return SAY("key_revoke %.*s code=%.*s", S(id), S(code));
}

bool action_mail_codes(ARGS, struct arena *arena, struct mail_code **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_code);
    **out = (struct mail_code){ .code = STR("A7X-29K"), .what = STR("make the inbox x"), .tenant = STR("default") };
    *out_count = 1;
    return SAY("codes");
}

static struct mail_grant a_grant(void)
{
    struct mail_grant grant = { .verbs = MAIL_GRANT_LIST | MAIL_GRANT_READ, .reason = STR("audit") };

    strcpy(grant.id, "grant1");
    strcpy(grant.inbox_id, FAKE_INBOX);
    return grant;
}

bool action_grant_create(ARGS, struct str whom, struct str inbox_ref, unsigned verbs, uint64_t expires_s,
                         struct str reason, struct arena *arena, struct mail_grant *out, struct err *err)
{
    UNUSED;
    *out = a_grant();
    return SAY("grant_create to=%.*s inbox=%.*s verbs=%u expires=%llu reason=%.*s", S(whom), S(inbox_ref), verbs,
               (unsigned long long)expires_s, S(reason));
}

bool action_grant_list(ARGS, struct arena *arena, struct mail_grant **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_grant);
    **out = a_grant();
    *out_count = 1;
    return SAY("grant_list");
}

bool action_grant_revoke(ARGS, struct str id, struct arena *arena, struct err *err)
{
    UNUSED;
    return SAY("grant_revoke %.*s", S(id));
}

bool action_account_create(const struct actions *actions, struct str place, struct arena *arena,
                           struct mail_account *out, struct secret *out_token, uint32_t *out_retry_s, struct err *err)
{
    (void)actions, (void)arena;
    *out = (struct mail_account){ .name = STR("") };
    strcpy(out->id, "01JMXK9F2A0000000000000008");
    *out_retry_s = fake.retry_s;
    return secret_set(out_token, STR(KEY_LOBSTER)) && SAY("account_create %.*s", S(place));
}

bool action_account_get(ARGS, struct arena *arena, struct mail_account *out, struct err *err)
{
    UNUSED;
    *out = (struct mail_account){ .name = STR("acme"),
                                  .tenant = STR("default"),
                                  .sends_per_day = 100,
                                  .inbox_most = 5,
                                  .oversight_address = STR("eyes@x.example") };
    strcpy(out->id, "01JMXK9F2A0000000000000008");
    return SAY("account_get");
}

bool action_account_usage(ARGS, int64_t from_us, int64_t to_us, struct arena *arena, struct mail_usage *out,
                          struct err *err)
{
    UNUSED;
    *out = (struct mail_usage){ .sent = 3, .received = 4, .approved = 1, .rejected = 1 };
    return SAY("usage %lld..%lld", (long long)from_us, (long long)to_us);
}

bool action_oversight_address(ARGS, struct str tenant, struct str address, struct str code, struct arena *arena,
                              bool *out_pending, struct err *err)
{
    UNUSED;
    *out_pending = fake.asks_for_code && !code.len;
    return SAY("oversight_address %.*s tenant=%.*s code=%.*s", S(address), S(tenant), S(code));
}

static void say_list(const char *name, const struct str *list, uint32_t count)
{
    say(" %s=", name);
    for (uint32_t i = 0; i < count; i++)
        say("%s%.*s", i ? "|" : "", S(list[i]));
}

static void say_want(const struct send_want *want)
{
    say(" inbox=%.*s", S(want->inbox_ref));
    say_list("to", want->to, want->to_count);
    say_list("cc", want->cc, want->cc_count);
    say_list("bcc", want->bcc, want->bcc_count);
    say(" subject=%.*s markdown=%.*s text=%.*s html=%.*s", S(want->subject), S(want->markdown), S(want->text),
        S(want->html));
    for (uint32_t i = 0; i < want->attachment_count; i++)
        say(" file=%.*s:%.*s:%.*s", S(want->attachments[i].name), S(want->attachments[i].content_type),
            S(want->attachments[i].content));
    say(" idem=%.*s at=%lld first=%d answers=%.*s", S(want->idempotency_key), (long long)want->send_at_us,
        want->schedule_first, S(want->answers));
}

bool action_send(ARGS, const struct send_want *want, struct arena *arena, struct sent_info *out, uint32_t *out_retry_s,
                 struct err *err)
{
    UNUSED;
    *out = (struct sent_info){ .accepted = { .state = fake.state, .is_repeat = fake.is_repeat } };
    strcpy(out->accepted.id, FAKE_MESSAGE);
    strcpy(out->accepted.thread_id, FAKE_THREAD);
    strcpy(out->accepted.sha256, FAKE_SHA);
    strcpy(out->inbox_id, FAKE_INBOX);
    *out_retry_s = fake.retry_s;
    say("send");
    say_want(want);
    return SAY("%s", "");
}

bool action_send_cancel(ARGS, struct str inbox_ref, struct str message_id, struct arena *arena,
                        struct mail_message *out, struct err *err)
{
    UNUSED;
    *out = a_message();
    return SAY("cancel %.*s %.*s", S(inbox_ref), S(message_id));
}

bool action_send_edit(ARGS, struct str inbox_ref, struct str message_id, const struct send_want *want,
                      struct arena *arena, struct mail_message *out, struct err *err)
{
    UNUSED;
    *out = a_message();
    say("edit %.*s %.*s", S(inbox_ref), S(message_id));
    say_want(want);
    return SAY("%s", "");
}

static struct held_message a_held(void)
{
    return (struct held_message){ .message = a_message(), .inbox = an_inbox() };
}

bool action_pending(ARGS, const struct pending_want *want, struct arena *arena, struct pending_page *out,
                    struct err *err)
{
    UNUSED;
    *out = (struct pending_page){ .rows = ARENA_NEW(arena, struct held_message), .count = 1, .cursor = STR("") };
    out->rows[0] = a_held();
    if (fake.list_has_no_text) /* past a limit a list has none */
        out->rows[0].message.content.text = STR("");
    if (fake.page_has_more) {
        out->cursor = STR("1.NEXT");
        out->rows[0].message.content = (struct mail_content){ 0 };
        out->rows[0].message.has_content = false;
        out->rows[0].is_truncated = true;
    }
    return SAY("pending inbox=%.*s cursor=%.*s", S(want->inbox), S(want->cursor));
}

bool action_held_get(ARGS, struct str message_id, struct arena *arena, struct held_message *out, struct err *err)
{
    UNUSED;
    *out = a_held();
    return SAY("held_get %.*s", S(message_id));
}

bool action_decide(ARGS, struct str message_id, bool approve, struct str reason, struct str sha256, struct arena *arena,
                   struct mail_message *out, struct err *err)
{
    UNUSED;
    *out = a_message();
    return SAY("decide %.*s %s reason=%.*s sha=%.*s", S(message_id), approve ? "approve" : "reject", S(reason),
               S(sha256));
}

bool action_approval_link(ARGS, struct str message_id, struct arena *arena, struct secret *out_token,
                          int64_t *out_expires_us, struct err *err)
{
    UNUSED;
    *out_expires_us = 1700000000000000;
    return secret_set(out_token, STR("tok")) && SAY("approval_link %.*s", S(message_id));
}

bool action_approval_show(const struct actions *actions, struct str token, struct arena *arena,
                          struct held_message *out, struct err *err)
{
    (void)actions, (void)arena;
    *out = fake.page ? *fake.page : a_held();
    return SAY("approval_show %.*s", S(token));
}

bool action_approval_decide(const struct actions *actions, struct str token, bool approve, struct str reason,
                            struct str sha256, struct arena *arena, struct mail_message *out, struct err *err)
{
    (void)actions, (void)arena;
    *out = a_message();
    return SAY("approval_decide %.*s %s reason=%.*s sha=%.*s", S(token), approve ? "approve" : "reject", S(reason),
               S(sha256));
}

bool action_mail_list(ARGS, struct str inbox_ref, const struct mail_filter *filter, struct arena *arena,
                      struct mail_page *out, struct err *err)
{
    UNUSED;
    fake.lists_at_work++;
    pthread_mutex_lock(&fake.gate);
    pthread_mutex_unlock(&fake.gate);
    *out = (struct mail_page){ .rows = ARENA_NEW(arena, struct mail_message),
                               .count = fake.page_is_empty ? 0 : 1,
                               .more = fake.page_has_more };
    strcpy(out->cursor, FAKE_CURSOR);
    out->rows[0] = a_message();
    return SAY("list %.*s in=%d out=%d in_status=%d states=%x from=%.*s subject=%.*s after=%lld before=%lld files=%d "
               "since=%.*s cursor=%.*s offset=%u limit=%u spam=%d",
               S(inbox_ref), filter->inbound, filter->outbound, filter->in_status, filter->states, S(filter->from_part),
               S(filter->subject_part), (long long)filter->after_us, (long long)filter->before_us,
               filter->has_attachments, S(filter->since_id), S(filter->before_id), filter->offset, filter->limit,
               filter->include_spam);
}

bool action_mail_search(ARGS, const struct mail_filter *filter, struct arena *arena, struct mail_page *out,
                        struct err *err)
{
    UNUSED;
    *out = (struct mail_page){ .rows = ARENA_NEW(arena, struct mail_message), .count = 1, .more = fake.page_has_more };
    out->rows[0] = a_message();
    if (out->more)
        memcpy(out->cursor, out->rows[0].id, sizeof out->cursor);
    return SAY("search in_status=%d spam=%d text=%.*s from=%.*s limit=%u", filter->in_status, filter->include_spam,
               S(filter->text), S(filter->from_part), filter->limit);
}

bool action_mail_read(ARGS, struct str inbox_ref, struct str message_id, unsigned want, struct arena *arena,
                      struct mail_message *out, struct err *err)
{
    UNUSED;
    *out = a_message();
    return SAY("read %.*s %.*s want=%u", S(inbox_ref), S(message_id), want);
}

static struct mail_attachment a_file(void)
{
    struct mail_attachment got = file;

    if (fake.file_type.len)
        got.content_type = fake.file_type;
    return got;
}

bool action_attachment_read(ARGS, struct str inbox_ref, struct str message_id, struct str name, bool by_number,
                            struct arena *arena, struct mail_attachment *out, struct err *err)
{
    UNUSED;
    *out = a_file();
    return SAY("attachment %.*s %.*s '%.*s' number=%d", S(inbox_ref), S(message_id), S(name), by_number);
}

bool action_attachment_link(ARGS, struct str inbox_ref, struct str message_id, struct str name, bool by_number,
                            struct arena *arena, struct mail_attachment *out, struct secret *out_token, struct err *err)
{
    UNUSED;
    *out = a_file();
    return secret_set(out_token, STR("tok")) &&
           SAY("attachment_link %.*s %.*s '%.*s' number=%d", S(inbox_ref), S(message_id), S(name), by_number);
}

bool action_attachment_open(const struct actions *actions, struct str token, struct arena *arena,
                            struct mail_attachment *out, struct err *err)
{
    (void)actions, (void)arena;
    *out = a_file();
    return SAY("attachment_open %.*s", S(token));
}

bool action_held_attachment(ARGS, struct str message_id, struct str number, struct arena *arena,
                            struct mail_attachment *out, struct err *err)
{
    UNUSED;
    *out = a_file();
    return SAY("held_attachment %.*s %.*s", S(message_id), S(number));
}

bool action_approval_attachment(const struct actions *actions, struct str token, struct str number, struct arena *arena,
                                struct mail_attachment *out, struct err *err)
{
    (void)actions, (void)arena;
    *out = a_file();
    return SAY("approval_attachment %.*s %.*s", S(token), S(number));
}

bool action_mail_label(ARGS, struct str message_id, bool is_spam, struct arena *arena, struct mail_message *out,
                       struct err *err)
{
    UNUSED;
    *out = a_message();
    return SAY("label %.*s spam=%d", S(message_id), is_spam);
}

static struct mail_thread a_thread(struct arena *arena)
{
    struct mail_thread thread = {
        .subject = STR("Hi"), .message_count = 501, .shown_count = 1, .participants = to, .participant_count = 2
    };

    strcpy(thread.id, FAKE_THREAD);
    thread.messages = ARENA_NEW(arena, struct mail_message);
    thread.messages[0] = a_message();
    return thread;
}

bool action_thread_list(ARGS, struct str inbox_ref, struct str cursor, uint32_t limit, struct arena *arena,
                        struct mail_thread **out, size_t *out_count, bool *out_more, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_thread);
    **out = a_thread(arena);
    *out_count = 1;
    *out_more = fake.page_has_more;
    return SAY("thread_list %.*s cursor=%.*s limit=%u", S(inbox_ref), S(cursor), limit);
}

bool action_thread_get(ARGS, struct str inbox_ref, struct str thread_id, struct arena *arena, struct mail_thread *out,
                       struct err *err)
{
    UNUSED;
    *out = a_thread(arena);
    return SAY("thread_get %.*s %.*s", S(inbox_ref), S(thread_id));
}

bool action_tags_set(ARGS, struct str inbox_ref, struct str message_id, const struct mail_pair *pairs, uint32_t count,
                     struct arena *arena, struct mail_pair **out, uint32_t *out_count, struct err *err)
{
    UNUSED;
    *out = tags;
    *out_count = 1;
    say("tags_set %.*s %.*s", S(inbox_ref), S(message_id));
    for (uint32_t i = 0; i < count; i++)
        say(" %.*s='%.*s'", S(pairs[i].key), S(pairs[i].value));
    return SAY("%s", "");
}

static struct mail_contact a_contact(void)
{
    struct mail_contact contact = { .name = STR("Bob"), .email = STR("bob@b.example"), .created_us = 1700000000000000 };

    strcpy(contact.id, "contact1");
    return contact;
}

bool action_contact_add(ARGS, const struct mail_contact *contact, struct arena *arena, struct mail_contact *out,
                        struct err *err)
{
    UNUSED;
    *out = a_contact();
    say("contact_add %.*s %.*s", S(contact->email), S(contact->name));
    say_list("tags", contact->tags, contact->tag_count);
    return SAY("%s", "");
}

bool action_contact_list(ARGS, struct str query, struct arena *arena, struct mail_contact **out, size_t *out_count,
                         struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_contact);
    **out = a_contact();
    *out_count = 1;
    return SAY("contact_list '%.*s'", S(query));
}

bool action_contact_remove(ARGS, struct str id, struct arena *arena, struct err *err)
{
    UNUSED;
    return SAY("contact_remove %.*s", S(id));
}

static struct str events[] = { STR_INIT("message.received") };
static struct mail_webhook a_webhook(void)
{
    struct mail_webhook webhook = { .url = STR("https://h.example/x"),
                                    .secret = STR("whsec_1"),
                                    .events = events,
                                    .event_count = 1,
                                    .is_enabled = true };

    strcpy(webhook.id, "hook1");
    return webhook;
}

/* Calls of webhooks are in mail_hooks_test.c; nothing happens here that one could be told about. */
bool action_hook_list(const struct actions *actions, const char *inbox_id, struct arena *arena,
                      struct mail_webhook **out, size_t *out_count, struct err *err)
{
    (void)actions;
    (void)inbox_id;
    (void)arena;
    (void)err;
    *out = NULL;
    *out_count = 0;
    return true;
}

unsigned action_hook_changes(void)
{
    return 0;
}

void action_hook_sign(struct str secret, struct str body, char out[MAIL_HASH_TEXT_BYTES])
{
    (void)secret;
    (void)body;
    out[0] = '\0';
}

bool action_hook_call(const struct actions *actions, const char *inbox_id, const struct mail_webhook *webhook,
                      const struct mail_hook *hook, bool *out_again)
{
    (void)actions;
    (void)inbox_id;
    (void)webhook;
    (void)hook;
    *out_again = false;
    return false;
}

bool action_webhook_add(ARGS, const struct webhook_want *want, struct arena *arena, struct mail_webhook *out,
                        bool *out_pending, struct err *err)
{
    UNUSED;
    *out = a_webhook();
    *out_pending = fake.asks_for_code && !want->approval_code.len;
    say("webhook_add %.*s inbox=%.*s secret=%.*s", S(want->url), S(want->inbox_ref), S(want->secret));
    say_list("events", want->events, want->event_count);
    return SAY("%s", "");
}

bool action_webhook_list(ARGS, struct arena *arena, struct mail_webhook **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_webhook);
    **out = a_webhook();
    *out_count = 1;
    return SAY("webhook_list");
}

bool action_webhook_remove(ARGS, struct str id, struct arena *arena, struct err *err)
{
    UNUSED;
    return SAY("webhook_remove %.*s", S(id));
}

bool action_webhook_enable(ARGS, struct str id, struct arena *arena, struct err *err)
{
    UNUSED;
    return SAY("webhook_enable %.*s", S(id));
}

bool action_audit_list(ARGS, struct str inbox_ref, uint64_t before, uint32_t limit, struct arena *arena,
                       struct mail_audit **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_NEW(arena, struct mail_audit);
    **out = (struct mail_audit){ .number = 7,
                                 .action = STR("message.held"),
                                 .resource = STR(FAKE_MESSAGE),
                                 .actor = STR("key:k"),
                                 .detail = STR("{\"sha256\":\"x\"}"),
                                 .at_us = 1700000000000000 };
    strcpy((*out)->hash, FAKE_SHA);
    *out_count = 1;
    return SAY("audit_list %.*s before=%llu limit=%u", S(inbox_ref), (unsigned long long)before, limit);
}

bool action_audit_refs(ARGS, struct arena *arena, struct str **out, size_t *out_count, struct err *err)
{
    UNUSED;
    *out = ARENA_ARRAY(arena, struct str, 2);
    (*out)[0] = STR(FAKE_INBOX);
    (*out)[1] = STR("tenant:default");
    *out_count = 2;
    return SAY("audit_refs");
}

bool action_audit_verify(ARGS, struct str inbox_ref, struct arena *arena, uint64_t *out_rows, struct err *err)
{
    UNUSED;
    *out_rows = 9;
    return SAY("audit_verify %.*s", S(inbox_ref));
}

/* ---- the server ---- */

static void on_request(struct http_exchange *ex, void *context)
{
    struct mail_served *s = context;

    assert_true(s->sandbox_id || mail_api_takes(&ex->head));
    mail_api_handle(s->api, ex, s->sandbox_id);
}

static void before_run(struct rig *rig)
{
    struct mail_served *s = container_of(rig, struct mail_served, rig);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    struct err err;

    s->setup = (struct mail_setup){ .domain = "mail.example" };
    s->actions = (struct actions){
        .store = rig->disk.store, .sandboxes = rig->all, .meters = meters_new(s->requests_per_s), .mail = &s->setup
    };
    s->api = mail_api_new(&(struct api_config){ .loop = rig->loop, .workers = rig->workers, .actions = &s->actions });
    int fd = listen_open(STR("127.0.0.1:0"), &err);
    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(s->address, sizeof s->address, "127.0.0.1:%d", ntohs(at.sin_port));
    s->server = http_server_new(rig->loop, fd, &(struct http_server_config){ .on_request = on_request, .context = s });
}

static void after_run(struct rig *rig)
{
    struct mail_served *s = container_of(rig, struct mail_served, rig);

    http_server_free(s->server);
    mail_api_free(s->api);
    meters_free(s->actions.meters);
}

int mail_served_set_up(void **state)
{
    struct mail_served *s = calloc(1, sizeof *s);

    fake = (struct mail_fake){ .state = MAIL_HELD, .direction = MAIL_OUTBOUND, .gate = PTHREAD_MUTEX_INITIALIZER };
    rig_make(&s->rig);
    s->rig.before_run = before_run;
    s->rig.after_run = after_run;
    rig_start(&s->rig);
    *state = s;
    return 0;
}

int mail_served_tear_down(void **state)
{
    struct mail_served *s = *state;

    json_decref(s->last);
    rig_drop(&s->rig);
    free(s);
    return 0;
}

unsigned mail_ask_with(struct mail_served *s, const char *method, const char *target, const char *body,
                       const struct http_field *fields, size_t count)
{
    fake.said[0] = '\0';
    MUST(http_fetch(&s->rig.arena, str_from(s->address), str_from(method), str_from(target), fields, count,
                    body ? str_from(body) : (struct str){ 0 }, 60000, &s->answer, &err));
    json_decref(s->last);
    s->last = s->answer.body.len ? json_loadb(s->answer.body.at, s->answer.body.len, JSON_DECODE_ANY, NULL) : NULL;
    return s->answer.status;
}

unsigned mail_ask(struct mail_served *s, const char *method, const char *target, const char *key, const char *body)
{
    struct http_field field = { STR("Authorization"), key ? arena_format(&s->rig.arena, "Bearer %s", key) : STR("") };

    return mail_ask_with(s, method, target, body, &field, key ? 1 : 0);
}

const char *mail_text(struct mail_served *s, const char *name)
{
    const json_t *value = json_object_get(s->last, name);

    if (!json_is_string(value))
        fail_msg("no text '%s' in '%.*s'", name, STR_ARG(s->answer.body));
    return json_string_value(value);
}

const char *mail_header(struct mail_served *s, const char *name)
{
    const struct str *value = http_header(&s->answer.head, str_from(name));

    return value ? arena_text(&s->rig.arena, *value) : NULL;
}
