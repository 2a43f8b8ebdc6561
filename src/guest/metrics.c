#include "guest/metrics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "wire/json.h"

enum { PROC_FILE_BYTES = 64 * 1024 };

/* "MemTotal:  123 kB" → bytes; 0 when the line is not there. */
static uint64_t meminfo(struct str text, struct str name)
{
    struct str line;
    uint64_t kib;

    while (str_cut(&text, '\n', &line)) {
        if (!str_skip(&line, name) || !str_skip(&line, STR(":")))
            continue;
        struct str number;
        line = str_trim(line);
        return str_cut(&line, ' ', &number) && str_to_u64(number, UINT64_MAX / 1024, &kib) ? kib * 1024 : 0;
    }
    return 0;
}

struct cpu_times {
    uint64_t busy, all;
};

/* The first line of /proc/stat: user nice system idle iowait irq softirq steal. */
static struct cpu_times cpu_times(struct str text)
{
    struct cpu_times times = { 0 };
    struct str line, word;
    uint64_t value;

    if (!str_cut(&text, '\n', &line) || !str_skip(&line, STR("cpu")))
        return times;
    line = str_trim(line);
    for (int i = 0; i < 8 && str_cut(&line, ' ', &word); i++) {
        if (!str_to_u64(word, UINT64_MAX, &value))
            break;
        times.all += value;
        if (i != 3 && i != 4)
            times.busy += value;
    }
    return times;
}

static struct str read_proc(const char *path, char **out_text)
{
    struct err ignored;
    size_t len = 0;

    return fd_read_file(AT_FDCWD, path, PROC_FILE_BYTES, out_text, &len, &ignored) ? str_of(*out_text, len) : STR("");
}

void metrics_write(struct buf *out)
{
    static struct cpu_times last;
    auto_free char *mem_text = NULL, *stat_text = NULL;
    struct str mem = read_proc("/proc/meminfo", &mem_text);
    struct cpu_times now = cpu_times(read_proc("/proc/stat", &stat_text));
    struct statvfs disk = { 0 };

    double percent = now.all > last.all ? 100.0 * (double)(now.busy - last.busy) / (double)(now.all - last.all) : 0;
    last = now;
    uint64_t total = meminfo(mem, STR("MemTotal")),
             cache = meminfo(mem, STR("Cached")) + meminfo(mem, STR("SReclaimable"));
    uint64_t free_bytes = meminfo(mem, STR("MemFree")) + meminfo(mem, STR("Buffers"));
    uint64_t used = total > free_bytes + cache ? total - free_bytes - cache : 0;
    (void)statvfs("/", &disk); /* zeroes if it fails */
    char cpu_text[32];
    (void)snprintf(cpu_text, sizeof cpu_text, "%.2f", percent);

    struct json_out json = json_out_to(out);
    json_out_object(&json, NULL);
    json_out_int(&json, "ts", clock_wall_us() / 1000000);
    json_out_int(&json, "cpu_count", sysconf(_SC_NPROCESSORS_ONLN));
    json_out_raw(&json, "cpu_used_pct", str_from(cpu_text));
    json_out_int(&json, "mem_total", (int64_t)total);
    json_out_int(&json, "mem_used", (int64_t)used);
    json_out_int(&json, "mem_cache", (int64_t)cache);
    json_out_int(&json, "mem_total_mib", (int64_t)(total >> 20));
    json_out_int(&json, "mem_used_mib", (int64_t)(used >> 20));
    json_out_int(&json, "disk_used", (int64_t)((disk.f_blocks - disk.f_bavail) * disk.f_frsize));
    json_out_int(&json, "disk_total", (int64_t)(disk.f_blocks * disk.f_frsize));
    json_out_end(&json);
}
