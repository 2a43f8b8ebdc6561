/*
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
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/usage.h"

enum {
    LOOK_MS = 25,       /* a guest in C fills 2 to 4 GiB a second and CPU; a look takes 40 us */
    SCAN_MS = 60000,    /* full scan even without growth: one sandbox may grow while another shrinks */
    SLICE_US = 1000,    /* longest scan in one loop turn; may overrun by one read (0.1 ms) */
    SLICE_PAUSE_MS = 1, /* in which keeper does other things */
    REST = 9,           /* pause after a scan that found none, in multiples of the time it took */
    MEMINFO_BYTES = 8192,
    PIECE_BYTES = 65536, /* of a read: the kernel gives a page of whole lines, and no machine has larger pages */
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

uint64_t kernel_memory_of(struct str meminfo)
{
    static const struct {
        struct str name;
        int sign;
    } parts[] = {
        { STR_INIT("MemTotal"), 1 },    { STR_INIT("MemFree"), -1 },   { STR_INIT("Buffers"), -1 },
        { STR_INIT("Cached"), -1 },     { STR_INIT("AnonPages"), -1 }, { STR_INIT("SReclaimable"), -1 },
        { STR_INIT("SwapCached"), -1 },
    };
    int64_t sum = 0;
    struct str line, name;

    while (meminfo.len && str_cut(&meminfo, '\n', &line)) {
        if (!str_cut(&line, ':', &name))
            continue;
        for (size_t i = 0; i < COUNT_OF(parts); i++)
            if (str_eq(name, parts[i].name))
                sum += parts[i].sign * (int64_t)(number_of(next_word(&line)) << 10);
    }
    return sum > 0 ? (uint64_t)sum : 0;
}

/* ---- looking ---- */

/* Its memory limit is read only when there are many: that takes several system calls. */
static uint64_t too_many_sockets(const struct box *box, struct str text)
{
    uint64_t count = kernel_memory_sockets(text);
    struct usage usage = { 0 };
    struct err err;

    if (count <= KERNEL_MEMORY_SOCKETS_LEAST)
        return 0;
    if (!usage_read(box->native->cgroups, box->id, box->pid, &usage, &err))
        return 0; /* it is ending */
    return count > kernel_memory_sockets_max(usage.memory_limit_bytes) ? KERNEL_MEMORY_MAX + 1 : 0;
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
    (void)snprintf(memory->id, sizeof memory->id, "%s", id);
    memory->list = 0;
    memory->list_bytes = memory->held = 0;
}

/* One system call or two. True: it holds too much. */
static bool read_some(struct kernel_memory *memory, const struct box *box, char *room)
{
    char path[64];

    if (memory->list_fd < 0) {
        (void)snprintf(path, sizeof path, "/proc/%d/net/%s", (int)box->pid, lists[memory->list].name);
        memory->list_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    /* It may have just ended, or there is no IPv6. */
    ssize_t n = memory->list_fd < 0 ? 0 : read(memory->list_fd, room, PIECE_BYTES);
    if (n <= 0) {
        next_list(memory);
        return false;
    }
    memory->held += lists[memory->list].held(box, str_of(room, (size_t)n));
    memory->list_bytes += (uint64_t)n;
    return memory->held > KERNEL_MEMORY_MAX || memory->list_bytes > LIST_BYTES;
}

static void end_box(struct box *box)
{
    struct err err;

    log_warn("native: sandbox %s is ended: its sockets are too many, or hold over %llu MiB of kernel memory outside "
             "its memory limit",
             box->id, KERNEL_MEMORY_MAX >> 20);
    box->cause = EXIT_KERNEL_MEMORY;
    if (!box_kill(box, &err))
        log_error("native: %s", err_text(&err));
}

/* The one whose lists we are at, or the next; NULL: that was the last. */
static struct box *box_to_scan(struct native *native)
{
    struct kernel_memory *memory = &native->kernel_memory;
    struct box *box = memory->id[0] ? box_find(native, memory->id) : NULL;

    if (box && box->state == BOX_RUNNING && memory->list < COUNT_OF(lists))
        return box;
    do
        box = map_next(&native->boxes, &memory->next);
    while (box && box->state != BOX_RUNNING);
    begin_box(memory, box ? box->id : "");
    return box;
}

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
        if (read_some(memory, box, room)) {
            end_box(box);
            memory->list = COUNT_OF(lists);
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
    char text[MEMINFO_BYTES];
    ssize_t n = pread(memory->meminfo_fd, text, sizeof text, 0);

    if (n <= 0)
        return;
    uint64_t used = kernel_memory_of(str_of(text, (size_t)n));
    uint64_t due = living * OF_A_SANDBOX;
    used = used > due ? used - due : 0;
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

static void on_timer(struct timer *timer)
{
    struct native *native = container_of(timer, struct native, kernel_memory.timer);
    struct kernel_memory *memory = &native->kernel_memory;
    uint64_t pause_ms = LOOK_MS, living = count_living(native);

    if (!living) {
        memory->scanning = false;
        begin_box(memory, "");
        return; /* the next one to run sets it again */
    }
    if (!memory->scanning)
        look(native, living);
    if (memory->scanning) {
        scan_some(native);
        if (memory->scanning)
            pause_ms = SLICE_PAUSE_MS;
        else if (memory->spent_us * REST / 1000 > LOOK_MS)
            pause_ms = memory->spent_us * REST / 1000;
    }
    timer_set(timer, native->loop, pause_ms, on_timer);
}

bool kernel_memory_open(struct native *native, struct err *err)
{
    int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open /proc/meminfo");
    native->kernel_memory.meminfo_fd = fd;
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
    fd_close(&native->kernel_memory.list_fd);
    fd_close(&native->kernel_memory.meminfo_fd);
}
