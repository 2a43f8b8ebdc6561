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

enum {
    LOOK_MS = 25,       /* a guest in C fills 2 to 4 GiB a second and CPU; a look takes 40 us */
    SCAN_MS = 60000,    /* for what grows while something else shrinks */
    SLICE = 8,          /* sandboxes a turn: three lists each, of a tenth of a millisecond if it is busy */
    SLICE_PAUSE_MS = 1, /* others come first */
    MEMINFO_BYTES = 8192,
    SOCKETS_BYTES =
        1 << 20, /* of one list; a line is 90 to 130 bytes. A guest with more sockets than that is ended too */
};

#define GROWTH (32ull << 20)
#define OF_A_SANDBOX (512ull << 10) /* what the kernel needs for one: no growth to look into */

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

/* False: there is more than we read. */
static bool read_list(pid_t pid, const char *name, char *room, struct str *out)
{
    char path[64];
    size_t len = 0;
    ssize_t n;

    (void)snprintf(path, sizeof path, "/proc/%d/net/%s", (int)pid, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    *out = STR("");
    if (fd < 0)
        return true; /* it has just ended, or there is no IPv6 */
    while (len < SOCKETS_BYTES && (n = read(fd, room + len, SOCKETS_BYTES - len)) > 0)
        len += (size_t)n;
    *out = str_of(room, len);
    return len < SOCKETS_BYTES;
}

static bool holds_too_much(const struct box *box, char *room)
{
    struct str text;

    if (!read_list(box->pid, "netlink", room, &text))
        return true;
    uint64_t sum = kernel_memory_netlink(text);
    if (!read_list(box->pid, "udp", room, &text))
        return true;
    sum += kernel_memory_udp(text);
    if (!read_list(box->pid, "udp6", room, &text))
        return true;
    return sum + kernel_memory_udp(text) > KERNEL_MEMORY_MAX;
}

static void end_box(struct box *box)
{
    struct err err;

    log_warn(
        "native: sandbox %s is ended: its sockets have the kernel hold more than %llu MiB that its memory limit does "
        "not count",
        box->id, KERNEL_MEMORY_MAX >> 20);
    box->cause = EXIT_KERNEL_MEMORY;
    if (!box_kill(box, &err))
        log_error("native: %s", err_text(&err));
}

/* One that starts or ends meanwhile may be passed over: the next scan finds it. */
static void scan_some(struct native *native)
{
    auto_free char *room = mem_new(SOCKETS_BYTES);
    struct kernel_memory *memory = &native->kernel_memory;

    for (int i = 0; i < SLICE; i++) {
        struct box *box = map_next(&native->boxes, &memory->next);
        if (!box) {
            memory->scanning = false;
            return;
        }
        if (box->state == BOX_RUNNING && holds_too_much(box, room))
            end_box(box);
    }
}

static void look(struct native *native)
{
    struct kernel_memory *memory = &native->kernel_memory;
    uint64_t now_ms = clock_mono_ms();
    char text[MEMINFO_BYTES];
    ssize_t n = pread(memory->meminfo_fd, text, sizeof text, 0);

    if (n <= 0)
        return;
    uint64_t used = kernel_memory_of(str_of(text, (size_t)n));
    uint64_t due = native->boxes.count * OF_A_SANDBOX;
    used = used > due ? used - due : 0;
    if (used < memory->reference)
        memory->reference = used;
    if (used - memory->reference < GROWTH && now_ms - memory->scanned_ms < SCAN_MS)
        return;
    memory->reference = used;
    memory->scanned_ms = now_ms;
    memory->scanning = true;
    memory->next = 0;
}

static void on_timer(struct timer *timer)
{
    struct native *native = container_of(timer, struct native, kernel_memory.timer);

    if (!native->boxes.count)
        return; /* the next one to run sets it again */
    if (!native->kernel_memory.scanning)
        look(native);
    if (native->kernel_memory.scanning)
        scan_some(native);
    timer_set(timer, native->loop, native->kernel_memory.scanning ? SLICE_PAUSE_MS : LOOK_MS, on_timer);
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
    fd_close(&native->kernel_memory.meminfo_fd);
}
