/*
 * cli.h - the `cloister` command: a client of the API like any other, and its help.
 *
 * Everything it knows of a server comes from the API and from three small files in the data directory. The commands
 * that are part of the server (serve, doctor's checks, template build of a recipe) belong to daemon/, which runs them
 * before it calls cli_main(); their rows in the table are for the help.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

/* Facts that cli/ cannot know, because it may not include daemon/ or image/. */
struct cli_facts {
    /* What `template build` can make: the word for the command line, and the template's name. False: no more. */
    bool (*recipe_at)(size_t index, const char **out_name, const char **out_makes);
};

/*
 * The first word of a command's arguments that is not an option or the value of one; NULL: none. An option that the command
 * does not have counts as one with a value, as all of `serve` are.
 */
const char *cli_first_word(const char *command, int argc, char **argv);

/* argv as main() got it. facts may be NULL. Returns the exit code. */
int cli_main(int argc, char **argv, const struct cli_facts *facts);

/* The exit code of an error kind, as `cloister help exit-codes` lists them. 0 for ERR_NONE. */
int cli_exit_code(enum err_kind kind);

/* Prints the error on standard error, in one line, and returns the exit code. For daemon/'s own commands too. */
int cli_fail(const struct err *err);

/* The help of one command by its words ("serve", "template build"), as `cloister help …` prints it. False: no such. */
bool cli_help(FILE *out, const char *command);

/* ---- advice with commands that can be pasted ---- */

/* First call in main(): argv[0] is how the user started the program. */
void cli_started_as(const char *argv0);
/* What to type to run this program: "cloister", or the path it was started by when no shell would find it by name. */
const char *cli_program(void);
/* The same with "sudo " in front, unless that is not needed. Valid until the next call. */
const char *cli_program_as_root(void);
/* Prints text, with cli_program() in place of `cloister` wherever that begins a command. */
void cli_teach(FILE *out, const char *text);

/* ---- doctor: daemon/ runs the checks, this prints them ---- */

enum doctor_verdict {
    DOCTOR_OK,   /* as it should be */
    DOCTOR_WARN, /* works, but worse or slower than it could */
    DOCTOR_FAIL, /* no sandbox will start */
    DOCTOR_SKIP, /* not checked, for lack of root */
    DOCTOR_VERDICT_COUNT,
};

struct doctor_row {
    enum doctor_verdict verdict;
    const char *what;  /* "user namespaces" */
    const char *found; /* "allowed, 15,000 at most" */
    const char *fix;   /* a command or a sentence; NULL where there is nothing to fix */
};

/*
 * Prints a line for each and a verdict, or one JSON object. Returns the exit code: of ERR_UNAVAILABLE if a row is
 * DOCTOR_FAIL, else of ERR_DENIED if one is DOCTOR_SKIP, else 0. `data` is the data directory that was checked.
 */
int cli_doctor_print(FILE *out, const struct doctor_row *rows, size_t count, const char *data, bool json);

#endif
