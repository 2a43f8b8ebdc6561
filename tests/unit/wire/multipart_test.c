#include "wire/multipart.h"

#include "test.h"

#define FORM "multipart/form-data; boundary=xYz"

/* Everything that comes out of a body, cut into pieces of one size, as one line. */
static const char *told(struct str content_type, struct str body, size_t piece)
{
    static char text[4096];
    struct buf out = buf_make(NULL, sizeof text);
    struct multipart mp;
    struct err err;
    enum multipart_event got = MULTIPART_MORE;

    assert_true(multipart_init(&mp, content_type, &err));
    for (size_t at = 0; at < body.len && got != MULTIPART_BAD; at += piece) {
        struct str in = str_of(body.at + at, MIN(piece, body.len - at)), data;
        struct multipart_part part;
        while ((got = multipart_next(&mp, &in, &part, &data, &err)) != MULTIPART_MORE && got != MULTIPART_BAD) {
            if (got == MULTIPART_PART)
                buf_format(&out, "<%.*s,%.*s,%.*s:", STR_ARG(part.name), STR_ARG(part.filename),
                           STR_ARG(part.content_type));
            else if (got == MULTIPART_DATA)
                buf_add(&out, data);
            else
                buf_add_char(&out, got == MULTIPART_PART_END ? '>' : '.');
        }
    }
    buf_add(&out, got == MULTIPART_BAD ? STR("!") : multipart_is_whole(&mp) ? STR("") : STR("?"));
    buf_add_char(&out, '\0');
    assert_false(out.overflowed);
    memcpy(text, out.data, out.len);
    buf_done(&out);
    multipart_done(&mp);
    return text;
}

static void parts_are_the_same_however_the_body_is_cut(void **state)
{
    (void)state;
    struct str body = STR("ignored\r\n--xYz\r\n"
                          "Content-Disposition: form-data; name=\"file\"; filename=\"/tmp/a b\"\r\n"
                          "Content-Type: text/plain\r\n\r\n"
                          "one\r\n--xY\r\r\n--xYtwo\r\n--xYz  \r\n"
                          "content-disposition: form-data; name=other\r\n\r\n"
                          "\r\n--xYz\r\n\r\nbare\r\n--xYz--\r\nepilogue --xYz");
    for (size_t piece = 1; piece <= body.len; piece++)
        assert_string_equal(told(STR(FORM), body, piece),
                            "<file,/tmp/a b,text/plain:one\r\n--xY\r\r\n--xYtwo><other,,:><,,:bare>.");
}

static void an_empty_file_may_lack_its_line_end(void **state)
{
    (void)state;
    struct str body = STR("--xYz\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n--xYz--");
    for (size_t piece = 1; piece <= body.len; piece++)
        assert_string_equal(told(STR(FORM), body, piece), "<f,,:>.");
    body = STR("--xYz\r\nA: b\r\n\r\n--xY not yet\r\n--xYz--");
    for (size_t piece = 1; piece <= body.len; piece++)
        assert_string_equal(told(STR(FORM), body, piece), "<,,:--xY not yet>.");
}

static void escapes_of_filenames_are_undone(void **state)
{
    (void)state;
    assert_string_equal(told(STR(FORM),
                             STR("--xYz\r\nContent-Disposition: form-data; name=\"f\"; "
                                 "filename=\"a%22b%0d%0Ac\\\\d\\\"e%41;g\"\r\n\r\nx\r\n--xYz--"),
                             1000),
                        "<f,a\"b\r\nc\\d\"e%41;g,:x>.");
}

static void a_cut_body_is_not_whole(void **state)
{
    (void)state;
    assert_string_equal(told(STR(FORM), STR("--xYz\r\nA: b\r\n\r\ndata"), 3), "<,,:data?");
    assert_string_equal(told(STR(FORM), STR("--xYz\r\nA: b\r\n\r\ndata\r\n--xYz"), 3), "<,,:data>?");
    assert_string_equal(told(STR(FORM), STR("nothing"), 3), "?");
}

static void malformed_bodies_are_refused(void **state)
{
    (void)state;
    assert_string_equal(told(STR(FORM), STR("--xYzz\r\n"), 100), "!");
    assert_string_equal(told(STR(FORM), STR("--xYz-x\r\n"), 100), "!");
    assert_string_equal(told(STR(FORM), STR("--xYz\r\nno colon\r\n\r\n"), 100), "!");
    assert_string_equal(told(STR(FORM), STR("--xYz\r\nbare: lf\n\r\n\r\n"), 100), "!");
    char *long_head = test_malloc(MULTIPART_HEAD_BYTES_MAX + 100);
    memset(long_head, 'a', MULTIPART_HEAD_BYTES_MAX + 100);
    memcpy(long_head, "--xYz\r\n", 7);
    assert_string_equal(told(STR(FORM), str_of(long_head, MULTIPART_HEAD_BYTES_MAX + 100), 1000), "!");
    test_free(long_head);
}

static void boundaries_are_found_in_the_content_type(void **state)
{
    (void)state;
    struct multipart mp;
    struct err err;
    static const char *const good[] = { "multipart/form-data;boundary=\"xYz\"",
                                        "Multipart/mixed; charset=\"a;boundary=no\"; BOUNDARY = xYz ; x=y" };
    for (size_t i = 0; i < COUNT_OF(good); i++)
        assert_string_equal(told(str_from(good[i]), STR("--xYz--"), 2), ".");
    static const char *const bad[] = { "text/plain; boundary=x", "multipart/form-data",
                                       "multipart/form-data; boundary=", "multipart/form-data; x=\"boundary=a" };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(multipart_init(&mp, str_from(bad[i]), &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(parts_are_the_same_however_the_body_is_cut),
        CASE(an_empty_file_may_lack_its_line_end),
        CASE(escapes_of_filenames_are_undone),
        CASE(a_cut_body_is_not_whole),
        CASE(malformed_bodies_are_refused),
        CASE(boundaries_are_found_in_the_content_type),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
