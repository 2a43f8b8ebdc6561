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

/* What only the whole program knows. */
struct cli_facts {
    /* What `template build` can make: the words that ask for it, and the name that it gets. False: no more. */
    bool (*recipe_at)(size_t index, const char **out_name, const char **out_makes);
};

/* argv as main() got it. facts may be NULL. Returns the exit code. */
int cli_main(int argc, char **argv, const struct cli_facts *facts);

/* What the shell sees: see the table in `cloister help`. 0 for ERR_NONE. */
int cli_exit_code(enum err_kind kind);

/* Says why on standard error, in one line, and returns the exit code. For daemon/'s own commands too. */
int cli_fail(const struct err *err);

/* The help of one command by its words ("serve", "template build"), as `cloister help …` prints it. False: no such. */
bool cli_help(FILE *out, const char *command);

/* ---- advice that works ---- */

/* First thing in main(): argv[0] is how the user got here. */
void cli_started_as(const char *argv0);
/* What to type to run this program: "cloister", or the path it was started by when no shell would find it by name. */
const char *cli_program(void);
/* The same with "sudo " before it, unless that is not needed. Good until the next call. */
const char *cli_program_as_root(void);
/* Prints text; every `cloister …` in it that is a command begins as cli_program() says. */
void cli_teach(FILE *out, const char *text);

/* ---- doctor: daemon/ looks, this prints ---- */

enum doctor_verdict {
    DOCTOR_OK,   /* as it should be */
    DOCTOR_WARN, /* works, but worse or slower than it could */
    DOCTOR_FAIL, /* no sandbox will start */
    DOCTOR_SKIP, /* could not be looked at without root */
    DOCTOR_VERDICT_COUNT,
};

struct doctor_row {
    enum doctor_verdict verdict;
    const char *what;  /* "user namespaces" */
    const char *found; /* "allowed, 15,000 at most" */
    const char *fix;   /* a command or a sentence; NULL where there is nothing to fix */
};

/*
 * A line for each and a verdict, or one JSON object. Returns the exit code: that of ERR_UNAVAILABLE if a row says
 * DOCTOR_FAIL, else of ERR_DENIED if one says DOCTOR_SKIP, for nobody knows; else 0. `data` is the directory it was about.
 */
int cli_doctor_print(FILE *out, const struct doctor_row *rows, size_t count, const char *data, bool json);

#endif
