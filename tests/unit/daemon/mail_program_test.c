/*
 * The composer of cloister-mail itself, confined as it is in a server: its libraries must work without files. The program's
 * path is the first argument.
 */
#include <fcntl.h>
#include <iconv.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/forker_rig.h"
#include "mail/compose.h"
#include "mail/content_pack.h"
#include "mail/inside.h"
#include "privsep/frame.h"
#include "test.h"

static const char *program_path;

static int set_up(void **state)
{
    auto_close int program = open(program_path, O_RDONLY | O_CLOEXEC);

    if (program < 0)
        fail_msg("no program at %s", program_path);
    *state = rig_start("composer", &program, MESSAGE_COMPOSE, NULL, 0);
    return 0;
}

static int tear_down(void **state)
{
    rig_stop(*state);
    return 0;
}

static struct mail_content ask(struct rig *rig, struct str request, struct arena *arena)
{
    auto_free char *reply = NULL;
    struct rig_child child = rig_child(rig);
    auto_close int fd = child.fd;
    struct mail_content content = { 0 };
    struct err err, failure;
    size_t len = 0;

    if (fd < 0)
        fail_msg("%s", err_text(&child.err));
    if (!frame_write(fd, request, 10000, &err) || !frame_read(fd, LIMIT_MAIL_FRAME_BYTES, 20000, &reply, &len, &err))
        fail_msg("%s", err_text(&err));
    struct unpack in = unpack_from(arena_copy(arena, str_of(reply, len)));
    if (!unpack_bool(&in)) {
        message_unpack_err(&in, &failure);
        fail_msg("%s", err_text(&failure));
    }
    (void)unpack_content(&in, arena, &content);
    assert_true(unpack_done(&in, &err));
    return content;
}

static struct mail_content parse(struct rig *rig, struct str mime, struct arena *arena)
{
    struct buf request = mail_request(arena);

    pack_u8(&request, COMPOSER_PARSE);
    pack_str(&request, mime);
    return ask(rig, buf_str(&request), arena);
}

/* The text in another character set; false: this system does not have it. */
static bool convert(const char *charset, const char *text, char *room, size_t size)
{
    iconv_t conversion = iconv_open(charset, "UTF-8");
    char *from = (char *)(uintptr_t)text, *to = room; /* iconv writes to neither */
    size_t from_left = strlen(text), to_left = size - 1;

    if (conversion == (iconv_t)-1)
        return false;
    size_t failed = iconv(conversion, &from, &from_left, &to, &to_left);
    (void)iconv(conversion, NULL, NULL, &to, &to_left);
    (void)iconv_close(conversion);
    *to = '\0';
    return failed != (size_t)-1;
}

static void messages_in_all_usual_character_sets_are_read_without_files(void **state)
{
    static const struct {
        const char *charset, *text;
    } cases[] = {
        { "ISO-8859-1", "Gr\xc3\xbc\xc3\x9f"
                        "e" },
        { "windows-1252", "\xe2\x82\xac 5" },
        { "ISO-8859-2", "\xc5\x82\xc3\xb3"
                        "d\xc5\xba" },
        { "KOI8-R", "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82" },
        { "windows-1251", "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82" },
        { "ISO-2022-JP", "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf" },
        { "Shift_JIS", "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf" },
        { "EUC-JP", "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf" },
        { "GB18030", "\xe4\xbd\xa0\xe5\xa5\xbd" },
        { "Big5", "\xe4\xbd\xa0\xe5\xa5\xbd" },
        { "EUC-KR", "\xec\x95\x88\xeb\x85\x95" },
    };
    struct arena arena;
    unsigned read = 0;

    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char body[256];
        if (!convert(cases[i].charset, cases[i].text, body, sizeof body)) {
            print_message("skipped: this system has no %s\n", cases[i].charset);
            continue;
        }
        struct str mime =
            arena_format(&arena,
                         "From: a@example.com\r\nTo: b@example.com\r\nSubject: x\r\nMIME-Version: 1.0\r\n"
                         "Content-Type: text/plain; charset=%s\r\nContent-Transfer-Encoding: 8bit\r\n\r\n%s\r\n",
                         cases[i].charset, body);
        struct mail_content content = parse(*state, mime, &arena);
        if (!memmem(content.text.at, content.text.len, cases[i].text, strlen(cases[i].text)))
            fail_msg("%s: got '%.*s'", cases[i].charset, STR_ARG(content.text));
        read++;
    }
    assert_true(read >= 5);
    arena_done(&arena);
}

static void a_draft_becomes_a_message(void **state)
{
    const struct str to = STR("B\xc3\xa9"
                              "a <b@example.com>");
    const struct mail_attachment file = { .name = STR("a.bin"),
                                          .content_type = STR("application/x-a"),
                                          .content = STR("\x01\x02") };
    const struct mail_draft draft = { .from_address = STR("a@example.com"),
                                      .to = &to,
                                      .to_count = 1,
                                      .subject = STR("Gr\xc3\xbc\xc3\x9f"
                                                     "e"),
                                      .markdown = STR("**bold** and <script>alert(1)</script>"),
                                      .message_id = STR("<1@example.com>"),
                                      .date_us = 1700000000000000,
                                      .attachments = &file,
                                      .attachment_count = 1 };
    struct arena arena;

    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_u8(&request, COMPOSER_COMPOSE);
    pack_draft(&request, &draft);
    struct mail_content content = ask(*state, buf_str(&request), &arena);
    assert_non_null(memmem(content.html.at, content.html.len, "<strong>bold</strong>", 21));
    assert_null(memmem(content.html.at, content.html.len, "<script", 7));
    assert_int_equal(content.recipient_count, 1);
    CHECK_STR(content.recipients[0], STR("b@example.com"));
    struct mail_content again = parse(*state, content.mime, &arena);
    CHECK_STR(again.subject, draft.subject);
    assert_int_equal(again.attachment_count, 1);
    arena_done(&arena);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(messages_in_all_usual_character_sets_are_read_without_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_draft_becomes_a_message, set_up, tear_down),
    };

    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s CLOISTER-MAIL\n", argv[0]);
        return 2;
    }
    program_path = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
