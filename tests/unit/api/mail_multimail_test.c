/*
 * MultiMail's dialect: each route decodes into one action, and answers in the shapes that its clients read.
 */
#include <unistd.h>

#include "mail_served.h"

#define EM "em_" FAKE_MESSAGE
#define BOX "/v1/mailboxes/" FAKE_INBOX

#define SAID(s, text)                                                                           \
    do {                                                                                        \
        if (strcmp(fake.said, text "\n"))                                                       \
            fail_msg("said '%s', want '%s'; %.*s", fake.said, text, STR_ARG((s)->answer.body)); \
    } while (0)

static void refused(struct mail_served *s, unsigned status, const char *text)
{
    assert_int_equal(s->answer.status, status);
    if (!strstr(mail_text(s, "error"), text))
        fail_msg("'%s' has no '%s'", mail_text(s, "error"), text);
    assert_string_equal(fake.said, "");
}

static const json_t *row(struct mail_served *s, const char *list)
{
    const json_t *rows = json_object_get(s->last, list);

    if (json_array_size(rows) != 1)
        fail_msg("'%s' has not one row: %.*s", list, STR_ARG(s->answer.body));
    return json_array_get(rows, 0);
}

static const char *text_in(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_string(value))
        fail_msg("no text '%s'", name);
    return json_string_value(value);
}

/* ---- sending ---- */

#define SENT_TAIL " cc= bcc= subject=Hi markdown=text text= html= idem= at=0 first=-1 answers="

static void the_published_script_sends(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_SEND,
                              "{\"mailbox_id\":\"" FAKE_INBOX
                              "\",\"to\":\"bob@b.example\",\"subject\":\"Hi\",\"body\":\"text\"}"),
                     202);
    SAID(s, "send inbox=" FAKE_INBOX " to=bob@b.example" SENT_TAIL);
    assert_string_equal(mail_text(s, "id"), EM);
    assert_string_equal(mail_text(s, "status"), "pending_send_approval");
    assert_string_equal(mail_text(s, "thread_id"), FAKE_THREAD);
    assert_string_equal(mail_text(s, "content_sha256"), FAKE_SHA);
}

static void every_spelling_of_send_is_the_same_call(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(
        mail_ask(
            s, "POST", "/v1/emails/send", KEY_SEND,
            "{\"mailbox\":\"agent@mail.example\",\"to\":[\"bob@b.example\"],\"subject\":\"Hi\",\"text\":\"text\"}"),
        202);
    SAID(s, "send inbox=agent@mail.example to=bob@b.example" SENT_TAIL);
    /* The path's mailbox counts. */
    assert_int_equal(
        mail_ask(s, "POST", BOX "/send", KEY_SEND,
                 "{\"mailbox_id\":\"x\",\"to\":[\"bob@b.example\"],\"subject\":\"Hi\",\"markdown\":\"text\"}"),
        202);
    SAID(s, "send inbox=" FAKE_INBOX " to=bob@b.example" SENT_TAIL);
    /* Unknown fields are ignored. */
    assert_int_equal(
        mail_ask(s, "POST", BOX "/send", KEY_SEND,
                 "{\"x\":{},\"ucan\":\"y\",\"to\":[\"bob@b.example\"],\"subject\":\"Hi\",\"markdown\":\"text\"}"),
        202);
}

static void all_fields_of_a_send_arrive(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(
        mail_ask(
            s, "POST", BOX "/send", KEY_SEND,
            "{\"to\":[\"a@a.example\",\"\\\"B, b\\\" <b@b.example>\"],\"cc\":\"c@c.example, d@d.example\","
            "\"bcc\":[\"e@e.example\"],\"subject\":\"Hi\",\"markdown\":\"text\","
            "\"attachments\":[{\"name\":\"a.txt\",\"content_base64\":\"aGVsbG8=\",\"content_type\":\"text/plain\"},"
            "{\"filename\":\"b\",\"content\":\"\"}],"
            "\"idempotency_key\":\"k1\",\"send_at\":\"2030-01-05T10:00:00Z\",\"gate_timing\":\"schedule_first\"}"),
        202);
    SAID(s,
         "send inbox=" FAKE_INBOX " to=a@a.example|\"B, b\" <b@b.example> cc=c@c.example|d@d.example bcc=e@e.example "
         "subject=Hi markdown=text text= html= file=a.txt:text/plain:hello file=b:application/octet-stream: idem=k1 "
         "at=1893837600000000 first=1 answers=");
    assert_int_equal(mail_ask(s, "POST", BOX "/send", KEY_SEND,
                              "{\"to\":\"a@a.example\",\"subject\":\"\",\"html\":\"<b>x</b>\",\"body\":\"x\"}"),
                     202);
    SAID(s, "send inbox=" FAKE_INBOX
            " to=a@a.example cc= bcc= subject= markdown= text=x html=<b>x</b> idem= at=0 first=-1 "
            "answers=");
}

static void a_send_of_the_wrong_shape_names_the_field(void **state)
{
    static const struct {
        const char *body, *error;
    } wrong[] = {
        { "[]", "object" },
        { "{", "" },
        { "{}", "'to' is missing" },
        { "{\"to\":[]}", "'to' is missing" },
        { "{\"to\":[1]}", "'to' must be" },
        { "{\"to\":{}}", "'to' must be" },
        { "{\"to\":\"a@b.c\"}", "'subject' is missing" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\"}", "'markdown' is missing" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"\"}", "'markdown' is missing" },
        { "{\"to\":\"a@b.c\",\"subject\":7,\"body\":\"b\"}", "subject" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":[]}", "body" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"cc\":7}", "'cc' must be" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"send_at\":\"tomorrow\"}", "'send_at'" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"send_at\":\"2030-01-05T10:00:00+01:00\"}", "UTC" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"gate_timing\":\"later\"}", "'gate_timing'" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"attachments\":{}}", "attachments" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"attachments\":[\"x\"]}", "'attachments'" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"attachments\":[{\"name\":\"x\"}]}", "content_base64" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"attachments\":[{\"name\":\"x\",\"content_base64\":\"?"
          "\"}]}",
          "base64" },
        { "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"attachments\":[{},{},{},{},{},{},{},{},{},{},{}]}",
          "more than 10" },
    };
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        (void)mail_ask(s, "POST", "/v1/send", KEY_SEND, wrong[i].body);
        refused(s, 400, wrong[i].error);
    }
}

static void more_recipients_than_a_message_may_have_are_refused(void **state)
{
    struct mail_served *s = *state;
    struct buf body = buf_make(&s->rig.arena, 1 << 20);

    buf_add(&body, STR("{\"subject\":\"s\",\"body\":\"b\",\"to\":["));
    for (int i = 0; i <= LIMIT_MAIL_RECIPIENTS; i++)
        buf_format(&body, "%s\"a%d@b.example\"", i ? "," : "", i);
    buf_add(&body, STR("]}"));
    (void)mail_ask(s, "POST", "/v1/send", KEY_SEND, arena_text(&s->rig.arena, buf_str(&body)));
    refused(s, 400, "'to' has more than");
}

static void a_repeated_idempotency_key_is_answered_with_200(void **state)
{
    struct mail_served *s = *state;

    fake.is_repeat = true;
    assert_int_equal(mail_ask(s, "POST", BOX "/send", KEY_SEND,
                              "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"idempotency_key\":\"k\"}"),
                     200);
    assert_string_equal(mail_text(s, "status"), "already_sent");
    assert_true(json_is_true(json_object_get(s->last, "idempotent")));
    assert_string_equal(mail_text(s, "email_status"), "pending_send_approval");
    assert_non_null(strstr(mail_text(s, "message"), "still waits"));
    fake.state = MAIL_SENT;
    assert_int_equal(mail_ask(s, "POST", BOX "/send", KEY_SEND,
                              "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\",\"idempotency_key\":\"k\"}"),
                     200);
    assert_string_equal(mail_text(s, "email_status"), "sent");
    assert_string_equal(mail_text(s, "message"), "This message was accepted before.");
    struct http_field fields[] = { { STR("X-API-Key"), STR(KEY_SEND) }, { STR("Idempotency-Key"), STR("h") } };
    assert_int_equal(
        mail_ask_with(s, "POST", "/v1/send", "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\"}", fields, 2), 200);
    assert_non_null(strstr(fake.said, " idem=h "));
}

static void too_many_sends_are_429_with_seconds(void **state)
{
    struct mail_served *s = *state;

    err_note(&fake.fail, ERR_LIMIT, "too many messages in a minute");
    fake.retry_s = 42;
    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_SEND, "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\"}"),
                     429);
    assert_string_equal(mail_header(s, "Retry-After"), "42");
    assert_string_equal(mail_text(s, "error"), "too many messages in a minute");
    /* Clients find the word in the text. */
    fake.retry_s = 7200;
    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_SEND, "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\"}"),
                     429);
    assert_string_equal(mail_header(s, "Retry-After"), "7200");
    assert_non_null(strstr(mail_text(s, "error"), "quota"));
    /* Waiting does not make a message smaller. */
    fake.retry_s = 0;
    assert_int_equal(mail_ask(s, "POST", "/v1/send", KEY_SEND, "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\"}"),
                     400);
    assert_int_equal(mail_ask(s, "POST", "/v1/mailboxes", KEY_FULL, "{\"address\":\"bot\"}"), 403);
}

static void replies_need_only_a_body(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(
        mail_ask(s, "POST", BOX "/reply/" EM, KEY_SEND, "{\"markdown\":\"text\",\"cc\":[\"c@c.example\"]}"), 202);
    SAID(s, "send inbox=" FAKE_INBOX " to= cc=c@c.example bcc= subject= markdown=text text= html= idem= at=0 first=-1 "
            "answers=" FAKE_MESSAGE);
    assert_int_equal(mail_ask(s, "POST", "/v1/emails/" EM "/reply", KEY_SEND, "{\"body\":\"text\",\"mailbox\":\"m\"}"),
                     202);
    SAID(s, "send inbox=m to= cc= bcc= subject= markdown=text text= html= idem= at=0 first=-1 answers=" FAKE_MESSAGE);
    (void)mail_ask(s, "POST", BOX "/reply/" EM, KEY_SEND, "{}");
    refused(s, 400, "'markdown' is missing");
}

static void a_message_is_cancelled_and_changed(void **state)
{
    struct mail_served *s = *state;

    fake.state = MAIL_CANCELLED;
    assert_int_equal(mail_ask(s, "POST", BOX "/emails/" EM "/cancel", KEY_SEND, NULL), 200);
    SAID(s, "cancel " FAKE_INBOX " " FAKE_MESSAGE);
    assert_string_equal(mail_text(s, "status"), "cancelled");
    fake.state = MAIL_SCHEDULED;
    assert_int_equal(mail_ask(s, "PATCH", BOX "/emails/" FAKE_MESSAGE "/schedule", KEY_SEND,
                              "{\"send_at\":\"2030-01-05T10:00:00Z\"}"),
                     200);
    SAID(s, "edit " FAKE_INBOX " " FAKE_MESSAGE " inbox= to= cc= bcc= subject= markdown= text= html= idem= "
            "at=1893837600000000 first=-1 answers=");
    assert_string_equal(mail_text(s, "status"), "scheduled");
}

/* ---- reading ---- */

static void the_published_script_lists_its_inbox(void **state)
{
    struct mail_served *s = *state;

    fake.direction = MAIL_INBOUND;
    fake.in_status = MAIL_IN_UNREAD;
    assert_int_equal(mail_ask(s, "GET", BOX "/inbox?limit=5", KEY_READ, NULL), 200);
    SAID(s,
         "list " FAKE_INBOX " in=1 out=0 in_status=-1 states=0 from= subject= after=0 before=0 files=-1 since= cursor= "
         "offset=0 limit=5 spam=0");
    const json_t *message = row(s, "messages");
    assert_string_equal(text_in(message, "from"), "Ann <ann@a.example>");
    assert_string_equal(text_in(message, "from_address"), "ann@a.example");
    assert_string_equal(text_in(message, "subject"), "Hi");
    assert_string_equal(text_in(message, "date"), "2023-11-14T22:13:21.000000Z");
    assert_string_equal(text_in(message, "received_at"), text_in(message, "created_at"));
    assert_string_equal(text_in(message, "status"), "unread");
    assert_string_equal(text_in(message, "direction"), "inbound");
    assert_string_equal(text_in(row(s, "emails"), "id"), EM);
    assert_true(json_is_null(json_object_get(s->last, "cursor")));
    assert_int_equal(mail_ask(s, "GET", "/v1/emails/inbox?mailbox=agent%40mail.example", KEY_READ, NULL), 200);
    assert_true(str_starts(str_from(fake.said), STR("list agent@mail.example in=1 out=0")));
    assert_non_null(strstr(fake.said, "limit=25"));
}

static void lists_are_filtered_and_paged(void **state)
{
    struct mail_served *s = *state;

    fake.page_has_more = true;
    assert_int_equal(mail_ask(s, "GET",
                              BOX "/emails?status=unread&sender=ann&subject_contains=a+b&date_after=2026-01-05&"
                                  "date_before=2026-01-06T00:00:00Z&has_attachments=true&since_id=" EM "&cursor=" EM
                                  "&limit=100&offset=3&direction=inbound",
                              KEY_READ, NULL),
                     200);
    SAID(s, "list " FAKE_INBOX " in=1 out=0 in_status=1 states=0 from=ann subject=a b after=1767571200000000 "
            "before=1767657600000000 files=1 since=" FAKE_MESSAGE " cursor=" FAKE_MESSAGE " offset=3 limit=100 spam=0");
    assert_string_equal(mail_text(s, "cursor"), "em_" FAKE_CURSOR);
    /* A filter may have looked at many messages and found none yet. */
    fake.page_is_empty = true;
    assert_int_equal(mail_ask(s, "GET", BOX "/emails?sender=ann", KEY_READ, NULL), 200);
    assert_int_equal(json_array_size(json_object_get(s->last, "emails")), 0);
    assert_string_equal(mail_text(s, "cursor"), "em_" FAKE_CURSOR);
    fake.page_is_empty = false;
    assert_int_equal(mail_ask(s, "GET", BOX "/emails?status=pending_approval", KEY_READ, NULL), 200);
    assert_non_null(strstr(fake.said, "in=0 out=1 in_status=-1 states=2 "));
    /* All states that are shown under this name: queued, on its way, and waiting for others. */
    assert_int_equal(mail_ask(s, "GET", BOX "/emails?status=queued", KEY_READ, NULL), 200);
    assert_non_null(strstr(fake.said, "in=0 out=1 in_status=-1 states=e0 "));
    assert_int_equal(mail_ask(s, "GET", "/v1/emails?status=spam_flagged", KEY_READ, NULL), 200);
    SAID(s, "search in_status=4 spam=1 text= from= limit=20");
}

static void a_filter_that_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *query, *error;
    } wrong[] = {
        { "limit=0", "'limit'" },
        { "limit=101", "'limit'" },
        { "limit=x", "'limit'" },
        { "status=odd", "'status'" },
        { "status=sent&direction=inbound", "other direction" },
        { "direction=up", "'direction'" },
        { "has_attachments=1", "'has_attachments'" },
        { "date_after=soon", "'date_after'" },
        { "sender=%zz", "escape" },
        { "offset=-1", "'offset'" },
    };
    struct mail_served *s = *state;
    char target[128];

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        snprintf(target, sizeof target, BOX "/emails?%s", wrong[i].query);
        (void)mail_ask(s, "GET", target, KEY_READ, NULL);
        refused(s, 400, wrong[i].error);
    }
    (void)mail_ask(s, "GET", BOX "/inbox?status=sent", KEY_READ, NULL);
    refused(s, 400, "received messages");
}

static void a_message_is_read_under_all_its_names(void **state)
{
    struct mail_served *s = *state;

    fake.state = MAIL_SENT;
    assert_int_equal(mail_ask(s, "GET", BOX "/emails/" EM, KEY_READ, NULL), 200);
    SAID(s, "read " FAKE_INBOX " " FAKE_MESSAGE " want=9");
    assert_string_equal(mail_text(s, "markdown"), "the text");
    assert_string_equal(mail_text(s, "text_body"), "the text");
    assert_string_equal(mail_text(s, "body"), "the text");
    assert_string_equal(mail_text(s, "status"), "sent");
    assert_int_equal(json_array_size(json_object_get(s->last, "to")), 2);
    assert_int_equal(json_array_size(json_object_get(s->last, "to_addresses")), 2);
    assert_string_equal(text_in(row(s, "attachments"), "name"), "100%.txt");
    assert_string_equal(text_in(json_object_get(s->last, "tags"), "a"), "true");
    assert_int_equal(mail_ask(s, "GET", "/v1/emails/" FAKE_MESSAGE, KEY_READ, NULL), 200);
    SAID(s, "read  " FAKE_MESSAGE " want=9");
}

static void held_inbound_mail_shows_its_id_and_status_only(void **state)
{
    struct mail_served *s = *state;

    fake.direction = MAIL_INBOUND;
    fake.in_status = MAIL_IN_HELD;
    fake.has_no_content = true;
    assert_int_equal(mail_ask(s, "GET", BOX "/emails", KEY_READ, NULL), 200);
    const json_t *message = row(s, "emails");
    assert_string_equal(text_in(message, "status"), "pending_inbound_approval");
    assert_string_equal(text_in(message, "from"), "");
    assert_string_equal(text_in(message, "subject"), "");
    assert_true(json_is_null(json_object_get(message, "spam_score")));
}

static void statuses_are_those_of_the_service(void **state)
{
    static const struct {
        enum mail_state state;
        const char *status;
    } of[] = { { MAIL_SCAN, "pending_scan" },   { MAIL_HELD, "pending_send_approval" },
               { MAIL_SCHEDULED, "scheduled" }, { MAIL_UNDO, "scheduled" },
               { MAIL_QUEUED, "queued" },       { MAIL_SENDING, "queued" },
               { MAIL_DEFERRED, "queued" },     { MAIL_SENT, "sent" },
               { MAIL_REJECTED, "rejected" },   { MAIL_EXPIRED, "rejected" },
               { MAIL_CANCELLED, "cancelled" }, { MAIL_FAILED, "send_failed" },
               { MAIL_BOUNCED, "sent" },        { MAIL_UNCERTAIN, "uncertain" },
               { MAIL_APPROVED, "scheduled" } };
    struct mail_served *s = *state;

    assert_int_equal(COUNT_OF(of), MAIL_STATE_COUNT);
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        fake.state = of[i].state;
        assert_int_equal(
            mail_ask(s, "POST", "/v1/send", KEY_SEND, "{\"to\":\"a@b.c\",\"subject\":\"s\",\"body\":\"b\"}"), 202);
        assert_string_equal(mail_text(s, "status"), of[i].status);
    }
}

static void an_attachment_is_found_by_a_name_with_odd_characters(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", BOX "/emails/" EM "/attachments/100%.txt", KEY_READ, NULL), 200);
    SAID(s, "attachment " FAKE_INBOX " " FAKE_MESSAGE " '100%.txt' number=0");
    CHECK_STR(s->answer.body, STR("hello"));
    assert_string_equal(mail_header(s, "Content-Type"), "text/plain");
    assert_string_equal(mail_header(s, "Content-Disposition"), "attachment; filename*=UTF-8''100%25.txt");
    assert_string_equal(mail_header(s, "X-Content-Type-Options"), "nosniff");
    assert_int_equal(mail_ask(s, "GET", BOX "/emails/" EM "/attachments/a%20b+c%", KEY_READ, NULL), 200);
    SAID(s, "attachment " FAKE_INBOX " " FAKE_MESSAGE " 'a b+c%' number=0");
}

static void an_attachment_never_leaves_as_a_page(void **state)
{
    static const struct str types[] = {
        STR_INIT("text/html"), STR_INIT("TEXT/HTML"),   STR_INIT("image/svg+xml"),  STR_INIT("text/html; charset=x"),
        STR_INIT("a"),         STR_INIT("a/b\r\nX: y"), STR_INIT("application/xml")
    };
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(types); i++) {
        fake.file_type = types[i];
        assert_int_equal(mail_ask(s, "GET", "/v1/files/tok", NULL, NULL), 200);
        SAID(s, "attachment_open tok");
        assert_string_equal(mail_header(s, "Content-Type"), "application/octet-stream");
    }
}

/* A link's token opens what it names, so it is as secret as a key. */
static void a_token_in_a_path_is_not_logged(void **state)
{
    struct mail_served *s = *state;
    char logged[4096] = "";
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);

    assert_true(file && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    err_note(&fake.fail, ERR_INTERNAL, "broken");
    unsigned status = mail_ask(s, "GET", "/v1/files/verysecret", NULL, NULL);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(file);
    (void)!fread(logged, 1, sizeof logged - 1, file);
    fclose(file);
    assert_int_equal(status, 500);
    assert_non_null(strstr(logged, "/v1/files/{token}"));
    assert_null(strstr(logged, "verysecret"));
}

static void a_link_to_an_attachment_is_a_whole_url(void **state)
{
    struct mail_served *s = *state;
    char want[128];

    assert_int_equal(mail_ask(s, "GET", BOX "/emails/" EM "/attachments/a/url", KEY_READ, NULL), 200);
    SAID(s, "attachment_link " FAKE_INBOX " " FAKE_MESSAGE " 'a' number=0");
    snprintf(want, sizeof want, "http://%s/v1/files/tok", s->address);
    assert_string_equal(mail_text(s, "url"), want);
    assert_int_equal(json_integer_value(json_object_get(s->last, "size_bytes")), 5);
    assert_int_equal(json_integer_value(json_object_get(s->last, "expires_in")), 3600);
}

static void threads_are_shown(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", BOX "/threads/" FAKE_THREAD, KEY_READ, NULL), 200);
    SAID(s, "thread_get " FAKE_INBOX " " FAKE_THREAD);
    assert_string_equal(mail_text(s, "thread_id"), FAKE_THREAD);
    assert_string_equal(text_in(row(s, "emails"), "id"), EM);
    assert_int_equal(mail_ask(s, "GET", "/v1/emails/thread/" FAKE_THREAD, KEY_READ, NULL), 200);
    SAID(s, "thread_get  " FAKE_THREAD);
    assert_int_equal(mail_ask(s, "GET", BOX "/threads?limit=3", KEY_READ, NULL), 200);
    SAID(s, "thread_list " FAKE_INBOX " cursor= limit=3");
}

static void tags_are_set_shown_and_removed(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "PUT", BOX "/emails/" EM "/tags", KEY_SEND, "{\"tags\":{\"a\":\"1\",\"b\":\"2\"}}"),
                     200);
    SAID(s, "tags_set " FAKE_INBOX " " FAKE_MESSAGE " a='1' b='2'");
    assert_string_equal(text_in(json_object_get(s->last, "tags"), "a"), "true");
    assert_int_equal(mail_ask(s, "POST", "/v1/emails/" EM "/tag", KEY_SEND, "{\"tags\":[\"a\",\"b\"]}"), 200);
    SAID(s, "tags_set  " FAKE_MESSAGE " a='true' b='true'");
    assert_string_equal(mail_text(s, "id"), EM);
    assert_int_equal(mail_ask(s, "GET", BOX "/emails/" EM "/tags", KEY_READ, NULL), 200);
    SAID(s, "read " FAKE_INBOX " " FAKE_MESSAGE " want=0");
    assert_int_equal(mail_ask(s, "DELETE", BOX "/emails/" EM "/tags/a", KEY_SEND, NULL), 200);
    SAID(s, "tags_set " FAKE_INBOX " " FAKE_MESSAGE " a=''");
    assert_true(json_is_true(json_object_get(s->last, "deleted")));
    (void)mail_ask(s, "PUT", BOX "/emails/" EM "/tags", KEY_SEND, "{\"tags\":{\"a\":1}}");
    refused(s, 400, "'a'");
    (void)mail_ask(s, "PUT", BOX "/emails/" EM "/tags", KEY_SEND, "{\"tags\":\"a\"}");
    refused(s, 400, "'tags'");
    (void)mail_ask(s, "PUT", BOX "/emails/" EM "/tags", KEY_SEND, "{\"tags\":{}}");
    refused(s, 400, "'tags'");
}

static void spam_is_reported_and_taken_back(void **state)
{
    struct mail_served *s = *state;

    fake.direction = MAIL_INBOUND;
    fake.in_status = MAIL_IN_QUARANTINED;
    assert_int_equal(mail_ask(s, "POST", "/v1/emails/" EM "/report-spam", KEY_SEND, NULL), 200);
    SAID(s, "label " FAKE_MESSAGE " spam=1");
    assert_string_equal(mail_text(s, "status"), "spam_quarantined");
    assert_string_equal(mail_text(s, "user_label"), "spam");
    assert_int_equal(mail_ask(s, "POST", "/v1/emails/" EM "/not-spam", KEY_SEND, NULL), 200);
    SAID(s, "label " FAKE_MESSAGE " spam=0");
}

static void contacts_are_kept(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", "/v1/contacts", KEY_SEND,
                              "{\"email\":\"bob@b.example\",\"name\":\"Bob\",\"tags\":[\"x\",\"y\"]}"),
                     201);
    SAID(s, "contact_add bob@b.example Bob tags=x|y");
    assert_int_equal(json_integer_value(json_object_get(s->last, "created_at")), 1700000000000);
    assert_int_equal(mail_ask(s, "GET", "/v1/contacts?q=bo", KEY_READ, NULL), 200);
    SAID(s, "contact_list 'bo'");
    assert_string_equal(text_in(row(s, "contacts"), "email"), "bob@b.example");
    assert_int_equal(mail_ask(s, "GET", "/v1/contacts?query=bo", KEY_READ, NULL), 200);
    SAID(s, "contact_list 'bo'");
    assert_int_equal(mail_ask(s, "DELETE", "/v1/contacts/contact1", KEY_SEND, NULL), 200);
    SAID(s, "contact_remove contact1");
    (void)mail_ask(s, "POST", "/v1/contacts", KEY_SEND, "{\"name\":\"Bob\"}");
    refused(s, 400, "email");
}

/* ---- mailboxes ---- */

static void mailboxes_have_numbers_where_the_service_has_them(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/mailboxes", KEY_READ, NULL), 200);
    const json_t *box = row(s, "mailboxes");
    assert_string_equal(text_in(box, "oversight_mode"), "gated_send");
    assert_int_equal(json_integer_value(json_object_get(box, "is_active")), 1);
    assert_int_equal(json_integer_value(json_object_get(box, "forward_inbound")), 0);
    assert_int_equal(json_integer_value(json_object_get(box, "created_at")), 1700000000000);
    assert_int_equal(mail_ask(s, "GET", BOX, KEY_READ, NULL), 200);
    SAID(s, "inbox_get " FAKE_INBOX);
    assert_string_equal(mail_text(s, "default_gate_timing"), "gate_first");
}

static void a_mailbox_is_made_in_two_steps(void **state)
{
    struct mail_served *s = *state;

    fake.asks_for_code = true;
    assert_int_equal(mail_ask(s, "POST", "/v1/mailboxes", KEY_FULL, "{\"address\":\"bot\",\"display_name\":\"Bot\"}"),
                     202);
    SAID(s, "inbox_create local=bot name=Bot tenant= mode=-1 code=");
    assert_string_equal(mail_text(s, "status"), "pending_approval");
    assert_null(json_object_get(s->last, "api_key"));
    assert_int_equal(
        mail_ask(s, "POST", "/v1/mailboxes", KEY_FULL,
                 "{\"address_local\":\"bot\",\"oversight_mode\":\"read_only\",\"approval_code\":\"A7X-29K\"}"),
        201);
    SAID(s, "inbox_create local=bot name= tenant= mode=0 code=A7X-29K");
    assert_string_equal(mail_text(s, "id"), FAKE_INBOX);
    assert_string_equal(mail_text(s, "address"), "agent@mail.example");
    assert_string_equal(mail_text(s, "api_key"), "mm_live_new");
    assert_string_equal(mail_header(s, "Cache-Control"), "no-store");
    (void)mail_ask(s, "POST", "/v1/mailboxes", KEY_FULL, "{}");
    refused(s, 400, "'address_local' is missing");
    (void)mail_ask(s, "POST", "/v1/mailboxes", KEY_FULL, "{\"address\":\"bot\",\"oversight_mode\":\"wild\"}");
    refused(s, 400, "'oversight_mode' must be");
    (void)mail_ask(s, "POST", "/v1/mailboxes", KEY_FULL, "{\"address\":\"bot\",\"ai_disclosure\":false}");
    refused(s, 400, "'ai_disclosure'");
}

static void settings_of_a_mailbox_are_changed_one_by_one(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(
        mail_ask(s, "PATCH", BOX, KEY_FULL,
                 "{\"display_name\":\"B\",\"auto_cc\":null,\"forward_inbound\":1,\"signature_block\":\"x\"}"),
        200);
    SAID(s, "inbox_update " FAKE_INBOX " display_name='B' signature='x' auto_cc='' forward=1");
    assert_string_equal(mail_text(s, "status"), "updated");
    assert_int_equal(
        mail_ask(s, "PATCH", BOX "/configure", KEY_FULL,
                 "{\"default_gate_timing\":\"schedule_first\",\"scheduling_enabled\":false,\"mcp_configured\":1,"
                 "\"undo_seconds\":30}"),
        200);
    SAID(s, "inbox_update " FAKE_INBOX " undo=30 schedule_first=1 scheduling=0 mcp=1");
    (void)mail_ask(s, "PATCH", BOX, KEY_FULL, "{\"forward_inbound\":2}");
    refused(s, 400, "'forward_inbound'");
    (void)mail_ask(s, "PATCH", BOX, KEY_FULL, "{\"webhook_url\":\"https://x\"}");
    refused(s, 400, "'webhook_url'");
    fake.asks_for_code = true;
    assert_int_equal(mail_ask(s, "PATCH", BOX, KEY_FULL, "{\"auto_bcc\":\"a@b.c\"}"), 202);
}

static void a_key_that_only_sends_may_lower_its_mode_and_no_more(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "PATCH", BOX, KEY_SEND, "{\"oversight_mode\":\"gated_all\"}"), 200);
    SAID(s, "inbox_update " FAKE_INBOX " mode=1");
    (void)mail_ask(s, "PATCH", BOX, KEY_SEND, "{\"oversight_mode\":\"gated_all\",\"display_name\":\"x\"}");
    refused(s, 403, "Requires admin scope");
    (void)mail_ask(s, "PATCH", BOX, KEY_READ, "{\"oversight_mode\":\"gated_all\"}");
    refused(s, 403, "scope");
}

static void the_ladder_is_climbed_with_a_code(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", BOX "/request-upgrade", KEY_SEND, "{\"target_mode\":\"monitored\"}"), 200);
    SAID(s, "inbox_request_mode " FAKE_INBOX " monitored");
    assert_string_equal(mail_text(s, "status"), "upgrade_requested");
    assert_int_equal(mail_ask(s, "POST", BOX "/upgrade", KEY_SEND, "{\"code\":\"A7X-29K\"}"), 200);
    SAID(s, "inbox_raise_mode " FAKE_INBOX " code=A7X-29K mode=-1");
    assert_string_equal(mail_text(s, "status"), "upgraded");
    /* An empty code is the operator's way: no key may send one. */
    (void)mail_ask(s, "POST", BOX "/upgrade", KEY_SEND, "{\"code\":\"\"}");
    refused(s, 400, "'code'");
    (void)mail_ask(s, "POST", BOX "/upgrade", KEY_SEND, "{}");
    refused(s, 400, "code");
    (void)mail_ask(s, "POST", BOX "/request-upgrade", KEY_SEND, "{}");
    refused(s, 400, "'target_mode'");
}

static void a_mailbox_and_its_allowlist(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "DELETE", BOX, KEY_FULL, NULL), 200);
    SAID(s, "inbox_delete " FAKE_INBOX);
    assert_string_equal(mail_text(s, "status"), "deleted");
    assert_int_equal(mail_ask(s, "GET", BOX "/allowlist", KEY_READ, NULL), 200);
    assert_string_equal(text_in(row(s, "allowlist"), "pattern"), "*@b.example");
    fake.asks_for_code = true;
    assert_int_equal(mail_ask(s, "POST", BOX "/allowlist", KEY_SEND, "{\"pattern\":\"*@b.example\"}"), 202);
    SAID(s, "allow_add " FAKE_INBOX " *@b.example code=");
    assert_int_equal(
        mail_ask(s, "POST", BOX "/allowlist", KEY_SEND, "{\"pattern\":\"*@b.example\",\"approval_code\":\"C\"}"), 201);
    SAID(s, "allow_add " FAKE_INBOX " *@b.example code=C");
    assert_int_equal(mail_ask(s, "DELETE", BOX "/allowlist/e1", KEY_SEND, NULL), 202);
    assert_int_equal(mail_ask(s, "DELETE", BOX "/allowlist/e1?approval_code=C", KEY_SEND, NULL), 200);
    SAID(s, "allow_remove " FAKE_INBOX " e1 code=C");
}

/* ---- oversight ---- */

static void an_attachment_of_what_waits_is_for_approvers(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/oversight/pending/" EM "/attachments/0", KEY_EYES, NULL), 200);
    SAID(s, "held_attachment " FAKE_MESSAGE " 0");
    assert_non_null(strstr(mail_header(s, "Content-Disposition"), "attachment;"));
    assert_int_equal(mail_ask(s, "GET", "/v1/oversight/pending/" EM "/attachments/0", KEY_FULL, NULL), 403);
    assert_string_equal(fake.said, "");
}

static void what_waits_is_listed_under_both_names(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/oversight/pending", KEY_EYES, NULL), 200);
    SAID(s, "pending inbox= cursor=");
    assert_true(json_is_null(json_object_get(s->last, "cursor")));
    assert_true(json_is_false(json_object_get(s->last, "more")));
    const json_t *message = row(s, "pending");
    assert_true(json_is_false(json_object_get(message, "truncated")));
    assert_string_equal(text_in(message, "id"), EM);
    assert_string_equal(text_in(message, "body_markdown"), "the text");
    assert_string_equal(text_in(message, "content_sha256"), FAKE_SHA);
    assert_string_equal(text_in(message, "status"), "pending_send_approval");
    assert_string_equal(text_in(json_array_get(json_object_get(message, "warnings"), 0), "code"), "secret");
    (void)row(s, "emails");
    assert_int_equal(mail_ask(s, "GET", "/v1/emails/pending?mailbox=agent%40mail.example", KEY_EYES, NULL), 200);
    SAID(s, "pending inbox=agent@mail.example cursor=");
    (void)row(s, "emails");
}

static void a_long_list_of_what_waits_has_pages(void **state)
{
    struct mail_served *s = *state;

    fake.page_has_more = true;
    assert_int_equal(mail_ask(s, "GET", "/v1/oversight/pending?cursor=0.FIRST&mailbox_id=one", KEY_EYES, NULL), 200);
    SAID(s, "pending inbox=one cursor=0.FIRST");
    assert_string_equal(mail_text(s, "cursor"), "1.NEXT");
    assert_true(json_is_true(json_object_get(s->last, "more")));
    const json_t *message = row(s, "pending");
    assert_true(json_is_true(json_object_get(message, "truncated")));
    assert_string_equal(text_in(message, "id"), EM);
    assert_string_equal(text_in(message, "mailbox_address"), "agent@mail.example");
    assert_string_equal(text_in(message, "content_sha256"), FAKE_SHA);
}

static void a_decision_binds_what_the_approver_saw(void **state)
{
    struct mail_served *s = *state;

    fake.state = MAIL_SENT;
    assert_int_equal(mail_ask(s, "POST", "/v1/oversight/decide", KEY_EYES,
                              "{\"email_id\":\"" EM "\",\"action\":\"approve\",\"content_sha256\":\"" FAKE_SHA "\"}"),
                     200);
    SAID(s, "decide " FAKE_MESSAGE " approve reason= sha=" FAKE_SHA);
    assert_string_equal(mail_text(s, "status"), "approved_and_sent");
    fake.state = MAIL_SCHEDULED;
    assert_int_equal(mail_ask(s, "POST", "/v1/emails/" EM "/decide", KEY_EYES, "{\"decision\":\"approve\"}"), 200);
    SAID(s, "decide " FAKE_MESSAGE " approve reason= sha=");
    assert_string_equal(mail_text(s, "status"), "approved");
    fake.state = MAIL_REJECTED;
    assert_int_equal(mail_ask(s, "POST", "/v1/oversight/decide", KEY_EYES,
                              "{\"email_id\":\"" FAKE_MESSAGE "\",\"action\":\"reject\",\"reason\":\"no\"}"),
                     200);
    SAID(s, "decide " FAKE_MESSAGE " reject reason=no sha=");
    assert_string_equal(mail_text(s, "status"), "rejected");
    err_note(&fake.fail, ERR_CONFLICT, "the message is already rejected");
    assert_int_equal(mail_ask(s, "POST", "/v1/oversight/decide", KEY_EYES,
                              "{\"email_id\":\"" FAKE_MESSAGE "\",\"action\":\"approve\"}"),
                     409);
}

static void a_decision_that_is_neither_is_refused(void **state)
{
    static const char *const wrong[] = { "{}",
                                         "{\"email_id\":\"x\"}",
                                         "{\"email_id\":\"x\",\"action\":\"maybe\"}",
                                         "{\"email_id\":\"x\",\"action\":true}",
                                         "{\"action\":\"approve\"}",
                                         "{\"email_id\":\"x\",\"action\":\"approve\",\"content_sha256\":7}" };
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        (void)mail_ask(s, "POST", "/v1/oversight/decide", KEY_EYES, wrong[i]);
        refused(s, 400, "");
    }
}

/* ---- account ---- */

static void keys_are_made_in_two_steps_and_shown_once(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/api-keys", KEY_FULL, NULL), 200);
    const json_t *key = row(s, "api_keys");
    assert_string_equal(json_string_value(json_array_get(json_object_get(key, "scopes"), 1)), "send");
    assert_null(json_object_get(key, "api_key"));
    fake.asks_for_code = true;
    assert_int_equal(mail_ask(s, "POST", "/v1/api-keys", KEY_FULL, "{\"name\":\"k\"}"), 202);
    SAID(s, "key_create k scopes=1 tenant= inbox= code=");
    assert_int_equal(mail_ask(s, "POST", "/v1/api-keys", KEY_FULL,
                              "{\"name\":\"k\",\"scopes\":[\"read\",\"send\"],\"approval_code\":\"C\"}"),
                     201);
    SAID(s, "key_create k scopes=3 tenant= inbox= code=C");
    assert_string_equal(mail_text(s, "api_key"), "mm_live_made");
    fake.asks_for_code = false;
    assert_int_equal(mail_ask(s, "PATCH", "/v1/api-keys/key1", KEY_FULL, "{\"name\":\"n\"}"), 200);
    SAID(s, "key_update key1 name='n' scopes=0");
    assert_int_equal(mail_ask(s, "DELETE", "/v1/api-keys/key1", KEY_FULL, NULL), 200);
    SAID(s, "key_revoke key1 code=");
    assert_string_equal(mail_text(s, "status"), "revoked");
    (void)mail_ask(s, "POST", "/v1/api-keys", KEY_FULL, "{\"name\":\"k\",\"scopes\":[\"root\"]}");
    refused(s, 400, "'scopes'");
    (void)mail_ask(s, "POST", "/v1/api-keys", KEY_FULL, "{\"name\":\"k\",\"scopes\":[]}");
    refused(s, 400, "'scopes'");
}

static void webhooks_show_their_secret_once(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(
        mail_ask(s, "POST", "/v1/webhooks", KEY_FULL,
                 "{\"url\":\"https://h.example/x\",\"events\":[\"message.received\",\"oversight.pending\"]}"),
        201);
    SAID(s, "webhook_add https://h.example/x inbox= secret= events=message.received|oversight.pending");
    assert_string_equal(mail_text(s, "signing_secret"), "whsec_1");
    assert_int_equal(mail_ask(s, "GET", "/v1/webhooks", KEY_FULL, NULL), 200);
    assert_null(json_object_get(row(s, "webhooks"), "signing_secret"));
    (void)row(s, "subscriptions");
    assert_int_equal(mail_ask(s, "GET", "/v1/webhooks/hook1", KEY_FULL, NULL), 200);
    assert_null(json_object_get(s->last, "signing_secret"));
    assert_int_equal(mail_ask(s, "GET", "/v1/webhooks/other", KEY_FULL, NULL), 404);
    assert_int_equal(mail_ask(s, "DELETE", "/v1/webhooks/hook1", KEY_FULL, NULL), 200);
    SAID(s, "webhook_remove hook1");
    (void)mail_ask(s, "POST", "/v1/webhooks", KEY_FULL, "{\"url\":\"https://h.example/x\"}");
    refused(s, 400, "'events'");
}

static void account_usage_and_audit_are_told(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/account", KEY_READ, NULL), 200);
    assert_string_equal(mail_text(s, "name"), "acme");
    assert_string_equal(text_in(json_object_get(s->last, "account"), "name"), "acme");
    assert_string_equal(mail_text(s, "oversight_email"), "eyes@x.example");
    fake.asks_for_code = true;
    assert_int_equal(mail_ask(s, "PATCH", "/v1/account", KEY_FULL, "{\"oversight_email\":\"a@b.c\"}"), 202);
    assert_int_equal(
        mail_ask(s, "PATCH", "/v1/account", KEY_FULL, "{\"oversight_email\":\"a@b.c\",\"approval_code\":\"C\"}"), 200);
    SAID(s, "oversight_address a@b.c tenant= code=C");
    (void)mail_ask(s, "PATCH", "/v1/account", KEY_FULL, "{\"oversight_email\":\"a@b.c\",\"name\":\"x\"}");
    refused(s, 501, "oversight_email");
    (void)mail_ask(s, "PATCH", "/v1/account", KEY_FULL, "{}");
    refused(s, 400, "oversight_email");
    assert_int_equal(mail_ask(s, "GET", "/v1/usage?from=1000&to=2000", KEY_READ, NULL), 200);
    SAID(s, "usage 1000000..2000000");
    assert_int_equal(json_integer_value(json_object_get(s->last, "emails_sent")), 3);
    assert_int_equal(json_integer_value(json_object_get(s->last, "from")), 1000);
    assert_int_equal(
        mail_ask(s, "GET", "/v1/usage?from=2026-01-05&to=2026-01-06T12:00:00Z&breakdown=daily", KEY_READ, NULL), 200);
    SAID(s, "usage 1767571200000000..1767657600000000\nusage 1767657600000000..1767700800000000");
    assert_int_equal(json_array_size(json_object_get(s->last, "data")), 6);
    (void)mail_ask(s, "GET", "/v1/usage?from=1&to=99999999999&period=daily", KEY_READ, NULL);
    refused(s, 400, "days");
    (void)mail_ask(s, "GET", "/v1/usage?from=2000&to=1000", KEY_READ, NULL);
    refused(s, 400, "'to' must be after 'from'");
    assert_int_equal(mail_ask(s, "GET", "/v1/audit-log?limit=1", KEY_FULL, NULL), 200);
    SAID(s, "audit_list  before=0 limit=1");
    const json_t *entry = row(s, "entries");
    assert_string_equal(text_in(entry, "resource_type"), "email");
    assert_string_equal(text_in(entry, "resource_id"), EM);
    assert_string_equal(text_in(json_object_get(entry, "metadata"), "sha256"), "x");
    assert_string_equal(text_in(entry, "hash"), FAKE_SHA);
    assert_string_equal(mail_text(s, "cursor"), "7");
    assert_int_equal(mail_ask(s, "GET", "/v1/audit-log?cursor=7", KEY_FULL, NULL), 200);
    SAID(s, "audit_list  before=7 limit=50");
}

static void the_server_tells_its_domain_and_its_routes(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "GET", "/v1/domains", KEY_FULL, NULL), 200);
    assert_string_equal(text_in(row(s, "domains"), "domain"), "mail.example");
    assert_int_equal(mail_ask(s, "GET", "/v1/domains/mail.example", KEY_FULL, NULL), 200);
    assert_int_equal(mail_ask(s, "GET", "/v1/domains/x", KEY_FULL, NULL), 404);
    assert_int_equal(mail_ask(s, "GET", "/v1/openapi.json", NULL, NULL), 200);
    const json_t *path = json_object_get(json_object_get(s->last, "paths"), "/v1/mailboxes/{id}");
    assert_non_null(json_object_get(path, "patch"));
    assert_non_null(json_object_get(path, "delete"));
}

#define SERVED(function) cmocka_unit_test_setup_teardown(function, mail_served_set_up, mail_served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(the_published_script_sends),
        SERVED(every_spelling_of_send_is_the_same_call),
        SERVED(all_fields_of_a_send_arrive),
        SERVED(a_send_of_the_wrong_shape_names_the_field),
        SERVED(more_recipients_than_a_message_may_have_are_refused),
        SERVED(a_repeated_idempotency_key_is_answered_with_200),
        SERVED(too_many_sends_are_429_with_seconds),
        SERVED(replies_need_only_a_body),
        SERVED(a_message_is_cancelled_and_changed),
        SERVED(the_published_script_lists_its_inbox),
        SERVED(lists_are_filtered_and_paged),
        SERVED(a_filter_that_makes_no_sense_is_refused),
        SERVED(a_message_is_read_under_all_its_names),
        SERVED(held_inbound_mail_shows_its_id_and_status_only),
        SERVED(statuses_are_those_of_the_service),
        SERVED(an_attachment_is_found_by_a_name_with_odd_characters),
        SERVED(an_attachment_never_leaves_as_a_page),
        SERVED(a_token_in_a_path_is_not_logged),
        SERVED(a_link_to_an_attachment_is_a_whole_url),
        SERVED(threads_are_shown),
        SERVED(tags_are_set_shown_and_removed),
        SERVED(spam_is_reported_and_taken_back),
        SERVED(contacts_are_kept),
        SERVED(mailboxes_have_numbers_where_the_service_has_them),
        SERVED(a_mailbox_is_made_in_two_steps),
        SERVED(settings_of_a_mailbox_are_changed_one_by_one),
        SERVED(a_key_that_only_sends_may_lower_its_mode_and_no_more),
        SERVED(the_ladder_is_climbed_with_a_code),
        SERVED(a_mailbox_and_its_allowlist),
        SERVED(what_waits_is_listed_under_both_names),
        SERVED(a_long_list_of_what_waits_has_pages),
        SERVED(an_attachment_of_what_waits_is_for_approvers),
        SERVED(a_decision_binds_what_the_approver_saw),
        SERVED(a_decision_that_is_neither_is_refused),
        SERVED(keys_are_made_in_two_steps_and_shown_once),
        SERVED(webhooks_show_their_secret_once),
        SERVED(account_usage_and_audit_are_told),
        SERVED(the_server_tells_its_domain_and_its_routes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
