#include "privsep/confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_SANITIZER true
#elif defined(__has_feature)
#define HAS_SANITIZER __has_feature(address_sanitizer)
#else
#define HAS_SANITIZER false
#endif

enum { CAPABILITIES_MAX = 64 }; /* more than any kernel has */

static bool permitted_is_empty(void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

    return syscall(SYS_capget, &header, sets) == 0 && sets[0].permitted == 0 && sets[1].permitted == 0;
}

bool confine_drop_bounding_set(struct err *err)
{
    for (unsigned capability = 0; capability < CAPABILITIES_MAX; capability++) {
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
            continue;
        if (errno == EINVAL)
            return true; /* past the last one */
        return err_sys(err, "drop capability %u from the bounding set", capability);
    }
    return true;
}

bool confine_drop_all_capabilities(struct err *err)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

    /* EPERM: without CAP_SETPCAP the bounding set stays as it is. With no_new_privs it has no effect. */
    if (!permitted_is_empty() && !confine_drop_bounding_set(err) && err->sys != EPERM)
        return false;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return err_sys(err, "clear ambient capabilities");
    if (syscall(SYS_capset, &header, none) < 0)
        return err_sys(err, "drop capabilities");
    if (!permitted_is_empty())
        return err_set(err, ERR_INTERNAL, "capabilities are left after dropping all");
    return true;
}

bool confine_no_new_privileges(struct err *err)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(err, "set no_new_privs");
    return true;
}

bool confine_hide_memory(struct err *err)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return err_sys(err, "PR_SET_DUMPABLE");
    return true;
}

static bool add_rules(scmp_filter_ctx filter, const struct confine_rule *rules, struct err *err)
{
    for (size_t i = 0; rules[i].call; i++) {
        int number = seccomp_syscall_resolve_name(rules[i].call);
        if (number < 0)
            continue;
        struct scmp_arg_cmp wanted[2];
        unsigned count = 0;
        if (rules[i].first)
            wanted[count++] = SCMP_A0(SCMP_CMP_EQ, rules[i].first);
        if (rules[i].only)
            wanted[count++] = SCMP_A1(SCMP_CMP_EQ, rules[i].only);
        int failed = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, number, count, wanted);
        if (failed)
            return err_sys_num(err, -failed, "seccomp rule for %s", rules[i].call);
    }
    return true;
}

static bool export_filter(scmp_filter_ctx filter, struct confine_filter *out, struct err *err)
{
    auto_close int fd = memfd_create("seccomp", MFD_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "memfd_create");
    int failed = seccomp_export_bpf(filter, fd);
    if (failed)
        return err_sys_num(err, -failed, "compile the seccomp filter");
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, "read the seccomp filter");
    return fd_read_all(fd, BPF_MAXINSNS * sizeof(struct sock_filter), &out->program, &out->len, err);
}

bool confine_compile_seccomp(const struct confine_rule *rules, struct confine_filter *out, struct err *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));

    if (!filter)
        return err_set(err, ERR_INTERNAL, "libseccomp cannot make a filter");
    bool fine = add_rules(filter, rules, err) && export_filter(filter, out, err);
    seccomp_release(filter);
    return fine;
}

void confine_filter_done(struct confine_filter *filter)
{
    free(filter->program);
    *filter = (struct confine_filter){ 0 };
}

bool confine_load_filter(const struct confine_filter *filter, struct err *err)
{
    const struct sock_fprog program = { .len = (unsigned short)(filter->len / sizeof(struct sock_filter)),
                                        .filter = (struct sock_filter *)filter->program };

    if (!confine_no_new_privileges(err))
        return false;
    long failed = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (failed < 0)
        return err_sys(err, "load the seccomp filter");
    /* The id of a thread that has a filter of its own. */
    return failed == 0 || err_set(err, ERR_INTERNAL, "the seccomp filter is not for all threads");
}

bool confine_load_seccomp(const struct confine_rule *rules, struct err *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));

    if (!filter)
        return err_set(err, ERR_INTERNAL, "libseccomp cannot make a filter");
    bool fine = add_rules(filter, rules, err);
    /* A library may have started threads already. The filter is for them too. */
    if (fine && seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1) != 0)
        fine = err_set(err, ERR_INTERNAL, "libseccomp cannot apply a filter to all threads");
    if (fine) {
        int failed = seccomp_load(filter); /* sets no_new_privs itself */
        if (failed)
            fine = err_sys_num(err, -failed, "load the seccomp filter");
    }
    seccomp_release(filter);
    return fine;
}

/* All rights on files that both this version of Landlock and our headers know. */
static uint64_t file_rights(int version)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE |
                      LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                      LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                      LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |
                      LANDLOCK_ACCESS_FS_MAKE_SYM;

#ifdef LANDLOCK_ACCESS_FS_REFER
    if (version >= 2)
        rights |= LANDLOCK_ACCESS_FS_REFER;
#endif
#ifdef LANDLOCK_ACCESS_FS_TRUNCATE
    if (version >= 3)
        rights |= LANDLOCK_ACCESS_FS_TRUNCATE;
#endif
    return rights;
}

/* A rule for a file must not have rights on directories. */
static bool allow_reading(int rules, int fd)
{
    struct stat st;
    struct landlock_path_beneath_attr rule = { .allowed_access = LANDLOCK_ACCESS_FS_READ_FILE, .parent_fd = fd };

    if (fstat(fd, &st) < 0)
        return false;
    if (S_ISDIR(st.st_mode))
        rule.allowed_access |= LANDLOCK_ACCESS_FS_READ_DIR;
    return syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
}

bool confine_files(int dir_fd, bool *out_done, struct err *err)
{
    return confine_files_and_read(dir_fd, NULL, 0, out_done, err);
}

bool confine_files_and_read(int dir_fd, const int *read_fds, uint32_t read_count, bool *out_done, struct err *err)
{
    int version = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

    if (version < 0) {
        *out_done = false; /* the kernel was built or booted without it */
        return true;
    }
    const struct landlock_ruleset_attr all = { .handled_access_fs = file_rights(version) };
    auto_close int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    const struct landlock_path_beneath_attr below = {
        .allowed_access =
            all.handled_access_fs & ~(uint64_t)(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                                LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SOCK),
        .parent_fd = dir_fd,
    };
    for (uint32_t i = 0; rules >= 0 && i < read_count; i++)
        if (!allow_reading(rules, read_fds[i]))
            return err_sys(err, "allow to read a file by Landlock");
    if (rules < 0 ||
        (dir_fd >= 0 && syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0) < 0) ||
        syscall(SYS_landlock_restrict_self, rules, 0) < 0)
        return err_sys(err, "load the Landlock rules");
    *out_done = true;
    return true;
}

static bool limit_one(int resource, const char *name, uint64_t most, struct err *err)
{
    const struct rlimit limit = { .rlim_cur = most, .rlim_max = most };

    if (setrlimit((__rlimit_resource_t)resource, &limit) < 0)
        return err_sys(err, "limit %s", name);
    return true;
}

bool confine_limit(const struct confine_limits *limits, struct err *err)
{
    const bool limits_memory = limits->memory_bytes != 0 && !HAS_SANITIZER;

    return (!limits_memory || limit_one(RLIMIT_AS, "memory", limits->memory_bytes, err)) &&
           (!limits->cpu_s || limit_one(RLIMIT_CPU, "CPU time", limits->cpu_s, err)) &&
           (!limits->files || limit_one(RLIMIT_NOFILE, "open files", limits->files, err)) &&
           (!limits->no_file_data || limit_one(RLIMIT_FSIZE, "the size of files", 0, err)) &&
           limit_one(RLIMIT_CORE, "core dumps", 0, err);
}

bool confine_raise_files(unsigned long *out_files, struct err *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_sys(err, "read the limit of open files");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_sys(err, "raise the limit of open files");
    *out_files = limit.rlim_cur;
    return true;
}
