#include "guest/network.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/network.h"
#include "test.h"

#define REASON_HOST "internet-access-is-off-for-this-sandbox.invalid"

static char etc[64];

static int make_etc(void **state)
{
    (void)state;
    (void)snprintf(etc, sizeof etc, "/tmp/network_test.XXXXXX");
    return mkdtemp(etc) ? 0 : -1;
}

static int remove_etc(void **state)
{
    (void)state;
    static const char *const names[] = { "nsswitch.conf",
                                         "resolv.conf",
                                         "motd",
                                         "elsewhere",
                                         "pip.conf",
                                         "npmrc",
                                         "gitconfig",
                                         "apt/apt.conf.d/90cloister-network",
                                         "apt/apt.conf.d",
                                         "apt",
                                         ".cloister-network/nsswitch.conf",
                                         ".cloister-network/resolv.conf",
                                         ".cloister-network/motd",
                                         ".cloister-network/90cloister-network",
                                         ".cloister-network/gitconfig",
                                         ".cloister-network/apt-hook",
                                         ".cloister-network/inside",
                                         ".cloister-network" };
    char path[128];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", etc, names[i]);
        (void)remove(path);
    }
    return rmdir(etc); /* fails if a draft is left */
}

static void put(const char *name, const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_dir(const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void check_has(const char *name, const char *wanted)
{
    char path[128];
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_true(fd_read_file(AT_FDCWD, path, 4096, &text, &len, &err));
    assert_non_null(strstr(text, wanted));
}

static void check_nsswitch(const char *before, const char *after)
{
    auto_buf struct buf out = buf_make(NULL, 4096);

    network_nsswitch_without_dns(str_from(before), &out);
    CHECK_STR(buf_str(&out), str_from(after));
}

static void names_come_from_files_alone_and_the_rest_stays(void **state)
{
    (void)state;
#define WHY                                        \
    "# Internet access is off for this sandbox.\n" \
    "# To allow it: allow_internet_access=True in create(), or update_network().\n"
#define HOSTS WHY "hosts: files\n"
    check_nsswitch("passwd: files\nhosts:  files dns\n\nservices: db files\n",
                   "passwd: files\n\nservices: db files\n" HOSTS);
    check_nsswitch("  hosts: dns [!UNAVAIL=return] files", HOSTS);
    check_nsswitch("# hosts: dns\n", "# hosts: dns\n" HOSTS);
    check_nsswitch("passwd: files", "passwd: files\n" HOSTS);
    check_nsswitch("", HOSTS);
    check_nsswitch(HOSTS, WHY HOSTS);
}

static void programs_are_told_in_etc(void **state)
{
    (void)state;
    make_dir("apt");
    make_dir("apt/apt.conf.d");
    put("nsswitch.conf", "hosts: files dns\n");
    put("resolv.conf", "nameserver 192.0.2.1\n");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("nsswitch.conf", "\nhosts: files\n");
    check_has("resolv.conf", "Internet access is off");
    check_has("motd", "Internet access is off");
    check_has("apt/apt.conf.d/90cloister-network", "Acquire::Retries \"0\"");
    check_has("apt/apt.conf.d/90cloister-network", "APT::Update::Error-Mode \"any\"");
    check_has("apt/apt.conf.d/90cloister-network", "Acquire::http::Proxy \"http://" REASON_HOST "\";\n");
    check_has("apt/apt.conf.d/90cloister-network", "/etc/.cloister-network/apt-hook");
    check_has(".cloister-network/apt-hook", "Internet access is off");
    check_has("pip.conf", "[global]\nretries = 1\n");
    /* Some versions of pip show the host, and some the path. */
    check_has("pip.conf", "\nindex-url = https://" REASON_HOST "/internet-access-is-off-for-this-sandbox\n");
    check_has("npmrc", "\nfetch-retries=0\nregistry=https://" REASON_HOST "/\n");
    check_has("gitconfig", "\n[url \"https://" REASON_HOST "/\"] insteadOf = https://\n");
}

static void a_template_without_these_files_gets_them(void **state)
{
    (void)state;
    struct stat found;
    char path[128];

    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("nsswitch.conf", "hosts: files\n");
    (void)snprintf(path, sizeof path, "%s/resolv.conf", etc);
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0644);
}

static void a_link_is_replaced_and_not_followed(void **state)
{
    (void)state;
    char path[128];

    put("elsewhere", "kept");
    (void)snprintf(path, sizeof path, "%s/resolv.conf", etc);
    assert_int_equal(symlink("elsewhere", path), 0);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("elsewhere", "kept");
    check_has("resolv.conf", "Internet access is off");
}

/* A FIFO would be waited for, and a directory cannot be replaced. */
static void what_is_no_file_holds_nobody_up(void **state)
{
    (void)state;
    static const char *const names[] = { "nsswitch.conf", "resolv.conf", "motd", "pip.conf", "npmrc", "gitconfig" };
    char path[128];

    alarm(30); /* ends the test if it waits */
    for (size_t is_fifo = 0; is_fifo < 2; is_fifo++) {
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            (void)snprintf(path, sizeof path, "%s/%s", etc, names[i]);
            assert_int_equal(is_fifo ? mkfifo(path, 0644) : mkdir(path, 0755), 0);
        }
        network_tell(etc, GUESTLINK_NOTHING, STR(""));
        network_tell(etc, GUESTLINK_INSIDE, STR("mirror.internal\n"));
        (void)snprintf(path, sizeof path, "%s/.cloister-network/inside", etc);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(is_fifo ? mkfifo(path, 0644) : mkdir(path, 0755), 0);
        network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            (void)snprintf(path, sizeof path, "%s/%s", etc, names[i]);
            assert_int_equal(remove(path), 0);
        }
        (void)snprintf(path, sizeof path, "%s/.cloister-network/inside", etc);
        (void)remove(path);
        (void)snprintf(path, sizeof path, "%s/.cloister-network", etc);
        (void)remove(path);
    }
    alarm(0);
    network_tell("/nonexistent", GUESTLINK_NOTHING, STR(""));
}

static void a_file_that_cannot_be_read_leaves_the_others_to_be_written(void **state)
{
    (void)state;
    make_dir("nsswitch.conf");
    make_dir("apt");
    make_dir("apt/apt.conf.d");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("resolv.conf", "Internet access is off");
    check_has("motd", "Internet access is off");
    check_has("apt/apt.conf.d/90cloister-network", "Internet access is off");
}

/* As on a full file system: the file can be created and not be written. */
static void a_write_that_fails_leaves_the_old_file_and_no_draft(void **state)
{
    struct rlimit before, none;
    char path[128];
    (void)state;

    put("resolv.conf", "nameserver 192.0.2.1\n");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){ 0, before.rlim_max };
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_has("resolv.conf", "nameserver 192.0.2.1\n");
    (void)snprintf(path, sizeof path, "%s/.cloister-new", etc);
    assert_int_equal(access(path, F_OK), -1);
}

static void check_is(const char *name, const char *wanted)
{
    char path[128];
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_true(fd_read_file(AT_FDCWD, path, 4096, &text, &len, &err));
    assert_string_equal(text, wanted);
}

static bool is_there(const char *name)
{
    struct stat found;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    return lstat(path, &found) == 0;
}

static void the_templates_own_files_come_back(void **state)
{
    (void)state;
    char path[128];

    make_dir("apt");
    make_dir("apt/apt.conf.d");
    put("nsswitch.conf", "hosts: files dns\n");
    put("elsewhere", "nameserver 192.0.2.1\n");
    put("pip.conf", "[global]\nretries = 7\n");
    (void)snprintf(path, sizeof path, "%s/resolv.conf", etc);
    assert_int_equal(symlink("elsewhere", path), 0);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("resolv.conf", "Internet access is off");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("nsswitch.conf", "hosts: files dns\n");
    check_is("resolv.conf", "nameserver 192.0.2.1\n");
    check_is("pip.conf", "[global]\nretries = 7\n");
    struct stat found;
    assert_int_equal(lstat(path, &found), 0);
    assert_true(S_ISLNK(found.st_mode));
    assert_false(is_there("motd") || is_there("npmrc") || is_there("apt/apt.conf.d/90cloister-network"));
    assert_false(is_there("gitconfig"));
    assert_false(is_there(".cloister-network"));
    network_tell(etc, GUESTLINK_NOTHING, STR("")); /* and once more */
    check_has("resolv.conf", "Internet access is off");
}

#define PIP_OWN "[global]\nretries = 1\ntimeout = 9\n"
#define NPM_OWN "fetch-retries=0\nfund=false"

static void what_a_template_says_to_pip_and_npm_stays(void **state)
{
    (void)state;
    put("pip.conf", PIP_OWN); /* one line each is like one of ours */
    put("npmrc", NPM_OWN);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_is("pip.conf", PIP_OWN);
    check_is("npmrc", NPM_OWN);
    check_has("motd", "Internet access is off");
    network_tell(etc, GUESTLINK_INSIDE, STR("pypi.org\n"));
    check_is("pip.conf", PIP_OWN);
    check_is("npmrc", NPM_OWN);
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("pip.conf", PIP_OWN);
    check_is("npmrc", NPM_OWN);
}

static void a_templates_link_for_npm_stays(void **state)
{
    (void)state;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/npmrc", etc);
    assert_int_equal(symlink("elsewhere", path), 0); /* leads nowhere, and stays all the same */
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    assert_int_equal(access(path, F_OK), -1);
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    assert_true(is_there("npmrc"));
}

static void a_file_that_the_guest_has_changed_stays(void **state)
{
    (void)state;
    put("resolv.conf", "nameserver 192.0.2.1\n");
    put("motd", "welcome\n");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    put("resolv.conf", "nameserver 192.0.2.2\n");
    network_tell(etc, GUESTLINK_NOTHING, STR("")); /* the same again: nothing is written */
    check_is("resolv.conf", "nameserver 192.0.2.2\n");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("resolv.conf", "nameserver 192.0.2.2\n");
    check_is("motd", "welcome\n");
    assert_false(is_there(".cloister-network"));
}

static void what_a_template_says_to_git_stays_and_comes_back(void **state)
{
    (void)state;
    static const char *const own[] = { "[user]\n\tname = a\n", "[user] name = a", "" };

    for (size_t i = 0; i < COUNT_OF(own); i++) {
        put("gitconfig", own[i]);
        network_tell(etc, GUESTLINK_NOTHING, STR(""));
        check_has("gitconfig", own[i]);
        check_has("gitconfig", "\n[url \"https://" REASON_HOST "/\"] insteadOf = https://\n");
        network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
        check_is("gitconfig", own[i]);
        assert_false(is_there(".cloister-network"));
    }
}

/* As `npm config set --location=global` and `pip config --global set` write it, without our comments. */
static void of_a_file_that_a_program_has_changed_only_our_lines_go(void **state)
{
    (void)state;
    put("gitconfig", "[user]\n\tname = a\n");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    put("npmrc", "fetch-retries=0\nregistry=https://" REASON_HOST "/\nfund=false\n");
    put("pip.conf", "[global]\nretries = 1\nindex-url = https://" REASON_HOST "/a\ntimeout = 9\n");
    put("gitconfig", "[user]\n\tname = b\n"
                     "[url \"https://" REASON_HOST "/\"] insteadOf = https://\n"
                     "[url \"https://localhost\"] insteadOf = https://localhost\n"
                     "[safe]\n\tdirectory = *");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("npmrc", "fund=false\n");
    check_is("pip.conf", "[global]\ntimeout = 9\n");
    check_is("gitconfig", "[user]\n\tname = b\n[safe]\n\tdirectory = *\n");
    assert_false(is_there(".cloister-network"));
}

static void own(const char *name, mode_t mode)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_int_equal(chmod(path, mode), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(path, 1234, 2345), 0);
}

static void check_own(const char *name, mode_t mode)
{
    struct stat found;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_int_equal(lstat(path, &found), 0);
    assert_int_equal(found.st_mode & 07777, mode);
    assert_int_equal(found.st_uid, geteuid() == 0 ? 1234 : geteuid());
    if (geteuid() == 0)
        assert_int_equal(found.st_gid, 2345);
}

static void a_file_keeps_its_mode_and_owner(void **state)
{
    (void)state;
    put("gitconfig", "[http]\n\textraHeader = secret\n");
    put("nsswitch.conf", "hosts: files dns\n");
    put("resolv.conf", "nameserver 127.0.0.1\n");
    own("gitconfig", 0600);
    own("nsswitch.conf", 0640);
    own("resolv.conf", 0664);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("gitconfig", REASON_HOST);
    check_own("gitconfig", 0600);
    check_own("nsswitch.conf", 0640);
    check_own("resolv.conf", 0664);
    put("npmrc", "registry=https://" REASON_HOST "/\n_authToken=secret\n"); /* the guest's now */
    own("npmrc", 0400);
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("npmrc", "_authToken=secret\n");
    check_own("npmrc", 0400);
    check_own("gitconfig", 0600);
    check_own("nsswitch.conf", 0640);
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    check_own("resolv.conf", 0664);
}

/* What is read through a link is not shown to more than the file that it leads to. */
static void a_copy_of_what_a_link_leads_to_is_as_private_as_that(void **state)
{
    (void)state;
    char path[128];

    put("elsewhere", "[http]\n\textraHeader = secret\n");
    own("elsewhere", 0600);
    (void)snprintf(path, sizeof path, "%s/gitconfig", etc);
    assert_int_equal(symlink("elsewhere", path), 0);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("gitconfig", "secret");
    check_has("gitconfig", REASON_HOST);
    check_own("gitconfig", 0600);
}

static void a_new_file_can_be_read_by_all_whatever_the_umask(void **state)
{
    (void)state;
    mode_t before = umask(077);
    struct stat found;
    char path[128];

    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    umask(before);
    (void)snprintf(path, sizeof path, "%s/motd", etc);
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 07777, 0644);
}

#define NAMES STR("mirror.internal\ngit.internal\n")

static void check_lacks(const char *name, const char *unwanted)
{
    char path[128];
    auto_free char *text = NULL;
    size_t len;
    struct err err;

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_true(fd_read_file(AT_FDCWD, path, 4096, &text, &len, &err));
    assert_null(strstr(text, unwanted));
}

static void put_link(const char *name, const char *target)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_int_equal(symlink(target, path), 0);
}

static void check_link(const char *name, const char *target)
{
    char path[128], found[128] = "";

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    assert_true(readlink(path, found, sizeof found - 1) > 0);
    assert_string_equal(found, target);
}

/* A file beside `etc`, as a path that a link can have. */
static void put_outside(const char *text, char path[64])
{
    (void)snprintf(path, 64, "/tmp/network_test_outside.XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void a_link_out_of_etc_is_not_followed(void **state)
{
    (void)state;
    char git[64], hosts[64], names[64], above[80];

    put_outside("[user]\n\tname = a\n", git);
    put_outside("hosts: files dns\n", hosts);
    put_outside("nameserver 192.0.2.1\n", names);
    (void)snprintf(above, sizeof above, "..%s", hosts + strlen("/tmp"));
    put_link("gitconfig", git);
    put_link("nsswitch.conf", above);
    put_link("resolv.conf", names);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_link("gitconfig", git);
    check_link("nsswitch.conf", above);
    check_has("resolv.conf", "Internet access is off"); /* is replaced unread */
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_link("gitconfig", git);
    check_link("nsswitch.conf", above);
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    check_lacks("resolv.conf", "192.0.2.1");
    assert_false(is_there(".cloister-network"));
    unlink(git);
    unlink(hosts);
    unlink(names);
}

/* `apt` and `.cloister-network` lead to a directory beside `etc`, with what could be removed and where to write. */
static void nothing_changes_where_a_link_in_place_of_a_directory_leads(void **state)
{
    (void)state;
    char outside[64], motd[128], apt[128], conf[160], link[128];

    (void)snprintf(outside, sizeof outside, "/tmp/network_test_outside.XXXXXX");
    assert_non_null(mkdtemp(outside));
    (void)snprintf(motd, sizeof motd, "%s/motd", outside);
    (void)snprintf(apt, sizeof apt, "%s/apt.conf.d", outside);
    (void)snprintf(conf, sizeof conf, "%s/90cloister-network", apt);
    (void)snprintf(link, sizeof link, "%s/.cloister-network", etc);
    assert_int_equal(mkdir(apt, 0755), 0);
    assert_int_equal(symlink("nowhere", motd), 0);
    put_link("apt", outside);
    put_link(".cloister-network", outside);
    put("motd", "welcome\n");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("motd", "welcome\n");
    assert_int_equal(unlink(link), 0);
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("motd", "Internet access is off");
    int written = remove(conf), kept = remove(motd);
    assert_int_equal(rmdir(apt), 0);
    assert_int_equal(rmdir(outside), 0);
    assert_int_equal(written, -1);
    assert_int_equal(kept, 0);
}

/* It is a regular file of ours, and another one for each process. */
static void a_link_to_proc_shows_nothing_of_ours(void **state)
{
    (void)state;
    put_link("gitconfig", "/proc/self/status");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_link("gitconfig", "/proc/self/status");
}

static void a_file_that_is_too_long_is_not_read(void **state)
{
    (void)state;
    static const char *const names[] = { "gitconfig", "nsswitch.conf", "resolv.conf", "npmrc" };
    struct stat found;
    char path[128];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        put(names[i], "");
        (void)snprintf(path, sizeof path, "%s/%s", etc, names[i]);
        assert_int_equal(truncate(path, 1LL << 40), 0); /* has no blocks, so it costs nothing */
    }
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("resolv.conf", "Internet access is off");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", etc, names[i]);
        assert_int_equal(stat(path, &found), 0);
        assert_true(i == 2 ? found.st_size < 4096 : found.st_size == 1LL << 40);
    }
}

static void names_that_stay_inside_are_looked_up(void **state)
{
    (void)state;
    make_dir("apt");
    make_dir("apt/apt.conf.d");
    put("nsswitch.conf", "hosts: files dns\n");
    put("resolv.conf", "nameserver 192.0.2.1\n");
    put("gitconfig", "[user]\n\tname = a\n");
    network_tell(etc, GUESTLINK_INSIDE, NAMES);
    check_is("nsswitch.conf", "hosts: files dns\n");
    check_has("resolv.conf", "Internet access is off");
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    check_has("motd", "services that its operator provides");
    check_has("apt/apt.conf.d/90cloister-network", "Acquire::Retries \"0\"");
    check_has("apt/apt.conf.d/90cloister-network", "\nAcquire::http::Proxy \"http://" REASON_HOST "\";\n");
    check_has("apt/apt.conf.d/90cloister-network", "\nAcquire::http::Proxy::mirror.internal \"DIRECT\";\n");
    check_has("apt/apt.conf.d/90cloister-network", "\nAcquire::https::Proxy::git.internal \"DIRECT\";\n");
    check_has("pip.conf", "\nindex-url = https://" REASON_HOST);
    check_has("npmrc", "\nregistry=https://" REASON_HOST);
    check_has("gitconfig", "\n[url \"https://" REASON_HOST "/\"] insteadOf = https://\n");
    check_has("gitconfig", "\n[url \"https://git.internal\"] insteadOf = https://git.internal\n");
    put("motd", "welcome\n");
    network_tell(etc, GUESTLINK_INSIDE, NAMES); /* the same again: nothing is written */
    check_is("motd", "welcome\n");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("resolv.conf", "nameserver 192.0.2.1\n");
    check_is("gitconfig", "[user]\n\tname = a\n");
    check_is("motd", "welcome\n");
    assert_false(is_there("pip.conf") || is_there("npmrc") || is_there("apt/apt.conf.d/90cloister-network"));
    assert_false(is_there(".cloister-network"));
}

static void programs_whose_usual_host_is_inside_keep_it(void **state)
{
    (void)state;
    network_tell(etc, GUESTLINK_INSIDE, STR("pypi.org\n"));
    check_lacks("pip.conf", REASON_HOST);
    check_has("pip.conf", "[global]\nretries = 1\n");
    check_has("npmrc", "registry=https://" REASON_HOST);
    network_tell(etc, GUESTLINK_INSIDE, STR("registry.npmjs.org\n"));
    check_has("pip.conf", REASON_HOST);
    check_lacks("npmrc", REASON_HOST);
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    assert_false(is_there("pip.conf") || is_there("npmrc") || is_there(".cloister-network"));
}

static void an_operator_who_adds_or_removes_such_names_is_followed(void **state)
{
    (void)state;
    put("nsswitch.conf", "hosts: files dns\n");
    put("resolv.conf", "nameserver 192.0.2.1\n");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    network_tell(etc, GUESTLINK_INSIDE, STR("one.more\n"));
    network_tell(etc, GUESTLINK_INSIDE, NAMES);
    check_has("gitconfig", "https://git.internal");
    check_lacks("gitconfig", "one.more");
    check_is("nsswitch.conf", "hosts: files dns\n");
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    network_tell(etc, GUESTLINK_NOTHING, STR(""));
    check_has("nsswitch.conf", "\nhosts: files\n");
    check_has("resolv.conf", "\nnameserver 127.0.0.1\n");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("nsswitch.conf", "hosts: files dns\n");
    check_is("resolv.conf", "nameserver 192.0.2.1\n");
    assert_false(is_there("motd") || is_there("gitconfig") || is_there(".cloister-network"));
}

static void with_internet_access_a_name_server_outside_is_named(void **state)
{
    (void)state;
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    assert_false(is_there("motd") || is_there("nsswitch.conf"));
    put("resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
    put("resolv.conf", "search example.com\nnameserver 127.0.0.53\nnameserver\t192.0.2.1\n");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_is("resolv.conf", "search example.com\nnameserver 127.0.0.53\nnameserver\t192.0.2.1\n");
}

static void append(const char *name, const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", etc, name);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void lines_of_the_guest_in_resolv_conf_stay(void **state)
{
    (void)state;
    static const struct {
        enum guestlink_reach reach;
        const char *inside;
    } offs[] = { { GUESTLINK_NOTHING, "" }, { GUESTLINK_INSIDE, "mirror.internal\n" } };

    for (size_t i = 0; i < COUNT_OF(offs); i++) {
        put("resolv.conf", "nameserver 192.0.2.1\n");
        network_tell(etc, offs[i].reach, str_from(offs[i].inside));
        append("resolv.conf", "search corp.example\nnameserver 127.0.0.53\n");
        network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
        check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\n");
        check_has("resolv.conf", "\nsearch corp.example\nnameserver 127.0.0.53\n");
        check_lacks("resolv.conf", "Internet access is off");
        check_lacks("resolv.conf", "timeout:1 ");
        assert_false(is_there(".cloister-network"));
        network_tell(etc, GUESTLINK_OUTSIDE, STR("")); /* the same again: nothing is written */
        network_tell(etc, offs[i].reach, str_from(offs[i].inside));
        check_lacks("resolv.conf", "corp.example");
        network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
        check_has("resolv.conf", "\noptions timeout:3 attempts:2\nsearch corp.example\nnameserver 127.0.0.53\n");
    }
}

static void repeat(const char *line, size_t times, struct buf *out)
{
    while (times--)
        buf_add(out, str_from(line));
    buf_add_char(out, '\0');
}

/* Each line of the guest's would be compared with lines for each of these names. */
static void a_list_of_more_names_than_there_can_be_is_not_used(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        auto_buf struct buf names = buf_make(NULL, LIMIT_INSIDE_BYTES);
        repeat("git.internal\n", LIMIT_INSIDE + i, &names);
        network_tell(etc, GUESTLINK_INSIDE, STR("git.internal\n"));
        append("gitconfig", "[user] name = a\n");
        put(".cloister-network/inside", names.data);
        network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
        if (i == 0)
            check_is("gitconfig", "[user] name = a\n");
        else
            check_has("gitconfig", "[url \"https://git.internal\"] insteadOf = https://git.internal\n");
        check_has("gitconfig", "[user] name = a\n");
        check_lacks("gitconfig", REASON_HOST);
        assert_false(is_there(".cloister-network"));
    }
}

/* Before three others, which are as many as the C library asks. */
static void the_server_that_is_added_comes_first(void **state)
{
    (void)state;
    put("resolv.conf", "nameserver 127.0.0.1\nnameserver 127.0.0.2\nnameserver ::1");
    network_tell(etc, GUESTLINK_OUTSIDE, STR(""));
    check_has("resolv.conf", "\nnameserver " NETWORK_NAMESERVER "\noptions timeout:3 attempts:2\n"
                             "nameserver 127.0.0.1\nnameserver 127.0.0.2\nnameserver ::1");
}

static void a_name_server_is_recognised(void **state)
{
    (void)state;
    static const char *const outside[] = { "nameserver 192.0.2.1", " nameserver  2001:db8::1 \n",
                                           "a\nnameserver 10.0.0.1\n" };
    static const char *const none[] = { "",
                                        "nameserver 127.0.0.53",
                                        "nameserver ::1",
                                        "#nameserver 192.0.2.1",
                                        "nameserver",
                                        "nameserver example.com",
                                        "nameservers 192.0.2.1",
                                        "nameserver 0.0.0.0",
                                        "nameserver192.0.2.1" };
    for (size_t i = 0; i < COUNT_OF(outside); i++)
        assert_true(network_has_nameserver(str_from(outside[i])));
    for (size_t i = 0; i < COUNT_OF(none); i++)
        assert_false(network_has_nameserver(str_from(none[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_from_files_alone_and_the_rest_stays),
        cmocka_unit_test_setup_teardown(programs_are_told_in_etc, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(what_a_template_says_to_pip_and_npm_stays, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_templates_link_for_npm_stays, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_template_without_these_files_gets_them, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_link_is_replaced_and_not_followed, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(what_is_no_file_holds_nobody_up, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_read_leaves_the_others_to_be_written, make_etc,
                                        remove_etc),
        cmocka_unit_test_setup_teardown(the_templates_own_files_come_back, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_file_that_the_guest_has_changed_stays, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(what_a_template_says_to_git_stays_and_comes_back, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(of_a_file_that_a_program_has_changed_only_our_lines_go, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_file_keeps_its_mode_and_owner, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_copy_of_what_a_link_leads_to_is_as_private_as_that, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_new_file_can_be_read_by_all_whatever_the_umask, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_link_out_of_etc_is_not_followed, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(nothing_changes_where_a_link_in_place_of_a_directory_leads, make_etc,
                                        remove_etc),
        cmocka_unit_test_setup_teardown(a_link_to_proc_shows_nothing_of_ours, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_file_that_is_too_long_is_not_read, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(names_that_stay_inside_are_looked_up, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(programs_whose_usual_host_is_inside_keep_it, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(an_operator_who_adds_or_removes_such_names_is_followed, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(with_internet_access_a_name_server_outside_is_named, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(lines_of_the_guest_in_resolv_conf_stay, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(a_list_of_more_names_than_there_can_be_is_not_used, make_etc, remove_etc),
        cmocka_unit_test_setup_teardown(the_server_that_is_added_comes_first, make_etc, remove_etc),
        cmocka_unit_test(a_name_server_is_recognised),
        cmocka_unit_test_setup_teardown(a_write_that_fails_leaves_the_old_file_and_no_draft, make_etc, remove_etc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
