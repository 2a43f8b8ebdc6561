/*
 * office_fake.h - front's side of mail with real workers, for tests: each inbox is a directory below a temporary one, and
 * its worker is a child of the test, without confinement.
 */
#ifndef TESTS_MAIL_OFFICE_FAKE_H
#define TESTS_MAIL_OFFICE_FAKE_H

#include <fcntl.h>
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
#include "base/remove.h"
#include "mail/inbox.h"
#include "mail/inside.h"
#include "test.h"

enum { OFFICE_WORKERS = 256 };

struct office_fake {
    char dir[64];
    struct mail *mail;
    struct arena arena;
    pid_t workers[OFFICE_WORKERS]; /* all that were started, also those that have ended */
    int worker_count;
};

static inline bool office_fake_open(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    struct office_fake *o = context;
    char path[128];
    int pair[2];

    snprintf(path, sizeof path, "%s/%s", o->dir, inbox_id);
    if (make && mkdir(path, 0700) < 0)
        return err_set(err, ERR_CONFLICT, "this inbox exists already");
    if (access(path, F_OK) < 0)
        return err_set(err, ERR_NOT_FOUND, "there is no such inbox");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    assert_true(pid >= 0 && o->worker_count < OFFICE_WORKERS);
    if (pid == 0) {
        struct err why;
        /* Also the descriptors of other workers: they would not see their connection end. */
        for (int fd = 3; fd < 256; fd++)
            if (fd != pair[1])
                close(fd);
        _exit(chdir(path) == 0 && inbox_serve(pair[1], &why) ? 0 : 1);
    }
    o->workers[o->worker_count++] = pid;
    close(pair[1]);
    *out_fd = pair[0];
    return true;
}

static inline bool office_fake_no_composer(void *context, int *out_fd, struct err *err)
{
    (void)context;
    (void)out_fd;
    return err_set(err, ERR_UNAVAILABLE, "this test has no composer");
}

static inline void office_fake_start(struct office_fake *o)
{
    struct mail_config config = { .open_inbox = office_fake_open,
                                  .open_composer = office_fake_no_composer,
                                  .context = o };

    seal_pair_of(STR("the test's server"), "server", &config.server_public, &config.server_private);
    seal_derive(STR("the test's server"), "secret", &config.server_secret);
    o->mail = mail_new(&config);
}

static inline void office_fake_wait(struct office_fake *o)
{
    for (int i = 0; i < o->worker_count; i++)
        (void)waitpid(o->workers[i], NULL, 0);
    o->worker_count = 0;
}

/* As when the server is started again: the connections end, and with them the workers. */
static inline void office_fake_restart(struct office_fake *o)
{
    mail_free(o->mail);
    office_fake_wait(o);
    office_fake_start(o);
}

/* As when something kills all workers. Front does not know. */
static inline void office_fake_kill(struct office_fake *o)
{
    for (int i = 0; i < o->worker_count; i++)
        (void)kill(o->workers[i], SIGKILL);
    office_fake_wait(o);
}

static inline int office_fake_set_up(void **state)
{
    struct office_fake *o = calloc(1, sizeof *o);
    struct err err;

    assert_true(seal_begin(&err));
    /* In memory if possible: the tests would wait for a disk thousands of times. */
    snprintf(o->dir, sizeof o->dir, "%s/cloister-mail.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(o->dir));
    arena_init(&o->arena);
    office_fake_start(o);
    *state = o;
    return 0;
}

static inline int office_fake_tear_down(void **state)
{
    struct office_fake *o = *state;
    struct err err;

    mail_free(o->mail);
    office_fake_wait(o);
    arena_done(&o->arena);
    if (!remove_tree(AT_FDCWD, o->dir, &err))
        print_error("%s\n", err_text(&err));
    free(o);
    return 0;
}

/* Does a file of the inboxes have these bytes? The workers have to be at rest. */
static inline bool office_fake_has_bytes(const struct office_fake *o, const char *inbox_id, struct str bytes)
{
    static const char *const names[] = { "inbox.db", "inbox.db-wal" };
    bool found = false;

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s/%s", o->dir, inbox_id, names[i]);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        fseek(file, 0, SEEK_END);
        size_t size = (size_t)ftell(file);
        rewind(file);
        char *all = malloc(size + 1);
        assert_int_equal(fread(all, 1, size, file), size);
        found = found || memmem(all, size, bytes.at, bytes.len);
        free(all);
        fclose(file);
    }
    return found;
}

#define MUST(call)                          \
    do {                                    \
        struct err err = { 0 };             \
        if (!(call))                        \
            fail_msg("%s", err_text(&err)); \
    } while (0)

#define MUST_FAIL(call, want_kind)                                                                               \
    do {                                                                                                         \
        struct err err = { 0 };                                                                                  \
        if (call)                                                                                                \
            fail_msg("it should have failed");                                                                   \
        if (err.kind != (want_kind))                                                                             \
            fail_msg("kind %s, want %s: %s", err_kind_name[err.kind], err_kind_name[want_kind], err_text(&err)); \
    } while (0)

#endif
