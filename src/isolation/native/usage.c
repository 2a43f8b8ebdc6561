#include "isolation/native/usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

enum {
    FILE_BYTES = 8192,     /* memory.stat has some 60 short lines */
    ASIDE_BYTES = 1 << 20, /* where fewer are charged, it does not matter what processors have put aside */
    STAT_LINE_BYTES = 1024,
    ADDED_UP_MAX = 256, /* processes of one sandbox; the figure is then too low, but keeper is not held up */
};

/* ---- text ---- */

bool usage_field(struct str text, struct str name, uint64_t *out)
{
    struct str line, word;

    while (text.len && str_cut(&text, '\n', &line))
        if (str_cut(&line, ' ', &word) && str_eq(word, name))
            return str_to_u64(line, UINT64_MAX, out);
    return false;
}

bool usage_process_parse(struct str line, struct usage_process *out)
{
    /* Field 2 is a name in brackets that may hold blanks and brackets itself: the last bracket ends it. */
    const char *end = line.len ? memrchr(line.at, ')', line.len) : NULL;
    uint64_t fields[25] = { 0 };
    struct str word;

    if (!end)
        return false;
    struct str rest = str_of(end + 1, (size_t)(line.at + line.len - end - 1));
    if (!str_skip(&rest, STR(" ")))
        return false;
    for (unsigned field = 3; field < COUNT_OF(fields); field++) {
        if (!rest.len || !str_cut(&rest, ' ', &word))
            return false;
        /* utime, stime, cutime, cstime, rss; others are letters or may be negative */
        if (((field >= 14 && field <= 17) || field == 24) && !str_to_u64(word, INT64_MAX, &fields[field]))
            return false;
    }
    *out = (struct usage_process){
        .own_ticks = fields[14] + fields[15],
        .children_ticks = fields[16] + fields[17],
        .resident_pages = fields[24],
    };
    return true;
}

/* ---- files ---- */

static bool read_process(pid_t pid, struct usage_process *out)
{
    char path[32], line[STAT_LINE_BYTES];

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line);
    return n > 0 && usage_process_parse(str_of(line, (size_t)n), out);
}

static uint64_t ticks_to_us(uint64_t ticks)
{
    return ticks * (1000000 / (uint64_t)sysconf(_SC_CLK_TCK));
}

static bool read_number(const struct cgroups *cgroups, const char *id, enum cgroup_control control, const char *file,
                        uint64_t *out, struct err *err)
{
    char room[64];
    struct str text, line;

    if (!cgroup_read(cgroups, id, control, file, room, sizeof room, &text, err))
        return false;
    return (str_cut(&text, '\n', &line) && str_to_u64(line, UINT64_MAX, out)) ||
           err_set(err, ERR_INTERNAL, "%s of %s is no number", file, id);
}

struct sum {
    uint64_t ticks;
    unsigned count;
};

static bool add_process(void *context, pid_t pid)
{
    struct sum *sum = context;
    struct usage_process process;

    if (read_process(pid, &process)) /* else it has just gone, and is in its parent's sum */
        sum->ticks += process.own_ticks + process.children_ticks;
    return ++sum->count < ADDED_UP_MAX;
}

static bool v1_cpu(const struct cgroups *cgroups, const char *id, const struct usage_process *guestd, uint64_t *out_us,
                   struct err *err)
{
    uint64_t ns;

    if (read_number(cgroups, id, CGROUP_CPU, "user/cpuacct.usage", &ns, err)) {
        *out_us = ns / 1000 + ticks_to_us(guestd->own_ticks);
        return true;
    }
    struct sum sum = { .ticks = guestd->own_ticks + guestd->children_ticks };
    (void)cgroup_each_user(cgroups, id, add_process, &sum);
    *out_us = ticks_to_us(sum.ticks);
    return true;
}

/* What is in use, and what of it the kernel can reclaim: file pages, except tmpfs pages, which have no copy on disk. */
static void split_memory(uint64_t used, uint64_t file, uint64_t shmem, struct usage *out)
{
    uint64_t cache = file > shmem ? file - shmem : 0;

    cache = MIN(cache, used); /* the two were not read at the same moment */
    out->memory_cache_bytes = cache;
    out->memory_used_bytes = used - cache;
}

static bool read_v1(const struct cgroups *cgroups, const char *id, pid_t guestd_pid, struct usage *out, struct err *err)
{
    struct usage_process guestd;
    uint64_t used, cache, shmem;
    char room[FILE_BYTES];
    struct str text;

    if (!read_process(guestd_pid, &guestd))
        return err_set(err, ERR_NOT_FOUND, "guestd of sandbox %s has gone", id);
    if (!v1_cpu(cgroups, id, &guestd, &out->cpu_us, err) ||
        !read_number(cgroups, id, CGROUP_MEMORY, "user/memory.usage_in_bytes", &used, err) ||
        !cgroup_read(cgroups, id, CGROUP_MEMORY, "user/memory.stat", room, sizeof room, &text, err))
        return false;
    if (!usage_field(text, STR("total_cache"), &cache) || !usage_field(text, STR("total_shmem"), &shmem) ||
        !usage_field(text, STR("hierarchical_memory_limit"), &out->memory_limit_bytes))
        return err_set(err, ERR_INTERNAL, "memory.stat of %s lacks a line", id);
    split_memory(used, cache, shmem, out);
    out->memory_used_bytes += guestd.resident_pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return true;
}

static bool read_v2(const struct cgroups *cgroups, const char *id, struct usage *out, struct err *err)
{
    uint64_t used, file, shmem;
    char room[FILE_BYTES];
    struct str text;

    if (!cgroup_read(cgroups, id, CGROUP_CPU, "cpu.stat", room, sizeof room, &text, err))
        return false;
    if (!usage_field(text, STR("usage_usec"), &out->cpu_us))
        return err_set(err, ERR_INTERNAL, "cpu.stat of %s lacks a line", id);
    if (!read_number(cgroups, id, CGROUP_MEMORY, "memory.current", &used, err) ||
        !read_number(cgroups, id, CGROUP_MEMORY, "user/memory.max", &out->memory_limit_bytes, err) ||
        !cgroup_read(cgroups, id, CGROUP_MEMORY, "memory.stat", room, sizeof room, &text, err))
        return false;
    if (!usage_field(text, STR("file"), &file) || !usage_field(text, STR("shmem"), &shmem))
        return err_set(err, ERR_INTERNAL, "memory.stat of %s lacks a line", id);
    split_memory(used, file, shmem, out);
    return true;
}

/* kernel: on v2 only. */
static bool read_lists(const struct cgroups *cgroups, const char *id, uint64_t *out_listed, uint64_t *out_kernel,
                       struct err *err)
{
    bool is_v2 = cgroups_report(cgroups)->layout == CGROUP_V2;
    uint64_t files, processes, kernel = 0;
    char room[FILE_BYTES];
    struct str text;

    /* Until Linux 6.15 this brings all figures of a v2 cgroup up to date; memory.stat alone may be some seconds old. */
    if (is_v2 && !cgroup_read(cgroups, id, CGROUP_CPU, "cpu.stat", room, sizeof room, &text, err))
        return false;
    if (!cgroup_read(cgroups, id, CGROUP_MEMORY, "memory.stat", room, sizeof room, &text, err))
        return false;
    if ((is_v2 && !usage_field(text, STR("kernel"), &kernel)) ||
        !usage_field(text, is_v2 ? STR("file") : STR("total_cache"), &files) ||
        !usage_field(text, is_v2 ? STR("anon") : STR("total_rss"), &processes))
        return err_set(err, ERR_INTERNAL, "memory.stat of %s lacks a line", id);
    *out_listed = files + processes;
    *out_kernel = kernel;
    return true;
}

/* In this order: what the kernel frees in between must not hide pages. */
static bool pages_v1(const struct cgroups *cgroups, const char *id, struct usage_pages *out, struct err *err)
{
    uint64_t used, kernel, ignored;

    if (!read_number(cgroups, id, CGROUP_MEMORY, "memory.usage_in_bytes", &used, err) ||
        !read_number(cgroups, id, CGROUP_MEMORY, "memory.kmem.usage_in_bytes", &kernel, err))
        return false;
    out->bytes = out->listed = used > kernel ? used - kernel : 0;
    out->is_sure = true;
    return out->bytes <= ASIDE_BYTES || read_lists(cgroups, id, &out->listed, &ignored, err);
}

static bool pages_v2(const struct cgroups *cgroups, const char *id, struct usage_pages *out, struct err *err)
{
    uint64_t used, kernel;

    if (!read_number(cgroups, id, CGROUP_MEMORY, "memory.current", &used, err) ||
        !read_lists(cgroups, id, &out->listed, &kernel, err))
        return false;
    /* Both figures may be old; what one of them shows was there lately. */
    out->bytes = MAX(used > kernel ? used - kernel : 0, MIN(out->listed, used));
    out->is_sure = used == 0;
    return true;
}

bool usage_pages(const struct cgroups *cgroups, const char *id, struct usage_pages *out, struct err *err)
{
    if (!(cgroups_report(cgroups)->layout == CGROUP_V2 ? pages_v2 : pages_v1)(cgroups, id, out, err))
        return false;
    out->listed = MIN(out->listed, out->bytes);
    return true;
}

bool usage_certain_pages(const struct cgroups *cgroups, const char *id, uint64_t *out_bytes, struct err *err)
{
    bool is_v2 = cgroups_report(cgroups)->layout == CGROUP_V2;
    uint64_t used, listed, kernel;

    if (!read_number(cgroups, id, CGROUP_MEMORY, is_v2 ? "memory.current" : "memory.usage_in_bytes", &used, err) ||
        !read_lists(cgroups, id, &listed, &kernel, err) ||
        (!is_v2 && !read_number(cgroups, id, CGROUP_MEMORY, "memory.kmem.usage_in_bytes", &kernel, err)))
        return false;
    *out_bytes = used > kernel ? MIN(used - kernel, listed) : 0;
    return true;
}

bool usage_read(const struct cgroups *cgroups, const char *id, pid_t guestd, struct usage *out, struct err *err)
{
    struct usage usage = { 0 };

    if (cgroups_report(cgroups)->layout == CGROUP_V2 ? !read_v2(cgroups, id, &usage, err)
                                                     : !read_v1(cgroups, id, guestd, &usage, err))
        return err_wrap(err, "usage of sandbox %s", id);
    *out = usage;
    return true;
}

/* All of them: one that works must not hide behind 256 that sleep. */
static bool add_any_process(void *context, pid_t pid)
{
    (void)!add_process(context, pid);
    return true;
}

/* cpu.stat of a v2 tree has it, also of the freezer's on a hybrid host. */
bool usage_cpu_us(const struct cgroups *cgroups, const char *id, uint64_t *out_us, struct err *err)
{
    enum cgroup_control tree = cgroups_report(cgroups)->layout == CGROUP_V2 ? CGROUP_CPU : CGROUP_FREEZER;
    struct sum sum = { 0 };
    char room[FILE_BYTES];
    struct str text;
    uint64_t ns;

    if (cgroup_read(cgroups, id, tree, "cpu.stat", room, sizeof room, &text, err) &&
        usage_field(text, STR("usage_usec"), out_us))
        return true;
    if (read_number(cgroups, id, CGROUP_CPU, "cpuacct.usage", &ns, err)) {
        *out_us = ns / 1000;
        return true;
    }
    if (cgroup_each_user(cgroups, id, add_any_process, &sum) == 0)
        return false;
    *out_us = ticks_to_us(sum.ticks);
    return true;
}

void usage_find_top(const struct cgroups *cgroups, char out_id[USAGE_TOP_BYTES])
{
    char higher[USAGE_TOP_BYTES] = ".";
    uint64_t bytes;
    struct err ignored;

    do {
        memcpy(out_id, higher, USAGE_TOP_BYTES);
        (void)snprintf(higher, sizeof higher, "../%.*s", USAGE_TOP_BYTES - 4, out_id);
    } while (strlen(higher) < USAGE_TOP_BYTES - 4 && usage_charged_kernel(cgroups, higher, &bytes, &ignored));
}

bool usage_charged_kernel(const struct cgroups *cgroups, const char *id, uint64_t *out_bytes, struct err *err)
{
    uint64_t kernel, sockets = 0;
    char room[FILE_BYTES];
    struct str text;

    if (cgroups_report(cgroups)->layout == CGROUP_V2) {
        if (!cgroup_read(cgroups, id, CGROUP_CPU, "cpu.stat", room, sizeof room, &text, err) || /* as in read_lists() */
            !cgroup_read(cgroups, id, CGROUP_MEMORY, "memory.stat", room, sizeof room, &text, err))
            return false;
        if (!usage_field(text, STR("kernel"), &kernel) || !usage_field(text, STR("sock"), &sockets))
            return err_set(err, ERR_UNAVAILABLE, "memory.stat does not say what the kernel has");
    } else if (!read_number(cgroups, id, CGROUP_MEMORY, "memory.kmem.usage_in_bytes", &kernel, err)) {
        return false;
    } else if (!read_number(cgroups, id, CGROUP_MEMORY, "memory.kmem.tcp.usage_in_bytes", &sockets, err)) {
        sockets = 0;
    }
    *out_bytes = kernel + sockets;
    return true;
}
