/*
 * The role webhooks against servers of this test (hook_server.py), in two network namespaces: nothing leaves the machine.
 * Run as `… role webhooks error`, this program is the role.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/forker_rig.h"
#include "daemon/settings.h"
#include "mail/hook.h"
#include "privsep/frame.h"
#include "test.h"

#define RESOLV_CONF "nameserver 203.0.113.53\n"

/* ---- the outside ---- */

static struct outside {
    char dir[64];
    pid_t pid;
    int to, from; /* its standard streams */
    char *roots;  /* its certificate */
    size_t roots_len;
} outside = { .to = -1, .from = -1 };

static void command(const char *text)
{
    if (system(text) != 0)
        fail_msg("failed: %s", text);
}

/* A line that the server has written, without its end; empty: nothing within the time. */
static void read_line(char *room, size_t size, unsigned ms)
{
    size_t len = 0;

    while (len + 1 < size && fd_await(outside.from, POLLIN, clock_mono_ms() + ms) &&
           read(outside.from, room + len, 1) == 1 && room[len] != '\n')
        len++;
    room[len] = '\0';
}

static void start_server(const char *script)
{
    int to[2], from[2];

    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    outside.pid = fork();
    if (outside.pid == 0) {
        if (unshare(CLONE_NEWNET) < 0 || dup2(to[0], 0) < 0 || dup2(from[1], 1) < 0)
            _exit(1);
        (void)!write(1, "unshared\n", 9);
        (void)execlp("python3", "python3", script, outside.dir, NULL);
        _exit(1);
    }
    fd_close(&to[0]);
    fd_close(&from[1]);
    outside.to = to[1];
    outside.from = from[0];
}

static int begin(void **state)
{
    const char *script = getenv("HOOK_SERVER");
    char text[160], line[80];
    struct err err;

    (void)state;
    if (geteuid() != 0 || !script)
        return 0; /* NEED_OUTSIDE() says so */
    (void)snprintf(outside.dir, sizeof outside.dir, "/tmp/cloister-hooks.XXXXXX");
    assert_non_null(mkdtemp(outside.dir));
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    start_server(script);
    read_line(line, sizeof line, 20000);
    assert_string_equal(line, "unshared");
    (void)snprintf(text, sizeof text, "ip link add inside type veth peer name outside netns %d", outside.pid);
    command(text);
    command("ip link set inside addrgenmode none && ip address add 203.0.113.10/24 dev inside && ip address add "
            "10.9.0.10/24 dev inside && "
            "ip address add 2001:db8:5::10/64 dev inside nodad && ip link set lo up && ip link set inside up");
    assert_int_equal(write(outside.to, "\n", 1), 1);
    read_line(line, sizeof line, 20000);
    assert_string_equal(line, "ready");
    (void)snprintf(text, sizeof text, "%s/cert.pem", outside.dir);
    assert_true(fd_read_file(AT_FDCWD, text, 100000, &outside.roots, &outside.roots_len, &err));
    return 0;
}

static int end(void **state)
{
    char text[80];

    (void)state;
    if (outside.from < 0)
        return 0;
    fd_close(&outside.to);
    fd_close(&outside.from);
    (void)kill(outside.pid, SIGKILL);
    assert_int_equal(waitpid(outside.pid, NULL, 0), outside.pid);
    free(outside.roots);
    (void)snprintf(text, sizeof text, "rm -rf %s", outside.dir);
    command(text);
    return 0;
}

/* ---- the role ---- */

static int memory_file(struct str bytes)
{
    int fd = memfd_create("roots", MFD_CLOEXEC);

    assert_int_equal(pwrite(fd, bytes.at, bytes.len, 0), (ssize_t)bytes.len);
    return fd;
}

static struct rig *start(const char *allow)
{
    struct egress_settings *settings = NEW(struct egress_settings);
    struct err err;

    if (allow) {
        assert_true(net_range_parse(str_from(allow), &settings->hook_allow[0]));
        settings->hook_allow_count = 1;
    }
    int fds[2] = { egress_settings_write(settings, &err), memory_file(str_of(outside.roots, outside.roots_len)) };
    free(settings);
    struct rig *rig = rig_start("webhooks", NULL, MESSAGE_HOOK, fds, COUNT_OF(fds));
    channel_send_event(rig->keeper, MESSAGE_RESOLVERS, STR(RESOLV_CONF), NULL, 0);
    fd_close(&fds[0]);
    fd_close(&fds[1]);
    return rig;
}

static int set_up(void **state)
{
    *state = outside.roots ? start(NULL) : NULL;
    return 0;
}

static int set_up_with_private(void **state)
{
    *state = outside.roots ? start("10.9.0.0/24") : NULL;
    return 0;
}

static int tear_down(void **state)
{
    if (*state)
        rig_stop(*state);
    return 0;
}

static bool call(struct rig *rig, const struct mail_hook *hook, uint32_t *out_status, struct err *err)
{
    auto_buf struct buf request = buf_make(NULL, LIMIT_HOOK_BYTES);
    auto_free char *reply = NULL;
    struct rig_child child = rig_child(rig);
    auto_close int fd = child.fd;
    size_t len = 0;

    if (fd < 0)
        fail_msg("%s", err_text(&child.err));
    assert_true(mail_hook_pack(&request, hook, err));
    if (!frame_write(fd, buf_str(&request), 10000, err) || !frame_read(fd, 10000, 20000, &reply, &len, err))
        fail_msg("%s", err_text(err));
    struct unpack in = unpack_from(str_of(reply, len));
    struct err malformed;
    bool fine = unpack_bool(&in);
    if (fine)
        *out_status = unpack_u32(&in);
    else
        message_unpack_err(&in, err);
    assert_true(unpack_done(&in, &malformed));
    return fine;
}

/* The status, or minus the kind of the error. */
static int post(struct rig *rig, const char *url)
{
    static const struct mail_pair headers[] = { { STR_INIT("X-Signature"), STR_INIT("t=1,v1=ab") },
                                                { STR_INIT("Content-Type"), STR_INIT("application/json") } };
    uint32_t status;
    struct err err;
    const struct mail_hook hook = {
        .url = str_from(url), .headers = headers, .header_count = COUNT_OF(headers), .body = STR("{\"event\":1}")
    };

    if (call(rig, &hook, &status, &err))
        return (int)status;
    print_message("%s: %s\n", url, err.message);
    assert_ptr_equal(strstr(err.message, "the webhook's "), err.message); /* fit to show whoever has registered it */
    return -(int)err.kind;
}

static void expect_line(const char *want)
{
    char line[256];

    read_line(line, sizeof line, 5000);
    assert_string_equal(line, want);
}

static void expect_silence(void)
{
    char line[256];

    read_line(line, sizeof line, 20);
    assert_string_equal(line, "");
}

#define NEED_OUTSIDE()                                                                                         \
    do {                                                                                                       \
        if (!outside.roots) {                                                                                  \
            print_message("needs root, for two network namespaces, and HOOK_SERVER, which meson test sets\n"); \
            skip();                                                                                            \
        }                                                                                                      \
    } while (0)

/* ---- the tests ---- */

static void a_request_arrives_as_it_was_made(void **state)
{
    NEED_OUTSIDE();
    assert_int_equal(post(*state, "https://hook.example.com/ok?a=b#c"), 200);
    expect_line("203.0.113.5 POST /ok?a=b hook.example.com t=1,v1=ab {\"event\":1}");
    assert_int_equal(post(*state, "https://203.0.113.5/by-address"), 200);
    expect_line("203.0.113.5 POST /by-address 203.0.113.5 t=1,v1=ab {\"event\":1}");
    assert_int_equal(post(*state, "https://six.example.com/ok"), 200);
    expect_line("2001:db8:5::5 POST /ok six.example.com t=1,v1=ab {\"event\":1}");
    assert_int_equal(post(*state, "https://hook.example.com/teapot"), 418);
    expect_line("203.0.113.5 POST /teapot hook.example.com t=1,v1=ab {\"event\":1}");
}

static void a_redirect_is_an_answer_and_is_not_followed(void **state)
{
    NEED_OUTSIDE();
    assert_int_equal(post(*state, "https://hook.example.com/redirect"), 302);
    expect_line("203.0.113.5 POST /redirect hook.example.com t=1,v1=ab {\"event\":1}");
    expect_silence();
}

static void what_is_not_https_is_refused(void **state)
{
    NEED_OUTSIDE();
    static const char *const bad[] = { "http://hook.example.com/ok",
                                       "http://203.0.113.5/ok",
                                       "ftp://hook.example.com/ok",
                                       "file:///etc/passwd",
                                       "gopher://hook.example.com/",
                                       "https://user:word@hook.example.com/ok",
                                       "https://",
                                       "https://hook.example.com:0/",
                                       "https://hook.example.com:99999/",
                                       ("https://b\xc3\xbc"
                                        "cher.example.com/"),
                                       "hook.example.com/ok",
                                       "",
                                       "not a url" };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(post(*state, bad[i]), -ERR_INVALID);
    expect_silence();
}

static void addresses_that_are_not_public_are_refused(void **state)
{
    NEED_OUTSIDE();
    static const char *const denied[] = { "https://private.example.com/",
                                          "https://mixed.example.com/", /* one of two is enough */
                                          "https://metadata.example.com/latest/meta-data/",
                                          "https://loopback.example.com/",
                                          "https://loopback6.example.com/",
                                          "https://mapped.example.com/",
                                          "https://nat64.example.com/",
                                          "https://machine.example.com/",
                                          "https://many.example.com/",
                                          "https://10.9.0.5/",
                                          "https://127.0.0.1/",
                                          "https://127.1/",
                                          "https://2130706433/",
                                          "https://0x7f.0.0.1/",
                                          "https://0.0.0.0/",
                                          "https://[::1]/",
                                          "https://[::]/",
                                          "https://[::ffff:127.0.0.1]/",
                                          "https://[fe80::1]/",
                                          "https://[fd00::1]/",
                                          "https://169.254.169.254/",
                                          "https://203.0.113.10/",
                                          "https://localhost/",
                                          "https://internal.internal/",
                                          "https://hook.example.com:25/",
                                          "https://hook.example.com:587/" };
    for (size_t i = 0; i < COUNT_OF(denied); i++)
        assert_int_equal(post(*state, denied[i]), -ERR_DENIED);
    expect_silence();
}

static void the_servers_certificate_is_checked(void **state)
{
    NEED_OUTSIDE();
    assert_int_equal(post(*state, "https://other.example.com/ok"), -ERR_UNAVAILABLE);
    expect_silence();
}

static void another_address_is_tried_when_one_does_not_answer(void **state)
{
    NEED_OUTSIDE();
    assert_int_equal(post(*state, "https://two.example.com/ok"), 200);
    expect_line("203.0.113.5 POST /ok two.example.com t=1,v1=ab {\"event\":1}");
    assert_int_equal(post(*state, "https://nowhere.example.com/ok"), -ERR_UNAVAILABLE);
    assert_int_equal(post(*state, "https://203.0.113.7/ok"), -ERR_UNAVAILABLE);
}

static void a_slow_server_times_out(void **state)
{
    NEED_OUTSIDE();
    uint64_t begun_ms = clock_mono_ms();
    assert_int_equal(post(*state, "https://hook.example.com/slow"), -ERR_TIMEOUT);
    assert_true(clock_mono_ms() - begun_ms < 5000);
    expect_line("203.0.113.5 POST /slow hook.example.com t=1,v1=ab {\"event\":1}");
}

static void a_long_answer_is_cut(void **state)
{
    NEED_OUTSIDE();
    assert_int_equal(post(*state, "https://hook.example.com/large"), 200);
    expect_line("203.0.113.5 POST /large hook.example.com t=1,v1=ab {\"event\":1}");
}

static void a_check_sends_nothing(void **state)
{
    NEED_OUTSIDE();
    uint32_t status = 1;
    struct err err;
    assert_true(call(*state, &(struct mail_hook){ .url = STR("https://hook.example.com/ok"), .only_check = true },
                     &status, &err));
    assert_int_equal(status, 0);
    assert_false(call(*state, &(struct mail_hook){ .url = STR("https://private.example.com/"), .only_check = true },
                      &status, &err));
    assert_int_equal(err.kind, ERR_DENIED);
    assert_non_null(strstr(err.message, "private.example.com port 443"));
    assert_non_null(strstr(err.message, "address that is not public"));
    assert_null(strstr(err.message, "10.9.0.5")); /* nobody needs to know */
    expect_silence();
}

static void the_operator_can_allow_private_addresses_also_by_http(void **state)
{
    NEED_OUTSIDE();
    assert_int_equal(post(*state, "http://private.example.com/ok"), 200);
    expect_line("10.9.0.5 POST /ok private.example.com t=1,v1=ab {\"event\":1}");
    assert_int_equal(post(*state, "https://private.example.com/ok"), 200);
    expect_line("10.9.0.5 POST /ok private.example.com t=1,v1=ab {\"event\":1}");
    assert_int_equal(post(*state, "http://hook.example.com/ok"), -ERR_INVALID); /* not one of them */
    assert_int_equal(post(*state, "http://mixed.example.com/ok"), -ERR_INVALID);
    assert_int_equal(post(*state, "http://127.0.0.1/"), -ERR_DENIED);
    expect_silence();
}

#define HOOK_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(int argc, char **argv)
{
    static const struct role_row row = { .name = "webhooks",
                                         .main = webhooks_main,
                                         .prepare = webhooks_prepare,
                                         .grants = { GRANT_EGRESS, GRANT_ROOTS },
                                         .calls = webhooks_calls };
    const struct CMUnitTest cases[] = {
        HOOK_CASE(a_request_arrives_as_it_was_made),
        HOOK_CASE(a_redirect_is_an_answer_and_is_not_followed),
        HOOK_CASE(what_is_not_https_is_refused),
        HOOK_CASE(addresses_that_are_not_public_are_refused),
        HOOK_CASE(the_servers_certificate_is_checked),
        HOOK_CASE(another_address_is_tried_when_one_does_not_answer),
        HOOK_CASE(a_slow_server_times_out),
        HOOK_CASE(a_long_answer_is_cut),
        HOOK_CASE(a_check_sends_nothing),
        cmocka_unit_test_setup_teardown(the_operator_can_allow_private_addresses_also_by_http, set_up_with_private,
                                        tear_down),
    };

    if (argc == 4 && !strcmp(argv[1], "role"))
        _exit(role_run(&row, argv[3]));
    return cmocka_run_group_tests(cases, begin, end);
}
