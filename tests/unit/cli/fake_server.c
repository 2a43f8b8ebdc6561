#include "fake_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

struct fake_memory {
    size_t len;
    char asked[16384]; /* every request, heads and bodies */
};

/* Reads one request; 0 when the peer has gone. */
static size_t read_request(int fd, char *room, size_t size)
{
    size_t len = 0;

    for (;;) {
        ssize_t got = read(fd, room + len, size - len - 1);
        if (got <= 0)
            return 0;
        len += (size_t)got;
        room[len] = '\0';
        const char *end = strstr(room, "\r\n\r\n");
        if (!end)
            continue;
        const char *length = strcasestr(room, "content-length:");
        size_t body = length && length < end ? strtoul(length + 15, NULL, 10) : 0;
        if (len >= (size_t)(end + 4 - room) + body)
            return len;
    }
}

static const struct fake_rule *find_rule(const struct fake_rule *rule, const char *request)
{
    while (rule->request && strncmp(request, rule->request, strlen(rule->request)) != 0)
        rule++;
    return rule;
}

static void serve_one(int fd, const struct fake_rule *rules, struct fake_memory *memory)
{
    char request[8192];
    static const struct str missing =
        STR_INIT("HTTP/1.1 404 Not Found\r\nContent-Length: 38\r\nConnection: close\r\n\r\n"
                 "{\"code\":404,\"message\":\"no such thing\"}");

    size_t len = read_request(fd, request, sizeof request);
    if (len == 0)
        return;
    for (size_t i = 0; i < len && memory->len + 1 < sizeof memory->asked; i++)
        memory->asked[memory->len++] = request[i] ? request[i] : ' '; /* envelopes have zero bytes in them */
    const struct fake_rule *rule = find_rule(rules, request);
    struct str answer = rule->request ? rule->answer : missing;
    while (answer.len) {
        ssize_t sent = send(fd, answer.at, answer.len, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        answer.at += sent;
        answer.len -= (size_t)sent;
    }
}

static no_return void serve(int listen_fd, const struct fake_rule *rules, struct fake_memory *memory)
{
    for (;;) {
        int fd = accept(listen_fd, NULL, NULL);
        if (fd < 0)
            _exit(1);
        serve_one(fd, rules, memory);
        close(fd);
    }
}

void fake_server_start(struct fake_server *server, const struct fake_rule *rules)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof any;

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &len), 0);
    snprintf(server->address, sizeof server->address, "127.0.0.1:%d", ntohs(any.sin_port));
    snprintf(server->url, sizeof server->url, "http://%s", server->address);
    server->memory = mmap(NULL, sizeof *server->memory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(server->memory, MAP_FAILED);
    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid == 0)
        serve(fd, rules, server->memory);
    close(fd);
}

void fake_server_stop(struct fake_server *server)
{
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    munmap(server->memory, sizeof *server->memory);
}

bool fake_server_heard(struct fake_server *server, const char *text)
{
    /* It wrote down what it heard before it answered, so there is nothing to wait for. */
    return strcasestr(server->memory->asked, text) != NULL;
}

static void read_file(FILE *file, char *room, size_t size)
{
    rewind(file);
    room[fread(room, 1, size - 1, file)] = '\0';
    fclose(file);
}

static bool recipe_at(size_t index, const char **out_name, const char **out_makes)
{
    static const char *const recipes[][2] = { { "base", "base" }, { "tools", "tools-v1" } };

    if (index >= COUNT_OF(recipes))
        return false;
    *out_name = recipes[index][0];
    *out_makes = recipes[index][1];
    return true;
}

static const char *program;

void run_cli_as(struct outcome *outcome, const char *argv0, const char *const *words)
{
    program = argv0;
    run_cli(outcome, words);
    program = NULL;
}

void run_cli(struct outcome *outcome, const char *const *words)
{
    FILE *out = tmpfile(), *note = tmpfile();
    char *argv[24] = { (char *)"cloister" };
    int argc = 1, status;

    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(note), STDERR_FILENO);
        cli_started_as(program ? program : argv[0]);
        /* not _exit: the leak checker looks at the end */
        exit(cli_main(argc, argv, &(struct cli_facts){ .recipe_at = recipe_at }));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    outcome->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    read_file(out, outcome->out, sizeof outcome->out);
    read_file(note, outcome->note, sizeof outcome->note);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

const char *fake_data_dir(const char *address)
{
    static char path[64];
    char line[64];

    strcpy(path, "/tmp/cloister-cli-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    snprintf(line, sizeof line, "%s\n", address);
    write_file(path, "server", line);
    write_file(path, "api-key", "e2b_0123456789012345678901234567890123456789\n");
    write_file(path, "admin-token", "the-admin-token\n");
    return path;
}

void fake_data_dir_remove(const char *path)
{
    static const char *const names[] = { "server", "api-key", "admin-token" };
    char name[128];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(name, sizeof name, "%s/%s", path, names[i]);
        unlink(name);
    }
    rmdir(path);
}
