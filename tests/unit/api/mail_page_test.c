/*
 * The approval page: what it shows, and what decides.
 */
#include "api/mail_multimail.h"
#include "mail_served.h"

#define PAGE "/approve/tok"
#define FORM "decision=approve&sha256=" FAKE_SHA

static unsigned get(struct mail_served *s, const char *target)
{
    return mail_ask_with(s, "GET", target, NULL, NULL, 0);
}

static unsigned post(struct mail_served *s, const char *body, const char *origin, const char *site)
{
    struct http_field fields[3] = { { STR("Content-Type"), STR("application/x-www-form-urlencoded") } };
    size_t count = 1;

    if (origin)
        fields[count++] = (struct http_field){ STR("Origin"), str_from(origin) };
    if (site)
        fields[count++] = (struct http_field){ STR("Sec-Fetch-Site"), str_from(site) };
    return mail_ask_with(s, "POST", PAGE, body, fields, count);
}

static bool has(struct mail_served *s, const char *text)
{
    struct str body = s->answer.body;

    return body.len && memmem(body.at, body.len, text, strlen(text));
}

#define HAS(s, text)                                                                \
    do {                                                                            \
        if (!has(s, text))                                                          \
            fail_msg("no '%s' in the page: %.*s", text, STR_ARG((s)->answer.body)); \
    } while (0)
#define LACKS(s, text)                                                              \
    do {                                                                            \
        if (has(s, text))                                                           \
            fail_msg("'%s' is in the page: %.*s", text, STR_ARG((s)->answer.body)); \
    } while (0)

static void opening_the_page_shows_and_decides_nothing(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(get(s, PAGE), 200);
    assert_string_equal(fake.said, "approval_show tok\n");
    HAS(s, "Ann &#60;ann@a.example&#62;");
    HAS(s, "the text");
    HAS(s, FAKE_SHA);
    HAS(s, "Approve and send");
    assert_string_equal(mail_header(s, "Cache-Control"), "no-store");
    assert_string_equal(mail_header(s, "Referrer-Policy"), "no-referrer");
    assert_non_null(strstr(mail_header(s, "Content-Security-Policy"), "default-src 'none'"));
    assert_non_null(strstr(mail_header(s, "Content-Security-Policy"), "frame-ancestors 'none'"));
    assert_int_equal(get(s, "/v1" PAGE), 200);
    assert_string_equal(fake.said, "approval_show tok\n");
}

static void attachments_open_from_the_page(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(get(s, PAGE), 200);
    HAS(s, "<a href=\"tok/attachments/0\">");
    assert_int_equal(get(s, PAGE "/attachments/0"), 200);
    assert_string_equal(fake.said, "approval_attachment tok 0\n");
    assert_non_null(strstr(mail_header(s, "Content-Disposition"), "attachment;"));
    assert_string_equal(mail_header(s, "X-Content-Type-Options"), "nosniff");
    assert_int_equal(get(s, "/v1" PAGE "/attachments/0"), 200);
    (void)err_set(&fake.fail, ERR_NOT_FOUND, "the message has no attachment with this number");
    assert_int_equal(get(s, PAGE "/attachments/7"), 404);
    HAS(s, "This link does not work");
}

static void nothing_that_a_stranger_writes_becomes_part_of_the_page(void **state)
{
    struct mail_served *s = *state;
    struct str to[] = { STR("\"x\n<img src=x>\" <b@b.example>") }, all[] = { STR("b@b.example"), STR("z@z.example") };
    struct mail_attachment file = { .name = STR("<script>a.pdf"), .content_type = STR("\"'><b>"), .size = 3 };
    struct mail_warning warning = { .code = STR("<i>"), .detail = STR("<u>") };
    struct held_message held = { .message = { .has_content = true, .direction = MAIL_OUTBOUND } };
    struct mail_content *content = &held.message.content;

    *content = (struct mail_content){ .from = STR("</dd><script>"),
                                      .subject = STR("\xe2\x80\xae<svg onload=1>\x1b[31m"),
                                      .to = to,
                                      .to_count = 1,
                                      .recipients = all,
                                      .recipient_count = 2,
                                      .text = STR("</pre><script>alert(1)</script>\n> old line too"),
                                      .html = STR("<p>\"quoted\" & 'more'</p>"),
                                      .attachments = &file,
                                      .attachment_count = 1,
                                      .warnings = &warning,
                                      .warning_count = 1 };
    held.answered.has_content = true;
    held.answered.content.from = STR("<b>c@c.example");
    held.answered.content.text = STR("old line too");
    fake.page = &held;
    assert_int_equal(get(s, PAGE), 200);
    LACKS(s, "<script");
    LACKS(s, "<svg");
    LACKS(s, "<img");
    LACKS(s, "\x1b");
    LACKS(s, "\xe2\x80\xae");
    HAS(s, "&lt;U+202E&gt;");
    HAS(s, "srcdoc=\"&#60;p&#62;&#34;quoted&#34; &#38; &#39;more&#39;&#60;/p&#62;\"");
    HAS(s, "Copy to</dt><dd>z@z.example");
    HAS(s, "<span class=\"old\">&#62; old line too</span>");
    HAS(s, "&#60;script&#62;a.pdf");
}

/* Otherwise a stranger writes in advance the sentence that the approver is to overlook. */
static void only_quoted_lines_of_the_answered_message_are_dim(void **state)
{
    struct mail_served *s = *state;
    struct held_message held = { .message = { .has_content = true, .direction = MAIL_OUTBOUND } };

    held.message.content.text =
        STR("pay this today\n  pay this today\n> pay this today\n>> pay this today\n> not theirs");
    held.answered.has_content = true;
    held.answered.content.text = STR("pay this today\n> pay this today");
    fake.page = &held;
    assert_int_equal(get(s, PAGE), 200);
    HAS(s, "<pre>pay this today\n  pay this today\n<span class=\"old\">&#62; pay this today</span>\n"
           "<span class=\"old\">&#62;&#62; pay this today</span>\n&#62; not theirs\n</pre>");
}

static void the_form_decides_with_the_hash_that_was_shown(void **state)
{
    struct mail_served *s = *state;

    assert_int_equal(post(s, FORM "&reason=well+done%21", NULL, NULL), 200);
    assert_string_equal(fake.said, "approval_decide tok approve reason=well done! sha=" FAKE_SHA "\n");
    HAS(s, "Approved");
    assert_int_equal(post(s, "decision=reject&reason=&sha256=" FAKE_SHA, NULL, "same-origin"), 200);
    assert_string_equal(fake.said, "approval_decide tok reject reason= sha=" FAKE_SHA "\n");
    HAS(s, "Rejected");
}

static void a_form_that_is_not_complete_decides_nothing(void **state)
{
    struct mail_served *s = *state;
    static const char *const forms[] = { "",
                                         "decision=approve",
                                         "decision=&sha256=" FAKE_SHA,
                                         "decision=approved&sha256=" FAKE_SHA,
                                         "sha256=" FAKE_SHA,
                                         "decision=approve&sha256=",
                                         "decision=%zz&sha256=" FAKE_SHA };

    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        assert_int_equal(post(s, forms[i], NULL, NULL), 400);
        assert_string_equal(fake.said, "");
    }
}

static void a_form_from_another_site_decides_nothing(void **state)
{
    struct mail_served *s = *state;
    char own[64];

    assert_int_equal(post(s, FORM, "https://evil.example", NULL), 403);
    assert_string_equal(fake.said, "");
    assert_int_equal(post(s, FORM, NULL, "cross-site"), 403);
    assert_int_equal(post(s, FORM, NULL, "same-site"), 403);
    assert_string_equal(fake.said, "");
    (void)snprintf(own, sizeof own, "http://%s", s->address);
    assert_int_equal(post(s, FORM, own, "same-origin"), 200);
    assert_int_equal(post(s, FORM, "null", NULL), 200); /* Referrer-Policy: no-referrer */
}

static void links_that_do_not_work_have_one_page_and_conflicts_another(void **state)
{
    struct mail_served *s = *state;

    (void)err_set(&fake.fail, ERR_NOT_FOUND, "there is no such inbox or message");
    assert_int_equal(get(s, PAGE), 404);
    HAS(s, "This link does not work");
    assert_int_equal(post(s, FORM, NULL, NULL), 404);
    (void)err_set(&fake.fail, ERR_CONFLICT, "the message has changed <since>");
    assert_int_equal(post(s, FORM, NULL, NULL), 409);
    HAS(s, "changed &#60;since&#62;");
    (void)err_set(&fake.fail, ERR_INTERNAL, "secret detail");
    assert_int_equal(get(s, PAGE), 503);
    LACKS(s, "secret detail");
}

#define PAGE_TEST(name) cmocka_unit_test_setup_teardown(name, mail_served_set_up, mail_served_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PAGE_TEST(opening_the_page_shows_and_decides_nothing),
        PAGE_TEST(attachments_open_from_the_page),
        PAGE_TEST(nothing_that_a_stranger_writes_becomes_part_of_the_page),
        PAGE_TEST(only_quoted_lines_of_the_answered_message_are_dim),
        PAGE_TEST(the_form_decides_with_the_hash_that_was_shown),
        PAGE_TEST(a_form_that_is_not_complete_decides_nothing),
        PAGE_TEST(a_form_from_another_site_decides_nothing),
        PAGE_TEST(links_that_do_not_work_have_one_page_and_conflicts_another),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
