/*
 * pull_tool - pulls an image as front does: it starts the role puller, confined as in the server, and asks it by
 * template/pull.h. For puller_test.py, and for trying by hand:
 *
 *   pull_tool pull|digest|template IMAGE blobs=DIR [insecure=HOST:PORT] [mirror=HOST=URL] [allow=…] [image=NAME=SOURCE]
 *             [roots=FILE] [dns=ADDR:PORT] [deny=CIDR] [arch=amd64] [user=U password=P] [aws=ID:KEY:REGION] [gcp=JSON]
 *             [have=CHAIN]… [out=DIR] [cancel=MS] [archive=FILE]
 *
 * Prints a line for each thing it is told; layers are written to out/0, out/1….
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/forker_rig.h"
#include "daemon/settings.h"
#include "template/pull.h"

static const struct role_row row = { .name = "puller",
                                     .main = puller_main,
                                     .prepare = puller_prepare,
                                     .grants = { GRANT_BLOBS, GRANT_PULLER, GRANT_EGRESS, GRANT_ROOTS },
                                     .directory = GRANT_BLOBS,
                                     .readable = puller_readable,
                                     .calls = puller_calls };

static struct tool {
    struct rig *rig;
    struct puller_settings settings;
    struct egress_settings egress;
    const char *blobs, *out, *roots, *have[LIMIT_IMAGE_LAYERS];
    uint32_t have_count;
    uint64_t cancel_ms;
    struct registry_login login;
    char resolv_conf[100];
    const char *architecture;
    int archive_fd;
} tool = { .architecture = "amd64", .archive_fd = -1 };

static no_return void die(const char *what)
{
    (void)fprintf(stderr, "pull_tool: %s\n", what);
    exit(2);
}

static void add(char *list, const char *value)
{
    size_t len = strlen(list);

    (void)snprintf(list + len, CONFIG_LIST_BYTES - len, "%s%s", len ? "," : "", value);
}

static void set_aws(struct str text)
{
    tool.login.kind = LOGIN_AWS;
    (void)str_cut(&text, ':', &tool.login.key_id);
    (void)str_cut(&text, ':', &tool.login.key);
    tool.login.region = text;
}

static void take_word(char *word)
{
    char *value = strchr(word, '=');

    if (!value)
        die("arguments are name=value");
    *value++ = '\0';
    if (!strcmp(word, "blobs"))
        tool.blobs = value;
    else if (!strcmp(word, "insecure"))
        add(tool.settings.insecure, value);
    else if (!strcmp(word, "mirror"))
        add(tool.settings.mirrors, value);
    else if (!strcmp(word, "allow"))
        add(tool.settings.allow, value);
    else if (!strcmp(word, "image"))
        add(tool.settings.images, value);
    else if (!strcmp(word, "roots"))
        tool.roots = value;
    else if (!strcmp(word, "out"))
        tool.out = value;
    else if (!strcmp(word, "arch"))
        tool.architecture = value;
    else if (!strcmp(word, "dns"))
        (void)snprintf(tool.resolv_conf, sizeof tool.resolv_conf, "nameserver %s\n", value);
    else if (!strcmp(word, "deny")) {
        if (!net_range_parse(str_from(value), &tool.egress.deny[tool.egress.deny_count++]))
            die("deny takes a CIDR");
    } else if (!strcmp(word, "have") && tool.have_count < LIMIT_IMAGE_LAYERS)
        tool.have[tool.have_count++] = value;
    else if (!strcmp(word, "archive")) {
        if ((tool.archive_fd = open(value, O_RDONLY | O_CLOEXEC)) < 0)
            die("cannot open the archive");
    } else if (!strcmp(word, "cancel"))
        tool.cancel_ms = clock_mono_ms() + strtoull(value, NULL, 10);
    else if (!strcmp(word, "user") || !strcmp(word, "password")) {
        tool.login.kind = LOGIN_BASIC;
        *(word[0] == 'u' ? &tool.login.user : &tool.login.password) = str_from(value);
    } else if (!strcmp(word, "aws"))
        set_aws(str_from(value));
    else if (!strcmp(word, "gcp")) {
        tool.login.kind = LOGIN_GCP;
        tool.login.account = str_from(value);
    } else
        die("no such argument");
}

static void start(void)
{
    struct registry_options options = puller_settings_options(&tool.settings);
    struct err err;

    if (!registry_options_check(&options, &err)) {
        printf("options: %s\n", err.message);
        exit(1);
    }
    int fds[] = { open(tool.blobs, O_RDONLY | O_DIRECTORY | O_CLOEXEC), puller_settings_write(&tool.settings, &err),
                  egress_settings_write(&tool.egress, &err),
                  open(tool.roots ? tool.roots : "/dev/null", O_RDONLY | O_CLOEXEC) };
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        if (fds[i] < 0)
            die("cannot open what the role needs");
    tool.rig = rig_start("puller", NULL, MESSAGE_PULL, fds, COUNT_OF(fds));
    channel_send_event(tool.rig->keeper, MESSAGE_RESOLVERS, str_from(tool.resolv_conf), NULL, 0);
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        fd_close(&fds[i]);
}

/* ---- what front would do ---- */

static bool open_child(void *context, int *out_fd, struct err *err)
{
    struct rig_child child = rig_child(tool.rig);

    (void)context;
    *out_fd = child.fd;
    *err = child.err;
    return child.fd >= 0;
}

static bool has_chain(void *context, const char chain_hex[65])
{
    (void)context;
    for (uint32_t i = 0; i < tool.have_count; i++)
        if (strcmp(tool.have[i], chain_hex) == 0)
            return true;
    return false;
}

static void said(void *context, struct str line)
{
    (void)context;
    printf("said: %.*s\n", STR_ARG(line));
}

static bool cancelled(void *context)
{
    (void)context;
    return tool.cancel_ms && clock_mono_ms() >= tool.cancel_ms;
}

static void copy_layer(uint32_t number, int fd)
{
    static char room[1 << 20];
    char path[600];

    (void)snprintf(path, sizeof path, "%s/%u", tool.out, number);
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (ssize_t n; (n = read(fd, room, sizeof room)) > 0;)
        if (write(to, room, (size_t)n) != n)
            die("cannot write a layer");
    fd_close(&to);
}

static int failed(const struct err *err)
{
    printf("error %s: %s\n", err_kind_name[err->kind], err->message);
    return 1;
}

static int pull(struct puller *puller, const struct pull_want *want, struct arena *arena)
{
    struct pulled pulled;
    struct err err;

    if (!puller_pull(puller, want, arena, &pulled, &err))
        return failed(&err);
    printf("reference %s\nmanifest %s\n", pulled.reference_hex, pulled.digest_hex);
    for (uint32_t i = 0; i < pulled.env_count; i++)
        printf("env %.*s\n", STR_ARG(pulled.envs[i]));
    for (uint32_t i = 0; i < pulled.layer_count; i++) {
        const struct pulled_layer *layer = &pulled.layers[i];
        printf("layer %u diff %s chain %s size %llu %s\n", i, layer->diff_hex, layer->chain_hex,
               (unsigned long long)layer->size, layer->fd < 0 ? "here" : "came");
        if (tool.out && layer->fd >= 0)
            copy_layer(i, layer->fd);
    }
    pulled_done(&pulled);
    return 0;
}

static int run(const char *what, const char *image, struct arena *arena)
{
    struct puller *puller =
        puller_new(&(struct puller_config){ .open = open_child, .options = puller_settings_options(&tool.settings) });
    const struct pull_want want = { .image = str_from(image),
                                    .is_archive = tool.archive_fd >= 0,
                                    .archive_fd = tool.archive_fd,
                                    .login = &tool.login,
                                    .architecture = tool.architecture,
                                    .has_chain = has_chain,
                                    .said = said,
                                    .cancelled = cancelled };
    struct err err;
    char hex[65];
    struct str name;
    int code = 0;

    if (!strcmp(what, "digest")) {
        if (puller_digest(puller, &want, hex, &err))
            printf("reference %s\n", hex);
        else
            code = failed(&err);
    } else if (!strcmp(what, "template")) {
        if (puller_template(puller, want.image, arena, &name, &err))
            printf("template %.*s\n", STR_ARG(name));
        else
            code = failed(&err);
    } else {
        code = pull(puller, &want, arena);
    }
    puller_free(puller);
    return code;
}

int main(int argc, char **argv)
{
    struct arena arena;

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && strcmp(argv[1], "role") == 0)
        _exit(role_run(&row, argv[3]));
    if (argc < 4)
        die("pull|digest|template IMAGE blobs=DIR …; see its source");
    for (int i = 3; i < argc; i++)
        take_word(argv[i]);
    if (!tool.blobs)
        die("blobs=DIR is missing");
    start();
    arena_init(&arena);
    int code = run(argv[1], argv[2], &arena);
    arena_done(&arena);
    rig_stop(tool.rig);
    return code;
}
