#include "mail/content_pack.h"

#include "base/limits.h"
#include "test.h"

static struct str two[] = { STR_INIT("a@b.example"), STR_INIT("Bo <bo@b.example>") };
static struct mail_attachment files[] = {
    { .name = STR_INIT("a.txt"),
      .content_type = STR_INIT("text/plain"),
      .content = STR_INIT("one"),
      .size = 3,
      .sha256 = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed" },
    { .name = STR_INIT("b.bin"),
      .content_type = STR_INIT("application/octet-stream"),
      .content = STR_INIT("two\0two"),
      .size = 7,
      .sha256 = "00" },
};
static struct mail_warning warnings[] = { { STR_INIT("secret"), STR_INIT("It has a key."), true },
                                          { STR_INIT("raw_html"), STR_INIT("It has HTML."), false } };
static struct str flags[] = { STR_INIT("phishing_url") };

static struct mail_content sample(void)
{
    return (struct mail_content){
        .mime = STR("From: a\r\n\r\nb"),
        .from = STR("A <a@x.example>"),
        .reply_to = STR("r@x.example"),
        .subject = STR("sub"),
        .message_id = STR("<1@x>"),
        .in_reply_to = STR("<0@x>"),
        .references = STR("<0@x> <00@x>"),
        .to = two,
        .to_count = 2,
        .cc = two,
        .cc_count = 1,
        .bcc = &two[1],
        .bcc_count = 1,
        .recipients = two,
        .recipient_count = 1,
        .sender = STR("a@x.example"),
        .date_us = -5,
        .text = STR("b"),
        .html = STR("<p>b</p>"),
        .answered_from = STR("b@y.example"),
        .answered_text = STR("a question"),
        .answered_us = 7,
        .preview = STR("b"),
        .attachments = files,
        .attachment_count = 2,
        .warnings = warnings,
        .warning_count = 2,
        .injection_percent = 70,
        .flags = flags,
        .flag_count = 1,
    };
}

static void check_same(const struct mail_content *a, const struct mail_content *b)
{
    auto_buf struct buf x = buf_make(NULL, 1 << 20), y = buf_make(NULL, 1 << 20);

    pack_content(&x, a, CONTENT_ALL);
    pack_content(&y, b, CONTENT_ALL);
    CHECK_STR(buf_str(&x), buf_str(&y));
}

static void content_survives_the_way_there_and_back(void **state)
{
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20);
    struct mail_content content = sample(), got = { 0 };
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    pack_content(&bytes, &content, CONTENT_ALL);
    struct unpack in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), CONTENT_ALL);
    assert_true(unpack_done(&in, &err));
    CHECK_STR(got.mime, content.mime);
    CHECK_STR(got.from, content.from);
    CHECK_STR(got.references, content.references);
    assert_int_equal(got.to_count, 2);
    CHECK_STR(got.to[1], two[1]);
    CHECK_STR(got.bcc[0], two[1]);
    assert_int_equal(got.date_us, -5);
    CHECK_STR(got.attachments[1].content, files[1].content);
    assert_string_equal(got.attachments[0].sha256, files[0].sha256);
    assert_true(got.warnings[0].blocks);
    assert_false(got.warnings[1].blocks);
    assert_int_equal(got.injection_percent, 70);
    CHECK_STR(got.answered_text, content.answered_text);
    assert_int_equal(got.answered_us, 7);
    check_same(&content, &got);
    arena_done(&arena);
}

static void parts_that_were_packed_apart_become_one_again(void **state)
{
    static const unsigned order[] = { CONTENT_HEAD, CONTENT_FILES, CONTENT_MIME, CONTENT_TEXT };
    struct mail_content content = sample(), got = { 0 };
    struct buf bytes[COUNT_OF(order)];
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        bytes[i] = buf_make(&arena, 1 << 20);
        pack_content(&bytes[i], &content, order[i]);
        struct unpack in = unpack_from(buf_str(&bytes[i]));
        assert_int_equal(unpack_content(&in, &arena, &got), order[i]);
        assert_true(unpack_done(&in, &err));
    }
    check_same(&content, &got);
    arena_done(&arena);
}

static void a_head_alone_has_no_body_and_no_attachment_contents(void **state)
{
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20);
    struct mail_content content = sample(), got = { 0 };
    struct arena arena;

    (void)state;
    arena_init(&arena);
    pack_content(&bytes, &content, CONTENT_HEAD);
    struct unpack in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), CONTENT_HEAD);
    assert_int_equal(got.mime.len + got.text.len + got.html.len, 0);
    assert_int_equal(got.attachment_count, 2);
    assert_int_equal(got.attachments[0].content.len, 0);
    assert_int_equal(got.attachments[0].size, 3);
    arena_done(&arena);
}

/* However the bytes are cut, the reader fails and the struct is empty. */
static void a_cut_content_is_refused(void **state)
{
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20);
    struct mail_content content = sample(), got;
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    pack_content(&bytes, &content, CONTENT_ALL);
    for (size_t len = 0; len < bytes.len; len++) {
        struct unpack in = unpack_from(str_of(bytes.data, len));
        got = (struct mail_content){ 0 };
        assert_int_equal(unpack_content(&in, &arena, &got), 0);
        assert_false(unpack_done(&in, &err));
        assert_int_equal(got.attachment_count + got.to_count + got.warning_count, 0);
        assert_null(got.attachments);
    }
    arena_done(&arena);
}

static void contents_of_attachments_need_their_head(void **state)
{
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20);
    struct mail_content content = sample(), got = { 0 };
    struct arena arena;

    (void)state;
    arena_init(&arena);
    pack_content(&bytes, &content, CONTENT_FILES);
    struct unpack in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), 0);
    assert_true(in.failed);
    arena_done(&arena);
}

static void unknown_forms_and_scores_over_100_are_refused(void **state)
{
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20);
    struct mail_content content = sample(), got = { 0 };
    struct arena arena;

    (void)state;
    arena_init(&arena);
    content.injection_percent = 101;
    pack_content(&bytes, &content, CONTENT_HEAD);
    struct unpack in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), 0);
    buf_clear(&bytes);
    content.injection_percent = 100;
    pack_content(&bytes, &content, CONTENT_HEAD);
    in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), CONTENT_HEAD);
    bytes.data[0] = 9;
    in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), 0);
    bytes.data[0] = 1;
    bytes.data[1] = 16;
    in = unpack_from(buf_str(&bytes));
    assert_int_equal(unpack_content(&in, &arena, &got), 0);
    arena_done(&arena);
}

static struct mail_draft sample_draft(void)
{
    return (struct mail_draft){
        .from_address = STR("a@x.example"),
        .from_name = STR("A"),
        .to = two,
        .to_count = 2,
        .cc = two,
        .cc_count = 1,
        .bcc = &two[1],
        .bcc_count = 1,
        .reply_to = STR("r@x.example"),
        .subject = STR("sub"),
        .markdown = STR("**b**"),
        .text = STR("b"),
        .html = STR("<p>b</p>"),
        .signature = STR("me"),
        .in_reply_to = STR("<0@x>"),
        .references = STR("<0@x>"),
        .message_id = STR("<1@x>"),
        .date_us = 7,
        .attachments = files,
        .attachment_count = 2,
        .identity = STR("true"),
    };
}

static void a_draft_survives_the_way_there_and_back(void **state)
{
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20), again = buf_make(NULL, 1 << 20);
    struct mail_draft draft = sample_draft(), got;
    struct arena arena;
    struct err err;

    (void)state;
    arena_init(&arena);
    pack_draft(&bytes, &draft);
    struct unpack in = unpack_from(buf_str(&bytes));
    unpack_draft(&in, &arena, &got);
    assert_true(unpack_done(&in, &err));
    CHECK_STR(got.cc[0], two[0]);
    CHECK_STR(got.signature, draft.signature);
    CHECK_STR(got.identity, draft.identity);
    assert_int_equal(got.attachments[1].size, 7);
    pack_draft(&again, &got);
    CHECK_STR(buf_str(&again), buf_str(&bytes));
    for (size_t len = 0; len < bytes.len; len++) {
        in = unpack_from(str_of(bytes.data, len));
        unpack_draft(&in, &arena, &got);
        assert_true(in.failed);
        assert_null(got.to);
        assert_null(got.attachments);
    }
    arena_done(&arena);
}

static void a_draft_with_too_much_is_refused(void **state)
{
    struct str many[LIMIT_MAIL_RECIPIENTS + 1];
    struct mail_attachment more[LIMIT_MAIL_ATTACHMENTS + 1] = { 0 };
    struct mail_draft draft = sample_draft(), got;
    auto_buf struct buf bytes = buf_make(NULL, 1 << 20);
    struct arena arena;

    (void)state;
    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = STR("a@b.example");
    draft.bcc = many;
    draft.bcc_count = COUNT_OF(many);
    pack_draft(&bytes, &draft);
    struct unpack in = unpack_from(buf_str(&bytes));
    unpack_draft(&in, &arena, &got);
    assert_true(in.failed);

    buf_clear(&bytes);
    draft = sample_draft();
    draft.attachments = more;
    draft.attachment_count = COUNT_OF(more);
    pack_draft(&bytes, &draft);
    in = unpack_from(buf_str(&bytes));
    unpack_draft(&in, &arena, &got);
    assert_true(in.failed);
    arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(content_survives_the_way_there_and_back),
        CASE(parts_that_were_packed_apart_become_one_again),
        CASE(a_head_alone_has_no_body_and_no_attachment_contents),
        CASE(a_cut_content_is_refused),
        CASE(contents_of_attachments_need_their_head),
        CASE(unknown_forms_and_scores_over_100_are_refused),
        CASE(a_draft_survives_the_way_there_and_back),
        CASE(a_draft_with_too_much_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
