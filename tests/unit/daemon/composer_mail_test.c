/*
 * The composer as it is, with its libraries, in its confinement: nothing that it needs for a message is shut out. This
 * program is front, and run as `… role composer info` it is the composer.
 */
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "daemon/forker_rig.h"
#include "daemon/roles.h"
#include "mail/compose.h"
#include "mail/content_pack.h"
#include "privsep/frame.h"
#include "test.h"

static struct arena arena;

static int set_up(void **state)
{
    arena_init(&arena);
    *state = rig_start("composer", NULL, MESSAGE_COMPOSE, NULL, 0);
    return 0;
}

static int tear_down(void **state)
{
    rig_stop(*state);
    arena_done(&arena);
    return 0;
}

static bool ask(struct rig *rig, const struct buf *request, struct mail_content *out, struct err *err)
{
    struct rig_child child = rig_child(rig);
    auto_close int fd = child.fd;
    char *frame;
    size_t len;

    if (fd < 0)
        fail_msg("%s", err_text(&child.err));
    if (!frame_write(fd, buf_str(request), 20000, err) ||
        !frame_read(fd, LIMIT_MAIL_FRAME_BYTES, 30000, &frame, &len, err))
        return false;
    struct unpack in = unpack_from(arena_copy(&arena, str_of(frame, len)));
    free(frame);
    if (!unpack_bool(&in)) {
        message_unpack_err(&in, err);
        return false;
    }
    (void)unpack_content(&in, &arena, out);
    return unpack_done(&in, err);
}

static struct mail_content compose(struct rig *rig, const struct mail_draft *draft)
{
    struct buf request = buf_make(&arena, LIMIT_MAIL_FRAME_BYTES);
    struct mail_content content = { 0 };
    struct err err;

    pack_u8(&request, COMPOSER_COMPOSE);
    pack_draft(&request, draft);
    if (!ask(rig, &request, &content, &err))
        fail_msg("%s", err_text(&err));
    return content;
}

static struct mail_content parse(struct rig *rig, struct str mime)
{
    struct buf request = buf_make(&arena, LIMIT_MAIL_FRAME_BYTES);
    struct mail_content content = { 0 };
    struct err err;

    pack_u8(&request, COMPOSER_PARSE);
    pack_str(&request, mime);
    if (!ask(rig, &request, &content, &err))
        fail_msg("%s", err_text(&err));
    return content;
}

static void the_largest_message_goes_there_and_back(void **state)
{
    static struct str to[] = { STR_INIT("Jörg <bo@bücher.example>") };
    char *bytes = arena_alloc(&arena, LIMIT_MAIL_ATTACHMENTS_BYTES),
         *text = arena_alloc(&arena, LIMIT_MAIL_DRAFT_BYTES);
    struct mail_attachment file = { .name = STR("Ü.bin"),
                                    .content_type = STR("application/octet-stream"),
                                    .content = str_of(bytes, LIMIT_MAIL_ATTACHMENTS_BYTES) };
    struct mail_draft draft = {
        .from_address = STR("agent@mail.example"),
        .to = to,
        .to_count = 1,
        .subject = STR("Grüße"),
        .markdown = str_of(text, LIMIT_MAIL_DRAFT_BYTES),
        .message_id = STR("<1@mail.example>"),
        .attachments = &file,
        .attachment_count = 1,
    };
    struct mail_content sent, got;

    for (size_t i = 0; i < LIMIT_MAIL_ATTACHMENTS_BYTES; i++)
        bytes[i] = (char)(i * i >> 3);
    for (size_t i = 0; i < LIMIT_MAIL_DRAFT_BYTES; i++)
        text[i] = "**bold** and some words,\n\n"[i % 26];
    sent = compose(*state, &draft);
    got = parse(*state, sent.mime);
    CHECK_STR(got.subject, draft.subject);
    CHECK_STR(got.to[0], sent.to[0]);
    assert_true(str_eq(got.text, sent.text));
    assert_int_equal(got.attachment_count, 1);
    assert_true(str_eq(got.attachments[0].content, file.content));
}

static void character_sets_are_there_without_files(void **state)
{
    static const struct {
        const char *charset;
        struct str body, want;
    } samples[] = {
        { "windows-1251", STR_INIT("\xcf\xf0\xe8\xe2\xe5\xf2"), STR_INIT("Привет") },
        { "iso-8859-2", STR_INIT("\xb9\xe8"), STR_INIT("šč") },
        { "shift_jis", STR_INIT("\x93\xfa\x96\x7b"), STR_INIT("日本") },
        { "iso-2022-jp", STR_INIT("\x1b$BF|K\\\x1b(B"), STR_INIT("日本") },
        { "gb2312", STR_INIT("\xc4\xe3\xba\xc3"), STR_INIT("你好") },
        { "big5", STR_INIT("\xa7\x41\xa6\x6e"), STR_INIT("你好") },
        { "ks_c_5601-1987", STR_INIT("\xb0\xa1"), STR_INIT("가") },
        { "utf-16le", STR_INIT("h\0i\0"), STR_INIT("hi") },
    };

    for (size_t i = 0; i < COUNT_OF(samples); i++) {
        struct buf mime = buf_make(&arena, 4096);
        buf_format(&mime, "Subject: =?%s?Q?", samples[i].charset);
        for (size_t k = 0; k < samples[i].body.len; k++)
            buf_format(&mime, "=%02X", (unsigned char)samples[i].body.at[k]);
        buf_format(&mime, "?=\nContent-Type: text/plain; charset=%s\n\n", samples[i].charset);
        buf_add(&mime, samples[i].body);
        struct mail_content got = parse(*state, buf_str(&mime));
        CHECK_STR(got.text, samples[i].want);
        CHECK_STR(got.subject, samples[i].want);
    }
}

static void hostile_html_is_answered_in_time(void **state)
{
    struct buf mime = buf_make(&arena, LIMIT_MAIL_MIME_BYTES);

    buf_add(&mime, STR("Content-Type: text/html\n\n"));
    while (mime.len < LIMIT_MAIL_TEXT_BYTES)
        buf_add(&mime, STR("<div><b>"));
    struct mail_content got = parse(*state, buf_str(&mime));
    assert_true(got.warning_count > 0);
}

#define MAIL_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(int argc, char **argv)
{
    static const struct role_row row = {
        .name = "composer", .main = composer_main, .prepare = composer_prepare, .calls = composer_calls
    };
    const struct CMUnitTest cases[] = {
        MAIL_CASE(the_largest_message_goes_there_and_back),
        MAIL_CASE(character_sets_are_there_without_files),
        MAIL_CASE(hostile_html_is_answered_in_time),
    };

    if (argc == 4 && !strcmp(argv[1], "role"))
        _exit(role_run(&row, argv[3]));
    return cmocka_run_group_tests(cases, NULL, NULL);
}
