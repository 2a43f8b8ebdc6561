#include "guest/interpreter/launch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/spawn.h"

/* ---- environment ---- */

static void env_set(char **list, size_t *count, struct arena *arena, struct str name, struct str value)
{
    char *text = arena_alloc(arena, name.len + value.len + 2);
    size_t place = 0;

    memcpy(text, name.at, name.len);
    text[name.len] = '=';
    if (value.len)
        memcpy(text + name.len + 1, value.at, value.len);
    while (place < *count && strncmp(list[place], text, name.len + 1) != 0)
        place++;
    list[place] = text;
    *count += place == *count;
}

char **launch_env(struct guest *guest, const struct user *user, const struct guestlink_env *more, size_t more_count,
                  struct arena *arena)
{
    char **list = ARENA_ARRAY(arena, char *, 6 + guest->env_count + more_count);
    size_t count = 0;

    env_set(list, &count, arena, STR("PATH"), str_from(guest->path_env));
    env_set(list, &count, arena, STR("HOME"), user->home);
    env_set(list, &count, arena, STR("USER"), user->name);
    env_set(list, &count, arena, STR("LOGNAME"), user->name);
    env_set(list, &count, arena, STR("LANG"), STR("C.UTF-8"));
    for (size_t i = 0; i < guest->env_count; i++)
        env_set(list, &count, arena, guest->envs[i].name, guest->envs[i].value);
    for (size_t i = 0; i < more_count; i++)
        env_set(list, &count, arena, more[i].name, more[i].value);
    return list;
}

/* ---- files ---- */

/* The candidates for a command: itself if it has a slash, otherwise one in each directory of PATH. */
static const char **files_of(struct guest *guest, const char *command, struct arena *arena)
{
    struct str path = str_from(guest->path_env), dir;
    size_t count = 2;

    for (size_t i = 0; i < path.len; i++)
        count += path.at[i] == ':';
    const char **files = ARENA_ARRAY(arena, const char *, count);
    if (strchr(command, '/')) {
        files[0] = command;
        return files;
    }
    for (count = 0; str_cut(&path, ':', &dir);)
        if (dir.len)
            files[count++] = arena_format(arena, "%.*s/%s", STR_ARG(dir), command).at;
    return files;
}

bool launch_can(struct guest *guest, const char *command)
{
    struct arena arena;
    bool found = false;

    arena_init(&arena);
    for (const char **file = files_of(guest, command, &arena); *file && !found; file++)
        found = access(*file, X_OK) == 0;
    arena_done(&arena);
    return found;
}

/* ---- processes ---- */

bool launch_start(struct guest *guest, const struct launch *launch, struct arena *arena, pid_t *out_pid,
                  struct err *err)
{
    gid_t groups[USERS_GROUPS_MAX];
    struct spawn spawn = {
        .files = files_of(guest, launch->argv[0], arena),
        .argv = (char *const *)launch->argv, /* execve() does not write to it */
        .envp = launch->env,
        .cwd = launch->cwd,
        .cwd_else = launch->cwd_else,
        .uid = launch->user->uid,
        .gid = launch->user->gid,
        .groups = groups,
        .group_count = users_groups(guest->users, launch->user, groups, COUNT_OF(groups)),
        .in_fd = launch->in_fd,
        .out_fd = launch->out_fd,
        .err_fd = launch->err_fd,
        .session = SPAWN_LEADER,
        .cgroup_fds = guest->cgroup_fds,
        .cgroup_count = guest->cgroup_count,
    };

    return spawn_leader(&spawn, out_pid, err) || err_wrap(err, "start %s", launch->argv[0]);
}

int launch_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

void launch_explain(int status, char *room, size_t size)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        (void)snprintf(room, size, "it was killed (SIGKILL), most likely because the sandbox ran out of memory");
    else if (WIFSIGNALED(status))
        (void)snprintf(room, size, "it was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        (void)snprintf(room, size, "it ended with status %d", WEXITSTATUS(status));
}
