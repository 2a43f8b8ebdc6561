/*
 * command.h - what a command is, and its parsed command line.
 *
 * One table in cli.c lists the commands and one in args.c the options. Parsing, `--help` and the suggestion for a
 * mistyped word walk the same rows.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#define CLI_DATA_DEFAULT "/var/lib/cloister"
#define CLI_LISTEN_DEFAULT "127.0.0.1:7070"

/* Which options a command takes. */
enum {
    TAKES_DATA = 1 << 0,
    TAKES_URL = 1 << 1,
    TAKES_JSON = 1 << 2,
    TAKES_USER = 1 << 3,
    TAKES_ENV = 1 << 4,
    TAKES_CWD = 1 << 5,
    TAKES_ALL = 1 << 6,
    TAKES_TEAM = 1 << 7,
    TAKES_FORCE = 1 << 8,
    TAKES_ADMIN_URL = 1 << 9, /* --url too, but E2B_API_URL is not used in its place */
    TAKES_RULES = 1 << 10,    /* --internet, --no-internet, --allow-out, --deny-out */
    TAKES_RESET = 1 << 11,
    TAKES_TIMEOUT = 1 << 12,
    TAKES_TENANT = 1 << 13,
    TAKES_SCOPES = 1 << 14,
    TAKES_REASON = 1 << 15,
    TAKES_DECISION = 1 << 16, /* --sha256 */
    TAKES_YES = 1 << 18,
    TAKES_MAIL_URL = 1 << 19,
    TAKES_FILES_ONLY = 1 << 20,
    TAKES_REBOOT = 1 << 21,
    TAKES_COUNT = 1 << 22,
    TAKES_NAME = 1 << 23,
    TAKES_SANDBOX = 1 << 24,
    TAKES_BUILD = 1 << 25,  /* those of `template build` */
    TAKES_GRANT = 1 << 17,  /* --to, --inbox, --verbs, --expires */
    TAKES_IMPORT = 1 << 28, /* --name, --image */
    TAKES_DRY_RUN = 1 << 30,
    TAKES_SIZE = 1 << 29,                       /* --cpu, --memory */
    TAKES_SERVER = TAKES_DATA | TAKES_URL,      /* commands that call the server with an API key */
    TAKES_ADMIN = TAKES_DATA | TAKES_ADMIN_URL, /* commands that call it with the admin token */
};

struct cli_facts;

/* Values of an option that may be repeated. */
struct cli_list {
    size_t count;
    const char **at;
};

/* One run of one command. Strings borrow from argv. */
struct cli {
    struct arena arena;
    FILE *out;       /* the answer */
    FILE *note;      /* everything else, so that `$(cloister …)` gets only the answer */
    bool is_colored; /* out is a terminal and NO_COLOR is not set */

    const char *data; /* NULL: not given, see cli_data() */
    const char *url;  /* NULL: not given */
    bool json;
    const char *user;
    const char *cwd;
    bool all;
    const char *team; /* NULL: not given */
    bool force;
    size_t env_count;
    const char **envs; /* "NAME=value" */
    bool internet, no_internet, reset;
    struct cli_list allow_out, deny_out;
    bool files_only, reboot;
    bool no_cache, again;
    struct cli_list build_args;                                                   /* "NAME=value", or "NAME" */
    const char *start, *ready;                                                    /* NULL: not given */
    const char *timeout, *count, *name, *sandbox;                                 /* NULL: not given */
    const char *image, *cpu, *memory;                                             /* the same */
    const char *tenant, *scopes, *reason, *sha256, *to, *inbox, *verbs, *expires; /* NULL: not given */
    bool yes, dry_run;
    bool help;         /* --help was given: everything else is ignored */
    size_t word_count; /* the words that are not options */
    char **words;

    const struct cli_facts *facts; /* NULL: none */
    struct str refusal;            /* the last error message of the server's, whole */
    int exit_code;                 /* of exec, which returns the exit code of the command it ran */
};

typedef bool command_fn(struct cli *cli, struct err *err);

enum command_group {
    GROUP_SERVER,
    GROUP_SANDBOX,
    GROUP_MAIL,
    GROUP_ADMIN,
    GROUP_OTHER,
    GROUP_COUNT,
};

struct command {
    const char *name; /* one to three words: "sandbox exec", "mail key create" */
    enum command_group group;
    const char *synopsis; /* what follows the name */
    const char *help;     /* one line */
    const char *more;     /* paragraphs and an example or two for `cloister help NAME` */
    unsigned takes;
    size_t words_least, words_most;
    size_t verbatim_from; /* words after this many are not options; 0: all may be */
    command_fn *run;      /* NULL: daemon/ runs it */
};

bool env_run(struct cli *cli, struct err *err);
bool key_create_run(struct cli *cli, struct err *err);
bool key_list_run(struct cli *cli, struct err *err);
bool key_revoke_run(struct cli *cli, struct err *err);
bool sandbox_create_run(struct cli *cli, struct err *err);
bool sandbox_info_run(struct cli *cli, struct err *err);
bool sandbox_logs_run(struct cli *cli, struct err *err);
bool sandbox_network_run(struct cli *cli, struct err *err);
bool sandbox_list_run(struct cli *cli, struct err *err);
bool sandbox_exec_run(struct cli *cli, struct err *err);
bool sandbox_kill_run(struct cli *cli, struct err *err);
bool sandbox_pause_run(struct cli *cli, struct err *err);
bool sandbox_resume_run(struct cli *cli, struct err *err);
bool sandbox_fork_run(struct cli *cli, struct err *err);
bool snapshot_create_run(struct cli *cli, struct err *err);
bool snapshot_list_run(struct cli *cli, struct err *err);
bool snapshot_delete_run(struct cli *cli, struct err *err);
bool mail_inbox_create_run(struct cli *cli, struct err *err);
bool mail_inbox_list_run(struct cli *cli, struct err *err);
bool mail_inbox_delete_run(struct cli *cli, struct err *err);
bool mail_key_create_run(struct cli *cli, struct err *err);
bool mail_key_list_run(struct cli *cli, struct err *err);
bool mail_key_revoke_run(struct cli *cli, struct err *err);
bool mail_pending_run(struct cli *cli, struct err *err);
bool mail_show_run(struct cli *cli, struct err *err);
bool mail_approve_run(struct cli *cli, struct err *err);
bool mail_reject_run(struct cli *cli, struct err *err);
bool mail_mode_run(struct cli *cli, struct err *err);
bool mail_allow_list_run(struct cli *cli, struct err *err);
bool mail_allow_add_run(struct cli *cli, struct err *err);
bool mail_allow_remove_run(struct cli *cli, struct err *err);
bool mail_codes_run(struct cli *cli, struct err *err);
bool mail_grant_create_run(struct cli *cli, struct err *err);
bool mail_grant_list_run(struct cli *cli, struct err *err);
bool mail_grant_revoke_run(struct cli *cli, struct err *err);
bool mail_audit_run(struct cli *cli, struct err *err);
bool mail_audit_verify_run(struct cli *cli, struct err *err);
bool mail_oversight_run(struct cli *cli, struct err *err);
bool mcp_run(struct cli *cli, struct err *err);
bool team_create_run(struct cli *cli, struct err *err);
bool team_list_run(struct cli *cli, struct err *err);
bool team_delete_run(struct cli *cli, struct err *err);
bool template_build_run(struct cli *cli, struct err *err);
bool template_import_run(struct cli *cli, struct err *err);
bool template_list_run(struct cli *cli, struct err *err);
bool template_inspect_run(struct cli *cli, struct err *err);
bool template_delete_run(struct cli *cli, struct err *err);
bool template_tag_run(struct cli *cli, struct err *err);
bool template_untag_run(struct cli *cli, struct err *err);
bool template_disk_run(struct cli *cli, struct err *err);
bool template_prune_run(struct cli *cli, struct err *err);

void cli_init(struct cli *cli, FILE *out, FILE *note);
void cli_done(struct cli *cli);
static inline const char *cli_data(const struct cli *cli)
{
    return cli->data ? cli->data : CLI_DATA_DEFAULT;
}

/* " --data DIR" or "--url URL" as they were given, for advice on what to run next; empty when neither was. */
const char *cli_same_server(struct cli *cli);

/* Fills cli from argv, which begins after the command's name. */
bool args_parse(int argc, char **argv, const struct command *command, struct cli *cli, struct err *err) must_use;
/* See cli_first_word(). */
const char *args_first_word(int argc, char **argv, const struct command *command);
/* The value of an option that is a number. */
bool args_number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out, struct err *err)
    must_use;
/* Prints the options of a command, one per line. */
void args_help(FILE *out, unsigned takes);

#endif
