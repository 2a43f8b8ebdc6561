/*
 * fake_server.h - a server that says what a test wants to hear, and remembers what it was asked.
 *
 * A child process, one connection at a time, blocking: it has nothing in common with the code under test. run_cli() runs
 * the command in a child process too, as a shell would; both are processes and not threads because the leak checker at
 * the command's exit cannot cope with a thread that did not come along when it was forked.
 */
#ifndef TESTS_UNIT_CLI_FAKE_SERVER_H
#define TESTS_UNIT_CLI_FAKE_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "test.h"

struct fake_rule {
    const char *request; /* how its first line begins: "GET /api-keys " */
    struct str answer;   /* everything from the status line on */
};

struct fake_memory;

struct fake_server {
    char address[32]; /* "127.0.0.1:40001" */
    char url[48];
    /* private */
    pid_t pid;
    struct fake_memory *memory; /* shared with the child: what it was asked so far */
};

/* rules end with a NULL request; what matches none is a 404. */
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
/* The same, started by this path. */
void run_cli_as(struct outcome *outcome, const char *argv0, const char *const *words);
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
