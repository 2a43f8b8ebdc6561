#include "isolation/native/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

/* Debian 12 and later, Ubuntu 22.04 and later. */
#define V2_MOUNTS                                                                             \
    "24 30 0:22 / /proc rw,nosuid shared:12 - proc proc rw\n"                                 \
    "26 25 0:23 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 " \
    "rw,nsdelegate,memory_recursiveprot\n"                                                    \
    "29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
#define V2_OWN "0::/system.slice/cloister.service\n"

/* An older host; cpu and cpuacct share a tree, memory has us in a cgroup of somebody's. */
#define V1_MOUNTS                                                                                  \
    "31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"                   \
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct\n" \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory\n"           \
    "39 31 0:36 / /sys/fs/cgroup/pids rw,nosuid shared:12 - cgroup cgroup rw,pids\n"
#define V1_OWN                  \
    "8:pids:/user.slice\n"      \
    "4:memory:/jobs/558fcc51\n" \
    "1:cpu,cpuacct:/\n"
#define HYBRID_MOUNTS V1_MOUNTS "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"

static void report(struct cgroup_report *out, struct str mounts, struct str own, struct str controllers)
{
    cgroup_read_report(mounts, own, controllers, out);
}

static void one_tree_is_v2_and_begins_at_the_mount(void **state)
{
    (void)state;
    struct cgroup_report found;
    char missing[64];

    report(&found, STR(V2_MOUNTS), STR(V2_OWN), STR("cpuset cpu io memory hugetlb pids rdma misc\n"));
    assert_int_equal(found.layout, CGROUP_V2);
    for (int i = 0; i < CGROUP_CONTROL_COUNT; i++)
        assert_string_equal(found.base[i], "/sys/fs/cgroup");
    cgroup_missing(&found, missing, sizeof missing);
    assert_string_equal(missing, "");
}

static void a_controller_that_v2_lacks_is_named(void **state)
{
    (void)state;
    struct cgroup_report found;
    char missing[64];

    report(&found, STR(V2_MOUNTS), STR(V2_OWN), STR("cpuset cpu io\n"));
    cgroup_missing(&found, missing, sizeof missing);
    assert_string_equal(missing, "memory, pids");
}

static void trees_of_v1_begin_where_we_are(void **state)
{
    (void)state;
    struct cgroup_report found;

    report(&found, STR(V1_MOUNTS), STR(V1_OWN), STR(""));
    assert_int_equal(found.layout, CGROUP_V1);
    assert_string_equal(found.base[CGROUP_MEMORY], "/sys/fs/cgroup/memory/jobs/558fcc51");
    assert_string_equal(found.base[CGROUP_CPU], "/sys/fs/cgroup/cpu,cpuacct");
    assert_string_equal(found.base[CGROUP_PIDS], "/sys/fs/cgroup/pids/user.slice");
}

static void hybrid_uses_the_trees_of_v1(void **state)
{
    (void)state;
    struct cgroup_report found;

    report(&found, STR(HYBRID_MOUNTS), STR(V1_OWN "0::/\n"), STR("hugetlb\n"));
    assert_int_equal(found.layout, CGROUP_HYBRID);
    assert_string_equal(found.v2_mount, "/sys/fs/cgroup/unified");
    assert_string_equal(found.base[CGROUP_MEMORY], "/sys/fs/cgroup/memory/jobs/558fcc51");
    assert_string_equal(found.base[CGROUP_PIDS], "/sys/fs/cgroup/pids/user.slice");
}

#define FREEZER_MOUNT "43 31 0:39 / /sys/fs/cgroup/freezer rw,nosuid - cgroup cgroup rw,freezer\n"

static void the_freezer_is_that_of_v2_where_there_is_one(void **state)
{
    (void)state;
    struct cgroup_report found;

    report(&found, STR(V2_MOUNTS), STR(V2_OWN), STR("cpu memory pids\n"));
    assert_int_equal(found.freezer, CGROUP_FREEZER_V2);
    report(&found, STR(HYBRID_MOUNTS FREEZER_MOUNT), STR(V1_OWN "3:freezer:/jobs\n0::/\n"), STR(""));
    assert_int_equal(found.freezer, CGROUP_FREEZER_BESIDE);
    assert_string_equal(found.base[CGROUP_FREEZER],
                        "/sys/fs/cgroup/freezer/jobs"); /* if v2's turns out to be too old */
    report(&found, STR(HYBRID_MOUNTS), STR(V1_OWN "0::/\n"), STR(""));
    assert_int_equal(found.freezer, CGROUP_FREEZER_BESIDE);
    assert_string_equal(found.base[CGROUP_FREEZER], "");
    report(&found, STR(V1_MOUNTS FREEZER_MOUNT), STR(V1_OWN "3:freezer:/\n"), STR(""));
    assert_int_equal(found.freezer, CGROUP_FREEZER_V1);
    assert_string_equal(found.base[CGROUP_FREEZER], "/sys/fs/cgroup/freezer");
}

static void sandboxes_do_not_need_a_freezer(void **state)
{
    (void)state;
    struct cgroup_report found;
    char missing[64];

    report(&found, STR(V1_MOUNTS), STR(V1_OWN), STR(""));
    assert_int_equal(found.freezer, CGROUP_FREEZER_NONE);
    cgroup_missing(&found, missing, sizeof missing);
    assert_string_equal(missing, "");
}

static void a_tree_mounted_from_below_counts_from_there(void **state)
{
    (void)state;
    struct cgroup_report found;

    /* A container without a cgroup namespace: its own cgroup is what it sees at the mount point. */
    report(&found,
           STR("35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"
               "36 31 0:33 /elsewhere /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids\n"),
           STR("4:memory:/docker/abc/inner\n5:pids:/docker/abc\n"), STR(""));
    assert_string_equal(found.base[CGROUP_MEMORY], "/sys/fs/cgroup/memory/inner");
    assert_string_equal(found.base[CGROUP_PIDS], ""); /* we are not below what is mounted: not usable */
}

static void a_host_without_cgroups_lacks_everything(void **state)
{
    (void)state;
    struct cgroup_report found;
    char missing[64];

    report(&found, STR("24 30 0:22 / /proc rw - proc proc rw\ngarbage\n\n"), STR(""), STR(""));
    assert_int_equal(found.layout, CGROUP_NONE);
    cgroup_missing(&found, missing, sizeof missing);
    assert_string_equal(missing, "memory, cpu, pids");
}

static const char *value_of(const struct cgroup_knob *knobs, size_t count, const char *file)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(knobs[i].file, file))
            return knobs[i].value;
    return "none";
}

static void limits_become_knobs(void **state)
{
    (void)state;
    const struct cgroup_limits limits = { .memory_bytes = 512 << 20, .cpu_millis = 1500, .pids = 77 };
    struct cgroup_knob knobs[CGROUP_KNOBS_MAX];
    size_t count = cgroup_knobs(CGROUP_V2, &limits, knobs);

    assert_string_equal(value_of(knobs, count, "memory.max"), "536870912");
    assert_string_equal(value_of(knobs, count, "memory.swap.max"), "0");
    assert_string_equal(value_of(knobs, count, "cpu.max"), "150000 100000");
    assert_string_equal(value_of(knobs, count, "pids.max"), "77");
    count = cgroup_knobs(CGROUP_V1, &limits, knobs);
    assert_string_equal(value_of(knobs, count, "memory.limit_in_bytes"), "536870912");
    assert_string_equal(value_of(knobs, count, "memory.memsw.limit_in_bytes"), "536870912");
    assert_string_equal(value_of(knobs, count, "memory.kmem.tcp.limit_in_bytes"), "67108864");
    assert_string_equal(value_of(knobs, count, "cpu.cfs_quota_us"), "150000");
    assert_string_equal(value_of(knobs, count, "pids.max"), "77");
}

/* A file without a name, with that text. */
static int a_file(const char *text)
{
    FILE *file = tmpfile();

    assert_non_null(file);
    int fd = dup(fileno(file));
    assert_true(fd >= 0 && pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
    (void)fclose(file);
    return fd;
}

static void check_text(int fd, const char *want)
{
    char room[64] = "";

    assert_true(pread(fd, room, sizeof room - 1, 0) >= 0);
    assert_string_equal(room, want);
}

/* The kernel would kill until it fits. */
static void on_v2_no_limit_is_set_below_what_is_in_use(void **state)
{
    (void)state;
    struct cgroup_limits limits = { .memory_bytes = 4000, .cpu_millis = 1500, .pids = 77 };
    struct cgroup_reins reins = {
        .layout = CGROUP_V2, .events_fd = -1, .current_fd = a_file("4001\n"), .reclaim_fd = a_file("")
    };
    struct cgroup_knob knobs[CGROUP_KNOBS_MAX];
    struct err err;

    reins.count = cgroup_knobs(CGROUP_V2, &limits, knobs);
    for (size_t i = 0; i < reins.count; i++) {
        reins.fds[i] = a_file("");
        reins.above_fds[i] = -1;
    }
    assert_false(cgroup_tighten(&reins, &limits, &err));
    assert_int_equal(err.sys, EBUSY);
    check_text(reins.reclaim_fd, "1");
    for (size_t i = 0; i < reins.count; i++)
        check_text(reins.fds[i], "");
    limits.memory_bytes = 4001;
    assert_true(cgroup_tighten(&reins, &limits, &err));
    check_text(reins.fds[0], "4001");
    cgroup_close_reins(&reins);
    assert_int_equal(reins.current_fd, -1);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(one_tree_is_v2_and_begins_at_the_mount),
        CASE(a_controller_that_v2_lacks_is_named),
        CASE(trees_of_v1_begin_where_we_are),
        CASE(hybrid_uses_the_trees_of_v1),
        CASE(the_freezer_is_that_of_v2_where_there_is_one),
        CASE(sandboxes_do_not_need_a_freezer),
        CASE(a_tree_mounted_from_below_counts_from_there),
        CASE(a_host_without_cgroups_lacks_everything),
        CASE(limits_become_knobs),
        CASE(on_v2_no_limit_is_set_below_what_is_in_use),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
