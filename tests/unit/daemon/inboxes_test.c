/*
 * This program is keeper and the workers: run as `… role inbox info` by role_start(), it drops its privileges as the
 * product's worker does and then tries, over its connection, what the test tells it to: a letter, and a path after it.
 */
#include "daemon/inboxes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/data_dir.h"
#include "daemon/roles.h"
#include "privsep/role.h"
#include "test.h"

#define FIRST "01HZZZZZZZZZZZZZZZZZZZZZZ1"
#define SECOND "01HZZZZZZZZZZZZZZZZZZZZZZ2"

enum { WORKERS_MOST = 3 };

enum attempt {
    TRY_OPEN = 'o',
    TRY_MAKE = 'm',
    TRY_STAT = 's',
    TRY_SOCKET = 'n',
    TRY_PAIR = 'p',
    TRY_FORK = 'f',
    TELL = 't'
};

/* What the worker answers: 0 or an errno, and who it is. */
struct attempted {
    int result;
    pid_t pid;
    uid_t uid;
};

/* ---- the worker ---- */

static int attempt(enum attempt what, const char *path)
{
    struct stat st;
    int result = 0;
    int fds[2];

    errno = 0;
    switch (what) {
    case TRY_OPEN:
        result = open(path, O_RDONLY | O_CLOEXEC);
        break;
    case TRY_MAKE:
        result = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        break;
    case TRY_STAT:
        result = stat(path, &st);
        break;
    case TRY_SOCKET:
        result = socket(AF_UNIX, SOCK_STREAM, 0);
        break;
    case TRY_PAIR:
        result = socketpair(AF_UNIX, SOCK_STREAM, 0, fds);
        break;
    case TRY_FORK:
        result = fork();
        if (result == 0)
            _exit(0);
        break;
    case TELL:
        break;
    }
    return result < 0 ? errno : 0;
}

static int probe_main(const struct role_row *self)
{
    char order[256];
    ssize_t len;

    if (fchdir(role_fd(self, GRANT_INBOX)) < 0)
        return 1;
    while ((len = recv(ROLE_CHANNEL_FD, order, sizeof order - 1, 0)) > 0) {
        order[len] = '\0';
        struct attempted done = { .result = attempt((enum attempt)order[0], order + 1) };
        done.pid = getpid();
        done.uid = geteuid();
        (void)!send(ROLE_CHANNEL_FD, &done, sizeof done, 0);
    }
    _exit(0); /* without the leak check, which needs a child */
}

/* ---- keeper ---- */

struct world {
    char dir[64];
    int data_fd;
    struct loop *loop;
    struct inboxes *inboxes;
    struct channel *keeper, *front;
    bool malformed; /* the last request was */
};

struct answer {
    bool came;
    int fd; /* -1: none */
    struct err err;
    bool fine; /* without a descriptor */
    char (*page)[MAIL_INBOX_ID_BYTES];
    uint32_t count;
};

static bool on_request(void *context, struct channel *channel, enum message_type type, uint32_t id, struct str payload,
                       struct message_fds *fds, struct err *err)
{
    struct world *world = context;

    (void)fds;
    world->malformed = !inboxes_request(world->inboxes, channel, type, id, payload, err);
    return !world->malformed;
}

static void on_broken(void *context, const struct err *why)
{
    (void)context;
    (void)why;
}

static void open_world(struct world *world)
{
    static const struct channel_handlers handlers = { .request = on_request, .broken = on_broken };
    int pair[2];
    struct err err;

    world->inboxes = inboxes_new(
        &(struct inboxes_config){
            .loop = world->loop, .data_fd = world->data_fd, .log_level = "error", .workers_most = WORKERS_MOST },
        &err);
    assert_non_null(world->inboxes);
    assert_true(channel_pair(pair, &err));
    world->keeper = channel_new(world->loop, pair[0], &handlers, world);
    world->front = channel_new(world->loop, pair[1], &handlers, world);
}

static void close_world(struct world *world)
{
    channel_free(world->front);
    channel_free(world->keeper);
    inboxes_free(world->inboxes);
}

static int set_up(void **state)
{
    struct world *world = NEW(struct world);
    struct err err;

    log_setup("test", LOG_ERROR + 1); /* workers die here on purpose */
    (void)snprintf(world->dir, sizeof world->dir, "/tmp/cloister-inboxes.XXXXXX");
    assert_non_null(mkdtemp(world->dir));
    world->data_fd = data_dir_open(world->dir, &err);
    assert_true(world->data_fd >= 0);
    world->loop = loop_new();
    open_world(world);
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;
    char command[96];

    close_world(world);
    loop_free(world->loop);
    fd_close(&world->data_fd);
    (void)snprintf(command, sizeof command, "rm -rf %s", world->dir);
    free(world);
    return system(command);
}

static void turn_stop(struct timer *timer)
{
    loop_stop_soon(timer->loop);
}

static void turn(struct world *world)
{
    struct timer timer = { 0 };

    timer_set(&timer, world->loop, 1, turn_stop);
    loop_run(world->loop);
    timer_clear(&timer);
}

static void await_running(struct world *world, uint32_t count)
{
    for (int i = 0; i < 10000 && inboxes_running(world->inboxes) != count; i++)
        turn(world);
    assert_int_equal(inboxes_running(world->inboxes), count);
}

static void note_answer(void *context, struct str payload, struct message_fds *fds, const struct err *err)
{
    struct answer *answer = context;

    struct err why;

    answer->came = true;
    if (err)
        answer->err = *err;
    else if (answer->page)
        answer->fine = inboxes_page_unpack(payload, answer->page, &answer->count, &why);
    else if (fds->count)
        answer->fd = take_fd(&fds->at[0]);
    else
        answer->fine = true;
}

static struct answer ask_type(struct world *world, enum message_type type, struct str payload,
                              char (*page)[MAIL_INBOX_ID_BYTES])
{
    struct answer answer = { .fd = -1, .page = page };

    channel_request(world->front, type, payload, NULL, 0, note_answer, &answer);
    for (int i = 0; i < 10000 && !answer.came; i++)
        turn(world);
    assert_true(answer.came);
    return answer;
}

static struct answer ask(struct world *world, struct str payload)
{
    return ask_type(world, MESSAGE_INBOX, payload, NULL);
}

/* For the requests that are an id. */
static struct answer ask_about(struct world *world, enum message_type type, const char *inbox_id,
                               char (*page)[MAIL_INBOX_ID_BYTES])
{
    auto_buf struct buf payload = buf_make(NULL, 100);

    pack_str(&payload, str_from(inbox_id));
    return ask_type(world, type, buf_str(&payload), page);
}

static struct answer ask_for(struct world *world, const char *inbox_id, bool make)
{
    auto_buf struct buf payload = buf_make(NULL, 100);

    inboxes_pack(&payload, inbox_id, make);
    return ask(world, buf_str(&payload));
}

static int open_inbox(struct world *world, const char *inbox_id, bool make)
{
    struct answer answer = ask_for(world, inbox_id, make);

    if (answer.fd < 0)
        fail_msg("%s", err_text(&answer.err));
    return answer.fd;
}

static struct attempted try_path(int fd, enum attempt what, const char *path)
{
    struct attempted done = { 0 };
    char order[256];
    int len = snprintf(order, sizeof order, "%c%s", (char)what, path);

    assert_int_equal(send(fd, order, (size_t)len, 0), len);
    assert_true(fd_await(fd, POLLIN, clock_mono_ms() + 20000));
    assert_int_equal(recv(fd, &done, sizeof done, MSG_WAITALL), (ssize_t)sizeof done);
    return done;
}

#define NEED_ROOT()                                                                                \
    do {                                                                                           \
        if (geteuid() != 0) {                                                                      \
            print_message("needs root: only root can give a directory to the user of an inbox\n"); \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

/* ---- the tests ---- */

static void a_worker_runs_as_its_inboxs_own_user_who_owns_its_directory(void **state)
{
    struct world *world = *state;
    struct stat st;

    NEED_ROOT();
    auto_close int first = open_inbox(world, FIRST, true);
    auto_close int second = open_inbox(world, SECOND, true);
    struct attempted one = try_path(first, TELL, ""), two = try_path(second, TELL, "");
    assert_int_not_equal(one.uid, two.uid);
    assert_in_range(one.uid, INBOX_UID_FIRST, INBOX_UID_FIRST + INBOX_UID_COUNT - 1);
    assert_int_equal(fstatat(world->data_fd, "mail/" FIRST, &st, 0), 0);
    assert_int_equal(st.st_uid, one.uid);
    assert_int_equal(st.st_gid, one.uid);
    assert_int_equal(st.st_mode & 07777, 0700);
}

static void a_worker_can_open_files_of_its_directory_and_no_others(void **state)
{
    struct world *world = *state;
    char open_to_all[96];
    struct err err;

    NEED_ROOT();
    auto_close int first = open_inbox(world, FIRST, true);
    auto_close int second = open_inbox(world, SECOND, true);
    assert_int_equal(try_path(second, TRY_MAKE, "inbox.db").result, 0);
    assert_int_equal(try_path(first, TRY_MAKE, "inbox.db").result, 0);
    assert_int_equal(try_path(first, TRY_OPEN, "inbox.db").result, 0);
    /* The other user's directory: even a look at the name of a file is refused. */
    assert_int_equal(try_path(first, TRY_STAT, "../" SECOND "/inbox.db").result, EACCES);
    assert_int_equal(try_path(first, TRY_OPEN, "../" SECOND "/inbox.db").result, EACCES);
    assert_int_equal(try_path(first, TRY_OPEN, "..").result, EACCES);
    /* What every user may open: Landlock. */
    assert_true(fd_replace_file(world->data_fd, "open-to-all", STR("x"), 0644, &err));
    (void)snprintf(open_to_all, sizeof open_to_all, "%s/open-to-all", world->dir);
    assert_int_equal(chmod(open_to_all, 0644), 0);
    assert_int_equal(try_path(first, TRY_STAT, open_to_all).result, 0);
    assert_int_equal(try_path(first, TRY_OPEN, open_to_all).result, EACCES);
    assert_int_equal(try_path(first, TRY_OPEN, "/etc/passwd").result, EACCES);
    assert_int_equal(try_path(first, TRY_MAKE, "/tmp/cloister-inbox-was-here").result, EACCES);
}

static void a_worker_has_no_sockets_and_no_children(void **state)
{
    struct world *world = *state;

    NEED_ROOT();
    auto_close int fd = open_inbox(world, FIRST, true);
    assert_int_equal(try_path(fd, TRY_SOCKET, "").result, EPERM);
    assert_int_equal(try_path(fd, TRY_PAIR, "").result, EPERM);
    assert_int_equal(try_path(fd, TRY_FORK, "").result, EPERM);
}

static void a_worker_ends_with_its_connection(void **state)
{
    struct world *world = *state;

    NEED_ROOT();
    int fd = open_inbox(world, FIRST, true);
    assert_int_equal(inboxes_running(world->inboxes), 1);
    fd_close(&fd);
    await_running(world, 0);
}

static void a_killed_worker_is_reaped_and_the_next_request_has_another(void **state)
{
    struct world *world = *state;
    char byte;

    NEED_ROOT();
    auto_close int fd = open_inbox(world, FIRST, true);
    pid_t pid = try_path(fd, TELL, "").pid;
    assert_int_equal(kill(pid, SIGKILL), 0);
    await_running(world, 0);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    assert_int_equal(kill(pid, 0), -1); /* no zombie is left */
    auto_close int again = open_inbox(world, FIRST, false);
    assert_int_not_equal(try_path(again, TELL, "").pid, pid);
}

static void a_second_worker_of_an_inbox_ends_the_first(void **state)
{
    struct world *world = *state;
    char byte;

    NEED_ROOT();
    auto_close int fd = open_inbox(world, FIRST, true);
    (void)try_path(fd, TELL, "");
    auto_close int again = open_inbox(world, FIRST, false);
    await_running(world, 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    assert_int_equal(try_path(again, TELL, "").result, 0);
}

static void too_many_workers_are_refused(void **state)
{
    struct world *world = *state;
    char id[] = FIRST;
    int fds[WORKERS_MOST];

    NEED_ROOT();
    for (int i = 0; i < WORKERS_MOST; i++) {
        id[sizeof id - 2] = (char)('1' + i);
        fds[i] = open_inbox(world, id, true);
    }
    id[sizeof id - 2] = '9';
    struct answer refused = ask_for(world, id, true);
    assert_int_equal(refused.fd, -1);
    assert_int_equal(refused.err.kind, ERR_LIMIT);
    for (int i = 0; i < WORKERS_MOST; i++)
        fd_close(&fds[i]);
    await_running(world, 0);
    auto_close int fd = open_inbox(world, id, true);
    assert_true(fd >= 0);
}

static void an_inbox_that_was_not_made_is_not_found(void **state)
{
    struct world *world = *state;
    struct answer answer = ask_for(world, FIRST, false);

    assert_int_equal(answer.fd, -1);
    assert_int_equal(answer.err.kind, ERR_NOT_FOUND);
    assert_int_equal(faccessat(world->data_fd, "mail/" FIRST, F_OK, 0), -1);
}

static void a_bad_id_breaks_the_channel(void **state)
{
    static const char *const bad[] = { "",
                                       "..",
                                       "server-key",
                                       "../01HZZZZZZZZZZZZZZZZZZZZ",
                                       "01HZZZZZZZZZZZZZZZZZZZZZZ/",
                                       "01hzzzzzzzzzzzzzzzzzzzzzzz",
                                       "01HZZZZZZZZZZZZZZZZZZZZZZZZ" };
    struct world *world = *state;

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct answer answer = ask_for(world, bad[i], true);
        assert_int_equal(answer.fd, -1);
        assert_true(world->malformed);
        close_world(world);
        open_world(world);
    }
    assert_int_equal(ask(world, STR("")).fd, -1);
    assert_true(world->malformed);
}

static void users_of_inboxes_are_remembered_by_the_next_keeper(void **state)
{
    struct world *world = *state;

    NEED_ROOT();
    auto_close int fd = open_inbox(world, FIRST, true);
    uid_t uid = try_path(fd, TELL, "").uid;
    close_world(world);
    /* Another directory has the user that the second inbox would get by its name. */
    open_world(world);
    auto_close int second = open_inbox(world, SECOND, true);
    uid_t other = try_path(second, TELL, "").uid;
    close_world(world);
    assert_int_equal(fchownat(world->data_fd, "mail/" FIRST, other, other, 0), 0);
    assert_int_equal(unlinkat(world->data_fd, "mail/" SECOND, AT_REMOVEDIR), 0);
    open_world(world);
    auto_close int third = open_inbox(world, SECOND, true);
    assert_int_not_equal(try_path(third, TELL, "").uid, other);
    assert_int_not_equal(uid, other);
}

static void a_directory_that_is_not_an_inboxs_is_refused(void **state)
{
    struct world *world = *state;

    NEED_ROOT();
    assert_int_equal(mkdirat(world->data_fd, "mail/" FIRST, 0700), 0);
    assert_int_equal(fchownat(world->data_fd, "mail/" FIRST, 1, 1, 0), 0);
    assert_int_equal(ask_for(world, FIRST, true).err.kind, ERR_INTERNAL);
    assert_int_equal(symlinkat("..", world->data_fd, "mail/" SECOND), 0);
    assert_int_equal(ask_for(world, SECOND, true).fd, -1);
    /* One that a crash left before it had an owner is finished. */
    assert_int_equal(fchownat(world->data_fd, "mail/" FIRST, 0, 0, 0), 0);
    assert_int_equal(ask_for(world, FIRST, false).fd, -1);
    auto_close int fd = open_inbox(world, FIRST, true);
    assert_in_range(try_path(fd, TELL, "").uid, INBOX_UID_FIRST, INBOX_UID_FIRST + INBOX_UID_COUNT - 1);
}

#define INBOXES_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

static void make_directory(struct world *world, const char *name)
{
    char path[96];

    (void)snprintf(path, sizeof path, "mail/%s", name);
    assert_int_equal(mkdirat(world->data_fd, path, 0700), 0);
}

static void directories_are_listed_in_pages_by_their_ids(void **state)
{
    enum { MANY = LIMIT_INBOXES_PAGE + 7 };
    struct world *world = *state;
    char(*page)[MAIL_INBOX_ID_BYTES] = calloc(LIMIT_INBOXES_PAGE, sizeof *page);
    char last[MAIL_INBOX_ID_BYTES] = "", id[MAIL_INBOX_ID_BYTES];
    uint32_t seen = 0;

    assert_int_equal(ask_about(world, MESSAGE_INBOXES, "", page).count, 0);
    make_directory(world, "lost+found");
    make_directory(world, "01hzzzzzzzzzzzzzzzzzzzzzz1");
    for (int i = MANY; i > 0; i--) {
        (void)snprintf(id, sizeof id, "01HZZZZZZZZZZZZZZZZZZZ%04d", i);
        make_directory(world, id);
    }
    for (int pages = 0; pages < 3; pages++) {
        struct answer answer = ask_about(world, MESSAGE_INBOXES, last, page);
        assert_true(answer.fine);
        assert_int_equal(answer.count, pages == 0 ? LIMIT_INBOXES_PAGE : pages == 1 ? MANY - LIMIT_INBOXES_PAGE : 0);
        for (uint32_t i = 0; i < answer.count; i++) {
            assert_true(strcmp(last, page[i]) < 0);
            memcpy(last, page[i], sizeof last);
            seen++;
        }
    }
    assert_int_equal(seen, MANY);
    assert_int_equal(ask_about(world, MESSAGE_INBOXES, "..", page).count, 0);
    assert_true(world->malformed);
    free(page);
}

static void an_empty_directory_is_removed_and_no_other(void **state)
{
    struct world *world = *state;
    struct err err;

    make_directory(world, FIRST);
    make_directory(world, SECOND);
    assert_true(fd_replace_file(world->data_fd, "mail/" SECOND "/inbox.db", STR("x"), 0600, &err));
    for (int i = 0; i < 2; i++) /* what is gone is no failure */
        assert_true(ask_about(world, MESSAGE_UNMAKE, FIRST, NULL).fine);
    assert_int_equal(faccessat(world->data_fd, "mail/" FIRST, F_OK, 0), -1);
    struct answer refused = ask_about(world, MESSAGE_UNMAKE, SECOND, NULL);
    assert_false(refused.fine);
    assert_int_equal(refused.err.kind, ERR_CONFLICT);
    assert_int_equal(faccessat(world->data_fd, "mail/" SECOND "/inbox.db", F_OK, 0), 0);
    /* Not even an empty one that is no inbox's. */
    assert_false(ask_about(world, MESSAGE_UNMAKE, "../sandboxes", NULL).fine);
    assert_true(world->malformed);
}

int main(int argc, char **argv)
{
    static const struct role_row probe = {
        .name = "inbox", .main = probe_main, .grants = { GRANT_INBOX }, .directory = GRANT_INBOX, .calls = inbox_calls
    };
    const struct CMUnitTest cases[] = {
        INBOXES_CASE(a_worker_runs_as_its_inboxs_own_user_who_owns_its_directory),
        INBOXES_CASE(a_worker_can_open_files_of_its_directory_and_no_others),
        INBOXES_CASE(a_worker_has_no_sockets_and_no_children),
        INBOXES_CASE(a_worker_ends_with_its_connection),
        INBOXES_CASE(a_killed_worker_is_reaped_and_the_next_request_has_another),
        INBOXES_CASE(a_second_worker_of_an_inbox_ends_the_first),
        INBOXES_CASE(too_many_workers_are_refused),
        INBOXES_CASE(an_inbox_that_was_not_made_is_not_found),
        INBOXES_CASE(a_bad_id_breaks_the_channel),
        INBOXES_CASE(users_of_inboxes_are_remembered_by_the_next_keeper),
        INBOXES_CASE(a_directory_that_is_not_an_inboxs_is_refused),
        INBOXES_CASE(directories_are_listed_in_pages_by_their_ids),
        INBOXES_CASE(an_empty_directory_is_removed_and_no_other),
    };

    if (argc == 4 && !strcmp(argv[1], "role"))
        return role_run(&probe, argv[3]);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
