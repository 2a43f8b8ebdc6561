#include <assert.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/command.h"
#include "cli/text.h"

enum option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_LIST,  /* NAME=VALUE, may come several times */
    OPTION_WORDS, /* may come several times */
};

struct option {
    unsigned bit;
    const char *name;
    char letter;       /* 0: none */
    const char *value; /* what the help calls it; NULL: a flag */
    enum option_kind kind;
    size_t field;
    const char *help;
};

#define FIELD(member) offsetof(struct cli, member)

static const struct option options[] = {
    { TAKES_USER, "user", 'u', "USER", OPTION_TEXT, FIELD(user),
      "run as this user of the sandbox [the template's, else user]" },
    { TAKES_ENV, "env", 'e', "NAME=VALUE", OPTION_LIST, FIELD(envs), "set a variable; may be repeated" },
    { TAKES_CWD, "cwd", 0, "DIR", OPTION_TEXT, FIELD(cwd),
      "start in this directory [the template's, else the user's home]" },
    { TAKES_ALL, "all", 0, NULL, OPTION_FLAG, FIELD(all),
      "every running and paused sandbox of the key's team; as root without a key, of all teams" },
    { TAKES_TEAM, "team", 0, "NAME", OPTION_TEXT, FIELD(team), "the team it is for [default]" },
    { TAKES_FORCE, "force", 0, NULL, OPTION_FLAG, FIELD(force), "revoke its keys and kill its sandboxes first" },
    { TAKES_TIMEOUT, "timeout", 0, "SECONDS", OPTION_TEXT, FIELD(timeout), "how long it lives [300]" },
    { TAKES_COUNT, "count", 0, "N", OPTION_TEXT, FIELD(count), "how many copies [1]" },
    { TAKES_FILES_ONLY, "files-only", 0, NULL, OPTION_FLAG, FIELD(files_only),
      "keep the files and not the processes: works on every machine" },
    { TAKES_REBOOT, "reboot", 0, NULL, OPTION_FLAG, FIELD(reboot),
      "start afresh from the files; what was in memory is lost" },
    { TAKES_NAME, "name", 0, "NAME[:TAG]", OPTION_TEXT, FIELD(name), "a name for it [none: it has only an id]" },
    { TAKES_IMPORT, "name", 0, "NAME[:TAG]", OPTION_TEXT, FIELD(name), "the template's name [that of the file]" },
    { TAKES_IMPORT, "image", 0, "NAME", OPTION_TEXT, FIELD(image), "which image, if there are several in it" },
    { TAKES_BUILD, "name", 0, "NAME[:TAG]", OPTION_TEXT, FIELD(name), "what it is called [as the directory]" },
    { TAKES_SIZE, "cpu", 0, "N", OPTION_TEXT, FIELD(cpu), "CPUs of its sandboxes: 1, 2, 4, 6 or 8 [2]" },
    { TAKES_SIZE, "memory", 0, "MIB", OPTION_TEXT, FIELD(memory), "memory of its sandboxes [1024]" },
    { TAKES_BUILD, "start", 0, "CMD", OPTION_TEXT, FIELD(start),
      "what runs in every sandbox from the beginning [ENTRYPOINT and CMD]" },
    { TAKES_BUILD, "ready", 0, "CMD", OPTION_TEXT, FIELD(ready), "succeeds when that is ready [after 20 seconds]" },
    { TAKES_BUILD, "build-arg", 0, "NAME=X", OPTION_WORDS, FIELD(build_args), "a value for ARG; may be repeated" },
    { TAKES_BUILD, "no-cache", 0, NULL, OPTION_FLAG, FIELD(no_cache),
      "run all steps, also those that have not changed" },
    { TAKES_BUILD, "again", 0, NULL, OPTION_FLAG, FIELD(again),
      "base and code-interpreter: also if they are up to date" },
    { TAKES_SANDBOX, "sandbox", 0, "ID", OPTION_TEXT, FIELD(sandbox), "only those that were made of this sandbox" },
    { TAKES_RULES, "internet", 0, NULL, OPTION_FLAG, FIELD(internet),
      "reach the internet, also if the server was started with --internet off" },
    { TAKES_RULES, "no-internet", 0, NULL, OPTION_FLAG, FIELD(no_internet),
      "reach nothing outside, except what --allow-out names" },
    { TAKES_RULES, "allow-out", 0, "WHAT", OPTION_WORDS, FIELD(allow_out),
      "an address, CIDR block or domain that it may reach; may be repeated" },
    { TAKES_RULES, "deny-out", 0, "WHAT", OPTION_WORDS, FIELD(deny_out),
      "an address or CIDR block that it must not reach; may be repeated" },
    { TAKES_RESET, "reset", 0, NULL, OPTION_FLAG, FIELD(reset), "remove all rules" },
    { TAKES_TENANT, "tenant", 0, "NAME", OPTION_TEXT, FIELD(tenant), "the tenant it is for [default]" },
    { TAKES_SCOPES, "scopes", 0, "LIST", OPTION_TEXT, FIELD(scopes),
      "what the key may do: oversight, oversight_read [oversight]" },
    { TAKES_GRANT, "to", 0, "KEY|INBOX", OPTION_TEXT, FIELD(to),
      "the key that may read, or the inbox whose key it is" },
    { TAKES_GRANT, "inbox", 0, "INBOX", OPTION_TEXT, FIELD(inbox), "the inbox that it may read" },
    { TAKES_GRANT, "verbs", 0, "LIST", OPTION_TEXT, FIELD(verbs), "list, read or list,read" },
    { TAKES_GRANT, "expires", 0, "SECONDS", OPTION_TEXT, FIELD(expires), "how long" },
    { TAKES_REASON, "reason", 0, "TEXT", OPTION_TEXT, FIELD(reason), "why; it is in the audit or shown to the agent" },
    { TAKES_DECISION, "sha256", 0, "HEX", OPTION_TEXT, FIELD(sha256),
      "decide only if the message has this hash [that of the message shown]" },
    { TAKES_DRY_RUN, "dry-run", 0, NULL, OPTION_FLAG, FIELD(dry_run), "only say what would be removed" },
    { TAKES_YES, "yes", 'y', NULL, OPTION_FLAG, FIELD(yes), "do not ask" },
    { TAKES_JSON, "json", 0, NULL, OPTION_FLAG, FIELD(json), "for programs: JSON instead of a table" },
    { TAKES_DATA, "data", 0, "DIR", OPTION_TEXT, FIELD(data), "data directory of the server [" CLI_DATA_DEFAULT "]" },
    { TAKES_URL, "url", 0, "URL", OPTION_TEXT, FIELD(url),
      "where the server is [E2B_API_URL with its key, else as DIR says]" },
    { TAKES_ADMIN_URL, "url", 0, "URL", OPTION_TEXT, FIELD(url), "where the server is [as DIR says; not E2B_API_URL]" },
    { TAKES_MAIL_URL, "url", 0, "URL", OPTION_TEXT, FIELD(url),
      "where the server is [MULTIMAIL_API_URL, else LOBSTERMAIL_API_URL]" },
    { ~0u, "help", 'h', NULL, OPTION_FLAG, FIELD(help), "this text" },
};

void args_help(FILE *out, unsigned takes)
{
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        const struct option *o = &options[i];
        if (!(o->bit & takes) || o->bit == ~0u)
            continue;
        char left[40];
        (void)snprintf(left, sizeof left, "%c%c%s --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                       o->letter ? "," : " ", o->name, o->value ? " " : "", o->value ? o->value : "");
        fprintf(out, "  %-24s  %s\n", left, o->help);
    }
}

static const struct option *find_long(struct str name, unsigned takes)
{
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if ((options[i].bit & takes || options[i].bit == ~0u) && str_eq(name, str_from(options[i].name)))
            return &options[i];
    return NULL;
}

static const struct option *find_letter(char letter, unsigned takes)
{
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if ((options[i].bit & takes || options[i].bit == ~0u) && letter && options[i].letter == letter)
            return &options[i];
    return NULL;
}

static bool unknown_option(const char *word, struct str name, const struct command *command, struct err *err)
{
    const char *names[COUNT_OF(options)];
    size_t count = 0;
    struct arena arena;

    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (options[i].bit & command->takes || options[i].bit == ~0u)
            names[count++] = options[i].name;
    arena_init(&arena);
    const char *meant = text_nearest(arena_text(&arena, name), names, count);
    if (meant)
        err_set(err, ERR_INVALID, "'%s' has no option %.40s; did you mean --%s?", command->name, word, meant);
    else
        err_set(err, ERR_INVALID, "'%s' has no option %.40s; `%s help %s` lists them", command->name, word,
                cli_program(), command->name);
    arena_done(&arena);
    return false;
}

static bool option_store(struct cli *cli, const struct option *option, const char *value, struct err *err)
{
    char *field = (char *)cli + option->field;

    assert(value || option->kind == OPTION_FLAG);
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)(void *)field = true;
        return true;
    case OPTION_TEXT:
        if (!value[0])
            return err_set(err, ERR_INVALID, "--%s needs a %s that is not empty", option->name, option->value);
        *(const char **)(void *)field = value;
        return true;
    case OPTION_LIST:
        if (!strchr(value, '=') || value[0] == '=')
            return err_set(err, ERR_INVALID, "--%s needs %s, not '%.60s'", option->name, option->value, value);
        cli->envs[cli->env_count++] = value;
        return true;
    case OPTION_WORDS: {
        struct cli_list *list = (struct cli_list *)(void *)field;
        if (!value[0])
            return err_set(err, ERR_INVALID, "--%s needs a %s that is not empty", option->name, option->value);
        list->at[list->count++] = value;
        return true;
    }
    }
    return false;
}

/* -u USER, -uUSER, --user USER, --user=USER. *at moves past the words that were used. */
static bool take_option(int argc, char **argv, int *at, const struct command *command, struct cli *cli, struct err *err)
{
    const char *word = argv[*at];
    struct str rest = str_from(word);
    const struct option *option;
    const char *value = NULL;

    if (str_skip(&rest, STR("--"))) {
        struct str name = rest;
        const char *equals = strchr(word, '=');
        if (equals) {
            name.len = (size_t)(equals - name.at);
            value = equals + 1;
        }
        option = find_long(name, command->takes);
        if (!option)
            return unknown_option(word, name, command, err);
    } else {
        option = find_letter(word[1], command->takes);
        if (!option || (!option->value && word[2]))
            return unknown_option(word, str_of(word + 1, strlen(word + 1)), command, err);
        if (word[2])
            value = word + 2;
    }
    *at += 1;
    if (!option->value && value)
        return err_set(err, ERR_INVALID, "--%s takes no value", option->name);
    if (option->value && !value) {
        if (*at >= argc)
            return err_set(err, ERR_INVALID, "%.40s needs a value: %s", word, option->value);
        value = argv[(*at)++];
    }
    return option_store(cli, option, value, err);
}

bool args_parse(int argc, char **argv, const struct command *command, struct cli *cli, struct err *err)
{
    bool verbatim = false;

    /* None can have more entries than argv has words. */
    cli->allow_out.at = ARENA_ARRAY(&cli->arena, const char *, (size_t)argc + 1);
    cli->deny_out.at = ARENA_ARRAY(&cli->arena, const char *, (size_t)argc + 1);
    cli->build_args.at = ARENA_ARRAY(&cli->arena, const char *, (size_t)argc + 1);
    cli->envs = ARENA_ARRAY(&cli->arena, const char *, (size_t)argc + 1);
    cli->words = ARENA_ARRAY(&cli->arena, char *, (size_t)argc + 1);
    for (int at = 0; at < argc;) {
        if (!verbatim && strcmp(argv[at], "--") == 0) {
            verbatim = true;
            at++;
        } else if (!verbatim && argv[at][0] == '-' && argv[at][1]) {
            if (!take_option(argc, argv, &at, command, cli, err))
                return false;
        } else {
            cli->words[cli->word_count++] = argv[at++];
            if (command->verbatim_from && cli->word_count > command->verbatim_from)
                verbatim = true;
        }
    }
    if (cli->help)
        return true;
    if (cli->word_count < command->words_least || cli->word_count > command->words_most)
        return err_set(err, ERR_INVALID, "%s: %s %s %s",
                       cli->word_count < command->words_least ? "too few arguments" : "too many arguments",
                       cli_program(), command->name, command->synopsis);
    return true;
}

const char *args_first_word(int argc, char **argv, const struct command *command)
{
    for (int at = 0; at < argc; at++) {
        struct str name = str_from(argv[at]);
        if (name.len < 2 || name.at[0] != '-')
            return argv[at];
        if (strcmp(argv[at], "--") == 0)
            return at + 1 < argc ? argv[at + 1] : NULL;
        bool is_long = str_skip(&name, STR("--"));
        if (is_long ? strchr(argv[at], '=') != NULL : name.len > 2)
            continue; /* with its value */
        const struct option *option =
            is_long ? find_long(name, command->takes) : find_letter(name.at[1], command->takes);
        at += !option || option->value;
    }
    return NULL;
}

bool args_number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out, struct err *err)
{
    return (str_to_u64(str_from(text), most, out) && *out >= least) ||
           err_set(err, ERR_INVALID, "--%s needs a number from %llu to %llu, not '%.40s'", option,
                   (unsigned long long)least, (unsigned long long)most, text);
}
