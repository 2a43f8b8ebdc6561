/*
 * fake_server.h - a server that says what a test wants to hear, and remembers what it was asked.
 *
 * One thread, one connection at a time, blocking: it has nothing in common with the code under test. run_cli() runs the
 * command in a child process, as a shell would.
 */
#ifndef TESTS_UNIT_CLI_FAKE_SERVER_H
#define TESTS_UNIT_CLI_FAKE_SERVER_H

#include <pthread.h>
#include <stdbool.h>

#include "test.h"

struct fake_rule {
    const char *request; /* how its first line begins: "GET /api-keys " */
    struct str answer;   /* everything from the status line on */
};

struct fake_server {
    char address[32]; /* "127.0.0.1:40001" */
    char url[48];
    /* private */
    int fd;
    pthread_t thread;
    const struct fake_rule *rules; /* ends with a NULL request: 404 */
    pthread_mutex_t lock;
    char asked[16384]; /* every request so far, heads and bodies */
    size_t asked_len;
};

void fake_server_start(struct fake_server *server, const struct fake_rule *rules);
void fake_server_stop(struct fake_server *server);
/* Was this text anywhere in what it was asked? */
bool fake_server_heard(struct fake_server *server, const char *text);

struct outcome {
    int exit_code;
    char out[16384], note[16384]; /* standard output and standard error */
};
/* `words` ends with NULL and begins after "cloister". */
void run_cli(struct outcome *outcome, const char *const *words);
#define RUN(outcome, ...) run_cli((outcome), (const char *const[]){ __VA_ARGS__, NULL })

/* A data directory as keeper leaves it, with this address; returns its path, good until the next call. */
const char *fake_data_dir(const char *address);
void fake_data_dir_remove(const char *path);

#define CHECK_HAS(text, part)                                \
    do {                                                     \
        if (!strstr((text), (part)))                         \
            fail_msg("'%s' is not in:\n%s", (part), (text)); \
    } while (0)

#endif
