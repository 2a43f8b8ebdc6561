/*
 * program.c - what the user has to type to run this program again. After a build without an install there is no
 * `cloister` on the PATH, so advice has to name the path that was used.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/text.h"

#define NAME "cloister"

enum { PROGRAM_BYTES = 64 }; /* with a longer path the advice would not fit into an error's message */

static char program[PROGRAM_BYTES] = NAME;
static char program_as_root[PROGRAM_BYTES + 8];

static bool is_same_file(const char *a, const char *b)
{
    struct stat first, second;

    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/* Would a shell find this very file by its plain name? */
static bool is_on_path(const char *file)
{
    const char *path = getenv("PATH");
    struct str rest = str_from(path ? path : ""), place;
    char candidate[4096];

    while (str_cut(&rest, ':', &place)) {
        int len = snprintf(candidate, sizeof candidate, "%.*s/" NAME, STR_ARG(place));
        if (place.len && len > 0 && (size_t)len < sizeof candidate && access(candidate, X_OK) == 0)
            return is_same_file(candidate, file); /* the shell takes the first match, which may be another build */
    }
    return false;
}

void cli_started_as(const char *argv0)
{
    auto_buf struct buf quoted = buf_make(NULL, PROGRAM_BYTES - 1);

    /* Without a slash: a shell found it on the PATH and will find it again. */
    bool is_plain = !argv0 || !strchr(argv0, '/') || is_on_path(argv0);
    text_shell_quote(&quoted, is_plain ? STR(NAME) : str_from(argv0));
    if (quoted.overflowed)
        return;
    memcpy(program, quoted.data, quoted.len);
    program[quoted.len] = '\0';
}

const char *cli_program(void)
{
    return program;
}

const char *cli_program_as_root(void)
{
    /* A user who used sudo needs it for the next command, too. */
    bool is_root = geteuid() == 0 && !getenv("SUDO_USER");

    (void)snprintf(program_as_root, sizeof program_as_root, "%s%s", is_root ? "" : "sudo ", program);
    return program_as_root;
}

/* True where `cloister` is a command: a word with an argument after it. Not in a path, nor as the user of that name. */
static bool is_command(const char *text, const char *at)
{
    static const struct str name = STR_INIT(NAME);
    bool begins = at == text || at[-1] == ' ' || at[-1] == '\n' || at[-1] == '`' || at[-1] == '(';

    return begins && at[name.len] == ' ' && at[name.len + 1] >= 'A' && at[name.len + 1] <= 'z';
}

void cli_teach(FILE *out, const char *text)
{
    const char *from = text;

    for (const char *at = text; (at = strstr(at, NAME)); at += sizeof NAME - 1) {
        if (!is_command(text, at))
            continue;
        fprintf(out, "%.*s%s", (int)(at - from), from, program);
        from = at + sizeof NAME - 1;
    }
    fputs(from, out);
}
