/*
 * The operator's routes: what `cloister mail` calls.
 */
#include "mail_served.h"

#define EM "em_" FAKE_MESSAGE

#define SAID(s, text)                                                                           \
    do {                                                                                        \
        if (strcmp(fake.said, text "\n"))                                                       \
            fail_msg("said '%s', want '%s'; %.*s", fake.said, text, STR_ARG((s)->answer.body)); \
    } while (0)

static unsigned call(struct mail_served *s, const char *method, const char *target, const char *body)
{
    struct http_field token = { STR("X-Admin-Token"), STR(ADMIN) };

    return mail_ask_with(s, method, target, body, &token, 1);
}

static const char *text_of_row(struct mail_served *s, const char *list, const char *name)
{
    const json_t *rows = json_object_get(s->last, list);

    assert_int_equal(json_array_size(rows), 1);
    const char *text = json_string_value(json_object_get(json_array_get(rows, 0), name));
    if (!text)
        fail_msg("no text '%s' in a row of '%s'", name, list);
    return text;
}

static void refused(struct mail_served *s, const char *method, const char *target, const char *body, const char *text)
{
    assert_int_equal(call(s, method, target, body), 400);
    assert_int_equal(json_integer_value(json_object_get(s->last, "code")), 400);
    if (!strstr(mail_text(s, "message"), text))
        fail_msg("'%s' has no '%s'", mail_text(s, "message"), text);
    assert_string_equal(fake.said, "");
}

static void inboxes_are_made_with_a_key_that_is_shown_once(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(call(s, "POST", "/mail/inboxes", "{\"name\":\"bot\",\"tenant\":\"acme\",\"mode\":\"gated_all\"}"),
                     201);
    SAID(s, "inbox_create local=bot name= tenant=acme mode=1 code=");
    assert_string_equal(mail_text(s, "id"), FAKE_INBOX);
    assert_string_equal(mail_text(s, "address"), "agent@mail.example");
    assert_string_equal(mail_text(s, "key"), "mm_live_new");
    assert_true(json_is_true(json_object_get(s->last, "made_tenant")));
    assert_string_equal(mail_text(s, "mode"), "gated_send");
    assert_string_equal(mail_header(s, "Cache-Control"), "no-store");
    assert_int_equal(call(s, "GET", "/mail/inboxes", NULL), 200);
    assert_string_equal(text_of_row(s, "inboxes", "tenant"), "default");
    assert_int_equal(call(s, "GET", "/mail/inboxes/agent@mail.example", NULL), 200);
    SAID(s, "inbox_get agent@mail.example");
    assert_int_equal(call(s, "DELETE", "/mail/inboxes/" FAKE_INBOX, NULL), 200);
    SAID(s, "inbox_delete " FAKE_INBOX);
    refused(s, "POST", "/mail/inboxes", "{}", "name");
    refused(s, "POST", "/mail/inboxes", "{\"name\":1}", "name");
}

static void the_operator_moves_an_inbox_on_the_ladder(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(call(s, "PUT", "/mail/inboxes/" FAKE_INBOX "/mode", "{\"mode\":\"monitored\"}"), 200);
    SAID(s, "inbox_get " FAKE_INBOX "\ninbox_raise_mode " FAKE_INBOX " code= mode=3");
    assert_int_equal(call(s, "PUT", "/mail/inboxes/" FAKE_INBOX "/mode", "{\"mode\":\"read_only\"}"), 200);
    SAID(s, "inbox_get " FAKE_INBOX "\ninbox_update " FAKE_INBOX " mode=0");
    refused(s, "PUT", "/mail/inboxes/x/mode", "{}", "'mode' is missing");
    refused(s, "PUT", "/mail/inboxes/x/mode", "{\"mode\":\"free\"}", "'mode' must be");
}

static void the_allowlist_needs_no_code(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(call(s, "POST", "/mail/inboxes/" FAKE_INBOX "/allow", "{\"pattern\":\"*@b.example\"}"), 201);
    SAID(s, "allow_add " FAKE_INBOX " *@b.example code=");
    assert_int_equal(call(s, "GET", "/mail/inboxes/" FAKE_INBOX "/allow", NULL), 200);
    assert_string_equal(text_of_row(s, "entries", "pattern"), "*@b.example");
    assert_int_equal(call(s, "DELETE", "/mail/inboxes/" FAKE_INBOX "/allow/allow1", NULL), 200);
    SAID(s, "allow_remove " FAKE_INBOX " allow1 code=");
}

static void keys_and_codes(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(call(s, "POST", "/mail/keys", "{\"name\":\"eyes\",\"tenant\":\"acme\"}"), 201);
    SAID(s, "key_create eyes scopes=8 tenant=acme inbox= code=");
    assert_string_equal(mail_text(s, "key"), "mm_live_made");
    assert_int_equal(call(s, "POST", "/mail/keys", "{\"name\":\"eyes\",\"scopes\":[\"oversight_read\"]}"), 201);
    SAID(s, "key_create eyes scopes=16 tenant= inbox= code=");
    assert_int_equal(call(s, "GET", "/mail/keys", NULL), 200);
    assert_string_equal(text_of_row(s, "keys", "prefix"), "mm_live_abc");
    assert_int_equal(call(s, "DELETE", "/mail/keys/key1", NULL), 200);
    SAID(s, "key_revoke key1 code=");
    assert_int_equal(call(s, "GET", "/mail/codes", NULL), 200);
    assert_string_equal(text_of_row(s, "codes", "code"), "A7X-29K");
    refused(s, "POST", "/mail/keys", "{\"name\":\"x\",\"scopes\":\"send\"}", "scopes");
    assert_int_equal(call(s, "PUT", "/mail/oversight", "{\"address\":\"a@b.c\",\"tenant\":\"acme\"}"), 200);
    SAID(s, "oversight_address a@b.c tenant=acme code=");
}

static void held_mail_is_shown_and_decided(void **state)
{
    struct mail_served *s = *state;
    char want[128];

    assert_int_equal(call(s, "GET", "/mail/pending", NULL), 200);
    assert_string_equal(text_of_row(s, "pending", "content_sha256"), FAKE_SHA);
    assert_string_equal(text_of_row(s, "pending", "tenant"), "default");
    assert_int_equal(call(s, "GET", "/mail/pending?inbox=a%40b.c&cursor=0.X", NULL), 200);
    SAID(s, "pending inbox=a@b.c cursor=0.X");
    assert_true(json_is_null(json_object_get(s->last, "cursor")));
    fake.list_has_no_text = true;
    assert_int_equal(call(s, "GET", "/mail/pending", NULL), 200);
    assert_string_equal(text_of_row(s, "pending", "body_markdown"), "the"); /* its beginning */
    const json_t *row = json_array_get(json_object_get(s->last, "pending"), 0);
    assert_true(json_is_true(json_object_get(row, "body_truncated")));
    assert_int_equal(call(s, "GET", "/mail/messages/" EM, NULL), 200);
    SAID(s, "held_get " FAKE_MESSAGE);
    assert_string_equal(mail_text(s, "markdown"), "the text");
    assert_true(json_is_null(json_object_get(s->last, "answers")));
    assert_int_equal(call(s, "GET", "/mail/messages/" EM "/attachments/0", NULL), 200);
    SAID(s, "held_attachment " FAKE_MESSAGE " 0");
    assert_int_equal(call(s, "POST", "/mail/messages/" EM "/link", NULL), 201);
    SAID(s, "approval_link " FAKE_MESSAGE);
    assert_string_equal(mail_text(s, "path"), "/approve/tok");
    snprintf(want, sizeof want, "http://%s/approve/tok", s->address);
    assert_string_equal(mail_text(s, "url"), want);
    assert_int_equal(
        call(s, "POST", "/mail/messages/" EM "/decide", "{\"action\":\"approve\",\"content_sha256\":\"" FAKE_SHA "\"}"),
        200);
    SAID(s, "decide " FAKE_MESSAGE " approve reason= sha=" FAKE_SHA);
    refused(s, "POST", "/mail/messages/" EM "/decide", "{\"action\":\"perhaps\"}", "'action'");
    err_note(&fake.fail, ERR_CONFLICT, "the message is already sent");
    assert_int_equal(call(s, "POST", "/mail/messages/" EM "/decide", "{\"action\":\"approve\"}"), 409);
    assert_string_equal(mail_text(s, "message"), "the message is already sent");
}

static void grants_are_narrow(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(call(s, "POST", "/mail/grants",
                          "{\"to\":\"key1\",\"inbox\":\"" FAKE_INBOX
                          "\",\"verbs\":[\"list\",\"read\"],\"expires_s\":60,"
                          "\"reason\":\"audit\"}"),
                     201);
    SAID(s, "grant_create to=key1 inbox=" FAKE_INBOX " verbs=3 expires=60 reason=audit");
    assert_int_equal(call(s, "GET", "/mail/grants", NULL), 200);
    assert_string_equal(text_of_row(s, "grants", "reason"), "audit");
    assert_int_equal(call(s, "DELETE", "/mail/grants/grant1", NULL), 200);
    SAID(s, "grant_revoke grant1");
    refused(s, "POST", "/mail/grants",
            "{\"to\":\"k\",\"inbox\":\"i\",\"verbs\":[\"send\"],\"expires_s\":60,\"reason\":\"r\"}", "'verbs'");
    refused(s, "POST", "/mail/grants", "{\"to\":\"k\",\"inbox\":\"i\",\"verbs\":[],\"expires_s\":60,\"reason\":\"r\"}",
            "'verbs'");
    refused(s, "POST", "/mail/grants",
            "{\"to\":\"k\",\"inbox\":\"i\",\"verbs\":[\"read\"],\"expires_s\":0,\"reason\":\"r\"}", "expires_s");
    refused(s, "POST", "/mail/grants", "{\"to\":\"k\",\"inbox\":\"i\",\"verbs\":[\"read\"],\"expires_s\":9}", "reason");
}

static void the_audit_is_listed_and_checked(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(call(s, "GET", "/mail/inboxes/" FAKE_INBOX "/audit?limit=5", NULL), 200);
    SAID(s, "audit_list " FAKE_INBOX " before=0 limit=5");
    assert_string_equal(text_of_row(s, "entries", "action"), "message.held");
    assert_int_equal(call(s, "GET", "/mail/inboxes/" FAKE_INBOX "/audit/verify", NULL), 200);
    SAID(s, "audit_verify " FAKE_INBOX);
    assert_true(json_is_true(json_object_get(s->last, "ok")));
    assert_int_equal(call(s, "GET", "/mail/audit/verify", NULL), 200);
    SAID(s, "audit_refs\naudit_verify " FAKE_INBOX "\naudit_verify tenant:default");
    const json_t *rows = json_object_get(s->last, "inboxes");
    assert_int_equal(json_array_size(rows), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 1), "inbox")), "tenant:default");
}

#define SERVED(function) cmocka_unit_test_setup_teardown(function, mail_served_set_up, mail_served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(inboxes_are_made_with_a_key_that_is_shown_once),
        SERVED(the_operator_moves_an_inbox_on_the_ladder),
        SERVED(the_allowlist_needs_no_code),
        SERVED(keys_and_codes),
        SERVED(held_mail_is_shown_and_decided),
        SERVED(grants_are_narrow),
        SERVED(the_audit_is_listed_and_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
