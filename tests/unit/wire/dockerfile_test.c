/*
 * A Dockerfile as steps. What is expected here is what E2B's Python SDK makes of the same text; tests/e2e compares both. One
 * line a step: "TYPE arg|arg", with <nl> for the end of a line.
 */
#include "wire/dockerfile.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/limits.h"
#include "test.h"

#define FIRST "USER root\nWORKDIR /\n"
#define LAST "USER user\nWORKDIR /home/user\n"

static struct arena arena;

static int set_up(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static const char *told(const struct dockerfile *file)
{
    struct buf out = buf_make(&arena, 1 << 22);

    for (size_t i = 0; i < file->step_count; i++) {
        buf_add(&out, file->steps[i].type);
        for (uint32_t k = 0; k < file->steps[i].arg_count; k++) {
            struct str arg = file->steps[i].args[k];
            buf_add_char(&out, k ? '|' : ' ');
            for (size_t c = 0; c < arg.len; c++)
                buf_add(&out, arg.at[c] == '\n' ? STR("<nl>") : str_of(arg.at + c, 1));
        }
        buf_add_char(&out, '\n');
    }
    buf_add_char(&out, '\0');
    return out.data;
}

static struct dockerfile parse_with(const char *text, struct dockerfile_arg *args, size_t count)
{
    struct dockerfile file;
    struct err err;

    if (!dockerfile_parse(&arena, str_from(text), args, count, &file, &err))
        fail_msg("%s\n%s", err.message, text);
    return file;
}

static struct dockerfile parse(const char *text)
{
    return parse_with(text, NULL, 0);
}

static void gives(const char *text, const char *steps)
{
    struct dockerfile file = parse(text);

    assert_string_equal(told(&file), steps);
}

static void fails(const char *text, const char *message)
{
    struct dockerfile file;
    struct err err;

    if (dockerfile_parse(&arena, str_from(text), NULL, 0, &file, &err))
        fail_msg("taken: %s", text);
    assert_string_equal(err.message, message);
}

static void begins_as_root_and_ends_as_user(void **state)
{
    (void)state;
    gives("FROM a\n", FIRST LAST);
    gives("FROM a\nUSER bob\n", FIRST "USER bob\nWORKDIR /home/user\n");
    gives("FROM a\nWORKDIR /x\n", FIRST "WORKDIR /x\nUSER user\n");
    gives("FROM a\nUSER \"bob\"\nWORKDIR \"/x y\"/$B", FIRST "USER bob\nWORKDIR /x y/$B\n");
}

static void joins_continued_lines(void **state)
{
    (void)state;
    gives("FROM a\nRUN a && \\\n  # no\n  b \\\n\n  && c\n", FIRST "RUN a &&   b   && c\n" LAST);
    gives("# escape=`\nFROM a\nRUN a `\n b \\ c\n", FIRST "RUN a  b \\ c\n" LAST);
    gives("FROM a\nRUN echo a\\\\\nrun b\\ \nc", FIRST "RUN echo a\\\\\nRUN bc\n" LAST);
    gives("\xef\xbb\xbf# x\r\nFROM a\r\nRUN a \\\r\n b\r\n", FIRST "RUN a  b\n" LAST);
    gives("FROM a\nRUN x \\\n", FIRST "RUN x\n" LAST);
}

static void quotes_the_exec_form(void **state)
{
    (void)state;
    gives("FROM a\nRUN [\"echo\", \"b c\", \"it's\", \"\"]\n", FIRST "RUN echo 'b c' 'it'\"'\"'s' ''\n" LAST);
    gives("FROM a\nRUN [\"a\"] && b\n", FIRST "RUN [\"a\"] && b\n" LAST);
    gives("FROM a\nRUN [ -f x ]\n", FIRST "RUN [ -f x ]\n" LAST);
    fails("FROM a\nCMD [\"a\", 1]\n", "line 2: only strings are supported in JSON arrays");
}

static void takes_heredocs(void **state)
{
    (void)state;
    gives("FROM a\nRUN <<EOF\necho 1\necho 2\nEOF\nUSER u",
          FIRST "RUN echo 1<nl>echo 2<nl>\nUSER u\nWORKDIR /home/user\n");
    gives("FROM a\nRUN <<-E\n\ta\n\tE\n", FIRST "RUN a<nl>\n" LAST);
    gives("FROM a\nRUN cat <<A >/1 && cat <<'B' >/2\none\nA\ntwo\nB\n",
          FIRST "RUN cat <<A >/1 && cat <<'B' >/2<nl>one<nl>A<nl>two<nl>B\n" LAST);
    gives("FROM a\nRUN <<E\n#!/bin/sh\nx\nE\n",
          FIRST "RUN cat <<'E2B_HEREDOC_E' >/tmp/E<nl>#!/bin/sh<nl>x<nl>E2B_HEREDOC_E<nl>chmod +x /tmp/E && /tmp/E<nl>"
                "E2B_EXIT=$?; rm -f /tmp/E; exit $E2B_EXIT\n" LAST);
    gives("FROM a\nRUN echo \"<<E\"\n", FIRST "RUN echo \"<<E\"\n" LAST);
    gives("FROM a\nCOPY <<E /d/\n$a `b` \\$c\nE\n",
          FIRST "RUN E2B_HEREDOC_DEST=/d/E<nl>mkdir -p \"$(dirname \"$E2B_HEREDOC_DEST\")\" && cat <<E2B_HEREDOC_E "
                ">\"$E2B_HEREDOC_DEST\"<nl>$a \\`b\\` \\$c<nl>E2B_HEREDOC_E|root\n" LAST);
    fails("FROM a\nRUN <<EOF\nx\n", "line 2: the heredoc has no end: a line with EOF alone");
    fails("FROM a\nCOPY a <<E\nx\nE\n", "line 2: a heredoc cannot be the destination");
}

static void copies_files(void **state)
{
    (void)state;
    gives("FROM a\nCOPY x /y\nADD --chown=u:g --chmod=755 x y /z/\n",
          FIRST "COPY x|/y||\nCOPY x|/z/|u:g|0755\nCOPY y|/z/|u:g|0755\n" LAST);
    gives("FROM a\nCOPY [\"b c\", \"/q r/\"]\nCOPY \"d e\" f\\ g /h\n",
          FIRST "COPY b c|/q r/||\nCOPY d e|/h||\nCOPY f g|/h||\n" LAST);
    gives("FROM a\nARG D=src M=0644\nCOPY --chmod=$M ${D}/x $D/\n",
          FIRST "ENV D|src|M|0644\nCOPY src/x|$D/||0644\n" LAST);
    fails("FROM a\nCOPY $E/x /y\n", "line 2: the variable E is not set by an ARG or ENV above");
    fails("FROM a\nCOPY --from=b x y\n",
          "line 2: --from is not supported: a build has one stage, and files come from the directory of the build");
    fails("FROM a\nADD https://x/y /z\n", "line 2: ADD of a URL is not supported; use RUN curl -o FILE URL");
    fails("FROM a\nCOPY --chmod=u+x x y\n", "line 2: --chmod=u+x is not an octal mode such as 0755");
    fails("FROM a\nCOPY x\n", "line 2: COPY needs a source and a destination");
    static const char *const outside[] = { "/x", "..", "../x", "a/../../x", "./.." };
    for (size_t i = 0; i < COUNT_OF(outside); i++) {
        char text[80], want[120];
        (void)snprintf(text, sizeof text, "FROM a\nCOPY %s /y\n", outside[i]);
        (void)snprintf(want, sizeof want,
                       "line 2: %s is outside the directory of the build; sources are relative to it", outside[i]);
        fails(text, want);
    }
    gives("FROM a\nCOPY a/../b ..c /y\n", FIRST "COPY a/../b|/y||\nCOPY ..c|/y||\n" LAST);
}

static void keeps_references_for_the_builder(void **state)
{
    (void)state;
    gives("FROM a\nENV A=1 B=\"x $A\" C='y' D=${A:-z}/${B%%.*} A=2\n",
          FIRST "ENV A|2|B|x $A|C|y|D|${A:-z}/${B%%.*}\n" LAST);
    gives("FROM a\nENV OLD form  of it\n", FIRST "ENV OLD|form  of it\n" LAST);
    gives("FROM a\nENV P=$PATH:/x E=a\\ b\n", FIRST "ENV P|$PATH:/x|E|a b\n" LAST);
    fails("FROM a\nENV A\n", "line 2: ENV must have two arguments: a name and a value");
    fails("FROM a\nENV A=1 B\n", "line 2: 'B' has no =; it must be name=value");
    fails("FROM a\nENV =1\n", "line 2: ENV has a variable without a name");
    fails("FROM a\nENV A=\"x\n", "line 2: a double quote is not closed");
    fails("FROM a\nENV A=${B\n", "line 2: a ${ has no }");
    fails("FROM a\nENV A=${B^x}\n", "line 2: unsupported modifier (^) in substitution");
}

static void expands_the_image(void **state)
{
    static const struct {
        const char *text, *from;
    } cases[] = {
        { "FROM a", "a" },
        { "FROM --platform=linux/amd64 a:1 AS x", "a:1" },
        { "ARG V=3\nFROM p:$V", "p:3" },
        { "ARG V=\nFROM p:${V:-4}", "p:4" },
        { "ARG V=1\nFROM p:${V:+5}", "p:5" },
        { "ARG V=3.12.1\nFROM p:${V%.*}", "p:3.12" },
        { "ARG V=3.12.1\nFROM p:${V%%.*}", "p:3" },
        { "ARG V=v3\nFROM p:${V#v}", "p:3" },
        { "ARG V=a/b/c\nFROM ${V##*/}", "c" },
        { "ARG A=1\nARG B=$A$A\nFROM p:$B", "p:11" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        CHECK_STR(parse(cases[i].text).from, str_from(cases[i].from));
    fails("FROM \"a b\"\n", "line 1: FROM needs an image: FROM IMAGE, or FROM IMAGE AS NAME");
    fails("FROM p:$V\n", "line 1: the variable V is not set by an ARG or ENV above");
    fails("ARG V\nFROM $V\n", "line 2: the image of FROM is empty");
    fails("ARG V\nFROM p:${V:?which}\n", "line 2: V: which");
}

static void takes_arguments_of_the_command_line(void **state)
{
    struct dockerfile_arg args[] = { { STR("V"), STR("9"), false }, { STR("W"), STR("8"), false } };

    (void)state;
    struct dockerfile file = parse_with("ARG V=3\nFROM p:$V\nARG V\nARG X=1 Y\nRUN x\n", args, 2);
    CHECK_STR(file.from, STR("p:9"));
    assert_string_equal(told(&file), FIRST "ENV V|9\nENV V|9\nENV X|1|Y|\nRUN x\n" LAST);
    assert_true(args[0].is_used);
    assert_false(args[1].is_used);
    /* As Docker: an ARG without a value after FROM has the one before it. */
    gives("ARG V=3\nFROM p\nARG V\n", FIRST "ENV V|3\n" LAST);
}

static void combines_the_start_command(void **state)
{
    static const struct {
        const char *text, *start;
        uint32_t line;
    } cases[] = {
        { "FROM a", "", 0 },
        { "FROM a\nCMD  echo $X 'q' ", "echo $X 'q'", 2 },
        { "FROM a\nCMD [\"a\", \"b c\"]", "a 'b c'", 2 },
        { "FROM a\nCMD a\nCMD b", "b", 3 },
        { "FROM a\nENTRYPOINT [\"x\"]\nCMD [\"y\"]", "x y", 2 },
        { "FROM a\nENTRYPOINT [\"x\"]\nCMD y $z", "x /bin/sh -c 'y $z'", 2 },
        { "FROM a\nENTRYPOINT x\nCMD y", "x", 2 },
        { "FROM a\nCMD []", "", 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct dockerfile file = parse(cases[i].text);
        CHECK_STR(file.start_cmd, str_from(cases[i].start));
        assert_int_equal(file.start_line, cases[i].line);
    }
}

static void knows_the_line_of_each_step(void **state)
{
    (void)state;
    struct dockerfile file = parse("# one\nFROM a\n\nRUN a \\\n  b\nCOPY x y /z/\n");
    assert_int_equal(file.from_line, 2);
    static const uint32_t lines[] = { 0, 0, 4, 6, 6, 0, 0 };
    assert_int_equal(file.step_count, COUNT_OF(lines));
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        assert_int_equal(file.steps[i].line, lines[i]);
    CHECK_STR(file.steps[2].shown, STR("RUN a   b"));
    CHECK_STR(file.steps[4].shown, STR("COPY y /z/"));
}

static void notes_what_has_no_effect(void **state)
{
    (void)state;
    struct dockerfile file =
        parse("FROM a\nEXPOSE 80\nLABEL x\nRUN --mount=type=cache,target=/c x\nVOLUME [\"/v\"]\n"
              "HEALTHCHECK --interval=5s CMD x\nSHELL [\"/bin/sh\"]\nSTOPSIGNAL 9\nONBUILD RUN x\n");
    static const uint32_t lines[] = { 2, 3, 4, 5, 6, 7, 8, 9 };
    assert_int_equal(file.note_count, COUNT_OF(lines));
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        assert_int_equal(file.notes[i].line, lines[i]);
    CHECK_STR(file.notes[2].text, STR("--mount is ignored"));
    assert_string_equal(told(&file), FIRST "RUN x\n" LAST);
}

static void refuses_what_it_does_not_know(void **state)
{
    (void)state;
    fails("", "there is no FROM: a Dockerfile begins with FROM IMAGE");
    fails("ARG A=1\n", "there is no FROM: a Dockerfile begins with FROM IMAGE");
    fails("RUN x\nFROM a\n", "line 1: RUN before FROM: a Dockerfile begins with FROM IMAGE");
    fails("FROM a AS b\nRUN x\nFROM c\n",
          "line 3: a second FROM (the first is in line 1): builds with several stages are not supported");
    fails("FROM a b\n", "line 1: FROM needs an image: FROM IMAGE, or FROM IMAGE AS NAME");
    fails("FROM a\n\nFOO bar\n", "line 3: unknown instruction: FOO");
    fails("FROM a\nRUN --bad=1 x\n", "line 2: RUN has no flag --bad");
    fails("FROM a\nRUN\n", "line 2: RUN needs a command");
    fails("FROM a\nUSER\n", "line 2: USER needs a value");
    fails("# escape=x\nFROM a\n", "line 1: the escape character must be \\ or `");
    fails("# escape=`\n# escape=`\nFROM a\n", "line 2: only one escape parser directive can be used");
    fails("\\\n", "line 1: nothing follows the escape character");
    fails("FROM a\nRUN \xff\n", "it is not text in UTF-8");
}

static void has_limits(void **state)
{
    struct buf text = buf_make(&arena, 1 << 22);
    struct dockerfile file;
    struct err err;

    (void)state;
    buf_add(&text, STR("FROM a\n"));
    for (int i = 0; i < LIMIT_BUILD_STEPS; i++)
        buf_add(&text, STR("RUN x\n"));
    assert_false(dockerfile_parse(&arena, buf_str(&text), NULL, 0, &file, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    /* A value that doubles is not known any more once it is too long; the build goes on. */
    buf_clear(&text);
    buf_add(&text, STR("FROM a\nENV A=0123456789abcdef\n"));
    for (int i = 0; i < 40; i++)
        buf_add(&text, STR("ENV A=$A$A\n"));
    assert_true(dockerfile_parse(&arena, buf_str(&text), NULL, 0, &file, &err));
    buf_clear(&text);
    buf_add(&text, STR("FROM a\nENV A="));
    for (int i = 0; i < 100; i++)
        buf_add(&text, STR("${A:-"));
    assert_false(dockerfile_parse(&arena, buf_str(&text), NULL, 0, &file, &err));
    assert_string_equal(err.message, "line 2: ${…} nests more than 32 deep");
    char *large = calloc(1, LIMIT_DOCKERFILE_BYTES + 1);
    assert_non_null(large);
    memset(large, '#', LIMIT_DOCKERFILE_BYTES + 1);
    assert_false(dockerfile_parse(&arena, str_of(large, LIMIT_DOCKERFILE_BYTES + 1), NULL, 0, &file, &err));
    assert_int_equal(err.kind, ERR_LIMIT);
    free(large);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(begins_as_root_and_ends_as_user),
        CASE(joins_continued_lines),
        CASE(quotes_the_exec_form),
        CASE(takes_heredocs),
        CASE(copies_files),
        CASE(keeps_references_for_the_builder),
        CASE(expands_the_image),
        CASE(takes_arguments_of_the_command_line),
        CASE(combines_the_start_command),
        CASE(knows_the_line_of_each_step),
        CASE(notes_what_has_no_effect),
        CASE(refuses_what_it_does_not_know),
        CASE(has_limits),
    };

    return cmocka_run_group_tests(cases, set_up, tear_down);
}
