/*
 * LobsterMail's dialect: each route decodes into one action, and answers in the shapes that its client reads.
 */
#include "mail_served.h"

#include <unistd.h>

#include "base/clock.h"

#define BOX "/v1/inboxes/ibx_" FAKE_INBOX
#define EML "eml_" FAKE_MESSAGE

#define SAID(s, text)                                                                           \
    do {                                                                                        \
        if (strcmp(fake.said, text "\n"))                                                       \
            fail_msg("said '%s', want '%s'; %.*s", fake.said, text, STR_ARG((s)->answer.body)); \
    } while (0)

static void call(struct mail_served *s, const char *method, const char *path, const char *body, unsigned status)
{
    if (mail_ask(s, method, path, KEY_LOBSTER, body) != status)
        fail_msg("%s %s: %u %.*s", method, path, s->answer.status, STR_ARG(s->answer.body));
}

/* Every error has these three fields. */
static void refused(struct mail_served *s, unsigned status, const char *code, const char *text)
{
    assert_int_equal(s->answer.status, status);
    assert_string_equal(mail_text(s, "error"), code);
    if (!strstr(mail_text(s, "message"), text))
        fail_msg("'%s' has no '%s'", mail_text(s, "message"), text);
    assert_true(strlen(mail_text(s, "requestId")) > 8);
}

static const json_t *row(struct mail_served *s)
{
    const json_t *rows = json_object_get(s->last, "data");

    if (json_array_size(rows) != 1)
        fail_msg("not one row: %.*s", STR_ARG(s->answer.body));
    return json_array_get(rows, 0);
}

/* ---- accounts and inboxes ---- */

static void anybody_signs_up_by_an_empty_post(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(mail_ask(s, "POST", "/v1/signup", NULL, NULL), 201);
    SAID(s, "account_create 127.0.0.1");
    assert_string_equal(mail_text(s, "id"), "acct_01JMXK9F2A0000000000000008");
    assert_string_equal(mail_text(s, "token"), KEY_LOBSTER);
    fake.fail = (struct err){ .kind = ERR_LIMIT, .message = "too many" };
    fake.retry_s = 120;
    assert_int_equal(mail_ask(s, "POST", "/v1/signup", NULL, NULL), 429);
    refused(s, 429, "rate_limited", "too many");
    assert_string_equal(mail_header(s, "Retry-After"), "120");
}

/* Any page in a browser on a machine that reaches this server could sign up, and then send. */
static void a_web_page_does_not_sign_up(void **state)
{
    struct mail_served *s = *state;
    static const struct {
        const char *name, *value, *text;
        unsigned status;
    } rows[] = {
        { "Origin", "http://evil.example", "web pages", 403 },
        { "Origin", "null", "web pages", 403 },
        { "Content-Type", "text/plain", "application/json", 415 },
        { "Content-Type", "application/x-www-form-urlencoded", "application/json", 415 },
        { "Content-Type", "application/jsonp", "application/json", 415 },
        { "Content-Type", "application/json; charset=utf-8", NULL, 201 },
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct http_field field = { str_from(rows[i].name), str_from(rows[i].value) };
        assert_int_equal(mail_ask_with(s, "POST", "/v1/signup", "{}", &field, 1), rows[i].status);
        assert_null(mail_header(s, "Access-Control-Allow-Origin"));
        if (rows[i].text) {
            assert_string_equal(fake.said, "");
            refused(s, rows[i].status, rows[i].status == 403 ? "insufficient_tier" : "invalid_request", rows[i].text);
        }
    }
    struct http_field preflight[] = { { STR("Origin"), STR("http://evil.example") },
                                      { STR("Access-Control-Request-Method"), STR("POST") } };
    assert_int_equal(mail_ask_with(s, "OPTIONS", "/v1/signup", NULL, preflight, 2), 405);
    assert_null(mail_header(s, "Access-Control-Allow-Origin"));
    /* Other routes need a key, which a page of another site does not have. */
    call(s, "GET", "/v1/account", NULL, 200);
    assert_string_equal(mail_header(s, "Access-Control-Allow-Origin"), "*");
}

static void an_account_can_send_within_limits(void **state)
{
    struct mail_served *s = *state;

    call(s, "GET", "/v1/account", NULL, 200);
    SAID(s, "account_get");
    const json_t *limits = json_object_get(s->last, "limits");
    assert_true(json_is_true(json_object_get(limits, "canSend")));
    assert_int_equal(json_integer_value(json_object_get(limits, "dailyEmailLimit")), 100);
    assert_int_equal(json_integer_value(json_object_get(limits, "maxInboxes")), 5);
    assert_true(json_is_integer(json_object_get(s->last, "tier")));
    assert_true(json_is_object(json_object_get(s->last, "usage")));
}

static void an_inbox_is_made_with_its_own_token(void **state)
{
    struct mail_served *s = *state;

    call(s, "POST", "/v1/inboxes", "{\"localPart\":\"ann\",\"displayName\":\"Ann\",\"domain\":\"mail.example\"}", 201);
    SAID(s, "inbox_create local=ann name=Ann tenant= mode=-1 code=");
    assert_string_equal(mail_text(s, "id"), "ibx_" FAKE_INBOX);
    assert_string_equal(mail_text(s, "address"), "agent@mail.example");
    assert_string_equal(mail_text(s, "domain"), "mail.example");
    assert_string_equal(mail_text(s, "token"), "mm_live_new");
    assert_true(json_is_null(json_object_get(s->last, "expiresAt")));
    call(s, "POST", "/v1/inboxes", "{}", 201);
    SAID(s, "inbox_create local= name= tenant= mode=-1 code=");
    call(s, "POST", "/v1/inboxes", "{\"domain\":\"other.example\"}", 400);
    refused(s, 400, "invalid_request", "mail.example");
    call(s, "POST", "/v1/inboxes", "{\"localPart\":\"a@mail.example\"}", 400);
    call(s, "POST", "/v1/inboxes", "{\"localPart\":7}", 400);
    refused(s, 400, "invalid_request", "localPart");
}

/* The client tries the next name after this code, and gives up after any other. */
static void a_taken_address_is_a_collision(void **state)
{
    struct mail_served *s = *state;

    fake.fail = (struct err){ .kind = ERR_CONFLICT, .message = "the address is taken" };
    call(s, "POST", "/v1/inboxes", "{\"localPart\":\"ann\"}", 409);
    refused(s, 409, "address_collision", "taken");
    call(s, "POST", "/v1/emails/send",
         "{\"from\":\"agent@mail.example\",\"to\":[\"b@b.example\"],\"subject\":\"x\",\"body\":{\"text\":\"x\"}}", 409);
    refused(s, 409, "conflict", "taken");
    fake.fail = (struct err){ .kind = ERR_LIMIT, .message = "has 100 inboxes" };
    call(s, "POST", "/v1/inboxes", "{}", 429);
    refused(s, 429, "rate_limited", "100");
}

static void inboxes_are_listed_shown_changed_and_deleted(void **state)
{
    struct mail_served *s = *state;

    call(s, "GET", "/v1/inboxes", NULL, 200);
    SAID(s, "inbox_list");
    assert_null(json_object_get(row(s), "token"));
    call(s, "GET", BOX, NULL, 200);
    SAID(s, "inbox_get " FAKE_INBOX);
    call(s, "GET", "/v1/inboxes/" FAKE_INBOX, NULL, 200); /* without the prefix */
    SAID(s, "inbox_get " FAKE_INBOX);
    call(s, "PATCH", BOX, "{\"displayName\":\"New\",\"autoExtract\":false}", 200);
    SAID(s, "inbox_update " FAKE_INBOX " display_name='New'");
    call(s, "PATCH", BOX, "{\"autoExtract\":true}", 501);
    refused(s, 501, "not_implemented", "model");
    call(s, "DELETE", BOX, NULL, 200); /* never 204: the client reads JSON */
    SAID(s, "inbox_delete " FAKE_INBOX);
    assert_string_equal(mail_text(s, "id"), "ibx_" FAKE_INBOX);
}

static void webhooks_are_added_listed_enabled_and_removed(void **state)
{
    struct mail_served *s = *state;

    call(s, "POST", "/v1/webhooks", "{\"url\":\"https://h.example/x\",\"inboxId\":\"ibx_" FAKE_INBOX "\"}", 201);
    SAID(s, "webhook_add https://h.example/x inbox=" FAKE_INBOX " secret= events=email.received");
    assert_string_equal(mail_text(s, "secret"), "whsec_1");
    assert_string_equal(mail_text(s, "id"), "wh_hook1");
    call(s, "POST", "/v1/webhooks", "{\"url\":\"https://h.example/x\",\"events\":[\"email.sent\",\"inbox.created\"]}",
         201);
    SAID(s, "webhook_add https://h.example/x inbox= secret= events=email.sent|inbox.created");
    call(s, "POST", "/v1/webhooks", "{\"url\":\"https://h.example/x\",\"events\":[7]}", 400);
    call(s, "POST", "/v1/webhooks", "{}", 400);
    call(s, "GET", "/v1/webhooks", NULL, 200);
    assert_true(json_is_true(json_object_get(row(s), "enabled")));
    assert_null(json_object_get(row(s), "secret"));
    call(s, "PATCH", "/v1/webhooks/wh_hook1", "{\"enabled\":true}", 200);
    SAID(s, "webhook_enable hook1");
    call(s, "PATCH", "/v1/webhooks/wh_hook1", "{\"enabled\":false}", 400);
    call(s, "DELETE", "/v1/webhooks/wh_hook1", NULL, 200);
    SAID(s, "webhook_remove hook1");
    assert_string_equal(mail_text(s, "id"), "wh_hook1");
}

/* ---- sending ---- */

static void a_send_names_the_inbox_by_its_address(void **state)
{
    struct mail_served *s = *state;

    call(s, "POST", "/v1/emails/send",
         "{\"from\":\"agent@mail.example\",\"to\":[\"b@b.example\",\"c@c.example\"],\"cc\":[\"d@d.example\"],"
         "\"subject\":\"Hi\",\"body\":{\"text\":\"t\",\"html\":\"<b>t</b>\"},\"inReplyTo\":\"" EML "\","
         "\"attachments\":[{\"filename\":\"a.txt\",\"contentType\":\"text/plain\",\"content\":\"aGVsbG8=\"}]}",
         202);
    SAID(s, "send inbox=agent@mail.example to=b@b.example|c@c.example cc=d@d.example bcc= subject=Hi markdown= text=t "
            "html=<b>t</b> file=a.txt:text/plain:hello idem= at=0 first=-1 answers=" FAKE_MESSAGE);
    assert_string_equal(mail_text(s, "id"), EML);
    assert_string_equal(mail_text(s, "status"), "pending_approval");
    fake.state = MAIL_SENT;
    call(s, "POST", "/v1/emails/send",
         "{\"from\":\"agent@mail.example\",\"to\":\"b@b.example\",\"subject\":\"Hi\",\"body\":{\"html\":\"<p>\"}}",
         202);
    assert_string_equal(mail_text(s, "status"), "sent");
    fake.state = MAIL_DEFERRED;
    call(s, "POST", "/v1/emails/send",
         "{\"from\":\"agent@mail.example\",\"to\":\"b@b.example\",\"subject\":\"Hi\",\"body\":\"plain\"}", 202);
    assert_string_equal(mail_text(s, "status"), "queued");
}

static void a_send_of_the_wrong_shape_names_the_field(void **state)
{
    static const struct {
        const char *body, *text;
    } wrong[] = {
        { "{}", "'subject'" },
        { "[]", "" },
        { "{\"subject\":\"x\"}", "'body'" },
        { "{\"subject\":\"x\",\"body\":{}}", "'text' or 'html'" },
        { "{\"subject\":\"x\",\"body\":{\"text\":7}}", "'text'" },
        { "{\"subject\":\"x\",\"body\":{\"text\":\"x\"}}", "'to' is missing" },
        { "{\"subject\":\"x\",\"body\":{\"text\":\"x\"},\"to\":[7]}", "'to'" },
        { "{\"subject\":\"x\",\"body\":{\"text\":\"x\"},\"to\":\"b@b.example\",\"from\":7}", "'from'" },
        { "{\"subject\":\"x\",\"body\":{\"text\":\"x\"},\"to\":\"b@b.example\",\"attachments\":[{}]}", "filename" },
        { "{\"subject\":\"x\",\"body\":{\"text\":\"x\"},\"to\":\"b@b.example\",\"attachments\":[{\"filename\":\"a\","
          "\"content\":\"?\"}]}",
          "base64" },
        { "{\"subject\":\"x\",\"body\":{\"text\":\"x\"},\"to\":\"b@b.example\",\"attachments\":[1,2,3,4,5,6,7,8,9,10,"
          "11]}",
          "more than 10" },
    };
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        call(s, "POST", "/v1/emails/send", wrong[i].body, 400);
        refused(s, 400, "invalid_request", wrong[i].text);
        assert_string_equal(fake.said, "");
    }
}

static void a_limit_says_when_to_try_again_unless_waiting_does_not_help(void **state)
{
    static const char *const body =
        "{\"from\":\"agent@mail.example\",\"to\":\"b@b.example\",\"subject\":\"Hi\",\"body\":{\"text\":\"x\"}}";
    struct mail_served *s = *state;

    fake.fail = (struct err){ .kind = ERR_LIMIT, .message = "20 messages a minute" };
    fake.retry_s = 7;
    call(s, "POST", "/v1/emails/send", body, 429);
    refused(s, 429, "rate_limited", "20");
    assert_string_equal(mail_header(s, "Retry-After"), "7");
    fake.retry_s = 0;
    call(s, "POST", "/v1/emails/send", body, 400);
    fake.fail = (struct err){ .kind = ERR_DENIED, .message = "the inbox is read_only" };
    call(s, "POST", "/v1/emails/send", body, 403);
    refused(s, 403, "insufficient_tier", "read_only"); /* the real reason is in the message */
}

/* ---- reading ---- */

#define LIST_HEAD "list " FAKE_INBOX " in=1 out="
#define LIST_TAIL(from, subject, after, cursor, limit)                                                                 \
    " in_status=-1 states=0 from=" from " subject=" subject " after=" after " before=0 files=-1 since= cursor=" cursor \
    " offset=0 limit=" limit " spam=0"

/* The client fetches the text only if `body` is there and null, and reads the score of every message. */
static void a_list_has_no_bodies_and_every_field(void **state)
{
    static const char *const fields[] = { "id",        "inboxId",        "direction", "from",        "to",
                                          "cc",        "subject",        "preview",   "body",        "isRead",
                                          "threadId",  "hasAttachments", "status",    "attachments", "security",
                                          "createdAt", "receivedAt" };
    struct mail_served *s = *state;

    for (int outbound = 0; outbound < 2; outbound++) {
        fake.direction = outbound ? MAIL_OUTBOUND : MAIL_INBOUND;
        fake.has_no_content = outbound;
        call(s, "GET", BOX "/emails", NULL, 200);
        for (size_t i = 0; i < COUNT_OF(fields); i++)
            if (!json_object_get(row(s), fields[i]))
                fail_msg("no '%s'", fields[i]);
        assert_true(json_is_null(json_object_get(row(s), "body")));
        const json_t *security = json_object_get(row(s), "security");
        assert_true(json_is_number(json_object_get(security, "injectionRiskScore")));
        assert_true(json_is_array(json_object_get(security, "flags")));
        assert_true(json_is_array(json_object_get(row(s), "attachments")));
    }
    assert_null(json_object_get(s->last, "cursor"));
    fake.direction = MAIL_INBOUND;
    fake.has_no_content = false;
    fake.page_has_more = true;
    call(s, "GET", BOX "/emails?limit=100&since=2023-11-14T22:13:20Z&direction=inbound&cursor=" EML, NULL, 200);
    SAID(s, LIST_HEAD "0" LIST_TAIL("", "", "1700000000000000", FAKE_MESSAGE, "100"));
    assert_string_equal(mail_text(s, "cursor"), "eml_" FAKE_CURSOR);
    assert_string_equal(json_string_value(json_object_get(row(s), "from")), "ann@a.example"); /* the address alone */
    call(s, "GET", BOX "/emails?limit=101", NULL, 400);
    call(s, "GET", BOX "/emails?direction=up", NULL, 400);
    call(s, "GET", BOX "/emails?since=soon", NULL, 400);
    call(s, "GET", BOX "/emails?since=%zz", NULL, 400);
}

static void a_message_has_its_text(void **state)
{
    struct mail_served *s = *state;

    call(s, "GET", BOX "/emails/" EML, NULL, 200);
    SAID(s, "read " FAKE_INBOX " " FAKE_MESSAGE " want=9");
    assert_string_equal(mail_text(s, "body"), "the text");
    assert_string_equal(mail_text(s, "threadId"), "thd_" FAKE_THREAD);
}

static void an_attachment_has_an_absolute_link(void **state)
{
    struct mail_served *s = *state;

    call(s, "GET", BOX "/emails/" EML "/attachments/0", NULL, 200);
    SAID(s, "attachment_link " FAKE_INBOX " " FAKE_MESSAGE " '0' number=1");
    assert_string_equal(mail_text(s, "downloadUrl"),
                        arena_format(&s->rig.arena, "http://%s/v1/files/tok", s->address).at);
    assert_int_equal(mail_ask(s, "GET", "/v1/files/tok", NULL, NULL), 200); /* without a key, and with one */
    call(s, "GET", "/v1/files/tok", NULL, 200);
    SAID(s, "attachment_open tok");
}

static void threads_are_listed_and_shown(void **state)
{
    struct mail_served *s = *state;

    fake.page_has_more = true;
    call(s, "GET", BOX "/threads?limit=5&cursor=thd_x", NULL, 200);
    SAID(s, "thread_list " FAKE_INBOX " cursor=x limit=5");
    assert_string_equal(json_string_value(json_object_get(row(s), "id")), "thd_" FAKE_THREAD);
    assert_string_equal(json_string_value(json_object_get(row(s), "inboxId")), "ibx_" FAKE_INBOX);
    assert_true(json_is_true(json_object_get(s->last, "hasMore")));
    assert_string_equal(mail_text(s, "cursor"), "thd_" FAKE_THREAD);
    call(s, "GET", BOX "/threads/thd_" FAKE_THREAD, NULL, 200);
    SAID(s, "thread_get " FAKE_INBOX " " FAKE_THREAD);
    assert_int_equal(json_array_size(json_object_get(s->last, "emails")), 1); /* those that are shown */
}

static void a_search_has_nested_pagination(void **state)
{
    struct mail_served *s = *state;

    fake.page_has_more = true;
    call(s, "GET", "/v1/emails/search?q=word&from=ann&limit=7", NULL, 200);
    SAID(s, "search in_status=-1 spam=0 text=word from=ann limit=7");
    const json_t *pages = json_object_get(s->last, "pagination");
    assert_true(json_is_true(json_object_get(pages, "hasMore")));
    assert_string_equal(json_string_value(json_object_get(pages, "cursor")), EML);
    assert_true(json_is_null(json_object_get(row(s), "body")));
    fake.page_has_more = false;
    call(s, "GET", "/v1/emails/search?q=word&inboxId=ibx_" FAKE_INBOX "&hasAttachments=true&until=2023-11-14", NULL,
         200);
    if (!strstr(fake.said, "list " FAKE_INBOX) || !strstr(fake.said, "files=1"))
        fail_msg("%s", fake.said);
    pages = json_object_get(s->last, "pagination");
    assert_true(json_is_null(json_object_get(pages, "cursor")));
    call(s, "GET", "/v1/emails/search", NULL, 400);
    call(s, "GET", "/v1/emails/search?q=x&limit=51", NULL, 400);
    call(s, "GET", "/v1/emails/search?q=x&hasAttachments=1", NULL, 400);
}

static void what_a_server_of_ones_own_has_not_is_a_typed_error(void **state)
{
    static const struct {
        const char *method, *path;
    } absent[] = {
        { "POST", "/v1/verify/x" },        { "POST", "/v1/billing/checkout" },
        { "POST", "/v1/billing/portal" },  { "POST", "/v1/domains" },
        { "GET", "/v1/domains" },          { "GET", "/v1/domains/dom_1" },
        { "DELETE", "/v1/domains/dom_1" }, { "POST", "/v1/domains/dom_1/verify" },
        { "GET", "/v1/docs/openapi" },     { "POST", BOX "/emails/" EML "/extract" },
    };
    struct mail_served *s = *state;

    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        call(s, absent[i].method, absent[i].path, NULL, 501);
        refused(s, 501, "not_implemented", "");
    }
    /* The client takes this for "not yet". */
    call(s, "GET", BOX "/emails/" EML "/extraction", NULL, 404);
    refused(s, 404, "not_found", "extraction");
}

/* ---- the long poll ---- */

/* Tells an event on the loop, as soon as the poll has looked once. */
struct later {
    struct loop_task task;
    struct mail_served *s;
    struct mail_event event;
    bool is_empty; /* the message does not fit the filter: the next look finds nothing */
    unsigned pause_ms;
    pthread_t thread;
};

static void tell(struct loop_task *task)
{
    struct later *later = container_of(task, struct later, task);

    fake.page_is_empty = later->is_empty;
    mail_api_heard(later->s->api, &later->event);
}

static void *wait_and_tell(void *context)
{
    struct later *later = context;

    while (!fake.lists_at_work)
        usleep(100);
    usleep(later->pause_ms * 1000);
    loop_post(later->s->rig.loop, &later->task);
    return NULL;
}

static void tell_soon(struct later *later, struct mail_served *s, enum mail_event_kind kind, const char *inbox_id)
{
    later->task = (struct loop_task){ .fn = tell };
    later->s = s;
    later->event = (struct mail_event){ .kind = kind };
    strcpy(later->event.inbox_id, inbox_id);
    fake.lists_at_work = 0;
    assert_int_equal(pthread_create(&later->thread, NULL, wait_and_tell, later), 0);
}

static uint64_t took_ms(struct mail_served *s, const char *path, unsigned status)
{
    uint64_t before = clock_mono_ms();

    call(s, "GET", path, NULL, status);
    return clock_mono_ms() - before;
}

#define POLL BOX "/emails/poll?since=2023-11-14T22:13:20Z"
#define LOOK LIST_HEAD "0" LIST_TAIL("", "", "1700000000000000", "", "20")

static void a_poll_answers_at_once_with_what_is_there(void **state)
{
    struct mail_served *s = *state;

    assert_true(took_ms(s, POLL "&timeout=20", 200) < 5000);
    SAID(s, LOOK);
    assert_true(json_is_null(json_object_get(row(s), "body")));
    call(s, "GET", "/v1/inboxes/agent@mail.example/emails/poll?since=2023-11-14T22:13:20Z", NULL, 200);
    SAID(s, "inbox_get agent@mail.example\n" LOOK);
    call(s, "GET", POLL "&timeout=x", NULL, 400);
    fake.fail = (struct err){ .kind = ERR_NOT_FOUND, .message = "no such inbox" };
    call(s, "GET", POLL, NULL, 404);
    refused(s, 404, "not_found", "no such");
}

static void a_poll_waits_for_a_message_without_a_worker(void **state)
{
    struct mail_served *s = *state;

    for (unsigned pause_ms = 0; pause_ms <= 50; pause_ms += 25) {
        struct later later = { .pause_ms = pause_ms };
        fake.page_is_empty = true;
        tell_soon(&later, s, MAIL_EVENT_RECEIVED, FAKE_INBOX);
        assert_true(took_ms(s, POLL "&timeout=20", 200) < 10000);
        assert_int_equal(json_array_size(json_object_get(s->last, "data")), 1);
        SAID(s, LOOK "\n" LOOK);
        pthread_join(later.thread, NULL);
    }
}

static void a_poll_ends_with_204(void **state)
{
    struct mail_served *s = *state;
    struct later later = { .is_empty = true, .pause_ms = 20 };

    fake.page_is_empty = true;
    assert_true(took_ms(s, POLL "&timeout=0", 204) < 5000);
    assert_int_equal(s->answer.body.len, 0);
    /* A message that does not fit, and one that was sent. */
    tell_soon(&later, s, MAIL_EVENT_RECEIVED, FAKE_INBOX);
    uint64_t ms = took_ms(s, POLL "&timeout=1", 204);
    assert_true(ms >= 990 && ms < 10000);
    SAID(s, LOOK "\n" LOOK);
    pthread_join(later.thread, NULL);
    tell_soon(&later, s, MAIL_EVENT_SENT, FAKE_INBOX);
    later.pause_ms = 100;
    (void)took_ms(s, POLL "&timeout=1", 204);
    pthread_join(later.thread, NULL);
}

/* Or a client that filters by itself would ask without a pause. */
static void the_same_answer_again_waits_half_a_second(void **state)
{
    struct mail_served *s = *state;

    (void)took_ms(s, POLL "&timeout=20&subject=a", 200);
    assert_true(took_ms(s, POLL "&timeout=20&subject=a", 200) >= 495);
    assert_true(took_ms(s, POLL "&timeout=20&subject=a", 200) >= 495);
    (void)took_ms(s, POLL "&timeout=20&subject=b", 200);
    /* An event ends the pause. */
    struct later later = { .pause_ms = 20 };
    tell_soon(&later, s, MAIL_EVENT_RECEIVED, FAKE_INBOX);
    (void)took_ms(s, POLL "&timeout=20&subject=b", 200);
    pthread_join(later.thread, NULL);
}

/* What waits must not keep anything of a request that is gone. */
static void a_client_may_leave_while_it_waits(void **state)
{
    struct mail_served *s = *state;
    struct later later = { 0 };

    fake.page_is_empty = true;
    for (int i = 0; i < 5; i++) {
        struct err err;
        struct http_field field = { STR("Authorization"), STR("Bearer " KEY_LOBSTER) };
        struct http_answer answer;
        /* The client gives up after some milliseconds. */
        assert_false(http_fetch(&s->rig.arena, str_from(s->address), STR("GET"), STR(POLL "&timeout=20"), &field, 1,
                                (struct str){ 0 }, 20 + 10 * (unsigned)i, &answer, &err));
    }
    tell_soon(&later, s, MAIL_EVENT_RECEIVED, FAKE_INBOX);
    (void)took_ms(s, POLL "&timeout=20", 200);
    pthread_join(later.thread, NULL);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, mail_served_set_up, mail_served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(anybody_signs_up_by_an_empty_post),
        SERVED(a_web_page_does_not_sign_up),
        SERVED(an_account_can_send_within_limits),
        SERVED(an_inbox_is_made_with_its_own_token),
        SERVED(a_taken_address_is_a_collision),
        SERVED(inboxes_are_listed_shown_changed_and_deleted),
        SERVED(webhooks_are_added_listed_enabled_and_removed),
        SERVED(a_send_names_the_inbox_by_its_address),
        SERVED(a_send_of_the_wrong_shape_names_the_field),
        SERVED(a_limit_says_when_to_try_again_unless_waiting_does_not_help),
        SERVED(a_list_has_no_bodies_and_every_field),
        SERVED(a_message_has_its_text),
        SERVED(an_attachment_has_an_absolute_link),
        SERVED(threads_are_listed_and_shown),
        SERVED(a_search_has_nested_pagination),
        SERVED(what_a_server_of_ones_own_has_not_is_a_typed_error),
        SERVED(a_poll_answers_at_once_with_what_is_there),
        SERVED(a_poll_waits_for_a_message_without_a_worker),
        SERVED(a_poll_ends_with_204),
        SERVED(the_same_answer_again_waits_half_a_second),
        SERVED(a_client_may_leave_while_it_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
