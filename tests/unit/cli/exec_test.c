#include <stdio.h>
#include <stdlib.h>

#include "fake_server.h"
#include "test.h"

/* Envelopes: flags, a length of four bytes, JSON. Lengths are written out, so that nothing here depends on our writer. */
#define STREAM(body) \
    STR_INIT("HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nConnection: close\r\n\r\n" body)
#define START "\0\0\0\0\x1e{\"event\":{\"start\":{\"pid\":42}}}"
#define OUT_HI "\0\0\0\0\x28{\"event\":{\"data\":{\"stdout\":\"aGkKAGhv\"}}}" /* "hi\n\0ho" */
#define ERR_OH "\0\0\0\0\x24{\"event\":{\"data\":{\"stderr\":\"b2g=\"}}}"     /* "oh" */
#define KEEPALIVE "\0\0\0\0\x1a{\"event\":{\"keepalive\":{}}}"
#define END_0 "\0\0\0\0\x3a{\"event\":{\"end\":{\"exited\":true,\"status\":\"exit status 0\"}}}"
#define END_3 "\0\0\0\0\x47{\"event\":{\"end\":{\"exitCode\":3,\"exited\":true,\"status\":\"exit status 3\"}}}"
#define END_KILLED "\0\0\0\0\x3b{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: killed\"}}}"
#define LAST "\x02\0\0\0\x02{}"
#define LAST_ERROR "\x02\0\0\0\x38{\"error\":{\"code\":\"invalid_argument\",\"message\":\"no cwd\"}}"

#define FOUND                                                                                                       \
    {                                                                                                               \
        "GET /sandboxes/iaaa ",                                                                                     \
            STR_INIT(                                                                                               \
                "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"sandboxID\":\"iaaa\",\"envdAccessToken\":\"tok\"}") \
    }
#define START_ANSWERS(stream)                   \
    { "POST /process.Process/Start ", stream }, \
    {                                           \
        NULL,                                   \
        {                                       \
            NULL, 0                             \
        }                                       \
    }

static const struct fake_rule talks[] = { FOUND, START_ANSWERS(STREAM(START OUT_HI KEEPALIVE ERR_OH END_3 LAST)) };
static const struct fake_rule succeeds[] = { FOUND, START_ANSWERS(STREAM(START END_0 LAST)) };
static const struct fake_rule is_killed[] = { FOUND, START_ANSWERS(STREAM(START END_KILLED LAST)) };
static const struct fake_rule refuses[] = { FOUND, START_ANSWERS(STREAM(LAST_ERROR)) };
static const struct fake_rule stops_short[] = { FOUND, START_ANSWERS(STREAM(START OUT_HI)) };
static const struct fake_rule is_gone[] = {
    FOUND,
    START_ANSWERS(STR_INIT("HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n"
                           "{\"code\":502,\"message\":\"The sandbox was not found\"}")),
};

#define PAUSED(mode)                                                                                             \
    {                                                                                                            \
        "GET /sandboxes/iaaa ",                                                                                  \
            STR_INIT("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"sandboxID\":\"iaaa\",\"state\":\"paused\"," \
                     "\"pauseMode\":\"" mode "\",\"envdAccessToken\":\"tok\"}")                                  \
    }
static const struct fake_rule is_paused[] = {
    PAUSED("full"),
    START_ANSWERS(STR_INIT("HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n"
                           "{\"code\":502,\"message\":\"The sandbox was not found\"}")),
};
static const struct fake_rule gets_paused[] = { PAUSED("full"), START_ANSWERS(STREAM(START OUT_HI)) };
static const struct fake_rule gets_parked[] = { PAUSED("filesystem"), START_ANSWERS(STREAM(START OUT_HI)) };
static const struct fake_rule was_woken[] = { PAUSED("full"), START_ANSWERS(STREAM(START END_0 LAST)) };

static struct fake_server server;
static struct outcome outcome;

static const char *began(const struct fake_rule *rules)
{
    fake_server_start(&server, rules);
    return fake_data_dir(server.address);
}

static void ended(const char *data)
{
    fake_server_stop(&server);
    fake_data_dir_remove(data);
}

static void exec_passes_output_and_exit_code_on(void **state)
{
    const char *data = began(talks);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "-u", "root", "-e", "A=b=c", "--cwd", "/tmp", "iaaa", "--", "ls",
        "-l");
    assert_int_equal(outcome.exit_code, 3);
    assert_memory_equal(outcome.out, "hi\n\0ho", 7);
    assert_string_equal(outcome.note, "oh");
    assert_true(fake_server_heard(&server, "E2b-Sandbox-Id: iaaa\r\n"));
    assert_true(fake_server_heard(&server, "E2b-Sandbox-Port: 49983\r\n"));
    assert_true(fake_server_heard(&server, "X-Access-Token: tok\r\n"));
    assert_true(fake_server_heard(&server, "Authorization: Basic cm9vdDo=\r\n"));
    assert_true(fake_server_heard(&server, "{\"process\":{\"cmd\":\"/bin/bash\",\"args\":[\"-l\",\"-c\","
                                           "\"exec \\\"$@\\\"\",\"bash\",\"ls\",\"-l\"],\"envs\":{\"A\":\"b=c\"},"
                                           "\"cwd\":\"/tmp\"},\"stdin\":false}"));
    ended(data);
}

static void exec_succeeds_when_the_command_does(void **state)
{
    const char *data = began(succeeds);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true | true");
    assert_int_equal(outcome.exit_code, 0);
    assert_string_equal(outcome.note, "");
    assert_true(fake_server_heard(&server, "\"args\":[\"-l\",\"-c\",\"true | true\"]"));
    ended(data);
}

static void exec_reports_a_signal_as_a_shell_would(void **state)
{
    const char *data = began(is_killed);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 128 + 9);
    ended(data);
}

static void exec_says_why_a_command_did_not_start(void **state)
{
    const char *data = began(refuses);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "--cwd", "/none", "iaaa", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "no cwd");
    ended(data);
}

static void exec_does_not_take_a_cut_stream_for_success(void **state)
{
    const char *data = began(stops_short);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "ended while the command ran");
    ended(data);
}

static void exec_passes_the_edges_words_on(void **state)
{
    const char *data = began(is_gone);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "The sandbox was not found");
    RUN(&outcome, "sandbox", "exec", "--data", data, "ibbb", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "no such thing");
    ended(data);
}

static void exec_says_that_the_sandbox_is_paused(void **state)
{
    const char *data = began(is_paused);

    (void)state;
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "sandbox iaaa is paused; to bring it back: ");
    CHECK_HAS(outcome.note, "cloister sandbox resume iaaa --data ");
    assert_null(strstr(outcome.note, "not found"));
    ended(data);
    data = began(gets_paused);
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "sandbox iaaa was paused; the command goes on after: ");
    ended(data);
    data = began(gets_parked);
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 125);
    CHECK_HAS(outcome.note, "paused with its files only, and the command ended");
    ended(data);
    /* Traffic may wake it, so it is not refused before it was tried. */
    data = began(was_woken);
    RUN(&outcome, "sandbox", "exec", "--data", data, "iaaa", "true");
    assert_int_equal(outcome.exit_code, 0);
    ended(data);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(exec_passes_output_and_exit_code_on),         CASE(exec_succeeds_when_the_command_does),
        CASE(exec_reports_a_signal_as_a_shell_would),      CASE(exec_says_why_a_command_did_not_start),
        CASE(exec_does_not_take_a_cut_stream_for_success), CASE(exec_passes_the_edges_words_on),
        CASE(exec_says_that_the_sandbox_is_paused),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
