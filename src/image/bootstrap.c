/*
 * Theory of operation: the recipe (suite, packages, mmdebstrap's options, every file below) is hashed. If there
 * is a `base` with that hash and its layers exist, nothing is built. Otherwise mmdebstrap runs as a child and fills
 * tmp/base, as root of a user namespace alone (build.c); bootstrap_customize() writes our files into it; layer_seal()
 * names the layer; template_save() makes it the new `base`. packages/base says which packages it has. An older `base` passes its id on, so that references to the template stay valid.
 *
 * Every shell command of an SDK is a login shell and runs /etc/profile. Debian's starts processes; ours does not.
 */
#include "image/bootstrap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/network.h"
#include "base/random.h"
#include "base/str.h"
#include "image/build.h"

#define DEFAULT_SUITE "trixie"
#define BUILD_NAME "base" /* in tmp/ */
#define PACKAGE_MARK "package: "

/* Not part of the recipe: it changes nothing in the tree. */
#define LIST_PACKAGES \
    "--customize-hook=chroot \"$1\" dpkg-query -W -f '" PACKAGE_MARK "${binary:Package} ${Version}\\n'"

enum {
    GUEST_UID = 1000,
    BASE_CPU_MILLIS = 2000,
    BASE_MEMORY_BYTES = 1 << 30,
};

/* The packages that people and SDKs expect. */
static const char packages[] =
    "bash,coreutils,util-linux,procps,sudo,passwd,"       /* a system */
    "python3,python3-pip,python3-venv,python-is-python3," /* Python, and what installs into it */
    "nodejs,npm,"                                         /* JavaScript */
    "build-essential,git,"                                /* to build what pip and npm fetch */
    "curl,wget,ca-certificates,iproute2,netbase,"         /* network tools; netbase is /etc/services */
    "openssh-client,rsync,"                               /* git over ssh, copies */
    "ripgrep,jq,tree,file,sqlite3,"                       /* what coding agents look at files with */
    "nano,vim-tiny,tmux,"                                 /* editors, a terminal that stays */
    "ncurses-bin,less,xz-utils,zip,unzip";                /* tput, a pager, archives */

/* Without manuals and translations, which are a third of the size. */
static const char *const mmdebstrap_options[] = {
    "--mode=root",
    "--variant=minbase",
    "--format=directory",
    "--verbose",
    "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/gtk-doc/*",
    "--aptopt=Acquire::Languages \"none\"",
    /* As the one user that is sure to reach the tree. */
    "--aptopt=APT::Sandbox::User \"root\"",
    "--customize-hook=chroot \"$1\" useradd --uid 1000 --user-group --groups sudo --shell /bin/bash --create-home user",
    /* vim-tiny is `vi` alone. An alternative, so that an installed vim takes its place. */
    "--customize-hook=chroot \"$1\" update-alternatives --install /usr/bin/vim vim /usr/bin/vim.tiny 15",
};

/* ---- what we add ---- */

struct made_dir {
    const char *path;
    unsigned mode;
    unsigned owner; /* user and group alike */
};

static const struct made_dir made_dirs[] = {
    { "code", 01777, 0 },
    { "home/user/.local", 0755, GUEST_UID },
};

struct made_file {
    const char *path;
    unsigned mode;
    unsigned owner;
    const char *text;
};

#define USER_PROFILE                                                           \
    "# Read by login shells, which every command of an SDK starts in.\n"       \
    "[ -d \"$HOME/.local/bin\" ] && PATH=\"$HOME/.local/bin:$PATH\"\n"         \
    "[ -n \"$PS1\" ] && [ -n \"$BASH\" ] && [ -r ~/.bashrc ] && . ~/.bashrc\n" \
    ":\n"

#define USER_BASHRC                          \
    "case $- in *i*) ;; *) return ;; esac\n" \
    "HISTCONTROL=ignoreboth\n"               \
    "shopt -s checkwinsize histappend\n"     \
    "alias ls='ls --color=auto'\n"           \
    "alias ll='ls -l'\n"                     \
    "alias grep='grep --color=auto'\n"

static const struct made_file made_files[] = {
    { "etc/profile", 0644, 0,
      "# Starts no process: each command of an SDK reads this.\n"
      "# A PATH that came with the command stays.\n"
      "export PATH=\"${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\"\n"
      "export LANG=\"${LANG:-C.UTF-8}\"\n"
      "umask 022\n"
      "for script in /etc/profile.d/*.sh; do\n"
      "  [ -r \"$script\" ] && . \"$script\"\n"
      "done\n"
      "unset script\n"
      "# Not by PS1: dash has one in scripts too, and programs read what `sh -lc` prints.\n"
      "case $- in *i*) [ -t 1 ] && [ -s /etc/motd ] && cat /etc/motd ;; esac\n"
      "[ -n \"$PS1\" ] && [ -n \"$BASH\" ] && . /etc/bash.bashrc\n"
      ":\n" },
    { "etc/bash.bashrc", 0644, 0,
      "[ -z \"$PS1\" ] && return\n"
      "shopt -s checkwinsize\n"
      "PS1='\\u@\\h:\\w\\$ '\n" },
    { "etc/skel/.profile", 0644, 0, USER_PROFILE },
    { "etc/skel/.bashrc", 0644, 0, USER_BASHRC },
    { "root/.profile", 0644, 0, USER_PROFILE },
    { "root/.bashrc", 0644, 0, USER_BASHRC },
    { "home/user/.profile", 0644, GUEST_UID, USER_PROFILE },
    { "home/user/.bashrc", 0644, GUEST_UID, USER_BASHRC },
    { "etc/environment", 0644, 0, "LANG=C.UTF-8\n" },
    { "etc/default/locale", 0644, 0, "LANG=C.UTF-8\n" },
    { "etc/hostname", 0644, 0, BOOTSTRAP_HOSTNAME "\n" },
    /* sudo looks its own host up; without this line it says so at every call. */
    { "etc/hosts", 0644, 0,
      "127.0.0.1 localhost " BOOTSTRAP_HOSTNAME "\n"
      "::1 localhost ip6-localhost ip6-loopback\n" },
    /* What a terminal shows first. Debian's is about warranty; guestd says here if there is no network. */
    { "etc/motd", 0644, 0, "" },
    /*
     * One server, which all resolvers take: glibc's, musl's, Go's. Egress answers; it refuses at once what it does not
     * resolve, so these waits are for a server outside that is slow.
     */
    { "etc/resolv.conf", 0644, 0, "nameserver " NETWORK_NAMESERVER "\noptions timeout:3 attempts:2\n" },
    { "etc/sudoers.d/user", 0440, 0,
      "Defaults !fqdn, !lecture, !syslog, !pam_session\n"
      "user ALL=(ALL:ALL) NOPASSWD: ALL\n" },
    { "etc/machine-id", 0444, 0, "" },
};

/* Splits a path below root into parent and last part; the parent of "a" is ".". */
static int open_parent(int root_fd, const char *path, const char **out_name, struct err *err)
{
    char parent[LIMIT_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;

    *out_name = slash ? slash + 1 : path;
    (void)snprintf(parent, sizeof parent, "%.*s", (int)(len ? len : 1), len ? path : ".");
    return fd_open_inside(root_fd, parent, O_RDONLY | O_DIRECTORY, 0, err);
}

static bool make_dir(int root_fd, const struct made_dir *want, struct err *err)
{
    const char *name;
    auto_close int parent_fd = open_parent(root_fd, want->path, &name, err);

    if (parent_fd < 0)
        return false;
    if (mkdirat(parent_fd, name, 0700) < 0 && errno != EEXIST)
        return err_sys(err, "make /%s", want->path);
    auto_close int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fchown(fd, want->owner, want->owner) < 0 || fchmod(fd, want->mode) < 0)
        return err_sys(err, "set up /%s", want->path);
    return true;
}

static bool make_file(int root_fd, const struct made_file *want, struct err *err)
{
    const char *name;
    auto_close int parent_fd = open_parent(root_fd, want->path, &name, err);

    if (parent_fd < 0)
        return false;
    /* Debian has some of these as links; ours is a file. */
    if (unlinkat(parent_fd, name, 0) < 0 && errno != ENOENT)
        return err_sys(err, "remove the old /%s", want->path);
    auto_close int fd = openat(parent_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(err, "create /%s", want->path);
    if (!fd_write_all(fd, str_from(want->text), err))
        return err_wrap(err, "/%s", want->path);
    if (fchown(fd, want->owner, want->owner) < 0 || fchmod(fd, want->mode) < 0)
        return err_sys(err, "set up /%s", want->path);
    return true;
}

/* Lets every user install into /usr/local, as tutorials and SDK examples assume. */
static bool open_up_dirs(int dir_fd, unsigned depth, struct err *err)
{
    if (fchmod(dir_fd, 01777) < 0)
        return err_sys(err, "chmod a directory in /usr/local");
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        (void)err_sys(err, "open a directory in /usr/local");
        fd_close(&copy);
        return false;
    }
    bool fine = true;
    for (struct dirent *entry; fine && depth < 16 && (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        auto_close int fd = openat(dir_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            fine = open_up_dirs(fd, depth + 1, err);
    }
    (void)closedir(dir);
    return fine;
}

/* Files that only mmdebstrap needed, or that contain traces of the host it ran on. */
static const char *const unwanted[] = {
    "etc/apt/apt.conf.d/99mmdebstrap", /* apt as root and no translations: the guest decides that for itself */
    "home/user/.bash_logout",          /* clears the screen, which makes no sense in a sandbox */
    "root/.bash_logout",               /* the same */
    "etc/skel/.bash_logout",           /* the same */
    "var/log/bootstrap.log",           /* when and where it was made */
    "var/log/dpkg.log",                /* the same */
    "var/log/alternatives.log",        /* the same */
    "var/log/apt/history.log",         /* the same */
    "var/log/apt/term.log",            /* the same */
    "var/cache/ldconfig/aux-cache",    /* holds inode numbers, so no two builds are equal */
};

static bool remove_unwanted(int root_fd, const char *path, struct err *err)
{
    const char *name;
    auto_close int parent_fd = open_parent(root_fd, path, &name, err);

    if (parent_fd < 0)
        return err->sys == ENOENT;
    if (unlinkat(parent_fd, name, 0) < 0 && errno != ENOENT)
        return err_sys(err, "remove /%s", path);
    return true;
}

/*
 * Debian's pip refuses to install outside a venv while this file exists. A sandbox has no system to protect from pip,
 * and tutorials use plain `pip install`.
 */
static bool allow_pip(int root_fd, struct err *err)
{
    int lib_fd = fd_open_inside(root_fd, "usr/lib", O_RDONLY | O_DIRECTORY, 0, err);
    DIR *dir = lib_fd < 0 ? NULL : fdopendir(lib_fd);

    if (!dir) {
        fd_close(&lib_fd);
        return err_wrap(err, "look for Python");
    }
    bool fine = true;
    for (struct dirent *entry; fine && (entry = readdir(dir));) {
        char path[300];
        if (strncmp(entry->d_name, "python3.", 8) != 0)
            continue;
        (void)snprintf(path, sizeof path, "usr/lib/%s/EXTERNALLY-MANAGED", entry->d_name);
        fine = remove_unwanted(root_fd, path, err);
    }
    (void)closedir(dir);
    return fine;
}

bool bootstrap_customize(int root_fd, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(unwanted); i++)
        if (!remove_unwanted(root_fd, unwanted[i], err))
            return false;
    for (size_t i = 0; i < COUNT_OF(made_dirs); i++)
        if (!make_dir(root_fd, &made_dirs[i], err))
            return false;
    for (size_t i = 0; i < COUNT_OF(made_files); i++)
        if (!make_file(root_fd, &made_files[i], err))
            return false;
    auto_close int local_fd = fd_open_inside(root_fd, "usr/local", O_RDONLY | O_DIRECTORY, 0, err);
    if (local_fd < 0 || !open_up_dirs(local_fd, 0, err))
        return err_wrap(err, "open up /usr/local");
    return allow_pip(root_fd, err);
}

/* ---- progress ---- */

static const struct {
    struct str line;
    unsigned from, to;
    const char *phase;
} phases[] = {
    { STR_INIT("I: running apt-get update"), 1, 4, "fetching package lists" },
    { STR_INIT("I: downloading packages"), 4, 8, "fetching the essential packages" },
    { STR_INIT("I: extracting archives"), 8, 15, "unpacking the essential packages" },
    { STR_INIT("I: installing essential packages"), 15, 25, "installing the essential packages" },
    { STR_INIT("I: installing remaining packages"), 25, 88, "installing the other packages" },
    { STR_INIT("I: running --customize-hook"), 88, 89, "adding the user" },
    { STR_INIT("I: cleaning"), 89, 90, "cleaning up" },
};

/* "0 upgraded, 412 newly installed, 0 to remove": each of them is fetched, unpacked and set up. */
static bool read_total(struct str line, unsigned *out_total)
{
    uint64_t upgraded, installed;
    struct str word;

    if (!str_cut(&line, ' ', &word) || !str_to_u64(word, 100000, &upgraded) || !str_skip(&line, STR("upgraded, ")) ||
        !str_cut(&line, ' ', &word) || !str_to_u64(word, 100000, &installed) || !str_starts(line, STR("newly")))
        return false;
    *out_total = 3 * (unsigned)(upgraded + installed);
    return true;
}

bool bootstrap_meter_line(struct bootstrap_meter *meter, struct str line)
{
    for (size_t i = 0; i < COUNT_OF(phases); i++) {
        if (!str_starts(line, phases[i].line) || phases[i].from < meter->from)
            continue;
        meter->from = meter->percent = phases[i].from;
        meter->to = phases[i].to;
        meter->total = meter->seen = 0;
        (void)snprintf(meter->phase, sizeof meter->phase, "%s", phases[i].phase);
        return true;
    }
    if (read_total(line, &meter->total)) {
        meter->seen = 0;
        return false;
    }
    if (!str_starts(line, STR("Get:")) && !str_starts(line, STR("Unpacking ")) && !str_starts(line, STR("Setting up ")))
        return false;
    meter->seen += meter->seen < meter->total;
    unsigned percent = meter->from;
    if (meter->total)
        percent += (meter->to - meter->from) * meter->seen / meter->total;
    bool moved = percent != meter->percent;
    meter->percent = percent;
    return moved;
}

/* ---- running mmdebstrap ---- */

struct builder {
    const struct bootstrap_want *want;
    const char *const *argv; /* of mmdebstrap */
    struct bootstrap_meter meter;
    char last_error[BUILD_LINE_BYTES]; /* the newest line that starts with E: */
    struct buf *packages;              /* as packages/base lists them */
};

static void tell(const struct builder *builder, unsigned percent, const char *phase)
{
    if (builder->want->progress)
        builder->want->progress(builder->want->progress_context, percent, phase);
}

static void take_line(void *context, struct str line)
{
    struct builder *builder = context;

    if (bootstrap_meter_line(&builder->meter, line))
        tell(builder, builder->meter.percent, builder->meter.phase);
    struct str said = line;
    if (str_skip(&said, STR(PACKAGE_MARK)))
        buf_format(builder->packages, "%.*s\n", STR_ARG(said));
    else if (str_skip(&said, STR("E: ")))
        (void)snprintf(builder->last_error, sizeof builder->last_error, "%.*s", STR_ARG(said));
}

/* Only proxy settings are taken from our environment. The rest is fixed, so that two runs give the same result. */
static const char *const kept_environment[] = { "http_proxy", "https_proxy", "no_proxy" };

static void exec_mmdebstrap(void *context)
{
    const struct builder *builder = context;
    char kept[COUNT_OF(kept_environment)][512];
    const char *environment[8] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                   "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive" };
    size_t count = 3;

    for (size_t i = 0; i < COUNT_OF(kept_environment); i++) {
        const char *value = getenv(kept_environment[i]);
        if (!value)
            continue;
        (void)snprintf(kept[i], sizeof kept[i], "%s=%s", kept_environment[i], value);
        environment[count++] = kept[i];
    }
    (void)execvpe(builder->argv[0], (char *const *)builder->argv,
                  (char *const *)environment); /* exec writes to neither */
    build_give_up("cannot start mmdebstrap; is it installed");
}

static bool run_mmdebstrap(struct builder *builder, const char *suite, const char *mirror, int tree_fd, struct err *err)
{
    char include[sizeof packages + 16];
    const char *argv[COUNT_OF(mmdebstrap_options) + 8];
    size_t count = 0;
    bool fine;

    (void)snprintf(include, sizeof include, "--include=%s", packages);
    argv[count++] = "mmdebstrap";
    for (size_t i = 0; i < COUNT_OF(mmdebstrap_options); i++)
        argv[count++] = mmdebstrap_options[i];
    argv[count++] = LIST_PACKAGES;
    argv[count++] = include;
    argv[count++] = suite;
    argv[count++] = BUILD_TREE;
    if (mirror)
        argv[count++] = mirror; /* else mmdebstrap's own default, with updates and security */
    argv[count] = NULL;

    builder->argv = argv;
    const struct build_child child = { exec_mmdebstrap, take_line, builder, tree_fd };
    if (!build_run(&child, &fine, err))
        return false;
    return fine || err_set(err, ERR_UNAVAILABLE, "mmdebstrap failed: %s",
                           builder->last_error[0] ? builder->last_error : "it did not say why");
}

/* ---- building ---- */

/* Without the mirror: it does not change which packages there are. */
static void recipe_hash(const char *suite, char out_hex[LAYER_HEX_BYTES])
{
    crypto_generichash_state state;
    unsigned char hash[32];
    char numbers[64];

    (void)crypto_generichash_init(&state, NULL, 0, sizeof hash);
    build_hash_add(&state, "cloister base 2"); /* change the number when the code of this file changes the result */
    build_hash_add(&state, suite);
    build_hash_add(&state, packages);
    for (size_t i = 0; i < COUNT_OF(mmdebstrap_options); i++)
        build_hash_add(&state, mmdebstrap_options[i]);
    for (size_t i = 0; i < COUNT_OF(unwanted); i++)
        build_hash_add(&state, unwanted[i]);
    for (size_t i = 0; i < COUNT_OF(made_dirs); i++) {
        (void)snprintf(numbers, sizeof numbers, "%o %u", made_dirs[i].mode, made_dirs[i].owner);
        build_hash_add(&state, made_dirs[i].path);
        build_hash_add(&state, numbers);
    }
    for (size_t i = 0; i < COUNT_OF(made_files); i++) {
        (void)snprintf(numbers, sizeof numbers, "%o %u", made_files[i].mode, made_files[i].owner);
        build_hash_add(&state, made_files[i].path);
        build_hash_add(&state, numbers);
        build_hash_add(&state, made_files[i].text);
    }
    (void)crypto_generichash_final(&state, hash, sizeof hash);
    (void)hex_text(str_of(hash, sizeof hash), out_hex);
}

static bool build_layer(struct builder *builder, int data_fd, const char *suite, const char *mirror,
                        char out_layer[LAYER_HEX_BYTES], struct err *err)
{
    auto_close int tmp_fd = openat(data_fd, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (tmp_fd < 0 || mkdirat(tmp_fd, BUILD_NAME, 0755) < 0)
        return err_sys(err, "make tmp/" BUILD_NAME);
    auto_close int root_fd = openat(tmp_fd, BUILD_NAME, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root_fd < 0 || fchmod(root_fd, 0755) < 0) /* whatever the umask */
        return err_sys(err, "open tmp/" BUILD_NAME);
    if (!run_mmdebstrap(builder, suite, mirror, root_fd, err))
        return false;
    tell(builder, 91, "setting up shells, sudo and names");
    if (!bootstrap_customize(root_fd, err))
        return err_wrap(err, "customize");
    tell(builder, 93, "writing to disk");
    return layer_seal(data_fd, BUILD_NAME, out_layer, err);
}

void bootstrap_recipe(char out_hex[LAYER_HEX_BYTES])
{
    recipe_hash(DEFAULT_SUITE, out_hex);
}

bool bootstrap_base(int data_fd, const struct bootstrap_want *want, struct template *out, struct err *err)
{
    const char *suite = want->suite ? want->suite : DEFAULT_SUITE;
    const char *mirror = want->mirror ? want->mirror : getenv("CLOISTER_DEBIAN_MIRROR");
    auto_buf struct buf installed = buf_make(NULL, BUILD_PACKAGES_BYTES);
    struct builder builder = { .want = want, .packages = &installed };
    struct template base = { .cpu_millis = BASE_CPU_MILLIS, .memory_bytes = BASE_MEMORY_BYTES, .layer_count = 1 };
    struct template before;
    char recipe[LAYER_HEX_BYTES];

    if (geteuid() != 0)
        return err_set(err, ERR_DENIED, "only root can make the base template");
    if (sodium_init() < 0)
        return err_set(err, ERR_INTERNAL, "libsodium failed to initialise");
    recipe_hash(suite, recipe);
    bool known = template_find(data_fd, "base", &before, err);
    if (!known && err->kind != ERR_NOT_FOUND)
        return err_wrap(err, "look for the base template");
    if (known && !want->again && template_is_current(data_fd, &before, recipe)) {
        tell(&builder, 100, "already there");
        *out = before;
        return true;
    }
    auto_close int lock_fd = -1;
    if (!layers_prepare(data_fd, &lock_fd, err) || !build_layer(&builder, data_fd, suite, mirror, base.layers[0], err))
        return err_wrap(err, "make the base template");
    if (known)
        memcpy(base.id, before.id, sizeof base.id);
    else
        random_id(base.id, TEMPLATE_ID_CHARS);
    (void)snprintf(base.name, sizeof base.name, "base");
    memcpy(base.recipe, recipe, sizeof recipe);
    base.created_us = clock_wall_us();
    if (!build_note_packages(data_fd, "base", base.layers[0], buf_str(&installed), err) ||
        !template_save(data_fd, &base, err))
        return false;
    tell(&builder, 100, "done");
    *out = base;
    return true;
}
