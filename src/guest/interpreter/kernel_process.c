#include "guest/interpreter/kernel_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/random.h"
#include "guest/interpreter/launch.h"
#include "wire/json.h"

/* Ports that are free now. If another process takes one first, the kernel fails and the context starts another. */
static bool pick_ports(struct kernel_process *p, struct err *err)
{
    int fds[KERNEL_PORTS] = { -1, -1, -1, -1, -1 };
    bool fine = true;

    for (size_t i = 0; i < KERNEL_PORTS && fine; i++) {
        struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof at;
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fine = fds[i] >= 0 && bind(fds[i], (struct sockaddr *)&at, sizeof at) == 0 &&
               getsockname(fds[i], (struct sockaddr *)&at, &len) == 0;
        if (!fine)
            (void)err_sys(err, "find a free port");
        p->ports[i] = ntohs(at.sin_port);
    }
    fd_close_each(fds, KERNEL_PORTS);
    return fine;
}

static bool write_connection_file(struct kernel_process *p, const struct user *user, struct err *err)
{
    static const char *const names[KERNEL_PORTS] = { "shell_port", "control_port", "iopub_port", "stdin_port",
                                                     "hb_port" };
    auto_buf struct buf text = buf_make(NULL, 4096);
    struct json_out out = json_out_to(&text);
    char name[17];

    json_out_object(&out, NULL);
    json_out_str(&out, "transport", STR("tcp"));
    json_out_str(&out, "ip", STR("127.0.0.1"));
    for (size_t i = 0; i < KERNEL_PORTS; i++)
        json_out_int(&out, names[i], p->ports[i]);
    json_out_str(&out, "key", str_from(p->key));
    json_out_str(&out, "signature_scheme", STR("hmac-sha256"));
    json_out_str(&out, "kernel_name", STR(""));
    json_out_end(&out);
    random_id(name, sizeof name - 1);
    (void)snprintf(p->file, sizeof p->file, "/tmp/.kernel-%s.json", name);
    auto_close int fd = open(p->file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(err, "create a connection file");
    if (fchown(fd, user->uid, user->gid) < 0)
        return err_sys(err, "give a connection file to the user");
    return fd_write_all(fd, buf_str(&text), err);
}

static const char **make_argv(const struct kernelspec *spec, const char *file, struct arena *arena)
{
    const char **argv = ARENA_ARRAY(arena, const char *, spec->argc + 1);

    for (size_t i = 0; i < spec->argc; i++) {
        const char *hole = strstr(spec->argv[i], "{connection_file}");
        argv[i] = hole ? arena_format(arena, "%.*s%s%s", (int)(hole - spec->argv[i]), spec->argv[i], file,
                                      hole + strlen("{connection_file}"))
                             .at
                       : spec->argv[i];
    }
    return argv;
}

/* The kernelspec's own variables, as pairs. */
static struct guestlink_env *spec_envs(const struct kernelspec *spec, struct arena *arena, size_t *out_count)
{
    struct guestlink_env *envs = ARENA_ARRAY(arena, struct guestlink_env, json_object_size(spec->env) + 1);
    const char *name;
    json_t *value;

    *out_count = 0;
    json_object_foreach(spec->env, name, value) if (json_is_string(value) && *name && !strchr(name, '='))
        envs[(*out_count)++] = (struct guestlink_env){ str_from(name), json_str(value) };
    return envs;
}

void kernel_process_init(struct kernel_process *p)
{
    unsigned char key[KERNEL_KEY_BYTES / 2];

    *p = (struct kernel_process){ .pidfd = -1 };
    random_bytes(key, sizeof key);
    (void)hex_text(str_of(key, sizeof key), p->key);
}

static bool launch_kernel(struct kernel_process *p, struct guest *guest, const struct user *user,
                          const struct kernelspec *spec, const char *cwd, const int out_and_err[2], struct arena *arena,
                          struct err *err)
{
    size_t env_count;
    struct guestlink_env *envs = spec_envs(spec, arena, &env_count);

    auto_close int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0)
        return err_sys(err, "open /dev/null");
    struct launch launch = {
        .user = user,
        .argv = make_argv(spec, p->file, arena),
        .env = launch_env(guest, user, envs, env_count, arena),
        .cwd = cwd,
        .cwd_else = arena_text(arena, user->home),
        .in_fd = null_fd,
        .out_fd = out_and_err[0],
        .err_fd = out_and_err[1],
    };
    return launch_start(guest, &launch, arena, &p->pid, err);
}

bool kernel_process_start(struct kernel_process *p, struct guest *guest, const struct user *user,
                          const struct kernelspec *spec, const char *cwd, const int out_and_err[2], struct err *err)
{
    struct arena arena;

    if (!pick_ports(p, err) || !write_connection_file(p, user, err))
        return false;
    arena_init(&arena);
    bool started = launch_kernel(p, guest, user, spec, cwd, out_and_err, &arena, err);
    arena_done(&arena);
    if (!started)
        return false;
    p->pidfd = launch_pidfd(p->pid);
    return p->pidfd >= 0 || err_sys(err, "watch a process");
}

void kernel_process_remove_file(struct kernel_process *p)
{
    if (p->file[0])
        (void)unlink(p->file); /* in /tmp: the guest may have removed it */
    p->file[0] = '\0';
}

void kernel_process_done(struct kernel_process *p)
{
    kernel_process_remove_file(p);
    fd_close(&p->pidfd);
}
