/*
 * Two things watch, in one timer: the lists (look_at_lists), for what is known, and growth.h, for the rest.
 *
 * Why here and not in guestd: one look serves all sandboxes, where a thousand guestds would each have to wake up for
 * theirs; and the sandbox as a whole ends, because a socket may be held by a process, be on its way to another inside a
 * message, or be held by both.
 *
 * What arrives on UDP sockets and what TCP sockets hold is charged: as memory on v2, and on v1 by the limit that
 * cgroup.c writes.
 */
#include "isolation/native/kernel_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/hole.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/suspects.h"
#include "isolation/native/usage.h"

enum {
    LOOK_MS = 25,       /* a guest in C fills 2 to 4 GiB a second and CPU; a look takes 40 us */
    SCAN_MS = 60000,    /* full scan even without growth: one sandbox may grow while another shrinks */
    SLICE_US = 1000,    /* longest scan in one loop turn; may overrun by one read (0.1 ms) */
    SLICE_PAUSE_MS = 1, /* in which keeper does other things */
    REST = 9,           /* pause after a scan that found none, in multiples of the time it took */
    MEMINFO_BYTES = 8192,
    ZONEINFO_BYTES = 4 << 20, /* 6 KiB, and 400 bytes for each processor more */
    PIECE_BYTES = 65536,      /* of a read: the kernel gives a page of whole lines, and no machine has larger pages */
    /*
     * Longest /proc/PID/net list that we read. For each page the kernel walks the list from its start, so a long list
     * would keep us busy. A line is 80 to 170 bytes: a guest may have about 1,000 UDP sockets, netlink sockets or IPv6
     * groups, and the rest of KERNEL_MEMORY_SOCKETS for connections and local sockets. A sandbox with a longer list is
     * ended too.
     */
    LIST_BYTES = 128 << 10,
};

#define GROWTH (32ull << 20)
#define OF_A_SANDBOX (512ull << 10) /* kernel memory of a new sandbox; not counted as growth */

/* ---- the kernel's text ---- */

/* A word; blanks before it are skipped. */
static struct str next_word(struct str *line)
{
    struct str word = STR("");

    while (line->len && !word.len)
        if (!str_cut(line, ' ', &word))
            break;
    return word;
}

/* The fifth word of a line. In both lists that is the first that we want; the rest of the line stays. */
static struct str fifth_word(struct str *line)
{
    struct str word = STR("");

    for (int i = 0; i < 5; i++)
        word = next_word(line);
    return word;
}

static uint64_t number_of(struct str word)
{
    uint64_t value;

    return str_to_u64(word, INT64_MAX, &value) ? value : 0;
}

/* "sk Eth Pid Groups Rmem Wmem …", and a line for each socket. */
uint64_t kernel_memory_netlink(struct str text)
{
    uint64_t sum = 0;
    struct str line;

    while (text.len && str_cut(&text, '\n', &line)) {
        struct str received = fifth_word(&line);
        sum += number_of(received) + number_of(next_word(&line));
    }
    return sum;
}

/* "sl local_address rem_address st tx_queue:rx_queue …", in hexadecimal digits, eight each. */
uint64_t kernel_memory_udp(struct str text)
{
    uint64_t sum = 0;
    struct str line, sent;

    while (text.len && str_cut(&text, '\n', &line)) {
        struct str queues = fifth_word(&line);
        uint64_t value = 0;
        if (!str_has_char(queues, ':') || !str_cut(&queues, ':', &sent))
            continue; /* the heading */
        for (size_t i = 0; i < sent.len; i++) {
            char digit = sent.at[i];
            value = value << 4 | (uint64_t)(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
        }
        sum += value;
    }
    return sum;
}

/*
 * "sockets: used 17", and lines of what is hashed, the first "TCP: inuse 5 …"; a socket that is neither bound nor connected
 * is in the first one only.
 */
uint64_t kernel_memory_sockets(struct str text)
{
    struct str line = STR("");
    uint64_t used, tcp = 0;

    (void)str_cut(&text, '\n', &line);
    if (!str_eq(next_word(&line), STR("sockets:")) || !str_eq(next_word(&line), STR("used")))
        return 0;
    used = number_of(next_word(&line));
    line = STR("");
    (void)str_cut(&text, '\n', &line);
    if (str_eq(next_word(&line), STR("TCP:")) && str_eq(next_word(&line), STR("inuse")))
        tcp = number_of(next_word(&line));
    tcp = MIN(tcp, LIMIT_EGRESS_FLOWS);
    return used > tcp ? used - tcp : 0;
}

uint64_t kernel_memory_sockets_max(uint64_t memory_bytes)
{
    return MAX(KERNEL_MEMORY_SOCKETS_LEAST, MIN(KERNEL_MEMORY_SOCKETS, memory_bytes / KERNEL_MEMORY_PER_SOCKET));
}

uint64_t kernel_memory_files_max(uint64_t memory_bytes)
{
    return MAX(KERNEL_MEMORY_FILES_LEAST, MIN(KERNEL_MEMORY_FILES, memory_bytes / KERNEL_MEMORY_PER_FILE));
}

void kernel_memory_of(struct str meminfo, struct kernel_part *out)
{
    enum { TOTAL, NOT_HELD, NAMED, RECLAIMABLE, KINDS };
    static const struct {
        struct str name;
        int kind;
    } parts[] = {
        { STR_INIT("MemTotal"), TOTAL },           { STR_INIT("MemFree"), NOT_HELD },
        { STR_INIT("Buffers"), NOT_HELD },         { STR_INIT("Cached"), NOT_HELD },
        { STR_INIT("AnonPages"), NOT_HELD },       { STR_INIT("SwapCached"), NOT_HELD },
        { STR_INIT("SUnreclaim"), NAMED },         { STR_INIT("KernelStack"), NAMED },
        { STR_INIT("PageTables"), NAMED },         { STR_INIT("VmallocUsed"), NAMED },
        { STR_INIT("SecPageTables"), NAMED },      { STR_INIT("Percpu"), NAMED },
        { STR_INIT("SReclaimable"), RECLAIMABLE },
    };
    uint64_t sums[KINDS] = { 0 };
    struct str line, name;

    while (meminfo.len && str_cut(&meminfo, '\n', &line)) {
        if (!str_cut(&line, ':', &name))
            continue;
        for (size_t i = 0; i < COUNT_OF(parts); i++)
            if (str_eq(name, parts[i].name))
                sums[parts[i].kind] += number_of(next_word(&line)) << 10;
    }
    uint64_t others = sums[NOT_HELD] + sums[RECLAIMABLE];
    *out = (struct kernel_part){ .total_bytes = sums[TOTAL],
                                 .held_bytes = sums[TOTAL] > others ? sums[TOTAL] - others : 0,
                                 .named_bytes = sums[NAMED],
                                 .reclaimable_bytes = sums[RECLAIMABLE] };
}

/* Lines "count:    83974" of each processor in each zone. */
uint64_t kernel_memory_set_aside(struct str zoneinfo)
{
    uint64_t pages = 0;
    struct str line;

    while (zoneinfo.len && str_cut(&zoneinfo, '\n', &line))
        if (str_eq(next_word(&line), STR("count:")))
            pages += number_of(next_word(&line));
    return pages;
}

bool kernel_memory_part(int meminfo_fd, struct kernel_part *out)
{
    auto_free char *zoneinfo = NULL;
    char text[MEMINFO_BYTES];
    ssize_t n = pread(meminfo_fd, text, sizeof text, 0);
    size_t len = 0;
    struct err ignored; /* then it is less exact */

    if (n <= 0)
        return false;
    kernel_memory_of(str_of(text, (size_t)n), out);
    if (fd_read_file(AT_FDCWD, "/proc/zoneinfo", ZONEINFO_BYTES, &zoneinfo, &len, &ignored))
        out->held_bytes -=
            MIN(out->held_bytes, kernel_memory_set_aside(str_of(zoneinfo, len)) * (uint64_t)sysconf(_SC_PAGESIZE));
    return true;
}

/* ---- looking ---- */

/* Its memory limit is read only when there are many: that takes several system calls. */
static bool too_many(const struct box *box, uint64_t count, uint64_t least, uint64_t (*most)(uint64_t memory_bytes))
{
    struct usage usage = { 0 };
    struct err ignored; /* it is ending */

    return count > least && usage_read(box->native->cgroups, box->id, box->pid, &usage, &ignored) &&
           count > most(usage.memory_limit_bytes);
}

static uint64_t too_many_sockets(const struct box *box, struct str text)
{
    uint64_t count = kernel_memory_sockets(text);

    return too_many(box, count, KERNEL_MEMORY_SOCKETS_LEAST, kernel_memory_sockets_max) ? KERNEL_MEMORY_MAX + 1 : 0;
}

static uint64_t in_netlink(const struct box *box, struct str text)
{
    (void)box;
    return kernel_memory_netlink(text);
}

static uint64_t in_udp(const struct box *box, struct str text)
{
    (void)box;
    return kernel_memory_udp(text);
}

/* Counted by the length of the list: each group is a few hundred bytes. */
static uint64_t in_groups(const struct box *box, struct str text)
{
    (void)box;
    (void)text;
    return 0;
}

/* In /proc/PID/net, the cheapest first. */
static const struct {
    const char *name;
    uint64_t (*held)(const struct box *box, struct str text); /* bytes, of some whole lines */
} lists[] = {
    { "sockstat", too_many_sockets }, { "netlink", in_netlink }, { "udp", in_udp }, { "udp6", in_udp },
    { "igmp6", in_groups },
};

static void next_list(struct kernel_memory *memory)
{
    fd_close(&memory->list_fd);
    memory->list_bytes = 0;
    memory->list++;
}

static void begin_box(struct kernel_memory *memory, const char *id)
{
    fd_close(&memory->list_fd);
    open_files_done(&memory->files);
    (void)snprintf(memory->id, sizeof memory->id, "%s", id);
    memory->list = 0;
    memory->list_bytes = memory->held = 0;
}

/* At most. */
static uint64_t hidden_in_flight(const struct box *box, uint64_t hidden)
{
    uint64_t charged, most = hidden * KERNEL_MEMORY_HIDDEN;
    struct err ignored; /* this kernel charges nothing, or it is ending */

    if (!hidden || !usage_charged_kernel(box->native->cgroups, box->id, &charged, &ignored))
        return most;
    return MIN(most, charged / KERNEL_MEMORY_PER_IN_FLIGHT);
}

/* True: that was the last step. */
static bool count_some(struct kernel_memory *memory, struct box *box, enum exit_cause *out_cause)
{
    struct open_files *files = &memory->files;

    if (open_files_step(files))
        return false;
    if (too_many(box, files->open, KERNEL_MEMORY_FILES_LEAST, kernel_memory_files_max))
        *out_cause = EXIT_OPEN_FILES;
    bool is_flying = files->in_flight > KERNEL_MEMORY_IN_FLIGHT ||
                     files->in_flight + hidden_in_flight(box, files->hidden) > KERNEL_MEMORY_HIDDEN;
    box->in_flight_looks = is_flying ? box->in_flight_looks + 1 : 0;
    if (box->in_flight_looks == KERNEL_MEMORY_LOOKS)
        *out_cause = EXIT_IN_FLIGHT;
    if (is_flying)
        memory->scanned_ms = clock_mono_ms() - SCAN_MS + KERNEL_MEMORY_LOOK_AGAIN_MS;
    return true;
}

/* One system call or two. True: all is read, or why it is to be ended is known. */
static bool read_some(struct kernel_memory *memory, struct box *box, char *room, enum exit_cause *out_cause)
{
    char path[64];

    if (memory->list == COUNT_OF(lists))
        return count_some(memory, box, out_cause);
    if (memory->list_fd < 0) {
        (void)snprintf(path, sizeof path, "/proc/%d/net/%s", (int)box->pid, lists[memory->list].name);
        memory->list_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    /* It may have just ended, or there is no IPv6. */
    ssize_t n = memory->list_fd < 0 ? 0 : read(memory->list_fd, room, PIECE_BYTES);
    if (n <= 0) {
        next_list(memory);
        if (memory->list == COUNT_OF(lists))
            open_files_begin(&memory->files, box);
        return false;
    }
    memory->held += lists[memory->list].held(box, str_of(room, (size_t)n));
    memory->list_bytes += (uint64_t)n;
    if (memory->held > KERNEL_MEMORY_MAX || memory->list_bytes > LIST_BYTES)
        *out_cause = EXIT_KERNEL_MEMORY;
    return *out_cause != EXIT_PLAIN;
}

void kernel_memory_end(struct box *box, enum exit_cause cause, const char *why)
{
    struct err err;

    log_warn("native: sandbox %s is ended: %s", box->id, why);
    box->cause = cause;
    if (!box_kill(box, &err))
        log_error("native: %s", err_text(&err));
}

/* The one whose lists we are at, or the next; NULL: that was the last. */
static struct box *box_to_scan(struct native *native)
{
    struct kernel_memory *memory = &native->kernel_memory;
    struct box *box = memory->id[0] ? box_find(native, memory->id) : NULL;

    if (box && box->state == BOX_RUNNING)
        return box;
    do
        box = map_next(&native->boxes, &memory->next);
    while (box && box->state != BOX_RUNNING);
    begin_box(memory, box ? box->id : "");
    return box;
}

/* What a scan can find. */
static const char *const listed[EXIT_CAUSE_COUNT] = {
    [EXIT_KERNEL_MEMORY] = "its sockets are too many, or hold over 32 MiB of kernel memory outside its memory limit",
    [EXIT_OPEN_FILES] = "its processes have too many files open",
    [EXIT_IN_FLIGHT] = "too many descriptors are on their way over its unix sockets",
};

/* One that starts or ends meanwhile may be passed over: the next scan finds it. */
static void scan_some(struct native *native)
{
    auto_free char *room = mem_new(PIECE_BYTES);
    struct kernel_memory *memory = &native->kernel_memory;
    uint64_t began_us = clock_mono_us(), now_us = began_us;

    while (now_us - began_us < SLICE_US) {
        struct box *box = box_to_scan(native);
        if (!box) {
            memory->scanning = false;
            break;
        }
        enum exit_cause cause = EXIT_PLAIN;
        if (read_some(memory, box, room, &cause))
            begin_box(memory, "");
        if (cause != EXIT_PLAIN) {
            kernel_memory_end(box, cause, listed[cause]);
            memory->spent_us = 0; /* what was found may not be all: look again soon */
        }
        now_us = clock_mono_us();
    }
    memory->spent_us += now_us - began_us;
}

/* Those that the kernel may hold anything for: not the parked ones. */
static uint64_t count_living(const struct native *native)
{
    const struct box *box;
    uint64_t count = 0;

    for (size_t i = 0; (box = map_next(&native->boxes, &i));)
        count += box->state != BOX_PARKED;
    return count;
}

static void look(struct native *native, uint64_t living)
{
    struct kernel_memory *memory = &native->kernel_memory;
    uint64_t now_ms = clock_mono_ms();
    struct kernel_part part;

    if (hole_is_open("lists of kernel memory") || !kernel_memory_part(memory->meminfo_fd, &part))
        return;
    uint64_t due = living * OF_A_SANDBOX;
    uint64_t used = part.held_bytes > due ? part.held_bytes - due : 0;
    if (used < memory->reference)
        memory->reference = used;
    if (used - memory->reference < GROWTH && now_ms - memory->scanned_ms < SCAN_MS)
        return;
    memory->reference = used;
    memory->scanned_ms = now_ms;
    memory->scanning = true;
    memory->next = 0;
    memory->spent_us = 0;
}

/* How long it can wait. */
static uint64_t look_at_lists(struct native *native, uint64_t living)
{
    struct kernel_memory *memory = &native->kernel_memory;

    if (!memory->scanning)
        look(native, living);
    if (!memory->scanning)
        return LOOK_MS;
    scan_some(native);
    return memory->scanning ? SLICE_PAUSE_MS : MAX((uint64_t)LOOK_MS, memory->spent_us * REST / 1000);
}

/* One round at a time. */
static uint64_t watch_growth(struct kernel_memory *memory)
{
    uint64_t pause_ms = LOOK_MS;

    for (int i = 0; i < KERNEL_MEMORY_VIEWS; i++)
        if (memory->growth[!i].state == GROWTH_WATCHING)
            pause_ms = MIN(pause_ms, growth_step(&memory->growth[i], clock_mono_us()));
    return pause_ms;
}

static void done_watching(struct kernel_memory *memory)
{
    for (int i = 0; i < KERNEL_MEMORY_VIEWS; i++)
        growth_done(&memory->growth[i]);
}

static void on_timer(struct timer *timer)
{
    struct native *native = container_of(timer, struct native, kernel_memory.timer);
    struct kernel_memory *memory = &native->kernel_memory;
    uint64_t living = count_living(native);

    suspects_thaw_left(native);

    if (!living) {
        memory->scanning = false;
        begin_box(memory, "");
        done_watching(memory);
        return; /* the next one to run sets it again */
    }
    uint64_t pause_ms = watch_growth(memory), now_ms = clock_mono_ms();
    if (now_ms >= memory->due_ms)
        memory->due_ms = now_ms + look_at_lists(native, living);
    timer_set(timer, native->loop, MIN(pause_ms, memory->due_ms - now_ms), on_timer);
}

bool kernel_memory_open(struct native *native, struct err *err)
{
    int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open /proc/meminfo");
    native->kernel_memory.meminfo_fd = fd;
    usage_find_top(native->cgroups, native->kernel_memory.top);
    struct kernel_part part = { 0 };
    (void)!kernel_memory_part(fd, &part);
    for (int i = 0; i < KERNEL_MEMORY_VIEWS; i++)
        growth_init(&native->kernel_memory.growth[i], &suspects_ops[i], native, part.total_bytes,
                    (unsigned)get_nprocs());
    return true;
}

void kernel_memory_watch(struct native *native)
{
    if (!timer_is_set(&native->kernel_memory.timer))
        timer_set(&native->kernel_memory.timer, native->loop, LOOK_MS, on_timer);
}

void kernel_memory_close(struct native *native)
{
    timer_clear(&native->kernel_memory.timer);
    if (native->kernel_memory.meminfo_fd >= 0)
        done_watching(&native->kernel_memory);
    open_files_done(&native->kernel_memory.files);
    fd_close(&native->kernel_memory.list_fd);
    fd_close(&native->kernel_memory.shrink_fd); /* it ends with us */
    fd_close(&native->kernel_memory.meminfo_fd);
}
