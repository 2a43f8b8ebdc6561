#include "guest/launch.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/map.h"
#include "guest/spawner.h"

/* ---- variables and program ---- */

struct env_list {
    struct map places; /* name → entry in texts */
    char **texts;
    size_t count;
};

static void env_set(struct env_list *list, struct arena *arena, struct str name, struct str value)
{
    struct buf text = buf_make(arena, name.len + value.len + 2);

    buf_add(&text, name);
    buf_add_char(&text, '=');
    buf_add(&text, value);
    buf_add_char(&text, '\0');
    char **place = map_get(&list->places, name);
    if (!place) {
        place = &list->texts[list->count++];
        map_put(&list->places, name, place);
    }
    *place = text.data;
}

/* PATH, USER and the like; then the sandbox's variables; then the request's. The last one wins. */
static char **make_env(struct guest *guest, const struct process_want *want, struct arena *arena)
{
    struct env_list list = { 0 };

    map_init(&list.places);
    list.texts = ARENA_ARRAY(arena, char *, 4 + guest->env_count + want->env_count + 1);
    env_set(&list, arena, STR("PATH"), str_from(guest->path_env));
    env_set(&list, arena, STR("HOME"), want->user->home);
    env_set(&list, arena, STR("USER"), want->user->name);
    env_set(&list, arena, STR("LOGNAME"), want->user->name);
    for (size_t i = 0; i < guest->env_count; i++)
        env_set(&list, arena, guest->envs[i].name, guest->envs[i].value);
    for (size_t i = 0; i < want->env_count; i++)
        env_set(&list, arena, want->envs[i].name, want->envs[i].value);
    map_done(&list.places);
    return list.texts;
}

/* The files to try: the command itself if it has a slash, else one in each directory of the environment's PATH. */
static const char **make_files(const char *command, char *const *env, struct arena *arena)
{
    if (strchr(command, '/') || !*command) {
        const char **one = ARENA_ARRAY(arena, const char *, 2);
        one[0] = command;
        return one;
    }
    struct str path = STR(""), dir;
    for (; *env; env++) {
        struct str text = str_from(*env);
        if (str_skip(&text, STR("PATH=")))
            path = text;
    }
    size_t count = 1;
    for (size_t i = 0; i < path.len; i++)
        count += path.at[i] == ':';
    const char **files = ARENA_ARRAY(arena, const char *, count + 1);
    for (count = 0; str_cut(&path, ':', &dir); count++)
        files[count] = arena_format(arena, "%.*s/%s", STR_ARG(dir.len ? dir : STR(".")), command).at;
    return files;
}

/* Descriptors of a new process: ours and the child's. */
struct ends {
    int ours_in, ours_out, ours_err;
    int in, out, err;
};

static void ends_close(struct ends *ends)
{
    fd_close(&ends->ours_in);
    fd_close(&ends->ours_out);
    fd_close(&ends->ours_err);
    fd_close(&ends->in);
    fd_close(&ends->out);
    fd_close(&ends->err);
}

/* Which end of a new pipe is ours, and non-blocking. */
static bool make_pipe(int *ours_at, int *theirs_at, bool we_read, struct err *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, "make a pipe");
    *ours_at = fds[we_read ? 0 : 1];
    *theirs_at = fds[we_read ? 1 : 0];
    return fd_set_nonblocking(*ours_at, true, err);
}

static bool open_pipes(const struct process_want *want, struct ends *ends, struct err *err)
{
    if (!make_pipe(&ends->ours_out, &ends->out, true, err) || !make_pipe(&ends->ours_err, &ends->err, true, err))
        return false;
    if (want->has_stdin)
        return make_pipe(&ends->ours_in, &ends->in, false, err);
    ends->in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return ends->in >= 0 || err_sys(err, "open /dev/null");
}

static bool open_terminal(const struct process_want *want, struct ends *ends, struct err *err)
{
    struct winsize size = { .ws_col = want->cols, .ws_row = want->rows };
    int unlock = 0;

    ends->ours_out = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (ends->ours_out < 0 || ioctl(ends->ours_out, TIOCSPTLCK, &unlock) < 0)
        return err_sys(err, "open a terminal");
    /* By descriptor: the guest may have replaced /dev/pts. */
    ends->in = ioctl(ends->ours_out, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends->in < 0 || ioctl(ends->in, TIOCSWINSZ, &size) < 0)
        return err_sys(err, "open the terminal's other side");
    /* So that the user's programs can open it by name (sudo, screen, gpg do). Not fatal. */
    (void)!fchown(ends->in, want->user->uid, (gid_t)-1);
    ends->out = fcntl(ends->in, F_DUPFD_CLOEXEC, 3);
    ends->err = fcntl(ends->in, F_DUPFD_CLOEXEC, 3);
    ends->ours_in = fcntl(ends->ours_out, F_DUPFD_CLOEXEC, 3);
    if (ends->out < 0 || ends->err < 0 || ends->ours_in < 0)
        return err_sys(err, "duplicate a descriptor");
    return true;
}

/* ---- the start ---- */

void launch_close(struct launch *launch)
{
    fd_close(&launch->report_fd);
    fd_close(&launch->in_fd);
    fd_close(&launch->out_fd);
    fd_close(&launch->err_fd);
}

bool launch(struct guest *guest, const struct process_want *want, struct arena *arena, struct launch *out,
            struct err *err)
{
    gid_t groups[USERS_GROUPS_MAX];
    __attribute__((cleanup(ends_close))) struct ends ends = { -1, -1, -1, -1, -1, -1 };

    char **argv = ARENA_ARRAY(arena, char *, want->arg_count + 2);
    argv[0] = arena_text(arena, want->command);
    for (size_t i = 0; i < want->arg_count; i++)
        argv[i + 1] = arena_text(arena, want->args[i]);
    char **env = make_env(guest, want, arena);
    if (!(want->has_pty ? open_terminal(want, &ends, err) : open_pipes(want, &ends, err)))
        return false;
    struct spawn spawn = {
        .files = make_files(argv[0], env, arena),
        .argv = argv,
        .envp = env,
        .cwd = want->cwd,
        .cwd_else = want->cwd_else,
        .uid = want->user->uid,
        .gid = want->user->gid,
        .groups = groups,
        .group_count = users_groups(guest->users, want->user, groups, COUNT_OF(groups)),
        .in_fd = ends.in,
        .out_fd = ends.out,
        .err_fd = ends.err,
        .session = want->has_pty ? SPAWN_TERMINAL : SPAWN_MEMBER,
        .cgroup_fds = guest->cgroup_fds,
        .cgroup_count = guest->cgroup_count,
    };
    if (!spawner_start(guest->spawner, &spawn, arena, &out->by_spawner, &out->report_fd, err))
        return false;
    out->in_fd = take_fd(&ends.ours_in);
    out->out_fd = take_fd(&ends.ours_out);
    out->err_fd = take_fd(&ends.ours_err);
    return true;
}
