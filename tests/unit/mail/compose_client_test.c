/*
 * Front's half of composing, with a child that has no confinement.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"
#include "mail/compose.h"
#include "mail/mail.h"
#include "test.h"

#define INBOX "01HZZZZZZZZZZZZZZZZZZZZZZZ"

static struct arena arena;
static uint32_t retry_s;
static bool child_dies;

static bool open_composer(void *context, int *out_fd, struct err *err)
{
    int pair[2];
    struct err why;

    (void)context;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a connection");
    if (fork() == 0) {
        close(pair[0]);
        _exit(!child_dies && composer_serve(pair[1], &why) ? 0 : 1);
    }
    close(pair[1]);
    *out_fd = pair[0];
    return true;
}

static int before(void **state)
{
    arena_init(&arena);
    child_dies = false;
    *state = mail_new(&(struct mail_config){ .open_composer = open_composer });
    return 0;
}

static int after(void **state)
{
    mail_free(*state);
    arena_done(&arena);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    return 0;
}

static struct str one_to[] = { STR_INIT("bo@b.example") };

static struct mail_draft draft(void)
{
    return (struct mail_draft){ .from_address = STR("agent@mail.example"),
                                .to = one_to,
                                .to_count = 1,
                                .subject = STR("Hello"),
                                .markdown = STR("Hi"),
                                .message_id = STR("<1@mail.example>") };
}

static void a_message_is_composed_and_read_by_children(void **state)
{
    struct mail_draft d = draft();
    struct mail_content sent, got;
    struct err err;

    if (!mail_compose(*state, INBOX, &d, &arena, &sent, &retry_s, &err) ||
        !mail_parse(*state, INBOX, sent.mime, &arena, &got, &err))
        fail_msg("%s", err_text(&err));
    CHECK_STR(got.text, STR("Hi\n"));
    CHECK_STR(sent.recipients[0], STR("bo@b.example"));
    assert_int_equal(got.recipient_count, 0);
}

static void the_composers_refusal_reaches_the_caller(void **state)
{
    struct mail_draft d = draft();
    struct mail_content got;
    struct err err;

    d.subject = STR("a\r\nBcc: x@y.example");
    assert_false(mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err));
    assert_int_equal(err.kind, ERR_INVALID);
    assert_string_equal(err.message, "subject has a line break: write it on one line");
}

static void what_is_too_long_is_refused_by_its_name(void **state)
{
    char *text = malloc(LIMIT_MAIL_MIME_BYTES + 1);
    const struct str long_text = str_of(text, LIMIT_MAIL_MIME_BYTES + 1);
    struct mail_attachment file = { .name = STR("x") };
    struct str many[LIMIT_MAIL_RECIPIENTS + 1];
    struct mail_content got;
    struct err err;

    memset(text, 'x', long_text.len);
    struct {
        size_t field;
        const char *name;
    } fields[] = {
        { offsetof(struct mail_draft, subject), "subject" },
        { offsetof(struct mail_draft, markdown), "markdown" },
        { offsetof(struct mail_draft, text), "text" },
        { offsetof(struct mail_draft, html), "html" },
        { offsetof(struct mail_draft, reply_to), "reply_to" },
        { offsetof(struct mail_draft, from_name), "the sender's name" },
        { offsetof(struct mail_draft, signature), "the signature" },
        { offsetof(struct mail_draft, in_reply_to), "in_reply_to" },
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        struct mail_draft d = draft();
        *(struct str *)(void *)((char *)&d + fields[i].field) = long_text;
        assert_false(mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err));
        assert_int_equal(err.kind, ERR_LIMIT);
        assert_int_equal(retry_s, 0); /* it does not help to wait */
        assert_true(str_starts(str_from(err.message), str_from(fields[i].name)));
    }
    struct mail_draft d = draft();
    file.content = long_text;
    d.attachments = &file;
    d.attachment_count = 1;
    assert_false(mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    d = draft();
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = STR("a@b.example");
    d.cc = many;
    d.cc_count = COUNT_OF(many);
    assert_false(mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    assert_false(mail_parse(*state, INBOX, long_text, &arena, &got, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    free(text);
}

static void a_long_thread_keeps_its_first_and_last_references(void **state)
{
    struct buf references = buf_make(&arena, 1 << 20);
    struct mail_draft d = draft();
    struct mail_content got;
    struct err err;

    for (int i = 0; i < 1000; i++)
        buf_format(&references, "%s<%d@x.example>", i ? " " : "", i);
    d.references = buf_str(&references);
    if (!mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err))
        fail_msg("%s", err_text(&err));
    assert_true(got.references.len <= LIMIT_MAIL_REFERENCES_BYTES);
    assert_true(str_starts(got.references, STR("<0@x.example> <")));
    assert_true(str_ends(got.references, STR(" <999@x.example>")));
}

static void a_child_that_dies_is_an_error_of_this_message(void **state)
{
    struct mail_draft d = draft();
    struct mail_content got;
    struct err err;

    child_dies = true;
    assert_false(mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err));
    assert_int_equal(err.kind, ERR_UNAVAILABLE);
    child_dies = false;
    assert_true(mail_compose(*state, INBOX, &d, &arena, &got, &retry_s, &err));
}

int main(void)
{
#define EACH(function) cmocka_unit_test_setup_teardown(function, before, after)
    const struct CMUnitTest tests[] = {
        EACH(a_message_is_composed_and_read_by_children),    EACH(the_composers_refusal_reaches_the_caller),
        EACH(what_is_too_long_is_refused_by_its_name),       EACH(a_long_thread_keeps_its_first_and_last_references),
        EACH(a_child_that_dies_is_an_error_of_this_message),
    };
    composer_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
