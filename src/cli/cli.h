/*
 * cli.h - the `cloister` command: a client of the API like any other, and the help that teaches it.
 *
 * Everything it knows of a server it learns from the API and from three small files in the data directory. The commands
 * that are the server themselves (serve, doctor's probes, template build) belong to daemon/, which takes them before it
 * calls cli_main(); their rows in the table are for the help.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

/* argv as main() got it. Returns the exit code. */
int cli_main(int argc, char **argv);

/* What the shell sees: see the table in `cloister help`. 0 for ERR_NONE. */
int cli_exit_code(enum err_kind kind);

/* Says why on standard error, in one line, and returns the exit code. For daemon/'s own commands too. */
int cli_fail(const struct err *err);

/* The help of one command by its words ("serve", "template build"), as `cloister help …` prints it. False: no such. */
bool cli_help(FILE *out, const char *command);

/* ---- doctor: daemon/ looks, this prints ---- */

enum doctor_verdict {
    DOCTOR_OK,   /* as it should be */
    DOCTOR_WARN, /* works, but worse or slower than it could */
    DOCTOR_FAIL, /* no sandbox will start */
    DOCTOR_VERDICT_COUNT,
};

struct doctor_row {
    enum doctor_verdict verdict;
    const char *what;  /* "user namespaces" */
    const char *found; /* "allowed, 15,000 at most" */
    const char *fix;   /* a command or a sentence; NULL where there is nothing to fix */
};

/* A line for each and a verdict, or one JSON object. Returns the exit code: 0 unless a row says DOCTOR_FAIL. */
int cli_doctor_print(FILE *out, const struct doctor_row *rows, size_t count, bool json);

#endif
